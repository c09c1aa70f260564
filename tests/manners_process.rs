//! The shim as a guest: what a process can see of itself is the same with it.
//!
//! Reported of others: HAMi-core (umask 000, signal handlers replaced, a shared file for every process that looks
//! curl_easy_init up), vgpu-manager (a constructor at load crashed GLX, EGL and Vulkan), java-profiler#420 and
//! dd-trace-py#17998 (signal handlers), koordinator#2414 (lines on stdout), sglang#36533 (what the library needs),
//! cuda-python#1010, #1011 (dlclose of the hooked library, then a call), ZLUDA#404, cccl#7063, pytorch#97142 (teardown).

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::process::{Finished, run};
use common::sim::{Sim, clean};
use common::{artefacts, cc};

const PROGRAMS: &str = "tests/programs/manners";

fn program(name: &str, arguments: &[&str]) -> PathBuf {
    let libcuda = Sim::new().libraries().join("libcuda.so.1").display().to_string();
    let mut all = arguments.to_vec();
    all.push(&libcuda);
    cc::program(&format!("{PROGRAMS}/{name}.c"), &all)
}

fn facts(out: &Finished) -> Vec<&str> {
    out.lines().into_iter().filter(|line| !line.contains("environment CUWARDEN_")).collect()
}

/// umask, folder, locale, signals, masks, environment, descriptors, threads, mappings. With a context there is one thread
/// more, which follows the memory, unless nobody is to look.
#[test]
fn a_process_sees_the_same_of_itself() {
    let program = program("state", &[]);
    for (use_of, drift) in [("nothing", ""), ("cuda", ""), ("cuda", "0")] {
        let sim = Sim::new();
        let [bare, mut shimmed] = [sim.bare(&program), sim.shimmed(&program)].map(|mut command| {
            command.arg(use_of).current_dir(&*sim.temp).env("CUWARDEN_SIM_DIR", sim.temp.join("gpu"));
            run(command.env("CUWARDEN_DRIFT", drift)).succeeded()
        });
        if (use_of, drift) == ("cuda", "") {
            let threads = shimmed.lines().into_iter().rfind(|line| line.starts_with("used threads:"));
            let threads = threads.expect("the program says which threads there are").to_owned();
            assert_eq!(threads.split(' ').count(), 4, "{threads}");
            shimmed.stdout = shimmed.stdout.replace(&threads, "used threads: state");
        }
        assert_eq!(facts(&bare), facts(&shimmed), "{use_of}");
        assert_eq!(shimmed.stderr, "", "{use_of}");
        assert!(shimmed.stdout.contains("before threads: state\n"), "{}", shimmed.told());
        assert!(shimmed.stdout.contains("before umask 137"), "{}", shimmed.told());
    }
}

/// A container's other processes: no file, no output, the same exit, whatever they are.
#[test]
fn a_process_without_cuda_leaves_no_trace() {
    let sim = Sim::new();
    let script = "import ctypes, sys; c = ctypes.CDLL(None); print(c.strlen(b'four'))";
    let shell = "umask 027; cd /; echo in; echo err >&2; (exit 3)";
    for (program, arguments) in [
        ("/bin/true", &[][..]),
        ("/bin/false", &[]),
        ("/bin/sh", &["-c", shell]),
        ("/bin/ls", &["/"]),
        ("python3", &["-c", script]),
        ("perl", &["-e", "print 'from perl'; exit 5"]),
    ] {
        let [bare, shimmed] =
            [sim.bare(program), sim.shimmed(program)].map(|mut command| run(command.args(arguments)));
        assert_eq!(bare.status, shimmed.status, "{}", shimmed.told());
        assert_eq!(bare.stdout, shimmed.stdout, "{}", shimmed.told());
        assert_eq!(bare.stderr, shimmed.stderr, "{}", shimmed.told());
    }
    for folder in ["shared", "reports"] {
        let left = std::fs::read_dir(sim.temp.join(folder)).expect("the folder is ours").count();
        assert_eq!(left, 0, "something was left in {folder}");
    }
    assert!(!sim.temp.join("events.jsonl").exists());
}

