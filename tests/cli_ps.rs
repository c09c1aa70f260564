//! `cuwarden ps` as a user or a script sees it, on the simulated GPU: who holds what, of the living and of the dead.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;
mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cli_support::record_file::{Allocation, RecordFile};
use common::artefacts;
use common::process::{Finished, run};
use common::sim::clean;
use cuwarden::record::layout::{Device, Header};
use serde_json::{Value, json};
use support::{LIMIT, MIB, Stage, uuid};

/// `cuwarden ps` as it is run on the machine of a stage.
fn ps(stage: &Stage, arguments: &[&str]) -> Command {
    let mut command = clean(artefacts::cli());
    command.arg("ps").args(arguments);
    command
        .env("LD_LIBRARY_PATH", stage.sim.libraries())
        .env("CUWARDEN_SIM_DIR", stage.sim.temp.join("gpu"))
        .env("TMPDIR", &*stage.sim.temp);
    command
}

fn ps_of(stage: &Stage, folder: &Path, arguments: &[&str]) -> Finished {
    let mut command = ps(stage, &["--dir"]);
    run(command.arg(folder).args(arguments))
}

/// What it says of a stage's container.
#[track_caller]
fn listed(stage: &Stage) -> Value {
    listed_of(stage, &[])
}

#[track_caller]
fn listed_of(stage: &Stage, arguments: &[&str]) -> Value {
    let out = ps_of(stage, &stage.sim.shared_dir(), &[&["--json"], arguments].concat()).succeeded();
    let value: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    assert_eq!(value["schema"], "cuwarden.ps/1");
    value
}

/// The one directory's device 0.
#[track_caller]
fn device(value: &Value) -> &Value {
    assert_eq!(value["directories"].as_array().unwrap().len(), 1, "{value:#}");
    &value["directories"][0]["devices"][0]
}

#[track_caller]
fn process(value: &Value, own_pid: i32) -> &Value {
    let processes = device(value)["processes"].as_array().unwrap();
    let mut found = processes.iter().filter(|process| process["pid"] == own_pid);
    let one = found.next().unwrap_or_else(|| panic!("no {own_pid} in {value:#}"));
    assert!(found.next().is_none(), "{own_pid} is there twice: {value:#}");
    one
}

#[test]
fn those_who_hold_something_largest_first() {
    let stage = Stage::new();
    let mut small = stage.holder_with(MIB, |command| {
        command.env("CUWARDEN_LABELS", "arm=A,cuda=12.4");
    });
    let mut large = stage.holder(20 * MIB);
    large.gets(MIB);
    large.ok("free");
    small.is_refused(LIMIT);
    small.ok("context 1");
    let value = listed(&stage);
    let seen = device(&value);
    assert_eq!(seen["uuid"], uuid(0));
    assert_eq!(seen["name"], "Simulated GPU");
    assert_eq!(seen["limit_bytes"], LIMIT);
    assert_eq!(seen["limit_by"], "environment");
    assert_eq!(seen["used_bytes"], 21 * MIB);
    assert_eq!(seen["denied_count"], 1);
    assert_eq!(seen["processes"][0]["pid"], large.pid);
    assert_eq!(seen["processes"][1]["pid"], small.pid);
    let of_large = process(&value, large.pid);
    assert_eq!(of_large["live_bytes"], 20 * MIB);
    assert_eq!(of_large["peak_bytes"], 21 * MIB);
    assert_eq!(of_large["denied_count"], 0);
    assert_eq!(of_large["labels"], json!({}));
    assert_eq!(of_large["state"], "running");
    assert_eq!(of_large["host_pid"], large.pid);
    assert!(of_large["exe"].as_str().unwrap().ends_with("/puppet"), "{value:#}");
    assert!(of_large["started_at"].as_str().unwrap().ends_with('Z'));
    let of_small = process(&value, small.pid);
    assert_eq!(of_small["labels"], json!({"arm": "A", "cuda": "12.4"}));
    assert_eq!(of_small["denied_count"], 1);
    let second = &value["directories"][0]["devices"][1];
    assert_eq!((&second["uuid"], &second["used_bytes"]), (&json!(uuid(1)), &json!(0)));
    assert_eq!(second["processes"].as_array().unwrap().len(), 1);

    let text = ps_of(&stage, &stage.sim.shared_dir(), &[]).succeeded().stdout;
    for words in [
        &uuid(0),
        "used 21.0 MiB of 64.0 MiB; 43.0 MiB free",
        "the quota has refused 1 request",
        "arm=A,cuda=12.4",
        "PROGRAM",
    ] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120 && line.trim_end() == line), "{text}");
    assert_eq!(stage.said(), "");
}

