//! Several CUDA runtimes in one process: each caller, and each pointer that was looked up, reaches the runtime that it
//! reaches without the shim, and the report says which one that was.
//!
//! Stand-ins for libcudart answer with a number that tells which library it was and what it was given; the simulator's
//! three runtimes allocate.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/runtimes/stage.rs"]
mod stage;

use std::collections::BTreeMap;

use common::process::{Finished, run};
use common::{cc, clients};
use stage::{PROGRAMS, Stage, era, named};

/// How many lines of the program come from the stand-in with this number.
fn answers_of(out: &Finished, caller: &str, instance: u32) -> usize {
    let is_its = |line: &&&str| {
        line.starts_with(&format!("{caller} cuda"))
            && line
                .rsplit(' ')
                .next()
                .is_some_and(|code| code.starts_with(&instance.to_string()) && code.len() == 8)
    };
    out.lines().iter().filter(is_its).count()
}

#[test]
fn three_versions_and_three_callers() {
    let stage = Stage::new();
    let callers: Vec<String> = [
        ("eleven", "libcudart.so.11.0", 11, 1),
        ("twelve", "libcudart.so.12", 12, 2),
        ("thirteen", "libcudart.so.13", 13, 3),
    ]
    .map(|(name, soname, major, instance)| {
        let runtime = stage.standin("cuda", soname, major, instance);
        named(name, &stage.caller(name, &runtime, major))
    })
    .to_vec();
    for scope in ["local", "global"] {
        let arguments: Vec<&str> =
            ["open", scope].into_iter().chain(callers.iter().map(String::as_str)).collect();
        let (_, shimmed) = stage.same(&arguments);
        for (caller, instance, calls) in [("eleven", 1, 23), ("twelve", 2, 27), ("thirteen", 3, 26)] {
            assert_eq!(answers_of(&shimmed, caller, instance), 2 * calls, "{caller}: {}", shimmed.told());
        }
        // Nothing went past us: each caller is bound to our entry of its own node.
        let bound = stage.bindings(&arguments);
        for node in ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"] {
            let own = format!("libcuwarden.so [0]: normal symbol `cudaMalloc' [{node}]");
            assert!(bound.iter().any(|line| line.ends_with(&own)), "{node}: {bound:#?}");
        }
        let hooked = bound.iter().filter(|line| line.contains("libcuwarden.so [0]: normal")).count();
        assert_eq!(hooked, 23 + 27 + 26, "{bound:#?}");
    }
}

/// As two packages bring it: each its own copy, renamed so that both can be loaded.
#[test]
fn two_copies_of_one_version_from_two_paths() {
    let stage = Stage::new();
    let copies = [("one", "libcudart-0a1b2c3d.so.12", 4), ("two", "libcudart.so.12", 5)];
    let callers: Vec<String> = copies
        .map(|(name, soname, instance)| {
            let runtime = stage.standin(name, soname, 12, instance);
            named(name, &stage.caller(name, &runtime, 12))
        })
        .to_vec();
    for (order, scope) in
        [([0, 1], "local"), ([1, 0], "local"), ([0, 1], "deep"), ([0, 1], "global"), ([1, 0], "global")]
    {
        let [first, second] = order.map(|at| callers[at].as_str());
        let (bare, _) = stage.same(&["open", scope, first, second]);
        // In global scope the first that was loaded serves both.
        let expected = if scope == "global" { [4, 5][order[0]] } else { 4 };
        assert_eq!(answers_of(&bare, "one", expected), 54, "{scope}: {}", bare.told());
    }
}

