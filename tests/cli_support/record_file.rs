//! Lays out record files byte by byte, by the offsets of layout.rs.

use std::mem::offset_of;

use cuwarden::record::layout::*;

/// A record file in the making.
pub struct RecordFile {
    pub header: Vec<u8>,
    pub areas: [Vec<u8>; AREAS],
}

/// One allocation to be written.
#[derive(Clone, Copy)]
pub struct Allocation {
    pub address: u64,
    pub bytes: u64,
    pub born_ns: u64,
    pub class: u8,
    pub api: u16,
    pub runtime_api: u16,
    pub runtime: u8,
    pub device: u8,
    pub stack: u32,
}

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation {
            address: 0x7000_0000,
            bytes: 1 << 20,
            born_ns: 1_000_000_000,
            class: Class::Pointer as u8,
            api: 2,
            runtime_api: 27,
            runtime: 1,
            device: 0,
            stack: 0,
        }
    }
}

pub fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

impl RecordFile {
    /// A process of two devices, still running as far as the file knows.
    pub fn new() -> RecordFile {
        let mut file = RecordFile { header: vec![0; HEADER_BYTES], areas: Default::default() };
        file.u64(offset_of!(Header, magic), MAGIC);
        file.u32(offset_of!(Header, version), VERSION);
        file.u32(offset_of!(Header, header_bytes), HEADER_BYTES as u32);
        file.u32(offset_of!(Header, pid), 4242);
        file.u32(offset_of!(Header, ppid), 4000);
        file.u64(offset_of!(Header, start_ticks), 77);
        file.u64(offset_of!(Header, started_ns), 1_796_090_584_567_000_000);
        file.u32(offset_of!(Header, driver_version), 13000);
        file.u32(offset_of!(Header, runtime_versions), 12090);
        file.u32(offset_of!(Header, stack_depth), 24);
        file.text(0, offset_of!(Header, exe), "/opt/app/trainer");
        file.text(1, offset_of!(Header, cmdline), "trainer\0--epochs\x003\0");
        file.text(2, offset_of!(Header, labels), "arm=A,cuda=12.9");
        for ordinal in 0..2 {
            file.device(ordinal, &format!("GPU-0000000{ordinal}"), "Simulated GPU");
        }
        file
    }

    pub fn u32(&mut self, offset: usize, value: u32) {
        put(&mut self.header, offset, &value.to_le_bytes());
    }

    pub fn u64(&mut self, offset: usize, value: u64) {
        put(&mut self.header, offset, &value.to_le_bytes());
    }

    fn text(&mut self, index: usize, offset: usize, text: &str) {
        put(&mut self.header, offset, text.as_bytes());
        self.u32(offset_of!(Header, text_lengths) + index * 4, text.len() as u32);
    }

    pub fn device(&mut self, ordinal: usize, uuid: &str, name: &str) {
        let at = offset_of!(Header, devices) + ordinal * size_of::<Device>();
        self.u32(at + offset_of!(Device, present), 1);
        self.u32(at + offset_of!(Device, text_lengths), (uuid.len() | name.len() << 16) as u32);
        put(&mut self.header, at + offset_of!(Device, uuid), uuid.as_bytes());
        put(&mut self.header, at + offset_of!(Device, name), name.as_bytes());
        self.u64(at + offset_of!(Device, total_bytes), 16 << 30);
    }

    pub fn device_field(&mut self, ordinal: usize, field: usize, value: u64) {
        self.u64(offset_of!(Header, devices) + ordinal * size_of::<Device>() + field, value);
    }

    pub fn count(&mut self, stripe: usize, ordinal: usize, alloc: u64, free: u64) {
        let at = offset_of!(Header, counts) + (stripe * MAX_DEVICES + ordinal) * size_of::<Counts>();
        self.u64(at + offset_of!(Counts, alloc), alloc);
        self.u64(at + offset_of!(Counts, free), free);
    }

    pub fn ended(&mut self, ns: u64) {
        self.u64(offset_of!(Header, ended_ns), ns);
    }

    fn area(&mut self, area: Area) -> &mut Vec<u8> {
        &mut self.areas[area.index()]
    }

    pub fn allocation(&mut self, a: Allocation) {
        let mut raw = [0; RECORD_BYTES];
        put(&mut raw, offset_of!(Record, address), &a.address.to_le_bytes());
        put(&mut raw, offset_of!(Record, bytes), &a.bytes.to_le_bytes());
        put(&mut raw, offset_of!(Record, born_ns), &a.born_ns.to_le_bytes());
        put(&mut raw, offset_of!(Record, stack), &a.stack.to_le_bytes());
        put(&mut raw, offset_of!(Record, kind), &kind_of(&a).to_le_bytes());
        put(&mut raw, offset_of!(Record, place), &place_of(&a).to_le_bytes());
        self.area(Area::Records).extend(raw);
    }

