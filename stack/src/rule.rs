//! How to get from one frame to its caller, in 64 bits.

use super::Registers;
use super::arch::RETURN_ADDRESS_OFFSET;
use super::memory::Stack;

/// Where a frame's canonical address (CFA: the stack pointer before the call) is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cfa {
    /// The stack pointer plus this.
    Sp(i32),
    /// The frame pointer plus this.
    Bp(i32),
    /// What is stored at the frame pointer plus this.
    StoredAtBp(i32),
}

/// Where the caller's frame pointer is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// Still in its register, or unknown.
    Unchanged,
    AtCfa(i32),
    /// Stored at this frame's own frame pointer plus this.
    AtBp(i32),
}

/// A packed rule. Bits 0–2: what it is; 3–4: [`Saved`]; 8–31: the saved register's offset; 32–63: the CFA's.
///
/// Zero is no rule, so that an empty table holds none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule(u64);

const KIND: u64 = 0b111;
/// The walk ends: outermost frame, no unwind data, or data that we do not follow.
const END: u64 = 1;
/// The walk ends: no module holds this address. The upper half says after how many loads that was so.
const OUTSIDE: u64 = 2;
const SIGNAL: u64 = 3;
const CFA_SP: u64 = 4;
const CFA_BP: u64 = 5;
const CFA_AT_BP: u64 = 6;

const SAVED: u64 = 0b11 << 3;
const SAVED_AT_CFA: u64 = 1 << 3;
const SAVED_AT_BP: u64 = 2 << 3;

impl Rule {
    pub(super) const END: Self = Self(END);
    pub(super) const SIGNAL_FRAME: Self = Self(SIGNAL);

    pub(super) fn outside(loads: u32) -> Self {
        Self(OUTSIDE | u64::from(loads) << 32)
    }

    /// `None` if the saved register's offset does not fit.
    pub(super) fn new(cfa: Cfa, saved: Saved) -> Option<Self> {
        let (kind, cfa_offset) = match cfa {
            Cfa::Sp(offset) => (CFA_SP, offset),
            Cfa::Bp(offset) => (CFA_BP, offset),
            Cfa::StoredAtBp(offset) => (CFA_AT_BP, offset),
        };
        let (place, saved_offset) = match saved {
            Saved::Unchanged => (0, 0),
            Saved::AtCfa(offset) => (SAVED_AT_CFA, offset),
            Saved::AtBp(offset) => (SAVED_AT_BP, offset),
        };
        if saved_offset != (saved_offset << 8) >> 8 {
            return None;
        }
        let low = kind | place | u64::from((saved_offset << 8).cast_unsigned());
        Some(Self(low | u64::from(cfa_offset.cast_unsigned()) << 32))
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Does it say how to reach the caller by arithmetic alone?
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        self.0 & KIND >= CFA_SP
    }

    #[inline(always)]
    pub(super) fn is_signal_frame(self) -> bool {
        self.0 & KIND == SIGNAL
    }

    /// Was it made when fewer modules had been loaded, so that one may hold the address by now?
    #[inline(always)]
    pub(super) fn is_outdated(self, loads: u32) -> bool {
        self.0 & KIND == OUTSIDE && self.0 >> 32 != u64::from(loads)
    }

    /// The caller's registers by a plain rule.
    #[inline(always)]
    pub(super) fn undo(self, regs: Registers, stack: &mut Stack) -> Option<Registers> {
        let base = if self.0 & KIND == CFA_SP { regs.sp } else { regs.bp };
        let mut cfa = base.wrapping_add_signed((self.0.cast_signed()) >> 32);
        if self.0 & KIND == CFA_AT_BP {
            cfa = stack.read(cfa)?;
        }
        // Frames lie one above the other: without this a damaged stack could make the walk go round.
        if cfa <= regs.sp {
            return None;
        }
        let ip = stack.read(cfa.wrapping_add_signed(RETURN_ADDRESS_OFFSET))?;
        let bp = if self.0 & SAVED == 0 {
            regs.bp
        } else {
            let base = if self.0 & SAVED == SAVED_AT_CFA { cfa } else { regs.bp };
            stack.read(base.wrapping_add_signed(self.saved_offset()))?
        };
        Some(Registers { ip, sp: cfa, bp })
    }

    #[inline(always)]
    fn saved_offset(self) -> i64 {
        // The shifts bring the 24 bits to the top and back, which extends their sign.
        (self.0 << 32).cast_signed() >> 40
    }
}

#[cfg(test)]
mod tests {
    use super::{Cfa, Rule, Saved};

    #[test]
    fn offsets_survive_packing() {
        for offset in [0, 8, -8, -16, 8_388_600, -8_388_608] {
            let rule = Rule::new(Cfa::Sp(i32::MAX), Saved::AtCfa(offset));
            assert_eq!(rule.map(Rule::saved_offset), Some(i64::from(offset)));
            assert!(rule.is_some_and(Rule::is_plain));
        }
        assert_eq!(Rule::new(Cfa::Bp(16), Saved::AtCfa(8_388_608)), None);
    }

    #[test]
    fn an_unknown_address_is_asked_again_after_a_load() {
        let rule = Rule::outside(7);
        assert!(!rule.is_outdated(7) && rule.is_outdated(8));
        assert!(!Rule::END.is_outdated(8) && !rule.is_plain());
    }
}
