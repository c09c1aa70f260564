//! Look-ups in drivers of other times, direct links and the runtime's own look-up.
//!
//! Reported of others: vcuda-controller#20, gpu-manager#169 (cuGetProcAddress asked for itself), HAMi-core#233, #320
//! (the wrong variant), nvshare#11, #14 (cuGetProcAddress before cuInit), nomad#5535, HAMi#27 (a driver that lacks
//! symbols), cccl#5976, cutlass#2086 (cudaGetDriverEntryPoint), HAMi#2903, linuwux-runtime#31 (look-ups of others).

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::Command;

use common::cc;
use common::process::{Finished, run};
use common::sim::Sim;
use serde_json::json;

const PROGRAMS: &str = "tests/programs/lookups";

/// A driver of the test's own.
fn driver(name: &str, arguments: &[&str]) -> Sim {
    let mut all = vec!["-Wl,-soname,libcuda.so.1"];
    all.extend(arguments);
    let library = cc::library(&format!("{PROGRAMS}/{name}.c"), "libcuda.so.1", &all);
    Sim::over(library.parent().unwrap_or(Path::new("/")))
}

#[track_caller]
fn same_with_and_without(sim: &Sim, program: &Path, prepare: impl Fn(&mut Command)) -> Finished {
    let [bare, shimmed] = [sim.bare(program), sim.shimmed(program)].map(|mut command| {
        prepare(&mut command);
        run(&mut command).succeeded()
    });
    assert_eq!(bare.stdout, shimmed.stdout, "{}\n{}", bare.told(), shimmed.told());
    shimmed
}

#[test]
fn a_driver_of_the_future_is_handed_on_as_it_is() {
    let program = cc::program(&format!("{PROGRAMS}/new_driver_client.c"), &[]);
    let out = same_with_and_without(&driver("new_driver", &["-Wl,-Bsymbolic"]), &program, |_| {});
    assert!(!out.stdout.contains("ANOTHER"), "{}", out.told());
    for expected in [
        "itself at 11.8: 0 0 v1",
        "itself at 12.0: 0 v2",
        "itself at 99.0: 0 0 v3",
        "cuMemAlloc at 12.0: 0 0 v2, 0 201000",
        "cuMemAlloc at 99.0: 0 0 v9, 9007 77",
        "cuMemFree at 99.0: 0 0, 6",
        "unknown by v2: 0 1 (nil)",
        "no function: 0 1 0x1",
        "unknown by v1: 500 (nil)",
    ] {
        assert!(out.stdout.contains(expected), "{expected}: {}", out.told());
    }
}

/// What the driver calls of itself, through its own exported names, is part of the call that the application made:
/// it is counted once and freed once.
#[test]
fn what_the_driver_calls_of_itself_is_counted_once() {
    let sim = driver("recursive_driver", &["-fno-inline", "-O0"]);
    let program = cc::program(&format!("{PROGRAMS}/recursive_client.c"), &[]);
    let out = same_with_and_without(&sim, &program, |_| {});
    assert_eq!(out.stdout, "0 0 0 3 calls\n", "{}", out.told());
    let report = sim.report();
    assert_eq!(report["devices"][0]["live_bytes"], 1024 * 10, "{report:#}");
    assert_eq!(report["devices"][0]["peak_bytes"], 2 * 1024 * 10, "{report:#}");
    assert_eq!(report["devices"][0]["alloc_count"], 2, "{report:#}");
    assert_eq!(report["devices"][0]["free_count"], 1, "{report:#}");
    assert_eq!(report["leaks"][0]["api"], "cuMemAllocPitch_v2", "{report:#}");
}

/// Bound early, late, without a jump table, at fixed addresses: each call of such a program is counted and limited.
#[test]
fn a_program_that_is_linked_with_libcuda() {
    let libcuda = Sim::new().libraries().join("libcuda.so.1").display().to_string();
    for how in [
        &["-Wl,-z,lazy"][..],
        &["-Wl,-z,now"],
        &["-fno-plt", "-Wl,-z,now"],
        &["-fno-pie", "-no-pie", "-Wl,-z,lazy"],
        &["-fno-pie", "-no-pie", "-Wl,-z,now"],
    ] {
        let sim = Sim::new();
        let mut arguments = how.to_vec();
        arguments.push(&libcuda);
        let program = cc::program(&format!("{PROGRAMS}/linked.c"), &arguments);
        let bare = run(&mut sim.bare(&program)).succeeded();
        assert!(bare.stdout.contains("too much 0"), "{}", bare.told());
        let out = run(sim.shimmed(&program).env("CUWARDEN_MEMORY_LIMIT", "64m")).succeeded();
        let expected = "direct 0\nfreed 0\nin data 0\nin code 0\nlooked up 0\ntoo much 2\ninfo 0 64\n";
        assert_eq!(out.stdout, expected, "{how:?}: {}", out.told());
        let report = sim.report();
        assert_eq!(report["devices"][0]["live_bytes"], 14 << 20, "{how:?}: {report:#}");
        assert_eq!(report["devices"][0]["alloc_count"], 4, "{how:?}: {report:#}");
        assert_eq!(report["devices"][0]["denied_count"], 1, "{how:?}: {report:#}");
    }
}

