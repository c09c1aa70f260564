//! The account that decides whether a request fits.
//!
//! One word a device says what is *charged*: granted by the driver, in flight, or spare. A request that the spare
//! does not cover adds itself by compare and exchange, so the sum never passes the limit.
//!
//! Threads that allocate and free at the same time would hand that word's cache line to and fro, so what a thread
//! frees stays *spare* in a cell that few others use, still charged, up to [`MOST_SPARE`]. Before a request is
//! refused, and before a new peak is noted, all cells are held and their spare is taken back: nothing is refused that
//! fits, and the peak is exact but for what was in flight with it and then failed.

use crate::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a cell keeps; more is given back to the account.
const MOST_SPARE: u64 = 4 << 20;
/// A power of two.
const CELLS: usize = 16;

/// A request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Granted and in flight, in bytes.
    pub used: u64,
    /// The quota, in bytes.
    pub limit: u64,
}

/// A request that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Reserved {
    /// All that is granted or in flight with it, in bytes, if that is more than ever: for [`Account::granted`].
    pub peak: Option<u64>,
}

impl Reserved {
    /// Nothing was reserved.
    pub const NOTHING: Reserved = Reserved { peak: None };
}

/// What is spare of one device.
#[derive(Default)]
pub struct Cells {
    cells: [Cell; CELLS],
}

#[derive(Default)]
#[repr(align(128))]
struct Cell {
    lock: Lock<()>,
    /// Written under the lock; read without it where a moment's difference does not matter.
    spare: AtomicU64,
}

/// One device's account. The words live in the record file.
#[derive(Clone, Copy)]
pub struct Account<'a> {
    /// Granted, in flight and spare, in bytes.
    pub charged: &'a AtomicU64,
    /// The highest that was granted or in flight at a time, in bytes.
    pub peak: &'a AtomicU64,
    /// The quota in bytes, 0 = none.
    pub limit: &'a AtomicU64,
    /// Of this process alone.
    pub cells: &'a Cells,
    /// Any number that few threads share: it chooses the cell.
    pub thread: u32,
}