#[test]
fn the_dead_are_shown_and_do_not_count() {
    let stage = Stage::new();
    let mut killed = stage.holder(8 * MIB);
    let mut lives = stage.holder(2 * MIB);
    let mut leaked = stage.holder(3 * MIB);
    let mut tidy = stage.holder(MIB);
    killed.kill();
    leaked.ends_by("exit 0");
    tidy.ok("free");
    tidy.ends_by("exit 0");
    // Whether the ledger still has them or somebody cleared it.
    for is_cleared in [false, true] {
        if is_cleared {
            lives.is_refused(LIMIT);
        }
        let value = listed(&stage);
        assert_eq!(device(&value)["used_bytes"], 2 * MIB, "{value:#}");
        assert_eq!(device(&value)["processes"].as_array().unwrap().len(), 3, "{value:#}");
        for (puppet, bytes) in [(&killed, 8), (&leaked, 3)] {
            let dead = process(&value, puppet.pid);
            assert_eq!((&dead["state"], &dead["live_bytes"]), (&json!("dead"), &json!(bytes * MIB)));
            assert_eq!(dead["peak_bytes"], bytes * MIB);
            assert_eq!((&dead["host_pid"], &dead["unaccounted_bytes"]), (&Value::Null, &Value::Null));
        }
        assert_eq!(process(&value, lives.pid)["state"], "running");
        let all = listed_of(&stage, &["--all"]);
        assert_eq!(process(&all, tidy.pid)["live_bytes"], 0);
    }
    lives.kill();
    let value = listed(&stage);
    assert_eq!(device(&value)["used_bytes"], 0);
    assert_eq!(process(&value, lives.pid)["live_bytes"], 2 * MIB);
}

#[test]
fn a_stopped_one_is_stopped() {
    let stage = Stage::new();
    let puppet = stage.holder(MIB);
    support::stop(puppet.pid);
    assert_eq!(process(&listed(&stage), puppet.pid)["state"], "stopped");
    support::signal(puppet.pid, libc::SIGCONT);
}

/// Another program in the same process: what the one before it held is not its own.
#[test]
fn a_process_that_became_another_program() {
    let stage = Stage::new();
    let mut puppet = stage.holder(8 * MIB);
    let line = puppet.ask("again");
    assert!(line.starts_with("ready"), "{line}");
    let value = listed(&stage);
    assert_eq!(device(&value)["used_bytes"], 0, "{value:#}");
    assert_eq!(process(&value, puppet.pid)["state"], "dead");
    puppet.has_context();
    puppet.gets(MIB);
    let value = listed(&stage);
    let rows = device(&value)["processes"].as_array().unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (&row["pid"], &row["state"], &row["live_bytes"])).collect();
    let expected = |state: &str, bytes| (json!(puppet.pid), json!(state), json!(bytes));
    let (running, dead) = (expected("running", MIB), expected("dead", 8 * MIB));
    assert_eq!(rows, [(&running.0, &running.1, &running.2), (&dead.0, &dead.1, &dead.2)], "{value:#}");
}

#[test]
fn containers_of_one_directory() {
    let stage = Stage::new();
    let Some(mut one) = stage.puppet_in_namespace(true, |_| {}) else { return };
    let Some(mut other) = stage.puppet_in_namespace(false, |_| {}) else { return };
    for (puppet, bytes) in [(&mut one, 4 * MIB), (&mut other, 2 * MIB)] {
        puppet.ok(&format!("begin {bytes}"));
    }
    let value = listed(&stage);
    let seen = device(&value);
    assert_eq!(seen["used_bytes"], 6 * MIB);
    for (row, puppet, bytes) in [(0, &one, 4 * MIB), (1, &other, 2 * MIB)] {
        let row = &seen["processes"][row];
        assert_eq!((&row["pid"], &row["host_pid"]), (&json!(1), &json!(puppet.pid)), "{value:#}");
        assert_eq!((&row["live_bytes"], &row["state"]), (&json!(bytes), &json!("running")));
        assert_eq!(row["peak_bytes"], bytes, "{value:#}");
    }
    let text = ps_of(&stage, &stage.sim.shared_dir(), &[]).succeeded().stdout;
    assert!(text.contains("HOST PID") && text.contains(&one.pid.to_string()), "{text}");
    one.kill();
    let value = listed(&stage);
    assert_eq!(device(&value)["used_bytes"], 2 * MIB);
    assert_eq!(device(&value)["processes"][1]["state"], "dead", "{value:#}");
    assert_eq!(device(&value)["processes"][1]["live_bytes"], 4 * MIB);
}

