//! What users, disks, pipes and other processes can do to a preloaded process: never a crash, never silence, nothing
//! lost.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/badinput/support.rs"]
mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use common::artefacts;
use common::disk::SmallDisk;
use common::process::{run, start};
use common::sim::Sim;
use serde_json::Value;
use support::{assert_left, pipe, post_mortem, start_with_stderr, steady};

// ---- variables ----------------------------------------------------------------------------------------------------

#[test]
fn a_value_that_cannot_be_used_is_named_and_stops_cuda() {
    let program = steady(&Sim::new());
    let long = "x".repeat(2000);
    let cases: Vec<(&str, &[u8])> = vec![
        ("CUWARDEN_MEMORY_LIMIT", b"4Q"),
        ("CUWARDEN_MEMORY_LIMIT", b"-1"),
        ("CUWARDEN_MEMORY_LIMIT", b"4G "),
        ("CUWARDEN_MEMORY_LIMIT", b"010G"),
        ("CUWARDEN_MEMORY_LIMIT", b"0x10"),
        ("CUWARDEN_MEMORY_LIMIT", b"1e9"),
        ("CUWARDEN_MEMORY_LIMIT", b"99999999999999999999"),
        ("CUWARDEN_MEMORY_LIMIT", b"0=1g,0=2g"),
        ("CUWARDEN_MEMORY_LIMIT", b"GPU-=1g"),
        ("CUWARDEN_MEMORY_LIMIT", b"\xff\xfe"),
        ("CUWARDEN_MEMORY_LIMIT", long.as_bytes()),
        ("CUDA_DEVICE_MEMORY_LIMIT", b"4Q"),
        ("CUDA_DEVICE_MEMORY_LIMIT_3", b"1.5"),
        ("CUWARDEN_STACKS", b"-1"),
        ("CUWARDEN_STACKS", b"129"),
        ("CUWARDEN_STACKS", b"many"),
        ("CUWARDEN_LABELS", b"arm"),
        ("CUWARDEN_LABELS", b"a=1,a=2"),
        ("CUWARDEN_LABELS", b"a=\xff"),
        ("CUWARDEN_LOG", b"loud"),
        ("CUWARDEN_DISABLE", b"yes"),
        ("CUWARDEN_DIR", b"relative/path"),
    ];
    for (variable, value) in cases {
        let sim = Sim::new();
        let mut command = sim.shimmed(&program);
        command.args(["init", "1"]).env(variable, OsStr::from_bytes(value));
        let out = run(&mut command).succeeded();
        let told = format!("{variable}={}: {}", String::from_utf8_lossy(value), out.told());
        assert_eq!(out.stdout, "800\n", "{told}");
        assert_eq!(out.stderr, "", "{told}");
        let events = sim.events();
        assert_eq!(events.len(), 1, "{told}: {events:#?}");
        let event = &events[0];
        assert_eq!(event["event"], "config_error", "{told}");
        assert_eq!(event["level"], "error", "{told}");
        assert_eq!(event["variable"], variable, "{told}");
        let shown: String = String::from_utf8_lossy(value).chars().take(256).collect();
        assert_eq!(event["value"], shown, "{told}");
        assert!(event["allowed"].as_str().is_some_and(|allowed| !allowed.is_empty()), "{event:#}");
        // The driver was not asked, and there is nothing that could be taken for a report.
        assert_eq!(sim.reports(), Vec::<Value>::new(), "{told}");
        assert!(!sim.temp.join("gpu/sim-books.bin").exists(), "{told}");
    }
}

#[test]
fn several_mistakes_are_all_named() {
    let sim = Sim::new();
    let mut command = sim.shimmed(steady(&sim));
    command.args(["init", "1"]).env("CUWARDEN_MEMORY_LIMIT", "4Q").env("CUWARDEN_STACKS", "many");
    assert_eq!(run(&mut command).succeeded().stdout, "800\n");
    let mut named: Vec<Value> = sim.events().iter().map(|event| event["variable"].clone()).collect();
    named.sort_by_key(Value::to_string);
    assert_eq!(named, ["CUWARDEN_MEMORY_LIMIT", "CUWARDEN_STACKS"]);
}

// ---- the shared directory -----------------------------------------------------------------------------------------

