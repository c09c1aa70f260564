//! What the quota of a device is: one word in the ledger.
//!
//! The first process that was told a limit sets it. A later one that was told another gets the stricter one, and says
//! so. The operator's word (`cuwarden limit`) stands until it is taken back.

use super::layout::Device;
use std::sync::atomic::{AtomicU64, Ordering};

const SET: u64 = 1 << 63;
const OPERATORS: u64 = 1 << 62;

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Nobody was told one.
    Unset,
    /// From the environment of a process, in bytes, not 0.
    Told(u64),
    /// The operator's, in bytes; 0 = no limit.
    Operators(u64),
}

impl Limit {
    /// Any word means something: a limit that is damaged is at worst too low.
    pub fn of(word: u64) -> Limit {
        let bytes = word & !(SET | OPERATORS);
        match (word & SET != 0, word & OPERATORS != 0) {
            (false, _) => Limit::Unset,
            (true, true) => Limit::Operators(bytes),
            (true, false) if bytes == 0 => Limit::Unset,
            (true, false) => Limit::Told(bytes),
        }
    }

    /// In bytes; 0 = none.
    pub fn bytes(self) -> u64 {
        match self {
            Limit::Unset => 0,
            Limit::Told(bytes) | Limit::Operators(bytes) => bytes,
        }
    }

    /// The word that says it. What it has no room for is more than any device has.
    pub fn word(self) -> u64 {
        let bytes = self.bytes().min(!(SET | OPERATORS));
        match self {
            Limit::Unset => 0,
            Limit::Told(_) => SET | bytes,
            Limit::Operators(_) => SET | OPERATORS | bytes,
        }
    }
}

/// What came of a limit that a process was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds, or none was told and none is set.
    Agreed,
    /// The process was told none and is held to this one, in bytes.
    Joined(u64),
    /// Another one was set before; the stricter of both holds. In bytes.
    Differs {
        /// What was set.
        before: u64,
        /// What holds now.
        holds: u64,
    },
    /// The operator's holds, in bytes; 0 = no limit.
    Overruled(u64),
}

/// The limit of a device, in bytes; 0 = none.
#[inline]
pub fn of(device: &Device) -> u64 {
    // Acquire pairs with the Release of whoever set it.
    Limit::of(device.limit.load(Ordering::Acquire)).bytes()
}

/// A process was told `told` bytes, 0 = nothing. `is_first`: asked where that decides, whether no other process is
/// there that holds to what is set. True in the second place: the word changed.
pub fn tell(word: &AtomicU64, told: u64, mut is_first: impl FnMut() -> bool) -> (Outcome, bool) {
    let mut now = word.load(Ordering::Acquire);
    loop {
        let (outcome, next) = match (Limit::of(now), told) {
            (Limit::Operators(bytes), _) if bytes == told => return (Outcome::Agreed, false),
            (Limit::Operators(bytes), _) => return (Outcome::Overruled(bytes), false),
            (Limit::Unset, 0) => return (Outcome::Agreed, false),
            (Limit::Told(bytes), _) if bytes == told => return (Outcome::Agreed, false),
            (Limit::Told(_), _) if is_first() => {
                let next = if told == 0 { Limit::Unset } else { Limit::Told(told) };
                (Outcome::Agreed, next)
            }
            (Limit::Told(bytes), 0) => return (Outcome::Joined(bytes), false),
            (Limit::Told(before), _) => {
                let holds = before.min(told);
                (Outcome::Differs { before, holds }, Limit::Told(holds))
            }
            (Limit::Unset, _) => (Outcome::Agreed, Limit::Told(told)),
        };
        if next.word() == now {
            return (outcome, false);
        }
        // AcqRel: Release pairs with the Acquire in `of`.
        match word.compare_exchange(now, next.word(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return (outcome, true),
            Err(other) => now = other,
        }
    }
}

/// What [`tell`] would leave as the limit, in bytes, for a process that does not take part yet.
pub fn if_told(limit: Limit, told: u64, is_first: bool) -> u64 {
    let word = AtomicU64::new(limit.word());
    tell(&word, told, || is_first);
    Limit::of(word.into_inner()).bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_one_and_the_operators() {
        let word = AtomicU64::new(0);
        let told = |bytes| tell(&word, bytes, || false);
        assert_eq!(told(0), (Outcome::Agreed, false));
        assert_eq!(told(8), (Outcome::Agreed, true));
        assert_eq!(told(8), (Outcome::Agreed, false));
        assert_eq!(told(0), (Outcome::Joined(8), false));
        assert_eq!(told(9), (Outcome::Differs { before: 8, holds: 8 }, false));
        assert_eq!(told(7), (Outcome::Differs { before: 8, holds: 7 }, true));
        word.store(Limit::Operators(20).word(), Ordering::Relaxed);
        assert_eq!(told(7), (Outcome::Overruled(20), false));
        assert_eq!(told(20), (Outcome::Agreed, false));
        assert_eq!(Limit::of(word.load(Ordering::Relaxed)), Limit::Operators(20));
    }

    #[test]
    fn what_a_process_would_be_held_to() {
        assert_eq!(if_told(Limit::Unset, 0, true), 0);
        assert_eq!(if_told(Limit::Unset, 8, true), 8);
        assert_eq!(if_told(Limit::Told(8), 9, false), 8);
        assert_eq!(if_told(Limit::Told(8), 0, false), 8);
        assert_eq!(if_told(Limit::Told(8), 9, true), 9);
        assert_eq!(if_told(Limit::Operators(20), 9, true), 20);
        assert_eq!(if_told(Limit::Operators(0), 9, true), 0, "the operator lifted it");
    }

    #[test]
    fn a_container_that_starts_anew_is_told_anew() {
        let word = AtomicU64::new(Limit::Told(8).word());
        assert_eq!(tell(&word, 16, || true), (Outcome::Agreed, true));
        assert_eq!(Limit::of(word.load(Ordering::Relaxed)), Limit::Told(16));
        assert_eq!(tell(&word, 0, || true), (Outcome::Agreed, true));
        assert_eq!(Limit::of(word.load(Ordering::Relaxed)), Limit::Unset);
        word.store(Limit::Operators(4).word(), Ordering::Relaxed);
        assert_eq!(tell(&word, 16, || true), (Outcome::Overruled(4), false));
    }

    #[test]
    fn every_word_means_something() {
        for word in [0, 1, SET, OPERATORS, SET | OPERATORS, u64::MAX, SET | 5, OPERATORS | 5] {
            let limit = Limit::of(word);
            assert_eq!(Limit::of(limit.word()), limit);
        }
        let most = Limit::Operators(1 << 62).word();
        assert_eq!(Limit::of(most), Limit::Operators((1 << 62) - 1), "a huge one is not none");
    }
}
