//! One row for each hooked function of the driver and of NVML: its exported name and the function that stands for it.
//!
//! The exported names of the shim, the look-ups by name and the look-ups by address all come from this list.

use super::lookup::Owner;
use super::nvml::{calls as nvml_calls, memory as nvml_memory, processes as nvml_processes};
use super::{array, context, graph, info, init, linear, module, pool, private_table, synchronize, vmm};
use crate::cuda::abi::CUresult;
use core::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Calls a macro with all rows: `name => module`.
#[macro_export]
macro_rules! for_each_hook {
    ($then:ident) => {
        $then! {
            cuInit => init,
            cuGetProcAddress => init,
            cuGetProcAddress_v2 => init,
            cuGetProcAddress_v2_ptsz => init,
            cuGetExportTable => private_table,

            cuCtxCreate => context,
            cuCtxCreate_v2 => context,
            cuCtxCreate_v3 => context,
            cuCtxCreate_v4 => context,
            cuCtxDestroy => context,
            cuCtxDestroy_v2 => context,
            cuCtxAttach => context,
            cuCtxDetach => context,
            cuDevicePrimaryCtxRetain => context,
            cuDevicePrimaryCtxRelease => context,
            cuDevicePrimaryCtxRelease_v2 => context,
            cuDevicePrimaryCtxReset => context,
            cuDevicePrimaryCtxReset_v2 => context,
            cuGreenCtxCreate => context,
            cuGreenCtxDestroy => context,

            cuMemAlloc => linear,
            cuMemAlloc_v2 => linear,
            cuMemAllocPitch => linear,
            cuMemAllocPitch_v2 => linear,
            cuMemAllocManaged => linear,
            cuMemFree => linear,
            cuMemFree_v2 => linear,

            cuMemAllocAsync => pool,
            cuMemAllocAsync_ptsz => pool,
            cuMemAllocFromPoolAsync => pool,
            cuMemAllocFromPoolAsync_ptsz => pool,
            cuMemFreeAsync => pool,
            cuMemFreeAsync_ptsz => pool,
            cuMemPoolTrimTo => pool,
            cuMemPoolSetAttribute => pool,
            cuMemPoolCreate => pool,
            cuMemPoolDestroy => pool,
            cuCtxSynchronize => synchronize,
            cuCtxSynchronize_v2 => synchronize,
            cuStreamSynchronize => synchronize,
            cuStreamSynchronize_ptsz => synchronize,

            cuMemCreate => vmm,
            cuMemRelease => vmm,
            cuMemMap => vmm,
            cuMemUnmap => vmm,
            cuMemRetainAllocationHandle => vmm,
            cuMemImportFromShareableHandle => vmm,
            cuMemMapArrayAsync => vmm,
            cuMemMapArrayAsync_ptsz => vmm,

            cuArrayCreate => array,
            cuArrayCreate_v2 => array,
            cuArray3DCreate => array,
            cuArray3DCreate_v2 => array,
            cuArrayDestroy => array,
            cuMipmappedArrayCreate => array,
            cuMipmappedArrayDestroy => array,

            cuGraphAddMemAllocNode => graph,
            cuGraphAddNode => graph,
            cuGraphAddNode_v2 => graph,
            cuGraphAddNode_v3 => graph,
            cuGraphInstantiate => graph,
            cuGraphInstantiate_v2 => graph,
            cuGraphInstantiateWithFlags => graph,
            cuGraphInstantiateWithParams => graph,
            cuGraphInstantiateWithParams_ptsz => graph,
            cuGraphExecDestroy => graph,
            cuGraphLaunch => graph,
            cuGraphLaunch_ptsz => graph,
            cuGraphUpload => graph,
            cuGraphUpload_ptsz => graph,
            cuDeviceGraphMemTrim => graph,

            cuModuleLoad => module,
            cuModuleLoadData => module,
            cuModuleLoadDataEx => module,
            cuModuleLoadFatBinary => module,
            cuModuleUnload => module,
            cuLibraryLoadData => module,
            cuLibraryLoadFromFile => module,
            cuLibraryUnload => module,

            cuMemGetInfo => info,
            cuMemGetInfo_v2 => info,
            cuDeviceTotalMem => info,
            cuDeviceTotalMem_v2 => info,

            nvmlInit => nvml_calls,
            nvmlInit_v2 => nvml_calls,
            nvmlInitWithFlags => nvml_calls,
            nvmlShutdown => nvml_calls,
            nvmlSystemGetDriverVersion => nvml_calls,
            nvmlSystemGetNVMLVersion => nvml_calls,
            nvmlSystemGetCudaDriverVersion => nvml_calls,
            nvmlSystemGetCudaDriverVersion_v2 => nvml_calls,
            nvmlDeviceGetCount => nvml_calls,
            nvmlDeviceGetCount_v2 => nvml_calls,
            nvmlDeviceGetHandleByIndex => nvml_calls,
            nvmlDeviceGetHandleByIndex_v2 => nvml_calls,
            nvmlDeviceGetHandleByUUID => nvml_calls,
            nvmlDeviceGetHandleByPciBusId => nvml_calls,
            nvmlDeviceGetHandleByPciBusId_v2 => nvml_calls,
            nvmlDeviceGetName => nvml_calls,
            nvmlDeviceGetUUID => nvml_calls,
            nvmlDeviceGetComputeMode => nvml_calls,
            nvmlDeviceGetMigMode => nvml_calls,
            nvmlDeviceGetMemoryInfo => nvml_memory,
            nvmlDeviceGetMemoryInfo_v2 => nvml_memory,
            nvmlDeviceGetConfComputeProtectedMemoryUsage => nvml_memory,
            nvmlDeviceGetComputeRunningProcesses => nvml_processes,
            nvmlDeviceGetComputeRunningProcesses_v2 => nvml_processes,
            nvmlDeviceGetComputeRunningProcesses_v3 => nvml_processes,
            nvmlDeviceGetGraphicsRunningProcesses => nvml_processes,
            nvmlDeviceGetGraphicsRunningProcesses_v2 => nvml_processes,
            nvmlDeviceGetGraphicsRunningProcesses_v3 => nvml_processes,
            nvmlDeviceGetMPSComputeRunningProcesses => nvml_processes,
            nvmlDeviceGetMPSComputeRunningProcesses_v2 => nvml_processes,
            nvmlDeviceGetMPSComputeRunningProcesses_v3 => nvml_processes,
            nvmlDeviceGetRunningProcessDetailList => nvml_processes,
        }
    };
}

