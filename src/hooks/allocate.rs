//! The course that every allocation and every free takes.

use super::guard::{Step, around_with};
use super::refuse::{self, deny};
use super::runtime;
use super::table::Id;
use crate::cuda::abi::CUresult;
use crate::cuda::error::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use crate::ledger::Reserved;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::index::Allocation;
use std::sync::atomic::Ordering;

/// What is asked for, before the driver is called.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// CUDA ordinal.
    pub device: u8,
    /// The least that it will take, in bytes.
    pub bytes: u64,
    /// The context that it ends with, 0 = none.
    pub owner: u64,
}

/// What the driver gave.
#[derive(Clone, Copy)]
pub(super) struct Got {
    /// Address or handle.
    pub address: u64,
    /// What it takes, in bytes.
    pub bytes: u64,
}

/// One allocation. `HOT`: called as often as nothing else, so everything is inlined. `wanted` answers `None` for what is not device memory, or where the call will fail;
/// `got` reads the out-parameters and is asked after success only; `undo` frees what does not fit after all.
#[inline(always)]
pub(super) fn allocate<const HOT: bool>(
    api: Id,
    class: Class,
    wanted: impl FnOnce(&'static Process) -> Option<Wanted>,
    real: impl FnOnce() -> CUresult,
    got: impl FnOnce(Wanted) -> Got,
    undo: impl FnOnce(Got),
) -> CUresult {
    around_with(
        Request { api, class, wanted: Wanted { device: 0, bytes: 0, owner: 0 }, reserved: Reserved::NOTHING },
        |process, request| {
            let Some(wanted) = wanted(process) else { return Step::Pass };
            request.wanted = wanted;
            if HOT { charge(process, request) } else { charge_shared(process, request) }
        },
        real,
        |process, request, code| {
            if code != CUDA_SUCCESS {
                return not_granted(process, request, code);
            }
            let got = got(request.wanted);
            let fits = if HOT { settle(process, request, got) } else { settle_shared(process, request, got) };
            if fits {
                return code;
            }
            undo(got);
            not_granted(process, request, CUDA_ERROR_OUT_OF_MEMORY)
        },
    )
}

/// An allocation between its two halves.
struct Request {
    api: Id,
    class: Class,
    wanted: Wanted,
    reserved: Reserved,
}

/// The first half of every allocation, whatever kind it is.
#[inline(always)]
fn charge(process: &Process, request: &mut Request) -> Step {
    let Wanted { device, bytes, .. } = request.wanted;
    match refuse::reserve(process, device, bytes) {
        Ok(reserved) => {
            request.reserved = reserved;
            Step::Then
        }
        Err(denied) => Step::Answer(deny(process, request.api, device, bytes, denied)),
    }
}

/// One function for all hooks that are not called as often as others.
fn charge_shared(process: &Process, request: &mut Request) -> Step {
    charge(process, request)
}

fn settle_shared(process: &Process, request: &Request, got: Got) -> bool {
    settle(process, request, got)
}

#[cold]
fn not_granted(process: &Process, request: &Request, code: CUresult) -> CUresult {
    if let Some(account) = process.account(request.wanted.device) {
        account.release(request.wanted.bytes);
    }
    code
}

/// The second half: enters what the driver gave. False: it took more than could be known before, and that does not
/// fit. The caller frees it, and only then gives its charge back.
#[inline(always)]
fn settle(process: &Process, request: &Request, got: Got) -> bool {
    let &Request { api, class, wanted, mut reserved } = request;
    let Some(account) = process.account(wanted.device) else { return true };
    if got.bytes > wanted.bytes {
        match account.reserve(got.bytes - wanted.bytes) {
            Ok(more) => reserved.peak = more.peak.max(reserved.peak),
            Err(denied) => {
                deny(process, api, wanted.device, got.bytes, denied);
                return false;
            }
        }
    } else if got.bytes < wanted.bytes {
        account.release(wanted.bytes - got.bytes);
    }
    account.granted(reserved);
    record(process, api, class, wanted, got);
    true
}

/// Enters an allocation that is already charged.
#[inline]
pub(super) fn record(process: &Process, api: Id, class: Class, wanted: Wanted, got: Got) {
    let depth = process.config.stack_depth;
    let allocation = Allocation {
        address: got.address,
        class,
        bytes: got.bytes,
        device: wanted.device,
        api: api.api_number(),
        owner: wanted.owner,
        stack: if depth == 0 { 0 } else { process.stacks.capture(&process.writer, depth) },
        runtime: runtime::current(process, cuwarden_arch::stack_pointer()),
        tid: process.thread_id(),
        born_ns: process.age_ns(),
    };
    match process.index.insert(&process.writer, &allocation) {
        Ok(None) => {}
        // The driver has given the address out again: the older one ended with something we did not see end.
        Ok(Some(older)) => uncharge(process, &older),
        // It stays charged: a quota is not given away because a page was missing.
        Err(_) => {
            process.writer.header().lost_records.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One free of a pointer or handle. What was not seen allocated is passed on.
#[inline(always)]
pub(super) fn free(class: Class, address: u64, real: impl FnOnce() -> CUresult) -> CUresult {
    around_with(
        Allocation::EMPTY,
        |process, taken| {
            if process.index.remove_into(&process.writer, address, class, taken) {
                Step::Then
            } else {
                Step::Pass
            }
        },
        real,
        |process, allocation, code| {
            freed(process, allocation, code);
            code
        },
    )
}

/// The driver has answered a free.
#[inline(always)]
pub(super) fn freed(process: &Process, allocation: &Allocation, code: CUresult) {
    if code == CUDA_SUCCESS {
        uncharge(process, allocation);
    } else if process.index.restore(&process.writer, allocation).is_err() {
        process.writer.header().lost_records.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives back what an allocation took.
#[inline(always)]
pub(super) fn uncharge(process: &Process, allocation: &Allocation) {
    if super::pool::is_from_pool(allocation) {
        super::pool::freed(process, allocation);
    } else if let Some(account) = process.account(allocation.device) {
        account.release(allocation.bytes);
    }
}

/// Takes everything that ends with a context out of the books, before the driver ends it.
pub(super) fn take_owned(process: &Process, contexts: &[usize]) -> Vec<Allocation> {
    process.index.remove_where(&process.writer, &|allocation| is_owned(allocation, contexts))
}

/// True for what ends with one of these contexts.
pub(super) fn is_owned(allocation: &Allocation, contexts: &[usize]) -> bool {
    !super::pool::is_from_pool(allocation)
        && allocation.owner != 0
        && contexts.contains(&(allocation.owner as usize))
}
