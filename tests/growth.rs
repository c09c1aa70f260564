//! What grows: in the reports, in the process's own words, and from outside.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::artefacts::cli;
use common::cc;
use common::process::run;
use common::sim::{Sim, clean};
use serde_json::Value;

const SOURCE: &str = "tests/programs/growth/grows.c";
const MIB: u64 = 1 << 20;

fn program() -> PathBuf {
    let libcuda = Sim::new().libraries().join("libcuda.so.1").display().to_string();
    cc::program(SOURCE, &[&libcuda])
}

/// The entries of a report whose names were looked up, by the function that allocated.
fn leaks(sim: &Sim) -> Vec<(String, Value)> {
    let out =
        run(clean(cli()).arg("report").args(["--format", "json"]).arg(sim.temp.join("reports"))).succeeded();
    let reports: Vec<Value> = serde_json::from_str(&out.stdout).expect("JSON");
    let [report] = &reports[..] else { panic!("one report was expected: {reports:#?}") };
    let leaks = report["leaks"].as_array().expect("a list");
    let named = |leak: &Value| {
        let function = leak["stack"][0]["function"].as_str().expect("a name").to_owned();
        (function, leak.clone())
    };
    leaks.iter().map(named).collect()
}

fn of<'a>(leaks: &'a [(String, Value)], function: &str) -> &'a Value {
    let found = leaks.iter().find(|(name, _)| name == function);
    &found.unwrap_or_else(|| panic!("no {function} in {leaks:#?}")).1
}

#[test]
fn a_report_says_what_grew() {
    let sim = Sim::new();
    run(sim.shimmed(program()).args(["120", "10000"])).succeeded();
    let leaks = leaks(&sim);
    let class = |function: &str| of(&leaks, function)["growth"]["class"].clone();
    assert_eq!(class("leak"), "growing");
    assert_eq!(class("fill_cache"), "steady");
    assert_eq!(class("turn_ring"), "steady");
    assert_eq!(class("load_weights"), "one_off");
    // As fast as the machine let it: what the report itself has of time and bytes.
    let leak = of(&leaks, "leak");
    let lived_min = (leak["oldest_age_s"].as_f64().unwrap() - leak["newest_age_s"].as_f64().unwrap()) / 60.0;
    let pace = leak["bytes"].as_f64().unwrap() / lived_min;
    let said = leak["growth"]["bytes_a_minute"].as_f64().unwrap();
    assert!((0.5..2.0).contains(&(said / pace)), "{said} is not about {pace}");
    let report = sim.report();
    let times = report["timeline_s"].as_array().expect("a list").len();
    let line = leak["timeline"].as_array().expect("a list");
    assert!(times > 20 && line.len() == times, "{times}: {line:?}");
    assert!(line.is_sorted_by_key(|bytes| bytes.as_u64().unwrap()), "{line:?}");
    assert!(report["lived_s"].as_f64() >= report["timeline_s"][times - 1].as_f64(), "{report:#}");
    // As text what grows comes first, although something else is larger.
    let out = run(clean(cli()).arg("report").arg(sim.temp.join("reports"))).succeeded();
    assert!(out.stdout.contains("MiB of it growing, "), "{}", out.told());
    assert!(out.stdout.contains(" old, growing by "), "{}", out.told());
    assert!(out.stdout.contains("Not freed, what grows first"), "{}", out.told());
}

/// The time line is in the record file, so that death takes nothing along.
#[test]
fn so_does_what_a_killed_process_left() {
    let sim = Sim::new();
    let mut child = start(sim.shimmed(program()).args(["100000", "10000"]));
    wait_for_growth(&sim);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let record = record_of(&sim);
    let out = run(clean(cli()).arg("report").args(["--format", "json"]).arg(record)).succeeded();
    let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
    assert_eq!(report["termination"], "killed");
    let leaks = report["leaks"].as_array().expect("a list");
    let leak = leaks.iter().find(|leak| leak["stack"][0]["function"] == "leak").expect("it leaks");
    assert_eq!(leak["growth"]["class"], "growing");
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts")
}

fn record_of(sim: &Sim) -> PathBuf {
    let mut entries = std::fs::read_dir(sim.shared_dir().join("proc")).expect("the folder is there");
    entries.next().expect("a record file").expect("it can be read").path()
}

fn wait_for_growth(sim: &Sim) {
    let is_growing = || {
        let out = run(clean(cli()).arg("report").arg(sim.shared_dir()));
        out.stdout.contains("growing by")
    };
    for _ in 0..600 {
        if is_growing() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("nothing grows");
}

#[test]
fn drift_is_said_once_with_the_call_stack() {
    let sim = Sim::new();
    let drift = "after=300ms,every=200ms,percent=3";
    run(sim.shimmed(program()).args(["200", "10000"]).env("CUWARDEN_DRIFT", drift)).succeeded();
    let events = sim.events_named("leak_suspect");
    let [event] = &events[..] else { panic!("one event was expected: {events:#?}") };
    assert_eq!(
        (&event["level"], &event["rule"], &event["device"]),
        (&"warn".into(), &"drift".into(), &0.into())
    );
    let number = |field: &Value| field.as_u64().expect("a number");
    assert!(number(&event["live_bytes"]) > number(&event["before_bytes"]), "{event:#}");
    assert!(event["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")), "{event:#}");
    let stacks = event["stacks"].as_array().expect("a list");
    let [grown] = &stacks[..] else { panic!("one call stack grows: {event:#}") };
    assert_eq!(grown["api"], "cuMemAlloc_v2");
    assert_eq!((number(&grown["bytes"]) - number(&grown["before_bytes"])) % MIB, 0);
    // It is kept for the report, where it has names.
    let out = run(clean(cli()).arg("report").arg(sim.temp.join("reports"))).succeeded();
    let after = out.stdout.split("Suspected while it ran").nth(1).unwrap_or_else(|| panic!("{}", out.told()));
    assert!(
        after.contains(" more by cuMemAlloc_v2 from leak (") && after.contains("grows.c:"),
        "{}",
        out.told()
    );
}

