//! cuInit, and the driver's own look-up.

use super::guard::{Before, around, shielded, start_quietly};
use super::init_failure::init_failure;
use super::lookup::Owner;
use super::table::{Id, NOT_IN_DRIVER, real};
use super::{baseline, driver, lookup};
use crate::cuda::abi::*;
use crate::cuda::error::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use crate::process::{Process, Verdict};
use crate::stack::cudart;
use crate::tracking::askers;
use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;
use std::sync::atomic::Ordering;

/// Defines a hook that knows where the call returns to, which a body gets as its sixth argument.
macro_rules! hook_with_caller {
    ($($name:ident => $body:path, ($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("Stands for `", stringify!($name), "`.\n\n# Safety\nAs the driver's function.")]
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
            cuwarden_arch::jump_with_caller!($body)
        }
    )*};
}

hook_with_caller! {
    cuInit => init, (Flags: u32);
    cuGetProcAddress => look_up_v1, (symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64);
    cuGetProcAddress_v2 => look_up_v2, (symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64, symbolStatus: *mut CUdriverProcAddressQueryResult);
    cuGetProcAddress_v2_ptsz => look_up_v2_ptsz, (symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: u64, symbolStatus: *mut CUdriverProcAddressQueryResult);
}

/// What a register holds that the function does not have as an argument.
type Unused = u64;

unsafe extern "C" fn init(flags: u32, _: Unused, _: Unused, _: Unused, _: Unused, caller: u64) -> CUresult {
    type Real = unsafe extern "C" fn(u32) -> CUresult;
    // SAFETY: the function's type, by the driver's headers.
    let Some(function) = (unsafe { real::<Real>(Id::cuInit) }) else { return NOT_IN_DRIVER };
    if let Verdict::Refused = start_quietly() {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    around(
        |process| {
            note_driver(process);
            match baseline::answer(process, caller) {
                Some(code) => Before::Answer(code),
                None => Before::Then(()),
            }
        },
        // SAFETY: the caller's own argument.
        || unsafe { function(flags) },
        |process, (), code| {
            if code == CUDA_SUCCESS {
                baseline::started(process);
                crate::process::note_initialised();
            } else {
                init_failure(process, Id::cuInit.name(), code, None);
            }
            code
        },
    )
}

/// The driver answers that before cuInit as well.
fn note_driver(process: &Process) {
    let known = &process.writer.header().driver_version;
    if known.load(Ordering::Relaxed) == 0
        && let Some(version) = driver::version()
    {
        known.store(version, Ordering::Relaxed);
    }
}

unsafe extern "C" fn look_up_v1(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cuda_version: i32,
    flags: u64,
    _: Unused,
    caller: u64,
) -> CUresult {
    type Real = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> CUresult;
    // SAFETY: the function's type, by the driver's headers.
    let Some(function) = (unsafe { real::<Real>(Id::cuGetProcAddress) }) else { return NOT_IN_DRIVER };
    note_look_up(symbol, cuda_version, caller);
    // SAFETY: the caller's own arguments.
    look_up(pfn, || unsafe { function(symbol, pfn, cuda_version, flags) })
}

type LookUpV2 = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    i32,
    u64,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

unsafe extern "C" fn look_up_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cuda_version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
    caller: u64,
) -> CUresult {
    // SAFETY: the function's type, by the driver's headers.
    let Some(function) = (unsafe { real::<LookUpV2>(Id::cuGetProcAddress_v2) }) else { return NOT_IN_DRIVER };
    note_look_up(symbol, cuda_version, caller);
    // SAFETY: the caller's own arguments.
    look_up(pfn, || unsafe { function(symbol, pfn, cuda_version, flags, status) })
}

unsafe extern "C" fn look_up_v2_ptsz(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cuda_version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
    caller: u64,
) -> CUresult {
    // SAFETY: the function's type, by the driver's headers.
    let Some(function) = (unsafe { real::<LookUpV2>(Id::cuGetProcAddress_v2_ptsz) }) else {
        return NOT_IN_DRIVER;
    };
    note_look_up(symbol, cuda_version, caller);
    // SAFETY: the caller's own arguments.
    look_up(pfn, || unsafe { function(symbol, pfn, cuda_version, flags, status) })
}

/// A runtime that is linked into a program is known by its look-ups alone.
fn note_look_up(symbol: *const c_char, cuda_version: i32, caller: u64) {
    // SAFETY: the name that the driver is about to read, unless it is null.
    let is_init = || !symbol.is_null() && unsafe { CStr::from_ptr(symbol) } == c"cuInit";
    if askers::note(caller, cuda_version, is_init, text_holding) {
        first_look_up(caller);
    }
}

/// A runtime that is too new for the driver gives up before it calls cuInit, and nobody would hear why. Nothing is started for
/// any other.
#[cold]
fn first_look_up(caller: u64) {
    let has_baseline = lookup::is_set(c"CUWARDEN_BASELINE");
    let mut too_new = None;
    if !has_baseline {
        shielded(|| too_new = baseline::too_new(caller));
    }
    if !has_baseline && too_new.is_none() {
        return;
    }
    if let Verdict::On(process) = start_quietly() {
        shielded(|| {
            note_driver(process);
            match too_new {
                Some(version) => baseline::gives_up(process, version),
                None => baseline::looked_up(process, caller),
            }
        });
    }
}

fn text_holding(code: u64) -> Option<Range<u64>> {
    let mut found = None;
    shielded(|| found = cudart::text_holding(code));
    found
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
