//! `cuwarden doctor`: a verdict a line, on machines that are made for it.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod cli_doctor_support;
mod common;

use std::fs;
use std::process::Command;

use cli_doctor_support::{Machine, json, says};
use common::process::run;
use serde_json::Value;

#[test]
fn a_machine_that_works() {
    let machine = Machine::working();
    let answer = machine.doctor(0);
    assert_eq!((&answer["schema"], &answer["verdict"]), (&"cuwarden.doctor/1".into(), &"ok".into()));
    assert_eq!((&answer["kernel_module"], &answer["is_container"]), (&"535.183.01".into(), &false.into()));
    says(&answer, "driver_library", "ok", "libcuda.so.1 (the loader's own folders), release 535.183.01");
    says(&answer, "device_nodes", "ok", "/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0");
    says(&answer, "preload", "ok", "not preloaded");
    says(&answer, "quota", "ok", "none is set");
    assert_eq!(answer["nvml_chain"][0]["call"], "nvmlInit_v2");
    let first =
        answer["libraries"].as_array().expect("a list").iter().find(|one| one["name"] == "libcuda.so.1");
    let first = first.expect("it is there");
    assert_eq!(first["file"], "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01");
    let text = run(&mut machine.command()).succeeded().stdout;
    assert!(text.lines().all(|line| line.starts_with("ok ")), "{text}");
}

#[test]
fn an_empty_machine() {
    let answer = Machine::empty().doctor_without_nvml(2);
    says(&answer, "no_driver_library", "failed", "no libcuda.so.1");
    says(&answer, "kernel_module_missing", "failed", "/proc/driver/nvidia/version");
    assert_eq!(answer["nvml_chain"], Value::Array(vec![]));
}

#[test]
fn nvml_alone_is_missing() {
    let answer = Machine::working().doctor_without_nvml(3);
    says(&answer, "nvml", "unknown", "could not be asked");
}

#[test]
fn a_container_without_devices() {
    let machine = Machine::working();
    machine.write(".dockerenv", b"");
    fs::remove_dir_all(machine.sim.temp.join("root/dev")).expect("it is there");
    let answer = machine.doctor_without_nvml(2);
    assert_eq!(answer["is_container"], true);
    says(&answer, "no_device_nodes", "failed", "no /dev/nvidiactl here");
}

#[test]
fn a_stub_comes_first() {
    let machine = Machine::working().set("LD_LIBRARY_PATH", "/usr/local/cuda/lib64/stubs");
    machine.write("usr/local/cuda/lib64/stubs/libcuda.so.1", b"");
    let answer = machine.doctor(2);
    says(&answer, "stub_library", "failed", "/usr/local/cuda/lib64/stubs/libcuda.so.1");
}

#[test]
fn a_shadowed_driver() {
    let machine = Machine::working().set("LD_LIBRARY_PATH", "/opt/old");
    machine.driver("opt/old", "535.183.01");
    let answer = machine.doctor(1);
    says(&answer, "shadowed", "warning", "/opt/old/libcuda.so.1, by LD_LIBRARY_PATH");
}

#[test]
fn library_and_module_of_different_releases() {
    let machine = Machine::working();
    machine.module("550.54.14");
    let answer = machine.doctor(2);
    says(&answer, "version_mismatch", "failed", "the kernel module is 550.54.14");
}

#[test]
fn musl() {
    let machine = Machine::working();
    machine.write("lib/ld-musl-x86_64.so.1", b"");
    says(&machine.doctor(2), "libc", "failed", "musl");
    machine.write("lib64/ld-linux-x86-64.so.2", b"");
    machine.doctor(0);
}

#[test]
fn preloads() {
    let named = |path: &str| {
        let machine = Machine::working();
        machine.write("etc/ld.so.preload", format!("# ours\n{path}\n").as_bytes());
        let mut other = b"\x7fELF\x01\x01\x01".to_vec();
        other.resize(64, 0);
        machine.write("opt/32/libcuwarden.so", &other);
        machine.write("opt/text/libcuwarden.so", b"no library");
        // Any library of this processor will do.
        let shim = fs::read(machine.sim.libraries().join("libcuda.so.1")).expect("it was built");
        machine.write("opt/good/libcuwarden.so", &shim);
        machine
    };
    says(&named("/opt/none/libcuwarden.so").doctor(2), "preload", "failed", "is not there");
    says(&named("/opt/32/libcuwarden.so").doctor(2), "preload", "failed", "another processor");
    says(&named("/opt/text/libcuwarden.so").doctor(2), "preload", "failed", "not a shared library");
    says(&named("/opt/good/libcuwarden.so").doctor(0), "preload", "ok", "can be loaded");
    says(&named("/opt/none/other.so").doctor(1), "preload", "warning", "other.so");
}

