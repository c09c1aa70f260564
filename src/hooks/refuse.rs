//! Contexts and their devices, refusals, and failures to start: what all hooks have in common.

use super::devices::{account, device_number, uuid_of};
use super::table::Id;
use super::{driver, runtime};
use crate::cuda::abi::{CUdevice, CUresult};
use crate::cuda::error::CUDA_ERROR_OUT_OF_MEMORY;
use crate::event::fields::fields;
use crate::ledger::view::Holder;
use crate::ledger::{Account, Denied, Reserved};
use crate::policy::config::Level;
use crate::policy::{reconcile, refusal};
use crate::process::Process;
use crate::report::size::bytes as size;
use crate::tracking::contexts::{Context, Origin};
use serde_json::Value;
use std::sync::atomic::Ordering;

/// The calling thread's context and its device.
#[inline(always)]
pub(super) fn current(process: &Process) -> Option<(usize, u8)> {
    let handle = driver::current_context()?;
    Some((handle, context_device(process, handle)?))
}

/// The device of a context, which must be the current one if it is not known.
#[inline(always)]
pub(super) fn context_device(process: &Process, handle: usize) -> Option<u8> {
    match process.contexts.find(handle) {
        Some(context) => Some(context.device),
        None => learn_device(process, handle),
    }
}

#[cold]
fn learn_device(process: &Process, handle: usize) -> Option<u8> {
    let device = device_number(driver::current_device()?)?;
    process.contexts.add(handle, Context { device, origin: Origin::Primary });
    process.has_context();
    Some(device)
}

/// Takes `bytes`, giving unused pool and graph memory of this process back first if there is no room without.
#[inline(always)]
pub(super) fn reserve(process: &Process, device: u8, bytes: u64) -> Result<Reserved, Denied> {
    if process.contexts.is_primary_awaited(device) {
        super::context_cost::awaited(process, device)?;
    }
    let Some(account) = account(process, device) else { return without_account(process, device) };
    match account.reserve(bytes) {
        Ok(reserved) => Ok(reserved),
        Err(_) => reserve_after_trim(process, device, account, bytes),
    }
}

/// Of a device whose quota cannot be kept nothing is given away.
#[cold]
pub(super) fn without_account(process: &Process, device: u8) -> Result<Reserved, Denied> {
    if !process.is_shut(device) {
        return Ok(Reserved::NOTHING);
    }
    let limit = process.device(device).map_or(0, |entry| entry.limit_bytes.load(Ordering::Relaxed));
    Err(Denied { used: 0, limit })
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
    let what = match runtime::calling() {
        Some(call) => format!("{call} ({}) of {}", api.name(), size(bytes)),
        None => format!("{} of {}", api.name(), size(bytes)),
    };
    refused(process, api, &what, device, bytes, denied)
}

/// Refuses a context, whoever makes it.
#[cold]
pub(super) fn deny_context(process: &Process, device: u8, bytes: u64, denied: Denied) -> CUresult {
    let what = format!("a context, which takes {},", size(bytes));
    refused(process, Id::cuDevicePrimaryCtxRetain, &what, device, bytes, denied)
}

fn refused(process: &Process, api: Id, what: &str, device: u8, bytes: u64, denied: Denied) -> CUresult {
    let Some(entry) = process.device(device) else { return CUDA_ERROR_OUT_OF_MEMORY };
    entry.denied_count.fetch_add(1, Ordering::Relaxed);
    entry.limit_bytes.store(denied.limit, Ordering::Relaxed);
    if let Some(account) = process.account(device) {
        account.entered.device.denied.fetch_add(1, Ordering::Relaxed);
    }
    if process.first_denial(CUdevice::from(device), api.name()) {
        let holders = process.account(device).map(|account| account.holders()).unwrap_or_default();
        process.events.emit(
            Level::Warn,
            "quota_denied",
            fields! {
                "device": device, "uuid": uuid_of(process, device), "api": api.name(), "runtime_api": runtime::calling(),
                "requested_bytes": bytes, "used_bytes": denied.used, "limit_bytes": denied.limit,
                "holders": holders.iter().map(holder).collect::<Vec<_>>(),
                "message": refusal::text(what, device, denied, &holders, process.pid()),
            },
        );
        if process.events.wants(Level::Debug) {
            compare_with_driver(process, device);
        }
    }
    CUDA_ERROR_OUT_OF_MEMORY
}

/// Says where the driver's own figure for this process is not that of the books.
fn compare_with_driver(process: &Process, device: u8) {
    let Some(account) = process.account(device) else { return };
    let uuid = uuid_of(process, device);
    let Some(figure) = super::nvml_ask::usage(process, &uuid, true).and_then(|usage| usage.ours) else {
        return;
    };
    let charged = account.held().saturating_add(account.contexts());
    let bytes = reconcile::unaccounted(figure, charged, account.entered.context_cost());
    if bytes != 0 {
        process.events.emit(
            Level::Debug,
            "unaccounted",
            fields! {
                "device": device, "uuid": uuid, "driver_bytes": figure, "charged_bytes": charged,
                "unaccounted_bytes": bytes,
                "message": format!(
                    "NVML says that this process has {} on device {device}, and the books say {}. What the driver takes \
                     for itself, or what was allocated where the shim does not see it, makes the difference.",
                    size(figure), size(charged)
                ),
            },
        );
    }
}

fn holder(holder: &Holder) -> Value {
    fields! {
        "pid": holder.who.map(|who| who.pid), "bytes": holder.bytes, "context_bytes": holder.context_bytes,
    }
}
