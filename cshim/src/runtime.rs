//! The CUDA runtimes' functions, by version node and by runtime.
//!
//! An entry loads its index and jumps to the one function that all share. Programs that are linked with a runtime bind to
//! the exported entries; look-ups by name are answered from a table that has an entry for each function of each runtime
//! that is loaded, because a pointer must lead to the library that it was asked of, whoever calls it.

use core::ffi::c_void;
use cuwarden_core::hooks::runtime::table::{COUNT, Id, Node};
use cuwarden_core::hooks::runtime::{MOST_LOADED, OF_INSTANCE, enter, leave};

// `call` keeps the arguments, asks `enter` for the real function, calls it with the same arguments and hands its answer
// to `leave`. None of these functions has floating-point arguments; structures that are passed on the stack take 24
// bytes at most. The frame is that of an ordinary function, so that unwinders pass.
core::arch::global_asm!(
    ".pushsection .text.cuwarden_runtime,\"ax\",@progbits",
    ".p2align 4",
    ".type cuwarden_runtime_call,@function",
    "cuwarden_runtime_call:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 80",
    "mov [rbp - 8], rax", // the index
    "mov [rbp - 16], rdi",
    "mov [rbp - 24], rsi",
    "mov [rbp - 32], rdx",
    "mov [rbp - 40], rcx",
    "mov [rbp - 48], r8",
    "mov [rbp - 56], r9",
    "mov edi, eax",
    "mov rsi, [rbp + 8]", // the caller
    "mov rdx, rbp",
    "lea rcx, [rbp - 80]", // what the outer call had noted
    "call {enter}",
    "test rax, rax",
    "jz 2f",
    "mov rdi, [rbp - 16]",
    "mov rsi, [rbp - 24]",
    "mov rdx, [rbp - 32]",
    "mov rcx, [rbp - 40]",
    "mov r8, [rbp - 48]",
    "mov r9, [rbp - 56]",
    "push 0", // keeps the stack aligned
    "push qword ptr [rbp + 32]",
    "push qword ptr [rbp + 24]",
    "push qword ptr [rbp + 16]",
    "call rax",
    "add rsp, 32",
    "jmp 3f",
    "2:",
    "mov eax, 500", // cudaErrorSymbolNotFound: no such runtime is loaded
    "3:",
    "mov edi, [rbp - 8]",
    "mov esi, eax",
    "lea rdx, [rbp - 80]",
    "call {leave}",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size cuwarden_runtime_call, . - cuwarden_runtime_call",

    // One entry of 16 bytes for each function of each runtime.
    ".p2align 4",
    ".globl cuwarden_runtime_entries",
    ".hidden cuwarden_runtime_entries",
    "cuwarden_runtime_entries:",
    ".cfi_startproc",
    ".set cuwarden_instance, 0",
    ".rept {instances}",
    ".set cuwarden_call, 0",
    ".rept {calls}",
    ".p2align 4",
    "endbr64",
    "mov eax, {of_instance} + (cuwarden_instance << 8) + cuwarden_call",
    "jmp cuwarden_runtime_call",
    ".set cuwarden_call, cuwarden_call + 1",
    ".endr",
    ".set cuwarden_instance, cuwarden_instance + 1",
    ".endr",
    ".cfi_endproc",
    ".popsection",
    enter = sym enter,
    leave = sym leave,
    instances = const MOST_LOADED,
    calls = const COUNT,
    of_instance = const OF_INSTANCE,
);

unsafe extern "C" {
    static cuwarden_runtime_entries: [[u8; 16]; MOST_LOADED * COUNT];
}

/// The entry of a function of one runtime, by its index.
pub(crate) fn entry(index: u32) -> *mut c_void {
    let (instance, call) = ((index >> 8 & 0xff) as usize, (index & 0xff) as usize);
    let first = (&raw const cuwarden_runtime_entries).cast::<[u8; 16]>();
    if instance >= MOST_LOADED || call >= COUNT {
        return std::ptr::null_mut();
    }
    first.wrapping_add(instance * COUNT + call).cast_mut().cast()
}

/// The exported entries: as those of the driver, at versions that are not the default ones. A reference of a program has
/// the version and binds to it; a reference without a version, and a look-up by name, never see it.
macro_rules! entries {
    ($($name:ident => $($node:literal)+,)*) => {$($(
        core::arch::global_asm!(
            concat!(".pushsection .text.entry.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl \"", stringify!($name), ".", $node, "\""),
            concat!(".type \"", stringify!($name), ".", $node, "\",@function"),
            concat!("\"", stringify!($name), ".", $node, "\":"),
            ".cfi_startproc",
            "endbr64",
            "mov eax, {index}",
            "jmp cuwarden_runtime_call",
            ".cfi_endproc",
            concat!(".size \"", stringify!($name), ".", $node, "\", . - \"", stringify!($name), ".", $node, "\""),
            concat!(".symver \"", stringify!($name), ".", $node, "\", ", stringify!($name), "@", $node, ", remove"),
            ".popsection",
            index = const Node::number($node) << 8 | Id::$name as u32,
        );
    )+)*};
}
cuwarden_core::for_each_runtime_call!(entries);
