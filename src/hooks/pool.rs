//! Stream-ordered allocation and memory pools.
//!
//! A pool takes memory from the device in steps and keeps it after frees, so what counts is what it has
//! reserved. The allocations from it have records; one more record holds what is reserved beyond them.

use super::allocate::{Got, Wanted, record};
use super::driver;
use super::guard::{Before, around};
use super::refuse::{self, context_device, current, deny, device_number};
use super::table::{Id, hook};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::ledger::Reserved;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::index::Allocation;

hook! {
    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) |real| {
        take(Id::cuMemAllocAsync, dptr, bytesize, None, hStream, false, real)
    }
    fn cuMemAllocAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) |real| {
        take(Id::cuMemAllocAsync_ptsz, dptr, bytesize, None, hStream, true, real)
    }
    fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) |real| {
        take(Id::cuMemAllocFromPoolAsync, dptr, bytesize, Some(pool), hStream, false, real)
    }
    fn cuMemAllocFromPoolAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) |real| {
        take(Id::cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, Some(pool), hStream, true, real)
    }
    fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) |real| {
        give(dptr, hStream, false, real)
    }
    fn cuMemFreeAsync_ptsz(dptr: CUdeviceptr, hStream: CUstream) |real| {
        give(dptr, hStream, true, real)
    }
    fn cuMemPoolTrimTo(pool: CUmemoryPool, minBytesToKeep: usize) |real| {
        and_settle(pool, real)
    }
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: u32, value: *mut core::ffi::c_void) |real| {
        // A lower release threshold gives memory back.
        and_settle(pool, real)
    }
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps) |real| {
        create(pool, poolProps, real)
    }
    fn cuMemPoolDestroy(pool: CUmemoryPool) |real| {
        destroy(pool, real)
    }
}

/// True for allocations whose memory belongs to a pool: their owner is the pool.
pub(super) fn is_from_pool(allocation: &Allocation) -> bool {
    [
        Id::cuMemAllocAsync,
        Id::cuMemAllocAsync_ptsz,
        Id::cuMemAllocFromPoolAsync,
        Id::cuMemAllocFromPoolAsync_ptsz,
    ]
    .iter()
    .any(|api| api.api_number() == allocation.api)
}

struct Taking {
    wanted: Wanted,
    pool: CUmemoryPool,
    /// Reserved in the account for the pool's growth, in bytes.
    growth: u64,
}

fn take(
    api: Id,
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    per_thread: bool,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    around(
        |process| {
            if out.is_null() || bytes == 0 {
                return Before::Pass;
            }
            if driver::is_capturing(stream, per_thread) {
                // Becomes an allocation node, whose memory is taken when the graph is launched.
                process.graphs.note_allocation_node();
                return Before::Pass;
            }
            let Some((pool, device)) = pool_and_device(process, pool, stream, per_thread) else {
                return Before::Pass;
            };
            let wanted = Wanted { device, bytes: bytes as u64, owner: pool as u64 };
            if refuse::account(process, device).is_none() {
                return Before::Pass;
            }
            // What was reserved may have been given back since: then the books are on the safe side.
            let growth = process.pools.expected_growth(pool as u64, device, wanted.bytes);
            let reserved = refuse::reserve(process, device, growth).map(|_| growth).or_else(|_| {
                // The trim may have changed what is needed.
                let growth = process.pools.expected_growth(pool as u64, device, wanted.bytes);
                refuse::reserve(process, device, growth).map(|_| growth)
            });
            match reserved {
                Ok(growth) => Before::Then(Taking { wanted, pool, growth }),
                Err(denied) => Before::Answer(deny(process, api, device, wanted.bytes, denied)),
            }
        },
        real,
        |process, taking, code| {
            let &Taking { wanted, pool, growth } = taking;
            if code != CUDA_SUCCESS {
                settle(process, pool, wanted.device, growth, 0, 0);
                return code;
            }
            settle(process, pool, wanted.device, growth, wanted.bytes, 0);
            // SAFETY: not null, and written by the driver, which succeeded.
            let address = unsafe { *out };
            record(process, api, Class::Pointer, wanted, Got { address, bytes: wanted.bytes });
            code
        },
    )
}

fn pool_and_device(
    process: &Process,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    per_thread: bool,
) -> Option<(CUmemoryPool, u8)> {
    let Some(pool) = pool else {
        let device = stream_device(process, stream, per_thread)?;
        return Some((driver::current_pool(device.into())?, device));
    };
    if process.pools.is_elsewhere(pool as u64) {
        return None;
    }
    let known = process.pools.device(pool as u64);
    let device =
        known.or_else(|| pool_device(pool)).or_else(|| stream_device(process, stream, per_thread))?;
    Some((pool, device))
}

/// The default streams belong to the current context, others to the one they were made in.
fn stream_device(process: &Process, stream: CUstream, per_thread: bool) -> Option<u8> {
    if (stream as usize) > 2
        && let Some(context) = driver::stream_context(stream, per_thread)
        && let Some(known) = process.contexts.find(context)
    {
        return Some(known.device);
    }
    let (context, device) = current(process)?;
    context_device(process, context).or(Some(device))
}