#[test]
fn a_slow_leak_is_one_that_would_fill_the_quota() {
    let suspects = |drift: &str, limit: &str| {
        let sim = Sim::new();
        let mut command = sim.shimmed(program());
        command.args(["150", "10000"]).env("CUWARDEN_DRIFT", drift).env("CUWARDEN_MEMORY_LIMIT", limit);
        run(&mut command).succeeded();
        sim.events_named("leak_suspect")
    };
    let found = suspects("after=1h,slow-after=500ms", "1GiB");
    assert_eq!(
        (found.len(), &found[0]["rule"], &found[0]["limit_bytes"]),
        (1, &"slow".into(), &(1u64 << 30).into())
    );
    assert!(found[0]["message"].as_str().is_some_and(|text| text.contains("the device is full in")));
    // Within a tenth of a second nothing is full.
    assert_eq!(suspects("after=1h,slow-after=500ms,horizon=100ms", "1GiB"), [] as [Value; 0]);
    assert_eq!(suspects("after=1h,slow-after=1h", "1GiB"), [] as [Value; 0]);
}

#[test]
fn nobody_looks_where_nobody_is_to_look() {
    let sim = Sim::new();
    run(sim.shimmed(program()).args(["100", "5000"]).env("CUWARDEN_DRIFT", "0")).succeeded();
    let report = sim.report();
    assert_eq!(report["timeline_s"], Value::Array(Vec::new()));
    let leaks = leaks(&sim);
    assert_eq!(of(&leaks, "leak")["growth"], Value::Null);
    // Once is once, also without a time line.
    assert_eq!(of(&leaks, "load_weights")["growth"]["class"], "one_off");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let sim = Sim::new();
    let out = run(sim.shimmed(program()).args(["1", "0"]).env("CUWARDEN_DRIFT", "every=often"));
    assert!(out.stderr.contains("cuInit(0) gave 800"), "{}", out.told());
    let events = sim.events_named("config_error");
    assert_eq!(
        (&events[0]["variable"], &events[0]["value"]),
        (&"CUWARDEN_DRIFT".into(), &"every=often".into())
    );
}

// ---- from outside --------------------------------------------------------------------------------------------------

#[test]
fn watch_sees_what_the_process_itself_does_not_look_for() {
    let sim = Sim::new();
    let mut child = start(sim.shimmed(program()).args(["400", "10000"]).env("CUWARDEN_DRIFT", "0"));
    let mut watch = clean(cli());
    watch.args(["watch", "--while-running", "--drift", "after=500ms,every=300ms,percent=3", "--json"]);
    while !sim.shared_dir().join("proc").is_dir() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let out = run(watch.arg(sim.shared_dir()));
    child.wait().expect("it ends");
    assert_eq!(out.status.code(), Some(1), "{}", out.told());
    let lines: Vec<Value> =
        out.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [line] = &lines[..] else { panic!("{}", out.told()) };
    assert_eq!(
        (&line["event"], &line["rule"], &line["pid"]),
        (&"leak_suspect".into(), &"drift".into(), &child.id().into())
    );
    assert_eq!(line["stacks"][0]["stack"][0]["function"], "leak");
    assert_eq!(sim.events_named("leak_suspect"), [] as [Value; 0]);
}

#[test]
fn watch_says_nothing_of_what_does_not_grow_and_what_it_cannot_use() {
    let sim = Sim::new();
    let watch = |arguments: &[&str]| run(clean(cli()).arg("watch").args(arguments).arg(sim.shared_dir()));
    let out = watch(&["--while-running"]);
    assert_eq!((out.status.code(), out.stdout.as_str()), (Some(0), ""), "{}", out.told());
    let out = watch(&["--for", "200ms"]);
    assert_eq!((out.status.code(), out.stdout.as_str()), (Some(0), ""), "{}", out.told());
    for wrong in [&["--for", "soon"], &["--drift", "0"], &["--drift", "percent=-1"]] {
        let out = watch(wrong);
        assert_eq!(out.status.code(), Some(64), "{}", out.told());
    }
    let out = run(clean(cli()).args(["watch", "/nowhere/at/all"]));
    assert_eq!(out.status.code(), Some(66), "{}", out.told());
    // A process that holds the same all the time.
    let mut child = start(sim.shimmed(program()).args(["1", "1500000"]));
    let out = watch(&["--for", "1s", "--drift", "after=100ms,every=100ms,percent=1"]);
    child.wait().expect("it ends");
    assert_eq!((out.status.code(), out.stdout.as_str()), (Some(0), ""), "{}", out.told());
}
