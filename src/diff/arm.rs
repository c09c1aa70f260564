//! From reports to the runs of one arm, and whether it is one arm at all.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::text::{clean, plural};
use crate::report::{Report, Termination};

/// The label that says which run of an arm a process belongs to.
pub const RUN_LABEL: &str = "run";

/// A report, and the folder within the arm that it was in, if any.
pub struct Input {
    /// What was read.
    pub report: Report,
    /// All that lies in one folder is one run.
    pub folder: Option<String>,
}

/// What the caller says about an arm.
#[derive(Default)]
pub struct Options {
    /// Only reports that have these labels.
    pub only: Vec<(String, String)>,
    /// Labels that may differ between the runs.
    pub vary: Vec<String>,
}

impl Options {
    /// Whether a report has the labels that were asked for.
    pub fn wants(&self, report: &Report) -> bool {
        self.only.iter().all(|(key, value)| report.labels.get(key) == Some(value))
    }
}

/// One side of the experiment.
pub struct Arm {
    /// Where it came from, as the user wrote it.
    pub path: String,
    /// Those that all its processes have.
    pub labels: BTreeMap<String, String>,
    /// CUDA version of the driver.
    pub driver_version: Option<String>,
    /// CUDA versions of the runtimes that a run uses.
    pub runtime_versions: Vec<String>,
    /// Product names of the devices.
    pub devices: Vec<String>,
    /// The processes of each run that counts.
    pub runs: Vec<Vec<Report>>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

impl Arm {
    /// Groups reports to runs. The error says what is mixed, and what to do.
    pub fn new(name: &str, path: String, inputs: Vec<Input>, options: &Options) -> Result<Arm, String> {
        let mut inputs = inputs;
        inputs.retain(|input| options.wants(&input.report));
        let mut notes = Vec::new();
        let twice = drop_copies(&mut inputs);
        if twice > 0 {
            notes.push(format!(
                "{name}: {} of a process that is there already, {} left out.",
                plural(twice as u64, "report"),
                if twice == 1 { "was" } else { "were" }
            ));
        }
        family(name, &inputs, &mut notes);
        let runs = left_out(name, runs(inputs), &mut notes);
        let reports: Vec<&Report> = runs.iter().flatten().collect();
        doubtful(name, &reports, &mut notes);
        let labels = labels(name, &reports, &options.vary)?;
        let driver_version = driver(name, &path, &reports)?;
        let runtime_versions = runtimes(name, &path, &runs)?;
        let devices: BTreeSet<String> = reports
            .iter()
            .flat_map(|report| report.devices.iter().map(|device| device.name.clone()))
            .filter(|name| !name.is_empty())
            .collect();
        let devices = devices.into_iter().collect();
        Ok(Arm { path, labels, driver_version, runtime_versions, devices, runs, notes })
    }

