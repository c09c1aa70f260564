//! Telling a forked child from its parent, however it was forked.
//!
//! A page that the kernel empties in a child (MADV_WIPEONFORK, Linux 4.14) costs one load a call and notices
//! fork, clone and a raw system call alike. Older kernels cost a getpid() a call.

use std::sync::atomic::{AtomicU64, Ordering};

/// Says whether this is still the process that made it.
pub struct Alive {
    page: Option<&'static AtomicU64>,
}

const OURS: u64 = 1;

impl Alive {
    /// Marks this process.
    pub fn new() -> Alive {
        let bytes = 4096;
        // SAFETY: a new private mapping; unmapped again when the kernel cannot wipe it.
        let page = unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                None
            } else if libc::madvise(base, bytes, libc::MADV_WIPEONFORK) != 0 {
                libc::munmap(base, bytes);
                None
            } else {
                Some(&*base.cast::<AtomicU64>())
            }
        };
        if let Some(word) = page {
            word.store(OURS, Ordering::Relaxed);
        }
        Alive { page }
    }

    /// True in the process that made it, false in its children.
    #[inline(always)]
    pub fn is_ours(&self, pid: u32) -> bool {
        match self.page {
            // Relaxed: within a process the word never changes, and a child begins with one thread.
            Some(word) => word.load(Ordering::Relaxed) == OURS,
            None => std::process::id() == pid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_not_ours() {
        let alive = Alive::new();
        let pid = std::process::id();
        assert!(alive.is_ours(pid));
        // SAFETY: the child only reads memory and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(alive.is_ours(pid));
            // SAFETY: no destructors, no locks.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(alive.is_ours(pid));
    }
}