// Orderings: all Relaxed. The words order nothing but themselves; spare bytes move under a lock, and what an
// allocation publishes goes through the index's lock.
impl Account<'_> {
    /// Takes `bytes` if they fit. To be given back by [`Account::release`] when the driver refuses.
    #[inline]
    pub fn reserve(&self, bytes: u64) -> Result<Reserved, Denied> {
        let cell = self.cell();
        let held = cell.lock.lock();
        let spare = cell.spare.load(Ordering::Relaxed);
        if let Some(rest) = spare.checked_sub(bytes) {
            cell.spare.store(rest, Ordering::Relaxed);
            return Ok(Reserved::NOTHING);
        }
        if self.charge(bytes - spare, self.peak.load(Ordering::Relaxed)).is_ok() {
            cell.spare.store(0, Ordering::Relaxed);
            return Ok(Reserved::NOTHING);
        }
        drop(held);
        self.reserve_exactly(bytes)
    }

    /// Gives `bytes` back.
    #[inline]
    pub fn release(&self, bytes: u64) {
        let cell = self.cell();
        let _held = cell.lock.lock();
        let spare = cell.spare.load(Ordering::Relaxed).saturating_add(bytes);
        if spare > MOST_SPARE {
            self.uncharge(spare);
            cell.spare.store(0, Ordering::Relaxed);
        } else {
            cell.spare.store(spare, Ordering::Relaxed);
        }
    }

    /// Takes `bytes` without asking: the driver has taken them already.
    pub fn force(&self, bytes: u64) {
        let mut charged = self.charged.load(Ordering::Relaxed);
        while let Err(now) = self.charged.compare_exchange_weak(
            charged,
            charged.saturating_add(bytes),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            charged = now;
        }
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
    }

    /// The driver has granted a reservation.
    #[inline]
    pub fn granted(&self, reserved: Reserved) {
        if let Some(peak) = reserved.peak {
            self.peak.fetch_max(peak, Ordering::Relaxed);
        }
    }

    /// Granted and in flight, in bytes.
    pub fn used(&self) -> u64 {
        let spare = self
            .cells
            .cells
            .iter()
            .map(|cell| cell.spare.load(Ordering::Relaxed))
            .fold(0, u64::saturating_add);
        self.charged.load(Ordering::Relaxed).saturating_sub(spare)
    }

    /// The quota in bytes, 0 = none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Takes the spare of all cells back.
    #[cfg(test)]
    fn take_back_spare(&self) {
        for cell in self.cells.cells.iter().filter(|cell| cell.spare.load(Ordering::Relaxed) != 0) {
            let _held = cell.lock.lock();
            self.uncharge(cell.spare.swap(0, Ordering::Relaxed));
        }
    }

    /// With all cells held nothing moves between them, so what is charged is exactly what is granted or in flight.
    #[inline(never)]
    fn reserve_exactly(&self, bytes: u64) -> Result<Reserved, Denied> {
        // In order, and nobody else holds more than one: no two can wait for each other.
        let _held: [_; CELLS] = std::array::from_fn(|n| self.cells.cells.get(n).map(|cell| cell.lock.lock()));
        for cell in &self.cells.cells {
            self.uncharge(cell.spare.swap(0, Ordering::Relaxed));
        }
        match self.charge(bytes, u64::MAX) {
            Ok(sum) => Ok(Reserved { peak: Some(sum) }),
            Err(used) => Err(Denied { used, limit: self.limit() }),
        }
    }

    /// Adds `bytes` to what is charged if the sum passes neither the limit nor `most`; answers the sum, or what is
    /// charged without.
    #[inline]
    fn charge(&self, bytes: u64, most: u64) -> Result<u64, u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        let most = if limit == 0 { most } else { most.min(limit) };
        let mut charged = self.charged.load(Ordering::Relaxed);
        loop {
            let wanted = charged.saturating_add(bytes);
            if wanted > most && bytes != 0 {
                return Err(charged);
            }
            match self.charged.compare_exchange_weak(charged, wanted, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(wanted),
                Err(now) => charged = now,
            }
        }
    }

    fn uncharge(&self, bytes: u64) {
        let before = self.charged.fetch_sub(bytes, Ordering::Relaxed);
        if before < bytes {
            // Only a file that somebody else wrote to can say so. Another thread may see the wrapped value for
            // a moment: it refuses, which is the safe side.
            self.charged.fetch_add(bytes - before, Ordering::Relaxed);
        }
    }

    #[inline]
    fn cell(&self) -> &Cell {
        // Always in range; the first is never missing.
        let [first, ..] = &self.cells.cells;
        self.cells.cells.get(self.thread as usize % CELLS).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Words {
        charged: AtomicU64,
        peak: AtomicU64,
        limit: AtomicU64,
        cells: Cells,
    }

    impl Words {
        fn limited(limit: u64) -> Words {
            Words { limit: AtomicU64::new(limit), ..Words::default() }
        }

        fn account(&self, thread: u32) -> Account<'_> {
            Account {
                charged: &self.charged,
                peak: &self.peak,
                limit: &self.limit,
                cells: &self.cells,
                thread,
            }
        }

        fn peak(&self) -> u64 {
            self.peak.load(Ordering::Relaxed)
        }
    }

    fn take(account: Account<'_>, bytes: u64) -> Result<(), Denied> {
        account.reserve(bytes).map(|reserved| account.granted(reserved))
    }

    #[test]
    fn exact_at_the_edge() {
        let words = Words::limited(100);
        let account = words.account(0);
        assert_eq!(take(account, 100), Ok(()));
        assert_eq!(take(account, 1), Err(Denied { used: 100, limit: 100 }));
        assert_eq!(take(account, u64::MAX), Err(Denied { used: 100, limit: 100 }));
        account.release(1);
        assert_eq!(take(account, 1), Ok(()));
        account.release(100);
        assert_eq!((account.used(), words.peak()), (0, 100));
        words.limit.store(0, Ordering::Relaxed);
        assert_eq!(take(account, u64::MAX), Ok(()));
        assert_eq!(take(account, 5), Ok(()), "no limit, no wrap");
    }

    #[test]
    fn what_others_have_spare_is_not_refused() {
        let words = Words::limited(100);
        for thread in 0..10 {
            assert_eq!(take(words.account(thread), 10), Ok(()));
        }
        for thread in 0..10 {
            words.account(thread).release(10);
        }
        assert_eq!(take(words.account(15), 100), Ok(()));
        assert_eq!(words.peak(), 100);
    }

    #[test]
    fn spare_bytes_do_not_raise_the_peak() {
        let words = Words::default();
        for thread in 0..8 {
            assert_eq!(take(words.account(thread), 10), Ok(()));
            words.account(thread).release(10);
        }
        assert_eq!(words.peak(), 10);
        assert_eq!(take(words.account(1), 7), Ok(()));
        assert_eq!(take(words.account(2), 7), Ok(()));
        assert_eq!((words.account(0).used(), words.peak()), (14, 14));
    }

    #[test]
    fn a_cell_keeps_a_bounded_amount() {
        let words = Words::default();
        assert_eq!(take(words.account(0), MOST_SPARE * 3), Ok(()));
        words.account(0).release(MOST_SPARE * 3);
        assert_eq!(words.charged.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_forged_file_does_not_wrap() {
        let words = Words::default();
        words.account(0).release(MOST_SPARE + 1);
        assert_eq!(words.charged.load(Ordering::Relaxed), 0);
        words.account(0).release(7);
        assert_eq!(words.account(0).used(), 0);
    }

    #[test]
    fn never_over_and_never_falsely_refused() {
        let words = Words::limited(64);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let account = words.account(thread);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        // Four threads of 16 always fit together.
                        assert_eq!(take(account, 16), Ok(()));
                        account.release(16);
                    }
                });
            }
        });
        assert!(words.peak() <= 64, "{}", words.peak());
        assert_eq!(words.account(0).used(), 0);
        words.account(0).take_back_spare();
        assert_eq!(words.charged.load(Ordering::Relaxed), 0);
    }
}
