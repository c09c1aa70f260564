//! `cuwarden doctor -- CMD` on programs with the real CUDA runtimes.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use common::process::run;
use common::sim::Sim;
use common::{artefacts, cc, clients};

/// What doctor says about the program's runtime. The machine may be without a driver.
fn told(program: &std::path::Path) -> String {
    let sim = Sim::new();
    let mut command = sim.bare(artefacts::cli());
    run(command.args(["doctor", "--"]).arg(program)).stdout
}

#[test]
fn shared_runtimes() {
    for version in clients::CUDART_VERSIONS {
        let library = clients::cudart(version).library;
        let rpath = format!("-Wl,-rpath,{}", library.parent().expect("it lies in a folder").display());
        let program = cc::program("tests/clients/c/runtime.c", &[&library.display().to_string(), &rpath]);
        let told = told(&program);
        // The files have the short names of all minor versions.
        let line = told.lines().find(|line| line.contains("the CUDA runtime is shared: "));
        assert!(
            line.is_some_and(|line| line.ends_with(&format!("PATH), CUDA {version}"))),
            "{version}: {told}"
        );
    }
}

#[test]
fn static_runtimes() {
    let mut seen = 0;
    for version in clients::CUDART_VERSIONS {
        let Some(library) = clients::cudart(version).static_library else { continue };
        let program = cc::program(
            "tests/clients/c/runtime.c",
            &[&library.display().to_string(), "-ldl", "-lpthread", "-lrt", "-lm"],
        );
        let told = told(&program);
        let words = format!("the CUDA runtime is linked into the program: CUDA {version}");
        assert!(told.contains(&words), "{version}: {told}");
        seen += 1;
    }
    assert_eq!(seen, 2);
}
