//! What the walk needs to know about x86-64 and Linux on it.

use super::Registers;
use super::memory::Stack;
use core::arch::asm;
use gimli::Register;

/// DWARF numbers of the registers that rules are made of.
pub(super) const FRAME_POINTER: Register = Register(6);
pub(super) const STACK_POINTER: Register = Register(7);
pub(super) const RETURN_ADDRESS: Register = Register(16);

/// The call instruction leaves the return address right below the frame's canonical address (CFA).
pub(super) const RETURN_ADDRESS_OFFSET: i64 = -8;

/// Smallest page: the unit in which memory is readable or not.
pub(super) const PAGE: u64 = 4096;

/// Code lies below this: user addresses have 47 bits, and programs do not ask for the 57-bit ones for code.
pub(super) const CODE_BITS: u32 = 47;

impl Registers {
    /// The registers of the function into which this is inlined.
    #[inline(always)]
    pub(super) fn here() -> Self {
        let (ip, sp, bp);
        // SAFETY: copies three registers; touches neither memory nor flags.
        unsafe {
            asm!(
                "lea {ip}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nomem, nostack, preserves_flags),
            );
        }
        Self { ip, sp, bp }
    }
}

/// An instruction that has to come after everything before it: whatever was called returns to its caller first.
#[inline(always)]
pub(super) fn keep_frame() {
    // SAFETY: no instruction at all.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}

/// The constants that functions like this one store: `if (!out) …; *out = constant; return 0;`
///
/// As compilers write it: `test rdi, rdi; je …; mov dword ptr [rdi], constant; xor eax, eax; ret`.
pub(super) fn stored_answers(code: &[u8]) -> impl Iterator<Item = u32> + '_ {
    const TEST_JUMP: &[u8] = &[0x48, 0x85, 0xff, 0x74];
    const STORE: &[u8] = &[0xc7, 0x07];
    const ANSWER_0: &[u8] = &[0x31, 0xc0, 0xc3];
    code.windows(14).filter_map(|window| {
        // Most bytes end here.
        let rest = window.strip_prefix(TEST_JUMP)?;
        let (constant, rest) = rest.get(1..)?.strip_prefix(STORE)?.split_first_chunk()?;
        (rest == ANSWER_0).then(|| u32::from_le_bytes(*constant))
    })
}

/// What the kernel says about reading eight bytes at `address`.
///
/// `rt_sigprocmask` with an impossible operation copies the set from `address` and only then finds the operation
/// wrong: EINVAL = readable, EFAULT = not. It needs no descriptor, changes nothing, and every seccomp filter
/// lets it pass because libc needs it. (Abseil's `AddressIsReadable` does the same.)
pub(super) fn probe(address: u64) -> i64 {
    const NO_SUCH_OPERATION: u64 = !0;
    const SET_SIZE: u64 = 8;
    let result;
    // SAFETY: the system call reads eight bytes through the kernel's checked copy and fails in any case, so it
    // neither writes memory nor changes the mask. A raw system call leaves errno alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigprocmask => result,
            in("rdi") NO_SUCH_OPERATION,
            in("rsi") address,
            in("rdx") 0_u64,
            in("r10") SET_SIZE,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly),
        );
    }
    result
}

/// The registers of the code that a signal interrupted.
///
/// At the signal trampoline (`__restore_rt`), the stack pointer is at the `ucontext_t` that the kernel pushed. Its
/// layout is kernel ABI: 40 bytes, then the general registers in the order of `REG_R8` = 0 … `REG_RIP` = 16.
pub(super) fn undo_signal_frame(regs: Registers, stack: &mut Stack) -> Option<Registers> {
    const GENERAL_REGISTERS: u64 = 40;
    let mut saved = |index: u64| {
        let offset = index.checked_mul(8)?.checked_add(GENERAL_REGISTERS)?;
        stack.read(regs.sp.checked_add(offset)?)
    };
    Some(Registers { bp: saved(10)?, sp: saved(15)?, ip: saved(16)? })
}

/// How an expression in unwind data finds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// The stack pointer plus this.
    Sp(i64),
    /// The frame pointer plus this.
    Bp(i64),
    /// What is stored at the frame pointer plus this.
    StoredAtBp(i64),
}

