//! Functions of loaded libraries, found without calling the loader's dlsym or dlvsym: we export both as well.
//!
//! Of what we export ourselves without a version, such as dlsym, the first definition after ours in load order is taken. That is libc's or libdl's, or that of another
//! interposer, which then gets the call as it would without us.

use super::symbols::{Dyn, definition, needed};
use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `dlclose`
pub type Dlclose = unsafe extern "C" fn(*mut c_void) -> i32;
/// `dlsym`
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
/// `dlvsym`
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Where [`real_dlsym`] is; null until it was asked for.
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Where [`real_dlvsym`] is; null until it was asked for.
pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Where [`real_dlclose`] is; null until it was asked for.
pub static REAL_DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The real dlsym.
pub fn real_dlsym() -> Option<Dlsym> {
    let address = cached(&REAL_DLSYM, c"dlsym")?;
    // SAFETY: the function of that name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address) })
}

/// The real dlvsym.
pub fn real_dlvsym() -> Option<Dlvsym> {
    let address = cached(&REAL_DLVSYM, c"dlvsym")?;
    // SAFETY: as above.
    Some(unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(address) })
}

/// The real dlclose.
pub fn real_dlclose() -> Option<Dlclose> {
    let address = cached(&REAL_DLCLOSE, c"dlclose")?;
    // SAFETY: as above.
    Some(unsafe { std::mem::transmute::<*mut c_void, Dlclose>(address) })
}

/// The first definition after ours, looked for once.
pub(in crate::hooks) fn cached(slot: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
    // Relaxed: the address of code that was there before.
    let known = slot.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    let found = next_definition(name)?;
    slot.store(found, Ordering::Relaxed);
    Some(found)
}

/// Walks the loader's own list. Nothing is called on the way: a program may define dl_iterate_phdr itself, on top of
/// what dlsym finds for it, and would come back here until the stack ends.
fn next_definition(name: &CStr) -> Option<*mut c_void> {
    let found = match definition_after(own_base(), name) {
        Ok(found) => found,
        // Not a library of its own but linked into a program, as in our own tests: whoever defines it.
        Err(NotListed) => libraries().find_map(|library| function_of(library, name)),
    }?;
    Some(found as *mut c_void)
}

/// No library begins where we do.
struct NotListed;

unsafe extern "C" {
    static __ehdr_start: u8;
    /// For debuggers, and as old as the ABI (link.h).
    static _r_debug: LoaderList;
}

#[repr(C)]
struct LoaderList {
    _version: i32,
    first: *const LinkMap,
}

/// The first definition in a library behind the one with this load bias. Never in that one: on an old glibc without
/// libdl there may be no other.
fn definition_after(base: u64, name: &CStr) -> Result<Option<u64>, NotListed> {
    if !libraries().any(|library| library.base == base) {
        return Err(NotListed);
    }
    let mut behind = libraries().skip_while(|library| library.base != base).skip(1);
    Ok(behind.find_map(|library| function_of(library, name)))
}

/// The loaded libraries in load order. One may be unlinked meanwhile by a dlclose in another thread, but not those that
/// were there from the start, which come first and hold what is looked for.
fn libraries() -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: the loader fills it before any code of ours can run.
    let first = unsafe { (&raw const _r_debug.first).read() };
    // SAFETY: entries of the loader's list; see above.
    std::iter::successors(unsafe { first.as_ref() }, |library| unsafe { library.next.as_ref() })
}

/// Shows the loaded libraries in load order until one is the right one.
pub(in crate::hooks) fn each_library(mut visitor: &mut dyn FnMut(&libc::dl_phdr_info) -> bool) {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> i32 {
        // SAFETY: the loader's own description, and the visitor below.
        let (info, visitor) =
            unsafe { (&*info, &mut *data.cast::<&mut dyn FnMut(&libc::dl_phdr_info) -> bool>()) };
        i32::from(visitor(info))
    }
    // SAFETY: the callback gets the visitor back, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut visitor).cast()) };
}

/// A `ret` instruction in the library that an address of code lies in.
pub(super) fn return_in_library_of(code: *const c_void) -> Option<*const c_void> {
    const RET: u8 = 0xc3;
    with_library_of(code, |info, segment| {
        if segment.p_flags & (libc::PF_R | libc::PF_X) != libc::PF_R | libc::PF_X {
            return None;
        }
        let start = info.dlpi_addr.wrapping_add(segment.p_vaddr) as *const u8;
        let known = (code as usize).wrapping_sub(start as usize);
        let length = segment.p_memsz.min(segment.p_filesz) as usize;
        // SAFETY: a readable segment of a loaded library, whose code is running.
        let bytes = unsafe { std::slice::from_raw_parts(start, length) };
        let after = bytes.get(known..).and_then(|rest| rest.iter().position(|byte| *byte == RET));
        let at = after.map(|at| at + known).or_else(|| bytes.iter().rposition(|byte| *byte == RET))?;
        Some(bytes.get(at..)?.as_ptr().cast())
    })
    .flatten()
}

