//! Record files: what a good one says, and that a bad one harms nobody.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;

use std::mem::offset_of;
use std::path::PathBuf;

use cli_support::record_file::{Allocation, RecordFile, put, set_extent};
use cli_support::{Temp, must};
use cuwarden::record::layout::*;
use cuwarden::record::snapshot::{Fault, Liveness, Observer, Snapshot};

/// A file with some of everything.
fn sample() -> RecordFile {
    let mut file = RecordFile::new();
    file.module(1, "/opt/app/trainer", &[0xab; 20]);
    file.module(2, "/opt/app/libplugin.so", &[]);
    let inner = file.stack(&[(1, 0x1234), (2, 0x42), (0, 0x7fff_0000)]);
    let outer = file.stack(&[(1, 0x9999)]);
    file.allocation(Allocation { stack: inner, ..Allocation::default() });
    file.freed();
    file.allocation(Allocation {
        stack: outer,
        device: 1,
        bytes: 4096,
        runtime_api: 0,
        runtime: 0,
        ..Allocation::default()
    });
    file.note(1, r#"{"event":"init_failure","api":"cuInit","code":100,"name":"CUDA_ERROR_NO_DEVICE"}"#);
    file.device_field(0, offset_of!(Device, denied_count), 3);
    file.count(0, 0, 5, 2);
    file.count(15, 0, 1, 3);
    file
}

#[test]
fn a_good_file_is_read_to_the_last_field() {
    let snapshot = Snapshot::from_bytes(&sample().bytes()).unwrap();
    assert_eq!(snapshot.problems, Vec::<String>::new());
    assert_eq!(snapshot.damaged, 0);
    assert_eq!((snapshot.pid, snapshot.ppid, snapshot.start_ticks), (4242, 4000, 77));
    assert_eq!(snapshot.exe, "/opt/app/trainer");
    assert_eq!(snapshot.cmdline, ["trainer", "--epochs", "3"]);
    assert_eq!(snapshot.labels, "arm=A,cuda=12.9");
    assert_eq!(snapshot.runtime_versions, [12090]);
    assert_eq!(snapshot.devices.len(), 2);
    let device = &snapshot.devices[0];
    assert_eq!((device.uuid.as_str(), device.name.as_str()), ("GPU-00000000", "Simulated GPU"));
    assert_eq!((device.alloc_count, device.free_count), (6, 5));
    assert_eq!(snapshot.records.len(), 2);
    assert_eq!(snapshot.records[0].runtime, Some(0));
    assert_eq!(snapshot.records[1].runtime, None);
    assert_eq!((snapshot.records[1].device, snapshot.records[1].bytes), (1, 4096));
    let frames = &snapshot.stacks[snapshot.records[0].stack.unwrap() as usize];
    assert_eq!(frames.len(), 3);
    assert_eq!(
        snapshot.modules[frames[1].module.unwrap() as usize].path,
        PathBuf::from("/opt/app/libplugin.so")
    );
    assert_eq!((frames[2].module, frames[2].address), (None, 0x7fff_0000));
    assert_eq!(snapshot.notes[0].json["code"], 100);
}

#[test]
fn file_memory_and_parts_say_the_same() {
    let file = sample();
    let temp = Temp::new("same");
    let path = temp.write("4242.rec", file.bytes());
    let from_file = Snapshot::open(&path).unwrap();
    let extents = file.extents();
    let parts: Vec<(Area, &[u8])> = extents.iter().map(|(area, bytes)| (*area, bytes.as_slice())).collect();
    let from_parts = Snapshot::from_parts(&file.finished_header(), &parts).unwrap();
    let from_bytes = Snapshot::from_bytes(&file.bytes()).unwrap();
    assert_eq!(format!("{from_file:?}"), format!("{from_bytes:?}"));
    assert_eq!(format!("{from_parts:?}"), format!("{from_bytes:?}"));
    // The owner's header is a struct, without the padding to whole pages.
    let short = &file.finished_header()[..size_of::<Header>()];
    assert_eq!(format!("{:?}", Snapshot::from_parts(short, &parts).unwrap()), format!("{from_bytes:?}"));
}

#[test]
fn many_extents_are_one_array() {
    let mut file = RecordFile::new();
    for id in 1..=800 {
        file.module(id, &format!("/lib/number-{id:05}.so"), &[7; 20]);
    }
    let stacks: Vec<u32> = (0..20_000).map(|i| file.stack(&[(1 + i % 800, 0x1000 + i)])).collect();
    for (i, &stack) in stacks.iter().enumerate() {
        file.allocation(Allocation { address: i as u64, bytes: 512, stack, ..Allocation::default() });
    }
    let snapshot = Snapshot::from_bytes(&file.bytes()).unwrap();
    assert_eq!(snapshot.problems, Vec::<String>::new());
    assert_eq!(snapshot.records.len(), 20_000);
    assert_eq!(snapshot.stacks.len(), 20_000);
    let last = snapshot.records[19_999];
    let frame = snapshot.stacks[last.stack.unwrap() as usize][0];
    assert_eq!((last.address, frame.address), (19_999, 0x1000 + 19_999));
    assert_eq!(snapshot.modules[frame.module.unwrap() as usize].path, PathBuf::from("/lib/number-00800.so"));
}

#[test]
fn entries_that_did_not_fit_begin_with_the_next_extent() {
    let mut file = RecordFile::new();
    let long = format!("/{}", "x".repeat(10_000));
    file.module(1, &long, &[]);
    // What the writer does: the rest of the first extent stays zero.
    let area = Area::Modules.index();
    file.areas[area].resize(Area::Modules.first_extent_bytes() as usize, 0);
    file.module(2, &long, &[]);
    let snapshot = Snapshot::from_bytes(&file.bytes()).unwrap();
    assert_eq!((snapshot.modules.len(), snapshot.damaged), (2, 0));
    assert_eq!(snapshot.modules[1].id, 2);
}

#[test]
fn an_extent_that_is_missing_leaves_the_others_in_place() {
    let mut file = RecordFile::new();
    for address in 0..8000 {
        file.allocation(Allocation { address, ..Allocation::default() });
    }
    let mut bytes = file.finished_header();
    // The second of three extents never reached the file, as when the disk is full for a moment.
    let extents: Vec<_> = file.extents().into_iter().enumerate().filter(|(index, _)| *index != 1).collect();
    for (row, (_, (area, extent))) in extents.into_iter().enumerate() {
        set_extent(&mut bytes, row, area as u32, None, extent.len() as u64);
        bytes.extend(extent);
    }
    let snapshot = Snapshot::from_bytes(&bytes).unwrap();
    assert!(snapshot.damaged > 0);
    let addresses: Vec<u64> = snapshot.records.iter().map(|record| record.address).collect();
    let expected: Vec<u64> = (0..1024).chain(3072..8000).collect();
    assert_eq!(addresses, expected);
}

#[test]
fn what_is_no_record_file_is_named_so() {
    let good = sample().bytes();
    let fault = |bytes: &[u8]| Snapshot::from_bytes(bytes).unwrap_err().fault;
    assert!(matches!(fault(b""), Fault::NotBegun));
    assert!(matches!(fault(&[0; 4096]), Fault::NotBegun));
    assert!(matches!(fault(b"PK\x03\x04 and so on"), Fault::NotARecordFile));
    assert!(matches!(fault(&good[..100]), Fault::CutShort(100)));
    assert!(matches!(fault(&good[..10]), Fault::CutShort(10)));
    let mut other = good.clone();
    put(&mut other, offset_of!(Header, version), &9u32.to_le_bytes());
    assert!(matches!(fault(&other), Fault::Version(9)));
    let mut other = good;
    put(&mut other, offset_of!(Header, header_bytes), &1u32.to_le_bytes());
    assert!(matches!(fault(&other), Fault::HeaderSize(1)));
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let temp = Temp::new("errors");
    let text = |path: PathBuf| Snapshot::open(&path).unwrap_err().to_string();
    let missing = text(temp.join("missing"));
    assert!(missing.contains("missing") && missing.contains("No such file"), "{missing}");
    let folder = text(temp.path().to_owned());
    assert!(folder.contains("not a regular file"), "{folder}");
    must(std::process::Command::new("mkfifo").arg(temp.join("pipe")));
    let pipe = text(temp.join("pipe"));
    assert!(pipe.contains("not a regular file"), "{pipe}");
    let short = text(temp.write("short", &sample().bytes()[..5000]));
    assert!(short.contains("cut short") && short.contains("5000 bytes"), "{short}");
}

#[test]
fn a_file_cut_anywhere_gives_what_is_left() {
    let file = sample();
    let good = file.bytes();
    for length in (HEADER_BYTES..good.len()).step_by(997) {
        let snapshot = Snapshot::from_bytes(&good[..length]).unwrap();
        assert!(snapshot.damaged > 0, "cut at {length}");
        assert!(snapshot.records.len() <= 2);
    }
}

#[test]
fn claims_that_cannot_be_true_cost_nothing() {
    let good = sample().bytes();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let snapshot = Snapshot::from_bytes(&bytes).unwrap();
        assert!(snapshot.damaged > 0);
        assert!(!snapshot.problems.is_empty());
        snapshot
    };
    // Extents over each other, over the header, beyond the end, of no known kind, of a size that overflows.
    let first = HEADER_BYTES as u64;
    damaged(&|bytes| set_extent(bytes, 1, Area::Stacks as u32, Some(first), 64 << 10));
    damaged(&|bytes| set_extent(bytes, 0, Area::Records as u32, Some(0), 48 << 10));
    damaged(&|bytes| set_extent(bytes, 0, Area::Records as u32, Some(1 << 40), 48 << 10));
    damaged(&|bytes| set_extent(bytes, 0, 77, Some(first), 48 << 10));
    damaged(&|bytes| set_extent(bytes, 0, Area::Records as u32, Some(first), u64::MAX));
    damaged(&|bytes| set_extent(bytes, 0, Area::Records as u32, Some(first + 1), 48 << 10));
    // An area that claims everything.
    for area in Area::ALL {
        damaged(&|bytes| put(bytes, offset_of!(Header, used) + area.index() * 8, &u64::MAX.to_le_bytes()));
    }
    // Texts longer than their place.
    for index in 0..3 {
        damaged(&|bytes| put(bytes, offset_of!(Header, text_lengths) + index * 4, &[0xff; 4]));
    }
    // A stack and a device out of range.
    let stack = HEADER_BYTES + offset_of!(Record, stack);
    let snapshot = damaged(&|bytes| put(bytes, stack, &u32::MAX.to_le_bytes()));
    assert_eq!(snapshot.records[0].stack, None);
    let snapshot = damaged(&|bytes| put(bytes, HEADER_BYTES + offset_of!(Record, place), &[200]));
    assert_eq!(snapshot.records.len(), 1);
    let snapshot = damaged(&|bytes| put(bytes, HEADER_BYTES + offset_of!(Record, kind), &[1, 99]));
    assert_eq!(snapshot.records.len(), 1);
}

