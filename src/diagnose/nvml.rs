//! A client of libnvidia-ml: the few questions that explain why CUDA does not start, and what processes hold.
//!
//! Functions are found by name in whatever library the caller opened; one that an older library lacks answers
//! [`FUNCTION_NOT_FOUND`]. Types and codes are those of nvml.h.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;

/// NVML_SUCCESS
pub const SUCCESS: i32 = 0;
/// NVML_ERROR_NOT_SUPPORTED
pub const NOT_SUPPORTED: i32 = 3;
/// NVML_ERROR_NO_PERMISSION
pub const NO_PERMISSION: i32 = 4;
/// NVML_ERROR_INSUFFICIENT_SIZE
pub const INSUFFICIENT_SIZE: i32 = 7;
/// NVML_ERROR_DRIVER_NOT_LOADED
pub const DRIVER_NOT_LOADED: i32 = 9;
/// NVML_ERROR_LIBRARY_NOT_FOUND
pub const LIBRARY_NOT_FOUND: i32 = 12;
/// NVML_ERROR_FUNCTION_NOT_FOUND
pub const FUNCTION_NOT_FOUND: i32 = 13;
/// NVML_ERROR_GPU_IS_LOST
pub const GPU_IS_LOST: i32 = 15;
/// NVML_ERROR_RESET_REQUIRED
pub const RESET_REQUIRED: i32 = 16;
/// NVML_ERROR_OPERATING_SYSTEM
pub const OPERATING_SYSTEM: i32 = 17;
/// NVML_ERROR_LIB_RM_VERSION_MISMATCH
pub const VERSION_MISMATCH: i32 = 18;
/// NVML_ERROR_UNKNOWN
pub const UNKNOWN: i32 = 999;

/// A device, as NVML named it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Handle(*mut c_void);

impl Handle {
    const NONE: Handle = Handle(std::ptr::null_mut());

    /// By which it is told from others.
    pub fn number(self) -> u64 {
        self.0 as u64
    }
}

/// Processes on one device of which is asked at most.
const MOST_PROCESSES: usize = 4096;
/// MIG instances of one card at most, by NVML_MAX_MIG… of today with room.
const MOST_INSTANCES: c_uint = 16;

/// The library, by its functions.
pub struct Nvml<'a> {
    find: &'a dyn Fn(&CStr) -> Option<*const c_void>,
}

/// NVML is started; ended when this is dropped.
pub struct Session<'a> {
    nvml: &'a Nvml<'a>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: the type by nvml.h.
        if let Ok(end) = unsafe { self.nvml.function::<unsafe extern "C" fn() -> c_int>(c"nvmlShutdown") } {
            // SAFETY: no arguments; once for our start. NVML counts its users.
            unsafe { end() };
        }
    }
}

/// nvmlProcessInfo_t since its second version.
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