#[test]
fn a_pointer_leads_to_the_library_it_was_asked_of() {
    let stage = Stage::new();
    let copies = [
        ("a", "libcudart.so.12", 12, 1),
        ("b", "libcudart.so.12", 12, 2),
        ("c", "libcudart.so.13", 13, 3),
        ("d", "libcudart.so.11.0", 11, 4),
    ];
    let paths = copies.map(|(place, soname, major, instance)| {
        stage.standin(place, soname, major, instance).display().to_string()
    });
    let arguments: Vec<&str> = ["look"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let (bare, shimmed) = stage.same(&arguments);
    assert_eq!(bare.lines().len(), 2 * (27 + 27 + 26 + 23), "by dlsym and by dlvsym: {}", bare.told());
    let ours = shimmed.stderr.lines().filter(|line| line.ends_with("lies in libcuwarden.so")).count();
    assert_eq!(ours, bare.lines().len(), "{}", shimmed.told());
}

/// More runtimes than there are places for are called directly.
#[test]
fn more_runtimes_than_there_are_places() {
    let stage = Stage::new();
    let paths: Vec<String> = (10..22)
        .map(|instance| {
            stage.standin(&format!("p{instance}"), "libcudart.so.12", 12, instance).display().to_string()
        })
        .collect();
    let arguments: Vec<&str> = ["look"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let (bare, shimmed) = stage.same(&arguments);
    let ours = shimmed.stderr.lines().filter(|line| line.ends_with("lies in libcuwarden.so")).count();
    assert_eq!(ours, bare.lines().len() / paths.len() * 8, "{}", shimmed.told());
}

/// cuda-python#1010: a runtime goes and another comes, at the same place perhaps.
#[test]
fn runtimes_that_come_and_go() {
    let stage = Stage::new();
    let [one, two, stays] = [("one", 1), ("two", 2), ("stays", 3)].map(|(name, instance)| {
        let runtime = stage.standin(name, "libcudart.so.12", 12, instance);
        named(name, &stage.caller(name, &runtime, 12))
    });
    let (bare, _) = stage.same(&["again", &one, &two]);
    assert!(bare.stdout.contains("\n199 2"), "{}", bare.told());
    stage.same(&["again", &one, &one]);
    // The third one's runtime has the name that the others need: they get it too.
    stage.same(&["again", &one, &two, &stays]);
}

#[test]
fn a_thread_that_ends_inside_a_call() {
    let stage = Stage::new();
    let runtime = stage.standin("one", "libcudart.so.12", 12, 6);
    let caller = named("one", &stage.caller("one", &runtime, 12));
    let (bare, _) = stage.same(&["leaves", &caller]);
    assert!(bare.stdout.starts_with("left, then 6"), "{}", bare.told());
}

/// Without a runtime there are no runtime functions, whoever exports entries for them.
#[test]
fn what_no_library_has_is_not_found() {
    let stage = Stage::new();
    for node in ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13", "libcudart.so.14"] {
        let (bare, _) =
            stage.same(&["default", node, "cudaMalloc", "cudaFree", "cudaMemcpy", "cudaSetDevice"]);
        assert!(bare.stdout.contains("cudaMalloc: not found, not found"), "{}", bare.told());
    }
}

/// The real ones, each with a caller of its own. The simulated driver lets them come as far as their first error.
#[test]
fn the_real_runtimes_together() {
    let stage = Stage::new();
    let callers: Vec<String> = [("eleven", "11.8", 11), ("twelve", "12.9", 12), ("thirteen", "13.5", 13)]
        .map(|(name, version, major)| {
            named(name, &stage.caller(name, &clients::cudart(version).library, major))
        })
        .to_vec();
    let arguments: Vec<&str> =
        ["open", "local"].into_iter().chain(callers.iter().map(String::as_str)).collect();
    let bound = stage.bindings(&arguments);
    for node in ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"] {
        let own = format!("libcuwarden.so [0]: normal symbol `cudaMalloc' [{node}]");
        assert!(bound.iter().any(|line| line.ends_with(&own)), "{node}: {bound:#?}");
    }
    let (bare, _) = stage.same(&arguments);
    for text in ["eleven is linked with 0", "twelve is linked with 12090", "thirteen is linked with 13050"] {
        assert!(bare.stdout.contains(text), "{}", bare.told());
    }
}

