//! NVIDIA's Python packages over the simulated GPU.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "clients/expect.rs"]
mod expect;

use std::path::PathBuf;
use std::process::Command;

use common::process::run;
use common::sim::Sim;
use common::{artefacts, clients};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn script(name: &str) -> PathBuf {
    artefacts::root().join("tests/clients/python").join(name)
}

/// Python with the fetched packages and nobody else's.
fn python(mut command: Command, name: &str) -> Command {
    let python = clients::python();
    command.arg("-B").arg(script(name)).env("PYTHONPATH", &python.packages);
    command
}

fn shimmed(sim: &Sim, name: &str) -> Command {
    python(sim.shimmed(clients::python().interpreter), name)
}

fn bare(sim: &Sim, name: &str) -> Command {
    python(sim.bare(clients::python().interpreter), name)
}

#[test]
fn cuda_bindings_allocate_leak_and_meet_their_quota() {
    let sim = Sim::new();
    let (keep, free, limit) = (4 * MIB, 6 * MIB, 1024 * MIB);
    let arguments = [keep, free, limit].map(|size| size.to_string());
    let out =
        run(shimmed(&sim, "bindings.py").args(arguments).env("CUWARDEN_MEMORY_LIMIT", "1g")).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    let pitched = said["pitched"].as_u64().unwrap_or_else(|| panic!("no size: {said}"));
    assert_eq!(said["device_total"], limit, "{said}");
    assert_eq!(said["free"], limit - 2 * keep - pitched, "{said}");
    expect::assert_told(
        &sim,
        &expect::Run {
            leaks: &[
                ("cuMemAlloc_v2", 1, keep),
                ("cuMemAllocPitch_v2", 1, pitched),
                ("cuMemAllocAsync", 1, keep),
            ],
            limit,
            said: &said,
        },
    );
}

/// The quota is the shim's doing: without it the same program gets all that it asks for.
#[test]
fn cuda_bindings_meet_no_quota_without_the_shim() {
    let sim = Sim::new();
    let arguments = [MIB, MIB, 1024 * MIB].map(|size| size.to_string());
    let out = run(bare(&sim, "bindings.py").args(arguments).env("CUWARDEN_MEMORY_LIMIT", "1g")).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    assert_eq!(said["refused"], "CUDA_SUCCESS", "{said}");
    assert!(sim.events().is_empty() && sim.reports().is_empty());
}

/// Whatever is initialised first, and without CUDA, and several times.
#[test]
fn nvidia_ml_py_sees_the_same_devices_in_any_order() {
    for order in [&["nvml"][..], &["nvml", "cuda"], &["cuda", "nvml"], &["nvml", "cuda", "nvml"]] {
        let sim = Sim::new();
        let bare = run(bare(&sim, "nvml.py").args(order)).succeeded();
        let shimmed = run(shimmed(&sim, "nvml.py").args(order)).succeeded();
        assert_eq!(bare.stdout, shimmed.stdout, "{order:?}");
        assert_eq!(bare.stderr, shimmed.stderr, "{order:?}");
        assert!(bare.stdout.contains("GPU-"), "no device was seen: {}", bare.told());
        assert!(bare.stdout.contains("cuInit 0") || !order.contains(&"cuda"), "{}", bare.told());
    }
}

/// What is known of each process. Children of multiprocessing leave by `_exit`, so they write no report; their record
/// files say the same.
fn records(sim: &Sim) -> Vec<Value> {
    let mut report = Command::new(artefacts::cli());
    report.args(["report", "--format", "json"]).arg(sim.shared_dir());
    let out = run(&mut report).succeeded();
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()))
}

/// multiprocessing in its three ways: every process is in the books with its own, and one quota holds them all.
#[test]
fn processes_that_python_starts() {
    for method in ["fork", "spawn", "forkserver"] {
        let sim = Sim::new();
        let mut command = shimmed(&sim, "processes.py");
        command
            .args([method, "3", &(4 * MIB).to_string()])
            .env("CUWARDEN_MEMORY_LIMIT", (14 * MIB).to_string());
        let out = run(&mut command).succeeded();
        let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
        let codes: Vec<&str> =
            said["said"].as_object().expect("an object").values().filter_map(Value::as_str).collect();
        let granted = codes.iter().filter(|code| **code == "CUDA_SUCCESS").count();
        let refused = codes.iter().filter(|code| **code == "CUDA_ERROR_OUT_OF_MEMORY").count();
        assert_eq!((granted, refused), (3, 1), "{method}: three of four fit: {said}");
        let reports = records(&sim);
        assert_eq!(reports.len(), 4, "{method}: {reports:#?}");
        for report in &reports {
            let code = said["said"][report["pid"].to_string()].as_str();
            let expected = if code == Some("CUDA_SUCCESS") { 4 * MIB } else { 0 };
            assert_eq!(report["devices"][0]["live_bytes"], expected, "{method}: {report:#}");
        }
    }
}

/// A child that was forked from a process with CUDA cannot use it. It is told so, and has nothing of its parent's.
#[test]
fn a_python_process_forked_too_late() {
    let sim = Sim::new();
    let mut command = shimmed(&sim, "processes.py");
    let out = run(command.args(["fork", "2", &MIB.to_string(), "first"])).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    let parent = said["parent"].to_string();
    for (pid, code) in said["said"].as_object().expect("an object") {
        let expected = if *pid == parent { "CUDA_SUCCESS" } else { "CUDA_ERROR_NOT_INITIALIZED" };
        assert_eq!(code, expected, "{said}");
    }
    let failures = sim.events_named("init_failure");
    assert!(failures.iter().all(|event| event["causes"][0]["id"] == "after_fork"), "{failures:#?}");
    assert_eq!(failures.len(), 2, "{failures:#?}");
    for report in records(&sim) {
        let expected = if report["pid"] == said["parent"] { MIB } else { 0 };
        let live: u64 = report["devices"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|d| d["live_bytes"].as_u64())
            .sum();
        assert_eq!(live, expected, "{report:#}");
    }
}
