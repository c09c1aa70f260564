//! Graphs whose launch takes memory: those with allocation nodes.

use crate::event::cancel::NoCancel;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the allocation nodes of one executable graph, by device.
pub type Needs = Vec<(u8, u64)>;

/// Executable graphs with allocation nodes.
#[derive(Default)]
pub struct GraphMemory {
    seen: AtomicBool,
    count: AtomicUsize,
    executables: Mutex<HashMap<u64, Executable>>,
    /// The thread that is at it, 0 = none; see [`GraphMemory::one_at_a_time`].
    busy: AtomicU32,
}

/// Graph memory is this thread's to change until it is dropped.
pub struct Turn<'a> {
    memory: Option<&'a GraphMemory>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // Release pairs with the Acquire of the next one.
            memory.busy.store(0, Ordering::Release);
        }
    }
}

/// How often a thread looks whether it is its turn, a tenth of a millisecond apart. Whoever has not come back by then
/// may have ended inside the driver.
const PATIENCE: u32 = 500;

/// An executable graph with allocation nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executable {
    /// What its nodes allocate.
    pub needs: Needs,
    /// Launched or uploaded before, and nothing was trimmed since: what it needs may be there still.
    pub resident: bool,
}

impl GraphMemory {
    /// Some graph got an allocation node. Until then no graph is looked at.
    pub fn note_allocation_node(&self) {
        self.seen.store(true, Ordering::Relaxed);
    }

    /// True once some graph got an allocation node.
    pub fn may_exist(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// True while an executable graph with allocation nodes exists: the one question on every launch.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Notes an executable graph. One without allocation nodes is not kept.
    pub fn add(&self, handle: u64, executable: Executable) {
        let mut executables = self.lock();
        if executable.needs.is_empty() {
            executables.remove(&handle);
        } else {
            executables.insert(handle, executable);
        }
        self.count.store(executables.len(), Ordering::Relaxed);
    }

    /// An executable graph that may take memory when it is launched.
    pub fn find(&self, handle: u64) -> Option<Executable> {
        self.lock().get(&handle).cloned()
    }

    /// Waits until no other thread launches or trims. Between what the driver says to have reserved and the launch
    /// that needs it, another thread's launch or trim would change what the launch takes. Not a lock: who waits too
    /// long goes on, and then the answer after the launch sets the books right.
    pub fn one_at_a_time(&self, thread: u32) -> Turn<'_> {
        if self.busy.load(Ordering::Relaxed) == thread {
            // Further out on this thread's own stack.
            return Turn { memory: None };
        }
        for look in 0..PATIENCE {
            // Acquire pairs with the Release in `Turn`.
            if self.busy.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Turn { memory: Some(self) };
            }
            if look < 16 {
                std::thread::yield_now();
            } else {
                let _no_cancel = NoCancel::new();
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        self.busy.store(thread, Ordering::Relaxed);
        Turn { memory: Some(self) }
    }

    /// It was launched or uploaded.
    pub fn note_resident(&self, handle: u64) {
        if let Some(executable) = self.lock().get_mut(&handle) {
            executable.resident = true;
        }
    }

    /// Unused graph memory of a device was given back.
    pub fn note_trim(&self, device: u8) {
        for executable in self.lock().values_mut() {
            executable.resident &= executable.needs.iter().all(|(of, _)| *of != device);
        }
    }

    /// The executable graph was destroyed.
    pub fn remove(&self, handle: u64) -> Option<Executable> {
        let mut executables = self.lock();
        let executable = executables.remove(&handle);
        self.count.store(executables.len(), Ordering::Relaxed);
        executable
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Executable>> {
        self.executables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_and_no_wait_for_the_dead() {
        let memory = GraphMemory::default();
        let turn = memory.one_at_a_time(1);
        drop(memory.one_at_a_time(1));
        assert_eq!(memory.busy.load(Ordering::Relaxed), 1, "still the outer one's");
        drop(turn);
        assert_eq!(memory.busy.load(Ordering::Relaxed), 0);
        std::mem::forget(memory.one_at_a_time(1));
        let turn = memory.one_at_a_time(2);
        assert_eq!(memory.busy.load(Ordering::Relaxed), 2);
        drop(turn);
    }
}
