//! dlsym and dlvsym answer as they do without the shim, whoever asks and however: only a function of the driver that
//! has a hook is another address, and that one is the same for all who would get the same function.
//!
//! Reported of others: HAMi-core#215, #326 (the handle became NULL), vgpu-manager#89, HAMi-core#279 (RTLD_NEXT: bypass,
//! NULL on the second look-up), MangoHud#2012, libpulp#133, DAOS#14932 (look-ups in the caller's scope),
//! VirtualGL#39, plthook#2, ZLUDA#447 (RTLD_DEEPBIND), HAMi-core#174, #175 and apitrace#756, GOTCHA#101, #104 (dlsym at
//! several versions).

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};

use common::cc;
use common::hooked;
use common::process::{Finished, run};
use common::sim::Sim;

const PROGRAMS: &str = "tests/programs/lookups";

/// The libraries that handles.c asks from, and the program.
struct Askers {
    folder: PathBuf,
    program: PathBuf,
}

impl Askers {
    /// `own`: the program and one of its libraries define a function of the driver's name themselves.
    fn build(sim: &Sim, own: bool) -> Self {
        let folder = sim.temp.folder("askers");
        let driver = sim.libraries().join("libcuda.so.1").display().to_string();
        let library = |asker: &str, more: &[&str]| {
            let define = format!("-DASKER={asker}");
            let file = format!("lib{asker}.so");
            let soname = format!("-Wl,-soname,{file}");
            let arguments: Vec<&str> = [define.as_str(), &soname].iter().chain(more).copied().collect();
            let built = cc::library(&format!("{PROGRAMS}/asker.c"), &file, &arguments);
            let path = folder.join(&file);
            std::fs::copy(&built, &path).expect("the folder is ours");
            path.display().to_string()
        };
        let deep = library("deep", &[]);
        library("stranger", &[]);
        library("owner", &["-DWITH_OWN"]);
        library("plugin", &["-Wl,--no-as-needed", &deep, &driver]);
        let linked = library("linked", &[]);
        let mut arguments = vec!["-rdynamic", "-Wl,--no-as-needed", &linked];
        if own {
            arguments.push("-DWITH_OWN");
        }
        Self { program: cc::program(&format!("{PROGRAMS}/handles.c"), &arguments), folder }
    }

    fn ask(&self, sim: &Sim, how: &str) -> (Finished, Finished) {
        let mut libraries = self.folder.clone().into_os_string();
        libraries.push(":");
        libraries.push(sim.libraries());
        let [bare, shimmed] = [sim.bare(&self.program), sim.shimmed(&self.program)].map(|mut command| {
            run(command.arg(&self.folder).arg(how).env("LD_LIBRARY_PATH", &libraries)).succeeded()
        });
        (bare, shimmed)
    }
}

#[track_caller]
fn assert_same(bare: &str, shimmed: &str) {
    let differing: Vec<String> = bare
        .lines()
        .zip(shimmed.lines())
        .filter(|(bare, shimmed)| bare != shimmed)
        .map(|(bare, shimmed)| format!("\nwithout {bare:?}\nwith    {shimmed:?}"))
        .collect();
    let first: String = differing.iter().take(20).map(String::as_str).collect();
    assert!(differing.is_empty(), "{} answers differ, the first of them: {first}", differing.len());
    assert_eq!(bare.lines().count(), shimmed.lines().count());
}

#[track_caller]
fn answers_are_the_same(how: &str, own: bool) -> (Finished, Finished) {
    let sim = Sim::new();
    let (bare, shimmed) = Askers::build(&sim, own).ask(&sim, how);
    for wrong in ["ANOTHER", "ERROR LEFT"] {
        assert!(!bare.stdout.contains(wrong), "{}", bare.told());
    }
    assert_same(&bare.stdout, &shimmed.stdout);
    (bare, shimmed)
}

/// How many answers are functions of the driver.
fn of_the_driver(out: &Finished) -> usize {
    out.lines().iter().filter(|line| line.contains("\tdriver's\t")).count()
}

#[test]
fn without_cuda_nothing_is_found_and_the_errors_are_the_loader_s() {
    let (bare, _) = answers_are_the_same("none", false);
    assert_eq!(of_the_driver(&bare), 0, "{}", bare.told());
    assert!(bare.stdout.contains("program\tDEFAULT\tcuInit\t-\tNULL"), "{}", bare.told());
    assert!(bare.stdout.contains("undefined symbol: cuInit"), "{}", bare.told());
}

#[test]
fn a_driver_that_only_a_plugin_sees() {
    let (bare, _) = answers_are_the_same("local", false);
    // Whoever is loaded with the plugin sees the driver, the program does not.
    assert!(bare.stdout.contains("\ndeep\tDEFAULT\tcuInit\t-\tdriver's"), "{}", bare.told());
    assert!(bare.stdout.contains("\ndeep\tNEXT\tcuInit\t-\tdriver's"), "{}", bare.told());
    assert!(bare.stdout.contains("program\tDEFAULT\tcuInit\t-\tNULL"), "{}", bare.told());
}

#[test]
fn a_driver_in_global_scope() {
    let (bare, _) = answers_are_the_same("global", false);
    assert!(bare.stdout.contains("program\tDEFAULT\tcuInit\t-\tdriver's"), "{}", bare.told());
    assert!(of_the_driver(&bare) > 100, "{}", bare.told());
}

/// VirtualGL#39, plthook#2, ZLUDA#447: a library with deep binding prefers its own libraries to preloaded ones, libc
/// among them. Its look-ups go past the shim, which must not disturb them, or those of others.
#[test]
fn a_driver_in_a_library_with_deep_binding() {
    let sim = Sim::new();
    let (bare, shimmed) = Askers::build(&sim, false).ask(&sim, "deepbind");
    assert!(bare.stdout.contains("\nplugin\tDEFAULT\tcuInit\t-\tdriver's"), "{}", bare.told());
    assert_same(&bare.stdout, &past_the_shim(&shimmed.stdout));
}