/// libcuda by its soname, by its full path, by a link of another name, in a plugin of its own scope.
#[test]
fn the_driver_by_whatever_name_it_is_opened() {
    let sim = Sim::new();
    let real = sim.libraries().join("libcuda.so.1");
    let link = sim.temp.join("libcuda.so");
    std::os::unix::fs::symlink(&real, &link).expect("the folder is ours");
    let copy = sim.temp.join("libcuda.so.999.1");
    std::fs::copy(&real, &copy).expect("the folder is ours");
    let program = cc::program(&format!("{PROGRAMS}/opened.c"), &[]);
    for path in [Path::new("libcuda.so.1"), &real, &link, &copy] {
        for scope in ["local", "global"] {
            let out = run(sim.shimmed(&program).arg(path).arg(scope)).succeeded();
            assert_eq!(out.stdout, "allocated 0 in libcuwarden.so\n", "{}: {}", path.display(), out.told());
        }
    }
    let reports = sim.reports();
    assert_eq!(reports.len(), 8);
    for report in reports {
        assert_eq!(report["devices"][0]["live_bytes"], 1 << 20, "{report:#}");
    }
}

/// cccl#5976, cutlass#2086.
#[test]
fn the_runtime_s_look_up_of_driver_functions() {
    let program = cc::program(&format!("{PROGRAMS}/entry_points.c"), &[]);
    for (runtime, bytes) in
        [("libcudart.so.11.0", 3 << 20), ("libcudart.so.12", 8 << 20), ("libcudart.so.13", 8 << 20)]
    {
        let sim = Sim::new();
        let out = same_with_and_without(&sim, &program, |command| {
            command.arg(sim.libraries().join(runtime)).env("CUWARDEN_SIM_DRIVER", "13.5");
        });
        assert!(!out.stdout.contains("-1"), "{runtime}: {}", out.told());
        let report = sim.report();
        assert_eq!(report["devices"][0]["live_bytes"], bytes, "{runtime}: {}\n{report:#}", out.told());
    }
}

/// Before every constructor of ours, at exit, in a signal handler, in threads, on the smallest stack; errno stays.
#[test]
fn look_ups_and_allocations_at_any_moment() {
    let program = cc::program(&format!("{PROGRAMS}/moments.c"), &[]);
    let sim = Sim::new();
    let out = same_with_and_without(&sim, &program, |_| {});
    let line = "same same, allocated 0, freed 0, errno 4711 4711 4711";
    for moment in ["constructor", "main", "signal handler", "small stack", "atexit", "destructor"] {
        assert!(out.stdout.contains(&format!("{moment}: {line}\n")), "{moment}: {}", out.told());
    }
    assert!(out.stdout.contains("threads: 0 wrong\n"), "{}", out.told());
    let report = sim.report();
    assert_eq!(report["devices"][0]["alloc_count"], 6, "{report:#}");
    assert_eq!(report["devices"][0]["free_count"], 6, "{report:#}");
    assert_eq!(report["leaks"], json!([]), "{report:#}");
}

/// The same in a library's constructor, before the program's own, with the library loaded at start.
#[test]
fn a_constructor_that_runs_before_any_of_ours() {
    let library = cc::library(&format!("{PROGRAMS}/moments.c"), "libmoments.so", &[]);
    let sim = Sim::new();
    let [bare, shimmed] = [false, true].map(|with| {
        let mut command = if with { sim.shimmed("/bin/true") } else { sim.bare("/bin/true") };
        // Behind the shim in the list: constructors run from the end.
        let shim = common::artefacts::shim().display().to_string();
        let list = if with { format!("{shim}:{}", library.display()) } else { library.display().to_string() };
        run(command.env("LD_PRELOAD", list)).succeeded()
    });
    assert_eq!(bare.stdout, shimmed.stdout, "{}\n{}", bare.told(), shimmed.told());
    assert!(shimmed.stdout.starts_with("constructor: same same, allocated 0"), "{}", shimmed.told());
}

/// Threads of an application may have 16 KiB of stack, of which the C library and thread-local storage take some.
#[test]
fn the_stack_that_calls_take() {
    let program = cc::program(&format!("{PROGRAMS}/stack_use.c"), &[]);
    let sim = Sim::new();
    let used = |out: &Finished| -> Vec<(String, i64)> {
        let parse = |line: &&str| {
            let (what, bytes) = line.rsplit_once(' ').expect("a name and a number");
            (what.to_owned(), bytes.parse().expect("a number"))
        };
        out.lines().iter().map(parse).collect()
    };
    let bare = used(&run(&mut sim.bare(&program)).succeeded());
    let shimmed = used(&run(sim.shimmed(&program).env("CUWARDEN_STACKS", "64")).succeeded());
    assert_eq!(bare.len(), 9);
    for ((what, without), (_, with)) in bare.iter().zip(&shimmed) {
        // What happens once opens files and takes more; a real cuInit needs far more than that for itself.
        let most = if what.starts_with("first") || what == "cuInit" { 20 << 10 } else { 3 << 10 };
        assert!(with - without < most, "{what}: {with} bytes, {without} without the shim");
    }
}

/// Seastar defines dl_iterate_phdr itself: finding the loader's dlsym must not call it.
#[test]
fn a_program_with_a_dl_iterate_phdr_of_its_own() {
    let program = cc::program(&format!("{PROGRAMS}/own_iterator.c"), &["-rdynamic"]);
    let out = same_with_and_without(&Sim::new(), &program, |_| {});
    assert_eq!(out.stdout, "found\n", "{}", out.told());
}
