//! The bytes of a record file, version 2, little-endian.
//!
//! A header of [`HEADER_BYTES`], then extents: ranges of the file that the header's extent table lists in
//! the order in which they were added. The extents of one [`Area`] joined together in that order form one
//! growing array of bytes; nothing in it ever moves. Readers treat every field as hostile.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// "cuwarden" in file order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"cuwarden");
/// Raised by every change of a field's place or meaning.
pub const VERSION: u32 = 2;

/// CUDA ordinals that a file has room for. The driver itself stops at 64.
pub const MAX_DEVICES: usize = 64;
/// Extents of all areas together. Each area doubles with every extent, so this is never the limit.
pub const MAX_EXTENTS: usize = 128;
/// The index is split so that threads do not meet; each part counts for itself.
pub const STRIPES: usize = 16;
/// Moments at which the live bytes of each call stack are kept.
pub const SAMPLES: usize = 46;
/// Call stacks that are followed through time. More than a program has; what a hostile one makes is not worth more.
pub const MAX_SERIES: u32 = 1 << 16;
/// Runtimes (libcudart) that one process can name.
pub const MAX_RUNTIMES: usize = 8;

/// What an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Area {
    /// [`Record`]s.
    Records = 1,
    /// Call stacks: a [`StackHead`], then its frames as u64, innermost first.
    Stacks = 2,
    /// Loaded modules: a [`ModuleHead`], then the path, then the build-id, padded to 8 bytes.
    Modules = 3,
    /// Messages for the report: a [`NoteHead`], then UTF-8 JSON, padded to 8 bytes.
    Notes = 4,
    /// [`Series`].
    Series = 5,
}

/// Number of areas.
pub const AREAS: usize = Area::ALL.len();

impl Area {
    /// All areas, in the order of [`Header::used`].
    pub const ALL: [Area; 5] = [Area::Records, Area::Stacks, Area::Modules, Area::Notes, Area::Series];

    /// Bytes of the first extent; each later one is twice the one before it.
    pub const fn first_extent_bytes(self) -> u64 {
        match self {
            // A multiple of both the page size and the record size.
            Area::Records => 1024 * RECORD_BYTES as u64,
            Area::Stacks => 64 << 10,
            Area::Modules | Area::Notes => 16 << 10,
            // As above.
            Area::Series => 64 * SERIES_BYTES as u64,
        }
    }

    /// Place in [`Header::used`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }
}

/// One range of the file.
#[repr(C)]
#[derive(Debug)]
pub struct Extent {
    /// An [`Area`]; 0 = the table ends here. Written last.
    pub area: AtomicU32,
    /// Always 0.
    pub reserved: AtomicU32,
    /// From the start of the file, in bytes; a multiple of 4096.
    pub offset: AtomicU64,
    /// Length in bytes.
    pub bytes: AtomicU64,
}

/// A device as this process sees it; the place in the table is its CUDA ordinal.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    /// 1 once the other fields are valid.
    pub present: AtomicU32,
    /// Length of `uuid` and `name` in bytes: low half uuid, high half name.
    pub text_lengths: AtomicU32,
    /// `GPU-…` or `MIG-…`.
    pub uuid: [AtomicU8; 64],
    /// The product name.
    pub name: [AtomicU8; 96],
    /// Memory of the device, in bytes.
    pub total_bytes: AtomicU64,
    /// The quota in force, in bytes; 0 = none.
    pub limit_bytes: AtomicU64,
    /// Always 0.
    pub reserved: AtomicU64,
    /// The highest that it held at a time, in bytes.
    pub peak_bytes: AtomicU64,
    /// Requests that the quota refused.
    pub denied_count: AtomicU64,
    /// Bytes that its contexts take, where known.
    pub context_bytes: AtomicU64,
}

/// Allocations and frees of one device, counted by one stripe of the index.
#[repr(C)]
#[derive(Debug)]
pub struct Counts {
    /// Successful allocations.
    pub alloc: AtomicU64,
    /// Successful frees, those by a context's end included.
    pub free: AtomicU64,
}

/// The start of the file.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`]. Written last.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`HEADER_BYTES`].
    pub header_bytes: AtomicU32,
    /// In the process's own pid namespace.
    pub pid: AtomicU32,
    /// The parent when the file was made.
    pub ppid: AtomicU32,
    /// Field 22 of /proc/self/stat, in clock ticks since boot: with the pid it names one process.
    pub start_ticks: AtomicU64,
    /// Inode of /proc/self/ns/pid.
    pub pid_namespace: AtomicU64,
    /// /proc/sys/kernel/random/boot_id, its 32 hex digits as 16 bytes.
    pub boot_id: [AtomicU8; 16],
    /// CLOCK_REALTIME when the file was made, in ns.
    pub started_ns: AtomicU64,
    /// CLOCK_REALTIME at an orderly exit, in ns; 0 = still running, or killed.
    pub ended_ns: AtomicU64,
    /// CUDA version of the driver (13000 = 13.0); 0 = not known yet.
    pub driver_version: AtomicU32,
    /// Frames kept for each allocation.
    pub stack_depth: AtomicU32,
    /// Versions of the CUDA runtimes seen (12090 = 12.9); 0 ends the list.
    pub runtime_versions: [AtomicU32; MAX_RUNTIMES],
    /// Bytes in use of each area, in the order of [`Area::ALL`].
    pub used: [AtomicU64; AREAS],
    /// Allocations that have no record, because memory or disk for one was missing.
    pub lost_records: AtomicU64,
    /// When the samples of [`Series::bytes`] were taken, each in the same place, in ns since `started_ns`; 0 = none is
    /// there, or it is being taken. In no order: when all places are taken, every other one is used again.
    pub sample_ns: [AtomicU64; SAMPLES],
    /// Length of `exe`, `cmdline` and `labels`, in bytes.
    pub text_lengths: [AtomicU32; 4],
    /// Target of /proc/self/exe.
    pub exe: [AtomicU8; 1024],
    /// /proc/self/cmdline: arguments, each ended by a NUL byte; cut at this size.
    pub cmdline: [AtomicU8; 4096],
    /// `CUWARDEN_LABELS` as given.
    pub labels: [AtomicU8; 1024],
    /// The devices by CUDA ordinal.
    pub devices: [Device; MAX_DEVICES],
    /// Stripe by device.
    pub counts: [[Counts; MAX_DEVICES]; STRIPES],
    /// The extent table.
    pub extents: [Extent; MAX_EXTENTS],
}

