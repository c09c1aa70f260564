//! What is said of the runtimes of a process: a call that failed, a version without entries, another version than was asked
//! for.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/runtimes/stage.rs"]
mod stage;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::cc;
use common::process::run;
use stage::{PROGRAMS, Stage, named};

/// The program knows the runtime's call, the quota the driver's: both are named.
#[test]
fn a_refusal_names_the_call_of_the_program() {
    let stage = Stage::new();
    let runtime = stage.sim.libraries().join("libcudart.so.12").display().to_string();
    let path =
        stage.library("allocates.c", "", "libtwelve.so", &["-DCALLER=twelve", "-DSIZE=4194304", &runtime]);
    let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
    let mut command = stage.sim.shimmed(&program);
    command.args(["open", "local", &named("twelve", &path)]).env("CUWARDEN_MEMORY_LIMIT", "1MiB");
    run(&mut command).succeeded();
    let denied = stage.sim.events_named("quota_denied");
    let first = denied.iter().find(|event| event["api"] == "cuMemAlloc_v2").expect("cudaMalloc was refused");
    assert_eq!(first["runtime_api"], "cudaMalloc", "{first:#}");
    let message = first["message"].as_str().expect("a text");
    assert!(
        message.starts_with("cudaMalloc (cuMemAlloc_v2) of 4.00 MiB was refused on device 0"),
        "{message}"
    );
}

/// The driver is not there at all, so none of its functions can fail: the runtime's own call says it.
#[test]
fn a_runtime_without_a_driver() {
    let stage = Stage::new();
    let alone = stage.sim.temp.folder("alone");
    fs::copy(stage.sim.libraries().join("libcudart.so.12"), alone.join("libcudart.so.12"))
        .expect("both are ours");
    let runtime = alone.join("libcudart.so.12").display().to_string();
    let path =
        stage.library("allocates.c", "", "libtwelve.so", &["-DCALLER=twelve", "-DSIZE=4096", &runtime]);
    let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
    let mut command = stage.sim.shimmed(&program);
    command.args(["open", "local", &named("twelve", &path)]).env("LD_LIBRARY_PATH", &alone);
    run(&mut command).succeeded();
    let failures = stage.sim.events_named("init_failure");
    let first = failures.first().unwrap_or_else(|| panic!("no event: {:?}", stage.sim.events()));
    assert_eq!(first["api"], "cudaMalloc", "{first:#}");
    assert_eq!(first["code"], 35, "{first:#}");
    assert_eq!(first["name"], "cudaErrorInsufficientDriver", "{first:#}");
    assert_eq!(first["causes"][0]["id"], "no_driver_library", "{first:#}");
    assert!(
        first["stack"][0]["module"].as_str().is_some_and(|module| module.ends_with("libtwelve.so")),
        "{first:#}"
    );
}

/// A host that looks functions up in the runtime that it is told of, and then starts CUDA.
fn look_and_start(stage: &Stage, program: &Path, paths: &[&Path]) -> Vec<serde_json::Value> {
    let mut command = stage.sim.shimmed(program);
    run(command.arg("start").args(paths)).succeeded();
    stage.sim.events()
}

fn of_kind<'a>(events: &'a [serde_json::Value], kind: &str) -> Vec<&'a serde_json::Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

#[test]
fn a_runtime_without_entries_is_named_once() {
    let stage = Stage::new();
    let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
    let [old, listed] = [("libcudart.so.10", 10), ("libcudart.so.12", 12)]
        .map(|(name, major)| stage.standin("cuda", name, major, 1));
    let events = look_and_start(&stage, &program, &[&old, &listed]);
    let unlisted = of_kind(&events, "runtime_unlisted");
    assert_eq!(unlisted.len(), 1, "{events:#?}");
    assert_eq!(unlisted[0]["file"], old.display().to_string());
    assert_eq!(unlisted[0]["node"], "10");
    assert!(of_kind(&events, "symbol_conflict").is_empty(), "{events:#?}");
}

/// The 11.8 program that runs on 12's libcudart, by a link and by LD_LIBRARY_PATH.
#[test]
fn a_runtime_of_another_version_than_its_name_says() {
    let stage = Stage::new();
    let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
    let real = stage.standin("cuda-12", "libcudart.so.12", 12, 1);
    let link = stage.folder.join("libcudart.so.11.0");
    std::os::unix::fs::symlink(&real, &link).expect("the folder is ours");
    let events = look_and_start(&stage, &program, &[&link]);
    let [conflict] = of_kind(&events, "symbol_conflict")[..] else { panic!("one: {events:#?}") };
    assert_eq!((&conflict["built_for"], &conflict["major"]), (&11.into(), &12.into()), "{conflict:#}");
    assert_eq!(conflict["file"], link.display().to_string());
    assert_eq!(conflict["target"], real.display().to_string());
    assert!(
        conflict["because"].as_str().is_some_and(|because| because.contains("is a link to")),
        "{conflict:#}"
    );
}