/// From inside a container those outside are not to be seen; the ledger says that they live.
#[test]
fn seen_from_another_namespace() {
    let stage = Stage::new();
    let mut outside = stage.holder(4 * MIB);
    let mut command = Command::new("unshare");
    let namespace = ["--pid", "--fork", "--mount-proc", "--"];
    let out = run(command
        .args(namespace)
        .arg(artefacts::cli())
        .args(["ps", "--json", "--dir"])
        .arg(stage.sim.shared_dir()));
    if !out.status.success() && out.stderr.contains("unshare") {
        assert!(std::env::var_os("CI").is_none(), "no pid namespace can be made, and CI must test them");
        eprintln!("NOT TESTED: no pid namespace can be made here");
        return;
    }
    let value: Value = serde_json::from_str(&out.succeeded().stdout).unwrap();
    let row = process(&value, outside.pid);
    assert_eq!((&row["state"], &row["host_pid"]), (&json!("other_namespace"), &Value::Null), "{value:#}");
    assert_eq!((&row["live_bytes"], &row["peak_bytes"]), (&json!(4 * MIB), &json!(4 * MIB)));
    outside.ok("free");
}

#[test]
fn contexts_are_shown_apart() {
    let stage = Stage::limited("2g");
    let counting = |command: &mut Command| {
        command.env("CUWARDEN_COUNT_CONTEXT", "1").env("CUWARDEN_SIM_CONTEXT", "256m");
    };
    let mut first = stage.holder_with(4 * MIB, counting);
    let second = stage.holder_with(8 * MIB, counting);
    let value = listed(&stage);
    let seen = device(&value);
    assert_eq!(seen["context_cost_bytes"], 256 * MIB, "{value:#}");
    assert_eq!(seen["used_bytes"], (512 + 12) * MIB);
    for (puppet, bytes) in [(&first, 4), (&second, 8)] {
        let row = process(&value, puppet.pid);
        assert_eq!((&row["live_bytes"], &row["context_bytes"]), (&json!(bytes * MIB), &json!(256 * MIB)));
        assert_eq!(row["peak_bytes"], bytes * MIB);
        assert_eq!(row["unaccounted_bytes"], 0, "{value:#}");
    }
    let text = ps_of(&stage, &stage.sim.shared_dir(), &[]).succeeded().stdout;
    assert!(text.contains("contexts take 512 MiB of that, 256 MiB each"), "{text}");
    first.ok("free");
}

/// A process that took memory past the books is known to the driver alone.
#[test]
fn what_the_driver_knows_and_the_books_do_not() {
    let stage = Stage::limited("8g");
    let mut puppet = stage.holder_with(4 * MIB, |command| {
        // It is not measured, so the share of a context is 512 MiB.
        command.env("CUWARDEN_SIM_CONTEXT", "700m");
    });
    let value = listed(&stage);
    let row = process(&value, puppet.pid);
    assert_eq!(row["unaccounted_bytes"], 700 * MIB, "{value:#}");
    let text = ps_of(&stage, &stage.sim.shared_dir(), &[]).succeeded().stdout;
    assert!(text.contains("+700 MiB") && text.contains("UNACCOUNTED is what"), "{text}");
    let mut without = ps(&stage, &["--json", "--dir"]);
    let out = run(without.arg(stage.sim.shared_dir()).env_remove("LD_LIBRARY_PATH")).succeeded();
    let value: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(process(&value, puppet.pid)["unaccounted_bytes"], Value::Null, "without NVML");
    puppet.ok("free");
}

