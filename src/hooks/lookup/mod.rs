//! Look-ups by name (dlsym, dlvsym) and by address.
//!
//! Substitution is by identity: whoever asks gets the real answer first, and where that is the address of a
//! function of the driver or of NVML that has a row, the row's hook. A name alone decides nothing.
//!
//! Nothing here allocates, locks or starts anything, and a name that is not a row's costs a hash.

pub(super) mod elf;
mod library;
pub(super) mod missing;
mod names;
pub(super) mod symbols;

use super::runtime;
use super::table::{COUNT, ROWS, set_real};
use core::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

pub use elf::{REAL_DLCLOSE, REAL_DLSYM, REAL_DLVSYM, real_dlclose, real_dlsym, real_dlvsym};
pub(super) use library::Library;
pub use library::Owner;

/// Address of a library's function → its row, open addressing; filled once for each library, in any order, by whoever
/// comes first.
static BY_ADDRESS: [(AtomicUsize, AtomicUsize); SLOTS] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; SLOTS];
const SLOTS: usize = 512;
const _: () = assert!(COUNT * 2 < SLOTS);

static FILLED: [AtomicU8; Owner::COUNT] = [const { AtomicU8::new(0) }; Owner::COUNT];

/// The hook that stands for a function of a library.
pub fn hook_of(address: *mut c_void, owner: Owner) -> Option<*mut c_void> {
    if address.is_null() || !fill(owner) {
        return None;
    }
    let row = find(address as usize)?;
    Some(ROWS.get(row)?.hook.cast_mut())
}

/// What the preloaded library brings besides the hooks.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The exported dlsym: who looks dlsym up gets ours as well.
    pub dlsym: *mut c_void,
    /// The exported dlvsym.
    pub dlvsym: *mut c_void,
    /// The exported dlclose.
    pub dlclose: *mut c_void,
    /// The entry of a runtime's function, by the index that it hands to [`runtime::enter`].
    pub runtime: fn(u32) -> *mut c_void,
    /// Calls the fourth argument with the first three, so that it returns to the fifth, a `ret` instruction.
    pub ask_through: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const c_char,
        *mut c_void,
        *const c_void,
    ) -> *mut c_void,
}

/// The arguments of a dlsym, or of a dlvsym where there is a version.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// As the application gave it.
    pub handle: *mut c_void,
    /// Not null.
    pub name: *const c_char,
    /// Null for dlsym.
    pub version: *const c_char,
    /// Where the call returns to.
    pub caller: *mut c_void,
}

/// What a look-up should answer.
///
/// # Safety
/// The name and the version must be C strings, as dlsym demands; the version may be null.
pub unsafe fn substitute(question: Question, entries: Entries) -> Answer {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(question.name) };
    let is_loader = matches!(name.to_bytes(), b"dlsym" | b"dlvsym" | b"dlclose");
    let is_runtime = name.to_bytes().starts_with(b"cuda") && runtime::table::call_of(name).is_some();
    let row = names::row_of(name).and_then(|row| ROWS.get(row));
    if is_disabled() {
        return Answer::AsItIs;
    }
    if !is_loader && !is_runtime && row.is_none() {
        if missing::may_be_noted(&question, name) {
            let errno = Errno::save();
            // SAFETY: the application's own arguments, or another name in their place.
            missing::note(&question, name, &|question| unsafe { real_answer(question, entries) });
            errno.restore();
        }
        return Answer::AsItIs;
    }
    let errno = Errno::save();
    // SAFETY: the application's own arguments.
    let answer = unsafe { real_answer(question, entries) };
    let instead = match row {
        Some(row) => hook_of(answer, row.owner),
        None if is_loader => own_entry(answer, entries),
        None => {
            // SAFETY: as the caller promises.
            let answer = unsafe {
                runtime::look_up(name, question.version, question.caller, answer, &|index| {
                    (entries.runtime)(index)
                })
            };
            errno.restore();
            return answer;
        }
    };
    errno.restore();
    instead.map_or(Answer::AsItIs, Answer::Instead)
}

