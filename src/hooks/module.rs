//! Modules and libraries: their code and variables take device memory.
//!
//! No question of the driver tells how much, so it is measured: free memory before and after. Counted is
//! nothing if this process allocated or freed anything else meanwhile, or the figure does not hold still because
//! others are at work on the card: better nothing than somebody else's memory.

use super::allocate::{Got, Wanted, free, record};
use super::guard::{Before, around};
use super::init_failure::module_failure;
use super::refuse::{current, deny};
use super::table::{Id, hook};
use super::{driver, refuse};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::diagnose::image::Image;
use crate::process::Process;
use crate::record::layout::Class;
use core::ffi::{CStr, c_char, c_void};

hook! {
    fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) |real| {
        load(Id::cuModuleLoad, Source::File(fname), module, true, real)
    }
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) |real| {
        load(Id::cuModuleLoadData, Source::Memory(image), module, true, real)
    }
    fn cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, numOptions: u32, options: *mut u32, optionValues: *mut *mut c_void) |real| {
        load(Id::cuModuleLoadDataEx, Source::Memory(image), module, true, real)
    }
    fn cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void) |real| {
        load(Id::cuModuleLoadFatBinary, Source::Memory(fatCubin), module, true, real)
    }
    fn cuModuleUnload(hmod: CUmodule) |real| {
        free(Class::Module, hmod as u64, real)
    }
    fn cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jitOptions: *mut u32, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut u32, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) |real| {
        load(Id::cuLibraryLoadData, Source::Memory(code), library, false, real)
    }
    fn cuLibraryLoadFromFile(library: *mut CUlibrary, fileName: *const c_char, jitOptions: *mut u32, jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut u32, libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32) |real| {
        load(Id::cuLibraryLoadFromFile, Source::File(fileName), library, false, real)
    }
    fn cuLibraryUnload(library: CUlibrary) |real| {
        free(Class::Module, library as u64, real)
    }
}

/// Where the figure does not hold still, or is larger than any module, somebody else's memory would be counted.
const LARGEST: u64 = 1 << 30;

/// Where a module comes from.
#[derive(Clone, Copy)]
enum Source {
    Memory(*const c_void),
    File(*const c_char),
}

struct Loading {
    wanted: Wanted,
    /// `None`: it cannot be measured.
    before: Option<Moment>,
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
fn load(
    api: Id,
    source: Source,
    out: *mut CUmodule,
    in_context: bool,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    around(
        |process| {
            let (Some((context, device)), false) = (current(process), out.is_null()) else {
                return Before::Pass;
            };
            match refuse::reserve(process, device, 1) {
                Ok(_) => process.account(device).iter().for_each(|account| account.release(1)),
                Err(denied) => return Before::Answer(deny(process, api, device, 1, denied)),
            }
            let before = moment(process, device);
            let owner = if in_context { context as u64 } else { 0 };
            Before::Then(Loading { wanted: Wanted { device, bytes: 0, owner }, before })
        },
        real,
        |process, loading, code| {
            if code != CUDA_SUCCESS {
                does_not_fit(process, api, source, loading.wanted.device, code);
                return code;
            }
            let Some(bytes) = taken(process, loading) else { return code };
            // SAFETY: not null, and written by the driver, which succeeded.
            let module = unsafe { *out };
            if let Some(account) = process.account(loading.wanted.device) {
                account.force(bytes);
            }
            record(process, api, Class::Module, loading.wanted, Got { address: module as u64, bytes });
            code
        },
    )
}

/// In bytes; 0 where it cannot be told, `None` where it could not be measured.
fn taken(process: &Process, loading: &Loading) -> Option<u64> {
    let before = loading.before.as_ref()?;
    let Some(after) = moment(process, loading.wanted.device) else { return Some(0) };
    let bytes = before.free.saturating_sub(after.free);
    let ours_alone = before.used == after.used && before.calls == after.calls;
    Some(if ours_alone && bytes <= LARGEST { bytes } else { 0 })
}

/// Says why, where it is the module's fault that it cannot be loaded here, or the compiler for its PTX is missing.
#[cold]
fn does_not_fit(process: &Process, api: Id, source: Source, device: u8, code: CUresult) {
    if !WRONG_IMAGE.contains(&code) {
        return;
    }
    let image = match source {
        Source::Memory(address) => Image::read(address as u64, &own_memory),
        Source::File(name) => file_head(name).and_then(|bytes| {
            let read = |at: u64, count: usize| {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                bytes.get(from..from.saturating_add(count).min(bytes.len())).unwrap_or_default().to_vec()
            };
            Image::read(0, &read)
        }),
    };
    let architecture = driver::architecture(device.into());
    module_failure(process, api.name(), code, Some(device.into()), image, architecture);
}

/// CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU, _INVALID_PTX, _JIT_COMPILER_NOT_FOUND, _UNSUPPORTED_PTX_VERSION
const WRONG_IMAGE: [CUresult; 5] = [200, 209, 218, 221, 222];

/// What can be read at an address of this process, without touching it.
fn own_memory(address: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0u8; bytes];
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes };
    // SAFETY: the buffer is as long as is said; the kernel checks the other side.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    buffer.truncate(usize::try_from(read).unwrap_or(0));
    buffer
}

fn file_head(name: *const c_char) -> Option<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::OpenOptionsExt;
    if name.is_null() {
        return None;
    }
    // SAFETY: the application's own name of a file, which the driver has read.
    let name = unsafe { CStr::from_ptr(name) };
    let path = std::ffi::OsStr::from_bytes(name.to_bytes());
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(16 << 20).read_to_end(&mut bytes).ok()?;
    Some(bytes)
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
