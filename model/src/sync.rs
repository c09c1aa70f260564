//! The lock that the threads of one process share, made of loom's.

use loom::sync::{Mutex, MutexGuard};
use std::mem::ManuallyDrop;

/// As `sync::Lock` of the library.
#[derive(Default)]
pub struct Lock<T>(Mutex<T>);

/// Held until it is dropped, and for ever by who stopped.
pub struct Guard<'a, T>(ManuallyDrop<MutexGuard<'a, T>>);

impl<T> Lock<T> {
    /// Takes the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        Guard(ManuallyDrop::new(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Who unwinds was stopped in the middle (see `atomic`), and gives nothing back.
        if !std::thread::panicking() {
            // SAFETY: nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}
