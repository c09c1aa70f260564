//! Other preloaded libraries beside the shim, before and after it in the list: allocators, interposers of dlsym, one of
//! a driver's function, AddressSanitizer.
//!
//! Reported of others: torch_memory_saver#24, #4 (two interposers of one function), linuwux-runtime#31 (another preload
//! that frees during the loader's start), sanitizers#786, #796 (ASan must be first), nocache#5, s2i-dotnetcore#321
//! (the order of the list), HAMi#2903 (MKL's and OpenMP's look-ups).

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};

use common::process::{Finished, run};
use common::sim::Sim;
use common::{artefacts, cc};

const PROGRAMS: &str = "tests/programs/lookups";

/// Runs the program with the shim and the others in both orders, and without the shim.
fn in_both_orders(program: &Path, others: &[&Path], check: impl Fn(&str, &Sim, &Finished, &Finished)) {
    let shim = artefacts::shim();
    for (order, list) in
        [("first", [&[shim.as_path()], others].concat()), ("last", [others, &[shim.as_path()]].concat())]
    {
        let joined =
            |list: &[&Path]| list.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
        let sim = Sim::new();
        let bare = run(sim.bare(program).env("LD_PRELOAD", joined(others)));
        let shimmed = run(sim.shimmed(program).env("LD_PRELOAD", joined(&list)));
        check(order, &sim, &bare, &shimmed);
    }
}

fn allocator(name: &str, package: &str) -> PathBuf {
    let found =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(|folder| Path::new(folder).join(name));
    let found = found.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is missing: install it (Debian's package {package})"))
}

#[track_caller]
fn with_allocator(name: &str, package: &str) {
    let program = cc::program(&format!("{PROGRAMS}/moments.c"), &[]);
    in_both_orders(&program, &[&allocator(name, package)], |order, sim, bare, shimmed| {
        assert_eq!(shimmed.status.code(), Some(0), "{order}: {}", shimmed.told());
        assert_eq!(bare.stdout, shimmed.stdout, "{order}: {}", shimmed.told());
        assert_eq!(shimmed.stderr, bare.stderr, "{order}");
        let report = sim.report();
        assert_eq!(report["devices"][0]["alloc_count"], 6, "{order}: {report:#}");
    });
}

#[test]
fn jemalloc_before_and_after() {
    with_allocator("libjemalloc.so.2", "libjemalloc2");
}

#[test]
fn tcmalloc_before_and_after() {
    with_allocator("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4");
}

#[test]
fn mimalloc_before_and_after() {
    with_allocator("libmimalloc.so.2", "libmimalloc2.0");
}

/// An interposer of dlsym that calls the next one as a function, or jumps to it: both get their calls, none is lost,
/// and what is looked up in the driver is a hook.
#[test]
fn another_interposer_of_dlsym() {
    let program = cc::program(&format!("{PROGRAMS}/opened.c"), &[]);
    for (style, versioned) in [("wrapper", false), ("wrapper", true), ("jump", false), ("jump", true)] {
        let mut arguments = vec!["-O2", "-Wl,-soname,libother.so"];
        if style == "jump" {
            arguments.push("-DJUMP");
        }
        if versioned {
            arguments.push("-DVERSIONED");
        }
        let other = cc::library(&format!("{PROGRAMS}/other_dlsym.c"), "libother.so", &arguments);
        let shim = artefacts::shim();
        for list in [[&shim, &other], [&other, &shim]] {
            let sim = Sim::new();
            let list = list.map(|path| path.display().to_string()).join(":");
            let mut command = sim.shimmed(&program);
            let out = run(command.args(["libcuda.so.1", "local"]).env("LD_PRELOAD", &list)).succeeded();
            let told = format!("{style} {versioned} {list}: {}", out.told());
            assert_eq!(out.stdout, "allocated 0 in libcuwarden.so\n", "{told}");
            assert!(out.stderr.contains("other saw "), "{told}");
            assert!(!out.stderr.contains("other saw 0 "), "{told}");
            assert_eq!(sim.report()["devices"][0]["live_bytes"], 1 << 20, "{told}");
        }
    }
}

/// An interposer of the driver's function that calls the next one: what it passes on is counted once in either order.
#[test]
fn another_interposer_of_the_same_function() {
    let libcuda = Sim::new().libraries().join("libcuda.so.1").display().to_string();
    let program = cc::program(&format!("{PROGRAMS}/linked.c"), &[&libcuda]);
    let other =
        cc::library(&format!("{PROGRAMS}/other_alloc.c"), "libother.so", &["-Wl,-soname,libother.so"]);
    in_both_orders(&program, &[&other], |order, sim, bare, shimmed| {
        assert_eq!(bare.stdout, shimmed.stdout, "{order}: {}", shimmed.told());
        assert_eq!(bare.stderr, "other saw 5\n", "{}", bare.told());
        let report = sim.report();
        let megabytes = (2 + 4 + 8 + 100) << 20;
        assert_eq!(report["devices"][0]["live_bytes"], megabytes, "{order}: {}{report:#}", shimmed.told());
        assert_eq!(report["devices"][0]["alloc_count"], 5, "{order}: {report:#}");
        if order == "last" {
            assert_eq!(shimmed.stderr, bare.stderr, "{order}");
        }
    });
}

/// A program with AddressSanitizer says so itself where its library is not the first: the order is the user's to
/// set, and in the right one both work.
#[test]
fn address_sanitizer_first() {
    let sim = Sim::new();
    let libcuda = sim.libraries().join("libcuda.so.1").display().to_string();
    let program = cc::program(&format!("{PROGRAMS}/linked.c"), &["-fsanitize=address", &libcuda]);
    let asan = run(std::process::Command::new("cc").arg("-print-file-name=libasan.so")).succeeded();
    let asan = std::fs::canonicalize(asan.stdout.trim()).expect("gcc has its sanitizer's library");
    let list = format!("{}:{}", asan.display(), artefacts::shim().display());
    let mut command = sim.shimmed(&program);
    command.env("ASAN_OPTIONS", "detect_leaks=0:protect_shadow_gap=0").env("LD_PRELOAD", list);
    let out = run(command.env("CUWARDEN_MEMORY_LIMIT", "64m")).succeeded();
    assert!(out.stdout.contains("too much 2\ninfo 0 64\n"), "{}", out.told());
    assert_eq!(out.stderr, "", "{}", out.told());
    assert_eq!(sim.report()["devices"][0]["live_bytes"], 14 << 20);

    let mut command = sim.shimmed(&program);
    let out = run(command.env("ASAN_OPTIONS", "detect_leaks=0:protect_shadow_gap=0"));
    assert!(out.stderr.contains("ASan runtime does not come first"), "{}", out.told());
}
