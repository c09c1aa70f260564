//! Modules and libraries: their code and variables take device memory.
//!
//! No question of the driver tells how much, so it is measured: free memory before and after, less what this
//! process allocated otherwise meanwhile. Where the figure does not hold still because others are at work
//! on the card, nothing is counted rather than somebody else's memory.

use super::allocate::{Got, Wanted, free, record};
use super::guard::{Before, around};
use super::refuse::{current, deny};
use super::table::{Id, hook};
use super::{driver, refuse};
use crate::cuda::abi::*;
use crate::cuda::error::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use crate::process::Process;
use crate::record::layout::Class;
use core::ffi::{c_char, c_void};

hook! {
    fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) |real| {
        load(Id::cuModuleLoad, module, true, real)
    }
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) |real| {
        load(Id::cuModuleLoadData, module, true, real)
    }
    fn cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, numOptions: u32, options: *mut u32, optionValues: *mut *mut c_void) |real| {
        load(Id::cuModuleLoadDataEx, module, true, real)
    }
    fn cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void) |real| {
        load(Id::cuModuleLoadFatBinary, module, true, real)
    }
    fn cuModuleUnload(hmod: CUmodule) |real| {
        free(Class::Module, hmod as u64, real)
    }
    fn cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jitOptions: *mut u32, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut u32, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) |real| {
        load(Id::cuLibraryLoadData, library, false, real)
    }
    fn cuLibraryLoadFromFile(library: *mut CUlibrary, fileName: *const c_char, jitOptions: *mut u32, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut u32, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) |real| {
        load(Id::cuLibraryLoadFromFile, library, false, real)
    }
    fn cuLibraryUnload(library: CUlibrary) |real| {
        free(Class::Module, library as u64, real)
    }
}

struct Loading {
    wanted: Wanted,
    free_before: u64,
    charged_before: u64,
}

/// `in_context`: a module ends with its context, a library does not.
fn load(api: Id, out: *mut CUmodule, in_context: bool, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            let (Some((context, device)), false) = (current(process), out.is_null()) else {
                return Before::Pass;
            };
            let Some(account) = refuse::account(process, device) else { return Before::Pass };
            let charged_before = account.used();
            let Some(free_before) = quiet_free_memory() else { return Before::Pass };
            let owner = if in_context { context as u64 } else { 0 };
            Before::Then(Loading { wanted: Wanted { device, bytes: 0, owner }, free_before, charged_before })
        },
        real,
        |process, loading, code| {
            if code != CUDA_SUCCESS {
                return code;
            }
            // SAFETY: not null, and written by the driver, which succeeded.
            let module = unsafe { *out };
            let bytes = taken(process, loading);
            match refuse::reserve(process, loading.wanted.device, bytes) {
                Ok(reserved) => {
                    if let Some(account) = process.account(loading.wanted.device) {
                        account.granted(reserved);
                    }
                }
                Err(denied) => {
                    if in_context {
                        driver::unload_module(module);
                    } else {
                        driver::unload_library(module);
                    }
                    deny(process, api, loading.wanted.device, bytes, denied);
                    return CUDA_ERROR_OUT_OF_MEMORY;
                }
            }
            record(process, api, Class::Module, loading.wanted, Got { address: module as u64, bytes });
            code
        },
    )
}

fn taken(process: &Process, loading: &Loading) -> u64 {
    let Some(free_after) = quiet_free_memory() else { return 0 };
    let charged_after = process.account(loading.wanted.device).map_or(0, |a| a.used());
    let difference = i128::from(loading.free_before) - i128::from(free_after);
    let ours = i128::from(charged_after) - i128::from(loading.charged_before);
    u64::try_from(difference - ours).unwrap_or(0)
}

/// Free memory, if two questions in a row give the same answer.
fn quiet_free_memory() -> Option<u64> {
    driver::while_relaxed(|| {
        let first = driver::free_memory()?;
        (driver::free_memory()? == first).then_some(first)
    })
}
