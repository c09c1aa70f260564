//! From bytes to what they say. Nothing in them is taken for granted: people cut such texts, quote them in mails, and
//! redirect them on systems that write UTF-16.

use super::table;
use super::{Gpu, Kind, Message, Process, Smi, Unreadable};
use crate::policy::versions::CudaVersion;
use crate::policy::versions::release::Release;

const MOST_GPUS: usize = 256;
const MOST_PROCESSES: usize = 4096;
const MOST_MESSAGES: usize = 64;
/// Of a card; the first ones say it.
const MOST_ERRORS: usize = 32;

/// Reads it.
pub fn parse(bytes: &[u8]) -> Smi {
    let text = decode(bytes);
    let mut smi = Smi::default();
    let mut query = Query::default();
    let mut rows = table::Rows::default();
    for line in text.lines() {
        // As quoted in a mail or a tracker.
        let line = line.trim_start_matches("> ").trim_end_matches(['\\', '\r', ' ', '\t']);
        note_message(line, &mut smi);
        if line.trim_start().starts_with('|') {
            rows.line(line, &mut smi);
        } else {
            query.line(line, &mut smi);
        }
    }
    smi
}

/// UTF-16 where a mark says so, else UTF-8, with whatever is none replaced.
fn decode(bytes: &[u8]) -> String {
    let wide = |of: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).filter_map(|two| two.try_into().ok()).map(of).collect();
        String::from_utf16_lossy(&units)
    };
    let text = match bytes {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    };
    text.trim_start_matches('\u{feff}').replace('\0', "")
}

/// The card of a bus address, which the list and the table both have.
pub(super) fn gpu_at<'a>(smi: &'a mut Smi, bus: &str) -> Option<&'a mut Gpu> {
    let key = bus_key(bus)?;
    let at = smi.gpus.iter().position(|gpu| gpu.key == key).unwrap_or(smi.gpus.len());
    if at == smi.gpus.len() && at < MOST_GPUS {
        smi.gpus.push(Gpu { key, bus: bus.to_owned(), ..Gpu::default() });
    }
    smi.gpus.get_mut(at)
}

/// `None`: no bus address. The domain has four digits or eight.
pub(super) fn bus_key(text: &str) -> Option<String> {
    let (rest, function) = text.split_once('.')?;
    let parts: Vec<&str> = rest.split(':').collect();
    let [domain, bus, device] = parts[..] else { return None };
    let is_hex = |part: &str, lengths: &[usize]| {
        lengths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let whole =
        is_hex(domain, &[4, 8]) && is_hex(bus, &[2]) && is_hex(device, &[2]) && is_hex(function, &[1]);
    let short = domain.get(domain.len().checked_sub(4)?..)?;
    whole.then(|| format!("{short}:{bus}:{device}").to_ascii_lowercase())
}

/// What `nvidia-smi -q` lists: `Key : Value` under sections, told apart by their indentation.
#[derive(Default)]
struct Query {
    /// Sections that are open: indentation and name.
    open: Vec<(usize, String)>,
    /// The card that is being described, by its place in the list.
    card: Option<usize>,
}

impl Query {
    fn line(&mut self, line: &str, smi: &mut Smi) {
        let text = line.trim();
        if text.is_empty() {
            return;
        }
        let indent = line.len() - line.trim_start().len();
        while self.open.last().is_some_and(|(outer, _)| *outer >= indent) {
            self.open.pop();
        }
        if let Some(bus) = text.strip_prefix("GPU ").filter(|bus| bus_key(bus).is_some()) {
            let key = gpu_at(smi, bus).map(|gpu| gpu.key.clone());
            self.card = smi.gpus.iter().position(|gpu| Some(&gpu.key) == key.as_ref());
            self.open.clear();
            return;
        }
        let pair = text
            .split_once(" : ")
            .or_else(|| text.split_once(": "))
            .or_else(|| Some((text.strip_suffix(':')?, "")));
        let Some((key, value)) = pair.map(|(key, value)| (key.trim(), value.trim())) else {
            self.section(indent, text, smi);
            return;
        };
        match self.card.and_then(|at| smi.gpus.get_mut(at)) {
            None => of_machine(key, value, smi),
            Some(gpu) => {
                let inside: Vec<&str> = self.open.iter().map(|(_, name)| name.as_str()).collect();
                of_gpu(&inside, key, value, gpu);
            }
        }
    }

    fn section(&mut self, indent: usize, name: &str, smi: &mut Smi) {
        // Sentences and rulers are none.
        if name.len() > 60 || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return;
        }
        if name == "MIG Device"
            && let Some(gpu) = self.card.and_then(|at| smi.gpus.get_mut(at))
        {
            gpu.instances = gpu.instances.saturating_add(1);
        }
        self.open.push((indent, name.to_owned()));
    }
}

