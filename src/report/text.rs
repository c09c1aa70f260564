//! A report as text for a terminal: sums first, then where the memory was allocated, then what to do.

mod advice;
mod failure;
mod growth;
mod many;
mod style;
mod sums;

pub use growth::suspect;
pub use many::many;
pub use style::{Style, Tone, bytes, clean, plural};

use std::fmt::Write;

use super::judged::{Judged, State, Sum};
use super::model::{Device, Frame, Leak, LeakClass, Report, Termination};

/// Frames shown of a call stack.
pub(crate) const TOP_FRAMES: usize = 8;

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Call stacks of each kind.
    pub stacks: usize,
    /// Processes in full.
    pub processes: usize,
    /// Frames of a call stack.
    pub frames: usize,
}

impl Extent {
    /// Everything there is.
    pub const ALL: Extent = Extent { stacks: usize::MAX, processes: usize::MAX, frames: usize::MAX };
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { stacks: 10, processes: 5, frames: TOP_FRAMES }
    }
}

/// The whole report of one process.
pub fn one(report: &Report, style: &Style) -> String {
    judged(&Judged::plain(report.clone()), Extent::default(), style)
}

/// The same with what is said of it.
pub fn judged(judged: &Judged, extent: Extent, style: &Style) -> String {
    let report = &judged.report;
    let mut out = String::new();
    let _ = writeln!(out, "{}", judged_headline(judged, style));
    program(&mut out, report, style);
    devices(&mut out, report, style);
    let not_freed = if report.termination == Termination::Running { "Allocated now" } else { "Not freed" };
    sums::libraries(&mut out, &format!("{not_freed}, by library"), judged, style);
    let order = match judged.growing().0.count {
        0 => "largest first",
        _ => "what grows first",
    };
    stacks(&mut out, &format!("{not_freed}, {order}"), judged, State::Leak, extent, style);
    sums::suppressed(&mut out, judged, style);
    let held = "Held by the driver for this process (no leak by itself)";
    stacks(&mut out, held, judged, State::Held, extent, style);
    growth::suspects(&mut out, judged, style);
    for failure in &report.init_failures {
        failure::write(&mut out, failure, style);
    }
    advice::write(&mut out, judged, style);
    out
}

/// What matters most, in one line.
pub fn headline(report: &Report, style: &Style) -> String {
    judged_headline(&Judged::plain(report.clone()), style)
}

/// The same with what is said of the report.
pub fn judged_headline(judged: &Judged, style: &Style) -> String {
    let report = &judged.report;
    let Sum { bytes: leaked, count, stacks: places } = judged.sum(State::Leak);
    let suppressed = judged.sum(State::Suppressed);
    if count == 0 && suppressed.count > 0 && report.init_failures.is_empty() {
        let what = plural(suppressed.count, "suppressed allocation");
        let none = match report.termination {
            Termination::Running => "Nothing is allocated at this moment",
            _ => "No leak",
        };
        return style.paint(Tone::Good, &format!("{none} but for {} in {what}", bytes(suppressed.bytes)));
    }
    if count == 0 {
        let failures = report.init_failures.len();
        if failures > 0 {
            return style
                .paint(Tone::Bad, &format!("CUDA did not start: {}", plural(failures as u64, "failure")));
        }
        if report.devices.is_empty() {
            return style.paint(Tone::Good, "No device was used, and nothing is allocated.");
        }
        return match report.termination {
            Termination::Running => style.paint(Tone::Good, "Nothing is allocated at this moment."),
            _ => style.paint(Tone::Good, "No leak: all device memory that the program took was freed."),
        };
    }
    let what = format!("in {} from {}", plural(count, "allocation"), plural(places, "call stack"));
    let what = what + &growth::share(judged);
    match report.termination {
        Termination::Running => {
            style.paint(Tone::Strong, &format!("{} allocated now, {what}", bytes(leaked)))
        }
        Termination::Killed => {
            style.paint(Tone::Bad, &format!("{} still allocated when it was killed, {what}", bytes(leaked)))
        }
        Termination::Exit | Termination::Unknown => {
            style.paint(Tone::Bad, &format!("Leak: {} not freed, {what}", bytes(leaked)))
        }
    }
}

