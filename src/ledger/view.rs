//! The ledger for those who only look: the command line, and processes that ask NVML and never use CUDA.

use super::file::{self, Map, Unusable};
use super::layout::{Device, Lanes};
use super::limit::Limit;
use super::liveness::{Judge, Who};
use super::protocol;
use super::slots::Ledger;
use crate::event::cancel::Undisturbed;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// An open ledger. Nothing in it is changed.
pub struct View {
    map: Map,
    path: PathBuf,
    id: (u64, u64),
}

/// A device and who has what on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// As the driver gives it.
    pub uuid: [u8; 16],
    /// A MIG instance.
    pub is_mig: bool,
    /// Memory of the device, in bytes.
    pub total_bytes: u64,
    /// The quota.
    pub limit: Limit,
    /// What one context takes, in bytes, where it was measured.
    pub context_cost: Option<u64>,
    /// Requests that the quota refused.
    pub denied: u64,
    /// Those that have something, or had.
    pub holders: Vec<Holder>,
}

/// What one process has on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its place in the ledger.
    pub slot: u16,
    /// Which process; `None` while it is starting.
    pub who: Option<Who>,
    /// False: what it had is free for others.
    pub is_alive: bool,
    /// Held and in flight, in bytes, contexts included.
    pub bytes: u64,
    /// Of these, for its contexts.
    pub context_bytes: u64,
    /// CLOCK_REALTIME when it began, in ns.
    pub since_ns: u64,
}

impl DeviceView {
    /// What living processes hold, in bytes.
    pub fn used(&self) -> u64 {
        self.holders.iter().filter(|h| h.is_alive).map(|h| h.bytes).fold(0, u64::saturating_add)
    }
}

impl View {
    /// Opens the ledger of a directory; `None`: it has none.
    pub fn open(directory: &Path) -> Result<Option<View>, Unusable> {
        let _undisturbed = Undisturbed::new();
        let path = file::path_in(directory);
        let Some(opened) = file::open(&path, false)? else { return Ok(None) };
        let map = file::map_to_read(&opened.file)?;
        Ok(Some(View { map, path, id: opened.id }))
    }

    /// Of a ledger that this process takes part in.
    pub fn of(ledger: &Ledger) -> View {
        View { map: ledger.map(), path: ledger.path().to_owned(), id: ledger.id() }
    }

    /// The operator's limit of devices that nobody has used yet.
    pub fn default_limit(&self) -> Limit {
        // Acquire pairs with the Release of whoever set it.
        Limit::of(self.map.header().default_limit.load(Ordering::Acquire))
    }

    /// False once another file lies in its place.
    pub fn is_current(&self) -> bool {
        let _undisturbed = Undisturbed::new();
        matches!(file::open(&self.path, false), Ok(Some(opened)) if opened.id == self.id)
    }

    /// All devices, in the order in which they were first used.
    pub fn devices(&self) -> Vec<DeviceView> {
        let _undisturbed = Undisturbed::new();
        let mut judge = Judge::new(Who::this_process(), self.path.clone(), self.id);
        self.map.devices().map(|(index, device)| view_of(self.map, index, device, &mut judge)).collect()
    }
}

/// One device as it is now. Processes go on meanwhile, so the sum is that of no particular moment.
pub(super) fn view_of(map: Map, index: usize, device: &Device, judge: &mut Judge) -> DeviceView {
    let [low, high] = device.uuid.load();
    let mut uuid = [0; 16];
    uuid.iter_mut()
        .zip(high.to_be_bytes().into_iter().chain(low.to_be_bytes()))
        .for_each(|(to, from)| *to = from);
    let holder = |slot: u16, lanes: &Lanes, judge: &mut Judge| {
        let [charged, _] = lanes.charged.load();
        let entry = map.slot(slot)?;
        let who = Who::of(entry).map(|(who, _)| who);
        // What is charged before it is somebody's is of somebody dead.
        let of_its_own = |bytes: u64| if who.is_some() { bytes } else { 0 };
        Some(Holder {
            slot,
            who,
            is_alive: !judge.is_dead(map, slot),
            bytes: of_its_own(charged.saturating_sub(protocol::spare(lanes))),
            context_bytes: of_its_own(lanes.contexts.load(Ordering::Relaxed)),
            since_ns: entry.since_ns.load(Ordering::Relaxed),
        })
    };
    DeviceView {
        uuid,
        is_mig: device.is_mig.load(Ordering::Relaxed) != 0,
        total_bytes: device.total_bytes.load(Ordering::Relaxed),
        limit: Limit::of(device.limit.load(Ordering::Acquire)),
        context_cost: device.context_cost.load(Ordering::Relaxed).checked_sub(1),
        denied: device.denied.load(Ordering::Relaxed),
        holders: map.slots().filter_map(|slot| holder(slot, map.lanes(index, slot)?, judge)).collect(),
    }
}
