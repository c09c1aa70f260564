//! Somebody writes to the ledger while processes use it: nobody crashes or hangs, and whoever comes then either works or
//! says why not.
//!
//! Who has the right to write to the file can free the quota or use it up; that is documented. Only what such a writer
//! must not be able to do is tested here.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cuwarden::ledger::file::lanes_at;
use cuwarden::ledger::layout::{
    CELLS, Cell, DEVICES_AT, Device, Header, Intent, LANES_AT, Lanes, SLOTS, SLOTS_AT, Slot,
};
use support::{LIMIT, MIB, NOT_PERMITTED, Puppet, REFUSED, Stage, is_dead};

/// An order that takes longer than this, on a slow and busy machine, does not come back in its life.
const LONGEST: Duration = Duration::from_secs(30);

// ---- the bytes ----------------------------------------------------------------------------------------------------

struct Bytes(File);

impl Bytes {
    fn of(stage: &Stage) -> Self {
        Self(File::options().read(true).write(true).open(stage.ledger()).expect("there is a ledger"))
    }

    fn length(&self) -> usize {
        self.0.metadata().expect("it is open").len() as usize
    }

    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.0.read_exact_at(&mut read, at as u64).expect("it is as long as that");
        read
    }

    /// Processes have it mapped: they see it at once.
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length(), "this is about bytes, not about length");
        self.0.write_all_at(bytes, at as u64).expect("it is ours");
    }
}

/// Where it lies, and how many bytes it has.
#[derive(Clone, Debug)]
struct Field {
    name: String,
    at: usize,
    width: usize,
}

/// Fields of a structure that begins at a place.
macro_rules! fields {
    ($structure:ident at $at:expr, $($field:ident: $width:literal),*) => {
        [$(Field {
            name: format!("{}.{} at {}", stringify!($structure), stringify!($field), $at),
            at: $at + offset_of!($structure, $field),
            width: $width,
        }),*]
    };
}

fn all_fields(slots: &[u16]) -> Vec<Field> {
    let mut all = Vec::new();
    all.extend(
        fields!(Header at 0, magic: 8, version: 4, slots: 4, devices: 4, cells: 4, next_slot: 4, slots_end: 4,
        created_ns: 8, default_limit: 8),
    );
    for device in [0, 1] {
        let at = DEVICES_AT + device * size_of::<Device>();
        all.extend(
            fields!(Device at at, uuid: 8, is_mig: 4, model: 4, context_cost: 8, total_bytes: 8, denied: 8,
            word: 8, closed_ms: 8, peak: 8),
        );
        let high = |name: &str, at| Field { name: format!("{name} {device}, high word"), at, width: 8 };
        all.push(high("uuid", at + offset_of!(Device, uuid) + 8));
        all.push(high("word", at + offset_of!(Device, word) + 8));
    }
    for slot in slots.iter().copied().chain([500, SLOTS as u16 - 1]) {
        let at = SLOTS_AT + usize::from(slot) * size_of::<Slot>();
        all.extend(
            fields!(Slot at at, generation: 8, devices: 8, pid: 4, hold: 4, start_ticks: 8, stack_start: 8,
            pid_namespace: 8, since_ns: 8, boot_id: 8),
        );
    }
    for slot in slots {
        let at = lanes_at(0, *slot) as usize;
        all.extend(fields!(Lanes at at, charged: 8, done: 8, contexts: 8));
        all.push(Field { name: format!("version of {slot}'s charge"), at: at + 8, width: 8 });
        let at = at + offset_of!(Lanes, intent);
        all.extend(fields!(Intent at at, sequence: 8, target: 8, charged_before: 8, charged_after: 8, cell_before: 8));
        let at = lanes_at(0, *slot) as usize + offset_of!(Lanes, cells);
        all.extend((0..CELLS).map(|cell| Field {
            name: format!("cell {cell} of {slot}"),
            at: at + cell * size_of::<Cell>(),
            width: 8,
        }));
    }
    all
}

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(count).collect()
    }
}

// ---- the processes ------------------------------------------------------------------------------------------------

