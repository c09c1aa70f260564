//! loom's atomics, with two changes. Operations are counted, and a process can be stopped before any of them. And it is
//! bounded how often a load answers something else than the newest value: loom tries all that the orderings allow at
//! every load, and would not come to an end.

pub use loom::sync::atomic::Ordering;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64 as Plain, Ordering::Relaxed};

/// What loads may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The newest value: all processes see all operations in one order, whatever their orderings are.
    Strong,
    /// So many times in each execution an older one, if the orderings allow it.
    Weak(u32),
}

std::thread_local! {
    /// Of the execution. All threads of loom's are run by one of std's.
    static MEMORY: Cell<Memory> = const { Cell::new(Memory::Strong) };
}

/// To be called where an execution begins.
pub fn begin(memory: Memory) {
    MEMORY.set(memory);
}

loom::thread_local! {
    /// Operations that this process may still do.
    static LEFT: Cell<Option<u32>> = Cell::new(None);
}

/// Why a stopped process unwinds.
struct Stopped;

/// Runs `process` up to its operation number `most`. False: it stopped there. What it holds of the ledger stays as it is,
/// as when its thread dies or is never scheduled again.
pub fn stop_before(most: u32, process: impl FnOnce()) -> bool {
    LEFT.with(|left| left.set(Some(most)));
    let end = catch_unwind(AssertUnwindSafe(process));
    LEFT.with(|left| left.set(None));
    match end {
        Ok(()) => true,
        Err(why) if why.is::<Stopped>() => false,
        Err(why) => resume_unwind(why),
    }
}

fn step() {
    LEFT.with(|left| match left.get() {
        None => {}
        // Not a panic: nothing is printed.
        Some(0) => resume_unwind(Box::new(Stopped)),
        Some(some) => left.set(Some(some - 1)),
    });
}

/// As std's, as far as the ledger uses it.
#[derive(Debug)]
pub struct AtomicU64 {
    loom: loom::sync::atomic::AtomicU64,
    /// What it is by the order of execution.
    newest: Plain,
}

impl Default for AtomicU64 {
    fn default() -> AtomicU64 {
        AtomicU64::new(0)
    }
}

impl AtomicU64 {
    /// With a value to begin with.
    pub fn new(value: u64) -> AtomicU64 {
        let loom = loom::sync::atomic::AtomicU64::new(value);
        // For loom the first value is no SeqCst one.
        loom.store(value, Ordering::SeqCst);
        AtomicU64 { loom, newest: Plain::new(value) }
    }

    /// As std's.
    pub fn load(&self, ordering: Ordering) -> u64 {
        step();
        match MEMORY.get() {
            Memory::Strong => self.loom.load(Ordering::SeqCst),
            Memory::Weak(0) => {
                // An exchange fails with the newest value, and synchronises as the load would.
                let other = !self.newest.load(Relaxed);
                match self.loom.compare_exchange(other, other, ordering, ordering) {
                    Ok(value) | Err(value) => value,
                }
            }
            Memory::Weak(left) => {
                let value = self.loom.load(ordering);
                if value != self.newest.load(Relaxed) {
                    MEMORY.set(Memory::Weak(left - 1));
                }
                value
            }
        }
    }

    /// As std's.
    pub fn store(&self, value: u64, ordering: Ordering) {
        step();
        match MEMORY.get() {
            // A store alone is not ordered with that of another thread.
            Memory::Strong => _ = self.loom.swap(value, Ordering::SeqCst),
            Memory::Weak(_) => self.loom.store(value, ordering),
        }
        self.newest.store(value, Relaxed);
    }

    /// As std's.
    pub fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        step();
        let done = match MEMORY.get() {
            Memory::Strong => self.loom.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst),
            Memory::Weak(_) => self.loom.compare_exchange(old, new, success, failure),
        };
        if done.is_ok() {
            self.newest.store(new, Relaxed);
        }
        done
    }
}

/// As std's.
pub fn fence(ordering: Ordering) {
    if MEMORY.get() != Memory::Strong {
        loom::sync::atomic::fence(ordering);
    }
}
