//! Devices: looked up and entered in the books at first use.

use super::driver;
use crate::cuda::abi::{CUdevice, CUuuid};
use crate::event::fields::fields;
use crate::ledger::limit::Outcome;
use crate::ledger::slots::{DeviceKey, model};
use crate::ledger::{Account, Unusable};
use crate::policy::config::Level;
use crate::process::Process;
use crate::record::identity::store_bytes;
use crate::record::layout::{Device, MAX_DEVICES};
use crate::report::size::bytes as size;
use std::sync::atomic::Ordering;

/// A CUDA ordinal as the books hold it.
pub(super) fn device_number(device: CUdevice) -> Option<u8> {
    u8::try_from(device).ok().filter(|d| usize::from(*d) < MAX_DEVICES)
}

/// The account of a device, looked up and entered in the books at first use. `None`: not known, or not to be kept.
#[inline(always)]
pub(super) fn account(process: &Process, device: u8) -> Option<Account<'_>> {
    // Acquire pairs with the Release in `enter`.
    if process.device(device)?.present.load(Ordering::Acquire) == 0 {
        enter(process, device)?;
    }
    process.account(device)
}

/// The UUID of a device in the books.
pub(super) fn uuid_of(process: &Process, device: u8) -> String {
    let Some(entry) = process.device(device) else { return String::new() };
    let length = (entry.text_lengths.load(Ordering::Relaxed) & 0xffff) as usize;
    let bytes: Vec<u8> = entry.uuid.iter().take(length).map(|b| b.load(Ordering::Relaxed)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cold]
fn enter(process: &Process, number: u8) -> Option<()> {
    let entry = process.device(number)?;
    let ordinal = CUdevice::from(number);
    // Before cuInit, and for a device that is not there, nothing is known: what limit it has is decided later.
    let total = driver::total_memory(ordinal)?;
    let (identity, is_mig) = identify(ordinal);
    let name = driver::name(ordinal).unwrap_or_default();
    // One thread at a time: a process has one right to change a device's account.
    let _entering = process.entering();
    if entry.present.load(Ordering::Acquire) != 0 {
        return Some(());
    }
    let uuid = identity.map(|uuid| uuid_text(&uuid, is_mig)).unwrap_or_default();
    let uuid_length = store_bytes(&entry.uuid, uuid.as_bytes());
    let name_length = store_bytes(&entry.name, &name);
    entry.text_lengths.store(uuid_length | name_length << 16, Ordering::Relaxed);
    entry.total_bytes.store(total, Ordering::Relaxed);
    let told = process.config.limits.of(u32::from(number), &uuid);
    let key = DeviceKey {
        // Drivers before 9.2 have none.
        uuid: identity.map_or_else(|| crate::report::uuid::of_place(number), |uuid| uuid.bytes),
        is_mig,
        model: model(&name),
        total_bytes: total,
    };
    match process.ledger.enter(&key, told) {
        Ok((entered, outcome)) => {
            process.set_entered(number, entered);
            let limit = process.account(number).map_or(told, |account| account.limit());
            entry.limit_bytes.store(limit, Ordering::Relaxed);
            say(process, number, &uuid, told, outcome);
        }
        Err(error) => cannot_enter(process, entry, number, told, &error),
    }
    // Release pairs with the Acquire in `account` and in readers of the file.
    entry.present.store(1, Ordering::Release);
    Some(())
}

/// A device's UUID, and whether it is that of a MIG instance: then the older question gives the card's.
fn identify(ordinal: CUdevice) -> (Option<CUuuid>, bool) {
    let card = driver::card_uuid(ordinal);
    match driver::instance_uuid(ordinal) {
        Some(instance) => (Some(instance), card.is_some_and(|card| card != instance)),
        None => (card, false),
    }
}

/// `GPU-` or `MIG-` and the UUID as NVML prints it.
fn uuid_text(uuid: &CUuuid, is_mig: bool) -> String {
    let kind = if is_mig { "MIG" } else { "GPU" };
    format!("{kind}-{}", crate::report::uuid::text(&uuid.bytes))
}

fn say(process: &Process, device: u8, uuid: &str, told: u64, outcome: Outcome) {
    let shown = |bytes: u64| if bytes == 0 { "no limit".to_owned() } else { size(bytes) };
    match outcome {
        Outcome::Agreed | Outcome::Joined(_) => {}
        Outcome::Differs { before, holds } => process.events.emit(
            Level::Warn,
            "config_error",
            fields! {
                "variable": process.config.limits_from, "value": told, "device": device, "uuid": uuid,
                "reason": format!("another process of the same directory was told {before} bytes"),
                "allowed": "the same limit in all processes that share a CUWARDEN_DIR",
                "limit_bytes": holds,
                "message": format!(
                    "{} says {} for device {device}, but another process of this directory set {}. The stricter one \
                     holds: {}. Give all processes the same limit, or set it for all with: cuwarden limit.",
                    process.config.limits_from, shown(told), shown(before), shown(holds)
                ),
            },
        ),
        Outcome::Overruled(bytes) => process.events.emit(
            Level::Info,
            "limit_overruled",
            fields! {
                "device": device, "uuid": uuid, "told_bytes": told, "limit_bytes": bytes,
                "message": format!(
                    "The operator has set {} for device {device} (cuwarden limit), instead of {}.",
                    shown(bytes), shown(told)
                ),
            },
        ),
    }
}

#[cold]
fn cannot_enter(process: &Process, entry: &Device, device: u8, told: u64, error: &Unusable) {
    entry.limit_bytes.store(told, Ordering::Relaxed);
    let consequence = if told == 0 {
        "What this process allocates on it is not counted."
    } else {
        process.shut(device);
        "A memory limit is set for it and cannot be kept, so nothing more is allocated on it."
    };
    let path = process.ledger.path().display();
    process.events.emit(
        if told == 0 { Level::Warn } else { Level::Error },
        "config_error",
        fields! {
            "variable": "CUWARDEN_DIR", "value": path.to_string(), "reason": error.to_string(), "device": device,
            "allowed": "a directory with free space that nobody removes while processes use it",
            "message": format!(
                "Device {device} cannot be entered in {path}: {error}. {consequence} Start the process again when \
                 that is corrected."
            ),
        },
    );
}
