//! What NVML says of a device's memory: the quota is the card.
//!
//! total = used + free + reserved holds in the second version, as it does without us. What is used is what living
//! processes of the directory hold, and what is free can be had, so the rest, which others have of the card, is reserved.
//! The first version has no place for it: there used and free are less than total while others leave too little.

use super::device::Device;
use super::hook;
use super::ring::{Call, input, note};
use crate::diagnose::nvml::{FUNCTION_NOT_FOUND, Handle, SUCCESS};
use crate::hooks::guard::Looking;
use crate::policy::quota::shown;
use crate::process::observer;
use core::ffi::{c_int, c_uint, c_void};

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
    nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut Memory) => looking, input::DEVICE;
    nvmlDeviceGetConfComputeProtectedMemoryUsage(device: Handle, memory: *mut Memory) => looking, input::DEVICE;
    nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) => looking, input::DEVICE | IN_SECOND;
}

/// The structure is that of the second version.
const IN_SECOND: u32 = 1 << 24;

unsafe extern "C" fn looking(device: Handle, memory: *mut c_void, _: u64, call: Call) -> c_int {
    type Real = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
    // SAFETY: the type of all rows above, by nvml.h.
    let Some(real) = (unsafe { call.real::<Real>() }) else { return FUNCTION_NOT_FOUND };
    let looking = Looking::enter();
    // SAFETY: the caller's own arguments.
    let code = unsafe { real(device, memory) };
    let Some(looking) = looking else { return code };
    if code == SUCCESS {
        looking.quietly(|| {
            // SAFETY: NVML has succeeded with them.
            let _ = unsafe { show(device, memory, call) };
        });
    }
    // SAFETY: the call as it was.
    unsafe { note(call, device.number(), 0, code) };
    code
}

/// `None`: the figures stay as they are.
///
/// # Safety
/// `memory` must be null or what NVML has written.
unsafe fn show(device: Handle, memory: *mut c_void, call: Call) -> Option<()> {
    let (limit, used);
    if call.rest() == 0 {
        // SAFETY: the first version, as the caller promises.
        let memory = unsafe { memory.cast::<Memory>().as_mut() }?;
        (limit, used) = quota(device)?;
        let shown = shown(memory.free, memory.total, used, limit);
        *memory = Memory { total: shown.total, free: shown.free, used: shown.used(used) };
    } else {
        // SAFETY: a second version or another one, which has no fewer than its first word.
        if memory.is_null() || unsafe { *memory.cast::<c_uint>() } != VERSION_2 {
            return None;
        }
        // SAFETY: the second version.
        let memory = unsafe { &mut *memory.cast::<MemoryV2>() };
        (limit, used) = quota(device)?;
        let shown = shown(memory.free, memory.total, used, limit);
        memory.total = shown.total;
        memory.free = shown.free;
        memory.used = shown.used(used);
        memory.reserved = shown.reserved(used);
    }
    Some(())
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