/// nvmlGpuFabricInfo_t
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FabricInfo {
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

/// nvmlGridLicensableFeatures_t of the version that every driver since 470 knows, with room for longer ones.
#[repr(C)]
struct Licences {
    is_grid_licence_supported: c_int,
    count: c_uint,
    features: [u8; 16 << 10],
}

type Plain<T> = unsafe extern "C" fn(Handle, *mut T) -> c_int;

impl<'a> Nvml<'a> {
    /// `find` answers addresses of functions of one library, which stays loaded.
    ///
    /// # Safety
    /// What `find` answers for a name of nvml.h must be that function.
    pub unsafe fn new(find: &'a dyn Fn(&CStr) -> Option<*const c_void>) -> Nvml<'a> {
        Nvml { find }
    }

    /// # Safety
    /// `F` must be the function pointer type of that function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, i32> {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        let address = (self.find)(name).filter(|address| !address.is_null()).ok_or(FUNCTION_NOT_FOUND)?;
        // SAFETY: a function pointer of the same size, by the caller's promise and that of `new`.
        Ok(unsafe { std::mem::transmute_copy::<*const c_void, F>(&address) })
    }

    /// nvmlInit_v2
    pub fn start(&'a self) -> Result<Session<'a>, i32> {
        // SAFETY: the type by nvml.h.
        let init: unsafe extern "C" fn() -> c_int = unsafe { self.function(c"nvmlInit_v2") }?;
        // SAFETY: no arguments.
        checked(unsafe { init() }).map(|()| Session { nvml: self })
    }

    /// The driver's release.
    pub fn driver_version(&self) -> Result<String, i32> {
        self.system_text(c"nvmlSystemGetDriverVersion")
    }

    /// NVML's own version.
    pub fn nvml_version(&self) -> Result<String, i32> {
        self.system_text(c"nvmlSystemGetNVMLVersion")
    }

    /// The CUDA version of the driver, as 12020.
    pub fn cuda_version(&self) -> Result<i32, i32> {
        let mut version = 0;
        // SAFETY: the type by nvml.h.
        let ask: unsafe extern "C" fn(*mut c_int) -> c_int =
            unsafe { self.function(c"nvmlSystemGetCudaDriverVersion_v2") }?;
        // SAFETY: a place for the answer.
        checked(unsafe { ask(&mut version) }).map(|()| version)
    }

    /// Cards.
    pub fn count(&self) -> Result<u32, i32> {
        let mut count = 0;
        // SAFETY: the type by nvml.h.
        let ask: unsafe extern "C" fn(*mut c_uint) -> c_int =
            unsafe { self.function(c"nvmlDeviceGetCount_v2") }?;
        // SAFETY: a place for the answer.
        checked(unsafe { ask(&mut count) }).map(|()| count)
    }

    /// A card by its index.
    pub fn device(&self, index: u32) -> Result<Handle, i32> {
        let mut device = Handle::NONE;
        // SAFETY: the type by nvml.h.
        let ask: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
            unsafe { self.function(c"nvmlDeviceGetHandleByIndex_v2") }?;
        // SAFETY: a place for the answer.
        checked(unsafe { ask(index, &mut device) }).map(|()| device)
    }

    /// A card or a MIG instance by its UUID.
    pub fn device_by_uuid(&self, uuid: &str) -> Result<Handle, i32> {
        let uuid = CString::new(uuid).map_err(|_| 2)?;
        let mut device = Handle::NONE;
        // SAFETY: the type by nvml.h.
        let ask: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
            unsafe { self.function(c"nvmlDeviceGetHandleByUUID") }?;
        // SAFETY: a C string and a place for the answer.
        checked(unsafe { ask(uuid.as_ptr(), &mut device) }).map(|()| device)
    }

    /// `GPU-…` or `MIG-…`.
    pub fn uuid(&self, device: Handle) -> Result<String, i32> {
        self.device_text(c"nvmlDeviceGetUUID", device)
    }

    /// The product.
    pub fn name(&self, device: Handle) -> Result<String, i32> {
        self.device_text(c"nvmlDeviceGetName", device)
    }

    /// NVML_COMPUTEMODE_…
    pub fn compute_mode(&self, device: Handle) -> Result<u32, i32> {
        self.number(c"nvmlDeviceGetComputeMode", device)
    }

    /// 1 = the card is in MIG mode.
    pub fn mig_mode(&self, device: Handle) -> Result<u32, i32> {
        let (mut now, mut pending) = (0, 0);
        // SAFETY: the type by nvml.h.
        let ask: unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int =
            unsafe { self.function(c"nvmlDeviceGetMigMode") }?;
        // SAFETY: NVML's handle and places for the answers.
        checked(unsafe { ask(device, &mut now, &mut pending) }).map(|()| now)
    }

    /// UUIDs of a card's MIG instances.
    pub fn instances(&self, device: Handle) -> Vec<String> {
        self.instance_handles(device).into_iter().filter_map(|instance| self.uuid(instance).ok()).collect()
    }

    /// A card's MIG instances.
    pub fn instance_handles(&self, device: Handle) -> Vec<Handle> {
        // SAFETY: the type by nvml.h.
        let ask: Result<unsafe extern "C" fn(Handle, c_uint, *mut Handle) -> c_int, i32> =
            unsafe { self.function(c"nvmlDeviceGetMigDeviceHandleByIndex") };
        let Ok(ask) = ask else { return Vec::new() };
        let one = |index: c_uint| {
            let mut instance = Handle::NONE;
            // SAFETY: NVML's handle and a place for the answer.
            checked(unsafe { ask(device, index, &mut instance) }).ok().map(|()| instance)
        };
        (0..MOST_INSTANCES).filter_map(one).collect()
    }

    /// GPU instance and compute instance of a MIG instance.
    pub fn instance_ids(&self, device: Handle) -> Result<[u32; 2], i32> {
        let ask = |name| self.number(name, device);
        Ok([ask(c"nvmlDeviceGetGpuInstanceId")?, ask(c"nvmlDeviceGetComputeInstanceId")?])
    }

    /// Free and total memory, in bytes.
    pub fn memory(&self, device: Handle) -> Result<(u64, u64), i32> {
        let mut memory = Memory::default();
        // SAFETY: the type by nvml.h.
        let ask: Plain<Memory> = unsafe { self.function(c"nvmlDeviceGetMemoryInfo") }?;
        // SAFETY: NVML's handle and a place for the answer.
        checked(unsafe { ask(device, &mut memory) }).map(|()| (memory.free, memory.total))
    }

    /// Processes that compute on it, with the memory that each has, in bytes, where the driver says that.
    pub fn processes(&self, device: Handle) -> Result<Vec<(u32, Option<u64>)>, i32> {
        type List = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;
        let names = [c"nvmlDeviceGetComputeRunningProcesses_v3", c"nvmlDeviceGetComputeRunningProcesses_v2"];
        // SAFETY: both take these types by nvml.h.
        let list: List =
            names.iter().find_map(|name| unsafe { self.function(name) }.ok()).ok_or(FUNCTION_NOT_FOUND)?;
        let mut room: usize = 64;
        loop {
            let mut all = vec![ProcessInfo::default(); room];
            let mut count = room as c_uint;
            // SAFETY: NVML's handle, and room for as many as `count` says.
            match unsafe { list(device, &mut count, all.as_mut_ptr()) } {
                SUCCESS => {
                    all.truncate(count as usize);
                    let known = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
                    return Ok(all.iter().map(|one| (one.pid, known(one.used_gpu_memory))).collect());
                }
                INSUFFICIENT_SIZE if room < MOST_PROCESSES => room *= 4,
                code => return Err(code),
            }
        }
    }

    /// Uncorrected errors since the last reset.
    pub fn ecc(&self, device: Handle) -> Result<u64, i32> {
        const UNCORRECTED: c_uint = 1;
        const VOLATILE: c_uint = 0;
        let mut count = 0;
        // SAFETY: the type by nvml.h.
        let ask: unsafe extern "C" fn(Handle, c_uint, c_uint, *mut u64) -> c_int =
            unsafe { self.function(c"nvmlDeviceGetTotalEccErrors") }?;
        // SAFETY: NVML's handle and a place for the answer.
        checked(unsafe { ask(device, UNCORRECTED, VOLATILE, &mut count) }).map(|()| count)
    }

    /// 1 = pages wait to be retired.
    pub fn retired_pending(&self, device: Handle) -> Result<u32, i32> {
        self.number(c"nvmlDeviceGetRetiredPagesPendingStatus", device)
    }

    /// nvmlClocksThrottleReason… bits.
    pub fn throttle(&self, device: Handle) -> Result<u64, i32> {
        let mut reasons = 0u64;
        // SAFETY: the type by nvml.h.
        let ask: Plain<u64> = unsafe { self.function(c"nvmlDeviceGetCurrentClocksThrottleReasons") }?;
        // SAFETY: NVML's handle and a place for the answer.
        checked(unsafe { ask(device, &mut reasons) }).map(|()| reasons)
    }

    /// 1 = persistence mode is on.
    pub fn persistence(&self, device: Handle) -> Result<u32, i32> {
        self.number(c"nvmlDeviceGetPersistenceMode", device)
    }

    /// State of the card in the NVLink fabric, NVML_GPU_FABRIC_STATE_…, and its code.
    pub fn fabric(&self, device: Handle) -> Result<(u32, i32), i32> {
        // Room for what later drivers may add.
        let mut info = [FabricInfo::default(); 4];
        // SAFETY: the type by nvml.h.
        let ask: Plain<FabricInfo> = unsafe { self.function(c"nvmlDeviceGetGpuFabricInfo") }?;
        // SAFETY: NVML's handle and a place for the answer.
        checked(unsafe { ask(device, info.as_mut_ptr()) }).map(|()| (info[0].state.into(), info[0].status))
    }

    /// NVML_GPU_VIRTUALIZATION_MODE_…
    pub fn virtualization(&self, device: Handle) -> Result<u32, i32> {
        self.number(c"nvmlDeviceGetVirtualizationMode", device)
    }

    /// Of a vGPU: whether the driver has a licence. `None`: not a matter of licences, or not known.
    pub fn is_licensed(&self, device: Handle) -> Option<bool> {
        // nvmlGridLicensableFeature_t begins with featureCode and featureState.
        const STATE_AT: usize = 4;
        let mut licences =
            Box::new(Licences { is_grid_licence_supported: 0, count: 0, features: [0; 16 << 10] });
        // SAFETY: the type by nvml.h.
        let ask: Plain<Licences> =
            unsafe { self.function(c"nvmlDeviceGetGridLicensableFeatures_v4") }.ok()?;
        // SAFETY: NVML's handle and a place that is larger than the answer.
        checked(unsafe { ask(device, &mut *licences) }).ok()?;
        if licences.is_grid_licence_supported == 0 || licences.count == 0 {
            return None;
        }
        let state = licences.features.get(STATE_AT..STATE_AT + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(state) != 0)
    }

    /// With confidential computing: whether the cards may be used yet. `None`: it is off, or not known.
    pub fn confidential_ready(&self) -> Option<bool> {
        // nvmlConfComputeSystemState_t: environment, ccFeature, devToolsMode.
        let mut state = [0 as c_uint; 8];
        type Ask<T> = unsafe extern "C" fn(*mut T) -> c_int;
        // SAFETY: the type by nvml.h; the structure is three numbers.
        let ask: Ask<c_uint> = unsafe { self.function(c"nvmlSystemGetConfComputeState") }.ok()?;
        // SAFETY: a place that is larger than the answer.
        checked(unsafe { ask(state.as_mut_ptr()) }).ok()?;
        if state[1] == 0 {
            return None;
        }
        let mut ready: c_uint = 0;
        // SAFETY: the type by nvml.h.
        let ask: Ask<c_uint> = unsafe { self.function(c"nvmlSystemGetConfComputeGpusReadyState") }.ok()?;
        // SAFETY: a place for the answer.
        checked(unsafe { ask(&mut ready) }).ok().map(|()| ready != 0)
    }

    fn number(&self, name: &CStr, device: Handle) -> Result<u32, i32> {
        let mut value: c_uint = 0;
        // SAFETY: all callers name functions of this type.
        let ask: Plain<c_uint> = unsafe { self.function(name) }?;
        // SAFETY: NVML's handle and a place for the answer.
        checked(unsafe { ask(device, &mut value) }).map(|()| value)
    }

    fn system_text(&self, name: &CStr) -> Result<String, i32> {
        let mut text = [0u8; 96];
        // SAFETY: all callers name functions of this type.
        let ask: unsafe extern "C" fn(*mut u8, c_uint) -> c_int = unsafe { self.function(name) }?;
        // SAFETY: room for as many bytes as are said.
        checked(unsafe { ask(text.as_mut_ptr(), 95) }).map(|()| text_of(&text))
    }

    fn device_text(&self, name: &CStr, device: Handle) -> Result<String, i32> {
        let mut text = [0u8; 112];
        // SAFETY: all callers name functions of this type.
        let ask: unsafe extern "C" fn(Handle, *mut u8, c_uint) -> c_int = unsafe { self.function(name) }?;
        // SAFETY: NVML's handle, and room for as many bytes as are said.
        checked(unsafe { ask(device, text.as_mut_ptr(), 111) }).map(|()| text_of(&text))
    }
}

fn checked(code: c_int) -> Result<(), i32> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// Up to the first NUL, if there is one.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// A question that this card or driver does not know, or that this user may not ask, explains nothing.
pub fn is_harmless(code: i32) -> bool {
    matches!(code, SUCCESS | NOT_SUPPORTED | NO_PERMISSION | FUNCTION_NOT_FOUND | INSUFFICIENT_SIZE)
}

/// After such a failure the following calls only repeat it.
pub fn explains_the_rest(code: i32) -> bool {
    matches!(code, DRIVER_NOT_LOADED | LIBRARY_NOT_FOUND | OPERATING_SYSTEM | VERSION_MISMATCH | UNKNOWN | 1)
}

/// `NVML_…`, or the number.
pub fn code_name(code: i32) -> String {
    let name = match code {
        0 => "SUCCESS",
        1 => "ERROR_UNINITIALIZED",
        2 => "ERROR_INVALID_ARGUMENT",
        3 => "ERROR_NOT_SUPPORTED",
        4 => "ERROR_NO_PERMISSION",
        5 => "ERROR_ALREADY_INITIALIZED",
        6 => "ERROR_NOT_FOUND",
        7 => "ERROR_INSUFFICIENT_SIZE",
        8 => "ERROR_INSUFFICIENT_POWER",
        9 => "ERROR_DRIVER_NOT_LOADED",
        10 => "ERROR_TIMEOUT",
        11 => "ERROR_IRQ_ISSUE",
        12 => "ERROR_LIBRARY_NOT_FOUND",
        13 => "ERROR_FUNCTION_NOT_FOUND",
        14 => "ERROR_CORRUPTED_INFOROM",
        15 => "ERROR_GPU_IS_LOST",
        16 => "ERROR_RESET_REQUIRED",
        17 => "ERROR_OPERATING_SYSTEM",
        18 => "ERROR_LIB_RM_VERSION_MISMATCH",
        19 => "ERROR_IN_USE",
        20 => "ERROR_MEMORY",
        21 => "ERROR_NO_DATA",
        22 => "ERROR_VGPU_ECC_NOT_SUPPORTED",
        23 => "ERROR_INSUFFICIENT_RESOURCES",
        24 => "ERROR_FREQ_NOT_SUPPORTED",
        25 => "ERROR_ARGUMENT_VERSION_MISMATCH",
        26 => "ERROR_DEPRECATED",
        27 => "ERROR_NOT_READY",
        28 => "ERROR_GPU_NOT_FOUND",
        29 => "ERROR_INVALID_STATE",
        999 => "ERROR_UNKNOWN",
        _ => return format!("NVML code {code}"),
    };
    format!("NVML_{name}")
}

/// In words.
pub fn compute_mode(mode: u32) -> String {
    match mode {
        0 => "default".to_owned(),
        1 => "exclusive thread".to_owned(),
        2 => "prohibited".to_owned(),
        3 => "exclusive process".to_owned(),
        other => format!("mode {other}"),
    }
}

/// In words.
pub fn throttle_reasons(bits: u64) -> String {
    const NAMES: [(u64, &str); 9] = [
        (1 << 0, "idle"),
        (1 << 1, "application clocks"),
        (1 << 2, "power cap"),
        (1 << 3, "hardware slowdown"),
        (1 << 4, "sync boost"),
        (1 << 5, "software thermal slowdown"),
        (1 << 6, "hardware thermal slowdown"),
        (1 << 7, "hardware power brake"),
        (1 << 8, "display clocks"),
    ];
    let named: Vec<&str> = NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}
