//! Version baselines with the real CUDA runtimes, shared and static: each is found, its version is read to the digit, and
//! its own cuInit is where it is refused.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::process::{Finished, run};
use common::sim::Sim;
use common::{cc, clients};
use serde_json::{Value, json};

/// Where a runtime ends over the simulated driver that started: it cannot be verified (cudaErrorSymbolNotFound).
const STARTED: &str = "500";

/// The simulated driver is new enough for all of them.
const DRIVER: &str = "13.5";

fn shared(version: &str) -> String {
    clients::cudart(version).library.display().to_string()
}

fn steps() -> PathBuf {
    cc::program("tests/programs/baseline/steps.c", &[])
}

/// With the static runtime of that version.
fn linked(version: &str) -> PathBuf {
    let library = clients::cudart(version).static_library.expect("the wheel has a static library");
    let library = library.display().to_string();
    cc::program(
        "tests/programs/baseline/steps.c",
        &["-DLINKED", &library, "-ldl", "-lpthread", "-lrt", "-lm"],
    )
}

fn command(sim: &Sim, program: &Path, driver: &str, baseline: &str, steps: &[&str]) -> Command {
    let mut command = sim.shimmed(program);
    command.args(steps).arg("quit").env("CUWARDEN_SIM_DRIVER", driver);
    command.env("CUWARDEN_BASELINE", baseline).env("CUWARDEN_MEMORY_LIMIT", "4GiB");
    command
}

#[track_caller]
fn answers(sim: &Sim, program: &Path, baseline: &str, steps: &[&str]) -> Vec<String> {
    let out: Finished = run(&mut command(sim, program, DRIVER, baseline, steps)).succeeded();
    out.lines().iter().map(|line| (*line).to_owned()).collect()
}

#[track_caller]
fn violation(sim: &Sim) -> Value {
    let mut all = sim.events_named("baseline_violation");
    assert_eq!(all.len(), 1, "one event was expected: {all:#?}");
    all.remove(0)
}

#[test]
fn shared_runtimes_are_known_to_the_digit_and_get_the_code() {
    for version in clients::CUDART_VERSIONS {
        let sim = Sim::new();
        // A baseline of another major than any of theirs.
        let count = format!("count={}", shared(version));
        assert_eq!(
            answers(&sim, &steps(), "10.2", &[&count, "init"]),
            ["count 803", "init 803"],
            "{version}"
        );
        let event = violation(&sim);
        assert_eq!(event["runtime_version"], version, "{event:#}");
        assert_eq!(event["runtime_is_exact"], true, "{event:#}");
        assert_eq!(event["runtime_file"], shared(version), "{event:#}");
        assert_eq!(event["rule"], "baseline-runtime", "{event:#}");
    }
}

#[test]
fn static_runtimes_are_known_to_the_digit_and_get_the_code() {
    for version in ["12.9", "13.5"] {
        let sim = Sim::new();
        let program = linked(version);
        assert_eq!(answers(&sim, &program, "10.2", &["own"]), ["own 803"], "{version}");
        let event = violation(&sim);
        assert_eq!(event["runtime_version"], version, "{event:#}");
        assert_eq!(event["runtime_is_exact"], true, "{event:#}");
        assert_eq!(event["runtime_file"], program.display().to_string(), "{event:#}");
    }
}

/// A module of its own, loaded when CUDA runs already.
#[test]
fn a_runtime_that_comes_later_is_refused_alone() {
    let sim = Sim::new();
    let [good, bad] = ["13.5", "12.9"].map(|version| format!("count={}", shared(version)));
    let said = answers(&sim, &steps(), "13.5", &[&good, "init", &bad, "init", &good]);
    let started = |step: &str| format!("{step} {STARTED}");
    assert_eq!(said, [&started("count"), "init 0", "count 803", "init 0", &started("count")]);
    assert_eq!(violation(&sim)["rule"], "baseline-runtime-major");
    // The same where the first one is static.
    let sim = Sim::new();
    let said = answers(&sim, &linked("13.5"), "13.5", &["own", &bad, "own"]);
    assert_eq!(said, [&started("own"), "count 803", &started("own")]);
    assert_eq!(violation(&sim)["runtime_version"], "12.9");
}

/// 13.5 over a driver of CUDA 12 answers cudaErrorInsufficientDriver (35) by itself, without a cuInit.
#[test]
fn a_runtime_that_is_too_new_for_the_driver_is_explained() {
    for (program, step) in
        [(steps(), format!("count={}", shared("13.5"))), (linked("13.5"), "own".to_owned())]
    {
        let sim = Sim::new();
        let out = run(&mut command(&sim, &program, "12.2", "12.4", &[&step])).succeeded();
        assert!(out.stdout.trim_end().ends_with(" 35"), "{}", out.told());
        let event = violation(&sim);
        assert_eq!((&event["rule"], &event["runtime_version"]), (&json!("runtime-major"), &json!("13.5")));
        assert_eq!((&event["driver_version"], &event["baseline"]), (&json!("12.2"), &json!("12.4")));
    }
}

/// NVIDIA's own Python bindings use the driver alone: as many look-ups as a runtime's, and no runtime.
#[test]
fn a_client_of_the_driver_is_not_taken_for_a_runtime() {
    let python = clients::python();
    for (driver, code) in [("12.4", "CUDA_SUCCESS"), ("13.0", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")] {
        let sim = Sim::new();
        let script = "from cuda.bindings import driver; print(driver.cuInit(0)[0].name)";
        let mut command = command(&sim, &python.interpreter, driver, "12.4", &[]);
        command.env("PYTHONPATH", &python.packages);
        let mut fresh = sim.shimmed(&python.interpreter);
        fresh.args(["-c", script]);
        fresh.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let out = run(&mut fresh).succeeded();
        assert_eq!(out.stdout.trim(), code, "{}", out.told());
        let runtimes: Vec<Value> = sim
            .events_named("baseline_violation")
            .iter()
            .map(|event| event["runtime_version"].clone())
            .collect();
        assert!(runtimes.iter().all(Value::is_null), "{runtimes:?}");
    }
}
