//! Memory pools: what a pool has reserved is taken from the device, whether or not it is in use.
//!
//! The driver answers how much a pool has reserved. An answer describes a moment between the call's start and
//! its end, and two threads may deliver theirs in another order than they asked; so each query takes a ticket
//! before it asks, and an answer with a ticket older than the last one applied is dropped: whatever the older
//! query saw, the newer one, which began later, has seen as well.
//!
//! An allocation is *pending* from before its driver call until its answer is applied. Pending bytes count as if
//! they were in use already: two threads that each see room for one in what a pool has reserved would otherwise
//! both go to the driver, and the pool would grow past the quota.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The pools that allocations of this process came from.
#[derive(Default)]
pub struct Pools {
    pools: Mutex<HashMap<u64, Pool>>,
    /// Pools that have more reserved than is in use.
    with_unused: AtomicUsize,
}

/// Where a pool has its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// On the device with this CUDA ordinal.
    Device(u8),
    /// Not on a device: not ours to count.
    Elsewhere,
}

#[derive(Debug)]
struct Pool {
    home: Home,
    /// Bytes of the live allocations from it.
    used: u64,
    /// Bytes of allocations that the driver has not answered yet.
    pending: u64,
    /// What the driver last said that it has reserved.
    reserved: u64,
    /// What the account has been charged for it.
    charged: u64,
    /// Destroyed while allocations from it were alive: it keeps all that it has until the last of them is freed,
    /// and must not be asked any more.
    doomed: bool,
    next_ticket: u64,
    applied_ticket: u64,
    /// The largest step by which it was seen to grow.
    granularity: u64,
}