#[test]
fn stacks_that_overlap_do_not_multiply_memory() {
    let mut file = RecordFile::new();
    // One long stack, whose every word looks like the head of another long one.
    let frames: Vec<(u64, u64)> = (0..4096).map(|_| (0, 1000)).collect();
    file.stack(&frames);
    put(&mut file.areas[Area::Stacks.index()], 8, &1000u32.to_le_bytes());
    for stack in 1..4000 {
        file.allocation(Allocation { stack, ..Allocation::default() });
    }
    let snapshot = Snapshot::from_bytes(&file.bytes()).unwrap();
    let frames: usize = snapshot.stacks.iter().map(|stack| stack.len()).sum();
    assert!(frames <= file.areas[Area::Stacks.index()].len() / 8);
    assert!(snapshot.damaged > 0);
}

/// Numbers that differ and are the same at each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

#[test]
fn thousands_of_damaged_files_harm_nobody() {
    let good = sample().bytes();
    let interesting = [
        offset_of!(Header, version),
        offset_of!(Header, used),
        offset_of!(Header, text_lengths),
        offset_of!(Header, devices),
        offset_of!(Header, extents),
        HEADER_BYTES,
        HEADER_BYTES + (48 << 10),
        HEADER_BYTES + (112 << 10),
        HEADER_BYTES + (128 << 10),
    ];
    let extremes =
        [0u64, 1, 0xff, 0xffff_ffff, 1 << 31, 1 << 32, u64::MAX, u64::MAX - 4095, HEADER_BYTES as u64];
    let mut random = Random(0x5eed);
    let (mut read, mut refused, mut damaged) = (0, 0, 0);
    for _ in 0..4000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(6) {
            let start = interesting[random.below(interesting.len())] + random.below(128);
            match random.below(3) {
                0 => bytes[start] ^= 1 << random.below(8),
                1 => put(&mut bytes, start & !7, &extremes[random.below(extremes.len())].to_le_bytes()),
                _ => put(&mut bytes, start & !3, &(random.next() as u32).to_le_bytes()),
            }
        }
        if random.below(4) == 0 {
            let length = random.below(bytes.len());
            bytes.truncate(length);
        }
        match Snapshot::from_bytes(&bytes) {
            Ok(snapshot) => {
                read += 1;
                damaged += u64::from(snapshot.damaged > 0);
                assert!(snapshot.records.len() <= bytes.len() / RECORD_BYTES);
                assert!(snapshot.problems.len() <= 16);
                // A report can be made from whatever was read.
                let report = cuwarden::report::Report::from_snapshot(&snapshot, Liveness::Killed.into(), 0);
                serde_json::to_string(&report).unwrap();
                cuwarden::report::text::one(&report, &cuwarden::report::text::Style::PLAIN);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    // The test means something only where all three happen often.
    assert!(read > 500 && refused > 200 && damaged > 300, "{read} {refused} {damaged}");
}

#[test]
fn noise_after_a_good_header_harms_nobody() {
    let mut random = Random(42);
    let good = sample().bytes();
    for _ in 0..50 {
        let mut bytes = good.clone();
        for byte in &mut bytes[HEADER_BYTES..] {
            *byte = random.next() as u8;
        }
        Snapshot::from_bytes(&bytes).unwrap();
        for byte in &mut bytes[20..HEADER_BYTES] {
            *byte = random.next() as u8;
        }
        Snapshot::from_bytes(&bytes).unwrap();
    }
}

#[test]
fn a_sparse_file_that_claims_terabytes_is_read_within_bounds() {
    let temp = Temp::new("sparse");
    let mut bytes = RecordFile::new().bytes();
    set_extent(&mut bytes, 0, Area::Notes as u32, Some(HEADER_BYTES as u64), 1 << 42);
    put(&mut bytes, offset_of!(Header, used) + Area::Notes.index() * 8, &(1u64 << 42).to_le_bytes());
    let path = temp.write("sparse", bytes);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    if file.set_len(1 << 43).is_err() {
        // This file system has no files of that size, so nobody can make one.
        return;
    }
    let snapshot = Snapshot::open(&path).unwrap();
    assert!(
        snapshot.problems.iter().any(|words| words.contains("only the first")),
        "{:?}",
        snapshot.problems
    );
}

#[test]
fn a_file_that_is_being_written_is_readable() {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    let mut file = RecordFile::new();
    file.module(1, "/opt/app/trainer", &[]);
    for address in 0..20_000u64 {
        let stack = file.stack(&[(1, 0x1000 + address)]);
        file.allocation(Allocation { address, stack, ..Allocation::default() });
    }
    let bytes = file.bytes();
    let temp = Temp::new("live");
    let mut start = bytes.clone();
    let used = offset_of!(Header, used);
    put(&mut start, used, &0u64.to_le_bytes());
    put(&mut start, used + 8, &0u64.to_le_bytes());
    let path = temp.write("live", start);
    let writing = std::fs::File::options().write(true).open(&path).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0..=20_000u64 {
                // In the writer's order: the stack is in use before the record that points to it.
                writing.write_all_at(&(count * 24).to_le_bytes(), (used + 8) as u64).unwrap();
                writing.write_all_at(&(count * RECORD_BYTES as u64).to_le_bytes(), used as u64).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let mut last = 0;
        loop {
            let finished = done.load(Ordering::Acquire);
            let snapshot = Snapshot::open(&path).unwrap();
            assert_eq!(snapshot.problems, Vec::<String>::new());
            assert!(snapshot.records.iter().all(|record| record.stack.is_some()));
            assert!(snapshot.records.len() >= last);
            last = snapshot.records.len();
            if finished {
                break;
            }
        }
        assert_eq!(last, 20_000);
    });
}

#[test]
fn whether_a_process_lives() {
    let observer = Observer::here();
    let mut snapshot = Snapshot::from_bytes(&RecordFile::new().bytes()).unwrap();
    snapshot.boot_id = observer.boot_id.unwrap();
    snapshot.pid_namespace = observer.pid_namespace.unwrap();
    snapshot.pid = std::process::id();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    snapshot.start_ticks = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
    assert_eq!(observer.liveness(&snapshot), Liveness::Running);

    let with = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = snapshot.clone();
        change(&mut snapshot);
        observer.liveness(&snapshot)
    };
    assert_eq!(with(&|s| s.ended_ns = 1), Liveness::Exited);
    // The same number, another process.
    assert_eq!(with(&|s| s.start_ticks += 1), Liveness::Killed);
    assert_eq!(with(&|s| s.pid = u32::MAX), Liveness::Killed);
    assert_eq!(with(&|s| s.boot_id = [1; 16]), Liveness::Killed);
    // A file that does not say in which boot it was made is judged by the process alone.
    assert_eq!(with(&|s| s.boot_id = [0; 16]), Liveness::Running);
    assert_eq!(with(&|s| s.pid_namespace = 1), Liveness::Unknown);
    let blind = Observer { pid_namespace: None, ..observer.clone() };
    assert_eq!(blind.liveness(&snapshot), Liveness::Unknown);
}

#[test]
fn a_zombie_is_dead() {
    let observer = Observer::here();
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let path = format!("/proc/{}/stat", child.id());
    let stat = || std::fs::read_to_string(&path).unwrap();
    let mut snapshot = Snapshot::from_bytes(&RecordFile::new().bytes()).unwrap();
    snapshot.boot_id = [0; 16];
    snapshot.pid_namespace = observer.pid_namespace.unwrap();
    snapshot.pid = child.id();
    let fields = stat();
    snapshot.start_ticks =
        fields.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    assert_eq!(observer.liveness(&snapshot), Liveness::Running);
    child.kill().unwrap();
    while !stat().contains(") Z ") {
        std::thread::yield_now();
    }
    assert_eq!(observer.liveness(&snapshot), Liveness::Killed);
    child.wait().unwrap();
}
