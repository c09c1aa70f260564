//! The parts of cuwarden that depend on the processor and on its thread-local storage model.
//!
//! Everything here is x86-64 Linux. Porting means writing this crate again, and `stack`'s register file.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("cuwarden supports x86-64 Linux only: cshim/arch and src/stack would have to be ported first");

use core::arch::{asm, global_asm};

// A few words of thread-local storage in the initial-exec model. A preloaded library is loaded at start, so
// its block is in the static TLS area, and one load relative to %fs reaches it: a `thread_local!` of a
// shared library would call __tls_get_addr, which may allocate.
global_asm!(
    ".pushsection .tbss.cuwarden_thread_words,\"awT\",@nobits",
    ".p2align 4",
    ".globl cuwarden_thread_words",
    ".hidden cuwarden_thread_words",
    ".type cuwarden_thread_words,@object",
    ".size cuwarden_thread_words,48",
    "cuwarden_thread_words:",
    ".zero 48",
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
    /// The call of a CUDA runtime that the thread is in; 0 = none.
    pub via: u64,
    /// Where that call's frame is: a call that was left by a jump or an unwinding left its words behind.
    pub via_frame: u64,
    /// Not 0: the driver failed to start since that call began, and that was said.
    pub failed: u64,
    /// Keeps the size a multiple of the alignment.
    pub reserved: u64,
}

const _: () = assert!(size_of::<ThreadWords>() == 48);

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

/// The body of a naked function of up to five integer arguments: jumps to a function that gets them, and as its sixth
/// argument the address to which the call returns. Whoever asks for that in an ordinary function has no such address.
#[macro_export]
macro_rules! jump_with_caller {
    ($function:path) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "mov r9, qword ptr [rsp]",
            "jmp {function}",
            ".cfi_endproc",
            function = sym $function,
        )
    };
}

/// The body of a naked function of up to three integer arguments: jumps to a function that gets them, and as its fourth
/// argument a constant of 32 bits.
#[macro_export]
macro_rules! jump_with_constant {
    ($function:path, $constant:expr) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "mov ecx, {constant}",
            "jmp {function}",
            ".cfi_endproc",
            constant = const $constant,
            function = sym $function,
        )
    };
}

/// Compares two words with `old` and replaces them by `new` if they are equal, as one atomic step and a full barrier.
/// On failure it answers what they are. Every x86-64 processor that a GPU with CUDA runs beside has `cmpxchg16b`.
///
/// # Safety
/// `pair` must be aligned to 16 bytes, and readable and writable memory that others touch by atomic means only.
#[inline(always)]
pub unsafe fn compare_exchange_pair(
    pair: *mut [u64; 2],
    old: [u64; 2],
    new: [u64; 2],
) -> Result<(), [u64; 2]> {
    let [new_low, new_high] = new;
    let [mut low, mut high] = old;
    // SAFETY: the caller's promise. rbx, which the compiler keeps for itself, is put back.
    unsafe {
        asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b xmmword ptr [rdi]",
            "mov rbx, rsi",
            // By name, so that none of them is rbx.
            in("rdi") pair,
            inout("rsi") new_low => _,
            in("rcx") new_high,
            inout("rax") low,
            inout("rdx") high,
            options(nostack),
        );
    }
    if [low, high] == old { Ok(()) } else { Err([low, high]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Pair(core::cell::UnsafeCell<[u64; 2]>);
    // SAFETY: threads touch it by compare_exchange_pair alone.
    unsafe impl Sync for Pair {}

    #[test]
    fn a_pair_is_exchanged_as_one() {
        let pair = Pair([1, 2].into());
        // SAFETY: aligned, and ours.
        let exchange = |old, new| unsafe { compare_exchange_pair(pair.0.get(), old, new) };
        assert_eq!(exchange([1, 3], [7, 7]), Err([1, 2]));
        assert_eq!(exchange([0, 2], [7, 7]), Err([1, 2]));
        assert_eq!(exchange([1, 2], [u64::MAX, 1 << 63]), Ok(()));
        assert_eq!(exchange([0, 0], [0, 0]), Err([u64::MAX, 1 << 63]));
    }

    #[unsafe(naked)]
    extern "C" fn asked(_: u32, _: u64, _: u64, _: u64, _: u64) -> u64 {
        jump_with_caller!(answer)
    }

    extern "C" fn answer(a: u32, b: u64, c: u64, d: u64, e: u64, caller: u64) -> u64 {
        assert_eq!((a, b, c, d, e), (1, 2, 3, 4, u64::MAX));
        caller
    }

    #[unsafe(naked)]
    extern "C" fn told(_: u32, _: u64, _: u64) -> u64 {
        jump_with_constant!(sum, 0x8765_4321u32)
    }

    extern "C" fn sum(a: u32, b: u64, c: u64, constant: u32) -> u64 {
        assert_eq!((a, b, c), (1, u64::MAX, 3));
        constant.into()
    }

    #[test]
    fn a_constant_follows_the_arguments() {
        assert_eq!(told(1, u64::MAX, 3), 0x8765_4321);
    }

    #[inline(never)]
    fn asks() -> u64 {
        // Not a tail call, which would return elsewhere.
        core::hint::black_box(asked(1, 2, 3, 4, u64::MAX))
    }

    #[test]
    fn the_caller_is_the_one_who_called() {
        let start = asks as *const () as u64;
        assert!((start..start + 256).contains(&asks()));
    }

    #[test]
    fn threads_lose_nothing() {
        let pair = Pair([0, 0].into());
        let shared = &pair;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let mut seen = [0, 0];
                        loop {
                            let next = [seen[0] + 1, seen[1] + 3];
                            // SAFETY: aligned, and touched in this way only.
                            match unsafe { compare_exchange_pair(shared.0.get(), seen, next) } {
                                Ok(()) => break,
                                Err(now) => seen = now,
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(pair.0.into_inner(), [80_000, 240_000]);
    }
}
