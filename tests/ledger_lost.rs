//! What becomes of the ledger while processes use it, or between them: removed, replaced, cut, without space for more,
//! or used by as many processes as it has room for.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/complaints.rs"]
mod complaints;
#[path = "programs/ledger/support.rs"]
mod support;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use common::disk::SmallDisk;
use complaints::{
    cannot_be_used, cannot_be_used_by, contains, refused, said, untracked, without_limit, works,
};
use cuwarden::ledger::file::{create, lanes_at};
use cuwarden::ledger::layout::{FILE_BYTES, LANES_AT, Lanes, SLOTS};
use cuwarden::ledger::liveness::lock;
use serde_json::Value;
use support::{LIMIT, MIB, Puppet, Stage};

const HALF: u64 = LIMIT / 2;

fn remove(stage: &Stage) {
    std::fs::remove_file(stage.ledger()).expect("it is there");
}

fn inode(stage: &Stage) -> u64 {
    std::fs::metadata(stage.ledger()).expect("it is there").ino()
}

/// A file that is open here for all that it allows.
fn open(stage: &Stage) -> File {
    File::options().read(true).write(true).open(stage.ledger()).expect("it is ours")
}

// ---- removed and replaced -----------------------------------------------------------------------------------------

/// What those who share the old one have to each other stays exact, in life and death.
#[track_caller]
fn are_exact(one: &mut Puppet, other: &mut Puppet, dying: Puppet) {
    one.could_get(LIMIT / 4);
    other.could_get(LIMIT / 4);
    other.gets(LIMIT / 4);
    one.is_refused(1);
    let mut dying = dying;
    dying.ok("free");
    one.could_get(LIMIT / 4);
    dying.gets(LIMIT / 4);
    one.is_refused(1);
    dying.kill();
    one.could_get(LIMIT / 4);
    other.ok("free");
    one.could_get(HALF);
    other.could_get(HALF);
}

#[test]
fn one_that_was_removed_is_used_on_by_those_who_have_it() {
    let stage = Stage::new();
    let mut one = stage.holder(LIMIT / 4);
    let mut other = stage.holder(LIMIT / 4);
    let dying = stage.holder(LIMIT / 4);
    remove(&stage);
    are_exact(&mut one, &mut other, dying);
    // Who comes now is refused, and told whom to end.
    let pids = || {
        let mut pids = [one.pid, other.pid];
        pids.sort_unstable();
        format!("(pid {}, {})", pids[0], pids[1])
    };
    for _ in 0..2 {
        let event = refused(&stage, |_| {});
        contains(&event, "reason", "it was removed while processes use it");
        contains(&event, "reason", &pids());
        contains(&event, "message", "End these processes");
        let event = untracked(&stage, |_| {});
        contains(&event, "reason", &pids());
        assert!(!stage.ledger().exists(), "a second one was made");
    }
    other.could_get(HALF);
    one.could_get(HALF);
    // An end of each kind, and the last one's is seen.
    one.kill();
    contains(&refused(&stage, |_| {}), "reason", &format!("(pid {})", other.pid));
    other.ends_by("exit 0");
    works(&stage);
    assert_eq!(stage.said(), "");
}

/// A device that a process uses for the first time then: there is no place for it to be counted.
#[test]
fn another_device_cannot_be_entered_once_it_was_removed() {
    for limited in [true, false] {
        for put_another in [false, true] {
            let stage = Stage::new();
            let mut puppet = stage.puppet_with(|command| {
                if !limited {
                    without_limit(command);
                }
            });
            puppet.has_context();
            puppet.gets(MIB);
            remove(&stage);
            if put_another {
                create(&stage.ledger()).expect("a ledger");
            }
            puppet.ok("context 1");
            if limited {
                puppet.is_refused(MIB);
                puppet.is_refused(MIB);
            } else {
                puppet.gets(2 * LIMIT);
            }
            let event = said(&stage, "of the device");
            assert_eq!(event["device"], 1, "{event:#}");
            assert_eq!(event["level"], if limited { "error" } else { "warn" }, "{event:#}");
            contains(&event, "reason", "removed or replaced");
            contains(&event, "message", "Start the process again");
            // The first device has its account on.
            puppet.ok("use 0");
            puppet.gets(MIB);
            if limited {
                puppet.could_get(LIMIT - 2 * MIB);
            }
            assert_eq!(stage.said(), "");
        }
    }
}

