//! The leak report at exit.

use super::Process;
use crate::event::cancel::NoCancel;
use crate::event::fields::fields;
use crate::policy::config::Level;
use crate::record::identity::realtime_ns;
use crate::record::layout::{Area, NoteHead};
use crate::record::mapping::may_reach;
use crate::record::snapshot::Snapshot;
use crate::report::model::{Report, Termination};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::offset_of;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the report that lies there was made of, 0 = there is none.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Called at an orderly exit: when the destructors of the libraries begin, in case that one of them ends the
/// process, and for the last time when they are done. Asks the driver nothing: it may be gone already.
pub fn write_exit_report(last: bool) {
    let Some(process) = Process::current() else { return };
    let _no_cancel = NoCancel::new();
    let books = fingerprint(process);
    if last {
        process.writer.mark_ended(realtime_ns());
    }
    // Relaxed: exit handlers run one after the other.
    let before = WRITTEN.swap(books, Ordering::Relaxed);
    if before != books
        && let Some(folder) = &process.config.report
        && let Err(error) = write(process, folder)
        && before == 0
    {
        process.events.emit(
            Level::Error,
            "config_error",
            fields! {
                "variable": "CUWARDEN_REPORT", "value": folder.display().to_string(), "reason": error.to_string(),
                "allowed": "a folder that this process may write to",
                "message": format!(
                    "The leak report could not be written to {}: {error}. The record file {} holds the same.",
                    folder.display(), process.writer.path().display()
                ),
            },
        );
    }
    if last && process.events.wants(Level::Info) {
        process.events.emit(Level::Info, "process_exit", summary(process));
    }
    process.events.flush();
}

/// Other books have another one, never 0: the header counts every allocation and every free.
fn fingerprint(process: &Process) -> u64 {
    let bytes = process.writer.header_copy();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)) | 1
}

fn snapshot(process: &Process) -> Option<Snapshot> {
    snapshot_of(process, &Area::ALL)
}

/// What the books say now, as far as it is in some areas.
pub(super) fn snapshot_of(process: &Process, areas: &[Area]) -> Option<Snapshot> {
    let header = process.writer.header_copy();
    let areas: Vec<(Area, Vec<Vec<u8>>)> =
        areas.iter().map(|area| (*area, process.writer.area_copy(*area))).collect();
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
    // What a process with this number left behind, or somebody's link to a file that is none of our business.
    let _ = std::fs::remove_file(&partial);
    let written = new_file(&partial).and_then(|mut file| file.write_all(&text));
    // A reader sees a whole report or none.
    written.and_then(|()| std::fs::rename(&partial, &target)).inspect_err(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(&partial);
        }
    })
}

/// To be read by whoever collects reports: 0644, less what the umask takes away.
fn new_file(path: &Path) -> io::Result<File> {
    // create_new is O_EXCL, which follows no link. The library adds O_CLOEXEC.
    OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).mode(0o644).open(path)
}

impl Process {
    /// Keeps an event for the reports.
    #[inline(never)]
    pub fn keep_note(&self, kind: u32, fields: &serde_json::Value) {
        if let Ok(text) = serde_json::to_vec(fields) {
            let mut note = Vec::with_capacity(size_of::<NoteHead>() + text.len());
            note.extend_from_slice(&kind.to_ne_bytes());
            note.extend_from_slice(&(text.len() as u32).to_ne_bytes());
            note.extend_from_slice(&text);
            self.writer.append(Area::Notes, &note, offset_of!(NoteHead, bytes));
        }
    }
}

fn summary(process: &Process) -> serde_json::Value {
    let devices: Vec<_> = snapshot(process)
        .map(|s| Report::from_snapshot(&s, Termination::Exit, realtime_ns()))
        .map(|report| report.devices.iter().filter_map(|d| serde_json::to_value(d).ok()).collect())
        .unwrap_or_default();
    fields! { "devices": devices }
}
