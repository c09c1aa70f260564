//! `cuwarden doctor`: a verdict a line, on machines that are made for it.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod cli_doctor_support;
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use cli_doctor_support::{Machine, json, lines, says};
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
}

/// The kernel's limits of this cgroup and of the one above, and what is used.
fn dmem(machine: &Machine) {
    machine.write("proc/self/cgroup", b"0::/jobs/7\n");
    machine.write("sys/fs/cgroup/dmem.capacity", b"drm/0000:17:00.0/vram0 8589934592\n");
    machine.write("sys/fs/cgroup/jobs/dmem.max", b"drm/0000:17:00.0/vram0 1073741824\n");
    machine.write("sys/fs/cgroup/jobs/dmem.current", b"drm/0000:17:00.0/vram0 536870912\n");
    machine.write("sys/fs/cgroup/jobs/7/dmem.max", b"drm/0000:17:00.0/vram0 max\n");
}

fn mps(machine: &Machine) {
    machine.write("proc/77/comm", b"nvidia-cuda-mps\n");
    machine.write("proc/77/cmdline", b"/usr/bin/nvidia-cuda-mps-control\0-d\0");
}

#[test]
fn the_kernels_limit() {
    let machine = Machine::working();
    assert!(lines(&machine.doctor(0), "dmem").is_empty());
    machine.write("sys/fs/cgroup/dmem.capacity", b"drm/0000:17:00.0/vram0 8589934592\n");
    says(&machine.doctor(0), "dmem", "ok", "sets no limit");
    dmem(&machine);
    let words = "1.00 GiB of drm/0000:17:00.0/vram0, 512 MiB used (/sys/fs/cgroup/jobs/dmem.max)";
    says(&machine.doctor(0), "dmem", "ok", words);
}

#[test]
fn the_limit_of_mps() {
    let limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    assert!(lines(&Machine::working().doctor(0), "mps").is_empty());
    let machine = Machine::working().set(limit, "0=2G");
    says(&machine.doctor(1), "mps", "warning", "no MPS daemon is seen in /tmp/nvidia-mps: nobody keeps it");
    mps(&machine);
    let words = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G; nvidia-cuda-mps-control runs as pid 77";
    says(&machine.doctor(0), "mps", "ok", words);
    says(&Machine::working().set(limit, "all").doctor(1), "mps", "warning", "is no list of limits");
    // In a container the daemon is seen by its pipe alone.
    let machine = Machine::working().set("CUDA_MPS_PIPE_DIRECTORY", "/mps");
    says(&machine.doctor(1), "mps", "warning", "programs run without MPS");
    machine.write("mps/control", b"");
    says(&machine.doctor(0), "mps", "ok", "there is /mps/control");
}

#[test]
fn the_limit_that_a_program_meets_first() {
    let machine = || {
        let machine = Machine::working()
            .set("CUWARDEN_SIM_DEVICES", "1")
            .set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G")
            .set("CUWARDEN_MEMORY_LIMIT", "512MiB");
        mps(&machine);
        machine
    };
    let answer = machine().doctor(1);
    says(&answer, "limit_in_force", "ok", "cuwarden's quota, 512 MiB; above it: MPS 2.00 GiB");
    let with_kernel = machine().set("CUWARDEN_MEMORY_LIMIT", "4GiB");
    dmem(&with_kernel);
    let words = "the kernel's dmem cgroup, 1.00 GiB; above it: MPS 2.00 GiB, cuwarden's quota 4.00 GiB";
    says(&with_kernel.doctor(1), "limit_in_force", "ok", words);
    // A quota alone is told elsewhere, and numbers mean nothing where the list of cards is changed.
    let alone = Machine::working().set("CUWARDEN_MEMORY_LIMIT", "4GiB").doctor(1);
    assert!(lines(&alone, "limit_in_force").is_empty());
    let changed = machine().set("CUDA_VISIBLE_DEVICES", "0").doctor(1);
    assert!(lines(&changed, "limit_in_force").is_empty());
}

#[test]
fn parts_of_the_driver() {
    let part = "root/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1";
    let machine = Machine::working();
    assert!(lines(&machine.doctor(0), "driver_parts").is_empty());
    fs::remove_file(machine.sim.temp.join(part)).expect("it is there");
    says(&machine.doctor(1), "driver_parts", "warning", "PTX cannot be compiled");
    let machine = machine.set("NVIDIA_DRIVER_CAPABILITIES", "utility");
    machine.write(".dockerenv", b"");
    let answer = machine.doctor(1);
    says(&answer, "driver_parts", "warning", "(NVIDIA_DRIVER_CAPABILITIES=utility)");
    assert!(answer.to_string().contains("NVIDIA_DRIVER_CAPABILITIES=compute,utility"), "{answer:#}");
    let folder = "usr/lib/x86_64-linux-gnu";
    machine.write(&format!("{folder}/libnvidia-ptxjitcompiler.so.470.256.02"), b"");
    symlink("libnvidia-ptxjitcompiler.so.470.256.02", machine.sim.temp.join(part))
        .expect("the folder is ours");
    says(
        &machine.doctor(1),
        "driver_parts",
        "warning",
        "is of release 470.256.02, and libcuda.so.535.183.01",
    );
}

