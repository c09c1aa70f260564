//! The compiled rules, by code address, shared by all threads without a lock.
//!
//! An entry is two words: the rule, and the key mixed with the rule. A reader recomputes the mix, so an entry of
//! which two threads wrote one word each does not match (but for one chance in 2^64 or so, and even that gives
//! a wrong frame, no fault). That makes the entries independent of memory ordering, of a thread that dies or is
//! forked away half-way through a write, and of a signal handler that interrupts one.
//!
//! **Staleness.** The key holds the low 16 bits of the loader's count of unloads, so all rules expire when a
//! module goes. The count is looked at once in [`super::loader::CHECK_INTERVAL_NS`]. In between, if a module is
//! unloaded and another takes its place, the old rule is applied to new code: a wrong frame, or an early end. It
//! cannot fault, because a rule is numbers only and every read it leads to is checked. The same holds for an
//! entry that survives 65,536 unloads.
//!
//! The table lies in .bss: a process that never captures pays address space, not memory.

use super::arch::CODE_BITS;
use super::loader::Generation;
use super::rule::Rule;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 4;
const SET_BITS: u32 = 11;
const SETS: usize = 1 << SET_BITS;
/// The unload count lies above the address.
const TAG_SHIFT: u32 = 48;

struct Entry {
    check: AtomicU64,
    rule: AtomicU64,
}

/// One cache line: a look-up touches a single one.
#[repr(align(64))]
struct Set([Entry; WAYS]);

pub(super) struct Table {
    sets: [Set; SETS],
    /// Whose turn it is to be overwritten in a full set.
    turn: AtomicU64,
}

/// The process's rules.
pub(super) static RULES: Table = Table::empty();

impl Entry {
    const fn empty() -> Self {
        Self { check: AtomicU64::new(0), rule: AtomicU64::new(0) }
    }
}

impl Table {
    const fn empty() -> Self {
        Self { sets: [const { Set([const { Entry::empty() }; WAYS]) }; SETS], turn: AtomicU64::new(0) }
    }

    #[inline(always)]
    pub(super) fn find(&self, pc: u64, generation: Generation) -> Option<Rule> {
        let key = key(pc, generation);
        for entry in &self.set_of(pc)?.0 {
            // Relaxed, both: the check tells whether the two belong together, see above.
            let bits = entry.rule.load(Relaxed);
            if entry.check.load(Relaxed) == mix(key, bits) && bits != 0 {
                let rule = Rule::from_bits(bits);
                return (!rule.is_outdated(generation.loads())).then_some(rule);
            }
        }
        None
    }

    pub(super) fn insert(&self, pc: u64, generation: Generation, rule: Rule) {
        let Some(set) = self.set_of(pc) else { return };
        let key = key(pc, generation);
        let is_reusable = |entry: &&Entry| {
            // Relaxed, both: a wrong answer only costs another rule its place.
            let bits = entry.rule.load(Relaxed);
            let old = entry.check.load(Relaxed) ^ mix(0, bits);
            bits == 0 || old >> TAG_SHIFT != generation.tag() || old == key
        };
        // Relaxed: any value will do.
        let turn = || usize::try_from(self.turn.fetch_add(1, Relaxed)).unwrap_or(0) % WAYS;
        let entry = set.0.iter().find(is_reusable).or_else(|| set.0.get(turn()));
        if let Some(entry) = entry {
            // Relaxed, both: readers check that the two belong together.
            entry.rule.store(rule.bits(), Relaxed);
            entry.check.store(mix(key, rule.bits()), Relaxed);
        }
    }

    #[inline(always)]
    fn set_of(&self, pc: u64) -> Option<&Set> {
        // No code there: would also run into the tag.
        if pc >> CODE_BITS != 0 {
            return None;
        }
        let hash = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SET_BITS);
        self.sets.get(usize::try_from(hash).ok()?)
    }
}

#[inline(always)]
fn key(pc: u64, generation: Generation) -> u64 {
    pc | generation.tag() << TAG_SHIFT
}

#[inline(always)]
fn mix(key: u64, rule: u64) -> u64 {
    // Odd factor: different rules always give different products, and spread over all bits.
    key ^ rule.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::super::rule::{Cfa, Saved};
    use super::{Generation, Rule, Table};

    #[test]
    fn a_rule_expires_with_the_next_unload_but_not_with_a_load() {
        static TABLE: Table = Table::empty();
        let rule = Rule::new(Cfa::Sp(16), Saved::Unchanged).unwrap();
        let now = Generation::new(5, 3);
        TABLE.insert(0x1234_5678, now, rule);
        assert_eq!(TABLE.find(0x1234_5678, now), Some(rule));
        assert_eq!(TABLE.find(0x1234_5678, Generation::new(6, 3)), Some(rule));
        assert_eq!(TABLE.find(0x1234_5678, Generation::new(6, 4)), None);
        assert_eq!(TABLE.find(0x1234_5679, now), None);
        assert_eq!(TABLE.find(1 << 47, now), None);
    }

    #[test]
    fn an_unknown_address_is_asked_again_after_a_load() {
        static TABLE: Table = Table::empty();
        TABLE.insert(0x1234_5678, Generation::new(5, 3), Rule::outside(5));
        assert_eq!(TABLE.find(0x1234_5678, Generation::new(5, 3)), Some(Rule::outside(5)));
        assert_eq!(TABLE.find(0x1234_5678, Generation::new(6, 3)), None);
    }

    #[test]
    fn a_full_table_still_takes_rules() {
        static TABLE: Table = Table::empty();
        let now = Generation::new(5, 3);
        for pc in 0x5000_0000..0x5000_8000 {
            let rule = Rule::new(Cfa::Bp(16), Saved::AtCfa(-16)).unwrap();
            TABLE.insert(pc, now, rule);
            assert_eq!(TABLE.find(pc, now), Some(rule));
        }
    }
}
