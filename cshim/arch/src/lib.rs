//! The parts of cuwarden that depend on the processor and on its thread-local storage model.
//!
//! Everything here is x86-64 Linux. Porting means writing this crate again, and `stack`'s register file.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("cuwarden supports x86-64 Linux only: cshim/arch and src/stack would have to be ported first");

use core::arch::{asm, global_asm};

// Two words of thread-local storage in the initial-exec model. A preloaded library is loaded at start, so
// its block is in the static TLS area, and one load relative to %fs reaches it: a `thread_local!` of a
// shared library would call __tls_get_addr, which may allocate.
global_asm!(
    ".pushsection .tbss.cuwarden_thread_words,\"awT\",@nobits",
    ".p2align 4",
    ".globl cuwarden_thread_words",
    ".hidden cuwarden_thread_words",
    ".type cuwarden_thread_words,@object",
    ".size cuwarden_thread_words,16",
    "cuwarden_thread_words:",
    ".zero 16",
    ".popsection",
);

/// What a thread keeps: zero in a new thread.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadWords {
    /// While the thread is inside the shim, the stack pointer with which it came in: calls that the driver makes to
    /// itself pass through. Otherwise 0.
    pub inside: u64,
    /// The thread's id in the low half, the process generation that it belongs to in the high half.
    pub tid: u64,
}

/// This thread's words.
///
/// The pointer is valid until the thread ends and must not be handed to another thread.
#[inline(always)]
pub fn thread_words() -> *mut ThreadWords {
    let address: *mut ThreadWords;
    // SAFETY: reads the thread pointer and the symbol's offset from it; touches no memory of the program.
    unsafe {
        asm!(
            "mov {out}, qword ptr [rip + cuwarden_thread_words@GOTTPOFF]",
            "add {out}, qword ptr fs:[0]",
            out = out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    address
}

/// The stack pointer of the function that this is inlined into.
#[inline(always)]
pub fn stack_pointer() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {out}, rsp", out = out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