#[test]
fn the_container_toolkit() {
    let machine = Machine::working().set("PATH", "/opt/bin:/usr/bin:/bin");
    assert!(lines(&machine.doctor(0), "container_toolkit").is_empty());
    machine.script("opt/bin/nvidia-ctk", "echo NVIDIA Container Toolkit CLI version 1.14.3; echo commit: 0");
    let words = "NVIDIA Container Toolkit 1.14.3 (/opt/bin/nvidia-ctk) may be used with driver 535.183.01";
    says(&machine.doctor(0), "container_toolkit", "ok", words);
    machine.write(
        "var/lib/dpkg/status",
        b"Package: a\nStatus: install ok installed\nVersion: 2.0-1\n\nPackage: nvidia-container-toolkit\nStatus: \
          install ok installed\nArchitecture: amd64\nVersion: 1.17.8-1\n\n",
    );
    says(
        &machine.doctor(0),
        "container_toolkit",
        "ok",
        "1.17.8 (/var/lib/dpkg/status, nvidia-container-toolkit)",
    );
    machine.module("390.157");
    says(
        &machine.doctor(2),
        "container_toolkit",
        "warning",
        "needs driver 418.81.07 or newer, and this is 390.157",
    );
    // One that does not answer is not waited for.
    let machine = Machine::working().set("PATH", "/opt/bin:/usr/bin:/bin");
    machine.script("opt/bin/nvidia-ctk", "exec sleep 1000");
    assert!(lines(&machine.doctor(0), "container_toolkit").is_empty());
}

#[test]
fn what_the_image_asks_for() {
    let of =
        |value: &str| Machine::working().set("CUWARDEN_SIM_DRIVER", "12.2").set("NVIDIA_REQUIRE_CUDA", value);
    says(&of("cuda>=12.0").doctor(0), "require_cuda", "ok", "CUDA 12.2, driver 535.183.01 has what");
    says(&of("cuda>=12.4 driver>=470,driver<471").doctor(1), "require_cuda", "warning", "has not what");
    says(&of("brand=tesla").doctor(0), "require_cuda", "ok", "can be told");
    let off = of("cuda>=12.4").set("NVIDIA_DISABLE_REQUIRE", "true").doctor(1);
    says(&off, "require_cuda", "warning", "has switched the check off");
    assert!(lines(&Machine::working().doctor(0), "require_cuda").is_empty());
}

#[test]
fn a_baseline_and_the_driver() {
    let with = |driver: &str| {
        Machine::working()
            .set("CUWARDEN_BASELINE", "12.4")
            .set("CUWARDEN_MEMORY_LIMIT", "4GiB")
            .set("CUWARDEN_SIM_DRIVER", driver)
    };
    says(
        &with("12.4").doctor(1),
        "baseline",
        "ok",
        "12.4 is in force (enforce); the driver's CUDA 12.4 keeps it",
    );
    says(&with("13.0").doctor(2), "baseline", "failed", "[baseline-driver-major]");
    let warned = with("13.0").set("CUWARDEN_BASELINE_MODE", "warn").doctor(1);
    says(&warned, "baseline", "warning", "CUWARDEN_BASELINE_MODE is warn");
    let whole = Machine::working().set("CUWARDEN_BASELINE", "12.4").doctor(0);
    says(&whole, "baseline", "ok", "has a whole card");
    // Without NVML the library's release tells it.
    says(&with("12.4").doctor_without_nvml(3), "baseline", "ok", "the driver's CUDA 12.2 keeps it");
    let nameless = with("12.4");
    let folder = nameless.sim.temp.join("root/usr/lib/x86_64-linux-gnu");
    fs::remove_file(folder.join("libcuda.so.1")).expect("it is there");
    fs::write(folder.join("libcuda.so.1"), "").expect("the folder is ours");
    says(&nameless.doctor_without_nvml(3), "baseline", "unknown", "is not known");
    assert!(lines(&Machine::working().doctor(0), "baseline").is_empty());
}

#[test]
fn a_relative_library_path() {
    let machine = Machine::working();
    let mut command = machine.command();
    // The root of the test begins where the working directory does.
    let folder = machine.sim.temp.join("root").display().to_string();
    machine.write(&format!("{}/old/libcuda.so.1", folder.trim_start_matches('/')), b"");
    let path = format!("old:{}", machine.sim.libraries().display());
    let answer = json(command.arg("--json").current_dir(&folder).env("LD_LIBRARY_PATH", path), 1);
    says(&answer, "driver_library", "ok", &format!("{folder}/old/libcuda.so.1 (LD_LIBRARY_PATH)"));
}

/// Files that ld.so.conf names in a roundabout way.
#[test]
fn the_loaders_configuration() {
    let machine = Machine::working();
    machine.write("opt/a/libcuda.so.1", b"");
    machine.write("etc/ld.so.conf.d/a.conf", b"/opt/a\n");
    assert!(lines(&machine.doctor(0), "ld_so_cache").is_empty(), "nothing includes it");
    machine.write("etc/ld.so.conf", b"include ld.so.conf.d/*.conf # ours\n");
    says(
        &machine.doctor(1),
        "ld_so_cache",
        "warning",
        "/opt/a/libcuda.so.1 is in a folder of /etc/ld.so.conf",
    );
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