/// Neither its constructor nor a look-up of names that begin with "cu" makes a file: HAMi-core does at curl_easy_init.
#[test]
fn names_that_begin_with_cu_leave_no_trace() {
    let sim = Sim::new();
    let program = cc::program("tests/programs/lookups/others.c", &[]);
    run(sim.shimmed(&program).env("CUWARDEN_DIR", "/proc/no/such/folder")).succeeded();
    run(&mut sim.shimmed(&program)).succeeded();
    assert_eq!(std::fs::read_dir(sim.shared_dir()).expect("the folder is ours").count(), 0);
}

/// koordinator#2414: a program's output is its own, also where events go to stderr, and where that is closed.
#[test]
fn stdout_is_never_written_to() {
    let program = program("closed", &[]);
    for closed in ["none", "stderr", "all", "descriptors"] {
        let sim = Sim::new();
        let output = sim.temp.join("output");
        let mut command = sim.shimmed(&program);
        command.arg(closed).arg(&output).env("CUWARDEN_MEMORY_LIMIT", "1m").env_remove("CUWARDEN_LOG_FILE");
        let out = run(&mut command).succeeded();
        assert_eq!(out.stdout, "", "{closed}: {}", out.told());
        let text = std::fs::read_to_string(&output).expect("the program wrote it");
        assert_eq!(text, "denied 2\n", "{closed}: {}", out.told());
        if closed == "none" {
            assert!(out.stderr.contains("quota_denied"), "{}", out.told());
        }
        assert_eq!(sim.report()["devices"][0]["denied_count"], 1, "{closed}");
    }
}

/// cuda-python#1010, #1011: libraries that are closed and opened again, with calls through what was kept.
#[test]
fn libraries_that_are_closed_and_opened_again() {
    let sim = Sim::new();
    let program = cc::program(&format!("{PROGRAMS}/reopen.c"), &[]);
    let mut command = sim.shimmed(&program);
    let out = run(command.arg("libcudart.so.12")).succeeded();
    let allocated = "allocated 0\n".repeat(5);
    assert_eq!(out.stdout, format!("{allocated}runtime 0\nruntime 0\nruntime 0\n"), "{}", out.told());
    assert_eq!(sim.report()["devices"][0]["alloc_count"], 8);
}

/// The loader refuses what is no library of its kind, says so on stderr, and the program runs: what a user sees when
/// the list names a text file or a folder (proxychains-ng#36, tensor-fusion#412, HAMi#777). Ours is never the cause.
#[test]
fn the_loader_has_nothing_to_say_about_the_shim() {
    let out = run(clean("/bin/true").env("LD_PRELOAD", artefacts::shim())).succeeded();
    assert_eq!(out.stderr, "");
    // As early as it can be: everything bound at start, and every library initialised with the loader's own checks.
    let out =
        run(clean("/bin/true").env("LD_PRELOAD", artefacts::shim()).env("LD_BIND_NOW", "1")).succeeded();
    assert_eq!(out.stderr, "");
}

/// A program that uses the runtime ends while its exit handlers free, in C++ destructors and with an exception in
/// flight: nothing is lost, and what the handlers freed is no leak.
#[test]
fn frees_in_exit_handlers_are_no_leaks() {
    let sim = Sim::new();
    let source = artefacts::root().join(format!("{PROGRAMS}/teardown.cpp"));
    let built = sim.temp.join("teardown");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-o"]).arg(&built).arg(source);
    run(compiler.arg(sim.libraries().join("libcuda.so.1"))).succeeded();
    let out = run(&mut sim.shimmed(&built)).succeeded();
    assert_eq!(
        out.stdout,
        "caught in an exit handler\nfreed 0 by atexit\nfreed 0 by a destructor\n",
        "{}",
        out.told()
    );
    let report = sim.report();
    assert_eq!(report["devices"][0]["live_bytes"], 0, "{report:#}");
    assert_eq!(report["devices"][0]["alloc_count"], 2, "{report:#}");
}

/// A debugger's and a tracer's programs start as they do without us.
#[test]
fn a_program_under_its_own_loader() {
    // Called by name, the loader preloads as well.
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    let out =
        run(clean(loader).arg("/bin/echo").arg("hello").env("LD_PRELOAD", artefacts::shim())).succeeded();
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("hello\n", ""));
}
