//! Each cause where its signal is, and not where it is absent.

use super::*;
use crate::diagnose::chain::{Call, Device};
use crate::diagnose::fake::Fake;
use crate::diagnose::image::Part;
use crate::diagnose::nvml;

/// A card that NVML sees without complaint.
fn card() -> Device {
    Device {
        uuid: "GPU-aaaa1111-0000-0000-0000-000000000000".to_owned(),
        name: "NVIDIA H200".to_owned(),
        compute_mode: Some(0),
        mig: Some(false),
        memory: Some((100 << 30, 139 << 30)),
        ..Device::default()
    }
}

fn chain(devices: Vec<Device>) -> Chain {
    let mut chain = failing("nvmlInit_v2", nvml::SUCCESS);
    chain.count = Some(devices.len() as u32);
    chain.devices = devices;
    chain
}

fn failing(call: &str, code: i32) -> Chain {
    let call = Call {
        call: call.to_owned(),
        args: "index=0".to_owned(),
        code,
        name: nvml::code_name(code),
        result: String::new(),
    };
    Chain { calls: vec![call], ..Chain::default() }
}

struct Scene {
    fake: Fake,
    chain: Option<Chain>,
    known: Known,
    device: Option<i32>,
    forked_from: Option<u32>,
}

impl Scene {
    fn working() -> Scene {
        Scene {
            fake: Fake::working(),
            chain: Some(chain(vec![card()])),
            known: Known { driver_version: Some(12020), runtimes: vec![12010], ..Known::default() },
            device: Some(0),
            forked_from: None,
        }
    }

    fn causes(&self, code: i32) -> Vec<Cause> {
        let mut machine = self.fake.look();
        machine.forked_from = self.forked_from;
        let failure = Failure { api: "cuInit".to_owned(), code, device: self.device };
        explain(Case { failure: &failure, known: &self.known, machine: &machine, chain: self.chain.as_ref() })
    }

    fn ids(&self, code: i32) -> Vec<&'static str> {
        self.causes(code).iter().map(|cause| cause.id).collect()
    }

    #[track_caller]
    fn first(&self, code: i32, id: &str, evidence: &str) {
        let causes = self.causes(code);
        assert_eq!(causes[0].id, id, "{causes:#?}");
        assert!(causes[0].evidence.contains(evidence), "{causes:#?}");
        assert!(causes[0].action.ends_with('.'), "{causes:#?}");
        assert!(causes.iter().all(|cause| cause.id != "unknown"), "{causes:#?}");
    }
}

/// Nothing is wrong here, so no code is explained, whatever it is.
#[test]
fn a_machine_without_a_fault_explains_nothing() {
    let scene = Scene::working();
    for code in [2, 3, 34, 35, 46, 100, 101, 200, 209, 221, 222, 801, 802, 803, 804, 999] {
        let expected: &[&str] = match code {
            // These codes say it by themselves.
            34 => &["stub_library"],
            803 => &["version_mismatch"],
            804 => &["compat_unusable"],
            _ => &["unknown"],
        };
        assert_eq!(scene.ids(code), expected, "{code}");
    }
}

