//! What the shim asks NVML by itself: how much memory this process has on a device, as the driver sees it.
//!
//! NVML is started and ended for each question. It counts who uses it, so the application's own use is not disturbed.

use super::lookup::Library;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;

const SUCCESS: c_int = 0;
/// NVML_VALUE_NOT_AVAILABLE: a driver that does not say.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Processes on one device of which NVML is asked at most.
const MOST_PROCESSES: usize = 4096;

type Handle = *mut c_void;

/// nvmlProcessInfo_t of the second and later versions of the question.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// nvmlMemory_t
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// What NVML says of a device at a moment. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Of this process, where it is in the list.
    pub ours: Option<u64>,
    /// The others in the list, in order.
    pub others: Vec<u32>,
    /// Of all.
    pub used: u64,
}

/// Asks about a device by its UUID, as `GPU-…` or `MIG-…`. `load`: NVML may be loaded for it.
pub(super) fn usage(uuid: &str, load: bool) -> Option<Usage> {
    let library = Library::nvml(load)?;
    let _session = Session::start(&library)?;
    let uuid = CString::new(uuid).ok()?;
    let mut device: Handle = std::ptr::null_mut();
    // SAFETY: the function's type by nvml.h.
    let by_uuid: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
        unsafe { library.function(c"nvmlDeviceGetHandleByUUID") }?;
    // SAFETY: a C string and a place for the answer.
    if unsafe { by_uuid(uuid.as_ptr(), &mut device) } != SUCCESS {
        return None;
    }
    let mut memory = Memory::default();
    // SAFETY: as above.
    let memory_info: unsafe extern "C" fn(Handle, *mut Memory) -> c_int =
        unsafe { library.function(c"nvmlDeviceGetMemoryInfo") }?;
    // SAFETY: a handle that NVML gave, and a place for the answer.
    if unsafe { memory_info(device, &mut memory) } != SUCCESS {
        return None;
    }
    let processes = processes(&library, device).unwrap_or_default();
    let me = std::process::id();
    let ours = processes.iter().find(|one| one.pid == me).map(|one| one.used_gpu_memory);
    let mut others: Vec<u32> = processes.iter().map(|one| one.pid).filter(|pid| *pid != me).collect();
    others.sort_unstable();
    Some(Usage { ours: ours.filter(|bytes| *bytes != NOT_AVAILABLE), others, used: memory.used })
}

fn processes(library: &Library, device: Handle) -> Option<Vec<ProcessInfo>> {
    type List = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;
    let names: [&CStr; 2] =
        [c"nvmlDeviceGetComputeRunningProcesses_v3", c"nvmlDeviceGetComputeRunningProcesses_v2"];
    // SAFETY: both take these types by nvml.h.
    let list: List = names.iter().find_map(|name| unsafe { library.function(name) })?;
    let mut room: usize = 64;
    while room <= MOST_PROCESSES {
        let mut processes = vec![ProcessInfo::default(); room];
        let mut count = room as c_uint;
        // SAFETY: room for as many as `count` says.
        match unsafe { list(device, &mut count, processes.as_mut_ptr()) } {
            SUCCESS => {
                processes.truncate(count as usize);
                return Some(processes);
            }
            _ => room *= 4,
        }
    }
    None
}

struct Session<'a> {
    library: &'a Library,
}

impl Session<'_> {
    fn start(library: &Library) -> Option<Session<'_>> {
        // SAFETY: the function's type by nvml.h.
        let init: unsafe extern "C" fn() -> c_int = unsafe { library.function(c"nvmlInit_v2") }?;
        // SAFETY: no arguments.
        (unsafe { init() } == SUCCESS).then_some(Session { library })
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: the function's type by nvml.h.
        let end: Option<unsafe extern "C" fn() -> c_int> = unsafe { self.library.function(c"nvmlShutdown") };
        if let Some(end) = end {
            // SAFETY: no arguments; once for our start.
            unsafe { end() };
        }
    }
}