#[test]
fn without_a_directory_all_of_this_user() {
    let (one, other) = (Stage::new(), Stage::new());
    let mut first = one.holder(MIB);
    let second = other.holder(2 * MIB);
    // A second name for the first one.
    let link = one.sim.temp.join("again");
    std::os::unix::fs::symlink(one.sim.shared_dir(), &link).unwrap();
    let _third = one.holder_with(MIB, |command| {
        command.env("CUWARDEN_DIR", &link);
    });
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    let of_a_run = one.sim.temp.join(format!("cuwarden-{user}-run-1-0"));
    std::fs::create_dir_all(of_a_run.join("proc")).unwrap();
    let mut file = RecordFile::new();
    file.allocation(Allocation { bytes: 7 * MIB, ..Allocation::default() });
    file.ended(1);
    file.count(0, 0, 1, 0);
    std::fs::write(of_a_run.join("proc/4242-1.rec"), file.bytes()).unwrap();

    let all = |arguments: &[&str]| {
        let out = run(&mut ps(&one, arguments));
        // Other tests of this user may have damaged ledgers of theirs at this moment.
        assert!(matches!(out.status.code(), Some(0 | 66)), "{}", out.told());
        out
    };
    let out = all(&["--json"]);
    let value: Value = serde_json::from_str(&out.stdout).unwrap();
    let at = |path: &Path| {
        let all = value["directories"].as_array().unwrap().iter();
        let found: Vec<_> = all.filter(|one| one["path"] == path.to_string_lossy().as_ref()).collect();
        found
    };
    let shared = [at(&one.sim.shared_dir()), at(&link)].concat();
    assert_eq!(shared.len(), 1, "{value:#}");
    assert_eq!(shared[0]["devices"][0]["used_bytes"], 2 * MIB);
    assert_eq!(at(&other.sim.shared_dir())[0]["devices"][0]["processes"][0]["pid"], second.pid);
    assert_eq!(at(&of_a_run)[0]["devices"][0]["processes"][0]["state"], "dead", "{value:#}");

    let text = all(&[]);
    assert!(text.stdout.contains(&first.pid.to_string()), "{}", text.told());
    assert!(text.stdout.contains(&second.pid.to_string()), "{}", text.told());
    assert!(!text.stdout.contains("-run-1-0"), "nobody runs there: {}", text.told());
    assert!(text.stderr.contains("--all"), "{}", text.told());
    let text = all(&["--all"]);
    assert!(text.stdout.contains("-run-1-0"), "{}", text.told());
    first.ok("free");
}

#[test]
fn nothing_found_is_no_error() {
    let stage = Stage::new();
    let folder = stage.sim.temp.folder("empty");
    let out = ps_of(&stage, &folder, &[]).succeeded();
    assert_eq!(out.stdout, "");
    assert!(out.stderr.contains("nothing was found") && out.stderr.contains("empty"), "{}", out.told());
    let out = ps_of(&stage, &folder, &["--json"]).succeeded();
    assert_eq!(serde_json::from_str::<Value>(&out.stdout).unwrap()["directories"], json!([]));
    let out = ps_of(&stage, &folder.join("none"), &[]).exited(66);
    assert!(out.stderr.contains("empty/none") && out.stdout.is_empty(), "{}", out.told());
    let file = folder.join("file");
    std::fs::write(&file, "x").unwrap();
    ps_of(&stage, &file, &[]).exited(66);
    run(&mut ps(&stage, &["--nonsense"])).exited(64);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is made");
}

