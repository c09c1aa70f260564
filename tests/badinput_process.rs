//! A process whose stderr nobody reads, that closes what it does not know, forks, and is killed: it goes on as it would
//! without the shim, and what it leaves behind is right.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/badinput/support.rs"]
mod support;

use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::process::Command;

use common::cc;
use common::process::{run, start};
use common::sim::Sim;
use serde_json::Value;
use support::{assert_left, pipe, post_mortem, start_with_stderr, steady};

/// Commands that have something to say before there is a context, in the middle, and at the end.
fn talkative(sim: &Sim) -> Vec<Command> {
    let program = steady(sim);
    let mut early = sim.shimmed(&program);
    early.args(["init", "1"]).env("CUWARDEN_MEMORY_LIMIT", "4Q");
    let mut middle = sim.shimmed(&program);
    middle.args(["deny-loudly", "50"]).env("CUWARDEN_MEMORY_LIMIT", "1g");
    let mut late = sim.shimmed(&program);
    late.args(["steady", "30"]).env("CUWARDEN_LOG", "debug");
    let mut all = vec![early, middle, late];
    for command in &mut all {
        command.env_remove("CUWARDEN_LOG_FILE");
    }
    all
}

#[test]
fn a_pipe_that_nobody_empties_does_not_stop_the_program() {
    let sim = Sim::new();
    for mut command in talkative(&sim) {
        let [_reader, writer] = pipe();
        // SAFETY: a descriptor of ours.
        unsafe {
            let flags = libc::fcntl(writer.as_raw_fd(), libc::F_GETFL);
            libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK);
            let byte = [0u8; 4096];
            while libc::write(writer.as_raw_fd(), byte.as_ptr().cast(), byte.len()) > 0 {}
            while libc::write(writer.as_raw_fd(), byte.as_ptr().cast(), 1) > 0 {}
            libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags);
        }
        start_with_stderr(&mut command, Some(&writer)).finish().succeeded();
    }
}

#[test]
fn a_broken_pipe_does_not_end_the_program() {
    let sim = Sim::new();
    for mut command in talkative(&sim) {
        let [reader, writer] = pipe();
        drop(reader);
        start_with_stderr(&mut command, Some(&writer)).finish().succeeded();
    }
}

#[test]
fn a_closed_stderr_is_nobody_s_file() {
    let sim = Sim::new();
    for mut command in talkative(&sim) {
        start_with_stderr(&mut command, None).finish().succeeded();
    }
}

/// Descriptor 2 of a process that closed it is a file like any other.
#[test]
fn a_data_file_in_stderr_s_place_stays_clean() {
    for action in ["data-later", "data-before"] {
        let sim = Sim::new();
        let data = sim.temp.join("data");
        let mut command = sim.shimmed(books::program(&sim, "badinput/places.c"));
        command.arg(action).arg(&data).env("CUWARDEN_MEMORY_LIMIT", "1g").env("CUWARDEN_LOG", "debug");
        run(command.env_remove("CUWARDEN_LOG_FILE")).succeeded();
        let written = std::fs::read_to_string(&data).expect("the program made it");
        assert_eq!(written, "payload", "{action}");
    }
}

#[test]
fn events_follow_stdout_and_stderr_to_a_log_file() {
    let sim = Sim::new();
    let log = sim.temp.join("log");
    let mut command = sim.shimmed(books::program(&sim, "badinput/places.c"));
    command.arg("redirected").arg(&log).env("CUWARDEN_MEMORY_LIMIT", "1g");
    run(command.env_remove("CUWARDEN_LOG_FILE")).succeeded();
    let written = std::fs::read_to_string(&log).expect("the program made it");
    assert!(written.contains("quota_denied"), "{written}");
}

/// Two processes that look for room in one pipe: whoever comes second must not wait.
#[test]
fn the_end_is_not_put_off_by_a_stderr_without_room() {
    let sim = Sim::new();
    for mut command in talkative(&sim) {
        let mut ends = [0; 2];
        // SAFETY: a place for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) }, 0);
        // SAFETY: both were just made and are nobody else's.
        let [writer, _reader] = ends.map(|fd| unsafe { <std::fs::File as FromRawFd>::from_raw_fd(fd) });
        let bytes = [0u8; 4096];
        // SAFETY: the buffer is valid for its length.
        let send = |length| unsafe {
            libc::send(writer.as_raw_fd(), bytes.as_ptr().cast(), length, libc::MSG_DONTWAIT)
        };
        while send(bytes.len()) > 0 {}
        while send(1) > 0 {}
        let since = std::time::Instant::now();
        start_with_stderr(&mut command, Some(&writer)).finish().succeeded();
        assert!(since.elapsed() < std::time::Duration::from_secs(20), "{:?}", since.elapsed());
    }
}

// ---- descriptors, children, threads -------------------------------------------------------------------------------

#[test]
fn a_program_may_close_what_it_does_not_know() {
    let sim = Sim::new();
    run(sim.shimmed(steady(&sim)).args(["close", "3000"]).env("CUWARDEN_LOG", "debug")).succeeded();
    assert_left(&sim, &sim.report(), 6000);
}

/// The report of the process whose arguments begin so, of several.
fn report_of<'a>(reports: &'a [Value], action: &str) -> &'a Value {
    let found: Vec<&Value> = reports.iter().filter(|report| report["cmdline"][1] == action).collect();
    assert_eq!(found.len(), 1, "{action}: {reports:#?}");
    found[0]
}

