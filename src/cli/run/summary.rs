//! What is said after a run, and the reports of those who could not write one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::directory::Directory;
use crate::cli::gate::Suppressions;
use crate::cli::load::record_file;
use crate::cli::terminal::say;
use crate::record::snapshot::Observer;
use crate::report::judged::{Judged, State, Sum};
use crate::report::model::Leak;
use crate::report::symbols::Symbolizer;
use crate::report::text::{bytes, clean, plural, without_plumbing};
use crate::report::{Report, Termination};

/// Processes of which something is said; the others are counted.
const MAX_PROCESSES: usize = 5;

/// What the caller has to know about the summary.
pub struct Said {
    /// Somebody needs the directory: a reader of the summary, or a process that runs.
    pub keeps_directory: bool,
    /// Processes that have ended.
    pub judged: usize,
    /// What they leaked, without what is suppressed.
    pub leaked: Sum,
    /// There may be more, of which nothing can be read.
    pub hidden: bool,
}

/// Says what there is to say about the processes that ended since `began`. Reports that are missing from
/// `folder` are made from the record files: a process that was killed could not write its own.
pub fn write(
    directory: &Directory,
    folder: Option<&Path>,
    began: SystemTime,
    suppressions: &mut Suppressions,
) -> Said {
    let observer = Observer::here();
    let mut telling = Vec::new();
    let mut said = Said { keeps_directory: false, judged: 0, leaked: Sum::default(), hidden: false };
    for path in record_files(directory, began) {
        let mut report = match record_file(&path, &observer) {
            Ok(report) => report,
            Err(problem) => {
                say(&clean(&problem));
                (said.keeps_directory, said.hidden) = (true, true);
                continue;
            }
        };
        match report.termination {
            Termination::Running | Termination::Unknown => said.keeps_directory = true,
            Termination::Exit | Termination::Killed => {
                Symbolizer::default().resolve(&mut report);
                if let Some(folder) = folder {
                    said.keeps_directory |= !add_missing(folder, &report);
                }
                let judged = suppressions.judge().judge(report);
                said.judged += 1;
                said.leaked.merge(judged.sum(State::Leak));
                said.hidden |= judged.report.lost_records > 0 || judged.report.damaged_parts > 0;
                if has_something_to_say(&judged) {
                    telling.push(judged);
                }
            }
        }
    }
    if said.judged > 0 {
        suppressions.say_unused();
    }
    if telling.is_empty() {
        return said;
    }
    for judged in telling.iter().take(MAX_PROCESSES) {
        lines(judged).iter().for_each(|line| say(line));
    }
    if telling.len() > MAX_PROCESSES {
        say(&format!("{} more processes have something to say", telling.len() - MAX_PROCESSES));
    }
    say(&format!("for more: cuwarden report {}", folder.unwrap_or(directory.path()).display()));
    // With a report folder, all that was said is in there.
    said.keeps_directory |= folder.is_none();
    said
}

fn record_files(directory: &Directory, began: SystemTime) -> Vec<PathBuf> {
    // File systems keep times coarsely.
    let began = began.checked_sub(Duration::from_secs(1)).unwrap_or(began);
    let mut files: Vec<PathBuf> = fs::read_dir(directory.path().join("proc"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            // In a shared directory lie the files of earlier runs; those that ended then have not changed since.
            let changed = fs::metadata(path).and_then(|m| m.modified());
            path.is_file() && (directory.is_private() || changed.is_ok_and(|changed| changed >= began))
        })
        .collect();
    files.sort();
    files
}

/// Writes a report where the process has not done so; answers whether it is there now.
fn add_missing(folder: &Path, report: &Report) -> bool {
    let path = folder.join(format!("cuwarden-{}.json", report.pid));
    let Ok(text) = serde_json::to_vec_pretty(report) else {
        return false;
    };
    if let Some(theirs) = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Report>(&text).ok())
        && theirs.started_at == report.started_at
    {
        return true;
    }
    // Under another name first: who reads the folder meanwhile must not find half a report.
    let unfinished = folder.join(format!(".cuwarden-{}.json.{}", report.pid, std::process::id()));
    let written = fs::File::create_new(&unfinished)
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| fs::rename(&unfinished, &path));
    if let Err(error) = &written {
        let _ = fs::remove_file(&unfinished);
        say(&format!("cannot write {}: {error}", path.display()));
    }
    written.is_ok()
}

fn has_something_to_say(judged: &Judged) -> bool {
    let report = &judged.report;
    judged.sum(State::Leak).count > 0
        || report.denied() > 0
        || !report.init_failures.is_empty()
        || report.termination == Termination::Killed
}

fn lines(judged: &Judged) -> Vec<String> {
    let report = &judged.report;
    let program = Path::new(&report.exe).file_name().unwrap_or_default().to_string_lossy();
    let who = format!("{} (pid {})", clean(&program), report.pid);
    let mut lines = Vec::new();
    for failure in &report.init_failures {
        let of = |key: &str| failure.get(key).and_then(|value| value.as_str()).unwrap_or("?");
        lines.push(format!(
            "{who}: CUDA did not start: {} failed with {}",
            clean(of("api")),
            clean(of("name"))
        ));
    }
    for device in report.devices.iter().filter(|device| device.denied_count > 0) {
        lines.push(format!(
            "{who}: the quota of {} on GPU {} refused {}",
            bytes(device.limit_bytes),
            device.ordinal,
            plural(device.denied_count, "request")
        ));
    }
    let Sum { bytes: leaked, count, .. } = judged.sum(State::Leak);
    let what = format!("{} in {}", bytes(leaked), plural(count, "allocation"));
    let most = judged.of(State::Leak).next().and_then(|(leak, _)| origin(leak));
    let most = most.map(|origin| format!(", most from {origin}")).unwrap_or_default();
    match (report.termination, count) {
        (Termination::Killed, 0) => {
            lines.push(format!("{who}: was killed; it held no device memory"));
        }
        (Termination::Killed, _) => lines.push(format!("{who}: was killed and held {what}{most}")),
        (_, 0) => {}
        _ => lines.push(format!("{who}: leaked {what}{most}")),
    }
    lines
}

/// The function and line that a leak comes from.
fn origin(leak: &Leak) -> Option<String> {
    let frame = without_plumbing(&leak.stack).iter().find(|frame| frame.function.is_some())?;
    let function = frame.function.as_deref().unwrap_or_default();
    Some(clean(&match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
        _ => function.to_owned(),
    }))
}
