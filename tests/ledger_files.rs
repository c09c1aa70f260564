//! The ledger as a file: broken, foreign, somebody else's, without space, gone. With a quota CUDA does not start then, or
//! nothing is allocated; without one the process runs untracked. One event says which file, why, and what to do.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/complaints.rs"]
mod complaints;
#[path = "programs/ledger/support.rs"]
mod support;

use std::ffi::CString;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use complaints::{cannot_be_used, cannot_be_used_by, contains, forget, refused, works};
use cuwarden::ledger::file::create;
use cuwarden::ledger::layout::{DEVICES, FILE_BYTES, Header, LANES_AT, SLOTS};
use serde_json::Value;
use support::{LIMIT, Puppet, Stage};

// ---- what lies in its place ---------------------------------------------------------------------------------------

fn random(bytes: usize) -> Vec<u8> {
    let mut state = u64::from(std::process::id());
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("the folder is ours");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("it is ours");
}

#[test]
fn what_is_no_ledger_is_left_alone() {
    let stage = Stage::new();
    let path = stage.ledger();
    create(&path).expect("a ledger");
    let good = std::fs::read(&path).expect("it can be read");
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let number = |number: u32| number.to_le_bytes();
    let long = [&good[..], &vec![0; FILE_BYTES + 1 - good.len()]].concat();
    let version = offset_of!(Header, version);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("0 bytes long", vec![]),
        ("7 bytes long", b"cuwledg".to_vec()),
        ("4096 bytes long", good[..4096].to_vec()),
        ("bytes long, which no ledger is", good[..LANES_AT - 1].to_vec()),
        ("bytes long, which no ledger is", long),
        ("not a ledger", vec![0; LANES_AT]),
        ("not a ledger", vec![0xff; LANES_AT + 5000]),
        ("not a ledger", random(LANES_AT + 1024)),
        ("not a ledger", changed(0, b"cuwarden")),
        ("version 2, and this cuwarden writes version 1", changed(version, &number(2))),
        ("version 0", changed(version, &number(0))),
        ("version 4294967295", changed(version, &number(u32::MAX))),
        ("numbers of slots and devices", changed(offset_of!(Header, slots), &number(SLOTS as u32 * 2))),
        ("numbers of slots and devices", changed(offset_of!(Header, devices), &number(DEVICES as u32 - 1))),
        ("numbers of slots and devices", changed(offset_of!(Header, cells), &number(0))),
        ("it was cut", [&good[..1024 + 4096], &[0xff; LANES_AT - 5120]].concat()),
    ];
    for (reason, bytes) in cases {
        put(&path, &bytes);
        cannot_be_used(&stage, reason);
        assert!(std::fs::read(&path).expect("it can be read") == bytes, "{reason}: it was changed");
    }
    // The way out.
    std::fs::remove_file(&path).expect("it is ours");
    works(&stage);
}

#[test]
fn what_is_no_file_is_left_alone() {
    let stage = Stage::new();
    let path = stage.ledger();
    let elsewhere = stage.sim.temp.join("elsewhere");
    create(&elsewhere).expect("a ledger");
    let before = std::fs::read(&elsewhere).expect("it can be read");
    for target in [&elsewhere, &stage.sim.temp.join("nowhere"), &path, Path::new("/dev/null")] {
        std::os::unix::fs::symlink(target, &path).expect("the folder is ours");
        cannot_be_used(&stage, "symbolic link");
        std::fs::remove_file(&path).expect("it is ours");
    }
    assert!(std::fs::read(&elsewhere).expect("it can be read") == before, "written through a link");
    assert!(!stage.sim.temp.join("nowhere").exists(), "made through a link");

    std::fs::create_dir(&path).expect("the folder is ours");
    cannot_be_used(&stage, "not a regular file");
    std::fs::remove_dir(&path).expect("it is empty");

    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    cannot_be_used(&stage, "not a regular file");
    std::fs::remove_file(&path).expect("it is ours");

    // Its name would be too long.
    let short = std::env::temp_dir().join(format!("cuwarden-socket-{}", std::process::id()));
    let listener = UnixListener::bind(&short).expect("a socket");
    std::fs::rename(&short, &path).expect("the folder is ours");
    cannot_be_used(&stage, "not a regular file");
    assert!(std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.file_type().is_socket()));
    drop(listener);
    std::fs::remove_file(&path).expect("it is ours");

    // SAFETY: the name is a C string.
    let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 3)) };
    if made == 0 {
        cannot_be_used(&stage, "not a regular file");
        std::fs::remove_file(&path).expect("it is ours");
    } else {
        eprintln!("NOT TESTED: no device can be made here");
    }
    works(&stage);
}

// ---- modes and owners ---------------------------------------------------------------------------------------------

#[test]
fn nobody_else_may_write_to_it() {
    let stage = Stage::new();
    works(&stage);
    let path = stage.ledger();
    let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
    for mode in [0o606, 0o620, 0o666, 0o602, 0o660] {
        set(mode);
        cannot_be_used(&stage, &format!("mode {mode:04o}, and others could write to it"));
    }
    for mode in [0o600, 0o640, 0o644, 0o604] {
        set(mode);
        works(&stage);
    }
}

