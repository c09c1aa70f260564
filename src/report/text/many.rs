//! Reports of several processes: a table first, then those that have something to say.

use std::fmt::Write;

use super::style::{Style, Tone, bytes, clean, plural};
use super::{Extent, Judged, State, Sum, Termination, judged};

/// All reports of a folder.
pub fn many(reports: &[Judged], extent: Extent, style: &Style) -> String {
    let mut out = String::new();
    let (mut sum, mut suppressed) = (Sum::default(), Sum::default());
    for one in reports.iter().filter(|one| one.report.termination != Termination::Running) {
        sum.merge(one.sum(State::Leak));
        suppressed.merge(one.sum(State::Suppressed));
    }
    let mut sums = format!(
        "{}: {} not freed in {}",
        plural(reports.len() as u64, "process").replace("processs", "processes"),
        bytes(sum.bytes),
        plural(sum.count, "allocation")
    );
    if suppressed.count > 0 {
        let _ = write!(sums, ", and {} suppressed", bytes(suppressed.bytes));
    }
    let _ = writeln!(out, "{}", style.paint(if sum.count == 0 { Tone::Good } else { Tone::Bad }, &sums));
    let _ = writeln!(
        out,
        "\n{:>8}  {:<8} {:>11} {:>8} {:>7} {:>8}  PROGRAM",
        "PID", "STATE", "NOT FREED", "IN", "DENIED", "FAILURES"
    );
    for one in reports {
        let report = &one.report;
        let Sum { bytes: bytes_left, count, .. } = one.sum(State::Leak);
        let _ = writeln!(
            out,
            "{:>8}  {:<8} {:>11} {:>8} {:>7} {:>8}  {}",
            report.pid,
            state(report.termination),
            bytes(bytes_left),
            count,
            report.denied(),
            report.init_failures.len(),
            style.fit(&clean(&report.cmdline.join(" ")), 59)
        );
    }
    let says_something = |one: &&Judged| {
        let report = &one.report;
        report.leaked().1 > 0
            || report.denied() > 0
            || !report.init_failures.is_empty()
            || report.damaged_parts > 0
    };
    let telling: Vec<&Judged> = reports.iter().filter(says_something).collect();
    for one in telling.iter().take(extent.processes) {
        let _ = writeln!(out, "\n{}", "-".repeat(style.width.min(72)));
        out += &judged(one, extent, style);
    }
    if let Some(rest) = telling.get(extent.processes..).filter(|rest| !rest.is_empty()) {
        let _ =
            writeln!(out, "\n{} more with something to say. --all shows them, or name one file.", rest.len());
    }
    out
}

fn state(termination: Termination) -> &'static str {
    match termination {
        Termination::Exit => "ended",
        Termination::Killed => "killed",
        Termination::Running => "running",
        Termination::Unknown => "unknown",
    }
}