fn of_machine(key: &str, value: &str, smi: &mut Smi) {
    match key {
        "Driver Version" | "KMD Version" => set(&mut smi.driver, Release::parse(value)),
        "CUDA Version" | "CUDA UMD Version" => set_cuda(value, smi),
        "Attached GPUs" => set(&mut smi.attached, value.parse().ok()),
        _ => {}
    }
}

pub(super) fn set_cuda(value: &str, smi: &mut Smi) {
    let version = CudaVersion::parse(value);
    smi.has_no_cuda = smi.cuda.is_none() && version.is_none() && is_none(value);
    set(&mut smi.cuda, version);
}

fn of_gpu(inside: &[&str], key: &str, value: &str, gpu: &mut Gpu) {
    let section = inside.last().copied().unwrap_or("");
    // An instance repeats the sections of its card.
    if inside.contains(&"MIG Device") {
        return;
    }
    if let Some(error) = error_in(value) {
        note_error(key, error, gpu);
        return;
    }
    match (section, key) {
        ("FB Memory Usage" | "Memory Usage", "Total") => set(&mut gpu.total_bytes, mebibytes(value)),
        ("FB Memory Usage" | "Memory Usage", "Used") => set(&mut gpu.used_bytes, mebibytes(value)),
        ("FB Memory Usage" | "Memory Usage", "Free") => set(&mut gpu.free_bytes, mebibytes(value)),
        ("MIG Mode", "Current") => set(&mut gpu.mig, enabled(value)),
        ("Retired Pages", "Single Bit ECC" | "Double Bit ECC") => add(&mut gpu.retired_pages, value),
        ("Retired Pages", "Pending Page Blacklist" | "Pending Page Retirement") => pending(gpu, value),
        ("Remapped Rows", "Correctable Error" | "Uncorrectable Error") => add(&mut gpu.remapped_rows, value),
        ("Remapped Rows", "Pending") => pending(gpu, value),
        ("Remapped Rows", "Remapping Failure Occurred") => set(&mut gpu.has_remapping_failed, yes(value)),
        ("Fabric", "State") => set(&mut gpu.fabric, told(value)),
        (_, "Product Name") if section.is_empty() => set(&mut gpu.name, told(value)),
        (_, "GPU UUID") => set(&mut gpu.uuid, told(value)),
        (_, "Compute Mode") => set(&mut gpu.compute_mode, compute_mode(value)),
        (_, "Persistence Mode") => set(&mut gpu.persistence, enabled(value)),
        (_, "License Status") => {
            set(&mut gpu.is_licensed, told(value).map(|text| text.starts_with("Licensed")));
        }
        (_, "GPU Recovery Action" | "Recovery Action") => {
            set(&mut gpu.recovery, told(value).map(|text| if text == "None" { String::new() } else { text }));
        }
        (_, "Process ID") => {
            if let (Ok(pid), true) = (value.parse(), gpu.processes.len() < MOST_PROCESSES) {
                gpu.processes.push(Process { pid, ..Process::default() });
            }
        }
        (_, "Name") => {
            if let Some(process) = gpu.processes.last_mut().filter(|process| process.name.is_empty()) {
                value.clone_into(&mut process.name);
            }
        }
        (_, "Used GPU Memory") => {
            if let Some(process) = gpu.processes.last_mut() {
                set(&mut process.bytes, mebibytes(value));
            }
        }
        _ if value == "Active"
            && ["Clocks Throttle Reasons", "Clocks Event Reasons"]
                .iter()
                .any(|name| section.starts_with(name)) =>
        {
            gpu.throttled_by.push(key.to_owned());
        }
        _ if inside.contains(&"Volatile") && is_uncorrected(section, key) => add(&mut gpu.uncorrected, value),
        _ => {}
    }
}

