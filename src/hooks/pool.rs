//! Stream-ordered allocation and memory pools.
//!
//! A pool takes memory from the device in steps and keeps it after frees, so what counts is what it has
//! reserved. The allocations from it have records; one more record holds what is reserved beyond them.

use super::allocate::{Got, Wanted, record};
use super::devices::{account, device_number};
use super::driver;
use super::guard::{Before, around};
use super::refuse::{context_device, current, deny, without_account};
use super::table::{Id, hook};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::ledger::Denied;
use crate::policy::sizes;
use crate::process::Process;
use crate::record::api::number;
use crate::record::layout::Class;
use crate::tracking::index::Allocation;
use crate::tracking::pools::{Change, Done, Home};

hook! {
    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) |real| {
        take(Id::cuMemAllocAsync, dptr, bytesize, None, hStream, false, &real)
    }
    fn cuMemAllocAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) |real| {
        take(Id::cuMemAllocAsync_ptsz, dptr, bytesize, None, hStream, true, &real)
    }
    fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) |real| {
        take(Id::cuMemAllocFromPoolAsync, dptr, bytesize, Some(pool), hStream, false, &real)
    }
    fn cuMemAllocFromPoolAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) |real| {
        take(Id::cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, Some(pool), hStream, true, &real)
    }
    fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) |real| {
        give(dptr, hStream, false, &real)
    }
    fn cuMemFreeAsync_ptsz(dptr: CUdeviceptr, hStream: CUstream) |real| {
        give(dptr, hStream, true, &real)
    }
    fn cuMemPoolTrimTo(pool: CUmemoryPool, minBytesToKeep: usize) |real| {
        and_settle(pool, &real)
    }
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: u32, value: *mut core::ffi::c_void) |real| {
        // A lower release threshold gives memory back.
        and_settle(pool, &real)
    }
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps) |real| {
        create(pool, poolProps, real)
    }
    fn cuMemPoolDestroy(pool: CUmemoryPool) |real| {
        destroy(pool, real)
    }
}

/// True for allocations whose memory belongs to a pool: their owner is the pool.
#[inline(always)]
pub(super) fn is_from_pool(allocation: &Allocation) -> bool {
    const FIRST: u16 = number("cuMemAllocAsync");
    const LAST: u16 = number("cuMemAllocFromPoolAsync_ptsz");
    // The four stand together in the list.
    const _: () = assert!(
        number("cuMemAllocAsync_ptsz") == FIRST + 1
            && number("cuMemAllocFromPoolAsync") == FIRST + 2
            && LAST == FIRST + 3
    );
    allocation.class == Class::Pointer && (FIRST..=LAST).contains(&allocation.api)
}

struct Taking {
    wanted: Wanted,
    pool: CUmemoryPool,
}

fn take(
    api: Id,
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    per_thread: bool,
    real: &dyn Fn() -> CUresult,
) -> CUresult {
    around(
        |process| {
            if out.is_null() || bytes == 0 || !sizes::is_possible(bytes as u64) {
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
            match begin(process, pool as u64, device, wanted.bytes) {
                Ok(()) => Before::Then(Taking { wanted, pool }),
                Err(denied) => Before::Answer(deny(process, api, device, wanted.bytes, denied)),
            }
        },
        real,
        |process, &Taking { wanted, pool }, code| {
            let pending = Done { pending: wanted.bytes, ..Done::default() };
            if code != CUDA_SUCCESS {
                settle(process, pool, wanted.device, pending);
                return code;
            }
            settle(process, pool, wanted.device, Done { allocated: wanted.bytes, ..pending });
            // SAFETY: not null, and written by the driver, which succeeded.
            let address = unsafe { *out };
            record(process, api, Class::Pointer, wanted, Got { address, bytes: wanted.bytes });
            code
        },
    )
}

/// Charges what a pool is expected to grow by, giving unused memory back first if there is no room without.
pub(super) fn begin(process: &Process, pool: u64, device: u8, bytes: u64) -> Result<(), Denied> {
    if process.contexts.is_primary_awaited(device) {
        super::context_cost::awaited(process, device)?;
    }
    let Some(account) = account(process, device) else {
        return without_account(process, device).map(|_| ());
    };
    let attempt = || process.pools.begin(pool, device, bytes, |growth| account.reserve(growth).map(|_| ()));
    attempt().or_else(|_| {
        trim_all(process, device);
        super::graph::trim(process, device);
        attempt()
    })
}

/// `None`: not device memory, or not to be known.
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
    match process.pools.home(pool as u64).or_else(|| pool_home(pool)) {
        Some(Home::Device(device)) => Some((pool, device)),
        Some(Home::Elsewhere) => None,
        None => Some((pool, stream_device(process, stream, per_thread)?)),
    }
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

/// Of a pool that we did not see made. Drivers since 12.8 say where a pool lies; before, a pool is recognised as
/// a device's default or current one.
fn pool_home(pool: CUmemoryPool) -> Option<Home> {
    const CU_MEMPOOL_ATTR_LOCATION_ID: u32 = 11;
    const CU_MEMPOOL_ATTR_LOCATION_TYPE: u32 = 12;
    if let Some(kind) = driver::pool_attribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE) {
        let id = driver::pool_attribute(pool, CU_MEMPOOL_ATTR_LOCATION_ID)?;
        let location = CUmemLocation { kind: kind as u32, id: id as i32 };
        return Some(super::vmm::located_on(location).map_or(Home::Elsewhere, Home::Device));
    }
    (0..driver::device_count()?)
        .find(|device| {
            driver::default_pool(*device) == Some(pool) || driver::current_pool(*device) == Some(pool)
        })
        .and_then(device_number)
        .map(Home::Device)
}