/// Asks about the library that an address lies in, and about the segment.
fn with_library_of<T>(
    address: *const c_void,
    ask: impl Fn(&libc::dl_phdr_info, &libc::Elf64_Phdr) -> T,
) -> Option<T> {
    let mut answer = None;
    each_library(&mut |info| {
        let holder = segments(info).iter().find(|segment| {
            let start = info.dlpi_addr.wrapping_add(segment.p_vaddr);
            segment.p_type == libc::PT_LOAD && (address as u64).wrapping_sub(start) < segment.p_memsz
        });
        answer = holder.map(|segment| ask(info, segment));
        answer.is_some()
    });
    answer
}

/// Where a library's dynamic section is.
pub(in crate::hooks) fn dynamic_section(info: &libc::dl_phdr_info) -> Option<*const Dyn> {
    let segment = segments(info).iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
    Some(info.dlpi_addr.wrapping_add(segment.p_vaddr) as *const Dyn)
}

/// The load bias of the library that an address lies in, and the path by which the loader knows it.
pub(in crate::hooks) fn library_of(address: *const c_void) -> Option<(u64, CString)> {
    with_library_of(address, |info, _| {
        let path = if info.dlpi_name.is_null() {
            CString::default()
        } else {
            // SAFETY: the loader's own string, which stays while its lock is held.
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned()
        };
        (info.dlpi_addr, path)
    })
}

/// The path of the library that an address lies in, as the loader knows it; empty for the program.
pub(in crate::hooks) fn path_of(address: *const c_void) -> String {
    library_of(address).map_or(String::new(), |(_, path)| path.to_string_lossy().into_owned())
}

/// Shows the names of the libraries that the library or program at an address was linked with.
pub(in crate::hooks) fn needs(address: *const c_void, show: &mut dyn FnMut(&[u8])) {
    let base = library_of(address).map(|(base, _)| base);
    each_library(&mut |info| {
        if Some(info.dlpi_addr) != base {
            return false;
        }
        if let Some(dynamic) = dynamic_section(info) {
            needed(info.dlpi_addr, dynamic, show);
        }
        true
    });
}

/// Our own load bias: the linker's name for where this library or program begins; only its address is taken.
pub(in crate::hooks) fn own_base() -> u64 {
    &raw const __ehdr_start as u64
}

/// The path by which the loader knows us; empty in a program that we are linked into.
pub(in crate::hooks) fn own_path() -> &'static CStr {
    let path = libraries().find(|library| library.base == own_base()).map(|library| library.name);
    // SAFETY: the loader's own string, of a library that is never unloaded.
    path.filter(|path| !path.is_null()).map_or(c"", |path| unsafe { CStr::from_ptr(path) })
}

fn segments(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's own program headers.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// The public part of the loader's entry for a library (link.h).
#[repr(C)]
pub(super) struct LinkMap {
    base: u64,
    name: *const c_char,
    dynamic: *const Dyn,
    next: *const LinkMap,
}

/// An exported function of a library that stays loaded.
pub(super) fn function_of(library: &LinkMap, name: &CStr) -> Option<u64> {
    definition(library.base, library.dynamic, name, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_loaders() {
        let dlsym = real_dlsym().unwrap();
        // SAFETY: plain look-ups.
        unsafe {
            assert_eq!(dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) as usize, dlsym as usize);
            assert_eq!(
                dlsym(libc::RTLD_DEFAULT, c"dlvsym".as_ptr()) as usize,
                real_dlvsym().unwrap() as usize
            );
            assert!(!dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()).is_null());
        }
        assert!(next_definition(c"no_such_function_anywhere").is_none());
    }

    #[test]
    fn a_return_lies_in_the_library_that_was_asked_for() {
        for code in [real_dlsym().unwrap() as *const c_void, next_definition as *const c_void] {
            let found = return_in_library_of(code).unwrap();
            // SAFETY: what is to be shown: readable code.
            assert_eq!(unsafe { *found.cast::<u8>() }, 0xc3);
            let base_of = |code| with_library_of(code, |info, _| info.dlpi_addr).unwrap();
            assert_eq!(base_of(found), base_of(code));
        }
        assert!(return_in_library_of(std::ptr::null()).is_none());
        assert!(return_in_library_of((&raw const FILLER).cast()).is_none(), "data is no code");
    }

    static FILLER: [u8; 64] = [0xc3; 64];

    #[test]
    fn both_kinds_of_hash_table() {
        // The kernel's own library has a SysV table, always.
        // SAFETY: no arguments to be wrong.
        let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
        if vdso != 0 {
            let found = with_library_of(vdso as *const c_void, |info, _| {
                let dynamic = segments(info).iter().find(|s| s.p_type == libc::PT_DYNAMIC).unwrap();
                let dynamic = info.dlpi_addr.wrapping_add(dynamic.p_vaddr) as *const Dyn;
                [c"__vdso_clock_gettime", c"__vdso_gettimeofday", c"no_such_function"]
                    .map(|name| definition(info.dlpi_addr, dynamic, name, None).is_some())
            });
            assert_eq!(found, Some([true, true, false]));
        }
        assert!(next_definition(c"malloc").is_some());
    }
}
