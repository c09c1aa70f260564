//! Our own work in a thread that its application may cancel or interrupt at any moment.
//!
//! `open`, `write`, `poll` and many others are points at which glibc ends a cancelled thread by unwinding it. Our
//! frames cannot be unwound by anything but a panic of ours: the process would be aborted.

use std::ffi::c_int;

const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it lives, this thread is not cancelled; a request made meanwhile is kept for the application's own code.
/// Costs no system call, and may be held more than once.
pub struct NoCancel {
    before: c_int,
}

impl NoCancel {
    /// From here on.
    #[allow(clippy::new_without_default)]
    pub fn new() -> NoCancel {
        let mut before = 0;
        // SAFETY: the state is this thread's own, and there is a place for the answer.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        NoCancel { before }
    }
}

impl Drop for NoCancel {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above, with the state that was found. It does not act on a pending request by itself unless
        // the application asked to be cancelled anywhere, and then it acts after our work.
        unsafe { pthread_setcancelstate(self.before, &mut ours) };
    }
}

/// While it lives, no handler of the application runs in this thread, and system calls are not cut short by one.
/// A thread that is started meanwhile inherits this. Includes [`NoCancel`].
pub struct Undisturbed {
    before: Option<libc::sigset_t>,
    _no_cancel: NoCancel,
}

impl Undisturbed {
    /// From here on.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Undisturbed {
        let _no_cancel = NoCancel::new();
        // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask write.
        let before = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            (libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) == 0).then_some(before)
        };
        Undisturbed { before, _no_cancel }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the mask that was in force before.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    /// Runs it in a thread that is to be cancelled at the first opportunity; true when it came to its end.
    pub fn survives_cancel(work: fn()) -> bool {
        extern "C-unwind" fn begin(work: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: the function that is passed below.
            let work = unsafe { std::mem::transmute::<*mut libc::c_void, fn()>(work) };
            // SAFETY: the thread is this one.
            unsafe { pthread_cancel(libc::pthread_self()) };
            work();
            std::ptr::null_mut()
        }
        let (mut thread, mut end) = (0, std::ptr::dangling_mut());
        // SAFETY: an entry that is never unwound but by the cancellation, which is what is looked for.
        unsafe {
            let begin = std::mem::transmute::<
                extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void,
                extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
            >(begin);
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), begin, work as *mut _), 0);
            assert_eq!(libc::pthread_join(thread, &mut end), 0);
        }
        end.is_null()
    }

    fn state() -> c_int {
        let mut state = 0;
        // SAFETY: this thread's own state, put back at once.
        unsafe {
            pthread_setcancelstate(DISABLE, &mut state);
            pthread_setcancelstate(state, std::ptr::null_mut());
        }
        state
    }

    #[test]
    fn what_was_before_comes_back() {
        let outer = state();
        {
            let _undisturbed = Undisturbed::new();
            assert_eq!(state(), DISABLE);
            drop(NoCancel::new());
            assert_eq!(state(), DISABLE);
        }
        assert_eq!((outer, state()), (0, 0));
    }
}