/// Only a group that the operator chose may share it.
#[test]
fn its_mode_is_that_of_the_directory() {
    for umask in [0o077, 0o022, 0] {
        for (directory, ledger) in [
            (0o700, 0o600),
            (0o755, 0o600),
            (0o770, 0o600),
            (0o777, 0o600),
            (0o1777, 0o600),
            (0o2700, 0o600),
            (0o2755, 0o600),
            (0o2770, 0o660),
            (0o2775, 0o660),
        ] {
            let stage = Stage::new();
            let folder = stage.sim.shared_dir();
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(directory)).expect("it is ours");
            let mut puppet = stage.puppet_with(|command| {
                // SAFETY: one system call between fork and exec.
                unsafe {
                    command.pre_exec(move || {
                        libc::umask(umask);
                        Ok(())
                    })
                };
            });
            puppet.has_context();
            puppet.could_get(LIMIT);
            let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o7777;
            assert_eq!(mode(&stage.ledger()), ledger, "in {directory:o}, umask {umask:o}");
            assert_eq!(mode(&folder), directory);
            works(&stage);
        }
    }
}

const USER: u32 = 64_322;
const OTHER: u32 = 64_323;
const GROUP: u32 = 64_324;

/// A container of a user who is not root; none where that cannot be had.
fn stage_of_a_user() -> Option<Stage> {
    let stage = Stage::new();
    if !stage.give_to(USER) {
        assert!(std::env::var_os("CI").is_none(), "another user cannot be had, and CI must test this");
        eprintln!("NOT TESTED: another user cannot be had here");
        return None;
    }
    // The driver's books and the events are everybody's.
    let elsewhere = stage.sim.temp.folder("elsewhere");
    stage.holder_with(0, |command| {
        command.env("CUWARDEN_DIR", elsewhere);
    });
    File::create(stage.sim.temp.join("events.jsonl")).expect("the folder is ours");
    let books = std::fs::read_dir(stage.sim.temp.join("gpu")).expect("it can be read");
    let books = books.map(|entry| entry.expect("it can be read").path());
    for place in ["", "gpu", "events.jsonl"].map(|name| stage.sim.temp.join(name)).into_iter().chain(books) {
        std::fs::set_permissions(place, PermissionsExt::from_mode(0o777)).expect("root may");
    }
    Some(stage)
}

fn as_user(user: u32) -> impl Fn(&mut Command) {
    move |command| {
        // No supplementary groups come along where root gives up its own.
        command.uid(user).gid(GROUP);
    }
}

#[track_caller]
fn holder_of(stage: &Stage, user: u32, bytes: u64) -> Puppet {
    stage.holder_with(bytes, as_user(user))
}

fn give(path: &Path, user: u32, group: u32, mode: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(group)).expect("root may");
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("root may");
}

#[test]
fn a_user_s_ledger_is_good_enough_for_root() {
    let Some(stage) = stage_of_a_user() else { return };
    let _theirs = holder_of(&stage, USER, LIMIT / 2);
    assert_eq!(std::fs::metadata(stage.ledger()).expect("it is there").uid(), USER);
    let mut roots = stage.holder(LIMIT / 4);
    roots.could_get(LIMIT / 4);
    holder_of(&stage, USER, 0).could_get(LIMIT / 4);
    stage.never_over();
}

#[test]
fn a_ledger_that_others_could_write_to_is_nobody_s() {
    let Some(stage) = stage_of_a_user() else { return };
    let path = stage.ledger();
    std::fs::set_permissions(stage.sim.shared_dir(), PermissionsExt::from_mode(0o777)).expect("root may");
    create(&path).expect("a ledger");
    for (owner, mode, reason) in [
        (0, 0o600, "Permission denied"),
        (0, 0o644, "Permission denied"),
        (OTHER, 0o600, "Permission denied"),
        (0, 0o666, "belongs to user 0 with mode 0666"),
        (OTHER, 0o666, "belongs to user 64323 with mode 0666"),
        // Another user's, whom a group lets in, although nobody said that this group shares it.
        (OTHER, 0o660, "belongs to user 64323 with mode 0660"),
    ] {
        give(&path, owner, GROUP, mode);
        let way_out =
            if reason.starts_with("Per") { "Make the directory writable" } else { "remove the file" };
        cannot_be_used_by(&stage, reason, way_out, as_user(USER));
    }
}

/// Users who share a group share an account, where the operator says so by the directory's mode.
#[test]
fn users_of_a_group_share_it() {
    let Some(stage) = stage_of_a_user() else { return };
    give(&stage.sim.shared_dir(), 0, GROUP, 0o2770);
    let mut one = holder_of(&stage, USER, LIMIT / 2);
    let meta = std::fs::metadata(stage.ledger()).expect("it is there");
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (USER, GROUP, 0o660));
    let mut other = holder_of(&stage, OTHER, LIMIT / 4);
    one.could_get(LIMIT / 4);
    other.could_get(LIMIT / 4);
    let mut roots = stage.holder(0);
    roots.could_get(LIMIT / 4);
    one.kill();
    other.could_get(LIMIT / 4 * 3);
    other.kill();
    let mut other = holder_of(&stage, OTHER, LIMIT);
    assert_eq!(stage.complaints(), Vec::<Value>::new());
    // A ledger that is gone is missed whoever uses it.
    std::fs::remove_file(stage.ledger()).expect("root may");
    forget(&stage);
    let event = refused(&stage, as_user(USER));
    contains(&event, "reason", &format!("pid {}, {}", roots.pid.min(other.pid), roots.pid.max(other.pid)));
    other.is_refused(1);
    stage.never_over();
}
