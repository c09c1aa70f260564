//! The end of the process.
//!
//! The loader runs this after the application's own exit handlers and destructors, which may free their device
//! memory. There is no constructor: hooks run before one could, and a process without CUDA needs none.

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // A panic must not cross into the loader; there is nobody left to tell.
    let _ = std::panic::catch_unwind(cuwarden_core::process::write_exit_report);
}