/// Size of the header in the file: [`Header`] rounded up to whole pages.
pub const HEADER_BYTES: usize = size_of::<Header>().div_ceil(4096) * 4096;

/// One live allocation, or an empty place.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    /// Device pointer, or the handle for what has none (arrays, VMM handles, pools, modules, graphs).
    pub address: AtomicU64,
    /// What it takes, in bytes.
    pub bytes: AtomicU64,
    /// Nanoseconds since [`Header::started_ns`].
    pub born_ns: AtomicU64,
    /// The CUcontext it ends with; 0 = none.
    pub owner: AtomicU64,
    /// Offset of the call stack in [`Area::Stacks`] divided by 8, plus 1; 0 = none was taken.
    pub stack: AtomicU32,
    /// Thread that allocated it.
    pub tid: AtomicU32,
    /// Bits 0-7 [`RecordState`], 8-15 [`Class`], 16-31 index in [`crate::record::api::APIS`]. Written last.
    pub kind: AtomicU32,
    /// Bits 0-7 CUDA ordinal, 8-15 place in `runtime_versions` plus 1 (0 = no runtime), 16-31 runtime call, as `kind`.
    pub place: AtomicU32,
}

/// Size of a [`Record`].
pub const RECORD_BYTES: usize = size_of::<Record>();
const _: () = assert!(RECORD_BYTES == 48);

/// The live bytes of one call stack through time. Entries never move and are never given up.
#[repr(C)]
#[derive(Debug)]
pub struct Series {
    /// As [`Record::stack`].
    pub stack: AtomicU32,
    /// As [`Record::place`].
    pub place: AtomicU32,
    /// As [`Record::kind`], whose state is [`RecordState::Live`]; 0 = no entry here yet. Written last.
    pub kind: AtomicU32,
    /// Always 0.
    pub reserved: AtomicU32,
    /// What was live at each moment of [`Header::sample_ns`], in bytes.
    pub bytes: [AtomicU64; SAMPLES],
}

/// Size of a [`Series`].
pub const SERIES_BYTES: usize = size_of::<Series>();
const _: () = assert!(SERIES_BYTES == 384 && (64 * SERIES_BYTES).is_multiple_of(4096));

/// State of a [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordState {
    /// The place is empty.
    Empty = 0,
    /// Allocated.
    Live = 1,
}

/// What kind of thing a [`Record`] is; addresses of different classes are different name spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Device pointer: linear, pitch, managed, and stream-ordered ones.
    Pointer = 1,
    /// CUarray.
    Array = 2,
    /// CUmipmappedArray.
    MipmappedArray = 3,
    /// CUmemGenericAllocationHandle of device memory, until it is released and unmapped.
    Physical = 4,
    /// What a CUmemoryPool holds beyond the pointers taken from it.
    PoolReserve = 5,
    /// What the driver holds for graph allocation nodes on one device.
    GraphReserve = 6,
    /// CUmodule or CUlibrary.
    Module = 7,
}

impl Class {
    /// The class with this number.
    pub const fn from_u8(value: u8) -> Option<Class> {
        Some(match value {
            1 => Class::Pointer,
            2 => Class::Array,
            3 => Class::MipmappedArray,
            4 => Class::Physical,
            5 => Class::PoolReserve,
            6 => Class::GraphReserve,
            7 => Class::Module,
            _ => return None,
        })
    }

    /// True for what the driver holds on the program's behalf: a pool's reserve, graph memory, loaded code.
    pub const fn is_held_by_driver(self) -> bool {
        matches!(self, Class::PoolReserve | Class::GraphReserve | Class::Module)
    }
}

/// Precedes the frames of one call stack.
#[repr(C)]
#[derive(Debug)]
pub struct StackHead {
    /// Hash by which equal stacks were recognised.
    pub hash: AtomicU64,
    /// Frames that follow. Written last.
    pub frames: AtomicU32,
    /// Always 0.
    pub reserved: AtomicU32,
}

/// A frame: bits 48-63 the module's [`ModuleHead::id`], bits 0-47 the program counter as an address of
/// that ELF file (the return address minus the load bias). Module 0: no module held it; raw address.
pub const FRAME_MODULE_SHIFT: u32 = 48;

/// Precedes one module's path and build-id.
#[repr(C)]
#[derive(Debug)]
pub struct ModuleHead {
    /// Counts from 1.
    pub id: AtomicU32,
    /// Bytes of the path.
    pub path_bytes: AtomicU32,
    /// Bytes of the build-id after it.
    pub build_id_bytes: AtomicU32,
    /// Whole entry with padding, in bytes, this head included. Written last.
    pub entry_bytes: AtomicU32,
    /// Load bias: where the ELF file's address 0 lies.
    pub bias: AtomicU64,
}

/// Precedes one note.
#[repr(C)]
#[derive(Debug)]
pub struct NoteHead {
    /// 1 = an `init_failure` event, 2 = a `leak_suspect` event.
    pub kind: AtomicU32,
    /// Bytes of JSON that follow. Written last.
    pub bytes: AtomicU32,
}
