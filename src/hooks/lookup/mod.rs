//! Look-ups by name (dlsym, dlvsym) and by address.
//!
//! Substitution is by identity: whoever asks gets the real answer first, and where that is the address of a
//! driver function that has a row, the row's hook. A name alone decides nothing.
//!
//! Nothing here allocates, locks or starts anything, and a name that is not a row's costs a hash.

mod elf;
mod names;

use super::table::{COUNT, Id, ROWS, set_real};
use core::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

pub use elf::{REAL_DLSYM, REAL_DLVSYM, real_dlsym, real_dlvsym};

/// The driver as programs name it.
const DRIVER: &CStr = c"libcuda.so.1";

/// Handle of the driver's library once it is loaded. Kept open: hooks hold addresses in it.
static DRIVER_HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Address of a driver function → its row, open addressing; filled once, in any order, by whoever comes first.
static BY_ADDRESS: [(AtomicUsize, AtomicUsize); SLOTS] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; SLOTS];
const SLOTS: usize = 512;
const _: () = assert!(COUNT * 2 < SLOTS);

static FILLED: AtomicU8 = AtomicU8::new(0);

/// The hook that stands for a function of the driver.
pub fn hook_of(address: *mut c_void) -> Option<*mut c_void> {
    if address.is_null() || !fill() {
        return None;
    }
    let row = find(address as usize)?;
    Some(ROWS.get(row)?.hook.cast_mut())
}

/// The exported entries for dlsym and dlvsym themselves: who looks those up gets ours as well.
#[derive(Clone, Copy, Debug)]
pub struct OwnEntries {
    /// Ours.
    pub dlsym: *mut c_void,
    /// Ours.
    pub dlvsym: *mut c_void,
}

/// What a dlsym for `name`, or a dlvsym where there is a `version`, should answer; null: the real function is to
/// be called in the caller's place.
///
/// # Safety
/// `name` and `version` must be C strings, as dlsym demands; `version` may be null.
pub unsafe fn substitute(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *mut c_void,
    own: OwnEntries,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(name) };
    let is_loader = matches!(bytes.to_bytes(), b"dlsym" | b"dlvsym");
    if (!is_loader && names::row_of(bytes).is_none()) || is_disabled() {
        return std::ptr::null_mut();
    }
    let errno = Errno::save();
    // SAFETY: the application's own arguments, or a handle from `real_answer`.
    let answer = real_answer(handle, caller, &|handle| unsafe {
        if version.is_null() {
            real_dlsym().map(|ask| ask(handle, name))
        } else {
            real_dlvsym().map(|ask| ask(handle, name, version))
        }
        .unwrap_or(std::ptr::null_mut())
    });
    let hook = if is_loader { own_entry(answer, own) } else { hook_of(answer) };
    errno.restore();
    hook.unwrap_or(std::ptr::null_mut())
}

fn own_entry(answer: *mut c_void, own: OwnEntries) -> Option<*mut c_void> {
    if real_dlsym().is_some_and(|real| real as usize == answer as usize) {
        Some(own.dlsym)
    } else if real_dlvsym().is_some_and(|real| real as usize == answer as usize) {
        Some(own.dlvsym)
    } else {
        None
    }
}

/// The driver's function for a row whose address is not known yet.
#[cold]
pub(super) fn resolve_row(id: Id) -> *mut c_void {
    let errno = Errno::save();
    fill();
    let address = ROWS.get(id as usize).map_or(std::ptr::null_mut(), |row| {
        let found = driver_symbol(row.name);
        if found.is_null() { found } else { set_real(id as usize, found) }
    });
    errno.restore();
    address
}

/// An exported function of the driver's library; null where there is none, or no library.
pub(super) fn driver_symbol(name: &CStr) -> *mut c_void {
    let (Some(handle), Some(dlsym)) = (driver_handle(), real_dlsym()) else { return std::ptr::null_mut() };
    // SAFETY: the real dlsym with a handle that stays open.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// The library if it is loaded, by whoever and in whatever scope. Never loads it.
fn driver_handle() -> Option<*mut c_void> {
    // Relaxed: a handle is only passed back to the loader.
    let known = DRIVER_HANDLE.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    // SAFETY: RTLD_NOLOAD runs no constructor. A second thread that does the same only counts up once more.
    let handle = unsafe { libc::dlopen(DRIVER.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    DRIVER_HANDLE.store(handle, Ordering::Relaxed);
    Some(handle)
}

fn fill() -> bool {
    // Acquire pairs with the Release below: the table is complete.
    if FILLED.load(Ordering::Acquire) != 0 {
        return true;
    }
    if driver_handle().is_none() {
        return false;
    }
    for (row, entry) in ROWS.iter().enumerate() {
        let address = driver_symbol(entry.name);
        if !address.is_null() {
            set_real(row, address);
            insert(address as usize, row);
        }
    }
    FILLED.store(1, Ordering::Release);
    true
}

fn insert(address: usize, row: usize) {
    for slot in probe(address) {
        let Some((key, value)) = BY_ADDRESS.get(slot) else { return };
        match key.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                value.store(row + 1, Ordering::Release);
                return;
            }
            // Two rows at one address are two names of one function: the first name stands for both.
            Err(known) if known == address => return,
            Err(_) => {}
        }
    }
}

fn find(address: usize) -> Option<usize> {
    for slot in probe(address) {
        let (key, value) = BY_ADDRESS.get(slot)?;
        match key.load(Ordering::Acquire) {
            0 => return None,
            known if known == address => return value.load(Ordering::Acquire).checked_sub(1),
            _ => {}
        }
    }
    None
}

fn probe(address: usize) -> impl Iterator<Item = usize> {
    let start = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
    (0..SLOTS).map(move |step| (start + step) % SLOTS)
}

/// The answer that the caller would get. For a handle the asker does not matter. RTLD_DEFAULT and RTLD_NEXT depend
/// on it: first what follows us in the global scope is asked, which is where the driver is if it is global, then
/// the caller's own library and what it needs.
fn real_answer(
    handle: *mut c_void,
    caller: *mut c_void,
    ask: &dyn Fn(*mut c_void) -> *mut c_void,
) -> *mut c_void {
    if handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT {
        return ask(handle);
    }
    let global = ask(libc::RTLD_NEXT);
    if !global.is_null() {
        return global;
    }
    let Some(own) = library_of(caller) else { return std::ptr::null_mut() };
    let found = ask(own);
    // SAFETY: opened by `library_of`; what was found stays loaded, since its caller is running.
    unsafe { libc::dlclose(own) };
    found
}

/// A handle of the library that an address lies in.
fn library_of(address: *mut c_void) -> Option<*mut c_void> {
    // SAFETY: dladdr accepts any address; Dl_info is plain data.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let handle = libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        (!handle.is_null()).then_some(handle)
    }
}

/// `CUWARDEN_DISABLE=1`: 0 = not asked yet, 1 = no, 2 = yes.
static DISABLED: AtomicU8 = AtomicU8::new(0);

fn is_disabled() -> bool {
    match DISABLED.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: a C string; the answer is read at once.
            let disabled = unsafe {
                let value = libc::getenv(c"CUWARDEN_DISABLE".as_ptr());
                !value.is_null() && CStr::from_ptr(value) == c"1"
            };
            DISABLED.store(if disabled { 2 } else { 1 }, Ordering::Relaxed);
            disabled
        }
        known => known == 2,
    }
}

struct Errno(i32);

impl Errno {
    fn save() -> Errno {
        // SAFETY: the thread's own errno.
        Errno(unsafe { *libc::__errno_location() })
    }

    fn restore(self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
