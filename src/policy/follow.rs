//! What a child's environment gets, so that a program that scrubs it does not lose the shim.
//!
//! What counts is the environment that a process had at its own start ([`Start`]): that is the operator's. Nothing here
//! allocates: it runs between fork and exec, where any lock may be held for ever.

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: &[u8] = b"CUWARDEN_";
const LIMIT: &[u8] = b"CUWARDEN_MEMORY_LIMIT=";
const BASELINE: &[u8] = b"CUWARDEN_BASELINE=";
const NOT_FOLLOWED: &[u8] = b"CUWARDEN_FOLLOW=0";
const DISABLED: &[u8] = b"CUWARDEN_DISABLE=1";
const HAMI: &[u8] = b"CUDA_DEVICE_MEMORY_LIMIT";

/// Without `CUWARDEN_`: by these a program could get out of a limit or a baseline where the operator has not set them.
const LOOSEN: &[u8] =
    b"MEMORY_LIMIT= DIR= DISABLE= FOLLOW= COUNT_CONTEXT= PRIVATE_TABLES= BASELINE= BASELINE_MODE= BASELINE_ALLOW=";

/// So many of the entries that may matter are kept for children; further ones are the program's own affair.
pub const MOST_SETTINGS: usize = u64::BITS as usize;

/// True where an entry of an environment, by its first bytes, can be one that matters. Asked once for each entry of each
/// process: it is code, without strings to be fetched from elsewhere.
#[inline(always)]
pub fn may_matter(byte: impl Fn(usize) -> u8) -> bool {
    match byte(0) {
        b'C' => byte(1) == b'U' && matches!(byte(2), b'D' | b'W'),
        b'L' => byte(1) == b'D' && byte(2) == b'_',
        _ => false,
    }
}

/// With the `=` at the end of the name.
#[inline(never)]
fn name_and_value(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    entry.split_at_checked(entry.iter().position(|byte| *byte == b'=')? + 1)
}

fn is_hami(name: &[u8]) -> bool {
    name.strip_prefix(HAMI).is_some_and(|rest| matches!(rest.first(), Some(b'=' | b'_')))
}

/// What a process had at its start.
#[derive(Debug)]
pub struct Start<'a> {
    block: &'a [u8],
    /// Bit n: the n-th entry of the block is to be in every child.
    counted: u64,
    /// A limit or a baseline is set.
    is_bounded: bool,
    /// HAMi's variables gave the limit.
    is_hami: bool,
    preload: &'a [u8],
    /// The entry of that list by which the shim came; empty where it came another way.
    own: &'a [u8],
    /// The path by which the loader knows the shim.
    library: &'a [u8],
}

/// What is known of a child's environment after all its entries were noted.
#[derive(Default)]
pub struct Tally<'e> {
    seen: u64,
    has_others: bool,
    /// The last one, which the loader takes.
    preload: Option<(usize, &'e [u8])>,
}

/// What becomes of an entry of a child's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is none of our business.
    Stays,
    /// It is the setting of this number, as it was at the start.
    Setting(usize),
    /// It is left out: another value than at the start, or one that could loosen a limit.
    Goes,
    /// The loader's list.
    Preload,
}

/// How a child's environment is made complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan<'a> {
    /// Entries that the child's environment had.
    pub entries: usize,
    /// Bit n: the n-th setting is added.
    pub missing: u64,
    /// The new LD_PRELOAD, if any.
    pub preload: Option<Preload<'a>>,
}

/// A new LD_PRELOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preload<'a> {
    /// The number of the entry that it replaces.
    pub replaces: Option<usize>,
    /// The whole entry, in parts.
    pub parts: [&'a [u8]; 6],
}