fn program(out: &mut String, report: &Report, style: &Style) {
    let command = if report.cmdline.is_empty() { report.exe.clone() } else { report.cmdline.join(" ") };
    let end = match report.termination {
        Termination::Exit => "ended by itself",
        Termination::Killed => "killed, or ended without its exit handlers",
        Termination::Running => "running",
        Termination::Unknown => "state unknown: it belongs to another pid namespace",
    };
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<9}{}", style.fit(&clean(&value), 11));
    };
    row("program", command);
    row("process", format!("{}, {end}", report.pid));
    if let Some(started) = &report.started_at {
        let until = report.ended_at.as_ref().map(|ended| format!(" to {ended}")).unwrap_or_default();
        row("time", format!("{started}{until}"));
    }
    let driver = report.driver_version.iter().map(|version| format!("driver {version}"));
    let runtimes = report.runtime_versions.iter().map(|version| format!("runtime {version}"));
    let versions: Vec<String> = driver.chain(runtimes).collect();
    if !versions.is_empty() {
        row("CUDA", versions.join(", "));
    }
    if !report.labels.is_empty() {
        let list: Vec<String> = report.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        row("labels", list.join(", "));
    }
}

fn devices(out: &mut String, report: &Report, style: &Style) {
    for device in &report.devices {
        let name = format!("GPU {}", device.ordinal);
        let _ = writeln!(
            out,
            "\n{}  {}",
            style.paint(Tone::Strong, &name),
            style.fit(&clean(&format!("{}  {}", device.name, device.uuid)), name.len() + 2)
        );
        let _ = writeln!(out, "  {}", device_line(device));
        let mut counts =
            format!("{}, {}", plural(device.alloc_count, "allocation"), plural(device.free_count, "free"));
        if device.denied_count > 0 {
            let _ = write!(counts, ", {} refused by the quota", plural(device.denied_count, "request"));
        }
        let _ = writeln!(out, "  {counts}");
    }
}

fn device_line(device: &Device) -> String {
    let quota = match device.limit_bytes {
        0 => "none".to_owned(),
        limit => bytes(limit),
    };
    let contexts = match device.context_bytes {
        0 => String::new(),
        size => format!("   contexts {}", bytes(size)),
    };
    format!(
        "allocated {}   highest {}   quota {quota}{contexts}",
        bytes(device.live_bytes),
        bytes(device.peak_bytes)
    )
}

fn stacks(out: &mut String, title: &str, judged: &Judged, state: State, extent: Extent, style: &Style) {
    let mut list: Vec<&Leak> = judged.of(state).map(|(leak, _)| leak).collect();
    // Largest first as before, within what grows and what does not.
    list.sort_by_key(|leak| !leak.is_growing());
    if list.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, title));
    let several = judged.report.devices.len() > 1;
    for (index, leak) in list.iter().take(extent.stacks).enumerate() {
        let size = bytes(leak.bytes);
        let on = if several { format!(" on GPU {}", leak.device) } else { String::new() };
        let _ = writeln!(
            out,
            "{:>3}. {}  {}{on}, {} old{}",
            index + 1,
            style.paint(Tone::Strong, &size),
            clean(&what(leak)),
            age(leak),
            growth::class(leak),
        );
        frames(out, &leak.stack, extent.frames, style);
    }
    if let Some(rest) = list.get(extent.stacks..).filter(|rest| !rest.is_empty()) {
        let sum = rest.iter().fold(0u64, |sum, leak| sum.saturating_add(leak.bytes));
        let _ = writeln!(
            out,
            "     {} more, {} together. --all shows them.",
            plural(rest.len() as u64, "call stack"),
            bytes(sum)
        );
    }
}

