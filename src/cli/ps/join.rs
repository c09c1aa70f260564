//! Who holds what: the ledger's holders and the record files, put together.
//!
//! The ledger says who is alive and what is charged; record files say who that is, and what the dead held.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::model::{Device, LimitBy, Process, State};
use crate::cli::processes::{Identity, Sight};
use crate::cli::records::{Key, Live, OnDevice, Record};
use crate::ledger::limit::Limit;
use crate::ledger::liveness::Who;
use crate::ledger::view::{DeviceView, Holder};
use crate::report::time::rfc3339;
use crate::report::uuid;

/// What a directory's files cannot tell.
pub struct Surroundings<'a> {
    /// What became of a process of a boot.
    pub sight: &'a dyn Fn(&Identity, &[u8; 16]) -> Sight,
    /// Whether it is of the pid namespace from which is asked.
    pub is_neighbour: &'a dyn Fn(&Identity) -> bool,
    /// What a record file's process holds or held.
    pub live: &'a dyn Fn(&Record) -> Option<Live>,
    /// The program of a process that is there, by its number here.
    pub exe: &'a dyn Fn(u32) -> Option<String>,
    /// The dead that held nothing are asked for too.
    pub all: bool,
}

/// All devices of a directory. Without a ledger, record files alone must do.
pub fn join(ledger: Option<&[DeviceView]>, records: &[Record], around: &Surroundings<'_>) -> Vec<Device> {
    let mut joined = Joined::new(ledger, records, around);
    // Which of them have somebody in the ledger who is alive.
    let mut is_alive = vec![false; records.len()];
    for view in ledger.unwrap_or_default() {
        joined.device_of_ledger(view, &mut is_alive);
    }
    for place in (0..records.len()).filter(|place| !is_alive[*place]) {
        joined.others(place, &is_alive);
    }
    let mut devices = joined.devices;
    for device in &mut devices {
        device.processes.sort_by_key(|p| (p.state == State::Dead, Reverse(p.live_bytes), p.pid, p.host_pid));
        if ledger.is_none() {
            let held = device.processes.iter().filter(|p| p.state != State::Dead);
            device.used_bytes = held.filter_map(|p| p.live_bytes).fold(0, u64::saturating_add);
        }
    }
    devices
}

struct Joined<'a> {
    records: &'a [Record],
    around: &'a Surroundings<'a>,
    has_ledger: bool,
    /// Places in `records`.
    by_identity: HashMap<Identity, Vec<usize>>,
    /// All that have a slot, with their boots.
    in_ledger: HashMap<Identity, [u8; 16]>,
    devices: Vec<Device>,
    /// Places in `devices`.
    places: HashMap<Key, usize>,
}