#[test]
fn libraries() {
    let scene = Scene::working();
    scene.fake.maps(&["/usr/local/cuda-12.2/targets/x86_64-linux/lib/stubs/libcuda.so"]);
    scene.first(34, "stub_library", "stubs/libcuda.so");
    scene.first(999, "stub_library", "stubs/libcuda.so");

    let scene = Scene::working();
    scene.fake.maps(&["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"]);
    scene.first(
        803,
        "version_mismatch",
        "the kernel module is 535.183.01, and /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14",
    );
    let scene = Scene { chain: Some(failing("nvmlInit_v2", nvml::VERSION_MISMATCH)), ..Scene::working() };
    scene.first(999, "version_mismatch", "535.183.01");

    let scene = Scene::working();
    scene.fake.maps(&["/usr/local/cuda/compat/libcuda.so.550.54.14"]);
    scene.first(804, "compat_unusable", "/usr/local/cuda/compat/libcuda.so.550.54.14");
    assert!(scene.causes(804)[0].evidence.contains("NVIDIA H200"));
    assert!(!scene.ids(804).contains(&"version_mismatch"));

    let mut scene = Scene::working();
    scene.known.runtimes = vec![11080, 13000];
    scene.first(35, "driver_too_old", "the runtime is CUDA 13.0, and the driver supports CUDA 12.2");
    scene.known.runtimes = vec![12090];
    scene.first(35, "driver_too_old", "12.9");
    assert_eq!(scene.ids(999), ["unknown"], "minor versions are compatible");

    let mut scene = Scene::working();
    scene.fake.library("/opt/old", "470.57.02");
    scene.fake.maps(&["/opt/old/libcuda.so.470.57.02"]);
    scene.fake.set("LD_LIBRARY_PATH", "/opt/other::/opt/old");
    assert!(scene.ids(803).contains(&"library_path"), "{:?}", scene.causes(803));
    scene.fake.set("LD_LIBRARY_PATH", "/opt/other");
    assert!(!scene.ids(803).contains(&"library_path"));

    let mut scene = Scene::working();
    scene.fake.remove("usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1");
    scene.first(221, "missing_siblings", "libnvidia-ptxjitcompiler.so.1 is missing");
    scene.fake.set("NVIDIA_DRIVER_CAPABILITIES", "utility");
    assert!(scene.causes(221)[0].evidence.contains("NVIDIA_DRIVER_CAPABILITIES=utility"));

    let mut scene = Scene::working();
    scene.known.runtimes = vec![13000];
    let runtime = "/opt/cuda-13/lib64/libcudart.so.13.0.48";
    scene.fake.maps(&[
        "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01",
        "/opt/lib/libcudart.so.12.4.1",
        runtime,
    ]);
    scene.first(35, "driver_too_old", "the runtime is /opt/cuda-13/lib64/libcudart.so.13.0.48");
    assert_eq!(scene.ids(35), ["driver_too_old"]);
    scene.fake.set("LD_LIBRARY_PATH", "/opt/lib:/opt/cuda-13/lib64");
    assert_eq!(scene.ids(35), ["driver_too_old", "library_path"]);
    assert!(scene.causes(35)[1].evidence.contains("LD_LIBRARY_PATH has /opt/cuda-13/lib64, so"));

    let scene = Scene { fake: Fake::empty(), chain: None, ..Scene::working() };
    scene.first(35, "no_driver_library", "no libcuda.so.1");
    let scene = Scene::working();
    scene.fake.maps(&[]);
    scene.first(
        999,
        "no_driver_library",
        "not loaded, although there is /usr/lib/x86_64-linux-gnu/libcuda.so.1",
    );
    assert_eq!(scene.ids(46), ["unknown"]);
}

#[test]
fn modules_for_other_cards() {
    let mut scene = Scene::working();
    scene.known.architecture = Some(90);
    scene.known.image = Some(Image { parts: vec![Part::Code(80)], ptx_version: None });
    scene.first(209, "wrong_image", "the card is sm_90, and the module holds code for sm_80, and no PTX");
    scene.known.image = Some(Image { parts: vec![Part::Ptx(90)], ptx_version: Some("8.8".to_owned()) });
    scene.first(222, "wrong_image", "PTX of version 8.8 for sm_90");
    assert_eq!(scene.ids(999), ["unknown"]);
}

#[test]
fn device_nodes() {
    let scene = Scene {
        fake: Fake::empty(),
        chain: Some(failing("nvmlInit_v2", nvml::DRIVER_NOT_LOADED)),
        ..Scene::working()
    };
    scene.fake.maps(&["/usr/lib/libcuda.so.535.183.01"]);
    scene.first(100, "kernel_module_missing", "NVML_ERROR_DRIVER_NOT_LOADED");

    let scene = Scene::working();
    scene.fake.remove("dev/nvidiactl");
    scene.fake.remove("dev/nvidia0");
    scene.first(100, "no_device_nodes", "535.183.01 is loaded, and there is no /dev/nvidiactl");
    let scene = Scene::working();
    scene.fake.remove("dev/nvidia0");
    scene.first(100, "no_device_nodes", "no /dev/nvidia0");

    let scene = Scene::working();
    scene.fake.remove("dev/nvidia-uvm");
    scene.first(999, "uvm_missing", "no /dev/nvidia-uvm");
    let scene = Scene::working();
    scene.fake.remove("sys/module/nvidia_uvm");
    scene.first(999, "uvm_missing", "nvidia_uvm is not loaded");
    assert_eq!(scene.ids(100), ["unknown"]);
}

