//! `cuwarden doctor --smi`: what nvidia-smi said on another machine.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod cli_doctor_support;
mod common;

use std::io::Write;
use std::process::Stdio;

use cli_doctor_support::{Machine, json, says};
use common::artefacts::root;
use common::process::run;

fn text(name: &str) -> String {
    root().join("src/cli/doctor/smi/testdata").join(name).display().to_string()
}

/// The machine on which it is looked at is empty, and that is of no account.
#[test]
fn another_machine() {
    let machine = Machine::empty();
    let of = |name: &str, status| json(machine.command().args(["--json", "--smi", &text(name)]), status);
    let answer = of("580.txt", 0);
    assert_eq!((&answer["driver"], &answer["smi"]["cuda"]), (&"580.95.05".into(), &"13.0".into()));
    assert_eq!(answer["smi"]["gpus"][0]["total_bytes"], 183_359_u64 << 20);
    says(&answer, "nvidia_smi", "ok", "NVIDIA B200");
    says(&of("450.txt", 2), "exclusive_mode", "failed", "pid 4711");
    says(&of("550.txt", 2), "gpu_lost", "failed", "device 1");
    assert!(machine.doctor_without_nvml(2)["smi"].is_null());
    let out = run(machine.command().args(["--smi", &text("580.txt")])).succeeded();
    assert!(out.stdout.lines().all(|line| line.starts_with("ok ")), "{}", out.told());
}

#[test]
fn standard_input() {
    let machine = Machine::empty();
    let mut child = machine
        .command()
        .args(["--smi", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let words = b"Failed to initialize NVML: Driver/library version mismatch\r\n";
    child.stdin.take().expect("it is piped").write_all(words).expect("it reads");
    let out = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.code() == Some(2) && told.contains("version_mismatch"), "{told}");
}

#[test]
fn the_baseline_holds_for_it() {
    let limited = || Machine::empty().set("CUWARDEN_BASELINE", "12.4").set("CUWARDEN_MEMORY_LIMIT", "4GiB");
    let answer = json(limited().command().args(["--json", "--smi", &text("580.txt")]), 2);
    says(&answer, "baseline", "failed", "[baseline-driver-major]");
    let off = limited().set("CUWARDEN_BASELINE_MODE", "off");
    json(off.command().args(["--json", "--smi", &text("580.txt")]), 0);
}

#[test]
fn what_is_no_answer_of_nvidia_smi() {
    let machine = Machine::empty();
    machine.write("notes", b"nothing of interest\xff\xfe\n");
    let notes = machine.sim.temp.join("root/notes").display().to_string();
    let answer = json(machine.command().args(["--json", "--smi", &notes]), 3);
    says(&answer, "nvidia_smi", "unknown", "no driver version");
    let out = run(machine.command().args(["--smi", "/none/at/all"])).exited(66);
    assert!(out.stderr.contains("/none/at/all"), "{}", out.told());
}
