//! The libraries whose functions have rows, as they are loaded in this process.

use super::elf;
use core::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Whose function it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Owner {
    /// The driver's.
    Driver,
    /// NVML's.
    Nvml,
}

impl Owner {
    pub(super) const COUNT: usize = 2;

    /// By the exported name of a hooked function.
    pub(in crate::hooks) const fn of(name: &str) -> Owner {
        match name.as_bytes() {
            [b'n', b'v', b'm', b'l', ..] => Owner::Nvml,
            _ => Owner::Driver,
        }
    }

    /// As programs name the library.
    fn soname(self) -> &'static CStr {
        match self {
            Owner::Driver => c"libcuda.so.1",
            Owner::Nvml => c"libnvidia-ml.so.1",
        }
    }
}

/// Those that were found. Kept open: hooks hold addresses in them.
static KNOWN: [AtomicPtr<elf::LinkMap>; Owner::COUNT] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; Owner::COUNT];

/// A loaded library, never closed again.
#[derive(Clone, Copy)]
pub(in crate::hooks) struct Library(&'static elf::LinkMap);

// SAFETY: the loader's entry of a library that stays loaded; only what never changes in it is read.
unsafe impl Send for Library {}

impl Library {
    /// The library if it is loaded, by whoever and in whatever scope. Never loads it.
    pub(in crate::hooks) fn loaded(owner: Owner) -> Option<Library> {
        Library::open(owner, false)
    }

    /// libnvidia-ml.so.1, if it is loaded or, with `load`, can be.
    pub(in crate::hooks) fn nvml(load: bool) -> Option<Library> {
        Library::open(Owner::Nvml, load)
    }

    fn open(owner: Owner, load: bool) -> Option<Library> {
        let known = KNOWN.get(owner as usize)?;
        // Acquire pairs with the Release below: the loader's entry is whole.
        // SAFETY: the loader's entry of a library that is never closed.
        if let Some(entry) = unsafe { known.load(Ordering::Acquire).as_ref() } {
            return Some(Library(entry));
        }
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | if load { 0 } else { libc::RTLD_NOLOAD };
        let mut entry: *mut elf::LinkMap = std::ptr::null_mut();
        // SAFETY: a C string; dlinfo writes one pointer. RTLD_NOLOAD runs no constructor; loading it runs NVIDIA's, as the
        // application's own use of it would. A second thread that does the same only counts up once more.
        let entry = unsafe {
            let handle = libc::dlopen(owner.soname().as_ptr(), flags);
            if handle.is_null() || libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut entry).cast()) != 0 {
                if load {
                    // Its text is not for the application's next dlerror.
                    libc::dlerror();
                }
                return None;
            }
            entry.as_ref()?
        };
        known.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
        Some(Library(entry))
    }

    /// An exported function. Not by dlsym: a function that an older library lacks would leave a text for the application's
    /// next dlerror.
    pub(in crate::hooks) fn address(&self, name: &CStr) -> Option<*const c_void> {
        elf::function_of(self.0, name).map(|address| address as *const c_void)
    }
}
