//! What a reader can do about a report.

use std::fmt::Write;

use super::super::library;
use super::style::{Style, Tone, bytes, clean, plural};
use super::{Judged, Leak, LeakClass, State, Sum, Termination, name, place, without_plumbing};

/// Names in running text: the list above has them in full.
const SHORT: Style = Style { colour: false, width: 80 };

pub(super) fn write(out: &mut String, judged: &Judged, style: &Style) {
    let lines = advice(judged);
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, "What to do"));
    for line in lines {
        let mut indent = "  - ";
        for part in style.for_words().wrap(&line, 4) {
            let _ = writeln!(out, "{indent}{part}");
            indent = "    ";
        }
    }
}

fn advice(judged: &Judged) -> Vec<String> {
    let report = &judged.report;
    let mut lines = Vec::new();
    let sum = judged.sum(State::Leak);
    // Of what grows the largest, since that is what ends a service.
    let growing = judged.of(State::Leak).find(|(leak, _)| leak.is_growing());
    let largest = growing.or(judged.of(State::Leak).next());
    if let (Some((largest, mark)), false) = (largest, report.termination == Termination::Running) {
        lines.push(start_here(largest, sum));
        if library::is_known(&mark.library) {
            lines.push(asked_by(&mark.library));
        }
        if !largest.stack.is_empty() && largest.stack.iter().all(|frame| frame.file.is_none()) {
            lines.push(no_lines(largest));
        }
    }
    if report.termination == Termination::Killed {
        lines.push(
            "The process did not reach its exit handlers, so this report comes from its record file. It is \
             exact but for a call that was in progress. The driver has taken the memory back."
                .to_owned(),
        );
    }
    for device in report.devices.iter().filter(|device| device.denied_count > 0) {
        lines.push(format!(
            "The quota of {} on GPU {} refused {}; the most in use was {}. Free memory earlier, or raise \
             CUWARDEN_MEMORY_LIMIT (--memory-limit).",
            bytes(device.limit_bytes),
            device.ordinal,
            plural(device.denied_count, "request"),
            bytes(device.peak_bytes),
        ));
    }
    let held = |class: LeakClass| report.leaks.iter().any(|leak| leak.class == class);
    if held(LeakClass::PoolReserve) {
        lines.push("A memory pool keeps what was freed into it. cudaMemPoolTrimTo gives it back.".to_owned());
    }
    if held(LeakClass::GraphReserve) {
        lines.push(
            "Memory of graphs stays for the next launch. cudaDeviceGraphMemTrim gives it back.".to_owned(),
        );
    }
    if report.lost_records > 0 {
        lines.push(format!(
            "{} could not be recorded, because memory or disk space was missing: the sums hold, the list of \
             call stacks is not complete. Make room in CUWARDEN_DIR.",
            plural(report.lost_records, "allocation")
        ));
    }
    if report.damaged_parts > 0 {
        let first = report.damages.first().map(|words| format!(" ({})", clean(words))).unwrap_or_default();
        lines.push(format!(
            "The record file is damaged: {} could not be believed and was left out{first}. What is shown is \
             what could be read.",
            plural(report.damaged_parts, "part")
        ));
    }
    lines
}

fn asked_by(library: &str) -> String {
    format!(
        "{} asked for it. If the program has ended its use of it (handles, communicators, sessions), free \
         it there. If it is meant to stay, leave it out: --suppressions FILE.",
        SHORT.fit(&clean(library), 40)
    )
}

fn start_here(leak: &Leak, sum: Sum) -> String {
    let Sum { bytes: leaked, count, .. } = sum;
    let share = if count == leak.count { "all of it" } else { "the largest part" };
    match without_plumbing(&leak.stack).iter().find(|frame| frame.function.is_some()) {
        Some(frame) => format!(
            "Start with {} ({}): it allocated {} of {}, {share}. Free it, or allocate it once and keep it.",
            SHORT.fit(&clean(&name(frame)), 0),
            SHORT.fit_left(&clean(&place(frame)), 0),
            bytes(leak.bytes),
            bytes(leaked),
        ),
        None => format!(
            "Start with the largest entry: {} of {}, {share}, by {}.",
            bytes(leak.bytes),
            bytes(leaked),
            clean(&leak.api)
        ),
    }
}

fn no_lines(leak: &Leak) -> String {
    let replaced = leak.stack.iter().filter_map(|frame| frame.problem.as_deref()).find(|problem| {
        // Said by the symbolizer of files that are not what ran.
        problem.contains("since") || problem.contains("gone")
    });
    match replaced {
        Some(problem) => format!(
            "There are no source lines, because {problem}. Make the report while the files are as they ran."
        ),
        None => "There are no source lines. Compile with -g, or install the debug information.".to_owned(),
    }
}