/// NVBit#134: a runtime that is linked in has no name; two of them in one process are told apart.
#[test]
fn two_runtimes_that_are_linked_in() {
    let stage = Stage::new();
    let callers: Vec<String> = [("twelve", "12.9", 12), ("thirteen", "13.5", 13)]
        .map(|(name, version, major)| {
            let runtime = clients::cudart(version).static_library.expect("the wheel has a static library");
            let arguments = [
                era(major),
                format!("-DCALLER={name}"),
                runtime.display().to_string(),
                "-Wl,--exclude-libs,ALL".to_owned(),
                "-lpthread".to_owned(),
                "-lrt".to_owned(),
                "-ldl".to_owned(),
            ];
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            named(name, &stage.library("caller.c", "", &format!("lib{name}.so"), &arguments))
        })
        .to_vec();
    let (bare, shimmed) = stage.same(&["open", "local", &callers[0], &callers[1]]);
    for text in ["twelve is linked with 12090", "thirteen is linked with 13050"] {
        assert!(bare.stdout.contains(text), "{}", bare.told());
    }
    let report = stage.sim.report();
    assert_eq!(report["runtime_versions"], serde_json::json!(["12.9", "13.5"]), "{}", shimmed.told());
}

#[test]
fn the_report_says_which_runtime_and_which_call() {
    let stage = Stage::new();
    let size = 1 << 20;
    let callers: Vec<String> =
        [("eleven", "libcudart.so.11.0"), ("twelve", "libcudart.so.12"), ("thirteen", "libcudart.so.13")]
            .map(|(name, soname)| {
                let runtime = stage.sim.libraries().join(soname).display().to_string();
                let path = stage.library(
                    "allocates.c",
                    "",
                    &format!("lib{name}.so"),
                    &[&format!("-DCALLER={name}"), &format!("-DSIZE={size}"), &runtime],
                );
                named(name, &path)
            })
            .to_vec();
    let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
    let mut command = stage.sim.shimmed(&program);
    command
        .args(["open", "local"])
        .args(&callers)
        .env("CUWARDEN_SIM_DRIVER", "13.5")
        .env("CUWARDEN_MEMORY_LIMIT", "1GiB");
    let out = run(&mut command).succeeded();
    assert_eq!(out.lines(), ["0 1073741824"; 6], "the quota is the card: {}", out.told());
    let report = stage.sim.report();
    let mut found: BTreeMap<(String, String), u64> = BTreeMap::new();
    for leak in report["leaks"].as_array().expect("a list") {
        if leak["held_by_driver"] == false {
            let [api, runtime] =
                ["api", "runtime"].map(|field| leak[field].as_str().unwrap_or("none").to_owned());
            assert!(
                leak["driver_api"]
                    .as_str()
                    .is_some_and(|driver| driver.starts_with("cuMem") || driver.starts_with("cuArray")),
                "{leak}"
            );
            assert!(
                leak["stack"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .all(|frame| !frame["module"].as_str().expect("a path").ends_with("libcuwarden.so")),
                "our own frames are in the stack: {leak:#}"
            );
            *found.entry((runtime, api)).or_default() += leak["count"].as_u64().expect("a number");
        }
    }
    let calls = [
        "cudaMalloc",
        "cudaMalloc3D",
        "cudaMallocArray",
        "cudaMallocAsync",
        "cudaMallocManaged",
        "cudaMallocPitch",
    ];
    let expected = ["11.8", "12.9", "13.5"]
        .iter()
        .flat_map(|version| calls.map(|call| ((version.to_string(), call.to_owned()), 2)));
    assert_eq!(found, expected.collect(), "{report:#}");
    assert_eq!(report["runtime_versions"], serde_json::json!(["11.8", "12.9", "13.5"]));
    // Counted once, by the driver's layer.
    let books = stage.sim.process_books(&report["pid"]);
    let in_books = |kind: &str| books["devices"][0][kind].as_u64().expect("a number");
    let held: u64 = ["array", "linear", "managed", "pitch", "pool"].map(in_books).iter().sum();
    assert_eq!(report["devices"][0]["live_bytes"], held, "{books:#}");
}
