//! The account that decides whether a request fits.
//!
//! One word a device says what this process has been granted or has in flight. A request first adds
//! itself, by compare and exchange, so two requests that both fit never refuse each other, and the sum never
//! passes the limit.

use std::sync::atomic::{AtomicU64, Ordering};

/// A request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Granted and in flight, in bytes.
    pub used: u64,
    /// The quota, in bytes.
    pub limit: u64,
}

/// One device's account. The words live in the record file, so that a reader sees them.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// Granted and in flight, in bytes.
    pub used: &'a AtomicU64,
    /// The highest that `used` was after a grant, in bytes.
    pub peak: &'a AtomicU64,
    /// The quota in bytes, 0 = none.
    pub limit: &'a AtomicU64,
}

impl Account<'_> {
    /// Takes `bytes` if they fit. Must be given back by [`Account::release`] when the driver refuses.
    #[inline]
    pub fn reserve(self, bytes: u64) -> Result<(), Denied> {
        // Relaxed throughout: the words order nothing but themselves; what an allocation publishes goes
        // through the index's lock.
        let limit = self.limit.load(Ordering::Relaxed);
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let wanted = used.saturating_add(bytes);
            if limit != 0 && wanted > limit && bytes != 0 {
                return Err(Denied { used, limit });
            }
            match self.used.compare_exchange_weak(used, wanted, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => used = now,
            }
        }
    }

    /// Takes `bytes` without asking: the driver has taken them already.
    pub fn force(self, bytes: u64) {
        let mut used = self.used.load(Ordering::Relaxed);
        while let Err(now) = self.used.compare_exchange_weak(
            used,
            used.saturating_add(bytes),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            used = now;
        }
        self.granted();
    }

    /// Gives `bytes` back. Never goes below zero, whatever the file was made to say.
    #[inline]
    pub fn release(self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        if before < bytes {
            // Only a file that somebody else wrote to can say so. Another thread may see the wrapped value for
            // a moment: it refuses, which is the safe side.
            self.used.fetch_add(bytes - before, Ordering::Relaxed);
        }
    }

    /// Notes the peak after the driver granted a reservation.
    #[inline]
    pub fn granted(self) {
        let used = self.used.load(Ordering::Relaxed);
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_at_the_edge() {
        let (used, peak, limit) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(100));
        let account = Account { used: &used, peak: &peak, limit: &limit };
        assert_eq!(account.reserve(100), Ok(()));
        account.granted();
        assert_eq!(account.reserve(1), Err(Denied { used: 100, limit: 100 }));
        assert_eq!(account.reserve(u64::MAX), Err(Denied { used: 100, limit: 100 }));
        account.release(1);
        assert_eq!(account.reserve(1), Ok(()));
        account.release(100);
        account.release(7);
        assert_eq!(used.load(Ordering::Relaxed), 0, "never below zero");
        limit.store(0, Ordering::Relaxed);
        assert_eq!(account.reserve(u64::MAX), Ok(()));
        assert_eq!(account.reserve(5), Ok(()), "no limit, no wrap");
        assert_eq!(peak.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn never_over_and_never_falsely_refused() {
        let (used, peak, limit) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(64));
        let account = Account { used: &used, peak: &peak, limit: &limit };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        // Four threads of 16 always fit together.
                        assert_eq!(account.reserve(16), Ok(()));
                        account.granted();
                        account.release(16);
                    }
                });
            }
        });
        assert!(peak.load(Ordering::Relaxed) <= 64);
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }
}