/// Gives an order; its code, 0 or a refusal.
#[track_caller]
fn order(puppet: &mut Puppet, order: &str, told: &str) -> i32 {
    let since = Instant::now();
    let pid = puppet.pid;
    puppet.tell(order);
    let answer = puppet.answer().unwrap_or_else(|| panic!("{told}: {pid} ended at {order}"));
    assert!(since.elapsed() < LONGEST, "{told}: {order} took {:?}", since.elapsed());
    let code = answer.split(' ').next().and_then(|code| code.parse().ok());
    let code = code.unwrap_or_else(|| panic!("{told}: {order} gave {answer}"));
    assert!([0, REFUSED].contains(&code), "{told}: {order} gave {answer}");
    code
}

/// All that a process does which looks at the ledger. `limited`: the limit itself is as it was.
#[track_caller]
fn exercise(puppet: &mut Puppet, limited: bool, told: &str) {
    let sizes = [MIB, 3 * MIB, 64 << 10, LIMIT / 2];
    let got = sizes.into_iter().filter(|bytes| order(puppet, &format!("alloc {bytes}"), told) == 0).count();
    if limited {
        assert_eq!(order(puppet, &format!("alloc {}", LIMIT + 1), told), REFUSED, "{told}");
    }
    for what in ["info", "total 0", "nvml 0", "nvml-processes 0"] {
        assert_eq!(order(puppet, what, told), 0, "{told}: {what}");
    }
    for _ in 0..got {
        assert_eq!(order(puppet, "free", told), 0, "{told}: a free is always possible");
    }
}

/// A process that comes now works, or is refused with a reason.
#[track_caller]
fn newcomer(stage: &Stage, limited: bool, told: &str) {
    let before = stage.sim.events_named("config_error").len();
    let mut puppet = stage.puppet();
    let code = puppet.code("init");
    if code == NOT_PERMITTED {
        let events = stage.sim.events_named("config_error");
        assert_eq!(events.len(), before + 1, "{told}: {events:#?}");
        let event = &events[before];
        assert_eq!(event["value"], stage.ledger().display().to_string(), "{told}: {event:#}");
        assert!(!event["reason"].as_str().unwrap_or_default().is_empty(), "{told}: {event:#}");
    } else {
        assert_eq!(code, 0, "{told}");
        if order(&mut puppet, "context 0", told) == 0 {
            exercise(&mut puppet, limited, told);
        }
    }
    assert_eq!(puppet.finish(), 0, "{told}");
}

/// A container with processes that do one thing after the other, and some that never rest.
struct Damaged {
    stage: Stage,
    puppets: Vec<Puppet>,
    workers: Vec<i32>,
    bytes: Bytes,
}

impl Damaged {
    fn new(stage: Stage, workers: u32) -> Self {
        let puppets = (0..3).map(|n| stage.holder(n * MIB)).collect();
        let workers = (0..workers).map(|seed| stage.worker("wild", seed, |_| {})).collect();
        let bytes = Bytes::of(&stage);
        Self { stage, puppets, workers, bytes }
    }

    #[track_caller]
    fn exercise(&mut self, limited: bool, told: &str) {
        self.puppets.iter_mut().for_each(|puppet| exercise(puppet, limited, told));
        self.all_live(told);
    }

    #[track_caller]
    fn all_live(&self, told: &str) {
        let dead = self.workers.iter().find(|worker| is_dead(**worker));
        assert_eq!(dead, None, "{told}: {}", self.stage.said());
        assert_eq!(self.stage.said(), "", "{told}");
    }
}

// ---- one field ----------------------------------------------------------------------------------------------------

