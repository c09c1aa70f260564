//! Reading a record file.
//!
//! The file may be cut short, overwritten, from another version, or written by a live process at this very
//! moment, so every field is hostile: what cannot be believed is left out and counted in
//! [`Snapshot::damaged`], and a file that is no record file at all is a [`SnapshotError`]. Nothing here
//! panics, and memory and time are bounded by [`MAX_AREA_BYTES`], whatever the file claims.

mod area;
mod error;
mod header;
mod liveness;
mod series;

pub use error::{Fault, SnapshotError};
pub use liveness::{Liveness, Observer};
pub use series::{Origin, SeriesOf};

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{
    AREAS, Area, Class, FRAME_MODULE_SHIFT, HEADER_BYTES, MAX_SERIES, RECORD_BYTES, SERIES_BYTES,
};
use area::{Joined, Source};
use header::HeaderView;

/// Bytes of each area that are read, in the order of [`Area::ALL`]. A file that claims more is damaged or
/// hostile: 1 GiB of records is 22 million live allocations.
pub const MAX_AREA_BYTES: [u64; AREAS] =
    [1 << 30, 256 << 20, 64 << 20, 4 << 20, MAX_SERIES as u64 * SERIES_BYTES as u64];
/// Frames of one call stack that are believed.
pub const MAX_FRAMES: u32 = 1024;
/// Damages described in words; the others are only counted.
const MAX_PROBLEMS: usize = 16;

/// What a record file says, copied out of it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// In the process's own pid namespace.
    pub pid: u32,
    /// The parent when the file was made.
    pub ppid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Inode of its pid namespace; 0 = not known.
    pub pid_namespace: u64,
    /// The boot it ran in; all zero = not known.
    pub boot_id: [u8; 16],
    /// Nanoseconds since 1970, when the file was made.
    pub started_ns: u64,
    /// Nanoseconds since 1970, at an orderly exit; 0 = still running, or killed.
    pub ended_ns: u64,
    /// CUDA version of the driver (13000 = 13.0); 0 = not known.
    pub driver_version: u32,
    /// Frames kept for each allocation.
    pub stack_depth: u32,
    /// CUDA runtimes seen (12090 = 12.9). A record's [`LiveRecord::runtime`] is a place in this list.
    pub runtime_versions: Vec<u32>,
    /// Allocations that have no record.
    pub lost_records: u64,
    /// Path of the program.
    pub exe: String,
    /// Its arguments.
    pub cmdline: Vec<String>,
    /// `CUWARDEN_LABELS` as given.
    pub labels: String,
    /// Devices that the process knew, by ordinal.
    pub devices: Vec<DeviceState>,
    /// Live allocations, in the order of the file.
    pub records: Vec<LiveRecord>,
    /// When the samples of [`SeriesOf::bytes`] were taken, in nanoseconds since [`Snapshot::started_ns`]; 0 = none is in
    /// that place. In no order.
    pub sample_ns: Vec<u64>,
    /// Live bytes through time.
    pub series: Vec<SeriesOf>,
    /// Call stacks, each once, frames innermost first. [`LiveRecord::stack`] is a place in this list.
    pub stacks: Vec<Arc<[Frame]>>,
    /// Loaded modules. [`Frame::module`] is a place in this list.
    pub modules: Vec<Module>,
    /// Messages for the report.
    pub notes: Vec<Note>,
    /// Parts that could not be believed and were left out.
    pub damaged: u64,
    /// The first of them, in words.
    pub problems: Vec<String>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// CUDA ordinal in that process.
    pub ordinal: u32,
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory of the device, in bytes.
    pub total_bytes: u64,
    /// Quota in bytes; 0 = none.
    pub limit_bytes: u64,
    /// The most it held, in bytes.
    pub peak_bytes: u64,
    /// Requests that the quota refused.
    pub denied_count: u64,
    /// Bytes of its contexts, where known.
    pub context_bytes: u64,
    /// Successful allocations.
    pub alloc_count: u64,
    /// Successful frees.
    pub free_count: u64,
}

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRecord {
    /// Device pointer or handle.
    pub address: u64,
    /// What it takes, in bytes.
    pub bytes: u64,
    /// Nanoseconds since [`Snapshot::started_ns`].
    pub born_ns: u64,
    /// The CUcontext it ends with; 0 = none.
    pub owner: u64,
    /// Place in [`Snapshot::stacks`].
    pub stack: Option<u32>,
    /// Thread that allocated it.
    pub tid: u32,
    /// What kind of thing it is.
    pub class: Class,
    /// Driver function, a place in [`crate::record::api::APIS`].
    pub api: u16,
    /// Runtime function on whose behalf, a place in [`crate::record::api::APIS`]; 0 = none.
    pub runtime_api: u16,
    /// Place in [`Snapshot::runtime_versions`].
    pub runtime: Option<u8>,
    /// CUDA ordinal.
    pub device: u8,
}

