//! The listing as text.

use std::fmt::Write;
use std::path::Path;

use super::model::{Device, Directory, LimitBy, Process, State};
use crate::report::text::{Style, Tone, bytes, clean, plural};

/// Longer names of programs are cut.
const PROGRAM: usize = 20;
/// Names of programs are cut to no less where the window is narrow.
const PROGRAM_AT_LEAST: usize = 8;
/// With less room, labels go below their process.
const LABELS_AT_LEAST: usize = 16;
const GAP: &str = "  ";

/// All directories that have something.
pub fn text(directories: &[Directory], style: &Style) -> String {
    let mut out = String::new();
    for directory in directories.iter().filter(|directory| !directory.devices.is_empty()) {
        if !out.is_empty() {
            out.push('\n');
        }
        let _ = writeln!(out, "{}", style.title(&style.fit_left(&clean(&directory.path), 0)));
        for device in &directory.devices {
            one_device(&mut out, device, style);
        }
    }
    let devices = directories.iter().flat_map(|directory| &directory.devices);
    if devices.flat_map(|device| &device.processes).any(|p| p.unaccounted_bytes.is_some_and(|b| b != 0)) {
        let words = "UNACCOUNTED is what the driver says that a process has, less what is charged to it. More: memory \
                     that cuwarden does not see, such as code that is loaded lazily. Less: memory that the driver \
                     counts for another process.";
        out.push('\n');
        style.wrap(words, 0).iter().for_each(|line| {
            let _ = writeln!(out, "{line}");
        });
    }
    out
}

fn one_device(out: &mut String, device: &Device, style: &Style) {
    let name = device.name.as_deref().map(|name| format!("{GAP}{}", clean(name))).unwrap_or_default();
    let line = format!("{}{name}", clean(&device.uuid));
    let _ = writeln!(out, "\n{}", style.paint(Tone::Strong, &style.fit(&line, 0)));
    let _ = writeln!(out, "  {}", usage(device, style));
    let mut also = Vec::new();
    let contexts = device.processes.iter().filter(|p| p.state != State::Dead).filter_map(|p| p.context_bytes);
    match (contexts.fold(0, u64::saturating_add), device.context_cost_bytes) {
        (0, None) => {}
        (0, Some(each)) => also.push(format!("a context takes {}", bytes(each))),
        (all, None) => also.push(format!("contexts take {} of that", bytes(all))),
        (all, Some(each)) => {
            also.push(format!("contexts take {} of that, {} each", bytes(all), bytes(each)));
        }
    }
    if let Some(denied) = device.denied_count.filter(|denied| *denied != 0) {
        also.push(format!("the quota has refused {}", plural(denied, "request")));
    }
    if !also.is_empty() {
        let _ = writeln!(out, "  {}", also.join("; "));
    }
    if device.processes.is_empty() {
        let _ = writeln!(out, "  Nobody holds anything.");
        return;
    }
    out.push('\n');
    table(out, &device.processes, style);
}

fn usage(device: &Device, style: &Style) -> String {
    let used = bytes(device.used_bytes);
    let Some(limit) = device.limit_bytes else { return format!("used {used}; the limit is not known") };
    let operators = if device.limit_by == Some(LimitBy::Operator) { ", set by the operator" } else { "" };
    if limit == 0 {
        return format!("used {used}, no limit{operators}");
    }
    let left = match device.used_bytes.checked_sub(limit) {
        Some(over) if over > 0 => style.paint(Tone::Bad, &format!("{} over it", bytes(over))),
        _ => {
            let most = limit.min(device.total_bytes.unwrap_or(limit));
            format!("{} free", bytes(most.saturating_sub(device.used_bytes)))
        }
    };
    format!("used {used} of {}{operators}; {left}", bytes(limit))
}

struct Column {
    title: &'static str,
    is_number: bool,
    cells: Vec<String>,
}

impl Column {
    fn new(
        title: &'static str,
        is_number: bool,
        processes: &[Process],
        cell: impl Fn(&Process) -> String,
    ) -> Column {
        Column { title, is_number, cells: processes.iter().map(cell).collect() }
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.chain([self.title.len()]).max().unwrap_or(0)
    }

    fn cut(&mut self, width: usize) {
        let style = Style { colour: false, width: width.max(PROGRAM_AT_LEAST) };
        for cell in &mut self.cells {
            if cell.chars().count() > style.width {
                *cell = cell.chars().take(style.width - 1).chain(['…']).collect();
            }
        }
    }
}