/// What a user may not open cannot be made in a folder by root, so the machine is written down here.
#[test]
fn device_nodes_that_do_not_open() {
    let scene = Scene::working();
    for (error, id) in [(libc::EPERM, "device_cgroup"), (libc::EACCES, "no_permission")] {
        let mut machine = scene.fake.look();
        for node in &mut machine.nodes {
            node.opens = Err(error);
        }
        let failure = Failure { api: "cuInit".to_owned(), code: 999, device: None };
        let chain = failing("nvmlInit_v2", nvml::UNKNOWN);
        let case = Case { failure: &failure, known: &scene.known, machine: &machine, chain: Some(&chain) };
        let causes = explain(case);
        assert_eq!(causes.len(), 1, "{causes:#?}");
        assert_eq!(causes[0].id, id);
        assert!(causes[0].evidence.contains("/dev/nvidiactl"), "{causes:#?}");
    }
}

#[test]
fn hidden_devices() {
    let with = |name: &str, value: &str| {
        let mut scene = Scene::working();
        scene.fake.set(name, value);
        scene
    };
    with("CUDA_VISIBLE_DEVICES", "").first(100, "visible_devices", "is empty");
    with("CUDA_VISIBLE_DEVICES", "3,0").first(100, "visible_devices", "\"3\": out of range");
    with("CUDA_VISIBLE_DEVICES", "GPU-ffff").first(100, "visible_devices", "no device has this UUID");
    with("CUDA_VISIBLE_DEVICES", "cuda:0").first(100, "visible_devices", "neither an index nor a UUID");
    assert_eq!(with("CUDA_VISIBLE_DEVICES", "0").ids(100), ["unknown"]);
    assert_eq!(with("CUDA_VISIBLE_DEVICES", "").ids(46), ["unknown"]);

    let mut scene = with("CUDA_VISIBLE_DEVICES", "0,7");
    scene.device = Some(1);
    let ids = scene.ids(101);
    assert!(ids.contains(&"visible_devices") && ids.contains(&"no_such_device"), "{:?}", scene.causes(101));
    let scene = Scene { device: Some(4), ..Scene::working() };
    scene.first(101, "no_such_device", "device 4 was asked for, and this process sees 1 of 1");

    let mut scene = with("NVIDIA_VISIBLE_DEVICES", "void");
    scene.chain = Some(chain(Vec::new()));
    scene.fake.remove("dev/nvidia0");
    assert!(scene.ids(100).contains(&"nothing_exposed"));
    assert!(
        !with("NVIDIA_VISIBLE_DEVICES", "void").ids(100).contains(&"nothing_exposed"),
        "the card is there"
    );

    let mig = Device { mig: Some(true), ..card() };
    let scene = Scene { chain: Some(chain(vec![mig.clone()])), ..Scene::working() };
    scene.first(100, "mig_without_instance", "no instance");
    let with_one = Device { instances: vec!["MIG-1".to_owned()], ..mig };
    let scene = Scene { chain: Some(chain(vec![with_one])), ..Scene::working() };
    assert_eq!(scene.ids(100), ["unknown"]);
}

#[test]
fn modes_and_licences() {
    let with = |device: Device| Scene { chain: Some(chain(vec![device])), ..Scene::working() };
    let exclusive = Device { compute_mode: Some(3), processes: vec![(4711, Some(1 << 30))], ..card() };
    with(exclusive).first(46, "exclusive_mode", "\"exclusive process\", and pid 4711 has it");
    with(Device { compute_mode: Some(2), ..card() }).first(46, "exclusive_mode", "\"prohibited\"");
    with(Device { is_licensed: Some(false), ..card() }).first(46, "vgpu_unlicensed", "without a licence");
    assert_eq!(with(Device { is_licensed: Some(true), ..card() }).ids(46), ["unknown"]);

    let full = Device {
        memory: Some((100 << 20, 139 << 30)),
        processes: vec![(7, Some(138 << 30)), (8, None)],
        ..card()
    };
    with(full.clone()).first(2, "memory_full", "100 MiB free of 139 GiB: pid 7 138 GiB, pid 8");
    assert_eq!(with(full).ids(999), ["unknown"]);

    with(Device { fabric: Some((2, 0)), ..card() }).first(802, "fabric_manager", "NVLink fabric");
    let scene = Scene::working();
    scene.fake.write("proc/driver/nvidia-nvswitch/devices/0000:01:00.0", "");
    scene.first(802, "fabric_manager", "nothing in /run");
    scene.fake.write("run/nvidia-fabricmanager/fm.sock", "");
    scene.first(802, "fabric_manager", "the system is not ready");
    let mut scene = Scene::working();
    scene.chain.as_mut().unwrap().confidential_ready = Some(false);
    scene.first(802, "confidential_computing", "ready state is off");
    scene.chain.as_mut().unwrap().confidential_ready = Some(true);
    assert_eq!(scene.ids(802), ["unknown"]);

    let vgpu = Device { virtualization: Some(2), ..card() };
    with(vgpu.clone()).first(801, "vgpu_without_vmm", "vGPU");
    assert_eq!(with(vgpu).ids(999), ["unknown", "vgpu_host"]);
}