fn every_field(workers: u32, newcomers: usize) {
    let mut damaged = Damaged::new(Stage::new(), workers);
    let mut chance = Chance(u64::from(std::process::id()));
    let mut turn = 0;
    let slots: Vec<u16> = (0..3 + workers as u16).collect();
    for field in all_fields(&slots) {
        for kind in 0..10 {
            // What it is now: others work on it meanwhile.
            let mut now = [0; 8];
            now[..field.width].copy_from_slice(&damaged.bytes.read(field.at, field.width));
            let now = u64::from_le_bytes(now);
            let value = match kind {
                0 => 0,
                1 => 1,
                2 => u64::MAX,
                3 => 1 << 31 | 1 << 47,
                4 => 1 << 63 | 1 << 30,
                5 => now.wrapping_add(1),
                6 => now.wrapping_sub(1),
                7 => now ^ (1 << 23 | 4 << 20),
                8 => u64::from(std::process::id()),
                _ => chance.next(),
            };
            let told = format!("{} is {value:#x} instead of {now:#x}", field.name);
            damaged.bytes.write(field.at, &value.to_le_bytes()[..field.width]);
            turn += 1;
            let which = turn % damaged.puppets.len();
            exercise(&mut damaged.puppets[which], true, &told);
            if turn % newcomers == 0 {
                newcomer(&damaged.stage, true, &told);
            }
            damaged.all_live(&told);
            damaged.bytes.write(field.at, &now.to_le_bytes()[..field.width]);
        }
    }
    damaged.exercise(true, "in the end");
}

#[test]
fn any_field_may_be_wrong() {
    every_field(0, 16);
}

#[test]
fn any_field_may_be_wrong_while_others_are_at_work() {
    every_field(2, 32);
}

/// A number that no process has reached: what the operation says has to be done all the same, and only once.
#[test]
fn sequence_numbers_from_nowhere_give_nothing_away() {
    for done in [1 << 48, 1 << 60, u64::MAX, u64::MAX >> 16, (u64::MAX >> 16) - 1, 7 << 40] {
        let stage = Stage::new();
        let (mut one, mut other) = (stage.holder(LIMIT - 8 * MIB), stage.holder(0));
        let bytes = Bytes::of(&stage);
        for slot in [0, 1] {
            bytes.write(lanes_at(0, slot) as usize + offset_of!(Lanes, done), &u64::to_le_bytes(done));
        }
        // Spare bytes of one, for the other to take back.
        one.gets(4 * MIB);
        one.ok("free");
        let told = format!("{done:#x}");
        assert_eq!(order(&mut other, &format!("alloc {}", 9 * MIB), &told), REFUSED, "{told}");
        other.gets(8 * MIB);
        one.is_refused(1);
        other.ok("free");
        one.could_get(8 * MIB);
        stage.never_over();
    }
}

// ---- all of it ----------------------------------------------------------------------------------------------------

/// Slots that nobody has, with lanes on devices that nobody uses: the file does not even have these bytes.
#[test]
fn lanes_that_are_not_there_are_not_touched() {
    for (first, devices) in [(3, 1u64), (100, u64::MAX), (SLOTS - 1, 1), (0, 1 << 63 | 1)] {
        let mut damaged = Damaged::new(Stage::new(), 1);
        let told = format!("devices {devices:#x} from {first} on");
        for slot in first..SLOTS {
            let at = SLOTS_AT + slot * size_of::<Slot>();
            damaged.bytes.write(at + offset_of!(Slot, devices), &devices.to_le_bytes());
        }
        damaged.bytes.write(offset_of!(Header, slots_end), &(SLOTS as u32).to_le_bytes());
        damaged.exercise(true, &told);
        newcomer(&damaged.stage, true, &told);
        damaged.exercise(true, &told);
    }
}

/// What is written over which part of the file.
fn fill(bytes: &Bytes, part: &std::ops::Range<usize>, kind: u64, chance: &mut Chance, older: &[u8]) {
    let count = part.len();
    let content = match kind {
        0 => vec![0; count],
        1 => vec![0xff; count],
        2 => older.get(part.clone()).map_or_else(|| vec![0; count], <[u8]>::to_vec),
        _ => chance.bytes(count),
    };
    bytes.write(part.start, &content);
}

fn parts(length: usize) -> Vec<std::ops::Range<usize>> {
    let header = offset_of!(Header, next_slot);
    vec![
        0..length,
        header..length,
        0..64,
        DEVICES_AT..SLOTS_AT,
        SLOTS_AT..LANES_AT,
        SLOTS_AT..SLOTS_AT + 8 * size_of::<Slot>(),
        LANES_AT..length,
    ]
}

