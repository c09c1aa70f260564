//! What text and page say in the same words.

use super::model::{Comparison, Diff, Side, StackComparison, Verdict};
use super::stats::MIN_RUNS;
use crate::report::text::{Tone, bytes, clean, plural};

/// A difference with its sign and unit: `+4.00 MiB`.
pub fn signed(difference: i128) -> String {
    let size = bytes(u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX));
    match difference {
        0 => size,
        d if d < 0 => format!("-{size}"),
        _ => format!("+{size}"),
    }
}

/// `+33 %`; nothing where A has nothing to compare with.
pub fn percent(one: &Comparison) -> Option<String> {
    one.percent.filter(|_| one.difference != 0).map(|percent| match percent {
        p if p > 1000.0 => "more than +1000 %".to_owned(),
        p if p.abs() < 0.1 => "less than 0.1 %".to_owned(),
        p if p.abs() < 10.0 => format!("{p:+.1} %"),
        p => format!("{p:+.0} %"),
    })
}

/// `+4.00 MiB a run (+33 %)`.
pub fn change(one: &Comparison) -> String {
    let percent = percent(one).map(|percent| format!(" ({percent})")).unwrap_or_default();
    format!("{} a run{percent}", signed(one.difference))
}

/// `+3.90 MiB to +4.10 MiB`.
pub fn interval(one: &Comparison) -> Option<String> {
    one.interval.map(|bounds| format!("{} to {}", signed(bounds.low), signed(bounds.high)))
}

/// The answer in one sentence.
pub fn headline(diff: &Diff) -> (Tone, String) {
    let total = &diff.total;
    let change = change(total);
    let judged = match total.verdict {
        Verdict::Worse if total.beyond_threshold => {
            let threshold = match diff.threshold_percent {
                0.0 => String::new(),
                percent => format!(" and beyond the threshold of {percent} %"),
            };
            (Tone::Bad, format!("B leaks more than A: {change}, beyond noise{threshold}."))
        }
        Verdict::Worse => (
            Tone::Strong,
            format!(
                "B leaks more than A, within the threshold of {} %: {change}, beyond noise.",
                diff.threshold_percent
            ),
        ),
        Verdict::Better => (Tone::Good, format!("B leaks less than A: {change}, beyond noise.")),
        Verdict::Suspect => (
            Tone::Strong,
            "Some runs of B leak more than those of A, but fewer than half do: no verdict.".to_owned(),
        ),
        Verdict::Noise => (Tone::Good, format!("No difference beyond noise: {change}.")),
        Verdict::Same if total.a.median == 0 => (Tone::Good, "Neither A nor B leaks.".to_owned()),
        Verdict::Same => {
            (Tone::Good, format!("A and B leak the same: {} in every run.", bytes(total.a.median)))
        }
        Verdict::TooFewRuns => {
            (Tone::Strong, format!("Too few runs for a verdict. What was seen: {change}."))
        }
    };
    let worse = diff.stacks.iter().filter(|one| is_over(&one.comparison)).count();
    if worse == 0 || is_over(total) {
        return judged;
    }
    let stacks = plural(worse as u64, "call stack");
    if diff.failed {
        (Tone::Bad, format!("B is worse in {stacks}, though not in total. {}", judged.1))
    } else {
        (judged.0, format!("{} But {stacks} of B {} worse.", judged.1, if worse == 1 { "is" } else { "are" }))
    }
}

fn is_over(one: &Comparison) -> bool {
    one.verdict == Verdict::Worse && one.beyond_threshold
}

/// Why there is no verdict.
pub fn too_few(diff: &Diff) -> String {
    format!(
        "A has {} and B {}; a verdict needs {MIN_RUNS} of each. With {} of each, all of B lie above all of A in 2 of 20 \
         orders by chance alone, so nothing could be beyond noise.",
        plural(diff.a.runs as u64, "run"),
        plural(diff.b.runs as u64, "run"),
        MIN_RUNS - 1
    )
}

/// `driver 13.0, runtime 12.9; 10 runs`.
pub fn versions(side: &Side) -> String {
    let driver = side.driver_version.iter().map(|version| format!("driver {}", clean(version)));
    let runtimes = side.runtime_versions.iter().map(|version| format!("runtime {}", clean(version)));
    let mut list: Vec<String> = driver.chain(runtimes).collect();
    if list.is_empty() {
        list.push("versions of CUDA unknown".to_owned());
    }
    let processes = match side.processes == side.runs {
        true => String::new(),
        false => format!(" of {}", super::arm::processes(side.processes as u64)),
    };
    format!("{}; {}{processes}", list.join(", "), plural(side.runs as u64, "run"))
}

/// `arm=A, cuda=12.9`.
pub fn labels(side: &Side) -> String {
    let list: Vec<String> =
        side.labels.iter().map(|(key, value)| format!("{}={}", clean(key), clean(value))).collect();
    list.join(", ")
}

/// One word or two.
pub fn verdict(one: &Comparison) -> &'static str {
    match one.verdict {
        Verdict::Worse if one.beyond_threshold => "worse",
        Verdict::Worse => "worse, within the threshold",
        Verdict::Suspect => "perhaps worse",
        Verdict::TooFewRuns => "too few runs",
        Verdict::Better => "better",
        Verdict::Noise => "within noise",
        Verdict::Same => "the same",
    }
}

/// `worse, only in B`.
pub fn stack_verdict(one: &StackComparison) -> String {
    let only = one.only_in.map(|side| format!(", only in {}", side.to_ascii_uppercase())).unwrap_or_default();
    format!("{}{only}", verdict(&one.comparison))
}

/// `A 12.0 MiB in 10 of 10 runs, B 16.0 MiB in 10 of 10 runs`.
pub fn sides(one: &Comparison) -> String {
    let side = |values: &super::model::Values| {
        format!(
            "{} in {} of {}",
            bytes(values.median),
            values.runs_above_zero,
            plural(values.values.len() as u64, "run")
        )
    };
    format!("A {}, B {}", side(&one.a), side(&one.b))
}

/// The numbers beside the leak, as they are called in text.
pub fn other(name: &str) -> &str {
    match name {
        "peak_bytes" => "highest use",
        "context_bytes" => "contexts",
        "held_by_driver_bytes" => "held by driver",
        other => other,
    }
}

/// How the numbers came about.
pub fn method(diff: &Diff) -> Vec<String> {
    let tested = diff.stacks.iter().filter(|one| one.comparison.varies()).count();
    let exact = if diff.method.test.ends_with("exact") { ", exact" } else { "" };
    vec![
        "A and B are medians of runs. The difference is that of Hodges and Lehmann: the median of all differences between \
         a run of B and a run of A."
            .to_owned(),
        format!(
            "Beyond noise: the rank test of Mann and Whitney{exact}, two-sided at 5 %; for stacks with Holm's correction, \
             here for {tested}. An interval belongs to its row alone."
        ),
        match diff.each_stack {
            true => "The exit status is 1 where the total or a single call stack of B is worse.".to_owned(),
            false => "The exit status is 1 where the total of B is worse.".to_owned(),
        },
    ]
}
