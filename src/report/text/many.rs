//! Reports of several processes: a table first, then those that have something to say.

use std::fmt::Write;

use super::style::{Style, Tone, bytes, clean, plural};
use super::{Report, Termination, one};

/// Processes shown in full.
const IN_FULL: usize = 5;

/// All reports of a folder.
pub fn many(reports: &[Report], style: &Style) -> String {
    let mut out = String::new();
    let ended = |report: &&Report| report.termination != Termination::Running;
    let (leaked, count) = reports.iter().filter(ended).fold((0u64, 0u64), |(bytes, count), report| {
        let (b, c) = report.leaked();
        (bytes.saturating_add(b), count.saturating_add(c))
    });
    let sums = format!(
        "{}: {} not freed in {}",
        plural(reports.len() as u64, "process").replace("processs", "processes"),
        bytes(leaked),
        plural(count, "allocation")
    );
    let _ = writeln!(out, "{}", style.paint(if count == 0 { Tone::Good } else { Tone::Bad }, &sums));
    let _ = writeln!(
        out,
        "\n{:>8}  {:<8} {:>11} {:>8} {:>7} {:>8}  PROGRAM",
        "PID", "STATE", "NOT FREED", "IN", "DENIED", "FAILURES"
    );
    for report in reports {
        let (bytes_left, count) = report.leaked();
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
    let telling: Vec<&Report> = reports
        .iter()
        .filter(|r| r.leaked().1 > 0 || r.denied() > 0 || !r.init_failures.is_empty() || r.damaged_parts > 0)
        .collect();
    for report in telling.iter().take(IN_FULL) {
        let _ = writeln!(out, "\n{}", "-".repeat(style.width.min(72)));
        out += &one(report, style);
    }
    if telling.len() > IN_FULL {
        let _ = writeln!(
            out,
            "\n{} more with something to say. Name one file, or use --format json.",
            telling.len() - IN_FULL
        );
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
