use super::*;
use crate::cli::processes::Seen;
use crate::record::snapshot::DeviceState;
use std::collections::BTreeMap;
use std::path::PathBuf;

const BOOT: [u8; 16] = [7; 16];
const HERE: u64 = 100;
const THERE: u64 = 200;
const UUID: [u8; 16] = [0xab; 16];

fn who(pid: u32, pid_namespace: u64) -> Who {
    Who { pid, start_ticks: 5, stack_start: 1, pid_namespace, boot_id: BOOT }
}

fn holder(who: Who, is_alive: bool, bytes: u64) -> Holder {
    Holder { slot: 0, who: Some(who), is_alive, bytes, context_bytes: bytes / 4, since_ns: 1 }
}

fn view(holders: Vec<Holder>) -> DeviceView {
    DeviceView {
        uuid: UUID,
        is_mig: false,
        total_bytes: 1 << 30,
        limit: Limit::Operators(1000),
        context_cost: Some(10),
        denied: 3,
        holders,
    }
}

fn record(who: Who, started_ns: u64) -> Record {
    let state = DeviceState {
        uuid: format!("GPU-{}", uuid::text(&UUID)),
        name: "Card".to_owned(),
        peak_bytes: 90,
        denied_count: 2,
        alloc_count: 1,
        ..DeviceState::default()
    };
    Record {
        identity: identity(&who),
        boot_id: who.boot_id,
        exe: format!("/bin/{started_ns}"),
        labels: BTreeMap::new(),
        started_ns,
        has_ended: false,
        devices: vec![OnDevice { key: Key::Uuid(UUID), state }],
        path: PathBuf::new(),
    }
}

/// Processes 1 to 9 of this namespace are there, 4 is stopped; of others nothing is to be seen but 1, which is 51.
fn sight(identity: &Identity, boot_id: &[u8; 16]) -> Sight {
    let here = |pid| Sight::Here(Seen { pid, is_stopped: pid == 4 });
    match (identity.pid_namespace, identity.pid) {
        _ if *boot_id != BOOT => Sight::Gone,
        (HERE, pid) if pid < 10 => here(pid),
        (HERE, _) => Sight::Gone,
        (THERE, 1) => here(51),
        _ => Sight::Unseen,
    }
}

type Row = (Option<u32>, Option<u32>, State, u64);

fn joined(ledger: Option<&[DeviceView]>, records: &[Record], all: bool) -> Vec<Device> {
    let around = Surroundings {
        sight: &sight,
        is_neighbour: &|identity| identity.pid_namespace == HERE,
        live: &|_| Some(Live::from([(0, 60)])),
        exe: &|pid| Some(format!("/proc/{pid}")),
        all,
    };
    join(ledger, records, &around)
}

fn rows(devices: &[Device]) -> Vec<Row> {
    let all = devices.iter().flat_map(|device| &device.processes);
    all.map(|p| (p.pid, p.host_pid, p.state, p.live_bytes.unwrap_or(u64::MAX))).collect()
}

#[test]
fn the_living_are_the_ledgers_and_the_rest_is_in_their_files() {
    let ledger = [view(vec![
        holder(who(3, HERE), true, 40),
        holder(who(4, HERE), true, 400),
        holder(who(1, THERE), true, 80),
        holder(who(2, THERE), true, 44),
        holder(who(20, HERE), true, 4),
        Holder { who: None, ..holder(who(0, HERE), true, 8) },
        // No program that uses CUDA.
        holder(who(5, HERE), true, 0),
    ])];
    let records = [record(who(3, HERE), 11), record(who(1, THERE), 12)];
    let devices = joined(Some(&ledger), &records, false);
    let expected = [
        (Some(4), Some(4), State::Stopped, 300),
        (Some(1), Some(51), State::Running, 60),
        (Some(2), None, State::OtherNamespace, 33),
        (Some(3), Some(3), State::Running, 30),
        // It is being entered.
        (None, None, State::Running, 6),
        // It has died since, or just come.
        (Some(20), None, State::Running, 3),
    ];
    assert_eq!(rows(&devices), expected);
    let device = &devices[0];
    assert_eq!(devices.len(), 1);
    assert_eq!(
        (device.used_bytes, device.limit_bytes, device.limit_by),
        (576, Some(1000), Some(LimitBy::Operator))
    );
    assert_eq!((device.name.as_deref(), device.total_bytes), (Some("Card"), Some(1 << 30)));
    assert_eq!((device.context_cost_bytes, device.denied_count), (Some(10), Some(3)));
    let of_file = &device.processes[3];
    assert_eq!(
        (of_file.exe.as_deref(), of_file.peak_bytes, of_file.denied_count),
        (Some("/bin/11"), Some(90), Some(2))
    );
    let without = &device.processes[0];
    assert_eq!(
        (without.exe.as_deref(), without.peak_bytes, without.labels.is_none()),
        (Some("/proc/4"), None, true)
    );
}

