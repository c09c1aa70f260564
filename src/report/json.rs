//! A judged report as JSON: the schema of [`super::model`] with the fields that judging adds.
//!
//! They are not in the model because the shim writes that, and would carry the code for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Termination;
use super::judged::{Judged, Sum};
use super::model::{Device, Leak, Module, Report};

/// What tells a report from other JSON. All else is passed over, and takes no memory.
#[derive(Deserialize)]
pub struct Schema {
    /// [`super::model::SCHEMA`] in a report.
    pub schema: Option<Value>,
}

/// [`Report`] with what is said of its leaks, and sums.
#[derive(Serialize)]
pub struct Shown<'a> {
    schema: &'a str,
    pid: u32,
    ppid: u32,
    exe: &'a str,
    cmdline: &'a [String],
    labels: &'a BTreeMap<String, String>,
    started_at: Option<&'a str>,
    ended_at: Option<&'a str>,
    termination: Termination,
    driver_version: Option<&'a str>,
    runtime_versions: &'a [String],
    devices: &'a [Device],
    /// What counts as leaked, by library, largest first.
    libraries: Vec<Library<'a>>,
    /// What suppressions leave out, by pattern, largest first.
    suppressed: Vec<Suppressed<'a>>,
    leaks: Vec<Entry<'a>>,
    init_failures: &'a [Value],
    leak_suspects: &'a [Value],
    lived_s: f64,
    timeline_s: &'a [f64],
    modules: &'a [Module],
    lost_records: u64,
    damaged_parts: u64,
    damages: &'a [String],
}

#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    leak: &'a Leak,
    library: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed_by: Option<&'a str>,
}

#[derive(Serialize)]
struct Library<'a> {
    name: &'a str,
    count: u64,
    bytes: u64,
    stacks: u64,
}

#[derive(Serialize)]
struct Suppressed<'a> {
    pattern: &'a str,
    count: u64,
    bytes: u64,
    stacks: u64,
}

/// What is to be written.
pub fn shown(judged: &Judged) -> Shown<'_> {
    // Taken apart by name: a field that is added to the schema must be added here.
    let Report {
        schema,
        pid,
        ppid,
        exe,
        cmdline,
        labels,
        started_at,
        ended_at,
        termination,
        driver_version,
        runtime_versions,
        devices,
        leaks: _,
        init_failures,
        leak_suspects,
        lived_s,
        timeline_s,
        modules,
        lost_records,
        damaged_parts,
        damages,
    } = &judged.report;
    let library = |(name, sum)| {
        let Sum { bytes, count, stacks } = sum;
        Library { name, count, bytes, stacks }
    };
    let suppressed = |(pattern, sum)| {
        let Sum { bytes, count, stacks } = sum;
        Suppressed { pattern, count, bytes, stacks }
    };
    let entry = |(leak, mark, _)| entry(leak, mark);
    Shown {
        schema,
        pid: *pid,
        ppid: *ppid,
        exe,
        cmdline,
        labels,
        started_at: started_at.as_deref(),
        ended_at: ended_at.as_deref(),
        termination: *termination,
        driver_version: driver_version.as_deref(),
        runtime_versions,
        devices,
        libraries: judged.libraries().into_iter().map(library).collect(),
        suppressed: judged.suppressed().into_iter().map(suppressed).collect(),
        leaks: judged.entries().map(entry).collect(),
        init_failures,
        leak_suspects,
        lived_s: *lived_s,
        timeline_s,
        modules,
        lost_records: *lost_records,
        damaged_parts: *damaged_parts,
        damages,
    }
}

fn entry<'a>(leak: &'a Leak, mark: &'a super::judged::Mark) -> Entry<'a> {
    Entry { leak, library: &mark.library, suppressed_by: mark.suppressed.as_deref() }
}