/// Older drivers count double bits with a total, newer ones name what could not be corrected by memory and parity.
fn is_uncorrected(section: &str, key: &str) -> bool {
    (section == "Double Bit" && key == "Total")
        || (section == "Volatile" && (key.contains("Uncorrectable") || key.contains("Uncorrected")))
}

pub(super) fn note_error(field: &str, error: &'static str, gpu: &mut Gpu) {
    if gpu.errors.len() < MOST_ERRORS {
        gpu.errors.push(Unreadable { field: field.to_owned(), error: error.to_owned() });
    }
}

/// Errors that stand in the place of a value.
pub(super) fn error_in(value: &str) -> Option<&'static str> {
    const ERRORS: [&str; 5] =
        ["GPU is lost", "GPU requires reset", "Unknown Error", "ERR!", "Insufficient Permissions"];
    let value = value.trim_matches(['[', ']', ' ', '.']);
    ERRORS.into_iter().find(|error| value.eq_ignore_ascii_case(error))
}

fn is_none(value: &str) -> bool {
    let value = value.trim_matches(['[', ']', ' ']);
    ["", "N/A", "Not Found", "Not Supported", "Not Available", "ERR!"]
        .iter()
        .any(|one| value.eq_ignore_ascii_case(one))
}

fn told(value: &str) -> Option<String> {
    (!is_none(value)).then(|| value.to_owned())
}

/// What stands first is the whole machine's.
pub(super) fn set<T>(field: &mut Option<T>, value: Option<T>) {
    if field.is_none() {
        *field = value;
    }
}

fn add(field: &mut Option<u64>, value: &str) {
    if let Ok(count) = value.parse::<u64>() {
        *field = Some(field.unwrap_or(0).saturating_add(count));
    }
}

fn pending(gpu: &mut Gpu, value: &str) {
    if let Some(value) = yes(value) {
        gpu.is_repair_pending = Some(value || gpu.is_repair_pending == Some(true));
    }
}

pub(super) fn mebibytes(value: &str) -> Option<u64> {
    let digits = value.split(|c: char| !c.is_ascii_digit()).next()?;
    let rest = value.get(digits.len()..)?.trim_start();
    let unit: u64 = match rest {
        // Drivers before 331 wrote MB and meant MiB.
        "MiB" | "MB" => 1 << 20,
        "KiB" => 1 << 10,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

pub(super) fn enabled(value: &str) -> Option<bool> {
    match value {
        "Enabled" | "On" => Some(true),
        "Disabled" | "Off" => Some(false),
        _ => None,
    }
}

fn yes(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

pub(super) fn compute_mode(value: &str) -> Option<u32> {
    match value {
        "Default" => Some(0),
        "Exclusive_Thread" | "Exclusive Thread" | "E. Thread" => Some(1),
        "Prohibited" => Some(2),
        "Exclusive_Process" | "Exclusive Process" | "E. Process" => Some(3),
        _ => None,
    }
}

fn note_message(line: &str, smi: &mut Smi) {
    const KINDS: [(&str, Kind); 14] = [
        ("driver/library version mismatch", Kind::VersionMismatch),
        ("couldn't communicate with the nvidia driver", Kind::NoDriver),
        ("failed to initialize nvml: driver not loaded", Kind::NoDriver),
        ("failed to initialize nvml: insufficient permissions", Kind::NoPermission),
        ("gpu access blocked by the operating system", Kind::Blocked),
        ("failed to initialize nvml", Kind::NotStarted),
        ("unable to determine the device handle for", Kind::Lost),
        ("gpu is lost", Kind::Lost),
        ("fallen off the bus", Kind::Lost),
        ("no devices were found", Kind::NoDevices),
        ("no devices found", Kind::NoDevices),
        ("inforom is corrupted", Kind::CorruptInforom),
        ("nvidia-smi: command not found", Kind::NoProgram),
        ("nvidia-smi: not found", Kind::NoProgram),
    ];
    let low = line.to_ascii_lowercase().replace('\u{2019}', "'");
    // A field that says so belongs to its card.
    let is_field = line.contains(" : ") && !low.contains("unable to determine");
    if is_field || smi.messages.len() >= MOST_MESSAGES {
        return;
    }
    if let Some((_, kind)) = KINDS.iter().find(|(words, _)| low.contains(words)) {
        let text: String = line.trim().chars().take(300).collect();
        if smi.messages.iter().all(|known| known.text != text) {
            smi.messages.push(Message { kind: *kind, text });
        }
    }
}
