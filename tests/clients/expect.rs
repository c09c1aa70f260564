//! What every leaking client must find and leave behind, checked against the simulated driver's books.

use serde_json::Value;

use crate::common::sim::Sim;

/// What one run of a client kept, freed and was refused.
pub struct Run<'a> {
    /// The names that the report gives the leaking calls, each with its count and bytes.
    pub leaks: &'a [(&'a str, u64, u64)],
    /// `cuMemGetInfo` and friends must show this.
    pub limit: u64,
    /// The client's own JSON object.
    pub said: &'a Value,
}

/// The report agrees with what the client did, and both with the books.
#[track_caller]
pub fn assert_told(sim: &Sim, run: &Run) {
    assert_eq!(run.said["refused"], "CUDA_ERROR_OUT_OF_MEMORY", "{}", run.said);
    assert_eq!(run.said["total"], run.limit, "{}", run.said);

    let report = sim.report();
    let device = &report["devices"][0];
    let kept: u64 = run.leaks.iter().map(|(_, _, bytes)| bytes).sum();
    assert_eq!(report["schema"], "cuwarden.report/1");
    assert_eq!(report["termination"], "exit", "{report:#}");
    assert_eq!(device["live_bytes"], kept, "{report:#}");
    assert_eq!(device["limit_bytes"], run.limit, "{report:#}");
    assert_eq!(device["denied_count"], 1, "{report:#}");
    let mut leaks: Vec<(&str, u64, u64)> = Vec::new();
    let rows = report["leaks"].as_array().unwrap_or_else(|| panic!("no leaks: {report:#}"));
    // What a pool keeps in reserve is the driver's.
    for leak in rows.iter().filter(|leak| leak["held_by_driver"] != true) {
        let number = |key: &str| leak[key].as_u64().unwrap_or_else(|| panic!("{key}: {report:#}"));
        leaks.push((leak["api"].as_str().unwrap_or("?"), number("count"), number("bytes")));
    }
    leaks.sort_unstable();
    let mut expected = run.leaks.to_vec();
    expected.sort_unstable();
    assert_eq!(leaks, expected, "{report:#}");

    let denied = sim.events_named("quota_denied");
    assert_eq!(denied.len(), 1, "{:#?}", sim.events());
    assert_eq!(denied[0]["limit_bytes"], run.limit);
    assert_books_agree(sim, &report, kept);
}

/// To the byte, and kind by kind where the report can tell: the books of a process outlive it.
#[track_caller]
fn assert_books_agree(sim: &Sim, report: &Value, kept: u64) {
    let process = sim.process_books(&report["pid"]);
    let device = &process["devices"][0];
    let kinds = device.as_object().unwrap_or_else(|| panic!("no device: {process:#}"));
    let of = |kind: &str| kinds[kind].as_u64().unwrap_or_else(|| panic!("{kind}: {process:#}"));
    // A context is not the application's allocation.
    let held: u64 = kinds.keys().filter(|kind| *kind != "context").map(|kind| of(kind)).sum();
    assert_eq!(held, kept, "{process:#}\n{report:#}");
}
