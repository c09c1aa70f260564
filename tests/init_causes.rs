//! Each cause where its signal is, end to end through the shim; and not where the same call fails without it.
//!
//! The driver is the simulated one. What the machine says is its own, or that of a folder in the place of `/`.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::path::PathBuf;
use std::process::Command;

use common::process::run;
use common::sim::Sim;
use common::{artefacts, cc};
use serde_json::Value;
use support::{MIB, Stage, uuid};

/// A program that makes calls, on a machine of its own.
struct Machine {
    sim: Sim,
    root: PathBuf,
    variables: Vec<(String, String)>,
}

const FOLDER: &str = "usr/lib/x86_64-linux-gnu";

impl Machine {
    /// The one that the tests run on: without a card, but for the simulated ones.
    fn real() -> Machine {
        let sim = Sim::new();
        let root = sim.temp.folder("root");
        Machine { sim, root, variables: Vec::new() }
    }

    /// One with a driver and two cards, of which everything works.
    fn working() -> Machine {
        let machine = Machine::real();
        let root = machine.root.display().to_string();
        let machine = machine.set("CUWARDEN_TEST_ROOT", &root);
        machine.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 00:00:00 UTC 2025\n",
        );
        for node in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"] {
            machine.write(&format!("dev/{node}"), "");
        }
        for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"] {
            machine.write(&format!("{FOLDER}/{name}"), "");
        }
        machine.write("sys/module/nvidia_uvm/refcnt", "0");
        machine.maps(&format!("/{FOLDER}/libcuda.so.580.65.06"));
        machine
    }

    fn maps(&self, path: &str) {
        self.write("proc/self/maps", &format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 1 {path}\n"));
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("the folder is ours");
        std::fs::write(path, text).expect("the folder is ours");
    }

    fn remove(self, path: &str) -> Machine {
        let path = self.root.join(path);
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.expect("it is there");
        self
    }

    fn set(mut self, name: &str, value: &str) -> Machine {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, program: PathBuf, orders: &[&str]) -> Command {
        let mut command = self.sim.shimmed(program);
        command.args(orders).env("CUWARDEN_SIM_CONTEXT", "1m");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The event of a program that does these.
    #[track_caller]
    fn event(&self, orders: &[&str]) -> Value {
        let program = cc::program("tests/programs/nvml/asks.c", &[]);
        let orders: Vec<&str> = ["handle"].iter().chain(orders).copied().collect();
        let out = run(&mut self.command(program, &orders)).succeeded();
        let events = self.sim.events_named("init_failure");
        let [event] = &events[..] else { panic!("one failure was expected: {events:#?} {}", out.told()) };
        event.clone()
    }

    /// The event of a cuInit that fails so, and what else fails with it.
    #[track_caller]
    fn fails(self, failures: &str) -> Causes {
        Causes(self.set("CUWARDEN_SIM_FAIL", failures).event(&["cuInit"]))
    }
}

struct Causes(Value);

impl Causes {
    fn ids(&self) -> Vec<&str> {
        let causes = self.0["causes"].as_array().expect("a list");
        causes.iter().map(|cause| cause["id"].as_str().expect("a text")).collect()
    }

    /// The most likely one, with something to do and in the message.
    #[track_caller]
    fn first(&self, id: &str, evidence: &str) -> &Self {
        let cause = &self.0["causes"][0];
        let text = |key: &str| cause[key].as_str().expect("a text");
        assert_eq!(text("id"), id, "{:#}", self.0);
        assert!(text("evidence").contains(evidence), "{:#}", self.0);
        assert!(text("action").ends_with('.'), "{:#}", self.0);
        assert!(self.0["message"].as_str().is_some_and(|message| message.contains(evidence)), "{:#}", self.0);
        self
    }

    #[track_caller]
    fn action(&self, words: &str) -> &Self {
        assert!(
            self.0["causes"][0]["action"].as_str().is_some_and(|text| text.contains(words)),
            "{:#}",
            self.0
        );
        self
    }

    #[track_caller]
    fn none(&self) {
        assert_eq!(self.ids(), ["unknown"], "{:#}", self.0);
    }

    #[track_caller]
    fn without(&self, id: &str) {
        assert!(!self.ids().contains(&id), "{:#}", self.0);
    }
}

/// What follows is about what is wrong: here nothing is.
#[test]
fn on_a_machine_that_works_nothing_is_named() {
    for code in [2, 3, 46, 100, 101, 802, 999] {
        Machine::working().fails(&format!("cuInit={code}")).none();
        Machine::real().fails(&format!("cuInit={code}")).none();
    }
}

// ---- libraries ----------------------------------------------------------------------------------------------------

/// The simulated driver from another folder; NVML from where it was.
fn driver_in(folder: &str) -> (Machine, String) {
    let machine = Machine::real();
    let folder = machine.sim.temp.folder(folder);
    let from = machine.sim.libraries().join("libcuda.so.1");
    std::fs::copy(from, folder.join("libcuda.so.1")).expect("the folder is ours");
    let folder = folder.display().to_string();
    let paths = format!("{folder}:{}", machine.sim.libraries().display());
    (machine.set("LD_LIBRARY_PATH", &paths), folder)
}

#[test]
fn a_stub() {
    for code in [34, 999] {
        let (machine, folder) = driver_in("stubs");
        machine
            .fails(&format!("cuInit={code}"))
            .first("stub_library", &format!("loaded from {folder}/libcuda.so.1"))
            .action(&format!("Take {folder} out of LD_LIBRARY_PATH"));
    }
    let machine = Machine::working();
    machine.maps("/usr/local/cuda/lib64/stubs/libcuda.so");
    machine
        .fails("cuInit=34")
        .first("stub_library", "/usr/local/cuda/lib64/stubs/libcuda.so")
        .action("The driver's own is /usr/lib/x86_64-linux-gnu/libcuda.so.1.");
}

#[test]
fn a_compatibility_package() {
    for code in [803, 804] {
        let (machine, folder) = driver_in("compat");
        machine
            .fails(&format!("cuInit={code}"))
            .first("compat_unusable", &format!("comes from {folder}/libcuda.so.1"))
            .without("version_mismatch");
    }
    Machine::working().fails("cuInit=803").without("compat_unusable");
}

#[test]
fn another_release_than_the_module() {
    let machine = Machine::working();
    machine.maps(&format!("/{FOLDER}/libcuda.so.575.57.08"));
    let of_575 =
        "the kernel module is 580.65.06, and /usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08 is of 575.57.08";
    machine.fails("cuInit=803,nvmlInit_v2=18").first("version_mismatch", of_575);
    // The driver's library fits, and NVML's does not.
    let machine = Machine::working();
    let line = |name: &str| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /{FOLDER}/{name}\n");
    let maps = [line("libcuda.so.580.65.06"), line("libnvidia-ml.so.575.57.08")].concat();
    machine.write("proc/self/maps", &maps);
    machine
        .fails("cuInit=999,nvmlInit_v2=18")
        .first("version_mismatch", "libnvidia-ml.so.575.57.08 is of 575.57.08");
    Machine::working().fails("cuInit=999").without("version_mismatch");
}

#[test]
fn somebody_s_folder_comes_first() {
    let old = |paths: &str| {
        let machine = Machine::working();
        machine.maps("/opt/old/libcuda.so.580.65.06");
        let paths = format!("{paths}:{}", machine.sim.libraries().display());
        machine.set("LD_LIBRARY_PATH", &paths).fails("cuInit=999")
    };
    let evidence = "LD_LIBRARY_PATH has /opt/old, so /opt/old/libcuda.so.580.65.06 was loaded instead of \
                    /usr/lib/x86_64-linux-gnu/libcuda.so.1";
    old("/opt/more:/opt/old").first("library_path", evidence).action("Take /opt/old out of LD_LIBRARY_PATH.");
    old("/opt/more").none();
}

/// It gives up before it calls the driver.
#[test]
fn a_runtime_that_is_newer_than_the_driver() {
    let of = |runtime: &str, driver: &str| {
        let machine = Machine::real().set("CUWARDEN_SIM_DRIVER", driver);
        let step = format!("count={runtime}");
        let program = cc::program("tests/programs/baseline/steps.c", &[]);
        run(&mut machine.command(program, &[&step, &step])).succeeded();
        (machine.sim.events_named("init_failure"), machine.sim.libraries().display().to_string())
    };
    let (events, folder) = of("libcudart.so.13", "12.2");
    let [event] = &events[..] else { panic!("one failure was expected: {events:#?}") };
    let causes = Causes(event.clone());
    let evidence = format!(
        "the runtime is CUDA 13.5, and the driver supports CUDA 12.2; the runtime is {folder}/libcudart.so.13"
    );
    causes.first("driver_too_old", &evidence).action("CUDA 13.5 or newer");
    assert_eq!((&event["code"], &event["name"]), (&35.into(), &"cudaErrorInsufficientDriver".into()));
    assert_eq!(causes.ids(), ["driver_too_old", "library_path"], "{event:#}");
    assert_eq!(of("libcudart.so.12", "12.2").0, [Value::Null; 0], "minor versions are compatible");
    assert_eq!(of("libcudart.so.11.0", "12.2").0, [Value::Null; 0]);
}

/// libcuda loads the compiler of PTX by itself.
#[test]
fn the_compiler_of_ptx_is_missing() {
    let load = |code: i32, capabilities: &str| {
        let machine = Machine::real().set("CUWARDEN_SIM_FAIL", &format!("cuModuleLoadData={code}"));
        let image = machine.sim.temp.join("image.ptx");
        std::fs::write(&image, ".version 8.4\n.target sm_90\n").expect("the folder is ours");
        let machine = machine.set("NVIDIA_DRIVER_CAPABILITIES", capabilities);
        Causes(machine.event(&["cuInit", "context:0", &format!("module:{}", image.display())]))
    };
    load(221, "utility").first("missing_siblings", "libnvidia-ptxjitcompiler.so.1 is missing beside");
    load(221, "utility").first("missing_siblings", "(NVIDIA_DRIVER_CAPABILITIES=utility)");
    load(200, "all").without("missing_siblings");
}

#[test]
fn a_module_for_another_card() {
    let load = |code: i32, image: &[u8]| {
        let machine = Machine::real().set("CUWARDEN_SIM_FAIL", &format!("cuModuleLoadData={code}"));
        let path = machine.sim.temp.join("image");
        std::fs::write(&path, image).expect("the folder is ours");
        Causes(machine.event(&["cuInit", "context:0", &format!("module:{}", path.display())]))
    };
    let mut cubin = b"\x7fELF\x02\x01\x01\x33\x07".to_vec();
    cubin.resize(64, 0);
    cubin[18..20].copy_from_slice(&190u16.to_le_bytes());
    cubin[48] = 80;
    load(209, &cubin)
        .first("wrong_image", "the card is sm_90, and the module holds code for sm_80, and no PTX");
    let ptx = b".version 8.8\n.target sm_90a\n.address_size 64\n\0";
    load(222, ptx).first("wrong_image", "PTX of version 8.8 for sm_90").action("newer CUDA than the driver");
    load(200, b"nothing of the kind").first("wrong_image", "what the module holds could not be read");
    // Which it could have been loaded for all the same: nobody asks.
    Machine::working().fails("cuInit=999").without("wrong_image");
}

// ---- devices ------------------------------------------------------------------------------------------------------

#[test]
fn no_device_nodes() {
    let evidence = "the kernel module 580.65.06 is loaded, and there is no /dev/nvidiactl";
    Machine::working().remove("dev").fails("cuInit=100").first("no_device_nodes", evidence);
    let machine = Machine::working().remove("dev/nvidia0").remove("dev/nvidia1");
    machine.fails("cuInit=100").first("no_device_nodes", "no /dev/nvidia0 or any other card");
    Machine::working().remove("dev/nvidia1").fails("cuInit=100").none();
    // The module is not loaded at all.
    let machine = Machine::working().remove("dev").remove("proc/driver");
    machine
        .fails("cuInit=100,nvmlInit_v2=9")
        .first("kernel_module_missing", "NVML_ERROR_DRIVER_NOT_LOADED (9)");
}

#[test]
fn what_does_not_open() {
    let closed = |path: &str, error: i32, failures: &str| {
        let library = cc::library("tests/programs/nvml/closed.c", "libclosed.so", &[]);
        let preload = format!("{}:{}", artefacts::shim().display(), library.display());
        let machine = Machine::working().set("LD_PRELOAD", &preload).set("CLOSED_ERROR", &error.to_string());
        machine.set("CLOSED", path).fails(failures)
    };
    let unknown = "cuInit=999,nvmlInit_v2=999";
    closed("/dev/nvidia", libc::EPERM, unknown)
        .first("device_cgroup", "/dev/nvidiactl is there, and opening it is not permitted (EPERM)")
        .action("daemon-reload");
    closed("/dev/nvidia", libc::EACCES, unknown)
        .first("no_permission", "may not open /dev/nvidiactl (EACCES)");
    closed("/dev/nvidia0", libc::EIO, "cuInit=999")
        .first("gpu_lost", "/dev/nvidia0 is there, and opening it gives");
    closed("/dev/nvidia-uvm", libc::EIO, "cuInit=999")
        .first("uvm_missing", "/dev/nvidia-uvm cannot be opened");
    // It opens, and NVML says the same.
    closed("/dev/other", libc::EPERM, unknown).none();
    // A card of somebody else's explains a full memory no better.
    closed("/dev/nvidia1", libc::EPERM, "cuInit=2").none();
    closed("/dev/nvidia1", libc::EPERM, "cuInit=100").first("device_cgroup", "/dev/nvidia1");
    let causes = Machine::working().fails("cuInit=999,nvmlInit_v2=4");
    causes.first("no_permission", "NVML_ERROR_NO_PERMISSION (4)");
}

#[test]
fn unified_memory_is_missing() {
    let machine = Machine::working().remove("dev/nvidia-uvm");
    machine.fails("cuInit=999").first("uvm_missing", "there is no /dev/nvidia-uvm");
    let machine = Machine::working().remove("sys/module/nvidia_uvm");
    machine.fails("cuInit=999").first("uvm_missing", "nvidia_uvm is not loaded");
}

#[test]
fn a_card_that_is_lost() {
    let lost = "NVML's nvmlDeviceGetHandleByIndex_v2(index=0) gave NVML_ERROR_GPU_IS_LOST (15)";
    Machine::real().fails("cuInit=999,nvmlDeviceGetHandleByIndex_v2=15").first("gpu_lost", lost);
    let reset = "NVML's nvmlDeviceGetUUID(device=0) gave NVML_ERROR_RESET_REQUIRED (16)";
    Machine::real().fails("cuInit=999,nvmlDeviceGetUUID=16").first("reset_required", reset);
    Machine::real().fails("cuInit=2,nvmlDeviceGetHandleByIndex_v2=15").without("gpu_lost");
}

#[test]
fn devices_that_the_process_does_not_see() {
    let seen = |value: &str, orders: &[&str]| {
        Causes(Machine::real().set("CUDA_VISIBLE_DEVICES", value).event(orders))
    };
    for (value, why) in [
        ("", "is empty, which hides all devices"),
        ("2", "\"2\": out of range"),
        ("-1", "a negative index ends the list"),
        ("GPU-ffff", "no device has this UUID"),
        ("MIG-ffff", "no MIG instance has this UUID"),
        ("cuda:0", "neither an index nor a UUID"),
        ("1,1", "named twice"),
    ] {
        seen(value, &["cuInit"]).first("visible_devices", why);
    }
    let cut = seen("0,7", &["cuInit", "context:1"]);
    cut.first("visible_devices", "ends after 1: \"7\": out of range");
    assert!(cut.ids().contains(&"no_such_device"), "{:?}", cut.ids());
    seen("1,0", &["cuInit", "context:2"])
        .first("no_such_device", "this process sees 2 of 2")
        .action("from 0 to 1");
    // A second instance of a card is out of reach.
    let slices =
        ["MIG-11111111-51a7-4ed0-8000-00000000000a", "MIG-22222222-51a7-4ed0-8000-00000000000b"].join(",");
    let machine = Machine::real().set("CUWARDEN_SIM_UUIDS", &slices).set("CUDA_VISIBLE_DEVICES", &slices);
    Causes(machine.event(&["cuInit", "context:1"])).first("visible_devices", "one MIG instance only");
    // The list is good, and something else is wrong.
    Machine::real().set("CUDA_VISIBLE_DEVICES", "1,0").fails("cuInit=100").none();
}

#[test]
fn nothing_is_exposed() {
    let machine = Machine::working().remove("dev/nvidia0").remove("dev/nvidia1");
    let causes = machine.set("NVIDIA_VISIBLE_DEVICES", "void").fails("cuInit=100,nvmlInit_v2=9");
    assert_eq!(causes.ids(), ["no_device_nodes", "nothing_exposed"], "{:#}", causes.0);
    Machine::working().set("NVIDIA_VISIBLE_DEVICES", "void").fails("cuInit=100").none();
}

// ---- modes and memory ---------------------------------------------------------------------------------------------

#[test]
fn a_card_that_nobody_may_compute_on() {
    let machine = Machine::real().set("CUWARDEN_SIM_COMPUTE_MODE", "prohibited");
    let causes = Causes(machine.event(&["cuInit", "context:0"]));
    causes.first("exclusive_mode", "device 0 is in compute mode \"prohibited\"");
    Machine::real().fails("cuInit=46").none();
}

#[test]
fn the_fabric_is_not_ready() {
    let with_switches = || {
        let machine = Machine::working();
        machine.write("proc/driver/nvidia-nvswitch/devices/0000:01:00.0", "");
        machine
    };
    with_switches()
        .fails("cuInit=802")
        .first("fabric_manager", "nothing in /run says that a fabric manager runs");
    let machine = with_switches();
    machine.write("run/nvidia-fabricmanager/fm.sock", "");
    machine.fails("cuInit=802").first("fabric_manager", "the system is not ready");
    with_switches().fails("cuInit=999").none();
}

/// CUDA counts what the process may see, and NVML the cards: the full one has another number for each.
#[test]
fn a_card_without_room() {
    let stage = Stage::unlimited();
    let full = |command: &mut Command| {
        command.env("CUWARDEN_SIM_MEMORY", "16g,100m").env("CUWARDEN_SIM_CONTEXT", "20m");
    };
    let mut holder = stage.puppet_with(full);
    holder.ok("init");
    holder.ok("context 1");
    holder.ok(&format!("alloc {}", 70 * MIB));
    let mut other = stage.puppet_with(|command| {
        full(command);
        command.env("CUDA_VISIBLE_DEVICES", uuid(1));
    });
    other.ok("init");
    assert_eq!(other.code("context 0"), 2);
    let events = stage.sim.events_named("init_failure");
    let [event] = &events[..] else { panic!("one failure was expected: {events:#?}") };
    let causes = Causes(event.clone());
    let evidence = format!("device 1 has 10.0 MiB free of 100 MiB: pid {} 90.0 MiB", holder.pid);
    causes.first("memory_full", &evidence);
    // Another card is full: that is no reason.
    let machine = Machine::real().set("CUWARDEN_SIM_MEMORY", "16g,100m");
    let machine = machine.set("CUWARDEN_SIM_FAIL", "cuDevicePrimaryCtxRetain=2");
    Causes(machine.event(&["cuInit", "context:0"])).none();
}
