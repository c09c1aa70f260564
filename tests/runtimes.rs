//! Several CUDA runtimes in one process: each caller, and each pointer that was looked up, reaches the runtime that it
//! reaches without the shim, and the report says which one that was.
//!
//! Stand-ins for libcudart answer with a number that tells which library it was and what it was given; the simulator's
//! three runtimes allocate.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::process::{Finished, run};
use common::sim::Sim;
use common::{cc, clients};

const PROGRAMS: &str = "tests/programs/runtimes";

/// A folder of stand-ins and of the libraries that are linked with them.
struct Stage {
    sim: Sim,
    folder: PathBuf,
}

impl Stage {
    fn new() -> Stage {
        let sim = Sim::new();
        let folder = sim.temp.folder("stage");
        Stage { sim, folder }
    }

    /// A stand-in of a major version, by its own name: `place/file`, with the soname `soname`.
    fn standin(&self, place: &str, soname: &str, major: u32, instance: u32) -> PathBuf {
        let node = if major == 11 { "libcudart.so.11.0".to_owned() } else { format!("libcudart.so.{major}") };
        let map = self.folder.join(format!("{node}.map"));
        fs::write(&map, format!("{node} {{ global: cuda*; local: *; }};\n")).expect("the folder is ours");
        let script = format!("-Wl,--version-script={}", map.display());
        self.library("standin.c", place, soname, &[&era(major), &format!("-DINSTANCE={instance}"), &script])
    }

    /// A library that is linked with a stand-in and finds it by its own path.
    fn caller(&self, name: &str, runtime: &Path, major: u32) -> PathBuf {
        let rpath = format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            runtime.parent().expect("it has a folder").display()
        );
        let define = format!("-DCALLER={name}");
        let runtime = runtime.display().to_string();
        self.library("caller.c", "", &format!("lib{name}.so"), &[&era(major), &define, &runtime, &rpath])
    }

    fn library(&self, source: &str, place: &str, soname: &str, arguments: &[&str]) -> PathBuf {
        let folder = self.folder.join(place);
        fs::create_dir_all(&folder).expect("the folder is ours");
        let path = folder.join(soname);
        // Not by the cache of tests: what is linked has the path of this test's folder.
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC", "-I", PROGRAMS, "-o"]).arg(&path);
        command.arg(format!("{PROGRAMS}/{source}")).arg(format!("-Wl,-soname,{soname}")).args(arguments);
        run(command.current_dir(common::artefacts::root())).succeeded();
        path
    }

    /// The same run without the shim and with it: what the program prints must be the same.
    #[track_caller]
    fn same(&self, arguments: &[&str]) -> (Finished, Finished) {
        let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
        let [bare, shimmed] = [self.sim.bare(&program), self.sim.shimmed(&program)]
            .map(|mut command| run(command.args(arguments)).succeeded());
        assert_eq!(bare.stdout, shimmed.stdout, "{}", shimmed.told());
        (bare, shimmed)
    }

    /// Which library each reference to a runtime's function was bound to, by the loader's own account.
    fn bindings(&self, arguments: &[&str]) -> Vec<String> {
        let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
        let out = run(self.sim.shimmed(&program).args(arguments).env("LD_DEBUG", "bindings")).succeeded();
        let lines = out.stderr.lines().filter(|line| line.contains("symbol `cuda"));
        lines.filter_map(|line| Some(line.split_once("binding file ")?.1.to_owned())).collect()
    }
}

fn era(major: u32) -> String {
    match major {
        11 => "-DBEFORE_12",
        12 => "-DAT_12",
        _ => "-DFROM_13",
    }
    .to_owned()
}

fn named(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

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