/// Record files are left: they are shown, and that the ledger is damaged is said.
#[test]
fn a_damaged_ledger() {
    let stage = Stage::new();
    let mut dead = stage.holder(3 * MIB);
    dead.kill();
    let lives = stage.holder(5 * MIB);
    let saved = std::fs::read(stage.ledger()).unwrap();
    let random: Vec<u8> =
        (0..saved.len() as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect();
    let mut random_after_the_header = saved.clone();
    random_after_the_header[4096..].copy_from_slice(&random[4096..]);
    let copy = stage.sim.temp.folder("copy");
    std::fs::create_dir(copy.join("proc")).unwrap();
    for entry in std::fs::read_dir(stage.sim.shared_dir().join("proc")).unwrap().flatten() {
        std::fs::copy(entry.path(), copy.join("proc").join(entry.file_name())).unwrap();
    }
    let ledger = copy.join("ledger");
    for bytes in
        [&saved[..100], &saved[..4096], &saved[..saved.len() - 4096], &random, &random_after_the_header, b""]
    {
        std::fs::write(&ledger, bytes).unwrap();
        std::fs::set_permissions(&ledger, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let out = ps_of(&stage, &copy, &["--json"]);
        assert_eq!(out.status.code(), Some(66), "{} bytes: {}", bytes.len(), out.told());
        assert!(out.stderr.contains("copy/ledger"), "{}", out.told());
        let value: Value = serde_json::from_str(&out.stdout).unwrap();
        assert_eq!(process(&value, dead.pid)["live_bytes"], 3 * MIB);
        assert_eq!(process(&value, dead.pid)["state"], "dead");
        assert_eq!(process(&value, lives.pid)["live_bytes"], 5 * MIB);
        assert_eq!(process(&value, lives.pid)["state"], "running");
        assert_eq!(device(&value)["used_bytes"], 5 * MIB, "{value:#}");
        assert_eq!(device(&value)["limit_bytes"], Value::Null);
        assert!(!value["directories"][0]["problems"].as_array().unwrap().is_empty());
        let text = ps_of(&stage, &copy, &[]).exited(66).stdout;
        assert!(text.contains("the limit is not known"), "{text}");
    }
    // Nor are record files to be had where something else has their folder's name.
    let other = stage.sim.temp.folder("other");
    std::fs::copy(stage.ledger(), other.join("ledger")).unwrap();
    std::fs::write(other.join("proc"), "").unwrap();
    let out = ps_of(&stage, &other, &[]).exited(66);
    assert!(out.stderr.contains("other/proc"), "{}", out.told());
    // Without one there is nothing to complain of.
    std::fs::remove_file(&ledger).unwrap();
    let out = ps_of(&stage, &copy, &[]).succeeded();
    assert!(out.stdout.contains("5.00 MiB") && out.stderr.is_empty(), "{}", out.told());
}

/// Whatever single field of the ledger is overwritten: an answer, never a crash, and no more than a moment.
#[test]
fn a_tampered_ledger() {
    let stage = Stage::new();
    let _holder = stage.holder(MIB);
    let good = std::fs::read(stage.ledger()).unwrap();
    let copy = stage.sim.temp.folder("copy");
    let path = copy.join("ledger");
    let mut seed = 1u64;
    for _ in 0..40 {
        let mut bytes = good.clone();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Where something is: the header, the first devices, the first slots, the first lanes.
            let regions = [(0, 96), (4096, 1024), (4096 + 64 * 256, 512), (bytes.len() - 1024, 1024)];
            let (from, length) = regions[(seed >> 33) as usize % 4];
            let at = from + (seed >> 40) as usize % (length - 8);
            bytes[at..at + 8].copy_from_slice(&seed.to_le_bytes());
        }
        std::fs::write(&path, &bytes).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let out = ps_of(&stage, &copy, &[]);
        assert!(matches!(out.status.code(), Some(0 | 66)), "{}", out.told());
    }
}

#[test]
fn hostile_record_files() {
    let stage = Stage::new();
    let lives = stage.holder(MIB);
    let records = stage.sim.shared_dir().join("proc");
    let mut file = RecordFile::new();
    file.device(0, "GPU-\x1b[2J", "name\r\nwith \u{202e}marks");
    file.allocation(Allocation { bytes: u64::MAX, ..Allocation::default() });
    file.allocation(Allocation { bytes: 5, ..Allocation::default() });
    file.device_field(0, offset_of!(Device, peak_bytes), u64::MAX);
    let mut bytes = file.bytes();
    let (labels, exe) = ("a=\x1b[31m,b,,=c,\u{7}=\t", "/x/\x1b]0;title\x07");
    for (index, at, text) in [(0, offset_of!(Header, exe), exe), (2, offset_of!(Header, labels), labels)] {
        bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        let length = offset_of!(Header, text_lengths) + index * 4;
        bytes[length..length + 4].copy_from_slice(&(text.len() as u32).to_le_bytes());
    }
    std::fs::write(records.join("1-evil.rec"), &bytes).unwrap();
    // Lengths and counts that lead nowhere.
    let mut wild = bytes.clone();
    wild[8 + 8..].iter_mut().enumerate().for_each(|(n, byte)| *byte = ((n * 7919) >> 3) as u8);
    std::fs::write(records.join("2-wild.rec"), &wild).unwrap();
    std::fs::write(records.join("3-\x1b[2Jcut.rec"), &bytes[..100]).unwrap();
    std::fs::write(records.join("4-begun.rec"), [0; 4096]).unwrap();
    std::fs::write(records.join("5-other.rec"), "no record file").unwrap();
    std::os::unix::fs::symlink("/dev/zero", records.join("6-link.rec")).unwrap();
    std::fs::create_dir(records.join("7-folder.rec")).unwrap();
    let fifo = std::ffi::CString::new(records.join("8-fifo.rec").as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);

    let out = ps_of(&stage, &stage.sim.shared_dir(), &["--all"]).succeeded();
    for text in [&out.stdout, &out.stderr] {
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()) && !text.contains('\u{202e}'),
            "{}",
            out.told()
        );
    }
    assert!(out.stdout.contains("16.0 EiB") && out.stdout.contains("\\u{1b}[31m"), "{}", out.told());
    let value = listed_of(&stage, &["--all"]);
    assert_eq!(process(&value, lives.pid)["live_bytes"], MIB);
    assert_eq!(device(&value)["used_bytes"], MIB);
    let evil = &value["directories"][0]["devices"][1]["processes"][0];
    assert_eq!(evil["live_bytes"], u64::MAX, "{value:#}");
    let text = value.to_string();
    assert!(text.contains("\\u001b[31m"), "JSON has it as it is: {text}");
    assert!(value["directories"][0]["problems"].as_array().unwrap().len() >= 5, "{value:#}");
}