/// Taken before the driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// What a driver call did, and what the driver said after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// As given to [`Pools::begin`], in bytes.
    pub pending: u64,
    /// Put into use, in bytes.
    pub allocated: u64,
    /// Given back, in bytes.
    pub freed: u64,
    /// What the pool has reserved; `None` where the driver could not say: then what is in use counts.
    pub reserved: Option<u64>,
    /// What is in use, where the driver says that and we do not count it ourselves.
    pub used: Option<u64>,
}

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
    /// Notes where a pool is, before anything is allocated from it.
    pub fn note(&self, pool: u64, home: Home) {
        let mut pools = self.lock();
        let known = pools.entry(pool).or_insert_with(|| Pool::new(home));
        // A destroyed pool of the same handle may have allocations left: they are charged to this one.
        (known.home, known.doomed) = (home, false);
    }

    /// Before an allocation of `bytes`: has `charge` take from the account what the pool is expected to grow by.
    pub fn begin<E>(
        &self,
        pool: u64,
        device: u8,
        bytes: u64,
        charge: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pools = self.lock();
        let pool = pools.entry(pool).or_insert_with(|| Pool::new(Home::Device(device)));
        let wanted = pool.claim(pool.pending.saturating_add(bytes));
        charge(wanted.saturating_sub(pool.charged))?;
        pool.pending = pool.pending.saturating_add(bytes);
        pool.charged = pool.charged.max(wanted);
        Ok(())
    }

    /// Bytes that other threads have pending: their answers may make room.
    pub fn pending(&self, pool: u64) -> u64 {
        self.lock().get(&pool).map_or(0, |pool| pool.pending)
    }

    /// To be called before the driver is asked what the pool has reserved. `None`: it must not be asked.
    pub fn ticket(&self, pool: u64, device: u8) -> Option<Ticket> {
        let mut pools = self.lock();
        let pool = pools.entry(pool).or_insert_with(|| Pool::new(Home::Device(device)));
        if pool.doomed {
            return None;
        }
        pool.next_ticket += 1;
        Some(Ticket(pool.next_ticket))
    }

    /// Applies what a call did. `apply` runs before another thread can change the same pool, so that what it
    /// writes down is never older than what is there. Without a ticket the driver was not asked.
    pub fn settle(&self, pool: u64, ticket: Option<Ticket>, done: Done, apply: impl FnOnce(Change)) {
        let mut pools = self.lock();
        let Some(known) = pools.get_mut(&pool) else { return };
        let Home::Device(device) = known.home else { return };
        known.pending = known.pending.saturating_sub(done.pending);
        known.used = known.used.saturating_add(done.allocated).saturating_sub(done.freed);
        if let Some(ticket) = ticket.filter(|ticket| ticket.0 > known.applied_ticket && !known.doomed) {
            known.applied_ticket = ticket.0;
            known.learn(&done);
        }
        let before = known.charged;
        let ended = known.doomed && known.used == 0 && known.pending == 0;
        known.charged = if ended { 0 } else { known.claim(known.pending) };
        let (after, used) = (known.charged, known.used);
        apply(Change { device, before, after, unused: after.saturating_sub(used) });
        if ended {
            pools.remove(&pool);
        }
        // Relaxed: a hint. Whoever synchronises to have memory given back has freed it before, in program order.
        self.with_unused.store(pools.values().filter(|pool| pool.has_unused()).count(), Ordering::Relaxed);
    }

    /// True while a pool has something that it could give back.
    #[inline]
    pub fn any_unused(&self) -> bool {
        self.with_unused.load(Ordering::Relaxed) != 0
    }

    /// The pools that have, with their devices.
    pub fn with_unused(&self) -> Vec<(u64, u8)> {
        let pools = self.lock();
        let of = |(handle, pool): (&u64, &Pool)| match pool.home {
            Home::Device(device) if pool.has_unused() => Some((*handle, device)),
            _ => None,
        };
        pools.iter().filter_map(of).collect()
    }

    /// Where a pool is, if it is known.
    pub fn home(&self, pool: u64) -> Option<Home> {
        self.lock().get(&pool).map(|pool| pool.home)
    }

    /// The device of a pool that has its memory on one and may be asked about it.
    pub fn device(&self, pool: u64) -> Option<u8> {
        match self.lock().get(&pool) {
            Some(Pool { home: Home::Device(device), doomed: false, .. }) => Some(*device),
            _ => None,
        }
    }

    /// All pools of a device that may be asked about what they have.
    pub fn of_device(&self, device: u8) -> Vec<u64> {
        let pools = self.lock();
        let here = |pool: &Pool| pool.home == Home::Device(device) && !pool.doomed;
        let mut found: Vec<u64> =
            pools.iter().filter(|(_, pool)| here(pool)).map(|(handle, _)| *handle).collect();
        crate::order::sort(&mut found, |a, b| a < b);
        found
    }

    /// Before the driver is told to destroy a pool: from now on it must not be asked about it.
    pub fn doom(&self, pool: u64) {
        if let Some(pool) = self.lock().get_mut(&pool) {
            pool.doomed = true;
        }
    }

    /// The driver refused to destroy it.
    pub fn reprieve(&self, pool: u64) {
        if let Some(pool) = self.lock().get_mut(&pool) {
            pool.doomed = false;
        }
    }

    /// The driver has destroyed a pool whose memory is not on a device.
    pub fn forget_elsewhere(&self, pool: u64) {
        let mut pools = self.lock();
        if pools.get(&pool).is_some_and(|pool| pool.home == Home::Elsewhere) {
            pools.remove(&pool);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Pool>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn new(home: Home) -> Pool {
        Pool {
            home,
            used: 0,
            pending: 0,
            reserved: 0,
            charged: 0,
            doomed: false,
            next_ticket: 0,
            applied_ticket: 0,
            granularity: SMALLEST_STEP,
        }
    }

    fn has_unused(&self) -> bool {
        !self.doomed && self.reserved > self.used
    }

    /// What the pool has, or will have once `pending` bytes are allocated from it.
    fn claim(&self, pending: u64) -> u64 {
        if pending == 0 {
            return self.reserved.max(self.used);
        }
        let use_to_come = self.used.saturating_add(pending);
        self.reserved.max(use_to_come.checked_next_multiple_of(self.granularity).unwrap_or(use_to_come))
    }

    fn learn(&mut self, done: &Done) {
        // A question that failed once says nothing: the last answer stays.
        let reserved = done.reserved.unwrap_or(self.reserved);
        let step = reserved.saturating_sub(self.reserved);
        if done.allocated != 0 && done.allocated < self.granularity && step > self.granularity {
            // A small allocation made it grow by more than we thought.
            self.granularity = step.next_power_of_two().min(1 << 30);
        }
        self.reserved = reserved;
        if let Some(used) = done.used {
            self.used = used;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MIB: u64 = 1 << 20;

    fn begin(pools: &Pools, bytes: u64) -> u64 {
        let mut charged = 0;
        let charge = |growth| {
            charged = growth;
            Ok::<(), ()>(())
        };
        pools.begin(1, 0, bytes, charge).unwrap();
        charged
    }

    fn settle(pools: &Pools, ticket: Option<Ticket>, done: Done) -> Option<Change> {
        let mut change = None;
        pools.settle(1, ticket, done, |c| change = Some(c));
        change
    }

    fn allocated(bytes: u64, reserved: u64) -> Done {
        Done { pending: bytes, allocated: bytes, reserved: Some(reserved), ..Done::default() }
    }

    #[test]
    fn what_is_reserved_counts() {
        let pools = Pools::default();
        assert_eq!(begin(&pools, 100), 2 * MIB);
        let change = settle(&pools, pools.ticket(1, 0), allocated(100, 2 * MIB));
        assert_eq!(
            change,
            Some(Change { device: 0, before: 2 * MIB, after: 2 * MIB, unused: 2 * MIB - 100 })
        );
        let freed = |reserved| Done { freed: 100, reserved: Some(reserved), ..Done::default() };
        let change = settle(&pools, pools.ticket(1, 0), freed(2 * MIB));
        let figures = change.map(|c| (c.after, c.unused));
        assert_eq!(figures, Some((2 * MIB, 2 * MIB)), "a free gives nothing back");
        let trimmed = Done { reserved: Some(0), ..Done::default() };
        assert_eq!(settle(&pools, pools.ticket(1, 0), trimmed).map(|c| c.after), Some(0), "a trim does");
    }

    #[test]
    fn two_that_share_the_room_for_one_are_charged_for_two() {
        let pools = Pools::default();
        begin(&pools, MIB);
        settle(&pools, pools.ticket(1, 0), allocated(MIB, 2 * MIB));
        assert_eq!(begin(&pools, MIB), 0, "fits in what is reserved");
        assert_eq!(begin(&pools, MIB), 2 * MIB, "which is now spoken for");
        // A trim meanwhile cannot take away what is spoken for.
        let trimmed = Done { reserved: Some(2 * MIB), ..Done::default() };
        assert_eq!(settle(&pools, pools.ticket(1, 0), trimmed).map(|c| c.after), Some(4 * MIB));
        let failed = Done { pending: MIB, reserved: Some(2 * MIB), ..Done::default() };
        assert_eq!(settle(&pools, pools.ticket(1, 0), failed).map(|c| c.after), Some(2 * MIB));
        assert_eq!(pools.begin(1, 0, 2 * MIB, Err), Err(2 * MIB), "refused");
        assert_eq!(pools.pending(1), MIB, "and forgotten");
    }

    #[test]
    fn a_late_answer_is_dropped() {
        let pools = Pools::default();
        begin(&pools, MIB);
        begin(&pools, MIB);
        let (early, late) = (pools.ticket(1, 0), pools.ticket(1, 0));
        settle(&pools, late, allocated(MIB, 4 * MIB));
        let change = settle(&pools, early, allocated(MIB, 2 * MIB));
        assert_eq!(change.map(|c| c.after), Some(4 * MIB));
    }

    #[test]
    fn larger_steps_are_learned() {
        let pools = Pools::default();
        begin(&pools, 100);
        settle(&pools, pools.ticket(1, 0), allocated(100, 32 * MIB));
        assert_eq!(begin(&pools, 33 * MIB), 32 * MIB);
    }

    #[test]
    fn without_an_answer_the_use_counts() {
        let pools = Pools::default();
        begin(&pools, 700);
        let done = Done { pending: 700, allocated: 700, ..Done::default() };
        let change = settle(&pools, pools.ticket(1, 0), done);
        assert_eq!(change.map(|c| (c.after, c.unused)), Some((700, 0)));
    }

    #[test]
    fn a_destroyed_pool_keeps_what_it_has_until_it_is_empty() {
        let pools = Pools::default();
        begin(&pools, 3 * MIB);
        settle(&pools, pools.ticket(1, 0), allocated(3 * MIB, 4 * MIB));
        pools.doom(1);
        assert_eq!((pools.ticket(1, 0), pools.device(1), pools.of_device(0)), (None, None, vec![]));
        let part = |freed| Done { freed, ..Done::default() };
        assert_eq!(settle(&pools, None, part(MIB)).map(|c| c.after), Some(4 * MIB));
        assert_eq!(settle(&pools, None, part(2 * MIB)).map(|c| c.after), Some(0));
        assert_eq!(pools.home(1), None);
    }

    #[test]
    fn pools_elsewhere_are_not_counted() {
        let pools = Pools::default();
        pools.note(1, Home::Elsewhere);
        assert_eq!((pools.home(1), pools.device(1)), (Some(Home::Elsewhere), None));
        pools.forget_elsewhere(1);
        assert_eq!(pools.home(1), None);
    }
}