/// What a look-up is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the real function says, called in the caller's place.
    AsItIs,
    /// This.
    Instead(*mut c_void),
    /// That there is no such function: without us there were none.
    NotThere,
}

/// The answer that the caller would get. The loader decides by the return address whose scope RTLD_DEFAULT is and
/// what comes after RTLD_NEXT, so the real function is made to return to the caller's library first. No rule of
/// our own could say the same: which libraries a library was loaded with, the loader alone knows.
///
/// # Safety
/// As [`substitute`].
unsafe fn real_answer(question: Question, entries: Entries) -> *mut c_void {
    let Question { handle, name, version, caller } = question;
    let real = if version.is_null() {
        real_dlsym().map(|real| real as *mut c_void)
    } else {
        real_dlvsym().map(|real| real as *mut c_void)
    };
    let Some(real) = real else { return std::ptr::null_mut() };
    let returning = if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        elf::return_in_library_of(caller)
    } else {
        // Who asks does not matter.
        elf::return_in_library_of(real)
    };
    let Some(returning) = returning else { return std::ptr::null_mut() };
    // SAFETY: the application's own arguments for the loader's function, and a `ret` instruction.
    unsafe { (entries.ask_through)(handle, name, version, real, returning) }
}

fn own_entry(answer: *mut c_void, entries: Entries) -> Option<*mut c_void> {
    if real_dlsym().is_some_and(|real| real as usize == answer as usize) {
        Some(entries.dlsym)
    } else if real_dlvsym().is_some_and(|real| real as usize == answer as usize) {
        Some(entries.dlvsym)
    } else if real_dlclose().is_some_and(|real| real as usize == answer as usize) {
        Some(entries.dlclose)
    } else {
        None
    }
}

/// The library's function for a row whose address is not known yet.
#[cold]
pub(super) fn resolve_row(number: usize) -> *mut c_void {
    let errno = Errno::save();
    let address = ROWS.get(number).map_or(std::ptr::null_mut(), |row| {
        fill(row.owner);
        let found = Library::loaded(row.owner).and_then(|library| library.address(row.name));
        found.map_or(std::ptr::null_mut(), |found| set_real(number, found.cast_mut()))
    });
    errno.restore();
    address
}

/// An exported function of the driver's library; null where there is none, or no library.
pub(super) fn driver_symbol(name: &CStr) -> *mut c_void {
    let address = Library::loaded(Owner::Driver).and_then(|library| library.address(name));
    address.map_or(std::ptr::null_mut(), <*const c_void>::cast_mut)
}

fn fill(owner: Owner) -> bool {
    let Some(filled) = FILLED.get(owner as usize) else { return false };
    // Acquire pairs with the Release below: the table is complete.
    if filled.load(Ordering::Acquire) != 0 {
        return true;
    }
    let Some(library) = Library::loaded(owner) else { return false };
    for (row, entry) in ROWS.iter().enumerate().filter(|(_, entry)| entry.owner == owner) {
        if let Some(address) = library.address(entry.name) {
            set_real(row, address.cast_mut());
            insert(address as usize, row);
        }
    }
    filled.store(1, Ordering::Release);
    true
}

fn insert(address: usize, row: usize) {
    for slot in probe(address) {
        let Some((key, value)) = BY_ADDRESS.get(slot) else { return };
        match key.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire) {
            Err(known) if known != address => {}
            // Two rows at one address are two names of one function: the first name stands for both. Another thread
            // that entered the address may not have come to the row yet, and this one must not go on without it.
            _ => {
                let _ = value.compare_exchange(0, row + 1, Ordering::AcqRel, Ordering::Acquire);
                return;
            }
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

/// True when a variable of the environment has a value.
pub(super) fn is_set(name: &CStr) -> bool {
    // SAFETY: a C string; the answer is read at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        !value.is_null() && *value != 0
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