/// One hooked function.
pub struct Row {
    /// The exported name.
    pub name: &'static CStr,
    /// Whose function it is.
    pub owner: Owner,
    /// What stands in its place.
    pub hook: *const c_void,
}

// SAFETY: a name and a code address, both constant.
unsafe impl Sync for Row {}

macro_rules! rows {
    ($($name:ident => $module:ident,)*) => {
        /// The rows by name.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Id { $($name),* }

        /// The hooks under the exported names, for the symbols that `cshim` exports.
        pub mod entry {
            $(pub use super::$module::$name;)*
        }

        /// All rows, in the order of [`Id`].
        pub static ROWS: &[Row] = &[
            $(Row {
                name: c_name(concat!(stringify!($name), "\0")),
                owner: Owner::of(stringify!($name)),
                hook: $module::$name as *const c_void,
            }),*
        ];

        /// For what is made by the compiler: at run time the names are those of [`ROWS`], and a second list would cost 5 KB.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The number by which records name the function.
        static API_NUMBERS: &[u16] = &[$(crate::record::api::number(stringify!($name))),*];

        /// How many rows there are.
        pub const COUNT: usize = NAMES.len();
    };
}
for_each_hook!(rows);

const fn c_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// The exported names of all hooked functions of a library, each ABI variant for itself.
pub fn names(owner: Owner) -> impl Iterator<Item = &'static str> {
    ROWS.iter().filter(move |row| row.owner == owner).map(Row::text)
}

impl Row {
    fn text(&self) -> &'static str {
        // SAFETY: all rows' names were identifiers of this program's text.
        unsafe { std::str::from_utf8_unchecked(self.name.to_bytes()) }
    }
}

