//! The real driver libraries, from Debian, on a machine without a GPU: the shim changes nothing that it should not.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "clients/lookups.rs"]
mod lookups;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::process::{Finished, run};
use common::sim::Sim;
use common::{artefacts, cc, clients, elf};

/// Runs the same command without the shim and under it, and fails unless both say the same.
#[track_caller]
fn same_with_and_without(sim: &Sim, program: &Path, prepare: impl Fn(&mut Command)) -> Finished {
    let [mut bare, mut shimmed] = [sim.bare(program), sim.shimmed(program)];
    prepare(&mut bare);
    prepare(&mut shimmed);
    let (bare, shimmed) = (run(&mut bare), run(&mut shimmed));
    assert_eq!(bare.status, shimmed.status, "{}\n{}", bare.told(), shimmed.told());
    assert_eq!(bare.stdout, shimmed.stdout, "{}\n{}", bare.told(), shimmed.told());
    assert_eq!(bare.stderr, shimmed.stderr, "{}\n{}", bare.told(), shimmed.told());
    shimmed
}

/// On a machine with a GPU the driver gives other codes; that they are the same under the shim holds there too.
fn no_gpu() -> bool {
    !Path::new("/dev/nvidiactl").exists()
}

#[test]
fn every_look_up_gives_the_driver_s_answer_or_the_hook_of_exactly_that_variant() {
    let driver = clients::driver();
    let names: BTreeSet<String> =
        elf::exports(&driver.libcuda).into_iter().filter(|name| name.starts_with("cu")).collect();
    assert!(names.len() > 400, "libcuda exports only {} functions", names.len());
    let mut triples = Vec::new();
    for name in &names {
        for version in [2000, 3020, 4000, 7000, 11000, 12000, 12020] {
            triples.extend([0, 1, 2].map(|flags| (name.clone(), version, flags)));
        }
    }
    lookups::assert_identity(&Sim::over(&driver.lib), &names, &triples);
}

#[test]
fn initialisation_fails_as_it_does_without_the_shim() {
    let program = cc::program("tests/clients/c/init.c", &[]);
    let out = same_with_and_without(&Sim::over(&clients::driver().lib), &program, |_| {}).succeeded();
    // Were it to say nothing, it would say the same both times.
    assert!(out.stdout.contains("cuInit 100 CUDA_ERROR_NO_DEVICE") || !no_gpu(), "{}", out.told());
}

/// The whole way, from a run to the event that says why: NVIDIA's own libraries, and no card.
#[test]
fn the_event_has_the_cause_and_what_both_sides_asked() {
    let sim = Sim::over(&clients::driver().lib);
    let program = cc::program("tests/programs/nvml/asks.c", &[]);
    let order = [
        "handle",
        "DeviceGetCount_v2",
        "InitWithFlags:0",
        "Init",
        "DeviceGetHandleByIndex_v2:0",
        "cuInit",
        "Shutdown",
    ];
    let out = same_with_and_without(&sim, &program, |command| {
        command.args(order);
    })
    .succeeded();
    if !no_gpu() {
        return;
    }
    assert!(out.stdout.contains("cuInit 100 "), "{}", out.told());
    let events = sim.events_named("init_failure");
    let [event] = &events[..] else { panic!("one failure was expected: {events:#?}") };
    let calls = |list: &str| {
        let calls = event[list].as_array().expect("a list").iter();
        calls
            .map(|call| format!("{}({})={}", call["call"], call["args"], call["code"]).replace('"', ""))
            .collect()
    };
    // NVML calls functions of its own by their names. Those are nobody's questions.
    let own: Vec<String> = calls("app_nvml_calls");
    let expected = [
        "DeviceGetCount_v2()=1",
        "InitWithFlags(flags=0)=9",
        "Init()=9",
        "DeviceGetHandleByIndex_v2(index=0)=1",
    ];
    assert_eq!(own, expected.map(|call| format!("nvml{call}")), "{event:#}");
    let chain: Vec<String> = calls("nvml_chain");
    assert_eq!(chain, ["nvmlInit_v2()=9"], "{event:#}");
    let cause = &event["causes"][0];
    assert_eq!(cause["id"], "kernel_module_missing", "{event:#}");
    assert!(
        cause["evidence"].as_str().is_some_and(|text| text.contains("NVML_ERROR_DRIVER_NOT_LOADED (9)")),
        "{event:#}"
    );
    let in_program =
        |frame: &serde_json::Value| frame["module"].as_str().is_some_and(|module| module.ends_with("asks"));
    assert!(event["stack"].as_array().is_some_and(|frames| frames.iter().any(in_program)), "{event:#}");
}