#[test]
fn any_bytes_may_be_written_over_it() {
    let mut chance = Chance(u64::from(std::process::id()));
    for (kind, name) in [(0, "zeros"), (1, "ones"), (2, "an older state"), (3, "anything")] {
        for part in parts(LANES_AT + 4 * size_of::<Lanes>()) {
            let told = format!("{name} over {part:?}");
            let stage = Stage::new();
            let mut first = stage.holder(MIB);
            let older = std::fs::read(stage.ledger()).expect("it can be read");
            let mut damaged = Damaged::new(stage, 2);
            let is_limited = kind == 2 || part.start > DEVICES_AT + size_of::<Device>() || part.end <= 4096;
            for _ in 0..2 {
                fill(&damaged.bytes, &part, kind, &mut chance, &older);
                damaged.exercise(is_limited, &told);
                exercise(&mut first, is_limited, &told);
            }
            newcomer(&damaged.stage, is_limited, &told);
            damaged.exercise(is_limited, &told);
        }
    }
}

/// Somebody who writes all the time, faster than anybody can look twice.
#[test]
fn bytes_may_change_all_the_time() {
    let mut damaged = Damaged::new(Stage::new(), 2);
    let (bytes, length) = (Bytes::of(&damaged.stage), damaged.bytes.length());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when a check fails: the scope waits for the writer.
        let _end = AtEnd(&done);
        scope.spawn(|| {
            let mut chance = Chance(u64::from(std::process::id()));
            while !done.load(Ordering::Relaxed) {
                let at = 24 + chance.next() as usize % (length - 32);
                let fresh = chance.bytes(8);
                bytes.write(if chance.next().is_multiple_of(2) { at & !7 } else { at }, &fresh);
            }
        });
        for round in 0..6 {
            damaged.exercise(false, "all the time");
            if round % 3 == 0 {
                newcomer(&damaged.stage, false, "all the time");
            }
        }
    });
    damaged.exercise(false, "afterwards");
}

struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A quota that nobody set is none that cannot be kept.
#[test]
fn who_has_no_limit_is_refused_nothing() {
    let mut chance = Chance(u64::from(std::process::id()));
    let word = DEVICES_AT + offset_of!(Device, word);
    let end = LANES_AT + 2 * size_of::<Lanes>();
    for (part, kind) in [
        (0..end, 0),
        (SLOTS_AT..end, 1),
        (SLOTS_AT..end, 3),
        (word..word + 16, 0),
        (word..word + 16, 1),
        (word..word + 16, 3),
        (offset_of!(Header, default_limit)..DEVICES_AT, 3),
        (offset_of!(Header, default_limit)..offset_of!(Header, default_limit) + 1, 1),
    ] {
        let stage = Stage::unlimited();
        let (mut one, mut other) = (stage.holder(MIB), stage.holder(0));
        fill(&Bytes::of(&stage), &part, kind, &mut chance, &[]);
        let told = format!("{kind} over {part:?}");
        for puppet in [&mut one, &mut other] {
            for bytes in [MIB, LIMIT, 1 << 30] {
                assert_eq!(order(puppet, &format!("alloc {bytes}"), &told), 0, "{told}");
            }
            exercise(puppet, false, &told);
            assert_eq!(order(puppet, "free-all", &told), 0);
        }
        assert!(stage.sim.events_named("quota_denied").is_empty(), "{told}");
    }
}

/// A limit of the operator's for devices to come, which is none: that of the processes stays.
#[test]
fn what_is_no_operator_s_limit_takes_no_limit_away() {
    for word in [1, 1 << 62, 1 << 63, (1 << 63) | (LIMIT * 4), u64::MAX >> 1] {
        let stage = Stage::new();
        let mut one = stage.holder(LIMIT / 2);
        Bytes::of(&stage).write(offset_of!(Header, default_limit), &u64::to_le_bytes(word));
        let mut other = stage.puppet_with(|command| {
            command.env_remove("CUWARDEN_MEMORY_LIMIT");
        });
        other.has_context();
        other.could_get(LIMIT / 2);
        one.could_get(LIMIT / 2);
        stage.never_over();
    }
}
