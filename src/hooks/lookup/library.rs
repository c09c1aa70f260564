//! Libraries that the shim itself asks, other than the driver's.

use super::elf;
use core::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A loaded library, never closed again.
pub(in crate::hooks) struct Library(&'static elf::LinkMap);

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
    ///
    /// # Safety
    /// `F` must be the function pointer type of that function.
    pub(in crate::hooks) unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = elf::function_of(self.0, name)? as *mut c_void;
        // SAFETY: F is a function pointer of the same size, by the assertion and the caller's promise.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}
