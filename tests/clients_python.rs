//! NVIDIA's Python packages over the simulated GPU.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "clients/expect.rs"]
mod expect;

use std::path::PathBuf;
use std::process::Command;

use common::process::run;
use common::sim::Sim;
use common::{artefacts, clients};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn script(name: &str) -> PathBuf {
    artefacts::root().join("tests/clients/python").join(name)
}

/// Python with the fetched packages and nobody else's.
fn python(mut command: Command, name: &str) -> Command {
    let python = clients::python();
    command.arg("-B").arg(script(name)).env("PYTHONPATH", &python.packages);
    command
}

fn shimmed(sim: &Sim, name: &str) -> Command {
    python(sim.shimmed(clients::python().interpreter), name)
}

fn bare(sim: &Sim, name: &str) -> Command {
    python(sim.bare(clients::python().interpreter), name)
}

#[test]
fn cuda_bindings_allocate_leak_and_meet_their_quota() {
    let sim = Sim::new();
    let (keep, free, limit) = (4 * MIB, 6 * MIB, 1024 * MIB);
    let arguments = [keep, free, limit].map(|size| size.to_string());
    let out =
        run(shimmed(&sim, "bindings.py").args(arguments).env("CUWARDEN_MEMORY_LIMIT", "1g")).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    let pitched = said["pitched"].as_u64().unwrap_or_else(|| panic!("no size: {said}"));
    assert_eq!(said["device_total"], limit, "{said}");
    assert_eq!(said["free"], limit - 2 * keep - pitched, "{said}");
    expect::assert_told(
        &sim,
        &expect::Run {
            leaks: &[
                ("cuMemAlloc_v2", 1, keep),
                ("cuMemAllocPitch_v2", 1, pitched),
                ("cuMemAllocAsync", 1, keep),
            ],
            limit,
            said: &said,
        },
    );
}

/// The quota is the shim's doing: without it the same program gets all that it asks for.
#[test]
fn cuda_bindings_meet_no_quota_without_the_shim() {
    let sim = Sim::new();
    let arguments = [MIB, MIB, 1024 * MIB].map(|size| size.to_string());
    let out = run(bare(&sim, "bindings.py").args(arguments).env("CUWARDEN_MEMORY_LIMIT", "1g")).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    assert_eq!(said["refused"], "CUDA_SUCCESS", "{said}");
    assert!(sim.events().is_empty() && sim.reports().is_empty());
}

/// Whatever is initialised first, and without CUDA, and several times.
#[test]
fn nvidia_ml_py_sees_the_same_devices_in_any_order() {
    for order in [&["nvml"][..], &["nvml", "cuda"], &["cuda", "nvml"], &["nvml", "cuda", "nvml"]] {
        let sim = Sim::new();
        let bare = run(bare(&sim, "nvml.py").args(order)).succeeded();
        let shimmed = run(shimmed(&sim, "nvml.py").args(order)).succeeded();
        assert_eq!(bare.stdout, shimmed.stdout, "{order:?}");
        assert_eq!(bare.stderr, shimmed.stderr, "{order:?}");
        assert!(bare.stdout.contains("GPU-"), "no device was seen: {}", bare.told());
        assert!(bare.stdout.contains("cuInit 0") || !order.contains(&"cuda"), "{}", bare.told());
    }
}
