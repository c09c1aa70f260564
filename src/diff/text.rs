//! The answer for people.

use std::fmt::Write;

use super::model::{Comparison, Diff, Side, StackComparison, Verdict};
use super::words;
use crate::report::text::{Style, TOP_FRAMES, Tone, bytes, clean, frames, plural};

/// Call stacks shown in full.
const TOP_STACKS: usize = 10;
/// Columns of running text, also where there is no terminal.
const COLUMNS: usize = 80;

/// The whole answer.
pub fn text(diff: &Diff, style: &Style) -> String {
    let mut out = String::new();
    let (tone, headline) = words::headline(diff);
    for line in wrap(style, &headline, 0) {
        let _ = writeln!(out, "{}", style.paint(tone, &line));
    }
    if diff.total.verdict == Verdict::TooFewRuns {
        wrap(style, &words::too_few(diff), 0).iter().for_each(|line| out += &format!("{line}\n"));
    }
    let _ = writeln!(out);
    side(&mut out, "A", &diff.a, style);
    side(&mut out, "B", &diff.b, style);
    table(&mut out, diff, style);
    stacks(&mut out, diff, style);
    list(&mut out, "To know", &diff.notes, style);
    list(&mut out, "How to read this", &words::method(diff), style);
    out
}

fn wrap(style: &Style, text: &str, used: usize) -> Vec<String> {
    Style { width: style.width.min(COLUMNS), ..*style }.wrap(text, used)
}

fn side(out: &mut String, name: &str, side: &Side, style: &Style) {
    let _ = writeln!(out, "{}  {}", style.paint(Tone::Strong, name), style.fit_left(&clean(&side.path), 3));
    let labels = words::labels(side);
    if !labels.is_empty() {
        let _ = writeln!(out, "   {}", style.fit(&labels, 3));
    }
    let _ = writeln!(out, "   {}", style.fit(&words::versions(side), 3));
    if !side.devices.is_empty() {
        let _ = writeln!(out, "   {}", style.fit(&clean(&side.devices.join(", ")), 3));
    }
}

fn table(out: &mut String, diff: &Diff, style: &Style) {
    let interval = if diff.total.interval.is_some() { "95 % interval" } else { "" };
    let head = format!("\n{:<17}{:>11}{:>11}{:>12}   {interval}", "in a run", "A", "B", "difference");
    let _ = writeln!(out, "{}", head.trim_end());
    let mut row = |name: &str, one: &Comparison, tone: Option<Tone>| {
        let line = format!(
            "{name:<17}{:>11}{:>11}{:>12}   {}",
            bytes(one.a.median),
            bytes(one.b.median),
            words::signed(one.difference),
            words::interval(one).unwrap_or_default()
        );
        let line = line.trim_end();
        let _ = writeln!(out, "{}", tone.map_or_else(|| line.to_owned(), |tone| style.paint(tone, line)));
    };
    row("leaked", &diff.total, Some(Tone::Strong));
    let others: Vec<_> = diff.others.iter().filter(|(_, one)| one.a.median > 0 || one.b.median > 0).collect();
    for (name, one) in &others {
        row(words::other(name), one, None);
    }
    if !others.is_empty() {
        let _ = writeln!(out, "{}", style.paint(Tone::Faint, "Only what is leaked is judged."));
    }
}

fn stacks(out: &mut String, diff: &Diff, style: &Style) {
    if diff.stacks.is_empty() {
        return;
    }
    let (same, differing): (Vec<_>, Vec<_>) =
        diff.stacks.iter().partition(|one| one.comparison.verdict == Verdict::Same);
    if !differing.is_empty() {
        let title = "Call stacks, the largest worsening first";
        let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, title));
        for (index, one) in differing.iter().take(TOP_STACKS).enumerate() {
            stack(out, index + 1, one, style);
        }
    } else {
        let _ = writeln!(out);
    }
    let more = differing.len().saturating_sub(TOP_STACKS) as u64;
    if more > 0 {
        let _ = writeln!(out, "     {} more. --format json lists all.", plural(more, "call stack"));
    }
    if !same.is_empty() {
        let sum = same.iter().fold(0u64, |sum, one| sum.saturating_add(one.comparison.a.median));
        let _ = writeln!(
            out,
            "     {} the same in all runs of A and B: {} together.",
            match same.len() {
                1 => "1 call stack is".to_owned(),
                count => format!("{count} call stacks are"),
            },
            bytes(sum)
        );
    }
}

fn stack(out: &mut String, number: usize, one: &StackComparison, style: &Style) {
    let comparison = &one.comparison;
    let tone = match comparison.verdict {
        Verdict::Worse if comparison.beyond_threshold => Tone::Bad,
        Verdict::Better => Tone::Good,
        _ => Tone::Strong,
    };
    let verdict = style.paint(tone, &words::stack_verdict(one));
    let _ = writeln!(out, "{number:>3}. {verdict}: {}", words::change(comparison));
    let _ = writeln!(out, "     {}", words::sides(comparison));
    let apis = clean(&one.apis.join(", "));
    let by = match words::interval(comparison) {
        Some(interval) => format!("95 % interval {interval}; by {apis}"),
        None => format!("by {apis}"),
    };
    let _ = writeln!(out, "     {}", style.fit(&by, 5));
    frames(out, &one.example, TOP_FRAMES, style);
    if !one.by_module_alone.is_empty() {
        let names = clean(&one.by_module_alone.join(", "));
        let text = format!(
            "Matched by library alone in {names}: there are no function names, and the builds differ or are unknown."
        );
        for line in wrap(style, &text, 7) {
            let _ = writeln!(out, "       {}", style.paint(Tone::Faint, &line));
        }
    }
}

fn list(out: &mut String, title: &str, lines: &[String], style: &Style) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, title));
    for line in lines {
        let mut indent = "  - ";
        for part in wrap(style, line, 4) {
            let _ = writeln!(out, "{indent}{part}");
            indent = "    ";
        }
    }
}