fn table(out: &mut String, processes: &[Process], style: &Style) {
    let (mut columns, program) = columns(processes);
    if let Some(column) = columns.get_mut(program) {
        column.cut(PROGRAM);
    }
    let over = taken(&columns).saturating_sub(style.width);
    if let Some(column) = columns.get_mut(program) {
        column.cut(column.width().saturating_sub(over));
    }
    let fixed = columns.len();
    let used = taken(&columns) + GAP.len();
    let has_labels = processes.iter().any(|p| p.labels.as_ref().is_some_and(|labels| !labels.is_empty()));
    let are_below = has_labels && used + LABELS_AT_LEAST > style.width;
    if has_labels && !are_below {
        columns.push(Column::new("LABELS", false, processes, labels));
    }
    let indent = taken(columns.get(..program).unwrap_or_default()) + GAP.len();
    let widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let line = |cell: &dyn Fn(&Column) -> String| {
        let mut line = String::new();
        for (place, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let text = cell(column);
            let pad = " ".repeat(width.saturating_sub(text.chars().count()));
            line += GAP;
            match (column.is_number, place == fixed) {
                (_, true) => line += &style.fit(&text, used),
                (true, _) => line += &format!("{pad}{text}"),
                (false, _) => line += &format!("{text}{pad}"),
            }
        }
        line.trim_end().to_owned()
    };
    let _ = writeln!(out, "{}", style.paint(Tone::Faint, &line(&|column| column.title.to_owned())));
    for (row, process) in processes.iter().enumerate() {
        let text = line(&|column| column.cells.get(row).cloned().unwrap_or_default());
        let text = if process.state == State::Dead { style.paint(Tone::Faint, &text) } else { text };
        let _ = writeln!(out, "{text}");
        let labels = if are_below { labels(process) } else { String::new() };
        if !labels.is_empty() {
            let labels = style.paint(Tone::Faint, &style.fit(&labels, indent));
            let _ = writeln!(out, "{:indent$}{labels}", "");
        }
    }
}

/// All but the labels, and the place of the program's name.
fn columns(processes: &[Process]) -> (Vec<Column>, usize) {
    let left = |title, cell: &dyn Fn(&Process) -> String| Column::new(title, false, processes, cell);
    let right = |title, cell: &dyn Fn(&Process) -> String| Column::new(title, true, processes, cell);
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let size = |size: Option<u64>| size.map_or("-".to_owned(), bytes);
    let mut columns = vec![right("PID", &|p| number(p.pid.map(u64::from)))];
    if processes.iter().any(|p| p.host_pid.is_some() && p.host_pid != p.pid) {
        columns.push(right("HOST PID", &|p| number(p.host_pid.map(u64::from))));
    }
    let program = columns.len();
    columns.extend([
        left("PROGRAM", &program_name),
        left("STATE", &|p| state(p.state).to_owned()),
        right("LIVE", &|p| size(p.live_bytes)),
        right("CONTEXTS", &|p| size(p.context_bytes)),
        right("PEAK", &|p| size(p.peak_bytes)),
        right("DENIED", &|p| number(p.denied_count)),
        right("UNACCOUNTED", &|p| unaccounted(p.unaccounted_bytes)),
    ]);
    (columns, program)
}

fn taken(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width() + GAP.len()).sum()
}

fn program_name(process: &Process) -> String {
    let name = process.exe.as_deref().and_then(|exe| Path::new(exe).file_name());
    name.map_or("-".to_owned(), |name| clean(&name.to_string_lossy()))
}

fn state(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Stopped => "stopped",
        State::OtherNamespace => "other namespace",
        State::Dead => "dead",
    }
}

fn unaccounted(difference: Option<i64>) -> String {
    match difference {
        None => "-".to_owned(),
        Some(0) => "0".to_owned(),
        Some(difference) => {
            let sign = if difference > 0 { '+' } else { '-' };
            format!("{sign}{}", bytes(difference.unsigned_abs()))
        }
    }
}

fn labels(process: &Process) -> String {
    let pair = |(key, value): (&String, &String)| {
        if value.is_empty() { clean(key) } else { format!("{}={}", clean(key), clean(value)) }
    };
    process.labels.iter().flatten().map(pair).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
