//! The bytes of the ledger, version 1, little-endian.
//!
//! [`Header`], the devices, the slots, then for each device one [`Lanes`] a slot. The file is sparse and ends with the
//! last lanes that were taken: a process takes the blocks of its own before it touches them. All zero is a valid state of everything but the header.
//! Readers treat every field as hostile.

use super::atomic::{AtomicU64, Pair};
use std::sync::atomic::{AtomicU8, AtomicU32};

/// "cuwledgr" in file order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"cuwledgr");
/// Raised by every change of a field's place or meaning.
pub const VERSION: u32 = 1;
/// Processes that can use one ledger at a time.
pub const SLOTS: usize = 1024;
/// Devices, MIG instances each for itself.
pub const DEVICES: usize = 64;
/// Places for spare bytes of one process on one device.
pub const CELLS: usize = if cfg!(loom) { 2 } else { 8 };

/// What the file is.
#[repr(C, align(4096))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`SLOTS`].
    pub slots: AtomicU32,
    /// [`DEVICES`].
    pub devices: AtomicU32,
    /// [`CELLS`].
    pub cells: AtomicU32,
    /// Where the search for a free slot begins: a ticket.
    pub next_slot: AtomicU32,
    /// No slot from this one on was ever used.
    pub slots_end: AtomicU32,
    /// CLOCK_REALTIME when it was made, in ns.
    pub created_ns: AtomicU64,
    /// The operator's limit for devices that have no entry yet; see [`super::limit`].
    pub default_limit: AtomicU64,
}

/// A device by its UUID.
#[repr(C, align(256))]
pub struct Device {
    /// Its 16 bytes as two big-endian words; 0 = the place is free. Put there by one exchange, never changed.
    pub uuid: Pair,
    /// 1 = a MIG instance.
    pub is_mig: AtomicU32,
    /// Tells products apart: a hash of the name, never 0. 0 = not known.
    pub model: AtomicU32,
    /// What one context takes, in bytes, plus 1; 0 = not measured yet.
    pub context_cost: AtomicU64,
    /// Memory of the device, in bytes.
    pub total_bytes: AtomicU64,
    /// Requests that the quota refused, of all processes.
    pub denied: AtomicU64,
    line_end: [u64; 1],
    /// See `protocol`: what is charged, and the last operation.
    pub word: Word,
    /// See [`super::limit`].
    pub limit: AtomicU64,
    /// When the cells were last closed to refuse something, in ms of CLOCK_REALTIME_COARSE.
    pub closed_ms: AtomicU64,
    /// The highest that was charged at a time, in bytes, as far as processes looked.
    pub peak: AtomicU64,
}

/// On a cache line of its own.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Word(pub Pair);

/// A process.
#[repr(C, align(128))]
pub struct Slot {
    /// Odd from when somebody claims it to when he has written the rest and may be charged; 0 = never used.
    pub generation: AtomicU64,
    /// Bit n: the process has lanes on device n.
    pub devices: AtomicU64,
    /// In the process's own pid namespace.
    pub pid: AtomicU32,
    /// A [`super::liveness::Hold`].
    pub hold: AtomicU32,
    /// Field 22 of /proc/self/stat, in clock ticks since boot.
    pub start_ticks: AtomicU64,
    /// Field 28 of /proc/self/stat: where its stack begins, which an exec changes. 0 = not known.
    pub stack_start: AtomicU64,
    /// Inode of /proc/self/ns/pid.
    pub pid_namespace: AtomicU64,
    /// CLOCK_REALTIME when the slot was taken, in ns.
    pub since_ns: AtomicU64,
    /// As 16 bytes.
    pub boot_id: [AtomicU8; 16],
}

/// What one process has on one device.
#[repr(C, align(1024))]
#[derive(Default)]
pub struct Lanes {
    /// Low: bytes charged to it; high: version.
    pub charged: Pair,
    /// Sequence number of its last completed operation.
    pub done: AtomicU64,
    /// The part of what is charged that its contexts take, in bytes. For the reader only.
    pub contexts: AtomicU64,
    line_end: [u64; 4],
    /// Its next operation, or its last.
    pub intent: Intent,
    /// Spare bytes.
    pub cells: [Cell; CELLS],
}

/// An operation: everything that it changes, each from an exact state that never comes again.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Intent {
    /// Its sequence number; 0 = being written.
    pub sequence: AtomicU64,
    /// Bits 0-15 the slot whose charge changes; 16-23 one of its cells plus 1, 0 = none; 24 the cell is open after it.
    pub target: AtomicU64,
    /// That slot's `charged` before it.
    pub charged_before: [AtomicU64; 2],
    /// Bytes charged after it.
    pub charged_after: AtomicU64,
    /// The cell before it. After it the cell is empty.
    pub cell_before: AtomicU64,
    line_end: u64,
}

/// Bytes that are charged and not in use: bits 0-22 how many, bit 23 open, bits 24-63 a version. One word, since every
/// allocation and every free exchanges one.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Cell(pub AtomicU64);

/// Where the devices begin.
pub const DEVICES_AT: usize = size_of::<Header>();
/// Where the slots begin.
pub const SLOTS_AT: usize = DEVICES_AT + DEVICES * size_of::<Device>();
/// Where the lanes begin: all before is one block of the file.
pub const LANES_AT: usize = (SLOTS_AT + SLOTS * size_of::<Slot>()).next_multiple_of(4096);
/// Of one device.
pub const LANES_BYTES: usize = SLOTS * size_of::<Lanes>();
/// The longest that a ledger is.
pub const FILE_BYTES: usize = LANES_AT + DEVICES * LANES_BYTES;

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Header>() == 4096 && size_of::<Device>() == 256 && size_of::<Slot>() == 128);
    assert!(size_of::<Lanes>() == 1024 && std::mem::offset_of!(Lanes, cells) == 128);
    assert!(std::mem::offset_of!(Device, word) == 64 && std::mem::offset_of!(Device, limit) == 128);
    // The slot of an operation has 16 bits, a slot's devices 64.
    assert!(SLOTS <= 1 << 16 && DEVICES <= 64);
};
