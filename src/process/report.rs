//! The leak report at exit.

use super::Process;
use crate::policy::config::Level;
use crate::record::identity::realtime_ns;
use crate::record::layout::Area;
use crate::record::snapshot::Snapshot;
use crate::record::writer::may_reach;
use crate::report::model::{Report, Termination};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};

/// Called once at an orderly exit. Asks the driver nothing: it may be gone already.
pub fn write_exit_report() {
    let Some(process) = Process::current() else { return };
    process.writer.mark_ended(realtime_ns());
    if let Some(folder) = &process.config.report
        && let Err(error) = write(process, folder)
    {
        process.events.emit(
            Level::Error,
            "config_error",
            json!({
                "variable": "CUWARDEN_REPORT", "value": folder.display().to_string(), "reason": error.to_string(),
                "allowed": "a folder that this process may write to",
                "message": format!(
                    "The leak report could not be written to {}: {error}. The record file {} holds the same.",
                    folder.display(), process.writer.path().display()
                ),
            }),
        );
    }
    if process.events.wants(Level::Info) {
        process.events.emit(Level::Info, "process_exit", summary(process));
    }
    process.events.flush();
}

fn snapshot(process: &Process) -> Option<Snapshot> {
    let header = process.writer.header_copy();
    let areas: Vec<(Area, Vec<Vec<u8>>)> =
        Area::ALL.iter().map(|area| (*area, process.writer.area_copy(*area))).collect();
    let extents: Vec<(Area, &[u8])> = areas
        .iter()
        .flat_map(|(area, extents)| extents.iter().map(|bytes| (*area, bytes.as_slice())))
        .collect();
    Snapshot::from_parts(&header, &extents).ok()
}

fn write(process: &Process, folder: &Path) -> io::Result<()> {
    let snapshot = snapshot(process).ok_or(io::ErrorKind::InvalidData)?;
    let report = Report::from_snapshot(&snapshot, Termination::Exit, realtime_ns());
    let text = serde_json::to_vec(&report)?;
    may_reach(text.len() as u64)?;
    std::fs::create_dir_all(folder)?;
    let target = folder.join(format!("cuwarden-{}.json", process.pid));
    let partial: PathBuf = folder.join(format!(".cuwarden-{}.json.tmp", process.pid));
    std::fs::write(&partial, &text)?;
    // A reader sees a whole report or none.
    std::fs::rename(&partial, &target).inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

fn summary(process: &Process) -> serde_json::Value {
    let devices: Vec<_> = snapshot(process)
        .map(|s| Report::from_snapshot(&s, Termination::Exit, realtime_ns()))
        .map(|report| report.devices.iter().map(|d| json!(d)).collect())
        .unwrap_or_default();
    json!({ "devices": devices })
}
