//! From a path to reports: record files, report files, and folders of them.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::{Failure, NO_INPUT};
use crate::record::layout::MAGIC;
use crate::record::snapshot::{Liveness, Observer, Snapshot};
use crate::report::Report;
use crate::report::json::Schema;
use crate::report::model::SCHEMA;
use crate::report::symbols::Symbolizer;

/// The largest report that is read, in bytes: ten thousand call stacks take a tenth of it.
const MAX_REPORT_BYTES: u64 = 512 << 20;

/// What a path holds.
pub enum Loaded {
    /// One process.
    One(Box<Report>),
    /// A folder: what could be read, and one message for each file that could not.
    Folder { reports: Vec<Report>, unreadable: Vec<String> },
}

/// Reads all reports at `path`, with names and lines.
pub fn load(path: &Path) -> Result<Loaded, Failure> {
    let mut symbolizer = Symbolizer::default();
    let observer = Observer::here();
    let metadata = fs::metadata(path).map_err(|error| {
        Failure::new(
            NO_INPUT,
            format!(
                "cannot read {}: {error}. Name a report, a record file, or a folder of them",
                path.display()
            ),
        )
    })?;
    if !metadata.is_dir() {
        let mut reports = file(path, &observer).map_err(|message| Failure::new(NO_INPUT, message))?;
        reports.iter_mut().for_each(|report| symbolizer.resolve(report));
        return Ok(match reports.pop() {
            Some(report) if reports.is_empty() => Loaded::One(Box::new(report)),
            last => {
                reports.extend(last);
                Loaded::Folder { reports, unreadable: Vec::new() }
            }
        });
    }
    let (mut reports, mut unreadable) = (Vec::new(), Vec::new());
    for path in files(path)? {
        match file(&path, &observer) {
            Ok(found) => reports.extend(found),
            Err(message) => unreadable.push(message),
        }
    }
    reports.iter_mut().for_each(|report| symbolizer.resolve(report));
    Ok(Loaded::Folder { reports, unreadable })
}

/// Makes a report from a record file; names and lines are not looked up.
pub fn record_file(path: &Path, observer: &Observer) -> Result<Report, String> {
    let snapshot = Snapshot::open(path).map_err(|error| error.to_string())?;
    let liveness = observer.liveness(&snapshot);
    let as_of = match liveness {
        Liveness::Exited => snapshot.ended_ns,
        Liveness::Running => nanoseconds(SystemTime::now()),
        // Nobody noted the time of its death. The file's last change is the nearest that is known.
        Liveness::Killed | Liveness::Unknown => {
            fs::metadata(path).and_then(|m| m.modified()).map_or(0, nanoseconds)
        }
    };
    Ok(Report::from_snapshot(&snapshot, liveness.into(), as_of))
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The files in a folder that may be reports or record files.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = entries(folder, Path::is_file)?;
    let records = folder.join("proc");
    if records.is_dir() {
        // The folder is a CUWARDEN_DIR: of what lies beside `proc`, only reports are for us.
        files.retain(|file| file.extension().is_some_and(|end| end == "json"));
        files.extend(entries(&records, Path::is_file)?);
    }
    Ok(files)
}

/// What lies in a folder and is of one kind.
pub fn entries(folder: &Path, is_wanted: fn(&Path) -> bool) -> Result<Vec<PathBuf>, Failure> {
    let cannot = |error| Failure::path(NO_INPUT, "list", folder, &error);
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if is_wanted(&path) {
            entries.push(path);
        }
    }
    // The order of a folder is chance; the same input gives the same output.
    entries.sort();
    Ok(entries)
}

/// Tells by a file's first bytes what it is, and makes its reports; names and lines are not looked up.
pub fn file(path: &Path, observer: &Observer) -> Result<Vec<Report>, String> {
    let name = path.display();
    let regular = fs::metadata(path).map_err(|error| format!("{name}: cannot be read: {error}"))?;
    if !regular.is_file() {
        return Err(format!(
            "{name}: is not a regular file. Name a report, a record file, or a folder of them"
        ));
    }
    let file = File::open(path).map_err(|error| format!("{name}: cannot be read: {error}"))?;
    let mut text = Vec::new();
    let cannot = |error| format!("{name}: cannot be read: {error}");
    (&file).take(8).read_to_end(&mut text).map_err(cannot)?;
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if text == MAGIC.to_le_bytes() || (text.len() == 8 && text.iter().all(|&byte| byte == 0)) {
        return record_file(path, observer).map(|report| vec![report]);
    }
    match first {
        Some(b'{' | b'[') => {}
        None if regular.len() == 0 => return Err(format!("{name}: is empty")),
        _ => {
            return Err(format!(
                "{name}: is neither a report (JSON, schema {SCHEMA}) nor a record file. \
                 Reports are written with cuwarden run --report DIR"
            ));
        }
    }
    if regular.len() > MAX_REPORT_BYTES {
        return Err(format!(
            "{name}: has {} bytes, and a report has at most {MAX_REPORT_BYTES}",
            regular.len()
        ));
    }
    (&file).take(MAX_REPORT_BYTES).read_to_end(&mut text).map_err(cannot)?;
    parse(&text).map_err(|problem| format!("{name}: {problem}"))
}

fn parse(text: &[u8]) -> Result<Vec<Report>, String> {
    // First what it says it is. Without keeping the rest: a report may have millions of frames.
    let no_json = |error: serde_json::Error| match error.is_data() {
        true => format!("is JSON and no report of cuwarden: {error}"),
        false => format!("is no valid JSON, or was cut short: {error}"),
    };
    let is_list = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let schemas: Vec<Schema> = match is_list {
        true => serde_json::from_slice(text).map_err(no_json)?,
        false => vec![serde_json::from_slice(text).map_err(no_json)?],
    };
    for Schema { schema } in schemas {
        match schema.as_ref().and_then(|schema| schema.as_str()) {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(format!(
                    "has the schema \"{other}\", and this cuwarden reads \"{SCHEMA}\". \
                     Use the cuwarden that wrote it"
                ));
            }
            None => {
                return Err(format!("is JSON and no report of cuwarden: it has no schema \"{SCHEMA}\""));
            }
        }
    }
    let damaged = |error| format!("is damaged: {error}");
    match is_list {
        true => serde_json::from_slice(text).map_err(damaged),
        false => serde_json::from_slice(text).map(|report| vec![report]).map_err(damaged),
    }
}