fn create(out: *mut CUmemoryPool, props: *const CUmemPoolProps, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            // SAFETY: the driver reads the same structure; null is checked.
            let Some(props) = unsafe { props.as_ref() }.filter(|_| !out.is_null()) else {
                return Before::Pass;
            };
            let located = super::vmm::located_on(props.location).map(Home::Device);
            // Managed memory counts like cuMemAllocManaged's, wherever it is now.
            let managed = props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
            let here = || current(process).map(|(_, device)| Home::Device(device)).filter(|_| managed);
            Before::Then(located.or_else(here).unwrap_or(Home::Elsewhere))
        },
        real,
        |process, home, code| {
            if code == CUDA_SUCCESS {
                // SAFETY: not null, and written by the driver, which succeeded.
                process.pools.note(unsafe { *out } as u64, *home);
            }
            code
        },
    )
}

fn give(address: CUdeviceptr, stream: CUstream, per_thread: bool, real: &dyn Fn() -> CUresult) -> CUresult {
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
    let done = Done { freed: allocation.bytes, ..Done::default() };
    settle(process, allocation.owner as CUmemoryPool, allocation.device, done);
}

fn and_settle(pool: CUmemoryPool, real: &dyn Fn() -> CUresult) -> CUresult {
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

fn destroy(pool: CUmemoryPool, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| match process.pools.home(pool as u64) {
            Some(home) => {
                process.pools.doom(pool as u64);
                Before::Then(home)
            }
            None => Before::Pass,
        },
        real,
        |process, &home, code| {
            match home {
                _ if code != CUDA_SUCCESS => process.pools.reprieve(pool as u64),
                Home::Elsewhere => process.pools.forget_elsewhere(pool as u64),
                // Gone with all that it has, unless allocations from it are still alive.
                Home::Device(device) => settle(process, pool, device, Done::default()),
            }
            code
        },
    )
}

/// Asks what a pool has reserved and brings the books in line.
pub(super) fn refresh(process: &Process, pool: CUmemoryPool, device: u8) {
    settle(process, pool, device, Done::default());
}

/// Brings the books of all pools of a device in line: a reset may have emptied them.
pub(super) fn refresh_all(process: &Process, device: u8) {
    for pool in process.pools.of_device(device).into_iter().filter(|pool| pool & GRAPH_POOL == 0) {
        refresh(process, pool as CUmemoryPool, device);
    }
}

/// Brings the books of the pools in line that may just have given something back.
pub(super) fn refresh_unused(process: &Process) {
    for (pool, device) in process.pools.with_unused().into_iter().filter(|(pool, _)| pool & GRAPH_POOL == 0) {
        refresh(process, pool as CUmemoryPool, device);
    }
}

/// Trims the pools of a device, when the quota would refuse otherwise.
pub(super) fn trim_all(process: &Process, device: u8) {
    for pool in process.pools.of_device(device).into_iter().filter(|pool| pool & GRAPH_POOL == 0) {
        let pool = pool as CUmemoryPool;
        driver::while_relaxed(|| driver::trim_pool(pool));
        refresh(process, pool, device);
    }
}

/// Marks the stand-in for a device's graph memory among the pools: no handle has this bit.
pub(super) const GRAPH_POOL: u64 = 1 << 63;

fn settle(process: &Process, pool: CUmemoryPool, device: u8, mut done: Done) {
    let ticket = process.pools.ticket(pool as u64, device);
    if ticket.is_some() {
        done.reserved = driver::while_relaxed(|| driver::pool_reserved(pool));
    }
    process.pools.settle(pool as u64, ticket, done, |change| {
        charge(process, change);
        note_unused(process, Id::cuMemAllocAsync, Class::PoolReserve, pool as u64, device, change.unused);
    });
}

/// Brings the account in line with a pool.
pub(super) fn charge(process: &Process, change: Change) {
    let Some(account) = process.account(change.device) else { return };
    if change.after < change.before {
        account.release(change.before - change.after);
    }
    // Also notes the peak.
    account.force(change.after.saturating_sub(change.before));
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
