//! Memory pools: what a pool has reserved is taken from the device, whether or not it is in use.
//!
//! The driver answers how much a pool has reserved. An answer describes a moment between the call's start and
//! its end, and two threads may deliver theirs in another order than they asked; so each query takes a ticket
//! before it asks, and an answer with a ticket older than the last one applied is dropped: whatever the older
//! query saw, the newer one, which began later, has seen as well.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// The pools that allocations of this process came from.
#[derive(Default)]
pub struct Pools {
    pools: Mutex<HashMap<u64, Pool>>,
    /// Pools of memory that is not a device's.
    elsewhere: Mutex<HashSet<u64>>,
}

#[derive(Debug)]
struct Pool {
    device: u8,
    /// Bytes of the live allocations from it.
    used: u64,
    /// What the driver last said that it has reserved.
    reserved: u64,
    /// What the account has been charged for it.
    charged: u64,
    next_ticket: u64,
    applied_ticket: u64,
    /// The largest step by which it was seen to grow.
    granularity: u64,
    /// Its handle must not be used any more; what was allocated from it keeps it in the driver.
    destroyed: bool,
}

/// Taken before the driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// How an account has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// CUDA ordinal.
    pub device: u8,
    /// Charged before, in bytes.
    pub before: u64,
    /// To be charged now, in bytes.
    pub after: u64,
    /// Of which not in use, in bytes.
    pub unused: u64,
}

/// The step by which drivers grow a pool at least.
const SMALLEST_STEP: u64 = 2 << 20;

impl Pools {
    /// The most by which an allocation of `bytes` is expected to make the pool grow.
    pub fn expected_growth(&self, pool: u64, device: u8, bytes: u64) -> u64 {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(pool).or_insert_with(|| Pool::new(device));
        let wanted = pool.used.saturating_add(bytes);
        let growth = wanted.saturating_sub(pool.charged);
        growth.checked_next_multiple_of(pool.granularity).unwrap_or(growth)
    }

    /// To be called before the driver is asked what the pool has reserved.
    pub fn ticket(&self, pool: u64, device: u8) -> Ticket {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(pool).or_insert_with(|| Pool::new(device));
        pool.next_ticket += 1;
        Ticket(pool.next_ticket)
    }

    /// Applies the driver's answer. `allocated` and `freed` are the bytes that this call put into use and gave
    /// back. `reserved` is `None` where the driver could not say: then what is in use counts.
    pub fn settle(
        &self,
        pool: u64,
        ticket: Ticket,
        reserved: Option<u64>,
        allocated: u64,
        freed: u64,
    ) -> Option<Change> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.get_mut(&pool)?;
        pool.used = pool.used.saturating_add(allocated).saturating_sub(freed);
        if pool.destroyed {
            // Nobody can be asked: the last that was known stays until everything is freed.
            pool.reserved = if pool.used == 0 { 0 } else { pool.reserved };
        } else if ticket.0 > pool.applied_ticket {
            pool.applied_ticket = ticket.0;
            if let Some(reserved) = reserved {
                let step = reserved.saturating_sub(pool.reserved);
                if allocated != 0 && allocated < pool.granularity && step > pool.granularity {
                    // A small allocation made it grow by more than we thought.
                    pool.granularity = step.next_power_of_two().min(1 << 30);
                }
                pool.reserved = reserved;
            } else {
                pool.reserved = 0;
            }
        }
        let before = pool.charged;
        pool.charged = pool.reserved.max(pool.used);
        Some(Change { device: pool.device, before, after: pool.charged, unused: pool.charged - pool.used })
    }

    /// cuMemPoolCreate: where the pool's memory lies. `None`: not on a device.
    pub fn created(&self, pool: u64, device: Option<u8>) {
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        match device {
            None => {
                elsewhere.insert(pool);
            }
            Some(device) => {
                elsewhere.remove(&pool);
                let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
                // A destroyed pool of the same handle may have allocations left: they are charged to this one.
                let known = pools.entry(pool).or_insert_with(|| Pool::new(device));
                (known.device, known.destroyed) = (device, false);
            }
        }
    }

    /// True for a pool whose memory is not a device's.
    pub fn is_elsewhere(&self, pool: u64) -> bool {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).contains(&pool)
    }

    /// True when the driver may be asked about the pool.
    pub fn may_be_asked(&self, pool: u64) -> bool {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.get(&pool).is_none_or(|pool| !pool.destroyed)
    }

    /// The device of a pool.
    pub fn device(&self, pool: u64) -> Option<u8> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.get(&pool).map(|pool| pool.device)
    }

    /// All pools of a device.
    pub fn of_device(&self, device: u8) -> Vec<u64> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<u64> =
            pools.iter().filter(|(_, pool)| pool.device == device).map(|(handle, _)| *handle).collect();
        found.sort_unstable();
        found
    }

    /// cuMemPoolDestroy, before the driver is called: afterwards the handle may be another pool's. Live allocations
    /// keep the pool in the driver until they are freed.
    pub fn destroy(&self, pool: u64) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = pools.get_mut(&pool) {
            known.destroyed = true;
        }
    }

    /// The driver refused to destroy it.
    pub fn undo_destroy(&self, pool: u64) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = pools.get_mut(&pool) {
            known.destroyed = false;
        }
    }

    /// Forgets a destroyed pool from which nothing is left.
    pub fn forget_if_gone(&self, pool: u64) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.get(&pool).is_some_and(|known| known.destroyed && known.charged == 0) {
            pools.remove(&pool);
        }
    }
}

