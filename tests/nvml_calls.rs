//! What an application had asked NVML before CUDA failed is told with the failure, and asking is as it is without us.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::PathBuf;

use common::cc;
use common::process::run;
use common::sim::Sim;
use serde_json::Value;

/// CUDA does not start.
const FAIL: &str = "cuInit=999";
const UUID: &str = "GPU-3e1c7b5a-51a7-4ed0-8000-000000000001";

/// All functions that are noted, with what each takes.
const ALL: &[&str] = &[
    "DeviceGetCount_v2",
    "DeviceGetHandleByUUID:GPU-1",
    "Init",
    "Init_v2",
    "InitWithFlags:1",
    "SystemGetDriverVersion",
    "SystemGetNVMLVersion",
    "SystemGetCudaDriverVersion",
    "SystemGetCudaDriverVersion_v2",
    "DeviceGetCount",
    "DeviceGetCount_v2",
    "DeviceGetHandleByIndex:0",
    "DeviceGetHandleByIndex_v2:7",
    "DeviceGetHandleByPciBusId:0000:01:00.0",
    "DeviceGetHandleByPciBusId_v2:00000000:99:00.0",
    UUID_ORDER,
    "DeviceGetName",
    "DeviceGetUUID",
    "DeviceGetComputeMode",
    "DeviceGetMigMode",
    "DeviceGetMemoryInfo",
    "DeviceGetMemoryInfo_v2",
    "DeviceGetComputeRunningProcesses_v3",
    "DeviceGetRunningProcessDetailList",
    "DeviceGetName:0x10",
    "Shutdown",
    "Shutdown",
    "Shutdown",
    "Shutdown",
];
const UUID_ORDER: &str = "DeviceGetHandleByUUID:GPU-3e1c7b5a-51a7-4ed0-8000-000000000001";

fn asks(sim: &Sim) -> PathBuf {
    let [cuda, nvml] =
        ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| sim.libraries().join(name).display().to_string());
    cc::program("tests/programs/nvml/asks.c", &["-Wl,--no-as-needed", &cuda, &nvml])
}

/// As they are written in the event, `call(args) code name: result`.
fn told(event: &Value, list: &str) -> Vec<String> {
    let text = |call: &Value, key: &str| call[key].as_str().expect("a text").to_owned();
    let calls = event[list].as_array().expect("a list");
    let one = |call: &Value| {
        let [name, args, code, result] = ["call", "args", "name", "result"].map(|key| text(call, key));
        format!("{name}({args}) {} {code}: {result}", call["code"])
    };
    calls.iter().map(one).collect()
}

#[track_caller]
fn only(sim: &Sim) -> Value {
    let events = sim.events_named("init_failure");
    let [event] = &events[..] else { panic!("one failure was expected: {events:#?}") };
    event.clone()
}

/// Linked or looked up: the same answers, the same errno, each call once (the shutdowns count the starts), and the event
/// has them in order.
#[test]
fn what_was_asked_before_a_failure_is_told_with_it() {
    for how in ["linked", "handle"] {
        let sim = Sim::new();
        let [mut bare, mut shimmed] = [sim.bare(asks(&sim)), sim.shimmed(asks(&sim))];
        let [bare, shimmed] = [&mut bare, &mut shimmed].map(|command| {
            run(command.arg(how).args(ALL).arg("cuInit").env("CUWARDEN_SIM_FAIL", FAIL)).succeeded()
        });
        assert_eq!(bare.stdout, shimmed.stdout, "{how}");
        assert_eq!(bare.lines().len(), ALL.len() + 1, "{}", bare.told());
        let event = only(&sim);
        let success = "0 NVML_SUCCESS:";
        let expected = [
            "nvmlDeviceGetCount_v2() 1 NVML_ERROR_UNINITIALIZED: ".to_owned(),
            "nvmlDeviceGetHandleByUUID(uuid=) 1 NVML_ERROR_UNINITIALIZED: ".to_owned(),
            format!("nvmlInit() {success} "),
            format!("nvmlInit_v2() {success} "),
            format!("nvmlInitWithFlags(flags=1) {success} "),
            format!("nvmlSystemGetDriverVersion() {success} 580.65.06"),
            format!("nvmlSystemGetNVMLVersion() {success} 13.580.65.06"),
            format!("nvmlSystemGetCudaDriverVersion() {success} 13.0"),
            format!("nvmlSystemGetCudaDriverVersion_v2() {success} 13.0"),
            format!("nvmlDeviceGetCount() {success} 2"),
            format!("nvmlDeviceGetCount_v2() {success} 2"),
            format!("nvmlDeviceGetHandleByIndex(index=0) {success} a device"),
            "nvmlDeviceGetHandleByIndex_v2(index=7) 2 NVML_ERROR_INVALID_ARGUMENT: ".to_owned(),
            format!("nvmlDeviceGetHandleByPciBusId(busId=0000:01:00.0) {success} a device"),
            "nvmlDeviceGetHandleByPciBusId_v2(busId=00000000:99:00.0) 6 NVML_ERROR_NOT_FOUND: ".to_owned(),
            format!("nvmlDeviceGetHandleByUUID(uuid={UUID}) {success} a device"),
            format!("nvmlDeviceGetName(device={UUID}) {success} Simulated GPU"),
            format!("nvmlDeviceGetUUID(device={UUID}) {success} {UUID}"),
            format!("nvmlDeviceGetComputeMode(device={UUID}) {success} default"),
            format!("nvmlDeviceGetMigMode(device={UUID}) {success} off"),
            format!("nvmlDeviceGetMemoryInfo(device={UUID}) {success} "),
            format!("nvmlDeviceGetMemoryInfo_v2(device={UUID}) {success} "),
            format!("nvmlDeviceGetComputeRunningProcesses_v3(device={UUID}) {success} "),
            format!("nvmlDeviceGetRunningProcessDetailList(device={UUID}) {success} "),
            "nvmlDeviceGetName(device=0x10) 2 NVML_ERROR_INVALID_ARGUMENT: ".to_owned(),
            format!("nvmlShutdown() {success} "),
            format!("nvmlShutdown() {success} "),
            format!("nvmlShutdown() {success} "),
            "nvmlShutdown() 1 NVML_ERROR_UNINITIALIZED: ".to_owned(),
        ];
        assert_eq!(told(&event, "app_nvml_calls"), expected, "{how}");
        assert!(told(&event, "nvml_chain").len() > 10, "{event:#}");
    }
}

