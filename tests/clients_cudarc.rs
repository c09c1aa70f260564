//! cudarc, the Rust client (tests/clients/cudarc), over the simulated GPU.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "clients/expect.rs"]
mod expect;

use std::path::PathBuf;
use std::process::Command;

use common::artefacts;
use common::process::run;
use common::sim::Sim;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Builds the client from what scripts/fetch-clients brought; cargo knows whether there is anything to do.
fn client() -> PathBuf {
    let target = artefacts::target_dir().join("clients");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--offline", "--locked", "--target-dir"])
        .arg(&target)
        .arg("--manifest-path")
        .arg(artefacts::root().join("tests/clients/cudarc/Cargo.toml"));
    let out = run(&mut cargo);
    assert!(
        out.status.success(),
        "the client cudarc cannot be built: run scripts/fetch-clients\n{}",
        out.told()
    );
    target.join("debug/cudarc-client")
}

#[test]
fn cudarc_allocates_leaks_and_meets_its_quota() {
    let sim = Sim::new();
    let (keep, free, limit) = (4 * MIB, 6 * MIB, 1024 * MIB);
    let arguments = [keep, free, limit].map(|size| size.to_string());
    let out = run(sim.shimmed(client()).args(&arguments).env("CUWARDEN_MEMORY_LIMIT", "1024m")).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    assert_eq!(said["free"], limit - 3 * keep, "{said}");
    expect::assert_told(
        &sim,
        &expect::Run {
            leaks: &[
                ("cuMemAlloc_v2", 1, keep),
                ("cuMemAllocManaged", 1, keep),
                ("cuMemAllocAsync", 1, keep),
            ],
            limit,
            said: &said,
        },
    );
}

#[test]
fn cudarc_meets_no_quota_without_the_shim() {
    let sim = Sim::new();
    let arguments = [MIB, MIB, 1024 * MIB].map(|size| size.to_string());
    let out = run(sim.bare(client()).args(&arguments).env("CUWARDEN_MEMORY_LIMIT", "1024m")).succeeded();
    let said: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    assert_eq!(said["refused"], "CUDA_SUCCESS", "{said}");
}