#[test]
fn one_that_was_replaced_is_used_on_by_those_who_have_it() {
    for kind in ["nonsense", "an empty one", "a copy"] {
        let stage = Stage::new();
        let mut one = stage.holder(LIMIT / 4);
        let mut other = stage.holder(LIMIT / 4);
        let dying = stage.holder(LIMIT / 4);
        let copy = std::fs::read(stage.ledger()).expect("it can be read");
        remove(&stage);
        match kind {
            "nonsense" => std::fs::write(stage.ledger(), vec![b'x'; LANES_AT]).expect("the folder is ours"),
            "an empty one" => create(&stage.ledger()).expect("a ledger"),
            _ => {
                create(&stage.ledger()).expect("a ledger");
                open(&stage).write_all(&copy).expect("there is space");
            }
        }
        are_exact(&mut one, &mut other, dying);
        stage.never_over();
        if kind == "nonsense" {
            std::fs::set_permissions(stage.ledger(), std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .expect("it is ours");
            cannot_be_used(&stage, "not a ledger");
        }
        assert_eq!(stage.complaints(), Vec::<Value>::new());
    }
}

/// As a backup has it: those whom it names are dead, wherever and whenever they were.
#[test]
fn a_copy_of_an_old_one_is_as_good_as_a_new_one() {
    let stage = Stage::new();
    let (one, mut other) = (stage.holder(HALF), stage.holder(LIMIT / 4));
    let copy = std::fs::read(stage.ledger()).expect("it can be read");
    other.kill();
    assert_eq!(one.finish(), 0);
    remove(&stage);
    create(&stage.ledger()).expect("a ledger");
    open(&stage).write_all(&copy).expect("there is space");
    works(&stage);
    stage.never_over();
}

// ---- cut ----------------------------------------------------------------------------------------------------------

#[test]
fn one_that_was_cut_between_processes_is_refused() {
    let stage = Stage::new();
    let needed = lanes_at(0, 1) + size_of::<Lanes>() as u64;
    for length in [0, 1, 100, 4096, LANES_AT as u64 - 1, LANES_AT as u64, needed - 1] {
        let (one, other) = (stage.holder(MIB), stage.holder(MIB));
        assert_eq!((one.finish(), other.finish()), (0, 0));
        open(&stage).set_len(length).expect("it is ours");
        let cut = if length < LANES_AT as u64 { "which no ledger is" } else { "it was cut" };
        cannot_be_used(&stage, cut);
        assert_eq!(std::fs::metadata(stage.ledger()).expect("it is there").len(), length);
        remove(&stage);
    }
    works(&stage);
    // Longer than it need be, but not than it may become.
    open(&stage).set_len(FILE_BYTES as u64).expect("it is ours");
    works(&stage);
    assert_eq!(stage.said(), "");
}

// ---- no space -----------------------------------------------------------------------------------------------------

/// Takes all that is left.
fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.0.join("filler");
    let mut filler = File::create(&path).expect("the folder is ours");
    while filler.write(&[0; 1 << 12]).is_ok_and(|written| written > 0) {}
    path
}

fn on_disk(stage: &Stage) -> Option<SmallDisk> {
    std::fs::remove_dir(stage.sim.shared_dir()).expect("nothing is in it yet");
    let disk = SmallDisk::new(stage.sim.shared_dir(), 1 << 20);
    if disk.is_none() {
        assert!(std::env::var_os("CI").is_none(), "no file system can be mounted, and CI must test this");
        eprintln!("NOT TESTED: no file system can be mounted here");
    }
    disk
}

#[test]
fn there_is_no_space_to_make_one() {
    let stage = Stage::new();
    let Some(disk) = on_disk(&stage) else { return };
    let filler = fill(&disk);
    cannot_be_used_by(&stage, "No space left", "name another one in CUWARDEN_DIR", |_| {});
    let left = std::fs::read_dir(&disk.0).expect("it is there");
    let left: Vec<_> = left.map(|entry| entry.expect("it can be read").file_name()).collect();
    assert_eq!(left, ["filler"], "something half made was left");
    std::fs::remove_file(filler).expect("it is ours");
    works(&stage);
    // The processes' folders are under it, and so is the mount.
    drop((stage.group, disk));
}

