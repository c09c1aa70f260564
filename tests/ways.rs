//! Every way to get device memory, found in every way that CUDA has: what the report and cuMemGetInfo say agrees with
//! the simulated driver's own books, to the byte.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;

use std::path::Path;

use common::artefacts;
use common::cc;
use common::process::run;
use common::sim::Sim;
use serde_json::Value;

const LIMIT: u64 = 8 << 30;

/// Runs the program under the shim and compares.
#[track_caller]
fn check(program: &Path, arguments: &[&str]) {
    let sim = Sim::new();
    let mut command = sim.shimmed(program);
    command.args(arguments).env("CUWARDEN_MEMORY_LIMIT", "8g").env("CUWARDEN_SIM_DRIVER", "13.5");
    let out = run(&mut command).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    let report = sim.report();
    books::agree(&sim, &report);
    books::counts_agree(&report, &said["taken"]);
    // The quota is the card: what is not free is what the process has.
    let held: u64 = books::held(&sim.process_books(&report["pid"]))[0].values().sum();
    assert_eq!((&said["total"], &said["free"]), (&LIMIT.into(), &(LIMIT - held).into()), "{}", out.told());
    assert!(sim.events().is_empty(), "{:#?}", sim.events());
}

fn scenarios(program: &Path, sim: &Sim) -> Vec<String> {
    let out = run(sim.bare(program).arg("list")).succeeded();
    out.lines().into_iter().map(str::to_owned).collect()
}

/// Each by itself: a scenario's mistake cannot hide another's.
fn each(keep: &str) {
    let sim = Sim::new();
    let program = books::program(&sim, "ways/ways.c");
    let scenarios = scenarios(&program, &sim);
    assert!(scenarios.len() > 40, "{scenarios:?}");
    let mut failed = Vec::new();
    for scenario in &scenarios {
        if std::panic::catch_unwind(|| check(&program, &["linked", keep, scenario])).is_err() {
            failed.push(scenario);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn each_way_with_something_kept() {
    each("keep");
}

#[test]
fn each_way_with_everything_freed() {
    each("free");
}

#[test]
fn all_ways_by_every_look_up() {
    let program = books::program(&Sim::new(), "ways/ways.c");
    for method in ["linked", "handle", "default", "next", "v1", "v1-late", "v2", "v2-late"] {
        for keep in ["keep", "free"] {
            check(&program, &[method, keep, "all"]);
        }
    }
}

/// Without the shim every scenario passes as well: none of them asks for what the driver does not do.
#[test]
fn the_driver_alone_does_all_this() {
    let sim = Sim::new();
    let program = books::program(&sim, "ways/ways.c");
    for keep in ["keep", "free"] {
        run(sim.bare(&program).args(["v2-late", keep, "all"]).env("CUWARDEN_SIM_DRIVER", "13.5")).succeeded();
    }
}

/// And with it the driver does the same: each function that the application calls is called as often.
#[test]
fn the_driver_is_called_as_often_as_without_the_shim() {
    // What the shim asks by itself; of these the application's own calls cannot be told apart.
    const ASKED: &[&str] = &[
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetUuid",
        "cuDeviceGetUuid_v2",
        "cuDeviceGetMemPool",
        "cuDeviceGetDefaultMemPool",
        "cuDevicePrimaryCtxGetState",
        "cuDeviceGetGraphMemAttribute",
        "cuDeviceTotalMem_v2",
        "cuMemGetInfo_v2",
        "cuMemPoolGetAttribute",
        "cuDriverGetVersion",
        "cuStreamIsCapturing",
        "cuStreamIsCapturing_ptsz",
        "cuStreamGetCtx",
        "cuStreamGetCtx_ptsz",
        "cuThreadExchangeStreamCaptureMode",
        "cuGraphGetNodes",
        "cuGraphNodeGetType",
        "cuGraphChildGraphNodeGetGraph",
        "cuGraphMemAllocNodeGetParams",
    ];
    let [without, with] = [Sim::new(), Sim::new()];
    let program = books::program(&without, "ways/ways.c");
    for keep in ["keep", "free"] {
        for command in [&mut without.bare(&program), &mut with.shimmed(&program)] {
            run(command.args(["linked", keep, "all"])).succeeded();
        }
    }
    let calls = |sim: &Sim| {
        let mut calls = std::collections::BTreeMap::new();
        for process in sim.books()["processes"].as_array().expect("a list") {
            for (name, count) in process["calls"].as_object().expect("an object") {
                *calls.entry(name.clone()).or_insert(0) += count.as_u64().expect("a number");
            }
        }
        calls.retain(|name: &String, _| !ASKED.contains(&name.as_str()));
        calls
    };
    let (without, with) = (calls(&without), calls(&with));
    assert!(without.len() > 80, "{without:#?}");
    assert_eq!(without, with);
    // The trims that the shim may do are for refusals alone, and there were none.
    let hooked: std::collections::BTreeSet<&str> = common::hooked::names().collect();
    let untouched: Vec<&&str> = hooked
        .iter()
        .filter(|name| !without.contains_key(**name) && !ASKED.contains(name) && name.starts_with("cuMem"))
        .filter(|name| **name != "cuMemGetInfo")
        .collect();
    assert!(untouched.is_empty(), "no scenario calls {untouched:?}");
}

/// Through the runtimes, whose look-ups and contexts are their own.
#[test]
fn all_ways_of_the_runtimes() {
    let sim = Sim::new();
    for soname in ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"] {
        let library = sim.libraries().join(soname).display().to_string();
        let include = format!("-I{}", artefacts::root().join("sim").display());
        let program = cc::program("tests/programs/ways/runtime.c", &[&include, &library]);
        for keep in ["keep", "free"] {
            check(&program, &[keep]);
        }
    }
}
