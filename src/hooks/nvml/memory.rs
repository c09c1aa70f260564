//! What NVML says of a device's memory: the quota is the card.
//!
//! total = used + free + reserved holds in the second version, as it does without us. What is used is what living
//! processes of the directory hold, and what is free can be had, so the rest, which others have of the card, is reserved.
//! The first version has no place for it: there used and free are less than total while others leave too little.

use super::device::Device;
use super::hook;
use crate::diagnose::nvml::{Handle, SUCCESS};
use crate::hooks::guard::Looking;
use crate::policy::quota::{Shown, shown};
use crate::process::observer;
use core::ffi::{c_int, c_uint};

/// nvmlMemory_t
#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// nvmlMemory_v2_t
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// NVML_STRUCT_VERSION(Memory, 2)
const VERSION_2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

hook! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut Memory) |real| {
        // SAFETY: the caller's own arguments.
        first_version(device, memory, || unsafe { real(device, memory) })
    }
    fn nvmlDeviceGetConfComputeProtectedMemoryUsage(device: Handle, memory: *mut Memory) |real| {
        // SAFETY: as above.
        first_version(device, memory, || unsafe { real(device, memory) })
    }
    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) |real| {
        looking(
            device,
            // SAFETY: as above.
            || unsafe { real(device, memory) },
            || {
                // SAFETY: null or, since NVML succeeded, written by it.
                let memory = unsafe { memory.as_ref() }?;
                (memory.version == VERSION_2).then_some((memory.free, memory.total))
            },
            // SAFETY: as above, and not null, since it was read.
            |shown, used| unsafe {
                (*memory).total = shown.total;
                (*memory).free = shown.free;
                (*memory).used = shown.used(used);
                (*memory).reserved = shown.reserved(used);
            },
        )
    }
}

fn first_version(device: Handle, memory: *mut Memory, real: impl FnOnce() -> c_int) -> c_int {
    looking(
        device,
        real,
        // SAFETY: null or, since NVML succeeded, written by it.
        || unsafe { memory.as_ref() }.map(|memory| (memory.free, memory.total)),
        // SAFETY: as above, and not null, since it was read.
        |shown, used| unsafe {
            (*memory).total = shown.total;
            (*memory).free = shown.free;
            (*memory).used = shown.used(used);
        },
    )
}

/// `read` gives what is really free and what is there in all; `write` gets what is shown and what is used.
fn looking(
    device: Handle,
    real: impl FnOnce() -> c_int,
    read: impl FnOnce() -> Option<(u64, u64)>,
    write: impl FnOnce(Shown, u64),
) -> c_int {
    let Some(looking) = Looking::enter() else { return real() };
    let code = real();
    if code == SUCCESS {
        looking.quietly(|| {
            if let Some((free, total)) = read()
                && let Some((limit, used)) = quota(device)
            {
                write(shown(free, total, used, limit), used);
            }
        });
    }
    code
}

/// Limit and use of a device that has a quota.
fn quota(device: Handle) -> Option<(u64, u64)> {
    let device = Device::of(device)?;
    let sight = observer::look()?;
    let limit = device.limit(&sight).filter(|limit| *limit != 0)?;
    let used =
        sight.ledger.as_ref().and_then(|accounts| device.account(accounts)).map_or(0, |one| one.used());
    Some((limit, used))
}