/// Drivers since 12.8 say where a pool lies; before, a pool is recognised as a device's default or current one.
fn pool_device(pool: CUmemoryPool) -> Option<u8> {
    const CU_MEMPOOL_ATTR_LOCATION_ID: u32 = 11;
    const CU_MEMPOOL_ATTR_LOCATION_TYPE: u32 = 12;
    if driver::pool_attribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE) == Some(CU_MEM_LOCATION_TYPE_DEVICE.into())
    {
        return device_number(driver::pool_attribute(pool, CU_MEMPOOL_ATTR_LOCATION_ID)? as CUdevice);
    }
    (0..driver::device_count()?)
        .find(|device| {
            driver::default_pool(*device) == Some(pool) || driver::current_pool(*device) == Some(pool)
        })
        .and_then(device_number)
}

fn give(
    address: CUdeviceptr,
    stream: CUstream,
    per_thread: bool,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    around(
        |process| {
            if driver::is_capturing(stream, per_thread) {
                return Before::Pass;
            }
            match process.index.remove(&process.writer, address, Class::Pointer) {
                Some(allocation) => Before::Then(allocation),
                None => Before::Pass,
            }
        },
        real,
        |process, allocation, code| {
            super::allocate::freed(process, allocation, code);
            code
        },
    )
}

/// A pool allocation was freed: its bytes are unused now, and perhaps given back.
pub(super) fn freed(process: &Process, allocation: &Allocation) {
    settle(process, allocation.owner as CUmemoryPool, allocation.device, 0, 0, allocation.bytes);
}

fn and_settle(pool: CUmemoryPool, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| match process.pools.device(pool as u64) {
            Some(device) => Before::Then(device),
            None => Before::Pass,
        },
        real,
        |process, &device, code| {
            refresh(process, pool, device);
            code
        },
    )
}

fn create(out: *mut CUmemoryPool, props: *const CUmemPoolProps, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            // SAFETY: the driver reads the same structure; null is checked.
            match unsafe { props.as_ref() } {
                Some(props) if !out.is_null() => {
                    // Managed memory counts like cuMemAllocManaged's, wherever it is now.
                    let managed = props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
                    let located = super::vmm::located_on(props.location);
                    let here = || current(process).map(|(_, device)| device).filter(|_| managed);
                    Before::Then(located.or_else(here))
                }
                _ => Before::Pass,
            }
        },
        real,
        |process, device, code| {
            if code == CUDA_SUCCESS {
                // SAFETY: not null, and written by the driver, which succeeded.
                process.pools.created(unsafe { *out } as u64, *device);
            }
            code
        },
    )
}

fn destroy(pool: CUmemoryPool, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| match process.pools.device(pool as u64) {
            Some(device) => {
                process.pools.destroy(pool as u64);
                Before::Then(device)
            }
            None => Before::Pass,
        },
        real,
        |process, &device, code| {
            if code == CUDA_SUCCESS {
                refresh(process, pool, device);
            } else {
                process.pools.undo_destroy(pool as u64);
            }
            code
        },
    )
}

/// Asks what a pool has reserved and brings the books in line.
pub(super) fn refresh(process: &Process, pool: CUmemoryPool, device: u8) {
    settle(process, pool, device, 0, 0, 0);
}

/// Brings the books of all pools of a device in line: a reset may have emptied them.
pub(super) fn refresh_all(process: &Process, device: u8) {
    for pool in process.pools.of_device(device).into_iter().filter(|pool| pool & GRAPH_POOL == 0) {
        refresh(process, pool as CUmemoryPool, device);
    }
}

/// Trims the pools of a device, when the quota would refuse otherwise.
pub(super) fn trim_all(process: &Process, device: u8) {
    for pool in process.pools.of_device(device).into_iter().filter(|pool| pool & GRAPH_POOL == 0) {
        let pool = pool as CUmemoryPool;
        if process.pools.may_be_asked(pool as u64) {
            driver::while_relaxed(|| driver::trim_pool(pool));
        }
        refresh(process, pool, device);
    }
}

/// Marks the stand-in for a device's graph memory among the pools: no handle has this bit.
pub(super) const GRAPH_POOL: u64 = 1 << 63;

fn settle(process: &Process, pool: CUmemoryPool, device: u8, growth: u64, allocated: u64, freed: u64) {
    let ticket = process.pools.ticket(pool as u64, device);
    let reserved = if process.pools.may_be_asked(pool as u64) {
        driver::while_relaxed(|| driver::pool_reserved(pool))
    } else {
        None
    };
    if let Some(change) = process.pools.settle(pool as u64, ticket, reserved, allocated, freed) {
        charge(process, change.device, change.before, change.after, growth);
        note_unused(process, Id::cuMemAllocAsync, Class::PoolReserve, pool as u64, device, change.unused);
        if change.after == 0 {
            process.pools.forget_if_gone(pool as u64);
        }
    }
}

/// Turns the reservation that was made for growth into what the pool has really grown by.
pub(super) fn charge(process: &Process, device: u8, before: u64, after: u64, reserved: u64) {
    let Some(account) = process.account(device) else { return };
    let (covered, needed) = (before.saturating_add(reserved), after);
    if needed > covered {
        account.force(needed - covered);
    } else {
        account.release(covered - needed);
        account.granted(Reserved { may_be_peak: true });
    }
}

/// Keeps the record of what is reserved and not in use.
pub(super) fn note_unused(process: &Process, api: Id, class: Class, address: u64, device: u8, unused: u64) {
    let known = process.index.resize(&process.writer, address, class, unused);
    if known.is_none() && unused != 0 {
        let wanted = Wanted { device, bytes: unused, owner: 0 };
        record(process, api, class, wanted, Got { address, bytes: unused });
    } else if unused == 0 && known.is_some() {
        process.index.remove(&process.writer, address, class);
    }
}
