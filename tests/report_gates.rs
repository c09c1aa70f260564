//! Suppressions, gates and folding, as a user sees them.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;
mod common;
#[path = "cli_support/simulated.rs"]
mod simulated;

use std::path::Path;

use cli_support::Temp;
use common::process::{Finished as Output, run};
use cuwarden::report::Report;
use cuwarden::report::model::{Frame, Leak, SCHEMA};
use cuwarden::report::{Termination, model::Device};
use serde_json::Value;
use simulated::{cuwarden, program};

fn frame(function: &str, module: &str) -> Frame {
    Frame {
        module: Some(module.to_owned()),
        offset: 0x1000,
        function: Some(function.to_owned()),
        file: Some("src/train.cc".to_owned()),
        line: Some(7),
        ..Frame::default()
    }
}

fn leak(bytes: u64, stack: &[(&str, &str)]) -> Leak {
    Leak {
        api: "cudaMalloc".to_owned(),
        driver_api: "cuMemAlloc_v2".to_owned(),
        count: 2,
        bytes,
        stack: stack.iter().map(|(function, module)| frame(function, module)).collect(),
        ..Leak::default()
    }
}

const APP: &str = "/opt/app/trainer";
const ALLOCATOR: &str = "c10::cuda::CUDACachingAllocator::Native::malloc(void**, int, unsigned long)";

/// 6 MiB by NCCL, 3 MiB and 2 MiB by PyTorch through its allocator, and 1 MiB by the program.
fn sample() -> Report {
    let torch = "/x/libtorch_cuda.so";
    Report {
        schema: SCHEMA.to_owned(),
        pid: 42,
        exe: APP.to_owned(),
        termination: Termination::Exit,
        devices: vec![Device::default()],
        leaks: vec![
            leak(
                6 << 20,
                &[("cudaMalloc", "/x/libcudart.so.12"), ("ncclInit(int)", "/x/libnccl.so.2"), ("main", APP)],
            ),
            leak(3 << 20, &[(ALLOCATOR, "/x/libc10_cuda.so"), ("at::empty(long)", torch), ("main", APP)]),
            leak(
                2 << 20,
                &[
                    ("c10::x", "/x/libc10_cuda.so"),
                    (ALLOCATOR, "/x/libc10_cuda.so"),
                    ("at::empty(long)", torch),
                    ("main", APP),
                ],
            ),
            leak(1 << 20, &[("load_weights", APP), ("main", APP)]),
        ],
        ..Report::default()
    }
}

fn written(temp: &Temp, report: &Report) {
    temp.write("report.json", serde_json::to_vec(report).unwrap());
}

#[track_caller]
fn report(temp: &Temp, arguments: &[&str]) -> Output {
    run(&mut cuwarden(temp, &[&["report", "report.json"], arguments].concat()))
}

fn json(out: &Output) -> Value {
    serde_json::from_str(&out.stdout).unwrap()
}

#[test]
fn leaks_are_summed_by_library() {
    let temp = Temp::new("gates-library");
    written(&temp, &sample());
    let out = report(&temp, &[]).succeeded();
    let sums = "Not freed, by library\n   6.00 MiB  2 allocations  NCCL\n   5.00 MiB  4 allocations  PyTorch\n   \
                1.00 MiB  2 allocations  application\n";
    assert!(out.stdout.contains(sums), "{}", out.stdout);
    assert!(out.stdout.contains("NCCL asked for it."), "{}", out.stdout);

    let value = json(&report(&temp, &["--format", "json"]).succeeded());
    let expected = serde_json::json!([
        {"name": "NCCL", "count": 2, "bytes": 6 << 20, "stacks": 1},
        {"name": "PyTorch", "count": 4, "bytes": 5 << 20, "stacks": 2},
        {"name": "application", "count": 2, "bytes": 1 << 20, "stacks": 1},
    ]);
    assert_eq!(value["libraries"], expected);
    assert_eq!(value["leaks"][0]["library"], "NCCL");
    // What was there before is as it was, and the whole is read again as a report.
    let mut again: Report = serde_json::from_value(value).unwrap();
    again.leaks.iter_mut().for_each(|leak| leak.stack.iter_mut().for_each(|frame| frame.problem = None));
    assert_eq!(again, sample());
}

