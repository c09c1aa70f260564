//! The real CUDA runtimes, shared and static, over the simulated GPU.
//!
//! The simulator does not imitate the verification that a runtime makes after its context, so the runtime's calls end
//! with cudaErrorSymbolNotFound (500): after all look-ups, and after the context was made through the private table.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "clients/lookups.rs"]
mod lookups;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::process::{Finished, run};
use common::sim::Sim;
use common::{artefacts, cc, clients, elf};

struct Runtime {
    version: &'static str,
    program: PathBuf,
}

fn shared(version: &'static str) -> Runtime {
    let library = clients::cudart(version).library;
    let rpath = format!("-Wl,-rpath,{}", library.parent().expect("it lies in a folder").display());
    let program = cc::program(
        "tests/clients/c/runtime.c",
        &[&library.display().to_string(), "-Wl,--disable-new-dtags", &rpath],
    );
    Runtime { version, program }
}

fn fixed(version: &'static str) -> Runtime {
    let library = clients::cudart(version).static_library.expect("the wheel has a static library");
    let program = cc::program(
        "tests/clients/c/runtime.c",
        &[&library.display().to_string(), "-ldl", "-lpthread", "-lrt", "-lm"],
    );
    Runtime { version, program }
}

/// The simulated driver must be new enough for the runtime: 13.5 refuses a driver of major 12.
const DRIVER: &str = "13.5";

/// Of the functions that the runtime keeps from its look-ups, how many lie in this library.
fn functions_of(out: &Finished, library: &str) -> u64 {
    let prefix = format!("functions of {library} ");
    let number = out.stderr.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok());
    number.unwrap_or_else(|| panic!("no {prefix:?}: {}", out.told()))
}

#[track_caller]
fn all_look_ups_go_through_the_shim(runtime: &Runtime) {
    let [without, with] = [Sim::new(), Sim::new()];
    let [mut bare, mut shimmed] = [without.bare(&runtime.program), with.shimmed(&runtime.program)];
    let [bare, shimmed] = [&mut bare, &mut shimmed].map(|command| {
        command.args(["libcuda.so.1", "libcuwarden.so"]).env("CUWARDEN_SIM_DRIVER", DRIVER);
        run(command).succeeded()
    });
    let version = runtime.version;
    assert_eq!(bare.stdout, shimmed.stdout, "{version}: what the application sees");
    assert!(bare.stdout.contains("cudaMalloc 500"), "{version}: {}", bare.told());

    // The real function runs once for each call. Most look-ups come before cuInit, from which the simulator counts.
    for function in ["cuInit", "cuGetExportTable", "cuDeviceGetCount", "slot2"] {
        assert_eq!(without.calls(function), with.calls(function), "{version}: calls of {function}");
    }
    assert!(with.calls("slot2") >= 1, "{version}: no context was made through the private table");

    // What the runtime got: hooks in place of some functions, and the driver's own for all others.
    let kept = functions_of(&bare, "libcuda.so.1");
    let hooks = functions_of(&shimmed, "libcuwarden.so");
    assert!(kept > 300, "{version}: the functions that the runtime keeps were not found: {}", bare.told());
    assert!(hooks > 20, "{version}: only {hooks} hooks: {}", shimmed.told());
    assert_eq!(functions_of(&shimmed, "libcuda.so.1") + hooks, kept, "{version}: {}", shimmed.told());
}

#[test]
fn cudart_11_8_looks_everything_up_through_the_shim() {
    all_look_ups_go_through_the_shim(&shared("11.8"));
}

#[test]
fn cudart_12_9_looks_everything_up_through_the_shim() {
    all_look_ups_go_through_the_shim(&shared("12.9"));
}

#[test]
fn cudart_13_5_looks_everything_up_through_the_shim() {
    all_look_ups_go_through_the_shim(&shared("13.5"));
}

#[test]
fn static_cudart_12_9_looks_everything_up_through_the_shim() {
    all_look_ups_go_through_the_shim(&fixed("12.9"));
}

#[test]
fn static_cudart_13_5_looks_everything_up_through_the_shim() {
    all_look_ups_go_through_the_shim(&fixed("13.5"));
}

/// The reason for a context's failure is lost to the application: cudaErrorInitializationError, whatever the code.
#[test]
fn a_context_that_cannot_be_made_gives_the_runtime_s_own_error() {
    for runtime in [shared("11.8"), shared("12.9"), shared("13.5"), fixed("12.9"), fixed("13.5")] {
        let said = [false, true].map(|with_shim| {
            let sim = Sim::new();
            let mut command =
                if with_shim { sim.shimmed(&runtime.program) } else { sim.bare(&runtime.program) };
            command.env("CUWARDEN_SIM_DRIVER", DRIVER).env("CUWARDEN_SIM_FAIL", "slot2=46");
            run(&mut command).succeeded().stdout
        });
        assert_eq!(said[0], said[1], "{}", runtime.version);
        assert!(said[0].contains("cudaMalloc 3"), "{}: {}", runtime.version, said[0]);
    }
}

/// The triples that each runtime asks for, one by one: the same variant with and without the shim.
#[test]
fn each_look_up_of_the_runtimes_gives_the_same_variant() {
    let sim = Sim::new();
    let names: BTreeSet<String> = elf::exports(&sim.libraries().join("libcuda.so.1")).into_iter().collect();
    for version in clients::CUDART_VERSIONS {
        let path = artefacts::root().join(format!("sim/lookups-{version}.tsv"));
        let table = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines = table.lines().filter(|line| !line.starts_with('#'));
        let triples: Vec<(String, u32, u32)> = lines.map(triple).collect();
        assert!(triples.len() > 300, "{version}: only {} look-ups are listed", triples.len());
        lookups::assert_identity(&sim, &names, &triples);
    }
}

fn triple(line: &str) -> (String, u32, u32) {
    let fields: Vec<&str> = line.split('\t').collect();
    let [symbol, version, flags] = fields[..] else { panic!("three fields were expected: {line:?}") };
    let number = |text: &str| text.parse().unwrap_or_else(|e| panic!("{line:?}: {e}"));
    (symbol.to_owned(), number(version), number(flags))
}
