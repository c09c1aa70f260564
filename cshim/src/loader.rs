//! dlsym, dlvsym and dlclose.
//!
//! The loader decides RTLD_NEXT and RTLD_DEFAULT by the return address, so ours must not be on the stack when
//! the real function runs: it is jumped to, with the caller's registers as they were. Names that cannot be
//! ours cost three compares.

use core::ffi::{c_char, c_void};
use cuwarden_core::hooks::lookup::{
    Answer, Entries, Question, REAL_DLCLOSE, REAL_DLSYM, REAL_DLVSYM, real_dlclose, real_dlsym, real_dlvsym,
    substitute,
};
use cuwarden_core::hooks::runtime::closing;

macro_rules! trampoline {
    ($name:ident, $own:literal, $decide:ident, $resolve:ident, $real:ident) => {
        /// # Safety
        /// As the loader's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                concat!(".globl ", $own),
                concat!(".hidden ", $own),
                concat!($own, ":"),
                ".cfi_startproc",
                "endbr64",
                "test rsi, rsi",
                "jz 4f",
                "movzx eax, byte ptr [rsi]",
                "cmp al, 99", // 'c', "cu…": the driver
                "jne 2f",
                "cmp byte ptr [rsi + 1], 117", // 'u'
                "je 3f",
                "jmp 4f",
                "2:",
                "cmp al, 110", // 'n', "nv…": NVML
                "jne 7f",
                "cmp byte ptr [rsi + 1], 118", // 'v'
                "je 3f",
                "jmp 4f",
                "7:",
                "cmp al, 100", // 'd', "dl…": dlsym and dlvsym themselves
                "jne 4f",
                "cmp byte ptr [rsi + 1], 108", // 'l'
                "jne 4f",
                "3:",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rcx, [rsp + 24]", // the caller's return address
                "call {decide}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "cmp rax, {not_there}",
                "je 8f",
                "test rax, rax",
                "jne 6f",
                "4:",
                "mov rax, [rip + {real}]",
                "test rax, rax",
                "jz 5f",
                "jmp rax",
                "5:",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "call {resolve}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "jz 6f",
                "jmp rax",
                "6:",
                "ret",
                "8:",
                "xor eax, eax",
                "ret",
                ".cfi_endproc",
                not_there = const NOT_THERE,
                decide = sym $decide,
                resolve = sym $resolve,
                real = sym $real,
            )
        }
    };
}

trampoline!(dlsym, "cuwarden_own_dlsym", decide_dlsym, resolve_dlsym, REAL_DLSYM);
trampoline!(dlvsym, "cuwarden_own_dlvsym", decide_dlvsym, resolve_dlvsym, REAL_DLVSYM);

// The same places by names that no other library can take: `dlsym` is whoever comes first in the preload list.
unsafe extern "C" {
    fn cuwarden_own_dlsym();
    fn cuwarden_own_dlvsym();
    fn cuwarden_own_dlclose();
}

/// A library goes: what was learned of the loaded runtimes is looked at again.
///
/// # Safety
/// As the loader's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlclose() {
    core::arch::naked_asm!(
        ".globl cuwarden_own_dlclose",
        ".hidden cuwarden_own_dlclose",
        "cuwarden_own_dlclose:",
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call {closing}",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "jnz 2f",
        "call {resolve}",
        "2:",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 3f",
        "jmp rax",
        "3:",
        // There is no such function, so there is nothing to close.
        "mov eax, -1",
        "ret",
        ".cfi_endproc",
        closing = sym closing,
        resolve = sym resolve_dlclose,
        real = sym REAL_DLCLOSE,
    )
}

/// What a decision answers for [`Answer::NotThere`].
const NOT_THERE: usize = 1;

fn as_pointer(answer: Answer) -> *mut c_void {
    match answer {
        Answer::AsItIs => std::ptr::null_mut(),
        Answer::Instead(address) => address,
        Answer::NotThere => std::ptr::without_provenance_mut(NOT_THERE),
    }
}

fn entries() -> Entries {
    Entries {
        dlsym: cuwarden_own_dlsym as *mut c_void,
        dlvsym: cuwarden_own_dlvsym as *mut c_void,
        dlclose: cuwarden_own_dlclose as *mut c_void,
        runtime: crate::runtime::entry,
        ask_through,
    }
}

/// Calls `real` with the first three arguments and with `returning`, the address of a `ret` instruction, as its
/// return address: the loader takes the library that this lies in for the caller. The `ret` leads back here.
///
/// Shadow stacks forbid this. A process has none unless every library that it starts with is marked as fit for
/// them, and this one is not.
#[unsafe(naked)]
unsafe extern "C" fn ask_through(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    real: *mut c_void,
    returning: *const c_void,
) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "lea rax, [rip + 2f]",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "jmp rcx",
        ".cfi_adjust_cfa_offset -16",
        "2:",
        "ret",
        ".cfi_endproc",
    )
}

unsafe extern "C" fn decide_dlsym(
    handle: *mut c_void,
    name: *const c_char,
    _: *mut c_void,
    caller: *mut c_void,
) -> *mut c_void {
    let question = Question { handle, name, version: std::ptr::null(), caller };
    // SAFETY: the application's arguments; the trampoline saw that the name is not null.
    as_pointer(unsafe { substitute(question, entries()) })
}

unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *mut c_void,
) -> *mut c_void {
    if version.is_null() {
        // As invalid as it is without us.
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    as_pointer(unsafe { substitute(Question { handle, name, version, caller }, entries()) })
}

extern "C" fn resolve_dlsym() -> *mut c_void {
    real_dlsym().map_or(std::ptr::null_mut(), |real| real as *mut c_void)
}

extern "C" fn resolve_dlclose() -> *mut c_void {
    real_dlclose().map_or(std::ptr::null_mut(), |real| real as *mut c_void)
}

extern "C" fn resolve_dlvsym() -> *mut c_void {
    real_dlvsym().map_or(std::ptr::null_mut(), |real| real as *mut c_void)
}