/// The driver's own functions, where deep binding leads to them, as the same answer as the hooks.
fn past_the_shim(answers: &str) -> String {
    let line = |line: &str| {
        let deep = ["plugin\t", "deep\t", "owner\t"].iter().any(|caller| line.starts_with(caller));
        match line.split_once("\tlibcuda.so.1\t") {
            Some((question, _)) if deep => format!("{question}\tdriver's\t-\n"),
            _ => format!("{line}\n"),
        }
    };
    answers.lines().map(line).collect()
}

/// A program that brings functions of the driver's names (stubs that load the driver later) gets its own.
#[test]
fn a_program_with_functions_of_its_own_by_these_names() {
    for how in ["none", "local", "global"] {
        let (bare, shimmed) = answers_are_the_same(how, true);
        let own = "program\tDEFAULT\tcuMemAlloc_v2\t-\thandles\t";
        assert!(bare.stdout.contains(own), "{how}: {}", bare.told());
        assert!(shimmed.stdout.contains(own), "{how}: {}", shimmed.told());
    }
}

#[test]
fn dlsym_asked_for_itself_finds_the_hooks() {
    let sim = Sim::new();
    let program = cc::program(&format!("{PROGRAMS}/own_loader.c"), &[]);
    let [bare, shimmed] =
        [sim.bare(&program), sim.shimmed(&program)].map(|mut command| run(&mut command).succeeded());
    assert_same(&bare.stdout, &shimmed.stdout);
    assert!(!bare.stdout.contains("ANOTHER"), "{}", bare.told());
    assert!(bare.stdout.contains("dlvsym, dlsym@GLIBC_2.2.5: the same"), "{}", bare.told());
    // The same as what dlsym itself gives is worth something only where that is the hook.
    assert!(shimmed.stderr.trim_end().ends_with("libcuwarden.so"), "{}", shimmed.told());
}

/// The names that have a hook, all of them: an address in the shim, from every kind of handle.
#[test]
fn every_hooked_name_gives_an_address_in_the_shim() {
    let sim = Sim::new();
    let program = cc::program(&format!("{PROGRAMS}/every_name.c"), &["-rdynamic"]);
    let list = sim.temp.join("names");
    let names: Vec<&str> = hooked::names().collect();
    std::fs::write(&list, names.join("\n")).expect("the folder is ours");
    let bare = run(sim.bare(&program).arg(&list).arg("libcuda.so.1")).succeeded();
    let shimmed = run(sim.shimmed(&program).arg(&list).arg("libcuwarden.so")).succeeded();
    assert_eq!(bare.stdout, shimmed.stdout);
    let number = shimmed.stdout.strip_suffix(" names\n").and_then(|number| number.parse().ok());
    // The simulated driver lacks a few at most.
    assert!(number.is_some_and(|number: usize| number + 4 > names.len()), "{}", shimmed.told());
}

/// An old driver lacks some of the functions (nomad#5535, HAMi#27): nothing of it shows, not even in dlerror, which
/// most programs ask after a look-up instead of comparing the answer with NULL.
#[test]
fn functions_that_the_driver_lacks_leave_no_error_behind() {
    let sim = old_driver();
    let program = cc::program(&format!("{PROGRAMS}/old_driver_client.c"), &[]);
    let [bare, shimmed] =
        [sim.bare(&program), sim.shimmed(&program)].map(|mut command| run(&mut command).succeeded());
    assert_eq!(bare.stdout, shimmed.stdout, "{}\n{}", bare.told(), shimmed.told());
    assert!(bare.stdout.contains("cuInit found, no error"), "{}", bare.told());
    assert!(bare.stdout.contains("cuMemAllocAsync missing"), "{}", bare.told());
}

fn old_driver() -> Sim {
    let driver =
        cc::library(&format!("{PROGRAMS}/old_driver.c"), "libcuda.so.1", &["-Wl,-soname,libcuda.so.1"]);
    Sim::over(driver.parent().unwrap_or(Path::new("/")))
}

/// memray#212, pytorch#30450: a private library is found by the RUNPATH or RPATH of the library that opens it.
#[test]
fn a_private_library_is_found_by_its_opener_s_runpath() {
    let sim = Sim::new();
    let private = sim.temp.folder("private");
    let built = cc::library(&format!("{PROGRAMS}/asker.c"), "libprivate.so", &["-DASKER=private"]);
    std::fs::copy(built, private.join("libprivate.so")).expect("the folder is ours");
    for tags in ["--enable-new-dtags", "--disable-new-dtags"] {
        let source = format!("{PROGRAMS}/opener.c");
        let rpath = format!("-Wl,{tags},-rpath,{}", private.display());
        let opener = compile_here(&sim, &source, &format!("libopener{tags}.so"), &[&rpath]);
        let program = cc::program(&format!("{PROGRAMS}/open.c"), &[]);
        for mut command in [sim.bare(&program), sim.shimmed(&program)] {
            let out = run(command.arg(&opener)).succeeded();
            assert_eq!(out.stdout, "the program: no\nthe library: yes\n", "{tags}: {}", out.told());
        }
    }
}

/// Not kept: the folder that its arguments name is new each time.
fn compile_here(sim: &Sim, source: &str, file: &str, arguments: &[&str]) -> PathBuf {
    let path = sim.temp.join(file);
    let source = common::artefacts::root().join(source);
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&path).arg(source).args(arguments);
    run(&mut cc).succeeded();
    path
}
