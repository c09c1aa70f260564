//! A call that failed: what, why, and what NVML says.

use super::super::model::Frame;
use super::style::{Style, Tone, clean};
use super::{TOP_FRAMES, frames};
use serde_json::Value;
use std::fmt::Write;

pub(super) fn write(out: &mut String, failure: &Value, style: &Style) {
    let api = text(failure, "api").unwrap_or_else(|| "a CUDA call".to_owned());
    let name = text(failure, "name").unwrap_or_else(|| "an error".to_owned());
    let code = text(failure, "code").map(|code| format!(" ({code})")).unwrap_or_default();
    let device = text(failure, "device").map(|device| format!(" on GPU {device}")).unwrap_or_default();
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, "The call that failed"));
    let _ = writeln!(out, "  {api} failed{device} with {name}{code}");
    let stack = failure.get("stack").cloned().map(serde_json::from_value::<Vec<Frame>>);
    if let Some(Ok(stack)) = stack.filter(|stack| stack.as_ref().is_ok_and(|stack| !stack.is_empty())) {
        frames(out, &stack, TOP_FRAMES, style);
    }
    causes(out, failure, style);
    calls(out, "What NVML says", list(failure, "nvml_chain"), failure, style);
    calls(out, "What the program had asked NVML", list(failure, "app_nvml_calls"), failure, style);
}

fn causes(out: &mut String, failure: &Value, style: &Style) {
    let causes = list(failure, "causes");
    if causes.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, "Why"));
    for (index, cause) in causes.iter().enumerate() {
        let of = |key: &str| text(cause, key).unwrap_or_default();
        let likely = if index == 0 { "most likely" } else { "or" };
        paragraph(out, &format!("{likely} {}: {}.", of("id"), of("evidence")), 2, style);
        paragraph(out, &format!("To do: {}", of("action")), 4, style);
    }
}

/// Those that concern the device of the failure, and all that failed.
fn calls(out: &mut String, title: &str, calls: &[Value], failure: &Value, style: &Style) {
    let device = failure.get("device").and_then(Value::as_u64);
    let concerns = |call: &&Value| {
        let about = text(call, "args").and_then(|args| number_in(&args));
        let failed = call.get("code").and_then(Value::as_i64) != Some(0);
        failed || device.is_none() || about.is_none() || about == device
    };
    let shown: Vec<&Value> = calls.iter().filter(concerns).collect();
    if shown.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, title));
    let left: Vec<String> = shown
        .iter()
        .map(|call| {
            let of = |key: &str| text(call, key).unwrap_or_default();
            format!("{}({})", of("call"), of("args"))
        })
        .collect();
    let width = left.iter().map(String::len).max().unwrap_or(0).min(50);
    for (call, left) in shown.iter().zip(&left) {
        let result = text(call, "result").unwrap_or_default();
        let code = call.get("code").and_then(Value::as_i64).unwrap_or(0);
        let answer = match (code, result.is_empty()) {
            (0, true) => "done".to_owned(),
            (0, false) => result,
            (code, true) => format!("{} ({code})", text(call, "name").unwrap_or_default()),
            (code, false) => format!("{} ({code}): {result}", text(call, "name").unwrap_or_default()),
        };
        let _ = writeln!(out, "  {left:<width$}  {answer}");
    }
    if shown.len() < calls.len() {
        let _ = writeln!(out, "  and {} calls about other devices", calls.len() - shown.len());
    }
}

/// The device in `device=1` or `index=1, …`.
fn number_in(args: &str) -> Option<u64> {
    let rest = args.strip_prefix("device=").or_else(|| args.strip_prefix("index="))?;
    rest.split(',').next()?.trim().parse().ok()
}

fn paragraph(out: &mut String, text: &str, indent: usize, style: &Style) {
    for line in style.for_words().wrap(text, indent) {
        let _ = writeln!(out, "{:indent$}{line}", "");
    }
}

fn list<'a>(failure: &'a Value, key: &str) -> &'a [Value] {
    failure.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text(value: &Value, key: &str) -> Option<String> {
    match value.get(key) {
        Some(Value::String(text)) => Some(clean(text)),
        Some(Value::Null) | None => None,
        Some(other) => Some(clean(&other.to_string())),
    }
}
