//! The fields of the header and of the entries, taken from bytes by their offsets.

use std::ffi::OsString;
use std::mem::offset_of;
use std::os::unix::ffi::OsStringExt;

use super::{DeviceState, Fault, Module, Note, Problems, Snapshot};
use crate::record::layout::{
    AREAS, Area, Counts, Device, Extent, HEADER_BYTES, Header, MAGIC, MAX_DEVICES, MAX_RUNTIMES, ModuleHead,
    NoteHead, SAMPLES, STRIPES, VERSION,
};

/// Longest build-id that is believed, in bytes. The usual one has 20.
const MAX_BUILD_ID: usize = 64;

/// Little-endian fields in a run of bytes. What lies beyond its end reads as 0.
#[derive(Clone, Copy)]
pub(super) struct HeaderView<'a>(pub &'a [u8]);

impl<'a> HeaderView<'a> {
    /// Is this the header of a record file that this version can read?
    pub fn check(bytes: &[u8]) -> Result<(), Fault> {
        let view = HeaderView(bytes);
        match view.u64(offset_of!(Header, magic)) {
            MAGIC => {}
            0 if bytes.len() >= 8 || bytes.is_empty() => return Err(Fault::NotBegun),
            _ => return Err(Fault::NotARecordFile),
        }
        // The version first: another version may have a header of another size.
        if bytes.len() < offset_of!(Header, pid) {
            return Err(Fault::CutShort(bytes.len()));
        }
        match view.u32(offset_of!(Header, version)) {
            VERSION => {}
            found => return Err(Fault::Version(found)),
        }
        match view.u32(offset_of!(Header, header_bytes)) {
            found if found as usize != HEADER_BYTES => return Err(Fault::HeaderSize(found)),
            _ => {}
        }
        // The owner may hand over the struct alone, without the padding to whole pages.
        if bytes.len() < size_of::<Header>() {
            return Err(Fault::CutShort(bytes.len()));
        }
        Ok(())
    }

    pub fn u32(self, offset: usize) -> u32 {
        let mut word = [0; 4];
        if let Some(bytes) = self.0.get(offset..offset + 4) {
            word.copy_from_slice(bytes);
        }
        u32::from_le_bytes(word)
    }

    pub fn u64(self, offset: usize) -> u64 {
        let mut word = [0; 8];
        if let Some(bytes) = self.0.get(offset..offset + 8) {
            word.copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }

    /// All whole u64 from the start on.
    pub fn words(self) -> impl Iterator<Item = u64> + use<'a> {
        self.0.chunks_exact(8).map(|word| HeaderView(word).u64(0))
    }

    fn text(self, offset: usize, length: usize) -> String {
        String::from_utf8_lossy(self.0.get(offset..offset + length).unwrap_or_default()).into_owned()
    }

    /// Bytes in use of each area.
    pub fn used(self) -> [u64; AREAS] {
        Area::ALL.map(|area| self.u64(offset_of!(Header, used) + area.index() * 8))
    }

    /// Row `index` of the extent table: area number, offset, length.
    pub fn extent(self, index: usize) -> (u32, u64, u64) {
        let row = offset_of!(Header, extents) + index * size_of::<Extent>();
        (
            self.u32(row + offset_of!(Extent, area)),
            self.u64(row + offset_of!(Extent, offset)),
            self.u64(row + offset_of!(Extent, bytes)),
        )
    }

    pub fn copy_to(self, out: &mut Snapshot, problems: &mut Problems) {
        out.pid = self.u32(offset_of!(Header, pid));
        out.ppid = self.u32(offset_of!(Header, ppid));
        out.start_ticks = self.u64(offset_of!(Header, start_ticks));
        out.pid_namespace = self.u64(offset_of!(Header, pid_namespace));
        let boot_id = offset_of!(Header, boot_id);
        if let Some(bytes) = self.0.get(boot_id..boot_id + 16) {
            out.boot_id.copy_from_slice(bytes);
        }
        out.started_ns = self.u64(offset_of!(Header, started_ns));
        out.ended_ns = self.u64(offset_of!(Header, ended_ns));
        out.driver_version = self.u32(offset_of!(Header, driver_version));
        out.stack_depth = self.u32(offset_of!(Header, stack_depth));
        out.lost_records = self.u64(offset_of!(Header, lost_records));
        out.runtime_versions = (0..MAX_RUNTIMES)
            .map(|i| self.u32(offset_of!(Header, runtime_versions) + i * 4))
            .take_while(|&version| version != 0)
            .collect();
        out.sample_ns = (0..SAMPLES).map(|i| self.u64(offset_of!(Header, sample_ns) + i * 8)).collect();

        let mut length = |index: usize, room: usize, what: &str| {
            let length = self.u32(offset_of!(Header, text_lengths) + index * 4) as usize;
            if length > room {
                problems.add(|| format!("the {what} claims {length} bytes and has room for {room}"));
            }
            length.min(room)
        };
        let (exe, cmdline, labels) =
            (length(0, 1024, "program's path"), length(1, 4096, "command line"), length(2, 1024, "labels"));
        out.exe = self.text(offset_of!(Header, exe), exe);
        let arguments = self.text(offset_of!(Header, cmdline), cmdline);
        out.cmdline = match arguments.strip_suffix('\0').unwrap_or(&arguments) {
            "" => Vec::new(),
            list => list.split('\0').map(str::to_owned).collect(),
        };
        out.labels = self.text(offset_of!(Header, labels), labels);
        out.devices = (0..MAX_DEVICES).filter_map(|ordinal| self.device(ordinal, problems)).collect();
    }

