//! Folded stacks: one line a call stack, outermost frame first, and its bytes. flamegraph.pl, speedscope and inferno
//! read it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::judged::{Judged, State};
use super::model::{Frame, Leak};
use super::text::{clean, without_plumbing};

/// The live bytes of all `reports`. The lines are sorted, and stacks that look the same are one line.
pub fn folded(reports: &[Judged]) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for judged in reports {
        let program = program(judged);
        for (leak, _, state) in judged.entries().filter(|(leak, ..)| leak.bytes > 0) {
            let mut line = escape(&program);
            for name in before(judged, leak, state) {
                let _ = write!(line, ";{}", escape(&name));
            }
            for frame in without_plumbing(&leak.stack).iter().rev() {
                let _ = write!(line, ";{}", escape(&label(frame)));
            }
            let _ = write!(line, ";{}", escape(&leak.api));
            let sum = lines.entry(line).or_default();
            *sum = sum.saturating_add(leak.bytes);
        }
    }
    let mut out = String::new();
    for (line, bytes) in lines {
        let _ = writeln!(out, "{line} {bytes}");
    }
    out
}

/// What a process is called. Not by its number: graphs of two runs can be compared.
pub fn program(judged: &Judged) -> String {
    let name = Path::new(&judged.report.exe).file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "unknown program".to_owned())
}

/// What comes between a program and its frames, so that everything is in the graph and nothing is mixed up.
pub fn before(judged: &Judged, leak: &Leak, state: State) -> Vec<String> {
    let mut names = Vec::new();
    if judged.report.devices.len() > 1 {
        names.push(format!("GPU {}", leak.device));
    }
    match state {
        State::Leak => {}
        State::Suppressed => names.push("[suppressed]".to_owned()),
        State::Held => names.push("[held by the driver]".to_owned()),
    }
    names
}

/// A frame's function; where it is not known, the place in its file.
pub fn label(frame: &Frame) -> String {
    match (&frame.function, &frame.module) {
        (Some(function), _) => function.clone(),
        (None, Some(module)) => {
            let file = module.rsplit('/').next().unwrap_or(module);
            format!("{file}+{:#x}", frame.offset)
        }
        (None, None) => "[unknown]".to_owned(),
    }
}

/// A semicolon ends a frame, and a line its stack.
fn escape(name: &str) -> String {
    match name {
        "" => "[unknown]".to_owned(),
        name => clean(name).replace(';', ":"),
    }
}
