//! A report with what is said of it: whose each leak is, what is known and left out, and which frames are folded.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::library;
use super::model::{Frame, Leak, Report};
use super::pattern::{self, Pattern};
use crate::growth::{Growth, GrowthClass};

/// What judges reports, and what it has seen.
#[derive(Default)]
pub struct Judge {
    suppressions: Vec<Pattern>,
    fold: Vec<Pattern>,
    used: Vec<bool>,
}

/// A report and what is said of it.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Its leaks are those of `marks`.
    pub report: Report,
    marks: Vec<Mark>,
}

/// What is said of one entry.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Whose it is.
    pub library: Cow<'static, str>,
    /// The pattern that leaves it out of the verdict.
    pub suppressed: Option<Arc<str>>,
}

/// How an entry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// In the verdict.
    Leak,
    /// Known, and left out by a pattern.
    Suppressed,
    /// The driver's.
    Held,
}

/// Several entries together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sum {
    /// Their bytes.
    pub bytes: u64,
    /// Their allocations.
    pub count: u64,
    /// Entries.
    pub stacks: u64,
}

impl Sum {
    /// Adds one entry.
    pub fn add(&mut self, leak: &Leak) {
        self.merge(Sum { bytes: leak.bytes, count: leak.count, stacks: 1 });
    }

    /// Adds what others have.
    pub fn merge(&mut self, other: Sum) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
        self.stacks = self.stacks.saturating_add(other.stacks);
    }
}

impl Judge {
    /// `suppressions` take leaks out of the verdict; frames that `fold` fits are taken out of call stacks.
    pub fn new(suppressions: Vec<Pattern>, fold: Vec<Pattern>) -> Judge {
        let used = vec![false; suppressions.len()];
        Judge { suppressions, fold, used }
    }

    /// Judges one report.
    pub fn judge(&mut self, mut report: Report) -> Judged {
        // Before anything is folded: who knows a leak may know it by one of those frames.
        let mut suppressed = pattern::find(&self.suppressions, &report.leaks, &mut self.used);
        if !self.fold.is_empty() {
            suppressed = self.fold_frames(&mut report, suppressed);
        }
        let marks = report.leaks.iter().zip(suppressed).map(|(leak, suppressed)| Mark {
            library: library::of(leak, &report.exe),
            // What the driver holds is in no verdict anyway.
            suppressed: suppressed.filter(|_| !leak.held_by_driver),
        });
        Judged { marks: marks.collect(), report }
    }

    /// The places of the suppressions that fitted nothing so far.
    pub fn unused(&self) -> impl Iterator<Item = usize> {
        self.used.iter().enumerate().filter(|(_, used)| !**used).map(|(place, _)| place)
    }