/// Reduces an expression, for the code at `pc`, to one of the shapes that compilers and linkers emit.
///
/// * `rbp + k`, `*(rbp + k)`: functions that realign their stack;
/// * `rsp + k + ((rip & a) >= b) << s`: entries of a PLT, which push one word part of the way. `rip` is known.
pub(super) fn reduce(expression: &[u8], pc: u64) -> Option<Address> {
    const DEREF: u8 = 0x06;
    const AND: u8 = 0x1a;
    const PLUS: u8 = 0x22;
    const SHL: u8 = 0x24;
    const GE: u8 = 0x2a;
    const RBP: u8 = 0x76;
    const RSP: u8 = 0x77;
    const RIP: u8 = 0x80;
    let literal = |op: u8| op.checked_sub(0x30).filter(|value| *value < 32).map(u64::from);

    let (&register, rest) = expression.split_first()?;
    let (offset, rest) = signed_leb128(rest)?;
    match (register, rest) {
        (RBP, []) => Some(Address::Bp(offset)),
        (RBP, [DEREF]) => Some(Address::StoredAtBp(offset)),
        (RSP, []) => Some(Address::Sp(offset)),
        (RSP, &[RIP, 0, mask, AND, limit, GE, shift, SHL, PLUS]) => {
            let pushed = u64::from(pc & literal(mask)? >= literal(limit)?);
            let pushed = pushed.checked_shl(u32::try_from(literal(shift)?).ok()?)?;
            Some(Address::Sp(offset.checked_add_unsigned(pushed)?))
        }
        _ => None,
    }
}

/// Reads at most five bytes: offsets in frames are small.
fn signed_leb128(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut value = 0_i64;
    let mut shift = 0_u32;
    let mut rest = bytes;
    while shift < 35 {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        value |= i64::from(byte & 0x7f).checked_shl(shift)?;
        shift = shift.checked_add(7)?;
        if byte & 0x80 == 0 {
            let unused = 64_u32.checked_sub(shift)?;
            return Some((value.checked_shl(unused)?.checked_shr(unused)?, rest));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Address, reduce, stored_answers};

    #[test]
    fn constants_are_found_wherever_they_are_stored() {
        let function = [0x48, 0x85, 0xff, 0x74, 0x0b, 0xc7, 0x07, 0x3a, 0x2f, 0, 0, 0x31, 0xc0, 0xc3];
        let of = |code: &[u8]| stored_answers(code).collect::<Vec<_>>();
        assert_eq!(of(&function), [12090]);
        assert_eq!(of(&[&[0x48][..], &function, &function, &[0x90]].concat()), [12090, 12090]);
        assert_eq!(of(&function[..13]), [0; 0]);
        for at in (0..function.len()).filter(|at| !(7..11).contains(at) && *at != 4) {
            let mut other = function;
            other[at] ^= 1;
            assert_eq!(of(&other), [0; 0]);
        }
    }

    #[test]
    fn reduces_what_compilers_and_linkers_emit() {
        // GNU ld's .plt: rsp + 8, and 8 more from the entry's byte 11 on.
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(reduce(&plt, 0x1000), Some(Address::Sp(8)));
        assert_eq!(reduce(&plt, 0x100a), Some(Address::Sp(8)));
        assert_eq!(reduce(&plt, 0x100b), Some(Address::Sp(16)));
        // gcc, in a function that realigns its stack.
        assert_eq!(reduce(&[0x76, 0x78, 0x06], 0), Some(Address::StoredAtBp(-8)));
        assert_eq!(reduce(&[0x76, 0xb0, 0x7f], 0), Some(Address::Bp(-80)));
        assert_eq!(reduce(&[0x77, 0x80, 0x01], 0), Some(Address::Sp(128)));
    }

    #[test]
    fn leaves_everything_else_alone() {
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        for length in (0..plt.len()).filter(|length| *length != 2) {
            assert_eq!(reduce(plt.get(..length).unwrap_or(&[]), 0), None);
        }
        assert_eq!(reduce(&[0x70, 0], 0), None);
        assert_eq!(reduce(&[0x76, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 0), None);
    }
}
