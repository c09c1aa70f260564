//! What an event says when CUDA or a context cannot be had: the cause, and the chain of NVML calls that shows it.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Puppet, Stage};

/// CUDA_ERROR_DEVICE_UNAVAILABLE
const UNAVAILABLE: i32 = 46;

fn puppet(stage: &Stage, variables: &[(&str, &str)]) -> Puppet {
    stage.puppet_with(|command: &mut Command| {
        command.env_remove("CUWARDEN_MEMORY_LIMIT").envs(variables.iter().copied());
    })
}

/// The only one.
#[track_caller]
fn failure(stage: &Stage) -> Value {
    let events = stage.sim.events_named("init_failure");
    let [event] = &events[..] else { panic!("one failure was expected: {events:#?}") };
    event.clone()
}

#[track_caller]
fn likely(event: &Value, id: &str, evidence: &str) {
    let cause = &event["causes"][0];
    assert_eq!(cause["id"], id, "{event:#}");
    assert!(cause["evidence"].as_str().is_some_and(|text| text.contains(evidence)), "{event:#}");
    assert!(event["message"].as_str().is_some_and(|text| text.contains(id)), "{event:#}");
}

fn calls(event: &Value) -> Vec<String> {
    let calls = event["nvml_chain"].as_array().expect("a list");
    calls
        .iter()
        .map(|call| format!("{}({})={}", call["call"], call["args"], call["code"]).replace('"', ""))
        .collect()
}

#[test]
fn a_device_that_somebody_has_to_himself() {
    let stage = Stage::new();
    let exclusive = [("CUWARDEN_SIM_COMPUTE_MODE", "exclusive")];
    let mut holder = puppet(&stage, &exclusive);
    holder.has_context();
    let mut other = puppet(&stage, &exclusive);
    other.ok("init");
    for _ in 0..3 {
        assert_eq!(other.code("context 0"), UNAVAILABLE);
    }
    let event = failure(&stage);
    likely(&event, "exclusive_mode", &format!("pid {} has it", holder.pid));
    assert_eq!((&event["code"], &event["device"]), (&UNAVAILABLE.into(), &0.into()));
    let calls = calls(&event);
    assert_eq!(calls[0], "nvmlInit_v2()=0");
    for wanted in [
        "nvmlSystemGetDriverVersion()=0",
        "nvmlDeviceGetCount_v2()=0",
        "nvmlDeviceGetComputeMode(device=0)=0",
    ] {
        assert!(calls.iter().any(|call| call == wanted), "{wanted}: {calls:#?}");
    }
    // Nobody has it any more: then it works, and nothing new is said.
    holder.kill();
    assert_eq!(other.code("context 0"), 0);
    failure(&stage);
}

#[test]
fn a_device_that_is_not_there() {
    let stage = Stage::new();
    let mut puppet = puppet(&stage, &[]);
    puppet.ok("init");
    assert_eq!(puppet.code("context 9"), 101);
    let event = failure(&stage);
    likely(&event, "no_such_device", "device 9 was asked for, and this process sees 2 of 2");
    let chain = event["nvml_chain"].as_array().expect("a list");
    let last = chain.last().expect("it is not empty");
    assert_eq!((&last["args"], &last["code"]), (&"index=9".into(), &2.into()), "{last}");
    assert_eq!(last["name"], "NVML_ERROR_INVALID_ARGUMENT");
    assert_eq!(last["result"], "the valid range is 0 to 1");
}

#[test]
fn devices_that_are_hidden() {
    let stage = Stage::new();
    let mut puppet = puppet(&stage, &[("CUDA_VISIBLE_DEVICES", "7")]);
    assert_eq!(puppet.code("init"), 100);
    likely(&failure(&stage), "visible_devices", "\"7\": out of range");
}

/// Nothing is asked there: locks of threads that are not there any more may be held.
#[test]
fn a_child_of_a_process_that_uses_cuda() {
    let stage = Stage::new();
    let mut parent = stage.holder(0);
    let mut child = stage.child_of(&mut parent, "fork");
    assert_eq!(child.code("init"), 3);
    let event = failure(&stage);
    likely(&event, "after_fork", &format!("process {} had initialised CUDA", parent.pid));
    assert_eq!(event["nvml_chain"], Value::Array(vec![]));
}

/// The chain ends where going on would only repeat the failure.
#[test]
fn libraries_of_another_release_than_the_module() {
    let stage = Stage::new();
    let root = stage.sim.temp.folder("root");
    let module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Wed Jul  3 00:00:00 UTC 2024\n";
    let maps =
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06\n";
    for (path, text) in [("proc/driver/nvidia/version", module), ("proc/self/maps", maps)] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("the folder is ours");
        std::fs::write(path, text).expect("the folder is ours");
    }
    let root = root.display().to_string();
    let variables =
        [("CUWARDEN_TEST_ROOT", root.as_str()), ("CUWARDEN_SIM_FAIL", "cuInit=803,nvmlInit_v2=18")];
    let mut puppet = puppet(&stage, &variables);
    assert_eq!(puppet.code("init"), 803);
    let event = failure(&stage);
    likely(&event, "version_mismatch", "the kernel module is 535.183.01, and");
    assert_eq!(calls(&event), ["nvmlInit_v2()=18"]);
}

/// A library of NVML that never answers, from its start or later: the application gets the driver's answer all the same, and
/// what NVML had said until then is told.
#[test]
fn nvml_that_does_not_answer() {
    let started =
        "int nvmlInit_v2(void) { return 0; }\nint nvmlDeviceGetCount_v2(unsigned *n) { for (;;) pause(); }\n";
    let count: &[&str] = &[
        "nvmlInit_v2()=0",
        "nvmlSystemGetDriverVersion()=13",
        "nvmlSystemGetNVMLVersion()=13",
        "nvmlSystemGetCudaDriverVersion_v2()=13",
    ];
    does_not_answer("int nvmlInit_v2(void) { for (;;) pause(); }\n", &[]);
    does_not_answer(started, count);
}

#[track_caller]
fn does_not_answer(text: &str, told: &[&str]) {
    let stage = Stage::new();
    let folder = stage.sim.temp.folder("stuck");
    let source = stage.sim.temp.join("stuck.c");
    std::fs::write(&source, ["#include <unistd.h>\n", text].concat()).expect("the folder is ours");
    let library = folder.join("libnvidia-ml.so.1");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(made.is_ok_and(|status| status.success()));
    let path = format!("{}:{}", folder.display(), stage.sim.libraries().display());
    let mut puppet = puppet(&stage, &[("LD_LIBRARY_PATH", &path), ("CUWARDEN_SIM_FAIL", "cuInit=999")]);
    let since = Instant::now();
    assert_eq!(puppet.code("init"), 999);
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let event = failure(&stage);
    likely(&event, "unknown", "NVML did not answer in time");
    assert_eq!(calls(&event), told);
    assert_eq!(puppet.finish(), 0);
}
