//! What contexts cost: hundreds of MiB of the device each, so they are a part of what the quota is for.
//!
//! Nobody can say it before there was a context on that product. Whoever makes the first one in the directory asks
//! NVML before and after, and shares the difference in the ledger; from then on a context is charged before it is
//! made, and refused where it does not fit. `CUWARDEN_COUNT_CONTEXT=0` turns it off.

use super::devices::{self, device_number, uuid_of};
use super::nvml_ask::{self, Usage};
use super::refuse::{self, deny_context};
use super::{driver, graph, pool};
use crate::cuda::abi::{CUdevice, CUresult};
use crate::cuda::error::CUDA_SUCCESS;
use crate::ledger::{Account, Denied};
use crate::process::Process;
use crate::tracking::contexts::Costly;
use std::sync::atomic::Ordering;

/// Contexts take a few dozen to several hundred MiB. What is far from that is somebody else's doing.
const SMALLEST: u64 = 1 << 20;
const LARGEST: u64 = 8 << 30;
/// Of what the whole device's use grew by, which other containers may have had a part in.
const LARGEST_DIFFERENCE: u64 = 1 << 30;

/// A context that is about to be made.
pub(super) struct Coming {
    device: u8,
    cost: Cost,
}

enum Cost {
    NotCounted,
    Charged(u64),
    /// What NVML said before it.
    Measured(Option<Usage>),
}

/// Before a context is made for certain. `Err`: it is refused, with this answer.
pub(super) fn coming(process: &Process, device: CUdevice) -> Result<Coming, CUresult> {
    let Some(device) = device_number(device) else { return Ok(Coming { device: 0, cost: Cost::NotCounted }) };
    try_coming(process, device).map_err(|(bytes, denied)| deny_context(process, device, bytes, denied))
}

/// Before a device's primary context may be made: nothing if it is there already.
pub(super) fn primary_coming(process: &Process, device: CUdevice) -> Result<Option<Coming>, CUresult> {
    if driver::primary_is_active(device) != Some(false) {
        return Ok(None);
    }
    coming(process, device).map(Some)
}

/// The context has been made, or not.
pub(super) fn answered(process: &Process, coming: &Coming, of: Costly, code: CUresult) {
    let device = coming.device;
    let Some(account) = process.account(device) else { return };
    match &coming.cost {
        Cost::NotCounted => {}
        Cost::Charged(bytes) => {
            // Two threads may both have seen it coming.
            if code != CUDA_SUCCESS || !process.contexts.note_cost(device, of, *bytes) {
                account.release_context(*bytes);
            }
        }
        Cost::Measured(before) if code == CUDA_SUCCESS => {
            let after = before.as_ref().and_then(|_| ask(process, device, account));
            if let Some(bytes) = difference(before.as_ref(), after.as_ref()) {
                account.entered.set_context_cost(bytes);
            }
            charge_present(process, device, account, of);
        }
        Cost::Measured(_) => {}
    }
    note(process, device);
}

/// A primary context may have been made: it is there now, or the driver makes it at its first use.
pub(super) fn primary_answered(process: &Process, coming: &Coming, code: CUresult) {
    let is_there = code == CUDA_SUCCESS && driver::primary_is_active(coming.device.into()) == Some(true);
    if code == CUDA_SUCCESS && !is_there {
        process.contexts.await_primary(coming.device, process.config.count_contexts);
    }
    let code = if is_there { CUDA_SUCCESS } else { code.max(1) };
    answered(process, coming, Costly::Primary, code);
}

/// A context has ended.
pub(super) fn ended(process: &Process, device: u8, of: Costly) {
    let bytes = process.contexts.end_cost(device, of);
    if let Some(account) = process.account(device).filter(|_| bytes != 0) {
        account.release_context(bytes);
        note(process, device);
    }
}

/// Before an allocation on a device whose primary context comes with its first use.
#[cold]
pub(super) fn awaited(process: &Process, device: u8) -> Result<(), Denied> {
    let is_there = driver::primary_is_active(device.into()) == Some(true);
    match try_coming(process, device) {
        Ok(Coming { cost: Cost::Charged(bytes), .. }) => {
            if let Some(account) = process.account(device)
                && !process.contexts.note_cost(device, Costly::Primary, bytes)
            {
                account.release_context(bytes);
            }
        }
        // What is there cannot be refused.
        Err((bytes, _)) if is_there => {
            if let Some(account) = process.account(device)
                && process.contexts.note_cost(device, Costly::Primary, bytes)
            {
                account.force_context(bytes);
            }
        }
        Err((_, denied)) => return Err(denied),
        // Once it is there, all that this process has is known, and what it holds.
        Ok(_) if is_there => measure_present(process, device),
        Ok(_) => return Ok(()),
    }
    process.contexts.await_primary(device, false);
    note(process, device);
    Ok(())
}