/// Places that cannot be the shared directory, whoever asks.
fn unusable(sim: &Sim) -> Vec<PathBuf> {
    let at = |name: &str| sim.temp.join(name);
    std::fs::write(at("a-file"), "").expect("the folder is ours");
    std::os::unix::fs::symlink(at("loop"), at("loop")).expect("the folder is ours");
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("the folder is ours");
    sim.temp.folder("blocked");
    std::fs::write(at("blocked/proc"), "").expect("the folder is ours");
    sim.temp.folder("diverted");
    sim.temp.folder("target");
    std::os::unix::fs::symlink(at("target"), at("diverted/proc")).expect("the folder is ours");
    vec![
        at("a-file"),
        at("a-file/below"),
        at("missing/below"),
        at("loop"),
        at("dangling"),
        at("blocked"),
        at("diverted"),
        PathBuf::from("/proc/cuwarden"),
        sim.temp.join("x".repeat(300)),
    ]
}

#[test]
fn without_its_directory_a_process_runs_untracked_and_says_so() {
    let sim = Sim::new();
    let program = steady(&sim);
    for directory in unusable(&sim) {
        let _ = std::fs::remove_file(sim.temp.join("events.jsonl"));
        let mut command = sim.shimmed(&program);
        run(command.args(["steady", "30"]).env("CUWARDEN_DIR", &directory)).succeeded();
        let events = sim.events();
        assert_eq!(events.len(), 1, "{}: {events:#?}", directory.display());
        assert_eq!(events[0]["event"], "config_error", "{:#}", events[0]);
        assert_eq!(events[0]["level"], "warn", "{:#}", events[0]);
        assert_eq!(events[0]["variable"], "CUWARDEN_DIR", "{:#}", events[0]);
        assert_eq!(events[0]["value"], directory.display().to_string(), "{:#}", events[0]);
    }
}

#[test]
fn without_its_directory_a_quota_is_not_pretended() {
    let sim = Sim::new();
    let program = steady(&sim);
    for directory in unusable(&sim) {
        let _ = std::fs::remove_file(sim.temp.join("events.jsonl"));
        let mut command = sim.shimmed(&program);
        command.args(["init", "1"]).env("CUWARDEN_DIR", &directory).env("CUWARDEN_MEMORY_LIMIT", "1g");
        assert_eq!(run(&mut command).succeeded().stdout, "800\n", "{}", directory.display());
        let events = sim.events();
        assert_eq!(events.len(), 1, "{}: {events:#?}", directory.display());
        assert_eq!(events[0]["level"], "error", "{:#}", events[0]);
        assert_eq!(events[0]["variable"], "CUWARDEN_DIR", "{:#}", events[0]);
    }
}

#[test]
fn a_directory_may_be_behind_a_link_when_somebody_names_it() {
    let sim = Sim::new();
    let link = sim.temp.join("link");
    std::os::unix::fs::symlink(sim.shared_dir(), &link).expect("the folder is ours");
    run(sim.shimmed(steady(&sim)).args(["steady", "30"]).env("CUWARDEN_DIR", &link)).succeeded();
    assert_eq!(sim.events(), Vec::<Value>::new());
    assert_left(&sim, &sim.report(), 30);
}

/// The default place is in a folder that everybody may write to. Played by a user whom nobody is.
#[test]
fn the_default_directory_is_not_taken_from_others() {
    const NOBODY: u32 = 1_954_321;
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not root: cannot play another user, so this checks nothing");
        return;
    }
    let sim = Sim::new();
    // Where that user can read it.
    let [program, shim, libcuda] = [
        (steady(&sim), "steady"),
        (artefacts::shim(), "libcuwarden.so"),
        (sim.libraries().join("libcuda.so.1"), "libcuda.so.1"),
    ]
    .map(|(from, name)| {
        let to = sim.temp.join(name);
        std::fs::copy(from, &to).expect("the folder is ours");
        to
    });
    let open =
        |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("ours");
    for path in [&sim.temp.to_path_buf(), &sim.temp.join("gpu"), &sim.temp.join("reports")] {
        open(path, 0o777);
    }
    for path in [&program, &shim, &libcuda] {
        open(path, 0o755);
    }
    let default = PathBuf::from(format!("/tmp/cuwarden-{NOBODY}"));
    let _ = std::fs::remove_dir_all(&default);
    let chown =
        |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("we are root");
    for (case, usable) in [("none", true), ("root's", false), ("everybody's", false), ("a link", false)] {
        let other = sim.temp.join("other");
        let _ = std::fs::remove_dir_all(&other);
        match case {
            "root's" => std::fs::create_dir(&default).expect("it was removed"),
            "everybody's" => {
                std::fs::create_dir(&default).expect("it was removed");
                chown(&default);
                open(&default, 0o777);
            }
            "a link" => {
                std::fs::create_dir(&other).expect("it was removed");
                chown(&other);
                std::os::unix::fs::symlink(&other, &default).expect("it was removed");
            }
            _ => {}
        }
        let events = sim.temp.join("events.jsonl");
        let _ = std::fs::remove_file(&events);
        let mut command = sim.shimmed(&program);
        command.args(["init", "1"]).env_remove("CUWARDEN_DIR").env("CUWARDEN_MEMORY_LIMIT", "1g");
        command.env("LD_PRELOAD", &shim).env("LD_LIBRARY_PATH", &*sim.temp).uid(NOBODY).gid(NOBODY);
        let out = run(&mut command).succeeded();
        let expected = if usable { "0\n" } else { "800\n" };
        let (told, events) = (out.told(), sim.events());
        if std::fs::symlink_metadata(&default).is_ok_and(|meta| meta.is_symlink()) {
            assert!(!other.join("proc").exists(), "it wrote through a link");
            std::fs::remove_file(&default).expect("we are root");
        } else {
            std::fs::remove_dir_all(&default).expect("we are root");
        }
        assert_eq!(out.stdout, expected, "{case}: {told}");
        assert_eq!(events.len(), usize::from(!usable), "{case}: {events:#?}");
    }
}

