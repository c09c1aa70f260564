//! The JSON schema `cuwarden.report/1`.
//!
//! Fields may be added; none is renamed or removed without a new schema number. Readers take a missing
//! added field for its default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::growth::{Growth, GrowthClass};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "cuwarden.report/1";

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The process, as numbered in its own pid namespace.
    pub pid: u32,
    /// Its parent at the first CUDA use.
    pub ppid: u32,
    /// Path of the program.
    pub exe: String,
    /// Its arguments.
    pub cmdline: Vec<String>,
    /// `CUWARDEN_LABELS`, taken apart.
    pub labels: BTreeMap<String, String>,
    /// First CUDA use, RFC 3339 in UTC.
    pub started_at: Option<String>,
    /// Orderly exit; null when it runs, or when its end was not seen.
    pub ended_at: Option<String>,
    /// How it ended.
    pub termination: Termination,
    /// CUDA version of the driver, `13.0`.
    pub driver_version: Option<String>,
    /// CUDA versions of the runtimes it used.
    pub runtime_versions: Vec<String>,
    /// Devices that it used.
    pub devices: Vec<Device>,
    /// What was still allocated, grouped by call stack, largest first.
    pub leaks: Vec<Leak>,
    /// `init_failure` events.
    pub init_failures: Vec<Value>,
    /// `leak_suspect` events.
    #[serde(default)]
    pub leak_suspects: Vec<Value>,
    /// From `started_at` to the moment of this report, in seconds.
    #[serde(default)]
    pub lived_s: f64,
    /// When the samples of [`Leak::timeline`] were taken, in seconds since `started_at`, oldest first.
    #[serde(default)]
    pub timeline_s: Vec<f64>,
    /// Files that [`Frame::module`] names.
    #[serde(default)]
    pub modules: Vec<Module>,
    /// Allocations that could not be recorded: neither in `live_bytes` nor in `leaks`, but charged to the quota.
    #[serde(default)]
    pub lost_records: u64,
    /// Parts of the record file that could not be believed and were left out.
    #[serde(default)]
    pub damaged_parts: u64,
    /// The first of them, in words.
    #[serde(default)]
    pub damages: Vec<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Termination {
    /// In an orderly way.
    Exit,
    /// By a signal, a crash or `_exit`: it could not write its report.
    Killed,
    /// Not at all.
    Running,
    /// It is or was in a pid namespace that cannot be seen from where the report was made.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One device of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// CUDA ordinal in that process.
    pub ordinal: u32,
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Quota in bytes; 0 = none.
    pub limit_bytes: u64,
    /// What was still allocated, in bytes.
    pub live_bytes: u64,
    /// The most that was allocated at one time, in bytes.
    pub peak_bytes: u64,
    /// Successful allocations.
    pub alloc_count: u64,
    /// Successful frees.
    pub free_count: u64,
    /// Requests that the quota refused.
    pub denied_count: u64,
    /// Memory of the device, in bytes.
    #[serde(default)]
    pub total_bytes: u64,
    /// What its contexts took, in bytes, where known; not in `live_bytes`.
    #[serde(default)]
    pub context_bytes: u64,
}

/// What is still allocated from one call stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leak {
    /// CUDA ordinal.
    pub device: u32,
    /// The function that the application called.
    pub api: String,
    /// Allocations.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
    /// Age of the oldest, in seconds.
    pub oldest_age_s: f64,
    /// Age of the newest, in seconds.
    #[serde(default)]
    pub newest_age_s: f64,
    /// Innermost frame first.
    pub stack: Vec<Frame>,
    /// What kind of thing it is.
    #[serde(default)]
    pub class: LeakClass,
    /// Held by the driver on the program's behalf (a pool's reserve, graph memory, loaded code): listed so
    /// that the sums agree, and no leak by itself.
    #[serde(default)]
    pub held_by_driver: bool,
    /// The driver function that `api` came down to; the same as `api` when the driver was called directly.
    #[serde(default)]
    pub driver_api: String,
    /// CUDA version of the runtime that was called.
    #[serde(default)]
    pub runtime: Option<String>,
    /// Whether it grew to the end; null: it was there too shortly to tell, or nobody looked.
    #[serde(default)]
    pub growth: Option<Growth>,
    /// What was live at each moment of [`Report::timeline_s`], in bytes; empty = not followed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<u64>,
}

/// What kind of thing is still allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakClass {
    /// Memory behind a device pointer.
    #[default]
    Pointer,
    /// A CUDA array.
    Array,
    /// A mipmapped array.
    MipmappedArray,
    /// Physical memory of the virtual memory management functions.
    Physical,
    /// What a memory pool keeps beyond the pointers taken from it.
    PoolReserve,
    /// What the driver keeps for graphs that allocate.
    GraphReserve,
    /// Loaded code and its global variables.
    Module,
    /// A kind that a later cuwarden knows.
    #[serde(other)]
    Other,
}

/// One frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Path of the ELF file; null: none held the address.
    pub module: Option<String>,
    /// The return address, as an address of that ELF file.
    pub offset: u64,
    /// Name of the function, demangled; null: not known.
    pub function: Option<String>,
    /// Source file; null: not known.
    pub file: Option<String>,
    /// Line in the source file; null: not known.
    pub line: Option<u32>,
    /// The compiler put this function into the one of the next frame.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
    /// Why the name or the line is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An ELF file in which frames lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Its path when it was loaded.
    pub path: String,
    /// Its build-id in hex; empty = it had none.
    pub build_id: String,
}

impl Report {
    /// Bytes and number of what counts as leaked: everything but what the driver holds.
    pub fn leaked(&self) -> (u64, u64) {
        sums(self.leaks.iter().filter(|leak| !leak.held_by_driver))
    }

    /// Bytes and number of what the driver holds.
    pub fn held(&self) -> (u64, u64) {
        sums(self.leaks.iter().filter(|leak| leak.held_by_driver))
    }

    /// Requests that the quota refused, on all devices.
    pub fn denied(&self) -> u64 {
        self.devices.iter().fold(0, |sum, device| sum.saturating_add(device.denied_count))
    }
}

impl Leak {
    /// True for what grew to the end.
    pub fn is_growing(&self) -> bool {
        self.growth.is_some_and(|growth| growth.class == GrowthClass::Growing)
    }
}

fn sums<'a>(leaks: impl Iterator<Item = &'a Leak>) -> (u64, u64) {
    leaks.fold((0, 0), |(bytes, count), leak| {
        (u64::saturating_add(bytes, leak.bytes), u64::saturating_add(count, leak.count))
    })
}