    /// When the samples of all series were taken, in nanoseconds since the start.
    pub fn sampled(&mut self, at_ns: &[u64]) {
        for (n, at_ns) in at_ns.iter().enumerate() {
            self.u64(offset_of!(Header, sample_ns) + n * 8, *at_ns);
        }
    }

    /// What the call stack of an allocation like this held at each sample, in bytes.
    pub fn series(&mut self, a: Allocation, bytes: &[u64]) {
        let mut raw = [0; SERIES_BYTES];
        put(&mut raw, offset_of!(Series, stack), &a.stack.to_le_bytes());
        put(&mut raw, offset_of!(Series, kind), &kind_of(&a).to_le_bytes());
        put(&mut raw, offset_of!(Series, place), &place_of(&a).to_le_bytes());
        for (n, bytes) in bytes.iter().enumerate() {
            put(&mut raw, offset_of!(Series, bytes) + n * 8, &bytes.to_le_bytes());
        }
        self.area(Area::Series).extend(raw);
    }

    /// A place whose allocation was freed.
    pub fn freed(&mut self) {
        self.area(Area::Records).extend([0; RECORD_BYTES]);
    }

    /// Adds a stack of (module id, address) and answers its number for records.
    pub fn stack(&mut self, frames: &[(u64, u64)]) -> u32 {
        let area = self.area(Area::Stacks);
        let number = area.len() as u32 / 8 + 1;
        area.extend(0x1234u64.to_le_bytes());
        area.extend((frames.len() as u32).to_le_bytes());
        area.extend([0; 4]);
        for (module, address) in frames {
            area.extend((module << FRAME_MODULE_SHIFT | address).to_le_bytes());
        }
        number
    }

    pub fn module(&mut self, id: u32, path: &str, build_id: &[u8]) {
        let bytes = (size_of::<ModuleHead>() + path.len() + build_id.len()).next_multiple_of(8);
        let mut entry = vec![0; bytes];
        put(&mut entry, offset_of!(ModuleHead, id), &id.to_le_bytes());
        put(&mut entry, offset_of!(ModuleHead, path_bytes), &(path.len() as u32).to_le_bytes());
        put(&mut entry, offset_of!(ModuleHead, build_id_bytes), &(build_id.len() as u32).to_le_bytes());
        put(&mut entry, offset_of!(ModuleHead, entry_bytes), &(bytes as u32).to_le_bytes());
        put(&mut entry, size_of::<ModuleHead>(), path.as_bytes());
        put(&mut entry, size_of::<ModuleHead>() + path.len(), build_id);
        self.area(Area::Modules).extend(entry);
    }

    pub fn note(&mut self, kind: u32, json: &str) {
        let area = self.area(Area::Notes);
        area.extend(kind.to_le_bytes());
        area.extend((json.len() as u32).to_le_bytes());
        area.extend(json.as_bytes());
        area.resize(area.len().next_multiple_of(8), 0);
    }

    /// The areas cut into extents as the writer makes them.
    pub fn extents(&self) -> Vec<(Area, Vec<u8>)> {
        let mut list = Vec::new();
        for area in Area::ALL {
            let mut rest = self.areas[area.index()].as_slice();
            let mut bytes = area.first_extent_bytes() as usize;
            while !rest.is_empty() {
                let (part, after) = rest.split_at(rest.len().min(bytes));
                let mut extent = part.to_vec();
                extent.resize(bytes, 0);
                list.push((area, extent));
                rest = after;
                bytes *= 2;
            }
        }
        list
    }

    /// The header with `used` filled in.
    pub fn finished_header(&self) -> Vec<u8> {
        let mut header = self.header.clone();
        for area in Area::ALL {
            let used = self.areas[area.index()].len() as u64;
            put(&mut header, offset_of!(Header, used) + area.index() * 8, &used.to_le_bytes());
        }
        header
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.finished_header();
        for (index, (area, extent)) in self.extents().into_iter().enumerate() {
            set_extent(&mut bytes, index, area as u32, None, extent.len() as u64);
            bytes.extend(extent);
        }
        bytes
    }
}

fn kind_of(a: &Allocation) -> u32 {
    1 | u32::from(a.class) << 8 | u32::from(a.api) << 16
}

fn place_of(a: &Allocation) -> u32 {
    u32::from(a.device) | u32::from(a.runtime) << 8 | u32::from(a.runtime_api) << 16
}

/// Writes row `index` of the extent table; no offset = the file's end as it is now.
pub fn set_extent(bytes: &mut [u8], index: usize, area: u32, offset: Option<u64>, length: u64) {
    let row = offset_of!(Header, extents) + index * size_of::<Extent>();
    let offset = offset.unwrap_or(bytes.len() as u64);
    put(bytes, row + offset_of!(Extent, area), &area.to_le_bytes());
    put(bytes, row + offset_of!(Extent, offset), &offset.to_le_bytes());
    put(bytes, row + offset_of!(Extent, bytes), &length.to_le_bytes());
}