impl<'a> Joined<'a> {
    fn new(ledger: Option<&[DeviceView]>, records: &'a [Record], around: &'a Surroundings<'a>) -> Joined<'a> {
        let mut by_identity: HashMap<Identity, Vec<usize>> = HashMap::new();
        for (place, record) in records.iter().enumerate() {
            by_identity.entry(record.identity).or_default().push(place);
        }
        let holders = ledger.unwrap_or_default().iter().flat_map(|view| &view.holders);
        let in_ledger = holders.filter_map(|holder| holder.who);
        Joined {
            records,
            around,
            has_ledger: ledger.is_some(),
            by_identity,
            in_ledger: in_ledger.map(|who| (identity(&who), who.boot_id)).collect(),
            devices: Vec::new(),
            places: HashMap::new(),
        }
    }

    fn device_of_ledger(&mut self, view: &DeviceView, is_alive: &mut [bool]) {
        let key = Key::Uuid(view.uuid);
        let mut processes = Vec::new();
        for holder in &view.holders {
            let record = holder.who.and_then(|who| self.record_of(&who));
            match (holder.is_alive, record) {
                // `cuwarden limit` at its work: whoever uses CUDA has a record file.
                (true, None) if holder.bytes == 0 => {}
                (true, record) => {
                    if let Some(place) = record {
                        is_alive[place] = true;
                    }
                    let record = record.and_then(|place| self.records.get(place));
                    processes.push(self.running(holder, record, &key));
                }
                (false, None) if holder.bytes != 0 => processes.push(nameless_dead(holder)),
                // Of those with a record file, that says more.
                (false, _) => {}
            }
        }
        let (bytes, by) = match view.limit {
            Limit::Unset => (0, LimitBy::None),
            Limit::Told(bytes) => (bytes, LimitBy::Environment),
            Limit::Operators(bytes) => (bytes, LimitBy::Operator),
        };
        let kind = if view.is_mig { "MIG" } else { "GPU" };
        self.places.insert(key.clone(), self.devices.len());
        self.devices.push(Device {
            uuid: format!("{kind}-{}", uuid::text(&view.uuid)),
            name: self.name(&key),
            total_bytes: (view.total_bytes != 0).then_some(view.total_bytes),
            limit_bytes: Some(bytes),
            limit_by: Some(by),
            used_bytes: view.used(),
            context_cost_bytes: view.context_cost,
            denied_count: Some(view.denied),
            processes,
        });
    }

    fn running(&self, holder: &Holder, record: Option<&Record>, key: &Key) -> Process {
        let sight = holder.who.map(|who| (self.around.sight)(&identity(&who), &who.boot_id));
        let is_neighbour = holder.who.is_some_and(|who| (self.around.is_neighbour)(&identity(&who)));
        let (state, host_pid) = match sight {
            Some(Sight::Here(seen)) if seen.is_stopped => (State::Stopped, Some(seen.pid)),
            Some(Sight::Here(seen)) => (State::Running, Some(seen.pid)),
            Some(Sight::Unseen) => (State::OtherNamespace, None),
            // It is starting, or it has died since.
            Some(Sight::Gone) | None => (State::Running, None),
        };
        let on = record.and_then(|record| record.devices.iter().find(|on| on.key == *key));
        let since = record.map_or(holder.since_ns, |record| record.started_ns);
        Process {
            pid: holder.who.map(|who| who.pid),
            host_pid,
            exe: record.map(|record| record.exe.clone()).or_else(|| (self.around.exe)(host_pid?)),
            labels: record.map(|record| record.labels.clone()),
            state,
            live_bytes: Some(holder.bytes.saturating_sub(holder.context_bytes)),
            context_bytes: Some(holder.context_bytes),
            peak_bytes: on.map(|on| on.state.peak_bytes),
            denied_count: on.map(|on| on.state.denied_count),
            unaccounted_bytes: None,
            started_at: rfc3339(since),
            is_neighbour,
        }
    }

    /// A process that nobody in the ledger is.
    fn others(&mut self, place: usize, is_alive: &[bool]) {
        let Some(record) = self.records.get(place) else { return };
        let (state, host_pid) = self.state_of(place, record, is_alive);
        let may_hold = record.may_hold_something() || state != State::Dead;
        let live = if may_hold { (self.around.live)(record) } else { Some(Live::new()) };
        for on in &record.devices {
            let bytes = live.as_ref().map(|live| live.get(&on.state.ordinal).copied().unwrap_or(0));
            if state == State::Dead && bytes == Some(0) && !self.around.all {
                continue;
            }
            let process = Process {
                pid: Some(record.identity.pid),
                host_pid,
                exe: Some(record.exe.clone()),
                labels: Some(record.labels.clone()),
                state,
                live_bytes: bytes,
                context_bytes: (state != State::Dead).then_some(on.state.context_bytes),
                peak_bytes: Some(on.state.peak_bytes),
                denied_count: Some(on.state.denied_count),
                unaccounted_bytes: None,
                started_at: rfc3339(record.started_ns),
                is_neighbour: (self.around.is_neighbour)(&record.identity),
            };
            self.device_of_record(on).processes.push(process);
        }
    }

    fn state_of(&self, own: usize, record: &Record, is_alive: &[bool]) -> (State, Option<u32>) {
        // A program that was replaced by an exec has its successor's number and time of start.
        let has_successor = self.of(&record.identity, &record.boot_id).any(|(place, other)| {
            is_alive[place] || (!other.has_ended && (other.started_ns, place) > (record.started_ns, own))
        });
        let slot = self.in_ledger.get(&record.identity);
        let died = slot.is_some_and(|boot_id| is_same_boot(boot_id, &record.boot_id));
        if record.has_ended || has_successor || died {
            return (State::Dead, None);
        }
        match (self.around.sight)(&record.identity, &record.boot_id) {
            Sight::Here(seen) if seen.is_stopped => (State::Stopped, Some(seen.pid)),
            // It could not enter the ledger, or there is none.
            Sight::Here(seen) => (State::Running, Some(seen.pid)),
            Sight::Gone => (State::Dead, None),
            // Who runs is in the ledger.
            Sight::Unseen if self.has_ledger => (State::Dead, None),
            Sight::Unseen => (State::OtherNamespace, None),
        }
    }

    fn device_of_record(&mut self, on: &OnDevice) -> &mut Device {
        let place = *self.places.entry(on.key.clone()).or_insert(self.devices.len());
        if place == self.devices.len() {
            let name = self.name(&on.key);
            self.devices.push(Device {
                uuid: match &on.key {
                    Key::Uuid(bytes) if on.state.uuid.is_empty() => format!("GPU-{}", uuid::text(bytes)),
                    _ => on.state.uuid.clone(),
                },
                name,
                total_bytes: (on.state.total_bytes != 0).then_some(on.state.total_bytes),
                limit_bytes: None,
                limit_by: None,
                used_bytes: 0,
                context_cost_bytes: None,
                denied_count: None,
                processes: Vec::new(),
            });
        }
        &mut self.devices[place]
    }

    fn name(&self, key: &Key) -> Option<String> {
        let devices = self.records.iter().flat_map(|record| &record.devices);
        devices.filter(|on| on.key == *key).map(|on| on.state.name.clone()).find(|name| !name.is_empty())
    }

    /// The latest of a process's record files, whose program is the one that runs.
    fn record_of(&self, who: &Who) -> Option<usize> {
        let identity = identity(who);
        let of_it = self.of(&identity, &who.boot_id);
        of_it.max_by_key(|(_, record)| (!record.has_ended, record.started_ns)).map(|(place, _)| place)
    }

    /// All record files of a process, of the programs too that it was before.
    fn of(&self, identity: &Identity, boot_id: &[u8; 16]) -> impl Iterator<Item = (usize, &'a Record)> {
        let places = self.by_identity.get(identity).into_iter().flatten();
        let all = places.filter_map(|place| Some((*place, self.records.get(*place)?)));
        all.filter(|(_, record)| is_same_boot(boot_id, &record.boot_id))
    }
}

/// A dead process without a record file: the ledger has not been cleared of it yet.
fn nameless_dead(holder: &Holder) -> Process {
    Process {
        pid: holder.who.map(|who| who.pid),
        host_pid: None,
        exe: None,
        labels: None,
        state: State::Dead,
        live_bytes: Some(holder.bytes.saturating_sub(holder.context_bytes)),
        context_bytes: None,
        peak_bytes: None,
        denied_count: None,
        unaccounted_bytes: None,
        started_at: rfc3339(holder.since_ns),
        is_neighbour: false,
    }
}

fn identity(who: &Who) -> Identity {
    Identity { pid: who.pid, start_ticks: who.start_ticks, pid_namespace: who.pid_namespace }
}

/// Zero = not known.
fn is_same_boot(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one == other || *one == [0; 16] || *other == [0; 16]
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
