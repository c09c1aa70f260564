//! The end of the process.
//!
//! The loader runs [`AT_EXIT`] among the destructors of the libraries. A preloaded library on which no other depends
//! comes early there: others may free their device memory later. So this writes a first report, for the case that
//! a destructor ends the process, and asks for the last word: an exit handler that is registered while the loader
//! goes through the destructors runs after all of them. No constructor asks for it: a process without
//! CUDA needs none.

use core::ffi::{c_int, c_void};
use cuwarden_core::process;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

unsafe extern "C" {
    fn __cxa_atexit(f: extern "C" fn(*mut c_void), argument: *mut c_void, library: *mut c_void) -> c_int;
}

extern "C" fn at_exit() {
    quietly(|| process::write_exit_report(false));
    if process::Process::current().is_some() {
        // SAFETY: the library is never unloaded (-z nodelete). Without a library of its own, the handler is not run
        // with our destructors, which are running now. glibc's atexit would name ours.
        let refused = unsafe { __cxa_atexit(after_all, core::ptr::null_mut(), core::ptr::null_mut()) } != 0;
        if refused {
            after_all(core::ptr::null_mut());
        }
    }
}

extern "C" fn after_all(_: *mut c_void) {
    quietly(|| process::write_exit_report(true));
}

fn quietly(work: fn()) {
    // A panic must not cross into the loader; there is nobody left to tell.
    let _ = std::panic::catch_unwind(work);
}