/// Full just when a process enters a device: its lanes would be a hole, and to write there ends a process.
#[test]
fn there_is_no_space_to_enter_a_device() {
    for limited in [true, false] {
        let stage = Stage::new();
        let Some(disk) = on_disk(&stage) else { return };
        let mut puppet = stage.puppet_with(|command| {
            if !limited {
                without_limit(command);
            }
        });
        puppet.ok("init");
        let filler = fill(&disk);
        puppet.ok("context 0");
        for _ in 0..2 {
            if limited { puppet.is_refused(MIB) } else { puppet.gets(MIB) }
        }
        let event = one_of_device(&stage, limited);
        contains(&event, "reason", "No space left");
        // It was said that a new process can.
        std::fs::remove_file(filler).expect("it is ours");
        let mut next = stage.holder(HALF);
        next.could_get(HALF);
        assert_eq!(puppet.finish(), 0);
        next.could_get(HALF);
        assert_eq!(stage.said(), "");
        drop((stage.group, disk));
    }
}

/// The complaint about device 0, and nothing else.
#[track_caller]
fn one_of_device(stage: &Stage, limited: bool) -> Value {
    let event = said(stage, "of the device");
    assert_eq!(event["level"], if limited { "error" } else { "warn" }, "{event:#}");
    let consequence = if limited { "nothing more is allocated" } else { "is not counted" };
    contains(&event, "message", consequence);
    event
}

/// `ulimit -f`: to write beyond it is answered with a signal that ends the process.
#[test]
fn a_limit_on_file_sizes_is_an_error_like_others() {
    for limited in [true, false] {
        // Not enough for the ledger.
        let stage = Stage::new();
        let small = |bytes: usize| {
            move |command: &mut Command| {
                let limit = libc::rlimit { rlim_cur: bytes as u64, rlim_max: bytes as u64 };
                // SAFETY: one system call between fork and exec.
                unsafe {
                    command.pre_exec(move || {
                        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                        Ok(())
                    })
                };
            }
        };
        // The simulated driver's own file is larger: somebody else has made it.
        let elsewhere = stage.sim.temp.folder("elsewhere");
        stage.holder_with(0, |command| {
            command.env("CUWARDEN_DIR", elsewhere);
        });
        cannot_be_used_by(&stage, "File too large", "another one in CUWARDEN_DIR", small(100 << 10));
        assert!(!stage.ledger().exists());
        // Enough for it, and not for lanes.
        let mut puppet = stage.puppet_with(|command| {
            small(LANES_AT)(command);
            if !limited {
                without_limit(command);
            }
        });
        puppet.has_context();
        if limited {
            puppet.is_refused(MIB)
        } else {
            puppet.gets(MIB)
        }
        contains(&one_of_device(&stage, limited), "reason", "File too large");
        stage.holder(0).could_get(LIMIT);
        assert_eq!(puppet.finish(), 0);
        assert_eq!(stage.said(), "");
    }
}

// ---- no room ------------------------------------------------------------------------------------------------------

/// As many processes as there are slots, by what tells that they live: a lock on a byte for each.
#[test]
fn there_is_room_for_so_many_processes_and_no_more() {
    let stage = Stage::new();
    let (mut one, mut other) = (stage.holder(HALF), stage.holder(0));
    let before = inode(&stage);
    let file: OwnedFd = open(&stage).into();
    let free = (0..SLOTS as u16).filter(|slot| lock(&file, *slot).expect("locks work here")).count();
    assert_eq!(free, SLOTS - 2);
    for _ in 0..2 {
        for event in [refused(&stage, |_| {}), untracked(&stage, |_| {})] {
            contains(&event, "reason", "1024 processes use it");
            contains(&event, "message", "another directory in CUWARDEN_DIR");
        }
        other.could_get(HALF);
        one.could_get(HALF);
    }
    // One goes, and the next has its place.
    one.kill();
    let mut next = stage.holder(HALF);
    other.could_get(HALF);
    contains(&refused(&stage, |_| {}), "reason", "1024 processes use it");
    drop(file);
    let mut all: Vec<_> = (0..4).map(|_| stage.holder(0)).collect();
    all.iter_mut().for_each(|puppet| puppet.could_get(HALF));
    next.could_get(HALF);
    assert_eq!(inode(&stage), before);
    assert_eq!(stage.complaints(), Vec::<Value>::new());
    assert_eq!(stage.said(), "");
}