fn try_coming(process: &Process, device: u8) -> Result<Coming, (u64, Denied)> {
    let not_counted = Coming { device, cost: Cost::NotCounted };
    if !process.config.count_contexts {
        return Ok(not_counted);
    }
    let Some(account) = devices::account(process, device) else {
        return refuse::without_account(process, device).map(|_| not_counted).map_err(|denied| (0, denied));
    };
    let Some(bytes) = account.entered.context_cost() else {
        return Ok(Coming { device, cost: Cost::Measured(ask(process, device, account)) });
    };
    let reserved = account.reserve_context(bytes).or_else(|_| {
        pool::trim_all(process, device);
        graph::trim(process, device);
        account.reserve_context(bytes)
    });
    match reserved {
        Ok(()) => Ok(Coming { device, cost: Cost::Charged(bytes) }),
        Err(denied) => Err((bytes, denied)),
    }
}

/// NVML is loaded for it only where a quota depends on it.
fn ask(process: &Process, device: u8, account: Account<'_>) -> Option<Usage> {
    nvml_ask::usage(process, &uuid_of(process, device), account.limit() != 0)
}

/// What a context took, in bytes: the process's own figure, or what all of the device's memory in use grew by, if
/// nobody came or went meanwhile.
fn difference(before: Option<&Usage>, after: Option<&Usage>) -> Option<u64> {
    let (before, after) = (before?, after?);
    let own =
        after.ours.and_then(|ours| ours.checked_sub(before.ours.unwrap_or(0))).filter(|bytes| *bytes != 0);
    let all = || {
        let grown = after.used.checked_sub(before.used).filter(|_| before.others == after.others);
        grown.filter(|bytes| *bytes <= LARGEST_DIFFERENCE)
    };
    own.or_else(all).filter(|bytes| (SMALLEST..=LARGEST).contains(bytes))
}

/// Charges a context that is there, if its cost is known by now.
fn charge_present(process: &Process, device: u8, account: Account<'_>, of: Costly) {
    if let Some(bytes) = account.entered.context_cost()
        && process.contexts.note_cost(device, of, bytes)
    {
        account.force_context(bytes);
    }
}

fn measure_present(process: &Process, device: u8) {
    let Some(account) = process.account(device) else { return };
    let held = account.held();
    let ours = ask(process, device, account).and_then(|usage| usage.ours);
    let context = ours.and_then(|ours| ours.checked_sub(held)).filter(|_| account.held() == held);
    if let Some(bytes) = context.filter(|bytes| (SMALLEST..=LARGEST).contains(bytes)) {
        account.entered.set_context_cost(bytes);
    }
    charge_present(process, device, account, Costly::Primary);
}

fn note(process: &Process, device: u8) {
    if let (Some(entry), Some(account)) = (process.device(device), process.account(device)) {
        entry.context_bytes.store(account.contexts(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(ours: Option<u64>, others: &[u32], used: u64) -> Usage {
        Usage { ours, others: others.to_vec(), used: used << 20 }
    }

    #[test]
    fn the_own_figure_first_and_no_odd_ones() {
        let mib = |n: u64| Some(n << 20);
        let between = |before: Usage, after: Usage| difference(Some(&before), Some(&after));
        assert_eq!(between(usage(None, &[7], 100), usage(mib(300), &[7], 900)), mib(300));
        assert_eq!(between(usage(mib(300), &[], 300), usage(mib(550), &[], 600)), mib(250), "a second one");
        assert_eq!(between(usage(None, &[7], 100), usage(None, &[7], 350)), mib(250), "the device's");
        assert_eq!(between(usage(None, &[7], 100), usage(None, &[7, 8], 350)), None, "somebody came");
        assert_eq!(between(usage(None, &[], 300), usage(None, &[], 100)), None);
        assert_eq!(between(usage(None, &[], 0), usage(None, &[], 20_000)), None, "no context is so large");
        assert_eq!(difference(None, Some(&usage(mib(1), &[], 1))), None);
    }
}