// ---- disks --------------------------------------------------------------------------------------------------------

#[test]
fn a_full_disk_costs_nothing_but_the_post_mortem() {
    let sim = Sim::new();
    let Some(disk) = SmallDisk::new(sim.temp.join("disk"), 256 << 10) else {
        eprintln!("no file system can be mounted here, so this checks nothing");
        return;
    };
    let mut command = sim.shimmed(steady(&sim));
    run(command.args(["steady", "20000"]).env("CUWARDEN_DIR", &disk.0)).succeeded();
    assert_left(&sim, &sim.report(), 20000);
    let told = post_mortem(&disk.0);
    assert!(told["damaged_parts"].as_u64().is_some_and(|parts| parts > 0), "{told:#}");
    assert!(told["damages"].to_string().contains("Records"), "{told:#}");
}

#[test]
fn a_disk_that_is_full_from_the_start_is_no_directory() {
    let sim = Sim::new();
    let Some(disk) = SmallDisk::new(sim.temp.join("disk"), 16 << 10) else {
        eprintln!("no file system can be mounted here, so this checks nothing");
        return;
    };
    let program = steady(&sim);
    run(sim.shimmed(&program).args(["steady", "30"]).env("CUWARDEN_DIR", &disk.0)).succeeded();
    let mut command = sim.shimmed(&program);
    command.args(["init", "1"]).env("CUWARDEN_DIR", &disk.0).env("CUWARDEN_MEMORY_LIMIT", "1g");
    assert_eq!(run(&mut command).succeeded().stdout, "800\n");
    let events = sim.events();
    assert_eq!(events.len(), 2, "{events:#?}");
    assert!(events.iter().all(|event| event["variable"] == "CUWARDEN_DIR"), "{events:#?}");
    // Nothing half made lies about.
    let left = std::fs::read_dir(disk.0.join("proc")).map_or(0, Iterator::count);
    assert_eq!(left, 0);
}

/// Growing a file past this limit is answered with a signal that ends the program.
#[test]
fn a_limit_on_file_sizes_is_no_reason_to_die() {
    // Nothing; not enough for the ledger; enough for it, and not for the books.
    for bytes in [0u64, 100 << 10, 160 << 10] {
        let sim = Sim::new();
        let mut command = sim.shimmed(steady(&sim));
        command.args(["steady", "20000"]).env("CUWARDEN_LOG", "debug");
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: between fork and exec, and a plain system call. The simulated driver maps a file of its own, which the
        // parent has made large enough.
        unsafe {
            command.pre_exec(move || {
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                Ok(())
            });
        }
        run(sim.bare(steady(&sim)).args(["init", "1"])).succeeded();
        // A pipe, which no such limit concerns.
        let [mut reader, writer] = pipe();
        start_with_stderr(&mut command, Some(&writer)).finish().succeeded();
        drop((writer, command));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut reader, &mut said).expect("a pipe of ours");
        if bytes == 0 {
            // Nor can the event be filed.
            assert!(said.contains("log_file_unusable"), "{said}");
            assert!(said.contains("CUWARDEN_DIR"), "{said}");
        } else if bytes < 160 << 10 {
            assert_eq!(sim.events_named("config_error").len(), 1);
        } else {
            assert_left(&sim, &sim.report(), 20000);
        }
    }
}

/// Runs until the program waits, does something to the world, and lets it go on.
fn in_the_middle(sim: &Sim, count: u64, environment: &[(&str, &OsStr)], act: impl FnOnce()) {
    let (here, go) = (sim.temp.join("here"), sim.temp.join("go"));
    let mut command = sim.shimmed(steady(sim));
    command.args(["pause", &count.to_string()]).args([&here, &go]).envs(environment.iter().copied());
    let running = start(&mut command);
    while !here.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    act();
    std::fs::write(&go, "").expect("the folder is ours");
    running.finish().succeeded();
}

