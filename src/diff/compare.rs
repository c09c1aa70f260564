//! From two arms to the answer.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::arm::Arm;
use super::model::{
    Bounds, Comparison, Diff, Measure, Method, SCHEMA, Side, StackComparison, Values, Verdict,
};
use super::stack::{Builds, Stack};
use super::stats::{self, CONFIDENCE, EXACT_UP_TO, MIN_RUNS, RankTest};
use crate::report::Report;
use crate::report::model::{Frame, Leak};
use crate::report::text::{clean, without_plumbing};

/// What the caller wants to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// How much worse B may be, in percent of the median of A.
    pub threshold_percent: f64,
    /// A single stack that is worse fails too.
    pub each_stack: bool,
}

/// Libraries named in one note.
const NAMED: usize = 3;

/// Compares two arms; each has a run at least.
pub fn compare(a: &Arm, b: &Arm, rules: Rules) -> Diff {
    let builds = Builds::of(&a.reports(), &b.reports());
    let judge = Judge { test: RankTest::new(a.runs.len(), b.runs.len()), rules };
    let number = |of: &dyn Fn(&Report) -> u64| judge.compare(&per_run(a, of), &per_run(b, of));
    let total = number(&|report| report.leaked().0);
    let devices = |report: &Report, of: &dyn Fn(&crate::report::model::Device) -> u64| {
        report.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(of(device)))
    };
    let others = BTreeMap::from([
        ("peak_bytes", number(&|report| devices(report, &|device| device.peak_bytes))),
        ("context_bytes", number(&|report| devices(report, &|device| device.context_bytes))),
        ("held_by_driver_bytes", number(&|report| report.held().0)),
    ]);
    let stacks = stacks(a, b, &builds, &judge);
    let is_over = |one: &Comparison| one.verdict == Verdict::Worse && one.beyond_threshold;
    let failed = is_over(&total) || rules.each_stack && stacks.iter().any(|one| is_over(&one.comparison));
    let mut notes: Vec<String> = a.notes.iter().chain(&b.notes).cloned().collect();
    notes.extend(doubts(a, b, &builds));
    Diff {
        schema: SCHEMA,
        method: Method {
            test: match a.runs.len() + b.runs.len() <= EXACT_UP_TO {
                true => "mann-whitney-exact",
                false => "mann-whitney",
            },
            difference: "hodges-lehmann",
            correction: "holm",
            confidence: CONFIDENCE,
            min_runs: MIN_RUNS,
        },
        threshold_percent: rules.threshold_percent,
        each_stack: rules.each_stack,
        failed,
        a: side(a),
        b: side(b),
        total,
        stacks,
        others,
        notes,
    }
}

fn side(arm: &Arm) -> Side {
    Side {
        path: arm.path.clone(),
        labels: arm.labels.clone(),
        driver_version: arm.driver_version.clone(),
        runtime_versions: arm.runtime_versions.clone(),
        devices: arm.devices.clone(),
        runs: arm.runs.len(),
        processes: arm.runs.iter().map(Vec::len).sum(),
    }
}

/// The sum over the processes of each run.
fn per_run(arm: &Arm, of: &dyn Fn(&Report) -> u64) -> Vec<u64> {
    let sum = |run: &Vec<Report>| run.iter().fold(0, |sum: u64, report| sum.saturating_add(of(report)));
    arm.runs.iter().map(sum).collect()
}

struct Judge {
    test: RankTest,
    rules: Rules,
}