impl Pool {
    fn new(device: u8) -> Pool {
        Pool {
            device,
            used: 0,
            reserved: 0,
            charged: 0,
            next_ticket: 0,
            applied_ticket: 0,
            granularity: SMALLEST_STEP,
            destroyed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_reserved_counts() {
        let pools = Pools::default();
        assert_eq!(pools.expected_growth(1, 0, 100), 2 * MIB);
        let ticket = pools.ticket(1, 0);
        let change = pools.settle(1, ticket, Some(2 * MIB), 100, 0);
        assert_eq!(change, Some(Change { device: 0, before: 0, after: 2 * MIB, unused: 2 * MIB - 100 }));
        assert_eq!(pools.expected_growth(1, 0, 100), 0, "fits in what is reserved");
        let ticket = pools.ticket(1, 0);
        let change = pools.settle(1, ticket, Some(2 * MIB), 0, 100);
        assert_eq!(
            change.map(|c| (c.after, c.unused)),
            Some((2 * MIB, 2 * MIB)),
            "a free gives nothing back"
        );
        let ticket = pools.ticket(1, 0);
        assert_eq!(pools.settle(1, ticket, Some(0), 0, 0).map(|c| c.after), Some(0), "a trim does");
    }

    #[test]
    fn a_late_answer_is_dropped() {
        let pools = Pools::default();
        let early = pools.ticket(1, 0);
        let late = pools.ticket(1, 0);
        pools.settle(1, late, Some(4 * MIB), MIB, 0);
        let change = pools.settle(1, early, Some(2 * MIB), MIB, 0);
        assert_eq!(change.map(|c| c.after), Some(4 * MIB));
    }

    #[test]
    fn larger_steps_are_learned() {
        let pools = Pools::default();
        let ticket = pools.ticket(1, 0);
        pools.settle(1, ticket, Some(32 * MIB), 100, 0);
        assert_eq!(pools.expected_growth(1, 0, 33 * MIB), 32 * MIB);
    }

    #[test]
    fn a_destroyed_pool_lives_until_its_last_allocation() {
        let pools = Pools::default();
        let ticket = pools.ticket(1, 0);
        pools.settle(1, ticket, Some(2 * MIB), 100, 0);
        pools.destroy(1);
        assert!(!pools.may_be_asked(1));
        pools.forget_if_gone(1);
        let ticket = pools.ticket(1, 0);
        assert_eq!(pools.settle(1, ticket, None, 0, 60).map(|c| c.after), Some(2 * MIB));
        let ticket = pools.ticket(1, 0);
        assert_eq!(pools.settle(1, ticket, None, 0, 40).map(|c| c.after), Some(0));
        pools.forget_if_gone(1);
        assert_eq!(pools.device(1), None);
    }

    #[test]
    fn a_new_pool_of_the_same_handle_can_be_asked() {
        let pools = Pools::default();
        pools.created(1, Some(2));
        pools.destroy(1);
        pools.created(1, Some(3));
        assert_eq!((pools.may_be_asked(1), pools.device(1)), (true, Some(3)));
        pools.created(2, None);
        assert!(pools.is_elsewhere(2) && !pools.is_elsewhere(1));
    }

    #[test]
    fn without_an_answer_the_use_counts() {
        let pools = Pools::default();
        let ticket = pools.ticket(1, 3);
        assert_eq!(
            pools.settle(1, ticket, None, 700, 0).map(|c| (c.device, c.after, c.unused)),
            Some((3, 700, 0))
        );
    }
}
