//! One process that is watched.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::growth::Point;
use crate::growth::drift::{Detector, Live};
use crate::policy::drift::Settings;
use crate::record::layout::Class;
use crate::record::snapshot::{Frame, Origin, SeriesOf, Snapshot};
use crate::report::suspect;

/// What is live in all processes of a directory, by UUID of the device, in bytes.
pub type Used = HashMap<String, u64>;

/// Sums up what the processes of a directory hold.
pub fn used<'a>(snapshots: impl Iterator<Item = &'a Snapshot>) -> Used {
    let mut used = Used::new();
    for snapshot in snapshots {
        for record in &snapshot.records {
            let device = snapshot.devices.iter().find(|device| device.ordinal == u32::from(record.device));
            if let Some(device) = device {
                let sum = used.entry(device.uuid.clone()).or_default();
                *sum = sum.saturating_add(record.bytes);
            }
        }
    }
    used
}

/// What is known of one process.
pub struct Watched {
    detector: Detector,
    numbers: HashMap<Key, usize>,
    devices: Vec<u8>,
    /// The last sample of the process's own that was looked at, in nanoseconds since its start.
    looked_back_ns: u64,
}

/// An [`Origin`] that means the same in every snapshot: the places of stacks differ.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    device: u8,
    class: Class,
    api: u16,
    runtime_api: u16,
    runtime: Option<u8>,
    stack: Option<Arc<[Frame]>>,
}

impl Key {
    fn of(origin: Origin, snapshot: &Snapshot) -> Key {
        let Origin { device, class, api, runtime_api, runtime, stack } = origin;
        let stack = stack.and_then(|place| snapshot.stacks.get(place as usize)).cloned();
        Key { device, class, api, runtime_api, runtime, stack }
    }
}

impl Watched {
    /// Nothing seen yet.
    pub fn new(settings: Settings) -> Watched {
        Watched {
            detector: Detector::new(settings),
            numbers: HashMap::new(),
            devices: Vec::new(),
            looked_back_ns: 0,
        }
    }

    /// Takes what a process holds now, and answers the fields of an event for each suspicion.
    pub fn see(&mut self, snapshot: &Snapshot, now_ns: u64, used: &Used) -> Vec<Value> {
        let mut bytes = vec![0u64; self.devices.len()];
        let mut origins: HashMap<usize, Origin> = HashMap::new();
        // Records of one origin are many, and its key is long.
        let mut known: HashMap<Origin, usize> = HashMap::new();
        for record in snapshot.records.iter().filter(|record| !record.class.is_held_by_driver()) {
            let origin = record.origin();
            let number = *known.entry(origin).or_insert_with(|| {
                let number = self.number(Key::of(origin, snapshot));
                origins.insert(number, origin);
                number
            });
            bytes.resize(self.devices.len(), 0);
            bytes[number] = bytes[number].saturating_add(record.bytes);
        }
        let age_s = now_ns.saturating_sub(snapshot.started_ns) as f64 / 1e9;
        let live = Live { at_s: age_s, bytes: &bytes, devices: &self.devices };
        let mut found = self.detector.see(live);
        let newest = snapshot.sample_ns.iter().copied().max().unwrap_or(0);
        if newest > self.looked_back_ns {
            self.looked_back_ns = newest;
            let courses = self.courses(snapshot);
            let course = |number: usize| courses.get(&number).cloned().unwrap_or_default();
            for device in &snapshot.devices {
                let Ok(ordinal) = u8::try_from(device.ordinal) else { continue };
                let most = if device.limit_bytes == 0 { device.total_bytes } else { device.limit_bytes };
                let room = most.saturating_sub(used.get(&device.uuid).copied().unwrap_or(0));
                found.extend(self.detector.look_back(live, ordinal, room, &course));
            }
        }
        let origin_of = |number: usize| origins.get(&number).copied();
        found.iter().map(|suspicion| suspect::fields(snapshot, suspicion, &origin_of)).collect()
    }

    fn number(&mut self, key: Key) -> usize {
        let (next, device) = (self.devices.len(), key.device);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.devices.push(device);
        }
        number
    }

    /// The time lines that the process itself keeps, of what is live.
    fn courses(&self, snapshot: &Snapshot) -> HashMap<usize, Vec<Point>> {
        let mut order: Vec<(u64, usize)> =
            snapshot.sample_ns.iter().copied().zip(0..).filter(|(at_ns, _)| *at_ns != 0).collect();
        order.sort_unstable();
        let points = |series: &SeriesOf| {
            let point = |(at_ns, place): &(u64, usize)| Point {
                at_s: *at_ns as f64 / 1e9,
                bytes: series.bytes.get(*place).copied().unwrap_or(0),
            };
            order.iter().map(point).collect()
        };
        let numbered = |series: &SeriesOf| {
            let number = self.numbers.get(&Key::of(series.origin, snapshot))?;
            Some((*number, points(series)))
        };
        snapshot.series.iter().filter_map(numbered).collect()
    }
}
