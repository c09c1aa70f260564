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
    executables: Mutex<HashMap<u64, Executable>>,
}

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
