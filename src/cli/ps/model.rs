//! The JSON schema `cuwarden.ps/1`.
//!
//! Fields may be added; none is renamed or removed without a new schema number. null = not known.

use std::collections::BTreeMap;

use serde::Serialize;

/// The value of [`Listing::schema`].
pub const SCHEMA: &str = "cuwarden.ps/1";

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// In order of their paths.
    pub directories: Vec<Directory>,
}

/// One CUWARDEN_DIR: its processes share one set of quotas.
#[derive(Debug, Serialize)]
pub struct Directory {
    /// Where it is.
    pub path: String,
    /// Devices that its processes use or used.
    pub devices: Vec<Device>,
    /// What could not be read, in words.
    pub problems: Vec<String>,
}

/// A device, as the processes of one directory share it.
#[derive(Debug, Serialize)]
pub struct Device {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: Option<String>,
    /// Memory of the device, in bytes.
    pub total_bytes: Option<u64>,
    /// Quota in bytes; 0 = none.
    pub limit_bytes: Option<u64>,
    /// Who set it.
    pub limit_by: Option<LimitBy>,
    /// What running processes hold together, in bytes, contexts included.
    pub used_bytes: u64,
    /// What one context takes, in bytes, where it was measured.
    pub context_cost_bytes: Option<u64>,
    /// Requests that the quota refused, of all processes so far.
    pub denied_count: Option<u64>,
    /// Those who hold something, largest first, then the dead.
    pub processes: Vec<Process>,
}

/// Who set a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitBy {
    /// `cuwarden limit`.
    Operator,
    /// The environment of a process.
    Environment,
    /// Nobody.
    None,
}

/// A process on one device.
#[derive(Debug, Serialize)]
pub struct Process {
    /// In its own pid namespace; null while it starts.
    pub pid: Option<u32>,
    /// Its number where this was asked; null where it cannot be seen from there, and for the dead.
    pub host_pid: Option<u32>,
    /// Path of the program.
    pub exe: Option<String>,
    /// `CUWARDEN_LABELS`, taken apart.
    pub labels: Option<BTreeMap<String, String>>,
    /// What it does.
    pub state: State,
    /// What it holds, in bytes, without contexts; of a dead one what it held at its death, which nobody holds now.
    pub live_bytes: Option<u64>,
    /// What its contexts are charged, in bytes.
    pub context_bytes: Option<u64>,
    /// The most that it held at one time, in bytes, without contexts.
    pub peak_bytes: Option<u64>,
    /// Requests of this process that the quota refused.
    pub denied_count: Option<u64>,
    /// NVML's figure for it less what is charged to it, in bytes; 0 = no more apart than one context's share.
    pub unaccounted_bytes: Option<i64>,
    /// First CUDA use, RFC 3339 in UTC.
    pub started_at: Option<String>,
    /// Its number means the same here as in its own namespace.
    #[serde(skip)]
    pub is_neighbour: bool,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It runs.
    Running,
    /// It runs, stopped by a signal or a debugger.
    Stopped,
    /// It runs, in a pid namespace of which nothing can be seen from here.
    OtherNamespace,
    /// It is dead.
    Dead,
}
