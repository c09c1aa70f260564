//! The record files of a directory: their headers, and what the dead held.

mod progress;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::processes::Identity;
use crate::record::layout::HEADER_BYTES;
use crate::record::snapshot::{DeviceState, Fault, Snapshot, SnapshotError};
use crate::report::{labels, uuid};

pub use progress::Progress;

/// What tells devices apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// As the driver gives it.
    Uuid([u8; 16]),
    /// A damaged file's.
    Text(String),
}

/// What a record file says of its process.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which process.
    pub identity: Identity,
    /// The boot that it ran in; zero = not known.
    pub boot_id: [u8; 16],
    /// Path of the program.
    pub exe: String,
    /// `CUWARDEN_LABELS`, taken apart.
    pub labels: BTreeMap<String, String>,
    /// Nanoseconds since 1970, when the file was made.
    pub started_ns: u64,
    /// It ended in an orderly way.
    pub has_ended: bool,
    /// Devices that it used.
    pub devices: Vec<OnDevice>,
    /// The file.
    pub path: PathBuf,
}

/// A process on one device.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// Which device.
    pub key: Key,
    /// As the file has it.
    pub state: DeviceState,
}

/// Bytes that are still allocated, by CUDA ordinal.
pub type Live = HashMap<u32, u64>;

/// Reads the headers of all record files in `directory`; one message for each that cannot be read. `Err`: all of them
/// cannot.
pub fn read(directory: &Path, progress: &mut Progress) -> Result<(Vec<Record>, Vec<String>), String> {
    let folder = directory.join("proc");
    let mut paths: Vec<PathBuf> = match fs::read_dir(&folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(format!("{}: cannot be read: {error}", folder.display())),
    };
    // The order of a folder is chance; the same input gives the same output.
    paths.sort();
    let (mut records, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        progress.step();
        match header(&path) {
            Ok(snapshot) => records.push(Record::of(path, snapshot)),
            // Its process is in its first CUDA call.
            Err(Fault::NotBegun) => {}
            Err(fault) => problems.push(SnapshotError { file: Some(path), fault }.to_string()),
        }
    }
    Ok((records, problems))
}

fn header(path: &Path) -> Result<Snapshot, Fault> {
    // A FIFO would block, a link may lead anywhere.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(Fault::NotAFile),
        opened => opened.map_err(Fault::Io)?,
    };
    if !file.metadata().map_err(Fault::Io)?.is_file() {
        return Err(Fault::NotAFile);
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    file.take(HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(Fault::Io)?;
    Snapshot::from_parts(&bytes, &[]).map_err(|error| error.fault)
}

impl Record {
    fn of(path: PathBuf, snapshot: Snapshot) -> Record {
        Record {
            identity: Identity {
                pid: snapshot.pid,
                start_ticks: snapshot.start_ticks,
                pid_namespace: snapshot.pid_namespace,
            },
            boot_id: snapshot.boot_id,
            exe: snapshot.exe,
            labels: labels(&snapshot.labels),
            started_ns: snapshot.started_ns,
            has_ended: snapshot.ended_ns != 0,
            devices: snapshot
                .devices
                .into_iter()
                .map(|state| OnDevice { key: Key::of(&state), state })
                .collect(),
            path,
        }
    }

    /// What it holds, or held when it died. Reads all of the file, which may have millions of records.
    pub fn live(&self) -> Option<Live> {
        let mut live = Live::new();
        for record in Snapshot::open(&self.path).ok()?.records {
            let sum = live.entry(u32::from(record.device)).or_default();
            *sum = sum.saturating_add(record.bytes);
        }
        Some(live)
    }

    /// False where the counts say that all was freed.
    pub fn may_hold_something(&self) -> bool {
        !self.has_ended || self.devices.iter().any(|one| one.state.alloc_count != one.state.free_count)
    }
}

impl Key {
    fn of(state: &DeviceState) -> Key {
        match uuid::parse(&state.uuid) {
            Some(uuid) => Key::Uuid(uuid),
            // Drivers before 9.2 have none: then the ledger has its place in the list.
            None if state.uuid.is_empty() => Key::Uuid(uuid::of_place(state.ordinal as u8)),
            None => Key::Text(state.uuid.clone()),
        }
    }
}
