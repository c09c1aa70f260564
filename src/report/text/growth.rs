//! What grew, in words.

use std::fmt::Write;

use super::super::model::Frame;
use super::style::{Style, Tone, bytes, clean};
use super::{Judged, Leak, name, place, without_plumbing};
use crate::growth::GrowthClass;
use serde_json::Value;

/// Of the headline: how much of all was growing.
pub(super) fn share(judged: &Judged) -> String {
    let (sum, pace) = judged.growing();
    match sum.count {
        0 => String::new(),
        _ => format!("; {} of it growing, {} a minute", bytes(sum.bytes), bytes(pace as u64)),
    }
}

/// Of one entry, with a comma before it.
pub(super) fn class(leak: &Leak) -> String {
    let Some(growth) = leak.growth.filter(|_| !leak.held_by_driver) else { return String::new() };
    match growth.class {
        GrowthClass::Growing => format!(", growing by {} a minute", bytes(growth.bytes_a_minute as u64)),
        GrowthClass::Steady => ", steady".to_owned(),
        GrowthClass::OneOff => ", one-off".to_owned(),
        GrowthClass::Other => String::new(),
    }
}

/// What was said while the process ran.
pub(super) fn suspects(out: &mut String, judged: &Judged, style: &Style) {
    let suspects = &judged.report.leak_suspects;
    if suspects.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, "Suspected while it ran"));
    suspects.iter().for_each(|one| suspect(out, one, style));
}

/// One suspicion, from the fields of its event.
pub fn suspect(out: &mut String, suspect: &Value, style: &Style) {
    let number = |name: &str| suspect.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let why = match suspect.get("rule").and_then(Value::as_str) {
        Some("slow") => "slowly, without an end",
        _ => "more at each comparison",
    };
    let _ = writeln!(
        out,
        "  GPU {}: from {} to {} within {}, {why}",
        number("device"),
        bytes(number("before_bytes") as u64),
        bytes(number("live_bytes") as u64),
        super::duration(number("over_s")),
    );
    for grown in suspect.get("stacks").and_then(Value::as_array).into_iter().flatten() {
        let of = |name: &str| grown.get(name).and_then(Value::as_u64).unwrap_or(0);
        let stack = grown.get("stack").cloned().map(serde_json::from_value::<Vec<Frame>>);
        let stack = stack.and_then(Result::ok).unwrap_or_default();
        let from =
            without_plumbing(&stack).first().map(|frame| format!(" from {} ({})", name(frame), place(frame)));
        let api = grown.get("api").and_then(Value::as_str).unwrap_or_default();
        let line = format!(
            "{} more by {api}{}",
            bytes(of("bytes").saturating_sub(of("before_bytes"))),
            from.unwrap_or_default()
        );
        let _ = writeln!(out, "    {}", style.fit(&clean(&line), 4));
    }
}