#[test]
fn the_dead_come_from_their_files() {
    let ended = Record { has_ended: true, ..record(who(5, HERE), 13) };
    let tidy = {
        let mut tidy = Record { has_ended: true, ..record(who(6, HERE), 14) };
        tidy.devices[0].state.free_count = 1;
        tidy
    };
    let of_another_boot = Record { boot_id: [8; 16], ..record(who(3, HERE), 15) };
    // 9 is there, and the ledger says that it was another program; 2 of the other namespace would be in the ledger.
    let ledger = [view(vec![
        holder(who(11, HERE), false, 40),
        holder(who(9, HERE), false, 40),
        holder(who(12, HERE), false, 80),
        holder(who(13, HERE), false, 0),
    ])];
    let records = [
        record(who(11, HERE), 10),
        record(who(9, HERE), 9),
        record(who(2, THERE), 8),
        ended,
        tidy,
        of_another_boot,
    ];
    let devices = joined(Some(&ledger), &records, false);
    let dead = |pid| (Some(pid), None, State::Dead, 60);
    assert_eq!(rows(&devices), [dead(2), dead(3), dead(5), dead(9), dead(11), dead(12)]);
    assert_eq!(devices[0].used_bytes, 0);
    let all = rows(&joined(Some(&ledger), &records, true));
    assert_eq!(all.len(), 7);
    assert_eq!(all[6], (Some(6), None, State::Dead, 0));
}

#[test]
fn an_exec_makes_another_program_of_a_process() {
    let ledger = [view(vec![holder(who(3, HERE), false, 8), holder(who(3, HERE), true, 40)])];
    // The first was not marked as ended.
    let records = [record(who(3, HERE), 11), record(who(3, HERE), 12)];
    let devices = joined(Some(&ledger), &records, false);
    assert_eq!(rows(&devices), [(Some(3), Some(3), State::Running, 30), (Some(3), None, State::Dead, 60)]);
    assert_eq!(devices[0].processes[0].exe.as_deref(), Some("/bin/12"));
    let without = rows(&joined(None, &records, false));
    assert_eq!(without, [(Some(3), Some(3), State::Running, 60), (Some(3), None, State::Dead, 60)]);
}

#[test]
fn without_a_ledger_files_must_do() {
    let records = [
        record(who(3, HERE), 1),
        record(who(4, HERE), 2),
        record(who(30, HERE), 3),
        record(who(1, THERE), 4),
        record(who(2, THERE), 5),
    ];
    let devices = joined(None, &records, false);
    let expected = [
        (Some(1), Some(51), State::Running, 60),
        (Some(2), None, State::OtherNamespace, 60),
        (Some(3), Some(3), State::Running, 60),
        (Some(4), Some(4), State::Stopped, 60),
        (Some(30), None, State::Dead, 60),
    ];
    assert_eq!(rows(&devices), expected);
    assert_eq!((devices[0].used_bytes, devices[0].limit_bytes, devices[0].limit_by), (240, None, None));
}

#[test]
fn a_device_that_only_files_know() {
    let mut other = record(who(3, HERE), 1);
    other.devices[0].key = Key::Text("GPU-\u{1b}".to_owned());
    other.devices[0].state.uuid = "GPU-\u{1b}".to_owned();
    let devices = joined(Some(&[view(Vec::new())]), &[other], false);
    assert_eq!(devices.len(), 2);
    assert_eq!((devices[1].uuid.as_str(), devices[1].limit_bytes), ("GPU-\u{1b}", None));
}
