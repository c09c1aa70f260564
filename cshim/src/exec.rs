//! The functions that start another program, and the one constructor: it keeps what children are to have of the
//! environment, before the program can change it.

use core::ffi::{c_char, c_int};
use cuwarden_core::hooks::exec::{self, Id, List};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: unsafe extern "C" fn(c_int, *const *const c_char, List) = at_start;

unsafe extern "C" fn at_start(_: c_int, _: *const *const c_char, envp: List) {
    // SAFETY: glibc hands the process's environment to constructors.
    unsafe { exec::remember(envp) };
}

/// Without a version, as dlsym: a reference at any of libc's versions binds to it.
macro_rules! entries {
    ($($name:ident)+) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "endbr64",
                "mov eax, {number}",
                "jmp {ask}",
                number = const Id::$name as u32,
                ask = sym ask,
            )
        }
    )+};
}
cuwarden_core::for_each_exec!(entries);

/// Puts the arguments into one row where they are: those in registers go below those on the stack, in the place of the
/// return address. So a list of variable arguments is an array. [`exec::enter`] answers in `rax` where to jump with everything
/// as it came, else in `rdx` what to return.
#[unsafe(naked)]
unsafe extern "C" fn ask() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "pop r10", // the return address
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, r10",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "mov rsi, rsp",
        "push r10",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rip, -56",
        "push r10", // keeps the stack aligned
        ".cfi_adjust_cfa_offset 8",
        "mov edi, eax",
        "call {enter}",
        "mov r11, rax",
        "mov rax, rdx",
        "pop r10",
        ".cfi_adjust_cfa_offset -8",
        "pop r10",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, r10",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "push r10",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rip, -8",
        "test r11, r11",
        "jz 2f",
        "xor eax, eax", // of variable arguments none is in a vector register
        "jmp r11",
        "2:",
        "ret",
        ".cfi_endproc",
        enter = sym exec::enter,
    )
}
