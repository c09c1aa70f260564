//! What the targets share.

pub mod image;
pub mod memory_file;
pub mod take;

use cuwarden::report::judged::Judged;
use cuwarden::report::text::{self, Extent, Style};
use cuwarden::report::{Report, folded, html, json, model::SCHEMA, pprof};

/// Everything that is made of a report: the text, JSON, and the other formats.
///
/// # Panics
/// If one of them is not what a terminal or another reader can take.
pub fn show(reports: &[Report], style: &Style) {
    let mut texts: Vec<String> = reports.iter().map(|report| text::one(report, style)).collect();
    let judged: Vec<Judged> = reports.iter().cloned().map(Judged::plain).collect();
    texts.push(text::many(&judged, Extent::ALL, style));
    texts.push(folded::folded(&judged));
    let page = html::html(&judged).expect("a report can be written as a page");
    assert_eq!(page.matches("<script").count(), 2, "a report brings markup into the page");
    pprof::pprof(&judged).expect("a report can be written as a profile");
    for text in texts {
        // What programs call themselves must not reach the terminal as commands.
        let bad = text.chars().find(|&c| c.is_control() && c != '\n' && !(style.colour && c == '\x1b'));
        assert_eq!(bad, None, "in the text of a report:\n{text:?}");
    }
    for report in reports {
        let shown = Judged::plain(report.clone());
        let json = serde_json::to_string_pretty(&json::shown(&shown)).expect("a report can be written as JSON");
        let mut again: Report = serde_json::from_str(&json).expect("a report's own JSON can be read");
        assert_eq!(again.schema, report.schema);
        // serde_json's reading of decimals may differ in the last digit.
        for (leak, first) in again.leaks.iter_mut().zip(&report.leaks) {
            assert!((leak.oldest_age_s - first.oldest_age_s).abs() <= first.oldest_age_s.abs() * 1e-12);
            leak.oldest_age_s = first.oldest_age_s;
        }
        // Floats in the free-form part differ in the same way, and are not ours.
        again.init_failures.clone_from(&report.init_failures);
        assert!(again == *report, "a report changes when it is written and read");
    }
}

/// One of several styles: the same for the same input. All of them each time would take the fuzzer's time.
pub fn style_for(input: &[u8]) -> Style {
    match input.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte)) % 4 {
        0 => Style::PLAIN,
        1 => Style { colour: false, width: 80 },
        2 => Style { colour: true, width: 200 },
        _ => Style { colour: true, width: 0 },
    }
}

/// A report that a reader may be given: it has the schema.
pub fn is_report(report: &Report) -> bool {
    report.schema == SCHEMA
}
