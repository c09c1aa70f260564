//! Modules and libraries: their code and variables take device memory.
//!
//! No question of the driver tells how much, so it is measured: free memory before and after. Counted is
//! nothing if this process allocated or freed anything else meanwhile, or the figure does not hold still because
//! others are at work on the card: better nothing than somebody else's memory.

use super::allocate::{Got, Wanted, free, record};
use super::guard::{Before, around};
use super::refuse::{current, deny};
use super::table::{Id, hook};
use super::{driver, refuse};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
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

/// Where the figure does not hold still, or is larger than any module, somebody else's memory would be counted.
const LARGEST: u64 = 1 << 30;

struct Loading {
    wanted: Wanted,
    before: Moment,
}

/// What must be the same before and after for the difference of free memory to be the module's.
struct Moment {
    free: u64,
    used: u64,
    calls: u64,
}

/// `in_context`: a module ends with its context, a library does not. What a module takes is known only when it is
/// there, and then only as a measurement: it is refused where there is no room at all, and not unloaded for passing
/// the quota.
fn load(api: Id, out: *mut CUmodule, in_context: bool, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            let (Some((context, device)), false) = (current(process), out.is_null()) else {
                return Before::Pass;
            };
            match refuse::reserve(process, device, 1) {
                Ok(_) => process.account(device).iter().for_each(|account| account.release(1)),
                Err(denied) => return Before::Answer(deny(process, api, device, 1, denied)),
            }
            let Some(before) = moment(process, device) else { return Before::Pass };
            let owner = if in_context { context as u64 } else { 0 };
            Before::Then(Loading { wanted: Wanted { device, bytes: 0, owner }, before })
        },
        real,
        |process, loading, code| {
            if code != CUDA_SUCCESS {
                return code;
            }
            // SAFETY: not null, and written by the driver, which succeeded.
            let module = unsafe { *out };
            let bytes = taken(process, loading);
            if let Some(account) = process.account(loading.wanted.device) {
                account.force(bytes);
            }
            record(process, api, Class::Module, loading.wanted, Got { address: module as u64, bytes });
            code
        },
    )
}

fn taken(process: &Process, loading: &Loading) -> u64 {
    let Some(after) = moment(process, loading.wanted.device) else { return 0 };
    let before = &loading.before;
    let bytes = before.free.saturating_sub(after.free);
    let ours_alone = before.used == after.used && before.calls == after.calls;
    if ours_alone && bytes <= LARGEST { bytes } else { 0 }
}

/// Now, if two questions in a row give the same answer.
fn moment(process: &Process, device: u8) -> Option<Moment> {
    let account = super::devices::account(process, device)?;
    let free = driver::while_relaxed(|| {
        let first = driver::free_memory()?;
        (driver::free_memory()? == first).then_some(first)
    })?;
    Some(Moment { free, used: account.held(), calls: process.index.calls(&process.writer, device) })
}