#[test]
fn forty_processes() {
    let stage = Stage::unlimited();
    let mut puppets: Vec<_> = (1..=40).map(|n| stage.holder(n * 4096)).collect();
    let began = Instant::now();
    let value = listed(&stage);
    assert!(began.elapsed() < Duration::from_secs(10));
    let seen = device(&value);
    assert_eq!((&seen["limit_by"], &seen["limit_bytes"]), (&json!("none"), &json!(0)));
    assert_eq!(seen["used_bytes"], 820 * 4096);
    let order: Vec<u64> =
        seen["processes"].as_array().unwrap().iter().map(|one| one["live_bytes"].as_u64().unwrap()).collect();
    assert_eq!(order, (1..=40).rev().map(|n| n * 4096).collect::<Vec<u64>>());
    let text = ps_of(&stage, &stage.sim.shared_dir(), &[]).succeeded().stdout;
    assert_eq!(text.lines().filter(|line| line.contains("puppet")).count(), 40, "{text}");
    assert!(text.contains("no limit"), "{text}");
    puppets.iter_mut().for_each(|puppet| puppet.ok("free"));
    assert_eq!(device(&listed(&stage))["used_bytes"], 0);
}

/// While processes come, die in any way and become others: an answer each time, and nothing to complain of.
#[test]
fn beside_a_storm() {
    let stage = Stage::new();
    for seed in 0..4 {
        stage.worker("storm", seed, |_| {});
    }
    for round in 0..25 {
        let out = ps_of(&stage, &stage.sim.shared_dir(), &["--json"]).succeeded();
        assert_eq!(out.stderr, "", "{}", out.told());
        let value: Value = serde_json::from_str(&out.stdout).unwrap();
        for process in device(&value)["processes"].as_array().unwrap() {
            assert!(process["live_bytes"].as_u64().is_some_and(|bytes| bytes <= LIMIT), "{value:#}");
        }
        if round % 5 == 0 {
            stage.worker("storm", round, |_| {});
        }
    }
}

/// It only looks: no byte of the directory changes, and whoever may not write there can still ask.
#[test]
fn it_changes_nothing() {
    let stage = Stage::new();
    let puppet = stage.holder(MIB);
    let mut command = ps(&stage, &["--dir"]);
    let before = std::fs::read(stage.ledger()).unwrap();
    let file = File::open(stage.ledger()).unwrap();
    run(command.arg(stage.sim.shared_dir())).succeeded();
    let mut after = vec![0; before.len()];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(before == after, "the ledger changed while {} did nothing", puppet.pid);
}