#[test]
fn limits() {
    let answer = Machine::working().set("CUWARDEN_MEMORY_LIMIT", "4GiB").doctor(1);
    says(&answer, "quota", "ok", "CUWARDEN_MEMORY_LIMIT=4GiB");
    says(&answer, "preload", "warning", "nobody keeps it");
    let answer = Machine::working().set("CUWARDEN_MEMORY_LIMIT", "0x10").doctor(2);
    says(&answer, "configuration", "failed", "CUWARDEN_MEMORY_LIMIT=\"0x10\"");
    let machine = Machine::working().set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G");
    machine.write("proc/self/cgroup", b"0::/jobs/7\n");
    machine.write("sys/fs/cgroup/dmem.capacity", b"drm/0000:17:00.0/vram0 8589934592\n");
    machine.write("sys/fs/cgroup/jobs/dmem.max", b"drm/0000:17:00.0/vram0 1073741824\n");
    machine.write("sys/fs/cgroup/jobs/7/dmem.max", b"drm/0000:17:00.0/vram0 max\n");
    let answer = machine.doctor(0);
    says(&answer, "dmem", "ok", "1.00 GiB of drm/0000:17:00.0/vram0 (/sys/fs/cgroup/jobs/dmem.max)");
    says(&answer, "mps", "ok", "0=2G");
}

#[test]
fn an_exclusive_device_is_a_warning_until_somebody_has_it() {
    let answer = Machine::working().set("CUWARDEN_SIM_COMPUTE_MODE", "exclusive").doctor(1);
    says(&answer, "exclusive_mode", "warning", "exclusive process");
}

#[test]
fn a_runtime_of_pip_that_is_newer_than_the_driver() {
    let machine = Machine::working();
    let site = "usr/lib/python3.11/site-packages";
    machine.write(&format!("{site}/nvidia/cu99/lib/libcudart.so.99"), b"");
    machine.write(&format!("{site}/nvidia_cuda_runtime-99.1.5.dist-info/METADATA"), b"");
    let answer = machine.doctor(1);
    // The file's name is that of all minor versions.
    assert!(!answer.to_string().contains("CUDA 99.0"), "{answer:#}");
    says(&answer, "runtime", "warning", "CUDA 99.1 in");
    let package = &answer["packages"][0];
    assert_eq!((&package["name"], &package["version"]), (&"nvidia-cuda-runtime".into(), &"99.1.5".into()));
}

#[test]
fn used_wrongly() {
    let machine = Machine::empty();
    run(machine.command().arg("--nonsense")).exited(64);
}

/// On the machine itself: programs of a fake root would need a whole system in it.
#[track_caller]
fn of_program(program: &str, status: i32) -> Value {
    let machine = Machine::empty();
    let mut command = machine.command();
    json(command.env_remove("CUWARDEN_TEST_ROOT").args(["--json", "--", program]), status)
}

#[test]
fn programs() {
    let source = Machine::empty();
    let folder = source.sim.temp.join("root");
    let path = |name: &str| folder.join(name).display().to_string();
    source.write("p.c", b"int main(void) { return 0; }");
    run(Command::new("cc").arg(path("p.c")).arg("-o").arg(path("dynamic"))).succeeded();
    run(Command::new("cc").arg("-static").arg(path("p.c")).arg("-o").arg(path("static"))).succeeded();
    fs::copy(path("dynamic"), path("setuid")).expect("the folder is ours");
    run(Command::new("chmod").arg("u+s").arg(path("setuid"))).succeeded();
    says(&of_program(&path("static"), 2), "program", "failed", "statically");
    says(&of_program(&path("setuid"), 2), "program", "failed", "setuid");
    source.write("q.c", b"int main(void) { return 0; } const char a[] = \"cudaErrorInsufficientDriver\", b[] = \"cuGetProcAddress\";");
    run(Command::new("cc").arg(path("q.c")).arg("-o").arg(path("with"))).succeeded();
    let runtime = source.sim.libraries().join("libcudart.so.12");
    run(Command::new("cc")
        .args(["-Wl,--no-as-needed", "-o"])
        .args([path("shared"), path("p.c")])
        .arg(runtime))
    .succeeded();
    // The machine of the test may be without a driver.
    let told =
        |name: &str| run(source.command().env_remove("CUWARDEN_TEST_ROOT").args(["--", &path(name)])).stdout;
    assert!(told("dynamic").contains("it links no CUDA runtime"), "{}", told("dynamic"));
    assert!(told("with").contains("is linked into the program"), "{}", told("with"));
    assert!(told("shared").contains("the CUDA runtime is shared: "), "{}", told("shared"));
    let mut missing = source.command();
    run(missing.args(["--", "/none/at/all"])).exited(66);
}
