//! Of several limits on a card's memory: which one a program meets first.

use std::ffi::OsString;

use super::dmem::Dmem;
use super::model::Line;
use super::mps::Mps;
use crate::diagnose::chain::{Chain, Device};
use crate::diagnose::machine::{Machine, Place};
use crate::ledger::limit::Limit;
use crate::ledger::view::View;
use crate::policy::config::Config;
use crate::process::default_directory;
use crate::report::size::bytes as size;
use crate::report::uuid;

/// One line a card with more than a quota. Without NVML's list nothing tells which limit is about which card.
pub fn lines(
    place: &Place,
    variable: &dyn Fn(&str) -> Option<OsString>,
    machine: &Machine,
    chain: Option<&Chain>,
    dmem: &[Dmem],
    mps: &Mps,
) -> Vec<Line> {
    let Some(chain) = chain else { return Vec::new() };
    let (config, _) = Config::parse(variable);
    let view = View::open(&config.dir.clone().unwrap_or_else(default_directory)).ok().flatten();
    // A process counts the cards that it sees; which those are is not worked out here.
    let are_counted_alike = variable("CUDA_VISIBLE_DEVICES").is_none();
    let mut lines = Vec::new();
    for device in &chain.devices {
        let of_kernel = of_kernel(place, machine, chain, device, dmem);
        let of_mps = mps.limit(device.index).filter(|_| are_counted_alike);
        if of_kernel.is_none() && of_mps.is_none() {
            continue;
        }
        let quota = quota(&config, view.as_ref(), device, are_counted_alike);
        let all = [("the kernel's dmem cgroup", of_kernel), ("MPS", of_mps), ("cuwarden's quota", quota)];
        let mut known: Vec<(&str, u64)> =
            all.iter().filter_map(|(name, bytes)| Some((*name, (*bytes)?))).collect();
        // Of equal ones the kernel's comes first.
        known.sort_by_key(|(_, bytes)| *bytes);
        let Some(((name, bytes), others)) = known.split_first() else { continue };
        let others: Vec<String> =
            others.iter().map(|(name, bytes)| format!("{name} {}", size(*bytes))).collect();
        let rest =
            if others.is_empty() { String::new() } else { format!("; above it: {}", others.join(", ")) };
        lines.push(Line::ok(
            "limit_in_force",
            format!("device {} ({}): {name}, {}{rest}", device.index, device.uuid, size(*bytes)),
        ));
    }
    lines
}

/// The operator's quota is before that of a variable.
fn quota(config: &Config, view: Option<&View>, device: &Device, are_counted_alike: bool) -> Option<u64> {
    let devices = view.map(View::devices).unwrap_or_default();
    let bytes = uuid::parse(&device.uuid);
    let set = devices.iter().find(|one| Some(one.uuid) == bytes).map(|one| one.limit);
    let told = || {
        if are_counted_alike {
            config.limits.of(device.index, &device.uuid)
        } else {
            config.limits.of_uuid(&device.uuid).unwrap_or(0)
        }
    };
    let bytes = match set {
        Some(Limit::Operators(bytes)) => bytes,
        _ => told(),
    };
    (bytes != 0).then_some(bytes)
}

/// The least limit of the regions that are this card's.
fn of_kernel(place: &Place, machine: &Machine, chain: &Chain, device: &Device, dmem: &[Dmem]) -> Option<u64> {
    let is_this = |address: &&String| {
        let text = place.text(&format!("/proc/driver/nvidia/gpus/{address}/information")).unwrap_or_default();
        text.contains(&device.uuid)
    };
    let address = machine.gpus.iter().find(is_this).map(|address| address.to_ascii_lowercase());
    let is_alone = chain.devices.len() == 1;
    let its = dmem.iter().filter(|one| match &address {
        Some(address) => one.region.to_ascii_lowercase().contains(address),
        None => is_alone,
    });
    its.map(|one| one.bytes).min()
}