impl Judge {
    fn compare(&self, a: &[u64], b: &[u64]) -> Comparison {
        let shift = self.test.compare(a, b);
        let difference = shift.as_ref().map_or(0, |shift| shift.estimate);
        let values = |values: &[u64], median: Option<u64>| {
            let mut sorted = values.to_vec();
            sorted.sort_unstable();
            let runs_above_zero = sorted.iter().filter(|value| **value > 0).count();
            Values { median: median.unwrap_or(0), runs_above_zero, values: sorted }
        };
        let (a, b) = (
            values(a, shift.as_ref().map(|shift| shift.medians.0)),
            values(b, shift.as_ref().map(|shift| shift.medians.1)),
        );
        let allowed = self.rules.threshold_percent / 100.0 * a.median as f64;
        let mut comparison = Comparison {
            measure: Measure::BytesPerRun,
            percent: (a.median > 0).then(|| difference as f64 / a.median as f64 * 100.0),
            difference,
            interval: shift.as_ref().and_then(|shift| shift.interval).map(|interval| Bounds {
                low: interval.low,
                high: interval.high,
                confidence: interval.confidence,
            }),
            p: shift.as_ref().and_then(|shift| shift.p),
            p_corrected: None,
            verdict: Verdict::TooFewRuns,
            beyond_threshold: difference > 0 && difference as f64 > allowed,
            a,
            b,
        };
        let direction = shift.map_or(Ordering::Equal, |shift| shift.direction);
        self.decide(&mut comparison, direction, None);
        comparison
    }

    /// With the probability corrected for other comparisons, if there are any.
    fn decide(&self, one: &mut Comparison, direction: Ordering, corrected: Option<f64>) {
        one.p_corrected = corrected.or(one.p);
        let (Some(p), Some(corrected)) = (one.p, one.p_corrected) else { return };
        let sure = stats::beyond_noise(corrected);
        one.verdict = match direction {
            _ if !one.varies() => Verdict::Same,
            _ if !stats::beyond_noise(p) => Verdict::Noise,
            Ordering::Greater if sure && one.difference > 0 => Verdict::Worse,
            Ordering::Greater => Verdict::Suspect,
            Ordering::Less if sure && one.difference < 0 => Verdict::Better,
            _ => Verdict::Noise,
        };
    }
}

impl Comparison {
    /// Whether any run differs from any other.
    pub fn varies(&self) -> bool {
        let mut all = self.a.values.iter().chain(&self.b.values);
        let first = all.next();
        all.any(|value| Some(value) != first)
    }

    /// Which side has the higher ranks.
    fn direction(&self) -> Ordering {
        let pairs = self.b.values.iter().flat_map(|b| self.a.values.iter().map(move |a| b.cmp(a)));
        let balance: i64 = pairs.map(|order| order as i64).sum();
        balance.cmp(&0)
    }
}

/// What a stack has been seen with.
#[derive(Default)]
struct Seen {
    a: Vec<u64>,
    b: Vec<u64>,
    apis: BTreeSet<String>,
    example: Option<(u8, Vec<Frame>)>,
}

fn stacks(a: &Arm, b: &Arm, builds: &Builds, judge: &Judge) -> Vec<StackComparison> {
    let mut all: BTreeMap<Stack, Seen> = BTreeMap::new();
    for (arm, is_b) in [(a, false), (b, true)] {
        for (place, run) in arm.runs.iter().enumerate() {
            for leak in run.iter().flat_map(|report| &report.leaks).filter(|leak| !leak.held_by_driver) {
                let seen = all.entry(Stack::of(leak, builds)).or_default();
                let (side, runs) =
                    if is_b { (&mut seen.b, b.runs.len()) } else { (&mut seen.a, a.runs.len()) };
                side.resize(runs, 0);
                if let Some(sum) = side.get_mut(place) {
                    *sum = sum.saturating_add(measured(leak));
                }
                seen.apis.insert(leak.api.clone());
                seen.show(leak, is_b);
            }
        }
    }
    let mut list: Vec<StackComparison> = all
        .into_iter()
        .map(|(stack, mut seen)| {
            let only_in = match (seen.a.is_empty(), seen.b.is_empty()) {
                (true, _) => Some("b"),
                (_, true) => Some("a"),
                _ => None,
            };
            seen.a.resize(a.runs.len(), 0);
            seen.b.resize(b.runs.len(), 0);
            StackComparison {
                by_module_alone: stack.by_module_alone().into_iter().map(str::to_owned).collect(),
                comparison: judge.compare(&seen.a, &seen.b),
                stack: stack.steps,
                apis: seen.apis.into_iter().collect(),
                only_in,
                example: seen.example.map(|(_, frames)| frames).unwrap_or_default(),
            }
        })
        .collect();
    correct(&mut list, judge);
    // What has the same place stays in the order of the stacks themselves.
    list.sort_by_key(|one| {
        let difference = one.comparison.difference;
        let verdict = one.comparison.verdict;
        (verdict, if verdict == Verdict::Better { difference } else { -difference })
    });
    list
}

