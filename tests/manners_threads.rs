//! Forks, exits, cancelled threads and jumps, in the middle of what other threads do.
//!
//! Reported of others: HAMi#1834 and HAMi#2500, #55, #588, HAMi-core#86 (a lock that stays held), vllm#32611,
//! pycuda#137, pytorch#40403 (CUDA in a forked child), ZLUDA#404, cccl#7063, pytorch#97142 (teardown).

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};

use common::artefacts::cli;
use common::cc;
use common::process::{Finished, run};
use common::sim::{Sim, clean};

const PROGRAMS: &str = "tests/programs/manners";

fn program(name: &str) -> PathBuf {
    let libcuda = Sim::new().libraries().join("libcuda.so.1").display().to_string();
    cc::program(&format!("{PROGRAMS}/{name}.c"), &[&libcuda])
}

#[track_caller]
fn same_with_and_without(name: &str, how: &str) -> (Sim, Finished) {
    let sim = Sim::new();
    let program = program(name);
    let [bare, shimmed] =
        [sim.bare(&program), sim.shimmed(&program)].map(|mut command| run(command.arg(how)).succeeded());
    assert_eq!(bare.stdout, shimmed.stdout, "{how}: {}\n{}", bare.told(), shimmed.told());
    (sim, shimmed)
}

/// Threads fork while others allocate; each child tries to start CUDA and to allocate. It gets the driver's answer, as
/// without us, and comes back: no lock of ours is held across a fork.
#[track_caller]
fn forks_while_others_work(how: &str) {
    let (sim, out) = same_with_and_without("forks", how);
    // cuInit in a child of a process that had started CUDA: CUDA_ERROR_NOT_INITIALIZED.
    assert!(out.stdout.starts_with(&format!("codes {:x}\n", 1u64 << 13)), "{}", out.told());
    let parent = &sim.reports()[0];
    assert_eq!(parent["devices"][0]["live_bytes"], 12345 + 55, "{parent:#}");
}

#[test]
fn forks_while_others_allocate() {
    forks_while_others_work("storm");
}

/// The same while others call cuInit again and again, as every library in a process does for itself.
#[test]
fn forks_while_others_start_cuda() {
    forks_while_others_work("starting storm");
}

#[test]
fn children_start_afresh_where_the_parent_had_not_started() {
    let (sim, _) = same_with_and_without("forks", "before");
    let reports = sim.reports();
    let mut bytes: Vec<u64> =
        reports.iter().filter_map(|report| report["devices"][0]["live_bytes"].as_u64()).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [1000, 2000, 3000], "{reports:#?}");
}

/// The parent's allocations are the parent's; its child reports nothing.
#[test]
fn a_child_that_only_exits_writes_no_report() {
    let (sim, out) = same_with_and_without("forks", "exiting child");
    assert!(out.stdout.starts_with("child 7\n"), "{}", out.told());
    assert_eq!(sim.report()["devices"][0]["live_bytes"], 12345 + 55);
}

#[test]
fn vfork_posix_spawn_system_popen_and_clone() {
    for how in ["vfork", "spawn", "system", "clone"] {
        let (sim, out) = same_with_and_without("forks", how);
        assert!(out.stdout.ends_with("parent goes on 0\n"), "{how}: {}", out.told());
        // The simulated driver tells a child by its number, so it refuses the one that clone makes.
        assert_eq!(sim.report()["devices"][0]["live_bytes"], 12345 + 55, "{how}");
    }
}

/// Every report that there is is whole; the program ends with its own status. Many times each, as every run meets the
/// other threads somewhere else; less often where nothing of ours runs at the end.
#[track_caller]
fn ends(how: &str, reported: bool, check: impl Fn(Finished)) {
    let program = program("exits");
    for _ in 0..if reported { 50 } else { 15 } {
        let sim = Sim::new();
        check(run(sim.shimmed(&program).arg(how)));
        // Read as JSON.
        let reports = sim.reports();
        assert_eq!(reports.len(), usize::from(reported), "{how}: {reports:#?}");
        for report in reports {
            assert_eq!(report["termination"], "exit", "{report:#}");
            let live = report["devices"][0]["live_bytes"].as_u64().expect("a number");
            assert!((12345..12345 + 4 * 16 * 4096 + 1).contains(&live), "{how}: {report:#}");
        }
        // And what was left behind can be read, however it ended.
        let record =
            run(clean(cli()).args(["report", "--format", "json"]).arg(sim.shared_dir().join("proc")));
        assert!(record.succeeded().stdout.contains("\"devices\""), "{how}");
    }
}

#[test]
fn exit_while_others_allocate() {
    ends("exit", true, |out| drop(out.succeeded()));
}

#[test]
fn exit_from_another_thread() {
    ends("thread", true, |out| drop(out.succeeded()));
    ends("last thread", true, |out| drop(out.succeeded()));
}

/// exit in a signal handler that may have interrupted a hook anywhere.
#[test]
fn exit_from_a_signal_handler() {
    ends("signal", true, |out| drop(out.succeeded()));
}

#[test]
fn ends_without_exit_handlers() {
    ends("_exit", false, |out| drop(out.succeeded()));
    ends("quick_exit", false, |out| drop(out.succeeded()));
    ends("abort", false, |out| drop(out.killed_by(libc::SIGABRT)));
}

/// A thread that ends or is taken away inside the driver.
#[track_caller]
fn in_the_driver(how: &str) -> (Sim, Finished) {
    let driver = cc::library(
        &format!("{PROGRAMS}/slow.c"),
        "libcuda.so.1",
        &["-Wl,-soname,libcuda.so.1", "-fexceptions"],
    );
    let sim = Sim::over(driver.parent().unwrap_or(Path::new("/")));
    let program =
        cc::program(&format!("{PROGRAMS}/threads.c"), &["-fexceptions", &driver.display().to_string()]);
    let [bare, shimmed] =
        [sim.bare(&program), sim.shimmed(&program)].map(|mut command| run(command.arg(how)).succeeded());
    assert_eq!(bare.stdout, shimmed.stdout, "{how}: {}\n{}", bare.told(), shimmed.told());
    (sim, shimmed)
}

#[test]
fn a_thread_that_is_cancelled_inside_the_driver() {
    let (sim, _) = in_the_driver("cancel");
    assert_eq!(sim.report()["leaks"][0]["bytes"], 55);
}

#[test]
fn a_thread_that_ends_itself_inside_the_driver() {
    let (sim, _) = in_the_driver("exit");
    assert_eq!(sim.report()["leaks"][0]["bytes"], 55);
}

/// A jump out of the driver, by a call-back or by a signal handler, leaves our frames behind. The thread is tracked all
/// the same from then on.
#[test]
fn a_thread_that_jumps_out_of_the_driver_is_still_tracked() {
    for how in ["jump", "signal"] {
        let (sim, _) = in_the_driver(how);
        let report = sim.report();
        let recorded: u64 = report["leaks"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|leak| leak["bytes"].as_u64())
            .sum();
        assert_eq!(recorded, 3 * 100_000 + 55, "{how}: {report:#}");
    }
}