/// The same as a user has it: run, then report.
#[test]
fn the_report_of_a_run_says_why() {
    let sim = Sim::over(&clients::driver().lib);
    // Fails the test where the shim is missing or older than its sources.
    artefacts::shim();
    let (reports, shared) = (sim.temp.join("reports"), sim.shared_dir());
    let mut command = sim.bare(artefacts::cli());
    command.arg("run").arg("--dir").arg(&shared).arg("--report").arg(&reports).arg("--");
    command.arg(cc::program("tests/programs/nvml/asks.c", &[])).args(["handle", "Init_v2", "cuInit"]);
    let out = run(&mut command).succeeded();
    if !no_gpu() {
        return;
    }
    assert!(out.stderr.contains("CUDA_ERROR_NO_DEVICE"), "{}", out.told());
    let report = sim.report();
    let failure = &report["init_failures"][0];
    assert_eq!((&failure["api"], &failure["code"]), (&"cuInit".into(), &100.into()), "{report:#}");
    let told = run(sim.bare(artefacts::cli()).arg("report").arg(&reports)).succeeded();
    for words in
        ["kernel_module_missing", "What NVML says", "What the program had asked NVML", "nvmlInit_v2()"]
    {
        assert!(told.stdout.contains(words), "{words}: {}", told.told());
    }
}

#[test]
fn nvidia_smi_says_and_returns_the_same() {
    let driver = clients::driver();
    let sim = Sim::over(&driver.lib);
    for arguments in [&[][..], &["-L"], &["--query-gpu=name", "--format=csv"]] {
        let out = same_with_and_without(&sim, &driver.nvidia_smi, |command| {
            command.args(arguments);
        });
        // Its exit code is NVML's: NVML_ERROR_DRIVER_NOT_LOADED.
        if no_gpu() {
            out.exited(9);
        }
    }
}

#[test]
fn the_python_bindings_get_the_same_error() {
    let python = clients::python();
    let sim = Sim::over(&clients::driver().lib);
    let program = artefacts::root().join("tests/clients/python/init.py");
    let out = same_with_and_without(&sim, &python.interpreter, |command| {
        command.arg(&program).env("PYTHONPATH", &python.packages);
    })
    .succeeded();
    assert!(out.stdout.starts_with("CUDA_ERROR_NO_DEVICE") || !no_gpu(), "{}", out.told());
}

/// The codes of facts that were measured: cudaErrorNoDevice (100), or cudaErrorInsufficientDriver (35) where there is
/// no driver or the runtime's major is newer than the driver's.
#[test]
fn the_runtimes_get_the_same_error() {
    let driver = clients::driver();
    let nothing = artefacts::target_dir();
    for (version, over_driver) in [("11.8", 100), ("12.9", 100), ("13.5", 35)] {
        let cudart = clients::cudart(version);
        let program = runtime_program(&cudart.library);
        for (libraries, expected) in [(driver.lib.as_path(), over_driver), (nothing.as_path(), 35)] {
            let sim = Sim::over(libraries);
            let out = same_with_and_without(&sim, &program, |_| {}).succeeded();
            let first = format!("cudaMalloc {expected}");
            assert!(
                out.stdout.contains(&first) || !no_gpu(),
                "{version}: {first} was expected: {}",
                out.told()
            );
        }
    }
}

/// It answers 35 by itself: nobody but us says why.
#[test]
fn a_runtime_that_is_too_new_for_the_driver_is_explained() {
    for (version, explained) in [("12.9", false), ("13.5", true)] {
        let sim = Sim::over(&clients::driver().lib);
        let cudart = clients::cudart(version);
        run(&mut sim.shimmed(runtime_program(&cudart.library))).succeeded();
        let events = sim.events_named("init_failure");
        let too_old = |event: &&serde_json::Value| event["causes"][0]["id"] == "driver_too_old";
        let Some(event) = events.iter().find(too_old) else {
            assert!(!explained, "{events:#?}");
            continue;
        };
        assert!(explained && event["code"] == 35, "{event:#}");
        let evidence = event["causes"][0]["evidence"].as_str().expect("a text");
        let real = std::fs::canonicalize(&cudart.library).expect("it is there").display().to_string();
        let expected =
            format!("the runtime is CUDA 13.5, and the driver supports CUDA 12.2; the runtime is {real}");
        assert_eq!(evidence, expected);
    }
}

/// Linked with the real runtime, which it finds by its path.
fn runtime_program(library: &Path) -> PathBuf {
    let folder = library.parent().expect("it lies in a folder");
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    cc::program("tests/clients/c/runtime.c", &[&library.display().to_string(), &rpath])
}
