//! From a record file's contents to a report.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use super::course::Courses;
use super::model::{Device, Frame, Leak, LeakClass, Module, Report, SCHEMA, Termination};
use super::time::rfc3339;
use crate::record::api::APIS;
use crate::record::layout::Class;
use crate::record::snapshot::{
    self, Liveness, NOTE_INIT_FAILURE, NOTE_LEAK_SUSPECT, Origin, SeriesOf, Snapshot,
};
use serde_json::Value;

struct Sum<'a> {
    count: u64,
    bytes: u64,
    oldest_ns: u64,
    newest_ns: u64,
    series: Vec<&'a SeriesOf>,
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
        let mut groups: HashMap<Origin, Sum> = HashMap::new();
        let mut newest_ns = 0;
        for record in &snapshot.records {
            newest_ns = newest_ns.max(record.born_ns);
            let none = Sum { count: 0, bytes: 0, oldest_ns: u64::MAX, newest_ns: 0, series: Vec::new() };
            let sum = groups.entry(record.origin()).or_insert(none);
            sum.count += 1;
            sum.bytes = sum.bytes.saturating_add(record.bytes);
            sum.oldest_ns = sum.oldest_ns.min(record.born_ns);
            sum.newest_ns = sum.newest_ns.max(record.born_ns);
        }
        for series in &snapshot.series {
            // Of what is not live any more there is nothing to say.
            if let Some(sum) = groups.get_mut(&series.origin) {
                sum.series.push(series);
            }
        }
        // Never before the last allocation: a file that was copied, or a clock set back, would give that.
        let as_of = as_of_ns.saturating_sub(snapshot.started_ns).max(newest_ns);

        let courses = Courses::of(snapshot, as_of);
        let mut order: Vec<(Origin, Sum)> = groups.into_iter().collect();
        let rest = |key: &Origin| {
            let stack = key.stack.and_then(|place| snapshot.stacks.get(place as usize));
            (key.device, key.class, key.api, key.runtime_api, key.runtime, stack)
        };
        crate::order::sort(&mut order, |(a, in_a), (b, in_b)| {
            match (in_b.bytes, in_b.count).cmp(&(in_a.bytes, in_a.count)) {
                Ordering::Equal => rest(a) < rest(b),
                order => order.is_lt(),
            }
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
            leaks: order
                .iter()
                .map(|(origin, sum)| {
                    let mut leak = leak(snapshot, *origin, sum, as_of);
                    courses.add(&mut leak, &sum.series, sum.oldest_ns, sum.newest_ns);
                    leak
                })
                .collect(),
            lived_s: courses.end_s(),
            timeline_s: courses.times_s().to_vec(),
            init_failures: notes(snapshot, NOTE_INIT_FAILURE),
            leak_suspects: notes(snapshot, NOTE_LEAK_SUSPECT),
            modules: used_modules(snapshot),
            lost_records: snapshot.lost_records,
            damaged_parts: snapshot.damaged,
            damages: snapshot.problems.clone(),
        }
    }
}

fn notes(snapshot: &Snapshot, kind: u32) -> Vec<Value> {
    snapshot.notes.iter().filter(|note| note.kind == kind).map(|note| note.json.clone()).collect()
}

/// The call as the application made it.
pub(super) fn api_of(origin: Origin) -> String {
    api_name(if origin.runtime_api == 0 { origin.api } else { origin.runtime_api })
}

/// The call stack, innermost frame first, without names.
pub(super) fn frames(snapshot: &Snapshot, origin: Origin) -> impl Iterator<Item = Frame> + '_ {
    let stack = origin.stack.and_then(|place| snapshot.stacks.get(place as usize));
    stack.into_iter().flat_map(|frames| frames.iter()).map(|f| frame(f, snapshot))
}

fn leak(snapshot: &Snapshot, origin: Origin, sum: &Sum, as_of: u64) -> Leak {
    let age = |born_ns: u64| (as_of.saturating_sub(born_ns) / 1_000_000) as f64 / 1000.0;
    Leak {
        device: u32::from(origin.device),
        api: api_of(origin),
        count: sum.count,
        bytes: sum.bytes,
        // Milliseconds are what a reader can use, and keep the text short.
        oldest_age_s: age(sum.oldest_ns),
        newest_age_s: age(sum.newest_ns),
        stack: frames(snapshot, origin).collect(),
        class: origin.class.into(),
        held_by_driver: origin.class.is_held_by_driver(),
        driver_api: api_name(origin.api),
        runtime: origin
            .runtime
            .and_then(|place| snapshot.runtime_versions.get(usize::from(place)))
            .and_then(|&v| version(v)),
        growth: None,
        timeline: Vec::new(),
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