    fn device(self, ordinal: usize, problems: &mut Problems) -> Option<DeviceState> {
        let at = offset_of!(Header, devices) + ordinal * size_of::<Device>();
        match self.u32(at + offset_of!(Device, present)) {
            0 => return None,
            1 => {}
            other => {
                problems.add(|| format!("device {ordinal} has the state {other}"));
                return None;
            }
        }
        let lengths = self.u32(at + offset_of!(Device, text_lengths));
        let (uuid, name) = ((lengths & 0xffff) as usize, (lengths >> 16) as usize);
        if uuid > 64 || name > 96 {
            problems.add(|| format!("device {ordinal} claims a name of {name} bytes and a UUID of {uuid}"));
        }
        let counts = |field: usize| {
            (0..STRIPES)
                .map(|stripe| {
                    let row = (stripe * MAX_DEVICES + ordinal) * size_of::<Counts>();
                    self.u64(offset_of!(Header, counts) + row + field)
                })
                .fold(0, u64::wrapping_add)
        };
        Some(DeviceState {
            ordinal: ordinal as u32,
            uuid: self.text(at + offset_of!(Device, uuid), uuid.min(64)),
            name: self.text(at + offset_of!(Device, name), name.min(96)),
            total_bytes: self.u64(at + offset_of!(Device, total_bytes)),
            limit_bytes: self.u64(at + offset_of!(Device, limit_bytes)),
            peak_bytes: self.u64(at + offset_of!(Device, peak_bytes)),
            denied_count: self.u64(at + offset_of!(Device, denied_count)),
            context_bytes: self.u64(at + offset_of!(Device, context_bytes)),
            alloc_count: counts(offset_of!(Counts, alloc)),
            free_count: counts(offset_of!(Counts, free)),
        })
    }
}

/// Head size and entry size of a module whose head is in `head`; entry size 0 = none here yet.
pub(super) fn module_entry(head: &[u8]) -> u64 {
    u64::from(HeaderView(head).u32(offset_of!(ModuleHead, entry_bytes)))
}

pub(super) fn parse_module(entry: &[u8]) -> Option<Module> {
    let view = HeaderView(entry);
    let path_bytes = view.u32(offset_of!(ModuleHead, path_bytes)) as usize;
    let build_id_bytes = view.u32(offset_of!(ModuleHead, build_id_bytes)) as usize;
    if build_id_bytes > MAX_BUILD_ID {
        return None;
    }
    let rest = entry.get(size_of::<ModuleHead>()..)?;
    let (path, rest) = rest.split_at_checked(path_bytes)?;
    let build_id = rest.get(..build_id_bytes)?;
    Some(Module {
        id: view.u32(offset_of!(ModuleHead, id)),
        path: OsString::from_vec(path.to_vec()).into(),
        build_id: build_id.to_vec(),
        bias: view.u64(offset_of!(ModuleHead, bias)),
    })
}

pub(super) fn note_entry(head: &[u8]) -> u64 {
    match HeaderView(head).u32(offset_of!(NoteHead, bytes)) {
        0 => 0,
        bytes => (size_of::<NoteHead>() as u64 + u64::from(bytes)).next_multiple_of(8),
    }
}

pub(super) fn parse_note(entry: &[u8]) -> Option<Note> {
    let view = HeaderView(entry);
    let bytes = view.u32(offset_of!(NoteHead, bytes)) as usize;
    let json = entry.get(size_of::<NoteHead>()..)?.get(..bytes)?;
    Some(Note { kind: view.u32(offset_of!(NoteHead, kind)), json: serde_json::from_slice(json).ok()? })
}
