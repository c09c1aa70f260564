//! The frame around every hooked call.
//!
//! ```text
//! before  – may refuse; caught, errno kept
//! real    – exactly once, outside anything that catches
//! after   – notes what happened; caught, errno kept
//! ```

use crate::cuda::abi::CUresult;
use crate::event::cancel::NoCancel;
use crate::event::fields::fields;
use crate::process::{self, Process, Verdict};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// What the first half of a hook decided.
pub(super) enum Before<T> {
    /// The driver is not called; this is the answer.
    Answer(CUresult),
    /// The driver is called, and then the second half gets this.
    Then(T),
    /// The driver is called and nothing else happens.
    Pass,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The driver is not called; this is the answer.
    Answer(CUresult),
    /// The driver is called, and then the second half runs.
    Then,
    /// The driver is called and nothing else happens.
    Pass,
}

/// Runs a hook. `after` may replace the driver's answer.
#[inline(always)]
pub(super) fn around<T>(
    before: impl FnOnce(&'static Process) -> Before<T>,
    real: impl FnOnce() -> CUresult,
    after: impl FnOnce(&'static Process, &T, CUresult) -> CUresult,
) -> CUresult {
    around_with(
        None,
        |process, state| match before(process) {
            Before::Answer(code) => Step::Answer(code),
            Before::Pass => Step::Pass,
            Before::Then(value) => {
                *state = Some(value);
                Step::Then
            }
        },
        real,
        |process, state, code| state.as_ref().map_or(code, |value| after(process, value, code)),
    )
}

/// Like [`around`], for the hooks that run most often: `state` is filled in place. What goes through the return
/// value of a caught closure is copied several times.
#[inline(always)]
pub(super) fn around_with<T>(
    state: T,
    before: impl FnOnce(&'static Process, &mut T) -> Step,
    real: impl FnOnce() -> CUresult,
    after: impl FnOnce(&'static Process, &T, CUresult) -> CUresult,
) -> CUresult {
    let Some(inside) = Inside::enter() else { return real() };
    around_in(inside.process, state, before, real, after)
}

#[inline(always)]
fn around_in<P: Copy, T>(
    process: P,
    mut state: T,
    before: impl FnOnce(P, &mut T) -> Step,
    real: impl FnOnce() -> CUresult,
    after: impl FnOnce(P, &T, CUresult) -> CUresult,
) -> CUresult {
    // SAFETY: no arguments; the thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    let mut step = Step::Pass;
    keeping(errno, || step = before(process, &mut state));
    match step {
        Step::Answer(code) => code,
        Step::Pass => real(),
        Step::Then => {
            let mut code = real();
            keeping(errno, || code = after(process, &state, code));
            code
        }
    }
}

/// Runs our own code in somebody else's call: errno stays, and a panic ends here.
#[inline(always)]
fn quietly(work: impl FnOnce()) {
    // SAFETY: no arguments; the thread's own errno.
    keeping(unsafe { libc::__errno_location() }, work);
}

#[inline(always)]
fn keeping(errno: *mut i32, work: impl FnOnce()) {
    // SAFETY: the calling thread's own errno, valid for the thread's life.
    let saved = unsafe { *errno };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        // The panic hook has said what happened. Dropping what was thrown could throw again.
        std::mem::forget(payload);
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// This thread is inside the shim: what the driver calls of itself passes through.
pub(super) struct Inside {
    /// The books of this process.
    pub process: &'static Process,
}

impl Inside {
    /// `None`: the call is to be handed through.
    #[inline(always)]
    pub(super) fn enter() -> Option<Inside> {
        let words = cuwarden_arch::thread_words();
        let here = cuwarden_arch::stack_pointer();
        // SAFETY: the thread's own words; nothing else refers to them now.
        let inside = unsafe { (*words).inside };
        if inside != 0 && !was_jumped_out_of(inside, here) {
            return None;
        }
        let process = match Process::current() {
            Some(process) => process,
            None => start_here()?,
        };
        // SAFETY: as above.
        unsafe { (*words).inside = here };
        Some(Inside { process })
    }
}

/// A signal handler can leave a hooked call by longjmp, and the mark stays. A call that is made from the same depth
/// or further out cannot be inside any more, unless a handler makes it on a stack of its own.
#[cold]
#[inline(never)]
fn was_jumped_out_of(inside: u64, here: u64) -> bool {
    if here < inside {
        return false;
    }
    // SAFETY: stack_t is plain data, and this only asks.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK == 0
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the thread's own words.
        unsafe { (*cuwarden_arch::thread_words()).inside = 0 };
    }
}

/// This thread is inside the shim in a call that only looks: nothing is started for it, and there may be no books.
pub(super) struct Looking(());

impl Looking {
    /// `None`: the call is to be handed through.
    pub(super) fn enter() -> Option<Looking> {
        let words = cuwarden_arch::thread_words();
        let here = cuwarden_arch::stack_pointer();
        // SAFETY: the thread's own words; nothing else refers to them now.
        let inside = unsafe { (*words).inside };
        if inside != 0 && !was_jumped_out_of(inside, here) {
            return None;
        }
        // SAFETY: as above.
        unsafe { (*words).inside = here };
        Some(Looking(()))
    }

    /// Our own half of the call: not cancelled, errno kept, a panic ends here.
    pub(super) fn quietly(&self, work: impl FnOnce()) {
        quietly(|| {
            silence_panics();
            let _no_cancel = NoCancel::new();
            work();
        });
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        // SAFETY: the thread's own words.
        unsafe { (*cuwarden_arch::thread_words()).inside = 0 };
    }
}

#[cold]
#[inline(never)]
fn start_here() -> Option<&'static Process> {
    match start_quietly() {
        Verdict::On(process) => Some(process),
        Verdict::Off | Verdict::Refused | Verdict::Busy => None,
    }
}

/// Runs work of our own outside a hooked call, with the thread marked, errno kept and panics caught.
#[cold]
pub(super) fn shielded(work: impl FnOnce()) {
    let words = cuwarden_arch::thread_words();
    // SAFETY: the thread's own words.
    let outer = unsafe { std::mem::replace(&mut (*words).inside, cuwarden_arch::stack_pointer()) };
    quietly(work);
    // SAFETY: as above.
    unsafe { (*words).inside = outer };
}

/// [`process::start`] with the thread marked, so that nothing it does comes back to us.
#[cold]
pub(super) fn start_quietly() -> Verdict {
    let words = cuwarden_arch::thread_words();
    let here = cuwarden_arch::stack_pointer();
    // SAFETY: the thread's own words.
    let inside = unsafe { (*words).inside };
    if inside != 0 && !was_jumped_out_of(inside, here) {
        return Verdict::Busy;
    }
    // SAFETY: as above.
    unsafe { (*words).inside = here };
    let mut verdict = Verdict::Off;
    quietly(|| {
        silence_panics();
        verdict = process::start();
    });
    // SAFETY: as above.
    unsafe { (*words).inside = 0 };
    verdict
}

/// The default hook writes to the application's stderr. This is our own copy of the standard library: a Rust
/// application has another.
fn silence_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // Once: the standard library's lock of the hook could be held at the moment of a fork.
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        if let Some(process) = Process::current() {
            process.events.emit(
                crate::policy::config::Level::Error,
                "internal_error",
                fields! { "message": info.to_string() },
            );
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn errno() -> i32 {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() }
    }

    fn set_errno(value: i32) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = value };
    }

    fn calls(before: impl FnOnce() -> Step, after: impl FnOnce(CUresult) -> CUresult) -> (u32, CUresult) {
        let count = Cell::new(0);
        let real = || {
            count.set(count.get() + 1);
            assert_eq!(errno(), 7, "the driver sees the application's errno");
            set_errno(8);
            2
        };
        set_errno(7);
        let code = around_in((), (), |(), ()| before(), real, |(), (), code| after(code));
        (count.get(), code)
    }

    #[test]
    fn the_real_function_runs_exactly_once() {
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(calls(|| Step::Then, |code| code + 40), (1, 42));
        assert_eq!(calls(|| Step::Pass, |_| unreachable!()), (1, 2));
        assert_eq!(calls(|| panic!("before"), |_| unreachable!()), (1, 2));
        assert_eq!(calls(|| Step::Then, |_| panic!("after")), (1, 2));
        assert_eq!(calls(|| Step::Answer(9), |_| unreachable!()), (0, 9), "unless it is refused");
    }

    #[test]
    fn errno_is_the_drivers() {
        let dirty = || {
            set_errno(99);
            Step::Then
        };
        calls(dirty, |code| {
            set_errno(98);
            code
        });
        assert_eq!(errno(), 8);
    }
}
