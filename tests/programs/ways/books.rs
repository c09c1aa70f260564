//! Compares what cuwarden says with the simulated driver's own books, to the byte and kind by kind.

// Each test binary compiles all of this and uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use serde_json::Value;

use crate::common::sim::Sim;
use crate::common::{artefacts, cc};

/// Compiles one of the programs in tests/programs, linked with the simulated driver. Their headers are part of what
/// the result is kept by.
pub fn program(sim: &Sim, source: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    let mut folders = vec![artefacts::root().join("tests/programs"), artefacts::root().join("sim")];
    let mut headers = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the tree can be read") {
            let path = entry.expect("the tree can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "h") {
                headers.push((path.clone(), std::fs::read(path).expect("the tree can be read")));
            }
        }
    }
    headers.sort();
    headers.hash(&mut hasher);
    let define = format!("-DHEADERS=0x{:016x}", hasher.finish());
    let libcuda = sim.libraries().join("libcuda.so.1").display().to_string();
    cc::program(&format!("tests/programs/{source}"), &[&define, &libcuda])
}

/// The kind under which the driver books what a leak is made of.
fn kind_of(leak: &Value) -> &'static str {
    let driver_api = leak["driver_api"].as_str().unwrap_or_default();
    match leak["class"].as_str().unwrap_or_default() {
        "pointer" if driver_api.contains("Async") => "pool",
        "pointer" if driver_api.contains("Pitch") => "pitch",
        "pointer" if driver_api.contains("Managed") => "managed",
        "pointer" => "linear",
        "array" | "mipmapped_array" => "array",
        "physical" => "vmm",
        "pool_reserve" => "pool",
        "graph_reserve" => "graph",
        "module" => "module",
        _ => panic!("what is {leak:#}?"),
    }
}

/// Bytes by kind of every device of a process, contexts left out.
pub fn held(process: &Value) -> Vec<BTreeMap<String, u64>> {
    let devices = process["devices"].as_array().expect("the books have devices");
    let of = |device: &Value| {
        let kinds = device.as_object().expect("a device is an object").iter();
        let bytes = |(kind, bytes): (&String, &Value)| (kind.clone(), bytes.as_u64().expect("bytes"));
        kinds.filter(|(kind, _)| *kind != "context").map(bytes).collect()
    };
    devices.iter().map(of).collect()
}

/// The same from a report's leaks, for as many devices.
pub fn leaked(report: &Value, devices: usize) -> Vec<BTreeMap<String, u64>> {
    let kinds = ["linear", "pitch", "managed", "array", "pool", "vmm", "graph", "module"];
    let mut sums: Vec<BTreeMap<String, u64>> =
        vec![kinds.iter().map(|kind| ((*kind).to_owned(), 0)).collect(); devices];
    for leak in report["leaks"].as_array().expect("a report has leaks") {
        let device = leak["device"].as_u64().expect("a leak has a device") as usize;
        *sums[device].entry(kind_of(leak).to_owned()).or_default() += leak["bytes"].as_u64().expect("bytes");
    }
    sums
}

/// The report agrees with the books of its process: bytes by kind and device, and the sums.
#[track_caller]
pub fn agree(sim: &Sim, report: &Value) {
    let books = sim.process_books(&report["pid"]);
    let held = held(&books);
    assert_eq!(leaked(report, held.len()), held, "{books:#}\n{report:#}");
    for (ordinal, kinds) in held.iter().enumerate() {
        let bytes: u64 = kinds.values().sum();
        match device(report, ordinal) {
            Some(device) => assert_eq!(device["live_bytes"], bytes, "{books:#}\n{report:#}"),
            None => assert_eq!(bytes, 0, "device {ordinal} is not in the report: {books:#}\n{report:#}"),
        }
    }
    assert_eq!(report["lost_records"], 0, "{report:#}");
    assert_eq!(report["damaged_parts"], 0, "{report:#}");
}

/// Every successful allocation is counted once, and so is every end of one; what the driver keeps is no allocation.
#[track_caller]
pub fn counts_agree(report: &Value, taken: &Value) {
    for ordinal in 0..taken.as_array().expect("a list").len() {
        let Some(device) = device(report, ordinal) else {
            assert_eq!(taken[ordinal], 0, "{report:#}");
            continue;
        };
        let leaks = report["leaks"].as_array().expect("a report has leaks").iter();
        let made = |leak: &&Value| {
            let kept = leak["class"] == "pool_reserve" || leak["class"] == "graph_reserve";
            leak["device"] == ordinal && !kept
        };
        let alive: u64 = leaks.filter(made).map(|leak| leak["count"].as_u64().expect("a count")).sum();
        let number = |key: &str| device[key].as_u64().expect("a number");
        assert_eq!(number("alloc_count"), taken[ordinal].as_u64().expect("a number"), "{report:#}");
        assert_eq!(number("alloc_count") - number("free_count"), alive, "{report:#}");
    }
}

pub fn device(report: &Value, ordinal: usize) -> Option<&Value> {
    report["devices"].as_array()?.iter().find(|device| device["ordinal"] == ordinal)
}