/// What a leak entry consists of, in words.
fn what(leak: &Leak) -> String {
    match leak.class {
        LeakClass::PoolReserve => "kept in a memory pool for later use".to_owned(),
        LeakClass::GraphReserve => "kept for graphs that allocate memory".to_owned(),
        LeakClass::Module => format!("{} ({})", plural(leak.count, "loaded code module"), leak.api),
        LeakClass::Physical => format!("{} of physical memory by {}", plural(leak.count, "piece"), leak.api),
        _ if leak.api == leak.driver_api || leak.driver_api.is_empty() => {
            format!("{} by {}", plural(leak.count, "allocation"), leak.api)
        }
        _ => format!("{} by {}", plural(leak.count, "allocation"), leak.api),
    }
}

fn age(leak: &Leak) -> String {
    let text = duration(leak.oldest_age_s.max(0.0));
    if leak.count > 1 { format!("up to {text}") } else { text }
}

/// A time in words: `under 1 ms`, `14 ms`, `3.0 s`, `14 min`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.001 => "under 1 ms".to_owned(),
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

pub(crate) fn frames(out: &mut String, stack: &[Frame], most: usize, style: &Style) {
    if stack.is_empty() {
        let _ =
            writeln!(out, "       {}", style.paint(Tone::Faint, "no call stack was kept (CUWARDEN_STACKS)"));
        return;
    }
    let shown = without_plumbing(stack);
    let names: Vec<String> = shown.iter().take(most).map(|frame| clean(&name(frame))).collect();
    // Names of one column, so that the lines can be read as a column too; long ones stick out.
    let column = names.iter().map(|n| n.chars().count()).filter(|&n| n <= 32).max().unwrap_or(0);
    for (frame, name) in shown.iter().zip(&names) {
        let place = clean(&place(frame));
        let width = name.chars().count().max(column);
        let pad = " ".repeat(width - name.chars().count());
        if width + place.chars().count() + 9 > style.width && width > column {
            let _ = writeln!(out, "       {}", style.fit(name, 7));
            let _ = writeln!(out, "         {}", style.paint(Tone::Faint, &style.fit(&place, 9)));
        } else {
            let place = style.paint(Tone::Faint, &style.fit_left(&place, width + 9));
            let _ = writeln!(out, "       {name}{pad}  {place}");
        }
    }
    if shown.len() > names.len() {
        let more = plural((shown.len() - names.len()) as u64, "more frame");
        let _ = writeln!(out, "       {}", style.paint(Tone::Faint, &more));
    }
}

/// Cuts off what says nothing about the program: CUDA's own libraries above its call, and what every program
/// has below its main function.
pub(crate) fn without_plumbing(stack: &[Frame]) -> &[Frame] {
    let module = |frame: &Frame| {
        let path = frame.module.as_deref().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default().to_owned()
    };
    let cuda =
        |frame: &Frame| ["libcudart.so", "libcuda.so"].iter().any(|name| module(frame).starts_with(name));
    let start_up = |frame: &Frame| {
        let function = frame.function.as_deref().unwrap_or_default();
        let libc = ["libc.so.6", "ld-linux"].iter().any(|name| module(frame).starts_with(name));
        function.starts_with("__libc_start")
            || matches!(function, "_start" | "start_thread")
            || (libc && function.is_empty())
    };
    let begin = stack.iter().position(|frame| !cuda(frame)).unwrap_or(0);
    let end = stack.iter().rposition(|frame| !start_up(frame)).map_or(stack.len(), |last| last + 1);
    // Where nothing would be left, it is all there is to show.
    stack.get(begin..end).filter(|rest| !rest.is_empty()).unwrap_or(stack)
}

pub(super) fn name(frame: &Frame) -> String {
    let name = match &frame.function {
        Some(function) => function.clone(),
        None => format!("{:#x}", frame.offset),
    };
    if frame.inlined { format!("{name} (inlined)") } else { name }
}

pub(crate) fn place(frame: &Frame) -> String {
    if let Some(file) = &frame.file {
        let file = file.strip_prefix("./").unwrap_or(file);
        return match frame.line {
            Some(line) => format!("{file}:{line}"),
            None => file.to_owned(),
        };
    }
    match (&frame.module, &frame.problem) {
        (Some(module), Some(problem)) if frame.function.is_none() => format!("{module} ({problem})"),
        (Some(module), _) => module.clone(),
        (None, _) => "unknown module".to_owned(),
    }
}