    /// Takes frames out, and puts entries together that differ in nothing else.
    fn fold_frames(&self, report: &mut Report, suppressed: Vec<Option<Arc<str>>>) -> Vec<Option<Arc<str>>> {
        let mut kept: Vec<(Leak, Option<Arc<str>>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (mut leak, suppressed) in std::mem::take(&mut report.leaks).into_iter().zip(suppressed) {
            let folded = |frame: &Frame| self.fold.iter().any(|pattern| pattern.fits_frame(frame));
            // A stack of which nothing would be left is better than none.
            if !leak.stack.iter().all(folded) {
                leak.stack.retain(|frame| !folded(frame));
            }
            let place = *places.entry(identity(&leak, suppressed.as_deref())).or_insert(kept.len());
            match kept.get_mut(place) {
                Some((same, _)) => {
                    same.bytes = same.bytes.saturating_add(leak.bytes);
                    same.count = same.count.saturating_add(leak.count);
                    same.oldest_age_s = same.oldest_age_s.max(leak.oldest_age_s);
                    same.newest_age_s = same.newest_age_s.min(leak.newest_age_s);
                    same.growth = together(same.growth, leak.growth);
                    let longer = leak.timeline.len().saturating_sub(same.timeline.len());
                    same.timeline.extend(std::iter::repeat_n(0, longer));
                    for (sum, bytes) in same.timeline.iter_mut().zip(&leak.timeline) {
                        *sum = sum.saturating_add(*bytes);
                    }
                }
                None => kept.push((leak, suppressed)),
            }
        }
        // Largest first again; the order of equals is as before.
        kept.sort_by_key(|(leak, _)| (Reverse(leak.bytes), Reverse(leak.count)));
        let (leaks, suppressed) = kept.into_iter().unzip();
        report.leaks = leaks;
        suppressed
    }
}

/// What two entries are together: growing where one of them is, and one-off where both are.
fn together(one: Option<Growth>, other: Option<Growth>) -> Option<Growth> {
    let (one, other) = (one?, other?);
    let class = match (one.class, other.class) {
        (GrowthClass::Growing, _) | (_, GrowthClass::Growing) => GrowthClass::Growing,
        (a, b) if a == b => a,
        _ => GrowthClass::Steady,
    };
    Some(Growth { class, bytes_a_minute: one.bytes_a_minute + other.bytes_a_minute })
}

/// All that must be the same for two entries to be one.
fn identity(leak: &Leak, suppressed: Option<&str>) -> String {
    let frames: Vec<_> = leak
        .stack
        .iter()
        .map(|frame| {
            // Within a function the line tells places apart, as far as it is known.
            let place = if frame.line.is_some() { 0 } else { frame.offset };
            (&frame.module, &frame.function, &frame.file, frame.line, place)
        })
        .collect();
    let rest = (leak.device, &leak.api, &leak.driver_api, leak.class, leak.held_by_driver, &leak.runtime);
    format!("{frames:?} {rest:?} {suppressed:?}")
}

impl Judged {
    /// A report as it is: nothing is left out.
    pub fn plain(report: Report) -> Judged {
        Judge::default().judge(report)
    }

    /// All entries, largest first.
    pub fn entries(&self) -> impl Iterator<Item = (&Leak, &Mark, State)> {
        self.report.leaks.iter().zip(&self.marks).map(|(leak, mark)| {
            let state = match (leak.held_by_driver, &mark.suppressed) {
                (true, _) => State::Held,
                (false, Some(_)) => State::Suppressed,
                (false, None) => State::Leak,
            };
            (leak, mark, state)
        })
    }

    /// Entries of one state.
    pub fn of(&self, wanted: State) -> impl Iterator<Item = (&Leak, &Mark)> {
        self.entries().filter(move |(.., state)| *state == wanted).map(|(leak, mark, _)| (leak, mark))
    }

    /// Their sum.
    pub fn sum(&self, wanted: State) -> Sum {
        let mut sum = Sum::default();
        self.of(wanted).for_each(|(leak, _)| sum.add(leak));
        sum
    }

    /// What counts as leaked and was growing to the end, with its pace in bytes a minute.
    pub fn growing(&self) -> (Sum, f64) {
        let mut sum = (Sum::default(), 0.0);
        for (leak, _) in self.of(State::Leak).filter(|(leak, _)| leak.is_growing()) {
            sum.0.add(leak);
            sum.1 += leak.growth.map_or(0.0, |growth| growth.bytes_a_minute);
        }
        sum
    }

    /// What counts as leaked, by library, largest first.
    pub fn libraries(&self) -> Vec<(&str, Sum)> {
        sums(self.of(State::Leak).map(|(leak, mark)| (&*mark.library, leak)))
    }

    /// What is left out, by pattern, largest first.
    pub fn suppressed(&self) -> Vec<(&str, Sum)> {
        sums(
            self.of(State::Suppressed)
                .map(|(leak, mark)| (mark.suppressed.as_deref().unwrap_or_default(), leak)),
        )
    }
}

fn sums<'a>(entries: impl Iterator<Item = (&'a str, &'a Leak)>) -> Vec<(&'a str, Sum)> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    entries.for_each(|(name, leak)| sums.entry(name).or_default().add(leak));
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| Reverse(*sum));
    sums
}
