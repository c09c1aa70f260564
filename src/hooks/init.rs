//! cuInit, and the driver's own look-up.

use super::guard::{Before, around, start_quietly};
use super::init_failure::init_failure;
use super::lookup::Owner;
use super::table::{Id, hook};
use super::{driver, lookup};
use crate::cuda::abi::*;
use crate::cuda::error::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use crate::process::Verdict;
use core::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

hook! {
    fn cuInit(Flags: u32) |real| {
        if let Verdict::Refused = start_quietly() {
            return CUDA_ERROR_NOT_PERMITTED;
        }
        around(
            |_| Before::Then(()),
            real,
            |process, (), code| {
                let known = &process.writer.header().driver_version;
                if known.load(Ordering::Relaxed) == 0
                    && let Some(version) = driver::version()
                {
                    known.store(version, Ordering::Relaxed);
                }
                if code == CUDA_SUCCESS {
                    crate::process::note_initialised();
                } else {
                    init_failure(process, Id::cuInit.name(), code, None);
                }
                code
            },
        )
    }
    fn cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64) |real| {
        look_up(pfn, real)
    }
    fn cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64, symbolStatus: *mut CUdriverProcAddressQueryResult) |real| {
        look_up(pfn, real)
    }
    fn cuGetProcAddress_v2_ptsz(symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64, symbolStatus: *mut CUdriverProcAddressQueryResult) |real| {
        look_up(pfn, real)
    }
}

/// The driver answers, and what it answers is looked up by its address: whatever the version and the flags
/// were, the caller gets the hook for exactly that variant, or the driver's own function untouched.
fn look_up(pfn: *mut *mut c_void, real: impl FnOnce() -> CUresult) -> CUresult {
    let code = real();
    if code == CUDA_SUCCESS && !pfn.is_null() {
        // SAFETY: not null, and written by the driver, which succeeded.
        let answer = unsafe { *pfn };
        if let Some(hook) = lookup::hook_of(answer, Owner::Driver) {
            // SAFETY: as above.
            unsafe { *pfn = hook };
        }
    }
    code
}