#[test]
fn suppressed_leaks_are_shown_apart_and_do_not_count() {
    let temp = Temp::new("gates-suppressed");
    written(&temp, &sample());
    temp.write("known.txt", "# known\nmodule: libnccl*\n\nfunction:at::empty\n");
    temp.write("more.txt", "function:load_weights\napi:cudaMallocAsync\n");
    let gate = |files: &[&str], more: &[&str]| {
        let files = files.iter().flat_map(|file| ["--suppressions", file]);
        let arguments: Vec<&str> = files.chain(["--fail-on-leak"]).chain(more.iter().copied()).collect();
        report(&temp, &arguments)
    };
    gate(&[], &[]).exited(1);
    let out = gate(&["known.txt"], &[]).exited(1);
    assert!(
        out.stdout.starts_with("Leak: 1.00 MiB not freed, in 2 allocations from 1 call stack\n"),
        "{}",
        out.stdout
    );
    let apart = "Suppressed: 11.0 MiB in 6 allocations\n   6.00 MiB  2 allocations  module: libnccl*\n   \
                 5.00 MiB  4 allocations  function:at::empty\n";
    assert!(out.stdout.contains(apart), "{}", out.stdout);
    assert!(out.stderr.contains("1.00 MiB leaked in 2 allocations"), "{}", out.stderr);

    let out = gate(&["known.txt", "more.txt"], &[]).succeeded();
    assert!(
        out.stdout.starts_with("No leak but for 12.0 MiB in 8 suppressed allocations\n"),
        "{}",
        out.stdout
    );
    // A pattern that is for nothing hides nothing, but somebody believes that it does.
    assert_eq!(out.stderr, "cuwarden: more.txt:2: no leak fits \"api:cudaMallocAsync\"\n");

    let value = json(&gate(&["known.txt"], &["--format", "json"]).exited(1));
    assert_eq!(value["leaks"][0]["suppressed_by"], "module: libnccl*");
    assert!(value["leaks"][3].get("suppressed_by").is_none());
    assert_eq!(value["libraries"][0]["name"], "application");
    assert_eq!(value["suppressed"][1]["bytes"], 5 << 20);
}

#[test]
fn a_line_that_is_no_pattern_is_named() {
    let temp = Temp::new("gates-bad-lines");
    written(&temp, &sample());
    for (text, words) in [
        ("api:x\nleak:foo\n", "known.txt:2: \"leak\" is no kind of pattern. Allowed: function:GLOB"),
        ("foo", "known.txt:1: \"foo\" has no kind before a colon"),
        ("\n\nmodule:\n", "known.txt:3: nothing follows \"module:\""),
    ] {
        temp.write("known.txt", text);
        let out = report(&temp, &["--suppressions", "known.txt"]).exited(64);
        assert!(out.stderr.contains(words) && out.stdout.is_empty(), "{}", out.stderr);
        // Before anything is run.
        let out = run(&mut cuwarden(&temp, &["run", "--suppressions", "known.txt", "--", "echo", "ran"]))
            .exited(64);
        assert!(out.stderr.contains(words) && out.stdout.is_empty(), "{}", out.stderr);
    }
    let out = report(&temp, &["--suppressions", "nowhere.txt"]).exited(66);
    assert!(out.stderr.contains("nowhere.txt"), "{}", out.stderr);
    report(&temp, &["--suppressions", "."]).exited(66);
}

#[test]
fn how_much_a_report_may_leak() {
    let temp = Temp::new("gates-most");
    written(&temp, &sample());
    for (most, status) in
        [("12MiB", 0), ("11.9MiB", 1), ("count=8", 0), ("count=7", 1), ("1g,count=7", 1), ("1g,count=8", 0)]
    {
        report(&temp, &["--fail-on-leak", "--max-leak", most]).exited(status);
    }
    let out = report(&temp, &["--max-leak", "1g"]).exited(64);
    assert!(out.stderr.contains("--fail-on-leak"), "{}", out.stderr);
    let out = report(&temp, &["--fail-on-leak", "--max-leak", "5%"]).exited(64);
    assert!(out.stderr.contains("16MiB,count=10"), "{}", out.stderr);
    // What is not known in full is not found to be clean.
    written(&temp, &Report { leaks: Vec::new(), lost_records: 3, ..sample() });
    report(&temp, &["--fail-on-leak"]).exited(66);
}

