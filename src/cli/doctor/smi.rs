//! What `nvidia-smi` said on another machine, given as a text.

mod judge;
mod parse;
mod table;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;

use super::super::error::{Failure, NO_INPUT};
use crate::policy::versions::CudaVersion;
use crate::policy::versions::release::Release;

pub use judge::{cuda, judge};
pub use parse::parse;

/// The answer for a machine with hundreds of cards and processes is a MiB.
const MOST_BYTES: u64 = 4 << 20;

/// What the text says. What it does not say is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Smi {
    /// Release of the driver.
    #[serde(serialize_with = "shown")]
    pub driver: Option<Release>,
    /// The driver's CUDA version, as it stands there.
    #[serde(serialize_with = "shown")]
    pub cuda: Option<CudaVersion>,
    /// There is a place for the CUDA version, and no version in it.
    pub has_no_cuda: bool,
    /// `Attached GPUs`: how many should follow.
    pub attached: Option<u32>,
    /// Cards, in the order of the text.
    pub gpus: Vec<Gpu>,
    /// What it said instead of an answer, or beside it.
    pub messages: Vec<Message>,
}

/// A card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// The address in the form that all texts agree on.
    #[serde(skip)]
    key: String,
    /// As 00000000:17:00.0.
    pub bus: String,
    pub name: Option<String>,
    pub uuid: Option<String>,
    /// NVML_COMPUTEMODE_…
    pub compute_mode: Option<u32>,
    /// In MIG mode.
    pub mig: Option<bool>,
    /// Its MIG instances.
    pub instances: u32,
    pub total_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Errors since the driver was loaded that ECC could not correct.
    pub uncorrected: Option<u64>,
    /// Pages that were taken out of use.
    pub retired_pages: Option<u64>,
    /// Rows that were replaced.
    pub remapped_rows: Option<u64>,
    /// Memory is taken out of use at the next reset.
    pub is_repair_pending: Option<bool>,
    /// No spare rows are left.
    pub has_remapping_failed: Option<bool>,
    /// Why clocks are lower than they could be.
    pub throttled_by: Vec<String>,
    pub persistence: Option<bool>,
    pub processes: Vec<Process>,
    /// As `Reset` or `Reboot`; empty = none.
    pub recovery: Option<String>,
    /// State of its part in the NVLink fabric.
    pub fabric: Option<String>,
    /// A vGPU's.
    pub is_licensed: Option<bool>,
    /// Fields in whose place an error stands.
    pub errors: Vec<Unreadable>,
}

/// A process on a card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub bytes: Option<u64>,
}

/// A field that could not be read there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    pub field: String,
    pub error: String,
}

/// A line that is no field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    pub kind: Kind,
    pub text: String,
}

/// What a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    VersionMismatch,
    NoDriver,
    NoDevices,
    Lost,
    NoPermission,
    Blocked,
    /// NVML did not start, for another reason.
    NotStarted,
    CorruptInforom,
    NoProgram,
}

fn shown<T: ToString, S: serde::Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(to)
}

/// Reads the text; `-` is standard input.
pub fn read(path: &Path) -> Result<Smi, Failure> {
    let mut bytes = Vec::new();
    let done = if path == Path::new("-") {
        io::stdin().lock().take(MOST_BYTES).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes))
    };
    done.map_err(|error| Failure::path(NO_INPUT, "read", path, &error))?;
    Ok(parse(&bytes))
}