/// What is compared of a leak. Bytes in a run are all that reports tell today; the rate of one that grows will be
/// chosen here.
fn measured(leak: &Leak) -> u64 {
    leak.bytes
}

impl Seen {
    /// Keeps one stack as it was: of B before one of A, and of several always the same one.
    fn show(&mut self, leak: &Leak, is_b: bool) {
        let place = |frames: &[Frame]| -> Vec<_> {
            frames
                .iter()
                .map(|f| (f.function.clone(), f.file.clone(), f.line, f.module.clone(), f.offset))
                .collect()
        };
        let frames = without_plumbing(&leak.stack);
        let side = u8::from(!is_b);
        let is_better =
            self.example.as_ref().is_none_or(|(of, shown)| (side, place(frames)) < (*of, place(shown)));
        if is_better {
            self.example = Some((side, frames.to_vec()));
        }
    }
}

/// Stacks that are the same in all runs could never have looked different, so they do not count as tests.
fn correct(list: &mut [StackComparison], judge: &Judge) {
    let mut tested: Vec<&mut Comparison> =
        list.iter_mut().map(|one| &mut one.comparison).filter(|one| one.varies()).collect();
    let p: Vec<f64> = tested.iter().filter_map(|one| one.p).collect();
    for (one, corrected) in tested.iter_mut().zip(stats::corrected(&p)) {
        let direction = one.direction();
        judge.decide(one, direction, Some(corrected));
    }
}

fn doubts(a: &Arm, b: &Arm, builds: &Builds) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((one, other)) = builds.renamed_program() {
        notes.push(format!(
            "The program is {} in A and {} in B. Their functions were compared as those of one program.",
            clean(one),
            clean(other)
        ));
    }
    if let Some(arm) = a.labels.get("arm").filter(|arm| b.labels.get("arm") == Some(arm)) {
        notes.push(format!("Both sides have the label arm={}.", clean(arm)));
    }
    let (in_a, in_b) = (Names::of(a, builds), Names::of(b, builds));
    for (one, other, which, rest) in [(&in_a, &in_b, "A", "B"), (&in_b, &in_a, "B", "A")] {
        let lacking: Vec<String> = one.without.difference(&one.with).cloned().collect();
        let lacking: Vec<&String> = lacking.iter().filter(|module| other.with.contains(*module)).collect();
        if !lacking.is_empty() {
            let list: Vec<String> = lacking.iter().take(NAMED).map(|module| clean(module)).collect();
            let more = if lacking.len() > NAMED { " and others" } else { "" };
            notes.push(format!(
                "{which} has no function names of {}{more}, and {rest} has, so their stacks do not match. Make the reports \
                 where the files are as they ran: cuwarden report --format json DIR > arm.json",
                list.join(", ")
            ));
        }
    }
    notes
}

/// Files of which there are function names, and of which names are missing.
#[derive(Default)]
struct Names {
    with: BTreeSet<String>,
    without: BTreeSet<String>,
}

impl Names {
    fn of(arm: &Arm, builds: &Builds) -> Names {
        let mut names = Names::default();
        let leaks = arm.runs.iter().flatten().flat_map(|report| &report.leaks);
        for frame in leaks.flat_map(|leak| without_plumbing(&leak.stack)) {
            let Some(module) = frame.module.as_deref() else { continue };
            let side = if frame.function.is_some() { &mut names.with } else { &mut names.without };
            side.insert(builds.name(module));
        }
        names
    }
}

#[cfg(test)]
mod tests;