/// CUDA_ERROR_DEINITIALIZED is what a driver answers that is shutting down already.
#[test]
fn what_fails_at_the_very_end_is_no_leak() {
    let temp = Temp::new("gates-late");
    let late = serde_json::json!({"event": "init_failure", "api": "cuCtxCreate_v2", "code": 4, "name": "CUDA_ERROR_DEINITIALIZED"});
    written(&temp, &Report { leaks: Vec::new(), init_failures: vec![late], ..sample() });
    report(&temp, &["--fail-on-leak"]).succeeded();
}

#[test]
fn frames_are_folded_and_what_is_the_same_is_one_entry() {
    let temp = Temp::new("gates-fold");
    written(&temp, &sample());
    let rows = |out: &Output| -> Vec<(u64, String, Vec<String>)> {
        let value = json(out);
        let leaks = value["leaks"].as_array().unwrap();
        let names = |leak: &Value| {
            leak["stack"]
                .as_array()
                .unwrap()
                .iter()
                .map(|f| f["function"].as_str().unwrap().to_owned())
                .collect()
        };
        leaks
            .iter()
            .map(|l| (l["bytes"].as_u64().unwrap(), l["library"].as_str().unwrap().to_owned(), names(l)))
            .collect()
    };
    let out = report(&temp, &["--format", "json", "--fold-allocators"]).succeeded();
    let both = (5 << 20, "PyTorch".to_owned(), vec!["at::empty(long)".to_owned(), "main".to_owned()]);
    assert_eq!(rows(&out)[1], both);
    assert_eq!(rows(&out).len(), 3);
    // Whoever called what is folded is who asked; and what is known by a frame that is folded stays known.
    temp.write("known.txt", "function:c10::x\n");
    let fold = [
        "--fold",
        "module:libtorch*",
        "--fold-allocators",
        "--suppressions",
        "known.txt",
        "--format",
        "json",
    ];
    let out = report(&temp, &fold).succeeded();
    let by_main = |bytes| (bytes, "application".to_owned(), vec!["main".to_owned()]);
    assert_eq!(rows(&out)[1..3], [by_main(3 << 20), by_main(2 << 20)]);
    assert_eq!(json(&out)["leaks"][2]["suppressed_by"], "function:c10::x");
    let out = report(&temp, &["--fold", "api:cudaMalloc"]).exited(64);
    assert!(out.stderr.contains("function and a module"), "{}", out.stderr);
}

#[test]
fn the_top_or_all() {
    let temp = Temp::new("gates-top");
    let stack = |i: u64| leak(1000 - i, &[(Box::leak(format!("function_{i:02}").into_boxed_str()), APP)]);
    written(&temp, &Report { leaks: (0..30).map(stack).collect(), ..sample() });
    let entries = |arguments: &[&str]| {
        report(&temp, arguments)
            .succeeded()
            .stdout
            .lines()
            .filter(|line| line.contains(" by cudaMalloc"))
            .count()
    };
    assert_eq!((entries(&[]), entries(&["--top", "3"]), entries(&["--all"])), (10, 3, 30));
    let out = report(&temp, &["--top", "3"]).succeeded();
    assert!(out.stdout.contains("27 call stacks more, ") && out.stdout.contains("--all"), "{}", out.stdout);
    report(&temp, &["--top", "3", "--all"]).exited(64);
}

