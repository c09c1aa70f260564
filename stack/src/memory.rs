//! Reading the stack without ever touching memory that is not there.
//!
//! A thread's own stack is known by its top, which is found without asking libc (`pthread_getattr_np` allocates,
//! takes locks and reads /proc): the thread's control block lies there, or the kernel's random bytes for the
//! main thread. All pages between the stack pointer and that address are verified once; from then on,
//! **what lies between the current stack pointer and the verified top holds live frames of this very thread**,
//! and cannot go away without breaking the program, so it needs no second look. The main thread's stack may
//! grow: the new part is verified when the stack pointer is first seen in it.
//!
//! Any other stack (coroutine, alternate signal stack, split stack) may be unmapped later and its place used
//! again: there each page that a walk touches is verified in that walk, for one system call a page.

use super::arch::{PAGE, probe};
use core::cell::Cell;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Stacks deeper than this (16 MiB) when first seen are verified page by page in each walk.
const MOST_PAGES: u64 = 4096;

/// What a thread knows about itself. Plain cells: no destructor, so it can be used until the thread's last
/// moment, and any order of writes is fine for a signal handler that interrupts them.
pub(super) struct Thread {
    /// The verified part of the thread's own stack: `low..top`.
    low: Cell<u64>,
    top: Cell<u64>,
    /// Walks on other stacks to let pass before the thread's own is searched again, and what to wait next time.
    wait: Cell<u32>,
    next_wait: Cell<u32>,
    /// Inside the loader: see [`super::loader`].
    pub(super) is_visiting: Cell<bool>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            low: Cell::new(u64::MAX),
            top: Cell::new(0),
            wait: Cell::new(0),
            next_wait: Cell::new(1),
            is_visiting: Cell::new(false),
        }
    };
}

#[inline(always)]
pub(super) fn this_thread<R>(f: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(f)
}

/// The stack that a walk reads from.
pub(super) struct Stack {
    /// What needs no check: `start..start + length`, both multiples of 8.
    start: u64,
    length: u64,
    /// The page that was verified last; all ones for none.
    page: u64,
}

impl Stack {
    /// The current thread's stack, if `sp` points into it, else one that is verified as it is read.
    #[inline(always)]
    pub(super) fn holding(sp: u64) -> Self {
        let start = sp & !7;
        let top = this_thread(|thread| {
            if start >= thread.low.get() && start < thread.top.get() {
                thread.top.get()
            } else {
                verify_own_stack(thread, start)
            }
        });
        Self { start, length: top.saturating_sub(start), page: u64::MAX }
    }

    /// From here on, verify each page.
    pub(super) fn distrust(&mut self) {
        self.length = 0;
    }

    #[inline(always)]
    pub(super) fn read(&mut self, address: u64) -> Option<u64> {
        // Aligned, so that eight bytes lie within what was checked, be it a range or a page.
        if address & 7 != 0 {
            return None;
        }
        if address.wrapping_sub(self.start) >= self.length {
            self.verify_page(address)?;
        }
        let address = core::ptr::with_exposed_provenance::<u64>(usize::try_from(address).ok()?);
        // SAFETY: aligned and readable, as was just found. Volatile, because these are other frames' variables,
        // of which the compiler must not assume anything.
        Some(unsafe { address.read_volatile() })
    }

    #[cold]
    #[inline(never)]
    fn verify_page(&mut self, address: u64) -> Option<()> {
        let page = address & !(PAGE - 1);
        if page != self.page {
            if !is_readable(page) {
                return None;
            }
            self.page = page;
        }
        Some(())
    }
}

/// Extends the verified part of the thread's stack down to `sp`; returns its top, or 0 if `sp` is not in it.
#[cold]
#[inline(never)]
fn verify_own_stack(thread: &Thread, sp: u64) -> u64 {
    let wait = thread.wait.get();
    if wait != 0 {
        thread.wait.set(wait.saturating_sub(1));
        return 0;
    }
    let known = thread.top.get() != 0;
    let top = if known { thread.top.get() } else { top_of_own_stack() };
    let page = sp & !(PAGE - 1);
    let verified = if known { thread.low.get() } else { top };
    if sp < top && are_readable(page, verified) {
        thread.top.set(top);
        thread.low.set(page);
        thread.next_wait.set(1);
        return top;
    }
    // Most likely a coroutine. Searching costs up to a system call a page, so search ever more rarely.
    let next = thread.next_wait.get();
    thread.wait.set(next);
    thread.next_wait.set(next.saturating_mul(2).min(1024));
    0
}

fn top_of_own_stack() -> u64 {
    // SAFETY: no arguments, cannot fail.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) };
    let top = if is_main {
        // Sixteen random bytes, which the kernel puts above the main thread's first frame.
        // SAFETY: reads the vector that libc keeps.
        unsafe { libc::getauxval(libc::AT_RANDOM) }
    } else {
        // libc's description of a thread, which lies above the thread's first frame, also where the program
        // provided the stack. Should a libc place it elsewhere, the pages in between would not all be readable,
        // and the stack would be treated as a foreign one.
        // SAFETY: no arguments, cannot fail.
        unsafe { libc::pthread_self() }
    };
    top & !7
}

/// Are all pages from `page` up to the one before or at `end` readable, with no gap?
fn are_readable(page: u64, end: u64) -> bool {
    let pages = end.saturating_sub(page).div_ceil(PAGE);
    pages <= MOST_PAGES && (0..pages).all(|n| is_readable(page.wrapping_add(n.wrapping_mul(PAGE))))
}

fn is_readable(page: u64) -> bool {
    probing_works() && probe(page) == -i64::from(libc::EINVAL)
}

/// Some emulators answer the probe in another way. There no stack can be read.
fn probing_works() -> bool {
    const UNKNOWN: u8 = 0;
    const WORKS: u8 = 1;
    const FAILS: u8 = 2;
    /// In the lowest page, which the kernel does not let programs map.
    const UNREADABLE: u64 = 8;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    // Relaxed: all threads find the same.
    match STATE.load(Relaxed) {
        WORKS => true,
        FAILS => false,
        _ => {
            let known = 0_u64;
            let readable = u64::try_from((&raw const known).expose_provenance()).unwrap_or(0);
            let works =
                probe(readable) == -i64::from(libc::EINVAL) && probe(UNREADABLE) == -i64::from(libc::EFAULT);
            STATE.store(if works { WORKS } else { FAILS }, Relaxed);
            works
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE, Stack, are_readable, is_readable};

    #[test]
    fn tells_readable_pages_from_others() {
        // SAFETY: a new mapping of two pages, of which the second is then closed.
        let pages = unsafe {
            let pages = libc::mmap(
                core::ptr::null_mut(),
                2 * PAGE as usize,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(pages, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(pages.byte_add(PAGE as usize), PAGE as usize, 0), 0);
            pages as u64
        };
        assert!(is_readable(pages) && !is_readable(pages + PAGE));
        assert!(are_readable(pages, pages + PAGE) && !are_readable(pages, pages + PAGE + 8));
        let mut stack = Stack::holding(pages);
        assert_eq!(stack.read(pages + PAGE - 8), Some(0));
        assert_eq!(stack.read(pages + PAGE), None);
        assert_eq!(stack.read(pages + 4), None);
        assert_eq!(stack.read(u64::MAX - 7), None);
    }
}