/// The exported name of a row.
pub(super) fn name_of_row(row: usize) -> &'static str {
    ROWS.get(row).map_or("?", Row::text)
}

impl Id {
    /// The exported name.
    pub fn name(self) -> &'static str {
        name_of_row(self as usize)
    }

    /// The number by which records name it, 0 where it allocates nothing.
    pub fn api_number(self) -> u16 {
        API_NUMBERS.get(self as usize).copied().unwrap_or(0)
    }
}

/// Where the libraries' own functions are, by row; null until they are looked up.
static REAL: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// The library's own function of a row, if it has one.
///
/// # Safety
/// `F` must be the function pointer type of that function.
#[inline]
pub(super) unsafe fn real<F: Copy>(id: Id) -> Option<F> {
    // SAFETY: as the caller promises.
    unsafe { real_of_row(id as usize) }
}

/// The same by the row's number.
///
/// # Safety
/// As [`real`].
#[inline]
pub(super) unsafe fn real_of_row<F: Copy>(row: usize) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // Relaxed: the address of code that was there before.
    let mut address = REAL.get(row)?.load(Ordering::Relaxed);
    if address.is_null() {
        address = super::lookup::resolve_row(row);
        if address.is_null() {
            return None;
        }
    }
    // SAFETY: F is a function pointer of the same size, by the assertion and the caller's promise.
    Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

/// Notes where the library's function of a row is. The first address stays.
pub(super) fn set_real(row: usize, address: *mut c_void) -> *mut c_void {
    let Some(slot) = REAL.get(row) else { return std::ptr::null_mut() };
    match slot.compare_exchange(std::ptr::null_mut(), address, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => address,
        Err(first) => first,
    }
}

/// What an entry point answers when the driver lacks the function: reached only by a program that was linked
/// against a newer driver than the one that runs.
pub(super) const NOT_IN_DRIVER: CUresult = crate::cuda::error::CUDA_ERROR_NOT_FOUND;

/// Defines hooks. A thread that is cancelled or ends inside the driver is unwound through them by libgcc_s, whose
/// contexts our own copy of the unwinder must not touch: as functions that do not unwind they have nothing to clean
/// up on the way, and the unwinder passes. What such a call had reserved stays charged. The body gets `real`, a closure that calls the driver's function with the same arguments,
/// and must call it exactly once.
macro_rules! hook {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$real:ident| $body:block)*) => {$(
        $(#[$meta])*
        #[doc = concat!("Stands for `", stringify!($name), "`.\n\n# Safety\nAs the driver's function.")]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::cuda::abi::CUresult {
            type Real = unsafe extern "C" fn($($type),*) -> $crate::cuda::abi::CUresult;
            // SAFETY: Real is the type of this row's function, by the driver's headers.
            let Some(function) = (unsafe { $crate::hooks::table::real::<Real>($crate::hooks::table::Id::$name) }) else {
                return $crate::hooks::table::NOT_IN_DRIVER;
            };
            // SAFETY: the caller's own arguments, passed on as they are.
            let $real = move || unsafe { function($($arg),*) };
            $body
        }
    )*};
}
pub(super) use hook;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_names_agree() {
        for (row, name) in ROWS.iter().zip(names(Owner::Driver).chain(names(Owner::Nvml))) {
            assert_eq!(row.name.to_str(), Ok(name));
            assert!(!row.hook.is_null());
        }
        assert_eq!(Id::cuInit.name(), "cuInit");
        assert_eq!(names(Owner::Driver).count() + names(Owner::Nvml).count(), COUNT);
        assert_eq!(Id::nvmlDeviceGetRunningProcessDetailList as usize, COUNT - 1);
    }

    #[test]
    fn every_api_that_records_is_named_in_the_file_format() {
        for name in names(Owner::Driver)
            .filter(|n| n.contains("Alloc") && !n.contains("Node") && !n.contains("Retain"))
        {
            assert!(crate::record::api::number(name) != 0, "{name}");
        }
    }
}