impl<'a> Start<'a> {
    /// `block`: the entries that [`may_matter`], each with a null byte behind it. `library`: the path by which the loader
    /// knows the shim. `None`: children are left alone.
    #[inline(never)]
    pub fn new(block: &'a [u8], library: &'a [u8]) -> Option<Start<'a>> {
        let (mut ours, mut of_hami, mut has_limit, mut has_hami) = (0, 0, false, false);
        let mut start =
            Start { block, counted: 0, is_bounded: false, is_hami: false, preload: &[], own: &[], library };
        for Part { number, bytes: entry, .. } in start.settings() {
            if entry == NOT_FOLLOWED || entry == DISABLED {
                return None;
            }
            let Some((name, value)) = name_and_value(entry) else { continue };
            // An empty value counts as unset, as where the settings are read.
            let is_set = !value.is_empty();
            if name == PRELOAD {
                start.preload = value;
            } else if is_hami(name) {
                of_hami |= bit(number);
                has_hami |= is_set;
            } else if name.starts_with(OURS) {
                ours |= bit(number);
                has_limit |= is_set && name == LIMIT;
                start.is_bounded |= is_set && name == BASELINE;
            }
        }
        start.is_hami = has_hami && !has_limit;
        start.is_bounded |= has_limit || has_hami;
        start.counted = if start.is_hami { ours | of_hami } else { ours };
        start.own = own_entry(start.preload, library);
        Some(start)
    }

    fn settings(&self) -> Parts<'a> {
        Parts { whole: self.block, ends: [0, 0], at: 0, number: 0 }
    }

    /// A setting by its number, with a null byte behind it.
    pub fn setting(&self, number: usize) -> Option<&'a [u8]> {
        self.settings().find(|part| part.number == number).map(|part| part.bytes)
    }

    /// Takes note of the next entry of a child's environment that [`may_matter`]; `at` is its number.
    pub fn note<'e>(&self, tally: &mut Tally<'e>, at: usize, entry: &'e [u8]) {
        match self.fate(entry) {
            Fate::Stays => {}
            Fate::Setting(number) => tally.seen |= bit(number),
            Fate::Goes => tally.has_others = true,
            Fate::Preload => tally.preload = entry.strip_prefix(PRELOAD).map(|list| (at, list)),
        }
    }

    /// What becomes of an entry.
    pub fn fate(&self, entry: &[u8]) -> Fate {
        let Some((name, _)) = name_and_value(entry) else { return Fate::Stays };
        if name == PRELOAD {
            return Fate::Preload;
        }
        let mut is_another = false;
        for Part { number, bytes: kept, .. } in self.settings() {
            if self.counted & bit(number) != 0 {
                if kept == entry {
                    return Fate::Setting(number);
                }
                is_another |= kept.starts_with(name);
            }
        }
        let loosens = || self.is_bounded && (loosens(name) || self.is_hami && is_hami(name));
        if is_another || loosens() { Fate::Goes } else { Fate::Stays }
    }

    /// What a child's environment of so many entries lacks; `None` where it is complete.
    pub fn plan<'e>(&self, tally: &Tally<'e>, entries: usize) -> Option<Plan<'e>>
    where
        'a: 'e,
    {
        let missing = self.counted & !tally.seen;
        let preload = self.new_preload(tally.preload);
        let is_complete = missing == 0 && !tally.has_others && preload.is_none();
        (!is_complete).then_some(Plan { entries, missing, preload })
    }

    #[inline(never)]
    fn new_preload<'e>(&self, there: Option<(usize, &'e [u8])>) -> Option<Preload<'e>>
    where
        'a: 'e,
    {
        if self.own.is_empty() {
            return None;
        }
        let (replaces, list) = there.map_or((None, &[][..]), |(at, list)| (Some(at), list));
        let (head, tail) = list.split_at_checked(self.place_in(list)?)?;
        let colon = |needed: bool| if needed { &b":"[..] } else { &[] };
        let before = head.last().is_some_and(|last| !OF_PRELOAD.contains(last));
        let after = tail.first().is_some_and(|first| !OF_PRELOAD.contains(first));
        Some(Preload { replaces, parts: [PRELOAD, head, colon(before), self.own, colon(after), tail] })
    }

    /// Where the shim goes into another list: behind those that it was behind at the start, else before those that it was
    /// before, else at the end. `None`: it is there.
    #[inline(never)]
    fn place_in(&self, list: &[u8]) -> Option<usize> {
        let (mut behind, mut before) = (None, None);
        for Part { at, bytes: entry, .. } in entries_of(list) {
            if entry == self.own || entry == self.library {
                return None;
            }
            match self.was_first(entry) {
                Some(true) => behind = Some(at + entry.len()),
                Some(false) if before.is_none() => before = Some(at),
                _ => {}
            }
        }
        behind.or(before).or(Some(list.len()))
    }

    /// True where the entry came before the shim at the start, `None` where it was not there.
    fn was_first(&self, entry: &[u8]) -> Option<bool> {
        let mut first = true;
        for Part { bytes: known, .. } in entries_of(self.preload) {
            if known == entry {
                return Some(first);
            }
            first &= known != self.own;
        }
        None
    }
}

/// The bit of a setting; none of those that are too many.
fn bit(number: usize) -> u64 {
    if number < MOST_SETTINGS { 1 << number } else { 0 }
}

fn loosens(name: &[u8]) -> bool {
    let rest = name.strip_prefix(OURS);
    rest.is_some_and(|rest| {
        Parts { whole: LOOSEN, ends: [b' ', 0], at: 0, number: 0 }.any(|part| part.bytes == rest)
    })
}

/// Colons and blanks, and no other white space: as the loader reads LD_PRELOAD.
const OF_PRELOAD: [u8; 2] = [b':', b' '];

fn entries_of(list: &[u8]) -> Parts<'_> {
    Parts { whole: list, ends: OF_PRELOAD, at: 0, number: 0 }
}

/// The parts of something that are not empty.
struct Parts<'l> {
    whole: &'l [u8],
    /// Each part ends before one of these.
    ends: [u8; 2],
    at: usize,
    number: usize,
}

struct Part<'l> {
    number: usize,
    /// Where it begins.
    at: usize,
    bytes: &'l [u8],
}

impl<'l> Iterator for Parts<'l> {
    type Item = Part<'l>;

    #[inline(never)]
    fn next(&mut self) -> Option<Part<'l>> {
        let [one, other] = self.ends;
        let rest = self.whole.get(self.at..)?;
        let skipped = rest.iter().position(|byte| *byte != one && *byte != other)?;
        let rest = rest.get(skipped..)?;
        let length = rest.iter().position(|byte| *byte == one || *byte == other).unwrap_or(rest.len());
        let part = Part { number: self.number, at: self.at + skipped, bytes: rest.get(..length)? };
        self.at = part.at + length;
        self.number += 1;
        Some(part)
    }
}

/// The entry of the list that the loader found the library by: its path, or what leads there by the search path or by
/// `$LIB`.
fn own_entry<'l>(list: &'l [u8], library: &[u8]) -> &'l [u8] {
    let mut own: &[u8] = &[];
    for Part { bytes: entry, .. } in entries_of(list) {
        if entry == library {
            return entry;
        }
        if own.is_empty() && !library.is_empty() && file_of(entry) == file_of(library) {
            own = entry;
        }
    }
    own
}

fn file_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
