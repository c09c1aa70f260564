//! From a record file's contents to a report.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::model::{Device, Frame, Leak, LeakClass, Module, Report, SCHEMA, Termination};
use super::time::rfc3339;
use crate::record::api::APIS;
use crate::record::layout::Class;
use crate::record::snapshot::{self, LiveRecord, Liveness, NOTE_INIT_FAILURE, Snapshot};

/// What allocations must have in common to be one entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    device: u8,
    class: Class,
    api: u16,
    runtime_api: u16,
    runtime: Option<u8>,
    stack: Option<u32>,
}

#[derive(Clone, Copy)]
struct Sum {
    count: u64,
    bytes: u64,
    oldest_ns: u64,
}

impl From<Liveness> for Termination {
    fn from(liveness: Liveness) -> Termination {
        match liveness {
            Liveness::Running => Termination::Running,
            Liveness::Exited => Termination::Exit,
            Liveness::Killed => Termination::Killed,
            Liveness::Unknown => Termination::Unknown,
        }
    }
}

impl Report {
    /// Makes the report. `as_of_ns` is the time to which ages are counted, in nanoseconds since 1970: now
    /// for a process that runs or is exiting, the file's last change for one that was killed.
    pub fn from_snapshot(snapshot: &Snapshot, termination: Termination, as_of_ns: u64) -> Report {
        let mut groups: HashMap<Key, Sum> = HashMap::new();
        let mut newest_ns = 0;
        for record in &snapshot.records {
            newest_ns = newest_ns.max(record.born_ns);
            let sum =
                groups.entry(Key::of(record)).or_insert(Sum { count: 0, bytes: 0, oldest_ns: u64::MAX });
            sum.count += 1;
            sum.bytes = sum.bytes.saturating_add(record.bytes);
            sum.oldest_ns = sum.oldest_ns.min(record.born_ns);
        }
        // Never before the last allocation: a file that was copied, or a clock set back, would give that.
        let as_of = as_of_ns.saturating_sub(snapshot.started_ns).max(newest_ns);

        let mut order: Vec<(Key, Sum)> = groups.into_iter().collect();
        order.sort_by_cached_key(|(key, sum)| {
            let stack = key.stack.and_then(|place| snapshot.stacks.get(place as usize)).cloned();
            let rest = (key.device, key.class, key.api, key.runtime_api, key.runtime, stack);
            (Reverse(sum.bytes), Reverse(sum.count), rest)
        });
        Report {
            schema: SCHEMA.to_owned(),
            pid: snapshot.pid,
            ppid: snapshot.ppid,
            exe: snapshot.exe.clone(),
            cmdline: snapshot.cmdline.clone(),
            labels: labels(&snapshot.labels),
            started_at: rfc3339(snapshot.started_ns),
            ended_at: rfc3339(snapshot.ended_ns),
            termination,
            driver_version: version(snapshot.driver_version),
            runtime_versions: snapshot.runtime_versions.iter().filter_map(|&v| version(v)).collect(),
            devices: snapshot.devices.iter().map(|d| device(d, snapshot)).collect(),
            leaks: order.iter().map(|(key, sum)| key.leak(snapshot, *sum, as_of)).collect(),
            init_failures: snapshot
                .notes
                .iter()
                .filter(|note| note.kind == NOTE_INIT_FAILURE)
                .map(|note| note.json.clone())
                .collect(),
            modules: used_modules(snapshot),
            lost_records: snapshot.lost_records,
            damaged_parts: snapshot.damaged,
            damages: snapshot.problems.clone(),
        }
    }
}

impl Key {
    fn of(record: &LiveRecord) -> Key {
        Key {
            device: record.device,
            class: record.class,
            api: record.api,
            runtime_api: record.runtime_api,
            runtime: record.runtime,
            stack: record.stack,
        }
    }

    fn leak(self, snapshot: &Snapshot, sum: Sum, as_of: u64) -> Leak {
        let driver_api = api_name(self.api);
        let stack = self.stack.and_then(|place| snapshot.stacks.get(place as usize));
        Leak {
            device: u32::from(self.device),
            api: if self.runtime_api == 0 { driver_api.clone() } else { api_name(self.runtime_api) },
            count: sum.count,
            bytes: sum.bytes,
            // Milliseconds are what a reader can use, and keep the text short.
            oldest_age_s: (as_of.saturating_sub(sum.oldest_ns) / 1_000_000) as f64 / 1000.0,
            stack: stack.iter().flat_map(|frames| frames.iter()).map(|f| frame(f, snapshot)).collect(),
            class: self.class.into(),
            held_by_driver: matches!(self.class, Class::PoolReserve | Class::GraphReserve | Class::Module),
            driver_api,
            runtime: self
                .runtime
                .and_then(|place| snapshot.runtime_versions.get(usize::from(place)))
                .and_then(|&v| version(v)),
        }
    }
}

impl From<Class> for LeakClass {
    fn from(class: Class) -> LeakClass {
        match class {
            Class::Pointer => LeakClass::Pointer,
            Class::Array => LeakClass::Array,
            Class::MipmappedArray => LeakClass::MipmappedArray,
            Class::Physical => LeakClass::Physical,
            Class::PoolReserve => LeakClass::PoolReserve,
            Class::GraphReserve => LeakClass::GraphReserve,
            Class::Module => LeakClass::Module,
        }
    }
}

/// A later cuwarden may have added functions: their number says at least that they differ.
fn api_name(number: u16) -> String {
    match APIS.get(usize::from(number)) {
        Some(name) => (*name).to_owned(),
        None => format!("function {number}"),
    }
}

fn frame(frame: &snapshot::Frame, snapshot: &Snapshot) -> Frame {
    let module = frame.module.and_then(|place| snapshot.modules.get(place as usize));
    Frame {
        module: module.map(|m| m.path.to_string_lossy().into_owned()),
        offset: frame.address,
        ..Frame::default()
    }
}

fn device(device: &snapshot::DeviceState, snapshot: &Snapshot) -> Device {
    let held = snapshot.records.iter().filter(|record| u32::from(record.device) == device.ordinal);
    Device {
        ordinal: device.ordinal,
        uuid: device.uuid.clone(),
        name: device.name.clone(),
        limit_bytes: device.limit_bytes,
        live_bytes: held.fold(0, |sum, record| sum.saturating_add(record.bytes)),
        peak_bytes: device.peak_bytes,
        alloc_count: device.alloc_count,
        free_count: device.free_count,
        denied_count: device.denied_count,
        total_bytes: device.total_bytes,
        context_bytes: device.context_bytes,
    }
}

/// Only the modules in which frames lie: a Python process has hundreds. Notes have frames of their own, which
/// name modules by path.
fn used_modules(snapshot: &Snapshot) -> Vec<Module> {
    let mut used = vec![!snapshot.notes.is_empty(); snapshot.modules.len()];
    for frame in snapshot.stacks.iter().flat_map(|stack| stack.iter()) {
        if let Some(slot) = frame.module.and_then(|place| used.get_mut(place as usize)) {
            *slot = true;
        }
    }
    let modules = snapshot.modules.iter().zip(used).filter(|(_, used)| *used);
    modules
        .map(|(module, _)| Module {
            path: module.path.to_string_lossy().into_owned(),
            build_id: module.build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
        .collect()
}

/// `arm=A,cuda=12.4` as a map; what has no `=` becomes a key without a value.
pub fn labels(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    // Not by collect: that sorts, and brings 5 KB of code for it into the shim.
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        labels.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    labels
}

/// 12090 as `12.9`; none for 0, which stands for "not known".
fn version(number: u32) -> Option<String> {
    (number != 0).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
}
