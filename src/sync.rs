//! A lock for a few dozen instructions.
//!
//! Taken twice for every allocation and free, so it is given back by a plain store: std's lock needs a second
//! locked instruction for that, to learn of threads that sleep in the kernel. Whoever finds it taken spins a
//! moment and then sleeps for longer and longer, so that a holder of lower priority gets to run. It has no state
//! outside itself, which matters to a forked child that makes its own.

use crate::event::cancel::NoCancel;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Protects a value that is touched for a moment at a time.
#[derive(Default)]
pub struct Lock<T> {
    taken: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value until it is dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// Takes the lock.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        // Acquire pairs with the Release of the one who held it before.
        if self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let _no_cancel = NoCancel::new();
        let mut rounds = 0u32;
        loop {
            for _ in 0..64 {
                if self.taken.load(Ordering::Relaxed) == 0
                    && self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return;
                }
                std::hint::spin_loop();
            }
            rounds = (rounds + 1).min(10);
            std::thread::sleep(Duration::from_micros(1 << rounds));
        }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next holder.
        self.lock.taken.store(0, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so the lock is ours.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = Lock::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 200_000);
    }
}
