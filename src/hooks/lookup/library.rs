//! Libraries that the shim itself asks, other than the driver's.

use super::elf;
use core::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A loaded library, never closed again.
#[derive(Clone, Copy)]
pub(in crate::hooks) struct Library(&'static elf::LinkMap);

// SAFETY: the loader's entry of a library that stays loaded; only what never changes in it is read.
unsafe impl Send for Library {}

impl Library {
    /// libnvidia-ml.so.1, if it is loaded or, with `load`, can be.
    pub(in crate::hooks) fn nvml(load: bool) -> Option<Library> {
        static NVML: AtomicPtr<elf::LinkMap> = AtomicPtr::new(std::ptr::null_mut());
        // Acquire pairs with the Release below: the loader's entry is whole.
        // SAFETY: the loader's entry of a library that is never closed.
        if let Some(known) = unsafe { NVML.load(Ordering::Acquire).as_ref() } {
            return Some(Library(known));
        }
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | if load { 0 } else { libc::RTLD_NOLOAD };
        let mut entry: *mut elf::LinkMap = std::ptr::null_mut();
        // SAFETY: a C string; dlinfo writes one pointer. Loading it runs NVIDIA's constructors, as the application's
        // own use of it would.
        let entry = unsafe {
            let handle = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), flags);
            if handle.is_null() || libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut entry).cast()) != 0 {
                // Its text is not for the application's next dlerror.
                libc::dlerror();
                return None;
            }
            entry.as_ref()?
        };
        NVML.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
        Some(Library(entry))
    }

    /// An exported function.
    pub(in crate::hooks) fn address(&self, name: &CStr) -> Option<*const c_void> {
        elf::function_of(self.0, name).map(|address| address as *const c_void)
    }
}