/// What is wrong with a card explains nothing where another one was asked for.
#[test]
fn the_card_that_was_asked_for() {
    let other = || Device {
        index: 1,
        uuid: "GPU-bbbb2222-0000-0000-0000-000000000000".to_owned(),
        compute_mode: Some(2),
        memory: Some((1 << 20, 139 << 30)),
        ..card()
    };
    let asks = |device: Option<i32>, second: Device| Scene {
        chain: Some(chain(vec![card(), second])),
        device,
        ..Scene::working()
    };
    for (code, id) in [(46, "exclusive_mode"), (2, "memory_full")] {
        asks(Some(1), other()).first(code, id, "device 1");
        asks(None, other()).first(code, id, "device 1");
        assert_eq!(asks(Some(0), other()).ids(code), ["unknown"], "{code}");
        // The process counts otherwise than NVML.
        let mut scene = asks(Some(0), other());
        scene.fake.set("CUDA_VISIBLE_DEVICES", "1,0");
        scene.first(code, id, "device 1");
        scene.fake.set("CUDA_VISIBLE_DEVICES", "GPU-aaaa");
        assert_eq!(scene.ids(code), ["unknown"], "{code}");
        // Of two products CUDA may count either one first.
        asks(Some(0), Device { name: "NVIDIA L4".to_owned(), ..other() }).first(code, id, "device 1");
    }
}

#[test]
fn every_cause_is_tested() {
    let tests = [include_str!("tests.rs"), include_str!("../../../tests/init_causes.rs")].concat();
    for row in TABLES.iter().flat_map(|rows| rows.iter()) {
        assert!(tests.contains(&format!("\"{}\"", row.id)), "{}", row.id);
    }
}

#[test]
fn processes() {
    let scene = Scene { forked_from: Some(1234), ..Scene::working() };
    scene.first(3, "after_fork", "process 1234 had initialised CUDA");
    assert_eq!(scene.ids(2), ["unknown"]);
    let scene = Scene::working();
    scene.fake.maps(&["/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01", "/usr/lib/gcc/libasan.so.8.0.0"]);
    scene.first(2, "address_sanitizer", "shadow memory");
    assert_eq!(scene.ids(100), ["unknown"]);
    let scene = Scene::working();
    let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01  Release Build\n";
    scene.fake.write("proc/driver/nvidia/version", text);
    scene.fake.write("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n");
    scene.first(3, "open_module_hmm", "heterogeneous memory management");
    scene.fake.write("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n");
    assert_eq!(scene.ids(3), ["unknown"]);
}

#[test]
fn what_nvml_says() {
    let lost = failing("nvmlDeviceGetHandleByIndex_v2", nvml::GPU_IS_LOST);
    Scene { chain: Some(lost), ..Scene::working() }.first(
        999,
        "gpu_lost",
        "nvmlDeviceGetHandleByIndex_v2(index=0)",
    );
    let blocked = failing("nvmlInit_v2", nvml::OPERATING_SYSTEM);
    let scene = Scene { chain: Some(blocked), ..Scene::working() };
    scene.first(999, "blocked_by_system", "17");
    assert_eq!(scene.ids(222), ["unknown"]);
    let odd = failing("nvmlDeviceGetUUID", nvml::UNKNOWN);
    let causes = Scene { chain: Some(odd), ..Scene::working() }.causes(999);
    assert_eq!(causes.len(), 1);
    assert!(
        causes[0].evidence.contains("nvmlDeviceGetUUID(index=0) gave NVML_ERROR_UNKNOWN (999)"),
        "{causes:#?}"
    );
}