#[test]
fn only_the_last_calls_are_kept() {
    let sim = Sim::new();
    let mut command = sim.shimmed(asks(&sim));
    command.args(["linked", "Init_v2"]).env("CUWARDEN_SIM_FAIL", FAIL);
    for index in 0..100 {
        command.arg(format!("DeviceGetHandleByIndex_v2:{index}"));
    }
    run(command.arg("cuInit")).succeeded();
    let calls = told(&only(&sim), "app_nvml_calls");
    assert_eq!(calls.len(), 32);
    for (index, call) in (68..).zip(&calls) {
        assert_eq!(
            *call,
            format!("nvmlDeviceGetHandleByIndex_v2(index={index}) 2 NVML_ERROR_INVALID_ARGUMENT: ")
        );
    }
}

/// What we ask for the first failure is not the application's at the second.
#[test]
fn what_we_ask_ourselves_is_not_among_them() {
    let sim = Sim::new();
    let mut command = sim.shimmed(asks(&sim));
    command.args(["linked", "cuInit", "context:9", "Init_v2", "context:8"]);
    run(&mut command).succeeded();
    let events = sim.events_named("init_failure");
    let [first, second] = &events[..] else { panic!("two failures were expected: {events:#?}") };
    assert_eq!(told(first, "app_nvml_calls"), [""; 0]);
    assert_eq!(told(second, "app_nvml_calls"), ["nvmlInit_v2() 0 NVML_SUCCESS: "]);
    assert!(told(second, "nvml_chain").len() > 10, "{second:#}");
}

#[test]
fn a_child_has_not_asked_what_its_parent_did() {
    let sim = Sim::new();
    let mut command = sim.shimmed(asks(&sim));
    command.args(["handle", "Init_v2", "fork", "DeviceGetCount_v2", "cuInit"]).env("CUWARDEN_SIM_FAIL", FAIL);
    run(&mut command).succeeded();
    assert_eq!(told(&only(&sim), "app_nvml_calls"), ["nvmlDeviceGetCount_v2() 0 NVML_SUCCESS: 2"]);
}

/// Nor what NVML calls of itself, for us and for the application.
#[test]
fn what_nvml_asks_itself_is_not_among_them() {
    let sim = Sim::new();
    let library = cc::library("tests/programs/nvml/itself.c", "libnvidia-ml.so.1", &["-fno-inline"]);
    let folder = library.parent().expect("it lies in a folder").display();
    let mut command = sim.shimmed(cc::program("tests/programs/nvml/asks.c", &[]));
    command.args(["handle", "Init_v2", "DeviceGetCount_v2", "cuInit"]).env("CUWARDEN_SIM_FAIL", FAIL);
    command.env("LD_LIBRARY_PATH", format!("{folder}:{}", sim.libraries().display()));
    run(&mut command).succeeded();
    let event = only(&sim);
    let expected = ["nvmlInit_v2() 0 NVML_SUCCESS: ", "nvmlDeviceGetCount_v2() 0 NVML_SUCCESS: 0"];
    assert_eq!(told(&event, "app_nvml_calls"), expected, "{event:#}");
    assert!(told(&event, "nvml_chain").contains(&expected[0].replace(": ", ": started")), "{event:#}");
}
