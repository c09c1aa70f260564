//! The answer as one page that needs nothing else. Names in it come from files that anybody may have written: every text
//! is escaped, and no script runs.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::model::{Comparison, Diff, Side, StackComparison, Verdict};
use super::words;
use crate::report::model::Frame;
use crate::report::text::{Tone, bytes, clean};

const STYLE: &str = include_str!("diff.css");

/// Width of the picture of the runs.
const PICTURE: f64 = 240.0;

/// The whole page.
pub fn page(diff: &Diff) -> String {
    let (tone, headline) = words::headline(diff);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "cuwarden diff" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 class=(class(tone)) { (headline) }
                @if diff.total.verdict == Verdict::TooFewRuns { p { (words::too_few(diff)) } }
                div.sides { (side("A", &diff.a)) (side("B", &diff.b)) }
                (totals(diff))
                @if !diff.stacks.is_empty() {
                    h2 { "Call stacks, the largest worsening first" }
                    @for one in &diff.stacks { (stack(one)) }
                }
                @if !diff.notes.is_empty() { h2 { "To know" } ul { @for note in &diff.notes { li { (note) } } } }
                h2 { "How to read this" }
                ul { @for line in words::method(diff) { li { (line) } } }
            }
        }
    }
    .into_string()
        + "\n"
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Bad => "bad",
        Tone::Good => "good",
        Tone::Strong | Tone::Faint => "plain",
    }
}

fn side(name: &str, side: &Side) -> Markup {
    html! {
        section {
            h2 { (name) }
            p { code { (clean(&side.path)) } }
            @if !side.labels.is_empty() { p { (words::labels(side)) } }
            p { (words::versions(side)) }
            @if !side.devices.is_empty() { p { (clean(&side.devices.join(", "))) } }
        }
    }
}

fn totals(diff: &Diff) -> Markup {
    html! {
        div.wide { table {
            thead { tr { th { "in a run" } th { "A" } th { "B" } th { "difference" } th { "95 % interval" } th { "runs" } } }
            tbody {
                (row("leaked", &diff.total))
                @for (name, one) in &diff.others {
                    @if one.a.median > 0 || one.b.median > 0 { (row(words::other(name), one)) }
                }
            }
        } }
        p.faint { "Only what is leaked is judged." }
    }
}

fn row(name: &str, one: &Comparison) -> Markup {
    html! {
        tr {
            th { (name) }
            td { (bytes(one.a.median)) }
            td { (bytes(one.b.median)) }
            td { (words::signed(one.difference)) @if let Some(percent) = words::percent(one) { " (" (percent) ")" } }
            td { (words::interval(one).unwrap_or_else(|| "too few runs".to_owned())) }
            td { (picture(one)) }
        }
    }
}

fn stack(one: &StackComparison) -> Markup {
    let comparison = &one.comparison;
    let class = match comparison.verdict {
        Verdict::Worse if comparison.beyond_threshold => "bad",
        Verdict::Better => "good",
        _ => "plain",
    };
    let open = matches!(comparison.verdict, Verdict::Worse | Verdict::Suspect | Verdict::TooFewRuns);
    html! {
        details open[open] {
            summary {
                span class=(class) { (words::stack_verdict(one)) } ": "
                @if comparison.verdict == Verdict::Same { (bytes(comparison.a.median)) " a run" }
                @else { (words::change(comparison)) }
                " " code.faint { (beginning(one)) }
            }
            p { (words::sides(comparison)) }
            @if let Some(interval) = words::interval(comparison) { p { "95 % interval " (interval) } }
            p { "by " (clean(&one.apis.join(", "))) }
            (picture(comparison))
            ol { @for frame in &one.example { li { (place(frame)) } } }
            @if !one.by_module_alone.is_empty() {
                p.faint {
                    "Matched by library alone in " (clean(&one.by_module_alone.join(", ")))
                    ": there are no function names, and the builds differ or are unknown."
                }
            }
        }
    }
}

fn name(frame: &Frame) -> String {
    frame.function.as_deref().map_or_else(|| format!("{:#x}", frame.offset), clean)
}

/// What tells a closed stack from the others.
fn beginning(one: &StackComparison) -> String {
    const SHOWN: usize = 3;
    let names: Vec<String> = one.example.iter().take(SHOWN).map(name).collect();
    names.join(" < ")
}

fn place(frame: &Frame) -> Markup {
    let name = name(frame);
    let file = frame.file.as_deref().map(|file| clean(file.strip_prefix("./").unwrap_or(file)));
    let file = match (file, frame.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file,
        (None, _) => frame.module.as_deref().map_or_else(|| "unknown module".to_owned(), clean),
    };
    html! { code { (name) } " " span.faint { (file) } }
}

/// A dot for each run, A above B, on one scale that begins at 0.
fn picture(one: &Comparison) -> Markup {
    let most = one.a.values.iter().chain(&one.b.values).max().copied().unwrap_or(0).max(1);
    let dots = |values: &[u64], y: u8| {
        html! {
            @for value in values {
                circle cx=(format!("{:.1}", 20.0 + *value as f64 / most as f64 * (PICTURE - 30.0))) cy=(y) r="4" {}
            }
        }
    };
    html! {
        svg width=(PICTURE) height="34" viewBox=(format!("0 0 {PICTURE} 34")) role="img"
            aria-label=(format!("runs from 0 to {}", bytes(most))) {
            text x="0" y="13" { "A" }
            text x="0" y="29" { "B" }
            g.a { (dots(&one.a.values, 9)) }
            g.b { (dots(&one.b.values, 25)) }
        }
        span.faint { "0 to " (bytes(most)) }
    }
}