    /// All its processes.
    pub fn reports(&self) -> Vec<&Report> {
        self.runs.iter().flatten().collect()
    }
}

/// Takes out what is the same process once more: a report and its record file, or a folder that was copied. Puts the rest in
/// an order that is not that of the files.
fn drop_copies(inputs: &mut Vec<Input>) -> usize {
    inputs.sort_by_cached_key(|input| {
        let report = &input.report;
        (report.started_at.clone(), report.pid, report.exe.clone(), serde_json::to_string(report).ok())
    });
    let before = inputs.len();
    inputs.dedup_by(|one, two| {
        let (one, two) = (&one.report, &two.report);
        one.started_at.is_some()
            && (&one.started_at, one.pid, &one.exe, &one.labels)
                == (&two.started_at, two.pid, &two.exe, &two.labels)
    });
    before - inputs.len()
}

/// By the label `run`; without it, by folder; without one, every report is a run.
fn runs(inputs: Vec<Input>) -> Vec<Vec<Report>> {
    let mut runs: BTreeMap<(u8, String), Vec<Report>> = BTreeMap::new();
    for (place, input) in inputs.into_iter().enumerate() {
        let key = match (input.report.labels.get(RUN_LABEL), input.folder) {
            (Some(run), _) => (0, run.clone()),
            (None, Some(folder)) => (1, folder),
            (None, None) => (2, format!("{place:09}")),
        };
        runs.entry(key).or_default().push(input.report);
    }
    runs.into_values().collect()
}

/// A run that says nothing about leaks is none: it would look like one that does not leak.
fn left_out(name: &str, runs: Vec<Vec<Report>>, notes: &mut Vec<String>) -> Vec<Vec<Report>> {
    let (running, runs): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|run| run.iter().any(|report| report.termination == Termination::Running));
    let did_not_start = |run: &Vec<Report>| {
        run.iter().any(|report| !report.init_failures.is_empty())
            && run.iter().flat_map(|report| &report.devices).all(|device| device.alloc_count == 0)
    };
    let (failed, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(did_not_start);
    if !running.is_empty() {
        notes.push(format!("{name}: {} left out, still running.", plural(running.len() as u64, "run")));
    }
    if !failed.is_empty() {
        notes.push(format!(
            "{name}: {} left out, CUDA did not start there. cuwarden report says why.",
            plural(failed.len() as u64, "run")
        ));
    }
    runs
}

/// Processes that started each other look like runs of one process each.
fn family(name: &str, inputs: &[Input], notes: &mut Vec<String>) {
    let alone = |input: &&Input| input.folder.is_none() && !input.report.labels.contains_key(RUN_LABEL);
    let mut by_pid: BTreeMap<u32, Vec<&Report>> = BTreeMap::new();
    for input in inputs.iter().filter(alone) {
        by_pid.entry(input.report.pid).or_default().push(&input.report);
    }
    // Numbers are used again, in every container above all: both must have lived at one time.
    let before = |one: &Option<String>, other: &Option<String>| match (one, other) {
        (Some(one), Some(other)) => one <= other,
        _ => true,
    };
    let is_child = |input: &&Input| {
        let child = &input.report;
        by_pid.get(&child.ppid).into_iter().flatten().any(|parent| {
            parent.pid != child.pid
                && before(&child.started_at, &parent.ended_at)
                && before(&parent.started_at, &child.ended_at)
        })
    };
    let child = inputs.iter().filter(alone).find(is_child);
    if let Some(child) = child {
        notes.push(format!(
            "{name}: process {} was started by process {}, and each counts as a run. Give the processes of a run the \
             same label (--label run=1), or a folder of their own.",
            child.report.pid, child.report.ppid
        ));
    }
}

fn doubtful(name: &str, reports: &[&Report], notes: &mut Vec<String>) {
    let count = |is: fn(&Report) -> bool| reports.iter().filter(|report| is(report)).count() as u64;
    let killed = count(|report| report.termination == Termination::Killed);
    if killed > 0 {
        notes.push(format!(
            "{name}: {killed} of {} killed. What such a process held then counts as leaked.",
            processes(reports.len() as u64),
        ));
    }
    let partial = count(|report| report.lost_records > 0 || report.damaged_parts > 0);
    if partial > 0 {
        notes.push(format!(
            "{name}: {partial} of {} incomplete: records were lost or damaged. Its leaks may be larger than shown.",
            processes(reports.len() as u64),
        ));
    }
}

/// `1 process`, `2 processes`.
pub fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

fn labels(name: &str, reports: &[&Report], vary: &[String]) -> Result<BTreeMap<String, String>, String> {
    let may_differ = |key: &str| key == RUN_LABEL || vary.iter().any(|other| other == key);
    let keys: BTreeSet<&str> =
        reports.iter().flat_map(|report| report.labels.keys()).map(String::as_str).collect();
    let mut labels = BTreeMap::new();
    for key in keys.into_iter().filter(|key| !may_differ(key)) {
        let values = tally(reports.iter().map(|report| report.labels.get(key).cloned()));
        match values.as_slice() {
            [(Some(value), _)] => {
                labels.insert(key.to_owned(), value.clone());
            }
            _ => {
                let (side, key) = (name.to_ascii_lowercase(), clean(key));
                return Err(format!(
                    "{name} mixes labels: {}. One arm must be one thing. Choose with --label-{side} {key}=VALUE, or say \
                     with --vary {key} that the runs of an arm may differ in it",
                    told(&values, |value| format!("{key}={value}"), &format!("no {key}"))
                ));
            }
        }
    }
    Ok(labels)
}

fn driver(name: &str, path: &str, reports: &[&Report]) -> Result<Option<String>, String> {
    let mut values = tally(reports.iter().map(|report| report.driver_version.clone()));
    values.retain(|(value, _)| value.is_some());
    match values.as_slice() {
        [] => Ok(None),
        [(value, _)] => Ok(value.clone()),
        _ => Err(format!(
            "{name} mixes drivers: {}. {}",
            told(&values, |value| format!("CUDA {value}"), ""),
            apart(path)
        )),
    }
}

fn runtimes(name: &str, path: &str, runs: &[Vec<Report>]) -> Result<Vec<String>, String> {
    let of_run = |run: &Vec<Report>| {
        let all: BTreeSet<String> = run.iter().flat_map(|report| report.runtime_versions.clone()).collect();
        let list: Vec<String> = all.into_iter().collect();
        // A run that calls the driver alone says nothing about runtimes.
        (!list.is_empty()).then(|| list.join(" and "))
    };
    let mut values = tally(runs.iter().map(of_run));
    values.retain(|(value, _)| value.is_some());
    match values.as_slice() {
        [] => Ok(Vec::new()),
        [(value, _)] => Ok(value.iter().flat_map(|list| list.split(" and ")).map(str::to_owned).collect()),
        _ => Err(format!(
            "{name} mixes CUDA runtimes: {}. {}",
            told(&values, |value| format!("runtime {value}"), ""),
            apart(path)
        )),
    }
}

fn apart(path: &str) -> String {
    format!(
        "One arm must run one version. Put the runs of each into a folder of its own, or choose among those in {} by a \
         label (--label-a, --label-b)",
        clean(path)
    )
}

/// How often each value is there, in an order that does not depend on that of the reports.
fn tally(values: impl Iterator<Item = Option<String>>) -> Vec<(Option<String>, u64)> {
    let mut counts: BTreeMap<Option<String>, u64> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().collect()
}

fn told(values: &[(Option<String>, u64)], words: impl Fn(String) -> String, none: &str) -> String {
    const SHOWN: usize = 4;
    let mut list: Vec<String> = values
        .iter()
        .take(SHOWN)
        .map(|(value, count)| {
            let value = value.as_ref().map_or_else(|| none.to_owned(), |value| words(clean(value)));
            format!("{value} ({count})")
        })
        .collect();
    if values.len() > SHOWN {
        list.push(format!("{} more", values.len() - SHOWN));
    }
    list.join(", ")
}

#[cfg(test)]
mod tests;
