//! Devices and their quotas, refusals, and failures to start: what all hooks have in common.

use super::driver;
use super::table::Id;
use crate::cuda::abi::{CUdevice, CUresult, CUuuid};
use crate::cuda::error::{self, CUDA_ERROR_OUT_OF_MEMORY};
use crate::ledger::{Account, Denied, Reserved};
use crate::policy::config::Level;
use crate::process::Process;
use crate::record::identity::store_bytes;
use crate::record::layout::{Area, MAX_DEVICES, NoteHead};
use crate::record::snapshot::NOTE_INIT_FAILURE;
use crate::report::size::bytes as size;
use crate::tracking::contexts::{Context, Origin};
use serde_json::{Value, json};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

/// The calling thread's context and its device.
#[inline]
pub(super) fn current(process: &Process) -> Option<(usize, u8)> {
    let handle = driver::current_context()?;
    Some((handle, context_device(process, handle)?))
}

/// The device of a context, which must be the current one if it is not known.
#[inline]
pub(super) fn context_device(process: &Process, handle: usize) -> Option<u8> {
    if let Some(context) = process.contexts.find(handle) {
        return Some(context.device);
    }
    let device = device_number(driver::current_device()?)?;
    process.contexts.add(handle, Context { device, origin: Origin::Primary });
    process.events.allow_thread();
    Some(device)
}

/// A CUDA ordinal as the books hold it.
pub(super) fn device_number(device: CUdevice) -> Option<u8> {
    u8::try_from(device).ok().filter(|d| usize::from(*d) < MAX_DEVICES)
}

/// The account of a device, looked up and entered in the books at first use.
#[inline]
pub(super) fn account(process: &Process, device: u8) -> Option<Account<'_>> {
    // Acquire pairs with the Release in `enter_device`.
    if process.device(device)?.present.load(Ordering::Acquire) == 0 {
        enter_device(process, device)?;
    }
    process.account(device)
}

#[cold]
fn enter_device(process: &Process, number: u8) -> Option<()> {
    let entry = process.device(number)?;
    let ordinal = CUdevice::from(number);
    // Before cuInit, and for a device that is not there, nothing is known: what limit it has is decided later.
    let total = driver::total_memory(ordinal)?;
    // Two threads may do this at once: they write the same. Drivers before 9.2 have no UUID.
    let uuid = driver::uuid(ordinal).map(|uuid| uuid_text(&uuid)).unwrap_or_default();
    let name = driver::name(ordinal).unwrap_or_default();
    let uuid_length = store_bytes(&entry.uuid, uuid.as_bytes());
    let name_length = store_bytes(&entry.name, &name);
    entry.text_lengths.store(uuid_length | name_length << 16, Ordering::Relaxed);
    entry.total_bytes.store(total, Ordering::Relaxed);
    entry.limit_bytes.store(process.config.limits.of(u32::from(number), &uuid), Ordering::Relaxed);
    // Release pairs with the Acquire in `account` and in readers of the file.
    entry.present.store(1, Ordering::Release);
    Some(())
}

/// `GPU-` and the UUID as NVML prints it.
pub(super) fn uuid_text(uuid: &CUuuid) -> String {
    let hex: String = uuid.bytes.iter().map(|b| format!("{b:02x}")).collect();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or("").to_owned();
    format!("GPU-{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// Takes `bytes`, giving unused pool and graph memory of this process back first if there is no room without.
#[inline]
pub(super) fn reserve(process: &Process, device: u8, bytes: u64) -> Result<Reserved, Denied> {
    let Some(account) = account(process, device) else { return Ok(Reserved::NOTHING) };
    match account.reserve(bytes) {
        Ok(reserved) => Ok(reserved),
        Err(_) => reserve_after_trim(process, device, account, bytes),
    }
}

#[cold]
fn reserve_after_trim(
    process: &Process,
    device: u8,
    account: Account<'_>,
    bytes: u64,
) -> Result<Reserved, Denied> {
    super::pool::trim_all(process, device);
    super::graph::trim(process, device);
    account.reserve(bytes)
}

/// Refuses a request: counted always, said once.
#[cold]
pub(super) fn deny(process: &Process, api: Id, device: u8, bytes: u64, denied: Denied) -> CUresult {
    let Some(entry) = process.device(device) else { return CUDA_ERROR_OUT_OF_MEMORY };
    entry.denied_count.fetch_add(1, Ordering::Relaxed);
    if process.first_denial(CUdevice::from(device), api.name()) {
        let uuid = device_uuid(process, device);
        process.events.emit(
            Level::Warn,
            "quota_denied",
            json!({
                "device": device, "uuid": uuid, "api": api.name(),
                "requested_bytes": bytes, "used_bytes": denied.used, "limit_bytes": denied.limit,
                "message": format!(
                    "{} of {} was refused on device {device}: {} of the {} quota are in use. Further refusals are \
                     counted, not logged.",
                    api.name(), size(bytes), size(denied.used), size(denied.limit)
                ),
            }),
        );
    }
    CUDA_ERROR_OUT_OF_MEMORY
}

/// The UUID of a device in the books.
pub(super) fn device_uuid(process: &Process, device: u8) -> String {
    let Some(entry) = process.device(device) else { return String::new() };
    let length = (entry.text_lengths.load(Ordering::Relaxed) & 0xffff) as usize;
    let bytes: Vec<u8> = entry.uuid.iter().take(length).map(|b| b.load(Ordering::Relaxed)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Says once that CUDA or a context could not be started, and keeps it for the report.
#[cold]
pub(super) fn init_failure(process: &Process, api: &'static str, code: CUresult, device: Option<CUdevice>) {
    if !process.first_failure(api, code, device.unwrap_or(-1)) {
        return;
    }
    let depth = process.config.stack_depth.max(crate::policy::config::DEFAULT_STACK_DEPTH);
    let stack: Vec<Value> = process
        .stacks
        .describe(&process.writer, depth)
        .into_iter()
        .map(|(module, offset)| json!({ "module": module, "offset": offset, "function": null, "file": null, "line": null }))
        .collect();
    let on_device = device.map(|d| format!(" on device {d}")).unwrap_or_default();
    let fields = json!({
        "api": api, "code": code, "name": error::name(code), "device": device, "stack": stack,
        "message": format!("{api} failed{on_device}: {} ({code}).", error::name(code)),
    });
    if let Ok(text) = serde_json::to_vec(&fields) {
        let mut note = Vec::with_capacity(size_of::<NoteHead>() + text.len());
        note.extend_from_slice(&NOTE_INIT_FAILURE.to_ne_bytes());
        note.extend_from_slice(&(text.len() as u32).to_ne_bytes());
        note.extend_from_slice(&text);
        process.writer.append(Area::Notes, &note, offset_of!(NoteHead, bytes));
    }
    process.events.emit(Level::Error, "init_failure", fields);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_as_nvml_prints_them() {
        let uuid = CUuuid { bytes: std::array::from_fn(|i| i as u8 * 17) };
        assert_eq!(uuid_text(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
