//! Graphs whose launch takes memory: those with allocation nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of the allocation nodes of one executable graph, by device.
pub type Needs = Vec<(u8, u64)>;

/// Executable graphs with allocation nodes.
#[derive(Default)]
pub struct GraphMemory {
    seen: AtomicBool,
    count: AtomicUsize,
    executables: Mutex<HashMap<u64, Needs>>,
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
    pub fn add(&self, executable: u64, needs: Needs) {
        let mut executables = self.executables.lock().unwrap_or_else(PoisonError::into_inner);
        if needs.is_empty() {
            executables.remove(&executable);
        } else {
            executables.insert(executable, needs);
        }
        self.count.store(executables.len(), Ordering::Relaxed);
    }

    /// What a launch may take.
    pub fn needs(&self, executable: u64) -> Option<Needs> {
        self.executables.lock().unwrap_or_else(PoisonError::into_inner).get(&executable).cloned()
    }

    /// The executable graph was destroyed; answers what it needed.
    pub fn remove(&self, executable: u64) -> Option<Needs> {
        let mut executables = self.executables.lock().unwrap_or_else(PoisonError::into_inner);
        let needs = executables.remove(&executable);
        self.count.store(executables.len(), Ordering::Relaxed);
        needs
    }
}