#[test]
fn a_program_that_is_given_the_runtime_of_another_version() {
    let stage = Stage::new();
    let eleven = stage.standin("cuda-11", "libcudart.so.11.0", 11, 1);
    let twelve = stage.standin("cuda-12", "libcudart.so.12", 12, 2);
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", stage.folder.join("cuda-11").display());
    // It needs 11's, and looks its functions up in what `libcudart.so` is here.
    let program = stage.folder.join("host");
    let mut command = Command::new("cc");
    command.args(["-O1", "-I", PROGRAMS, "-o"]).arg(&program).arg(format!("{PROGRAMS}/host.c"));
    command.args(["-Wl,--no-as-needed"]).arg(&eleven).args([&rpath, "-pthread", "-ldl"]);
    run(command.current_dir(common::artefacts::root())).succeeded();
    let any = stage.folder.join("cuda-12/libcudart.so");
    std::os::unix::fs::symlink(&twelve, &any).expect("the folder is ours");
    let mut command = stage.sim.shimmed(&program);
    let mut path = stage.folder.join("cuda-12").into_os_string();
    path.push(":");
    path.push(stage.sim.libraries());
    run(command.args(["start", "libcudart.so"]).env("LD_LIBRARY_PATH", path)).succeeded();
    let events = stage.sim.events();
    let [conflict] = of_kind(&events, "symbol_conflict")[..] else { panic!("one: {events:#?}") };
    assert_eq!((&conflict["built_for"], &conflict["major"]), (&11.into(), &12.into()), "{conflict:#}");
    assert_eq!(conflict["caller"], program.display().to_string());
    assert_eq!(conflict["right_file"], eleven.display().to_string());
    assert!(
        conflict["because"].as_str().is_some_and(|because| because.starts_with("LD_LIBRARY_PATH has ")),
        "{conflict:#}"
    );
    // The right one is no conflict.
    let other = Stage::new();
    let mut command = other.sim.shimmed(&program);
    run(command.args(["start"]).arg(&eleven)).succeeded();
    assert!(of_kind(&other.sim.events(), "symbol_conflict").is_empty());
}

/// `cudnnCreate_v8` in a libcudnn of 9, and a version of the loader's that is not there.
#[test]
fn a_function_that_is_there_in_another_version() {
    let stage = Stage::new();
    let source = stage.folder.join("cudnn.c");
    fs::write(
        &source,
        "int cudnnCreate, cudnnCreate_v9; void cudnnCreate_v7(void) {} void cudnnGet(void) {}\n",
    )
    .expect("the folder is ours");
    let map = stage.folder.join("cudnn.map");
    fs::write(&map, "libcudnn.so.9 { global: cudnn*; local: *; };\n").expect("the folder is ours");
    let library = stage.folder.join("libcudnn.so.9");
    let script = format!("-Wl,--version-script={}", map.display());
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg(script))
        .succeeded();
    let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
    let names = [
        "cudnnCreate_v8",
        "cudnnCreate_v8",
        "cudnnCreate_v9",
        "cudnnNothing_v2",
        "cudnnCreate8",
        "cudnnGet@libcudnn.so.8",
        "cudnnGet@libcudnn.so.9",
        "cudnnNothing@libcudnn.so.9",
    ];
    let [bare, shimmed] = [stage.sim.bare(&program), stage.sim.shimmed(&program)].map(|mut command| {
        run(command.arg("missing").arg(&library).args(names).env("CUWARDEN_LOG", "info")).succeeded()
    });
    assert_eq!(bare.stdout, shimmed.stdout, "the answers and the loader's texts");
    let events = stage.sim.events();
    let said: Vec<_> = of_kind(&events, "symbol_missing")
        .iter()
        .map(|event| (event["function"].as_str().expect("a text"), event["found"].as_str().expect("a text")))
        .collect();
    assert_eq!(
        said,
        [
            ("cudnnCreate_v8", "cudnnCreate, cudnnCreate_v7, cudnnCreate_v9"),
            ("cudnnGet@libcudnn.so.8", "libcudnn.so.9")
        ],
        "{events:#?}"
    );
}