/// One frame of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Place in [`Snapshot::modules`]; none: no known module held it.
    pub module: Option<u32>,
    /// Return address as an address of the module's ELF file; without a module as it was in memory.
    pub address: u64,
}

/// One loaded ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its number in the file.
    pub id: u32,
    /// Where it lay when it was loaded.
    pub path: PathBuf,
    /// Its build-id; empty = it had none.
    pub build_id: Vec<u8>,
    /// Where its address 0 was in memory.
    pub bias: u64,
}

/// One message for the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// [`NOTE_INIT_FAILURE`] or [`NOTE_LEAK_SUSPECT`].
    pub kind: u32,
    /// The message.
    pub json: serde_json::Value,
}

/// A note that holds an `init_failure` event.
pub const NOTE_INIT_FAILURE: u32 = 1;
/// A note that holds a `leak_suspect` event.
pub const NOTE_LEAK_SUSPECT: u32 = 2;

impl Snapshot {
    /// Reads the record file at `path`, of a live process too.
    pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
        Self::read(path).map_err(|fault| SnapshotError { file: Some(path.to_owned()), fault })
    }

    fn read(path: &Path) -> Result<Snapshot, Fault> {
        // Without O_NONBLOCK, opening a pipe that has no writer would wait for ever.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(Fault::Io)?;
        if !file.metadata().map_err(Fault::Io)?.is_file() {
            return Err(Fault::NotAFile);
        }
        let mut header = Vec::with_capacity(HEADER_BYTES);
        (&file).take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(Fault::Io)?;
        HeaderView::check(&header)?;
        Ok(Builder::default().build(&header, |problems| {
            // Read anew for each area: a live process adds to the file while it is being read.
            let mut fresh = vec![0; HEADER_BYTES];
            let fresh = match file.read_exact_at(&mut fresh, 0) {
                Ok(()) => fresh,
                Err(_) => header.clone(),
            };
            let length = file.metadata().map_or(0, |m| m.len());
            let used = HeaderView(&fresh).used();
            let extents = area::from_table(HeaderView(&fresh), length, problems, |offset, bytes| {
                Source::File { file: &file, offset, bytes }
            });
            (used, extents)
        }))
    }

    /// Reads a record file that is in memory as a whole.
    pub fn from_bytes(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
        let in_memory = |fault| SnapshotError { file: None, fault };
        let header = bytes.get(..HEADER_BYTES).unwrap_or(bytes);
        HeaderView::check(header).map_err(in_memory)?;
        Ok(Builder::default().build(header, |problems| {
            let extents =
                area::from_table(HeaderView(header), bytes.len() as u64, problems, |offset, length| {
                    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                    let end =
                        usize::try_from(offset.saturating_add(length)).unwrap_or(usize::MAX).min(bytes.len());
                    Source::Memory(&bytes[start..end])
                });
            (HeaderView(header).used(), extents)
        }))
    }

    /// Reads a header and the extents as their owner has them in memory, in the order in which they were
    /// added. The header's own extent table is not looked at: where the file could not grow, an extent has
    /// no place in it.
    pub fn from_parts(header: &[u8], extents: &[(Area, &[u8])]) -> Result<Snapshot, SnapshotError> {
        HeaderView::check(header).map_err(|fault| SnapshotError { file: None, fault })?;
        Ok(Builder::default().build(header, |_| {
            let extents = extents
                .iter()
                .map(|&(area, bytes)| (area, bytes.len() as u64, Source::Memory(bytes)))
                .collect();
            (HeaderView(header).used(), extents)
        }))
    }
}

/// What could not be believed.
#[derive(Default)]
struct Problems {
    count: u64,
    words: Vec<String>,
}

impl Problems {
    fn add(&mut self, words: impl FnOnce() -> String) {
        self.add_many(1, words);
    }

    fn add_many(&mut self, count: u64, words: impl FnOnce() -> String) {
        if count > 0 && self.words.len() < MAX_PROBLEMS {
            self.words.push(words());
        }
        self.count = self.count.saturating_add(count);
    }
}

/// Bytes in use of each area, and all extents in the order in which they were added.
type Extents<'a> = ([u64; AREAS], Vec<(Area, u64, Source<'a>)>);

#[derive(Default)]
struct Builder {
    out: Snapshot,
    problems: Problems,
}

