//! Functions that are noted and nothing else: how the application started NVML, and how it looked for its devices.

use super::hook;
use super::ring::{Call, input, note, output};
use crate::diagnose::nvml::{FUNCTION_NOT_FOUND, Handle};
use crate::hooks::guard::Looking;
use core::ffi::{c_char, c_int, c_uint};

hook! {
    nvmlInit() => noted, input::NONE;
    nvmlInit_v2() => noted, input::NONE;
    nvmlInitWithFlags(flags: c_uint) => noted, input::FLAGS;
    nvmlShutdown() => noted, input::NONE;
    nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) => noted, output::TEXT;
    nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) => noted, output::TEXT;
    nvmlSystemGetCudaDriverVersion(version: *mut c_int) => noted, output::VERSION;
    nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) => noted, output::VERSION;
    nvmlDeviceGetCount(count: *mut c_uint) => noted, output::NUMBER;
    nvmlDeviceGetCount_v2(count: *mut c_uint) => noted, output::NUMBER;
    nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut Handle) => noted, input::INDEX | output::DEVICE;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) => noted, input::INDEX | output::DEVICE;
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Handle) => noted, input::UUID | output::DEVICE;
    nvmlDeviceGetHandleByPciBusId(id: *const c_char, device: *mut Handle) => noted, input::BUS_ID | output::DEVICE;
    nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut Handle) => noted, input::BUS_ID | output::DEVICE;
    nvmlDeviceGetName(device: Handle, name: *mut c_char, length: c_uint) => noted, input::DEVICE | output::TEXT;
    nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, length: c_uint) => noted, input::DEVICE | output::TEXT;
    nvmlDeviceGetComputeMode(device: Handle, mode: *mut c_uint) => noted, input::DEVICE | output::COMPUTE_MODE;
    nvmlDeviceGetMigMode(device: Handle, now: *mut c_uint, pending: *mut c_uint) => noted, input::DEVICE | output::SWITCH;
}

/// The arguments go on as registers: upper halves of shorter ones, and registers that the function does not have as
/// arguments, are what the caller left there.
unsafe extern "C" fn noted(first: u64, second: u64, third: u64, call: Call) -> c_int {
    type Real = unsafe extern "C" fn(u64, u64, u64) -> c_int;
    // SAFETY: all rows above have at most three integer arguments, which go into the same registers.
    let Some(real) = (unsafe { call.real::<Real>() }) else { return FUNCTION_NOT_FOUND };
    let looking = Looking::enter();
    // SAFETY: the caller's own arguments.
    let code = unsafe { real(first, second, third) };
    if looking.is_some() {
        // SAFETY: the same, and the row says what they are.
        unsafe { note(call, first, second, code) };
    }
    code
}