#[test]
fn run_fails_for_leaks_where_it_is_asked_to() {
    let temp = Temp::new("gates-run");
    let main = "void *p = keep(4 << 20); if (getenv(\"FREES\")) cudaFree(p);\n\
                if (getenv(\"DIES\")) kill(getpid(), SIGKILL);\nreturn getenv(\"FAILS\") ? 7 : 0;";
    let program = program(&temp, main);
    let program = program.to_str().unwrap();
    temp.write("known.txt", "function:keep\n");
    let of = |options: &[&str], variables: &[&str]| {
        let options = [&["run", "--sim", "--report", "reports"], options, &["--", program]].concat();
        let mut command = cuwarden(&temp, &options);
        variables.iter().for_each(|name| _ = command.env(name, "1"));
        run(&mut command)
    };
    let gate = &["--leak-exitcode", "23"][..];
    of(&[], &[]).succeeded();
    let out = of(gate, &[]).exited(23);
    assert!(out.stderr.contains("--leak-exitcode: 4.00 MiB leaked in 1 allocation"), "{}", out.stderr);
    let out = of(gate, &["FREES"]).succeeded();
    assert_eq!(out.stderr, "");
    // The program's own failure stays.
    of(gate, &["FAILS"]).exited(7);
    of(gate, &["DIES"]).exited(128 + 9);
    for (most, status) in [("4MiB", 0), ("4095k", 23), ("count=1", 0), ("count=0", 23)] {
        of(&["--leak-exitcode", "23", "--max-leak", most], &[]).exited(status);
    }
    let known = ["--leak-exitcode", "23", "--suppressions", "known.txt"];
    assert_eq!(of(&known, &[]).succeeded().stderr, "");
    let out = of(&known, &["FREES"]).succeeded();
    assert_eq!(out.stderr, "cuwarden: known.txt:1: no leak fits \"function:keep\"\n");
    // A gate that saw nothing says so.
    let out = run(&mut cuwarden(&temp, &["run", "--leak-exitcode", "23", "--", "true"])).succeeded();
    assert!(out.stderr.contains("nothing to judge"), "{}", out.stderr);
    for wrong in [&["--leak-exitcode", "0"][..], &["--leak-exitcode", "256"], &["--max-leak", "1g"]] {
        of(wrong, &[]).exited(64);
    }
    // The report that is kept has everything.
    let out = run(&mut cuwarden(&temp, &["report", "reports", "--fail-on-leak"])).exited(1);
    assert!(out.stdout.contains("program.c:"), "{}", out.stdout);
    assert!(Path::new(&temp.join("reports")).is_dir());
}

#[test]
fn files_are_written_by_their_ending() {
    let temp = Temp::new("gates-output");
    written(&temp, &sample());
    let names = ["a.html", "a.json", "a.folded", "a.pb.gz", "a.txt", "b.pprof"];
    let arguments: Vec<&str> = names.iter().flat_map(|name| ["--output", name]).collect();
    let out = report(&temp, &arguments).succeeded();
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""));
    let read = |name: &str| std::fs::read(temp.join(name)).unwrap();
    assert!(read("a.html").starts_with(b"<!DOCTYPE html>"));
    assert_eq!(read("a.json"), report(&temp, &["--format", "json"]).succeeded().stdout.as_bytes());
    assert_eq!(read("a.folded"), report(&temp, &["--format", "folded"]).succeeded().stdout.as_bytes());
    assert_eq!(read("a.txt"), report(&temp, &[]).succeeded().stdout.as_bytes());
    assert!(read("a.pb.gz").starts_with(b"\x1f\x8b") && read("a.pb.gz") == read("b.pprof"));
    report(&temp, &["--format", "html", "-o", "page"]).succeeded();
    assert_eq!(read("page"), read("a.html"));
    // The same again, over files that are there: the same bytes, and nothing unfinished is left.
    let before: Vec<_> = names.iter().map(|name| read(name)).collect();
    report(&temp, &arguments).succeeded();
    assert_eq!(before, names.iter().map(|name| read(name)).collect::<Vec<_>>());
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), names.len() + 2);

    report(&temp, &["--output", "leaks"]).exited(64);
    report(&temp, &["--format", "json", "-o", "a", "-o", "b"]).exited(64);
    report(&temp, &["--output", "no/such/folder.html"]).exited(74);
    let out = report(&temp, &["--format", "text", "--output", "/dev/stdout"]).succeeded();
    assert!(out.stdout.starts_with("Leak: 12.0 MiB"), "{}", out.stdout);
}