#[test]
fn a_child_s_end_leaves_the_parent_s_report_alone() {
    let sim = Sim::new();
    run(sim.shimmed(steady(&sim)).args(["fork", "300"])).succeeded();
    let reports = sim.reports();
    // The one that became another program has books of its own; one that could not use CUDA has nothing in its books.
    let (empty, others): (Vec<Value>, Vec<Value>) =
        reports.into_iter().partition(|report| report["devices"].as_array().is_some_and(Vec::is_empty));
    assert_left(&sim, report_of(&others, "fork"), 600);
    assert_left(&sim, report_of(&others, "steady"), 300);
    assert_eq!(others.len(), 2, "{others:#?}");
    for report in empty {
        assert_eq!(report["leaks"].as_array().map(Vec::len), Some(0), "{report:#}");
    }
}

#[test]
fn a_child_forked_before_is_a_process_of_its_own() {
    let sim = Sim::new();
    run(sim.shimmed(steady(&sim)).args(["fork-first", "300"])).succeeded();
    let reports = sim.reports();
    assert_eq!(reports.len(), 2, "{reports:#?}");
    assert_ne!(reports[0]["pid"], reports[1]["pid"]);
    for report in &reports {
        assert_left(&sim, report, 300);
    }
}

#[test]
fn a_vfork_changes_nothing() {
    let sim = Sim::new();
    run(sim.shimmed(steady(&sim)).args(["vfork", "300"])).succeeded();
    assert_left(&sim, &sim.report(), 600);
}

#[test]
fn threads_come_and_go() {
    let sim = Sim::new();
    run(sim.shimmed(steady(&sim)).args(["threads", "300"])).succeeded();
    let report = sim.report();
    books::agree(&sim, &report);
    assert_eq!(report["devices"][0]["alloc_count"], 300, "{report:#}");
}

/// Cancelling acts at the first open, write or poll of a thread, and must not act inside of us.
#[test]
fn a_cancelled_thread_ends_in_its_own_code() {
    let sim = Sim::new();
    let program = books::program(&sim, "badinput/cancelled.c");
    run(sim.shimmed(&program).arg("refused").env("CUWARDEN_MEMORY_LIMIT", "4Q")).succeeded();
    let nowhere = sim.temp.join("missing/below");
    let mut command = sim.shimmed(&program);
    command.arg("refused").env("CUWARDEN_MEMORY_LIMIT", "1g").env("CUWARDEN_DIR", nowhere);
    run(&mut command).succeeded();
    assert_eq!(sim.events_named("config_error").len(), 2);
    run(sim.shimmed(&program).arg("exit").env("CUWARDEN_LOG", "debug")).succeeded();
    books::agree(&sim, &sim.report());
    assert_eq!(sim.report()["devices"][0]["alloc_count"], 30);
    assert_eq!(sim.events_named("process_exit").len(), 1);
}

/// The destructor of a library often runs after ours.
#[test]
fn what_a_destructor_frees_is_not_leaked() {
    for (ending, live, killed) in
        [("return", 512, false), ("leave", 512 + (1 << 20), false), ("die", 512, true)]
    {
        let sim = Sim::new();
        let libcuda = sim.libraries().join("libcuda.so.1").display().to_string();
        let source = "tests/programs/badinput/destructor.c";
        let library = cc::library(source, "libdestructor.so", &["-DLIBRARY", &libcuda]);
        let folder: PathBuf = library.parent().expect("it lies in a folder").into();
        let rpath = format!("-Wl,-rpath,{}", folder.display());
        let program = cc::program(source, &[&library.display().to_string(), &libcuda, &rpath]);
        let finished = run(sim.shimmed(program).arg(ending).env("CUWARDEN_LOG", "info"));
        let record = post_mortem(&sim.shared_dir());
        let report = sim.report();
        assert_eq!(report["termination"], "exit", "{report:#}");
        if killed {
            finished.killed_by(libc::SIGKILL);
        } else {
            finished.succeeded();
            books::agree(&sim, &report);
            assert_eq!(report["devices"][0]["live_bytes"], live, "{report:#}");
        }
        // The last word, which a destructor that ends the process leaves unsaid.
        let orderly = ending == "return";
        assert_eq!(record["devices"][0]["live_bytes"], live, "{record:#}");
        assert_eq!(record["termination"], if orderly { "exit" } else { "killed" }, "{record:#}");
        assert_eq!(sim.events_named("process_exit").len(), usize::from(orderly));
    }
}

// ---- death --------------------------------------------------------------------------------------------------------

/// A process that is killed leaves books that are right but for the call in which it died.
#[test]
fn killed_at_any_moment() {
    const STEP: u64 = 2 << 20;
    let program = steady(&Sim::new());
    let mut exact = 0;
    for round in 0..60u64 {
        let sim = Sim::new();
        let here = sim.temp.join("here");
        let mut command = sim.shimmed(&program);
        command.args(["for-ever", "0"]).arg(&here);
        let mut running = start(&mut command);
        while !here.exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // No two rounds alike, and no clock asked.
        std::thread::sleep(std::time::Duration::from_micros(round * 7919 % 5000));
        running.kill();
        let report = post_mortem(&sim.shared_dir());
        assert_eq!(report["termination"], "killed", "{report:#}");
        assert_eq!(report["damaged_parts"], 0, "{report:#}");
        let books = sim.process_books(&report["pid"]);
        let held = books::held(&books);
        let leaked = books::leaked(&report, held.len());
        let differ: Vec<(&String, u64, u64)> = held[0]
            .iter()
            .map(|(kind, bytes)| (kind, *bytes, leaked[0][kind]))
            .filter(|(_, bytes, told)| bytes != told)
            .collect();
        exact += u32::from(differ.is_empty());
        let one_call = differ.len() <= 1 && differ.iter().all(|(_, a, b)| a.abs_diff(*b) <= STEP);
        assert!(one_call, "round {round}: {differ:?}\n{books:#}\n{report:#}");
    }
    // Were they never even, one could doubt that the comparison compares.
    assert!(exact > 0);
}