#[test]
fn a_record_file_that_is_taken_away_is_not_needed() {
    let sim = Sim::new();
    in_the_middle(&sim, 3000, &[], || {
        std::fs::remove_dir_all(sim.shared_dir()).expect("the folder is ours");
    });
    assert_left(&sim, &sim.report(), 6000);
}

#[test]
fn a_record_file_that_was_replaced_is_left_alone() {
    let sim = Sim::new();
    let mut replaced = PathBuf::new();
    in_the_middle(&sim, 3000, &[], || {
        let folder = sim.shared_dir().join("proc");
        let record = std::fs::read_dir(folder).expect("it is there").next().expect("one record");
        replaced = record.expect("it can be read").path();
        std::fs::remove_file(&replaced).expect("the folder is ours");
        std::fs::write(&replaced, "somebody else's").expect("the folder is ours");
    });
    assert_left(&sim, &sim.report(), 6000);
    assert_eq!(std::fs::read(&replaced).expect("it is there"), b"somebody else's");
}

// ---- where reports and events go ----------------------------------------------------------------------------------

#[test]
fn a_report_that_cannot_be_written_is_said() {
    let sim = Sim::new();
    std::fs::write(sim.temp.join("a-file"), "").expect("the folder is ours");
    let folder = sim.temp.join("a-file/below");
    run(sim.shimmed(steady(&sim)).args(["steady", "30"]).env("CUWARDEN_REPORT", &folder)).succeeded();
    let events = sim.events();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!(events[0]["event"], "config_error");
    assert_eq!(events[0]["variable"], "CUWARDEN_REPORT");
    assert_eq!(events[0]["value"], folder.display().to_string());
    assert_left(&sim, &post_mortem(&sim.shared_dir()), 30);
}

#[test]
fn events_that_cannot_be_filed_go_to_stderr() {
    let sim = Sim::new();
    let mut command = sim.shimmed(steady(&sim));
    command.args(["deny", "5"]).env("CUWARDEN_MEMORY_LIMIT", "1g");
    command.env("CUWARDEN_LOG_FILE", sim.temp.join("missing/events"));
    let out = run(&mut command).succeeded();
    let events: Vec<Value> = out
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {}", out.told())))
        .collect();
    assert_eq!(events.len(), 2, "{}", out.told());
    assert_eq!(events[0]["event"], "log_file_unusable", "{}", out.told());
    assert_eq!(events[1]["event"], "quota_denied", "{}", out.told());
    assert_eq!(out.stdout, "");
}

#[test]
fn refusals_are_said_once_and_counted() {
    let sim = Sim::new();
    run(sim.shimmed(steady(&sim)).args(["deny", "1000"]).env("CUWARDEN_MEMORY_LIMIT", "1g")).succeeded();
    assert_eq!(sim.events_named("quota_denied").len(), 1);
    assert_eq!(sim.report()["devices"][0]["denied_count"], 1000);
}

#[test]
fn relative_paths_mean_what_they_meant_at_the_start() {
    let sim = Sim::new();
    let elsewhere = sim.temp.folder("elsewhere");
    let mut command = sim.shimmed(books::program(&sim, "badinput/places.c"));
    command.arg("chdir").arg(&*elsewhere).current_dir(&*sim.temp).env("CUWARDEN_MEMORY_LIMIT", "1g");
    run(command.env("CUWARDEN_REPORT", "reports").env("CUWARDEN_LOG_FILE", "./events.jsonl")).succeeded();
    assert_eq!(sim.events_named("quota_denied").len(), 1);
    books::agree(&sim, &sim.report());
    assert_eq!(std::fs::read_dir(&*elsewhere).expect("it is there").count(), 0);
}

#[test]
fn a_report_is_not_written_through_a_link() {
    let sim = Sim::new();
    let victim = sim.temp.join("victim");
    std::fs::write(&victim, "somebody else's").expect("the folder is ours");
    let mut command = sim.shimmed(books::program(&sim, "badinput/places.c"));
    run(command.arg("planted").arg(sim.temp.join("reports")).arg(&victim)).succeeded();
    assert_eq!(std::fs::read(&victim).expect("it is there"), b"somebody else's");
    books::agree(&sim, &sim.report());
    let report = std::fs::read_dir(sim.temp.join("reports")).expect("it is there").next().expect("one");
    let mode = report.and_then(|report| report.metadata()).expect("it is there").permissions().mode();
    assert_eq!(
        mode & 0o7133,
        0,
        "others may read it as far as the umask allows, nobody else may write it: {mode:o}"
    );
}
