//! Sums: by the library that asked, and by the pattern that leaves a leak out.

use std::fmt::Write;

use super::style::{Style, Tone, bytes, clean, plural};
use super::{Judged, State, Sum};

/// Libraries and patterns named; the others are one line.
const MOST: usize = 12;

/// Whose the leaks are. One library alone is said too: it tells the program's own from somebody else's.
pub(super) fn libraries(out: &mut String, title: &str, judged: &Judged, style: &Style) {
    rows(out, title, &judged.libraries(), style);
}

/// What is known, and left out of the verdict.
pub(super) fn suppressed(out: &mut String, judged: &Judged, style: &Style) {
    let sum = judged.sum(State::Suppressed);
    let title = format!("Suppressed: {} in {}", bytes(sum.bytes), plural(sum.count, "allocation"));
    rows(out, &title, &judged.suppressed(), style);
}

fn rows(out: &mut String, title: &str, list: &[(&str, Sum)], style: &Style) {
    if list.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, title));
    let mut shown: Vec<(String, Sum)> =
        list.iter().take(MOST).map(|(name, sum)| (clean(name), *sum)).collect();
    if let Some(rest) = list.get(MOST..).filter(|rest| !rest.is_empty()) {
        let mut sum = Sum::default();
        rest.iter().for_each(|(_, one)| sum.merge(*one));
        shown.push((format!("{} others", rest.len()), sum));
    }
    let width = shown.iter().map(|(_, sum)| plural(sum.count, "allocation").len()).max().unwrap_or(0);
    for (name, sum) in shown {
        let (size, count) = (bytes(sum.bytes), plural(sum.count, "allocation"));
        let name = style.fit(&name, 2 + 9 + 2 + width + 2);
        let _ = writeln!(out, "  {size:>9}  {count:<width$}  {name}");
    }
}
