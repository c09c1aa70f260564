//! MPS, and the limit that it holds its clients to.

use std::ffi::OsString;

use super::model::{Line, Verdict};
use crate::diagnose::machine::Place;
use crate::policy::limit::parse_bytes;

const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where the daemon and its clients meet unless told otherwise.
const USUAL: &str = "/tmp/nvidia-mps";

/// What was read.
#[derive(Debug, Default)]
pub struct Mps {
    /// The variable's value.
    value: Option<String>,
    /// By device, in bytes; `None`: the value cannot be read.
    entries: Option<Vec<(u32, u64)>>,
    directory: String,
    is_named: bool,
    /// What shows that the daemon runs.
    daemon: Option<String>,
}

pub fn look(place: &Place, variable: &dyn Fn(&str) -> Option<OsString>) -> Mps {
    let text =
        |name: &str| variable(name).map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.is_empty());
    let value = text(LIMIT);
    let named = text(PIPES);
    let directory = named.clone().unwrap_or_else(|| USUAL.to_owned());
    let pipe = format!("{}/control", directory.trim_end_matches('/'));
    let there = || place.exists(&pipe).then(|| format!("there is {pipe}"));
    Mps {
        entries: value.as_deref().map_or(Some(Vec::new()), entries),
        is_named: named.is_some(),
        daemon: process(place).or_else(there),
        value,
        directory,
    }
}

/// `0=1G,1=512M`
fn entries(value: &str) -> Option<Vec<(u32, u64)>> {
    let entry = |part: &str| {
        let (device, bytes) = part.split_once('=')?;
        Some((device.trim().parse().ok()?, parse_bytes(bytes.trim()).ok()?))
    };
    value.split(',').map(entry).collect()
}

fn process(place: &Place) -> Option<String> {
    let ids = place.names("/proc").into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    ids.into_iter().find_map(|pid| {
        // The kernel keeps 15 characters of the name.
        let is_mps = place.text(&format!("/proc/{pid}/comm"))?.starts_with("nvidia-cuda-mps");
        let line = place.text(&format!("/proc/{pid}/cmdline")).filter(|_| is_mps)?;
        let name = line.split(['\0', ' ']).next()?.rsplit('/').next()?.to_owned();
        Some(format!("{name} runs as pid {pid}"))
    })
}

impl Mps {
    /// The limit of a device by its number, where somebody keeps it.
    pub fn limit(&self, device: u32) -> Option<u64> {
        self.daemon.as_ref()?;
        self.entries.iter().flatten().find(|(known, _)| *known == device).map(|(_, bytes)| *bytes)
    }

    pub fn lines(&self) -> Vec<Line> {
        let warning = |what: String, action: &str| vec![Line::new("mps", Verdict::Warning, what, action)];
        let Mps { directory, .. } = self;
        match (&self.value, &self.daemon) {
            (Some(value), _) if self.entries.is_none() => warning(
                format!("{LIMIT}={value} is no list of limits"),
                "Name devices and sizes, for example 0=2G,1=512M.",
            ),
            (Some(value), Some(daemon)) => {
                vec![Line::ok("mps", format!("MPS holds clients to {LIMIT}={value}; {daemon}"))]
            }
            (Some(value), None) => warning(
                format!("{LIMIT}={value} is set, and no MPS daemon is seen in {directory}: nobody keeps it"),
                "Start nvidia-cuda-mps-control -d with the same CUDA_MPS_PIPE_DIRECTORY, or unset it.",
            ),
            (None, Some(daemon)) => vec![Line::ok(
                "mps",
                format!(
                    "programs become clients of MPS: {daemon}; a limit of its own cannot be seen from here"
                ),
            )],
            (None, None) if self.is_named => warning(
                format!("{PIPES} is {directory}, and no MPS daemon is seen there: programs run without MPS"),
                "Start nvidia-cuda-mps-control -d with the same folder, or unset it.",
            ),
            (None, None) => Vec::new(),
        }
    }
}