impl Builder {
    fn build<'a>(mut self, header: &[u8], mut extents: impl FnMut(&mut Problems) -> Extents<'a>) -> Snapshot {
        HeaderView(header).copy_to(&mut self.out, &mut self.problems);
        // A record points to its stack, a stack to its modules, and each is written after what it points
        // to. So in this order, whatever a live process adds meanwhile, no pointer leads past the end.
        let mut join = |area: Area, problems: &mut Problems| {
            let mut own = Problems::default();
            let (used, list) = extents(&mut own);
            if area == Area::Records {
                // The same table is looked at for each area; its faults count once.
                problems.add_many(own.count, || own.words.join("; "));
            }
            Joined::new(area, used[area.index()], list, problems)
        };
        let records = join(Area::Records, &mut self.problems);
        let mut raw_stacks = self.records(&records);
        let series = join(Area::Series, &mut self.problems).load();
        for (series, stack) in
            series::parse_series(&series, self.out.runtime_versions.len(), &mut self.problems)
        {
            self.out.series.push(series);
            raw_stacks.push(stack);
        }
        let stacks = join(Area::Stacks, &mut self.problems).load();
        let modules = join(Area::Modules, &mut self.problems);
        let by_id = self.modules(&modules);
        self.stacks(raw_stacks, &stacks, &by_id);
        let notes = join(Area::Notes, &mut self.problems);
        self.notes(&notes);
        self.out.damaged = self.problems.count;
        self.out.problems = self.problems.words;
        self.out
    }

    /// Copies the live records; returns for each the number of its stack, which is not looked up yet.
    fn records(&mut self, area: &Joined) -> Vec<u32> {
        let mut raw_stacks = Vec::new();
        let mut buffer = vec![0; 8192 * RECORD_BYTES];
        let mut bad = 0;
        let mut position = 0;
        while position < area.len() {
            let bytes = usize::try_from(area.len() - position).unwrap_or(usize::MAX).min(buffer.len());
            area.read(position, &mut buffer[..bytes]);
            for raw in buffer[..bytes].chunks_exact(RECORD_BYTES) {
                match series::parse_record(raw, self.out.runtime_versions.len()) {
                    Some(None) => {}
                    None => bad += 1,
                    Some(Some((record, stack))) => {
                        self.out.records.push(record);
                        raw_stacks.push(stack);
                    }
                }
            }
            position += bytes as u64;
        }
        self.problems.add_many(bad, || format!("{bad} records with impossible values"));
        raw_stacks
    }

    /// Reads the stacks that records and series point to, each once.
    fn stacks(&mut self, raw: Vec<u32>, area: &[u8], modules: &HashMap<u32, Option<u32>>) {
        // Honest stacks do not overlap, so together they have no more frames than the area has words.
        let mut budget = area.len() / 8;
        let mut by_number: HashMap<u32, Option<u32>> = HashMap::new();
        let mut by_frames: HashMap<Arc<[Frame]>, u32> = HashMap::new();
        let mut bad = 0;
        let of_series = self.out.series.iter_mut().map(|series| &mut series.origin.stack);
        let all = self.out.records.iter_mut().map(|record| &mut record.stack).chain(of_series);
        for (stack, number) in all.zip(raw) {
            if number == 0 {
                continue;
            }
            *stack = *by_number.entry(number).or_insert_with(|| {
                let Some(frames) = parse_stack(area, number, &mut budget, modules) else {
                    bad += 1;
                    return None;
                };
                if frames.is_empty() {
                    return None;
                }
                let frames: Arc<[Frame]> = frames.into();
                if let Some(&place) = by_frames.get(&frames) {
                    return Some(place);
                }
                let place = u32::try_from(self.out.stacks.len()).ok()?;
                self.out.stacks.push(Arc::clone(&frames));
                by_frames.insert(frames, place);
                Some(place)
            });
        }
        self.problems.add_many(bad, || format!("{bad} call stacks with impossible values"));
    }

    fn modules(&mut self, area: &Joined) -> HashMap<u32, Option<u32>> {
        let mut by_id = HashMap::new();
        area.walk(header::module_entry, |entry| {
            let Some(module) = header::parse_module(entry) else {
                return false;
            };
            let place = self.out.modules.len() as u32;
            if module.id == 0 || by_id.insert(module.id, Some(place)).is_some() {
                return false;
            }
            self.out.modules.push(module);
            true
        })
        .count_into(&mut self.problems, "modules");
        by_id
    }

    fn notes(&mut self, area: &Joined) {
        area.walk(header::note_entry, |entry| match header::parse_note(entry) {
            Some(note) => {
                self.out.notes.push(note);
                true
            }
            None => false,
        })
        .count_into(&mut self.problems, "notes");
    }
}

fn parse_stack(
    area: &[u8],
    number: u32,
    budget: &mut usize,
    modules: &HashMap<u32, Option<u32>>,
) -> Option<Vec<Frame>> {
    use super::layout::StackHead;
    use std::mem::offset_of;
    let start = (number as usize - 1).checked_mul(8)?;
    let rest = area.get(start..)?;
    let head = HeaderView(rest.get(..size_of::<StackHead>())?);
    let count = head.u32(offset_of!(StackHead, frames));
    if count > MAX_FRAMES || count as usize > *budget {
        return None;
    }
    let raw = rest.get(size_of::<StackHead>()..size_of::<StackHead>() + count as usize * 8)?;
    *budget -= count as usize;
    Some(
        HeaderView(raw)
            .words()
            .map(|word| {
                let id = (word >> FRAME_MODULE_SHIFT) as u32;
                Frame {
                    module: modules.get(&id).copied().flatten(),
                    address: word & ((1 << FRAME_MODULE_SHIFT) - 1),
                }
            })
            .collect(),
    )
}
