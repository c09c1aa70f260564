//! Who has memory, as NVML lists it: once the directory has a ledger, its living processes and nobody else.
//!
//! NVML's list is taken into a place of our own, since the caller's has room for what it is shown, and that may be less.
//! A process of another pid namespace has no number here and is left out; its bytes are in the memory figures.

use super::device::Device;
use super::hook;
use super::ring::{Call, input, note};
use crate::diagnose::nvml::{FUNCTION_NOT_FOUND, Handle, INSUFFICIENT_SIZE, SUCCESS, UNKNOWN};
use crate::hooks::guard::Looking;
use crate::hooks::lookup::{Library, Owner};
use crate::policy::listed::{self, Kind, Listed, NO_INSTANCE, NOT_AVAILABLE};
use crate::process::observer::{self, Accounts};
use core::ffi::{c_int, c_uint, c_void};

/// nvmlProcessDetailList_v1_t
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DetailList {
    version: c_uint,
    mode: c_uint,
    count: c_uint,
    entries: *mut c_void,
}

/// NVML_STRUCT_VERSION(ProcessDetailList, 1)
const DETAIL_VERSION: c_uint = size_of::<DetailList>() as c_uint | 1 << 24;

hook! {
    nvmlDeviceGetComputeRunningProcesses(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, compute(FIRST);
    nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, compute(SECOND);
    nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, compute(THIRD);
    nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, other(FIRST);
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, other(SECOND);
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, other(THIRD);
    nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, other(FIRST);
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, other(SECOND);
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: *mut c_uint, entries: *mut c_void) => running, other(THIRD);
    nvmlDeviceGetRunningProcessDetailList(device: Handle, list: *mut DetailList) => details, input::DEVICE;
}

const FIRST: u32 = 0;
const SECOND: u32 = 1;
const THIRD: u32 = 2;
const IS_COMPUTE: u32 = 4;

const fn other(version: u32) -> u32 {
    version << 24 | input::DEVICE
}

const fn compute(version: u32) -> u32 {
    other(version | IS_COMPUTE)
}

unsafe extern "C" fn running(device: Handle, count: *mut c_uint, entries: *mut c_void, call: Call) -> c_int {
    type Real = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_void) -> c_int;
    // SAFETY: the type of all these rows, by nvml.h.
    let Some(real) = (unsafe { call.real::<Real>() }) else { return FUNCTION_NOT_FOUND };
    let kind = if call.rest() & IS_COMPUTE != 0 { Kind::Compute } else { Kind::Other };
    // SAFETY: the caller's own count, null or valid.
    let caller = unsafe { Caller::of(count, entries, Layout::of(call.rest())) };
    list(call, kind, device, caller, &mut |own| match own {
        // SAFETY: room for as many entries as the count says, of this function's layout.
        Some(own) => unsafe { real(device, &raw mut own.count, own.words.as_mut_ptr().cast()) },
        // SAFETY: the caller's own arguments.
        None => unsafe { real(device, count, entries) },
    })
}

unsafe extern "C" fn details(device: Handle, list_of: *mut DetailList, _: u64, call: Call) -> c_int {
    type Real = unsafe extern "C" fn(Handle, *mut DetailList) -> c_int;
    // SAFETY: the type of this row, by nvml.h.
    let Some(real) = (unsafe { call.real::<Real>() }) else { return FUNCTION_NOT_FOUND };
    // SAFETY: null or the caller's own structure; of another version only the first word is read.
    let known = unsafe { !list_of.is_null() && (*list_of).version == DETAIL_VERSION };
    // SAFETY: as above, of the version that has these fields.
    let asked = known.then(|| unsafe { *list_of });
    let kind = match asked.map(|asked| asked.mode) {
        Some(0) => Some(Kind::Compute),
        Some(1 | 2) => Some(Kind::Other),
        _ => None,
    };
    let caller = kind.zip(asked).and_then(|(_, asked)| {
        // SAFETY: a field of the caller's structure.
        unsafe { Caller::of(&raw mut (*list_of).count, asked.entries, Layout::Detail) }
    });
    list(call, kind.unwrap_or(Kind::Other), device, caller, &mut |own| match (own, asked) {
        (Some(own), Some(asked)) => {
            let mut inner = DetailList { count: own.count, entries: own.words.as_mut_ptr().cast(), ..asked };
            // SAFETY: room for as many entries as the count says.
            let code = unsafe { real(device, &mut inner) };
            own.count = inner.count;
            code
        }
        // SAFETY: the caller's own arguments.
        _ => unsafe { real(device, list_of) },
    })
}

/// How an entry is laid out: the pid, at 8 the bytes, at 16 the instances, at 24 the protected bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// nvmlProcessInfo_v1_t
    First,
    /// nvmlProcessInfo_v2_t
    Second,
    /// nvmlProcessDetail_v1_t
    Detail,
}

impl Layout {
    fn of(rest: u32) -> Layout {
        match rest & !IS_COMPUTE {
            FIRST => Layout::First,
            THIRD => Layout::third(),
            _ => Layout::Second,
        }
    }

    /// The third version's entries are those of the second, but in some drivers of R530 and R535, which had the protected
    /// bytes in them and no list of details yet.
    fn third() -> Layout {
        let has = |name| Library::loaded(Owner::Nvml).is_some_and(|nvml| nvml.address(name).is_some());
        if has(c"nvmlDeviceGetConfComputeMemSizeInfo") && !has(c"nvmlDeviceGetRunningProcessDetailList") {
            Layout::Detail
        } else {
            Layout::Second
        }
    }

    /// Of an entry, in words of 8 bytes.
    fn words(self) -> usize {
        match self {
            Layout::First => 2,
            Layout::Second => 3,
            Layout::Detail => 4,
        }
    }

    fn read(entry: &[u64]) -> Option<Listed> {
        let (pid, bytes) = (*entry.first()? as u32, *entry.get(1)?);
        let instance = entry.get(2).map_or(NO_INSTANCE, |word| [*word as u32, (*word >> 32) as u32]);
        Some(Listed { pid, bytes, instance, protected: entry.get(3).copied().unwrap_or(NOT_AVAILABLE) })
    }

    fn words_of(one: &Listed) -> [u64; 4] {
        let [gpu, compute] = one.instance;
        [u64::from(one.pid), one.bytes, u64::from(gpu) | u64::from(compute) << 32, one.protected]
    }
}

/// Where the caller wants the list.
struct Caller {
    count: *mut c_uint,
    room: c_uint,
    entries: *mut u8,
    layout: Layout,
}

impl Caller {
    /// `None`: not a call that NVML accepts.
    ///
    /// # Safety
    /// `count` must be null or valid, as NVML demands.
    unsafe fn of(count: *mut c_uint, entries: *mut c_void, layout: Layout) -> Option<Caller> {
        // SAFETY: as the caller promises.
        let room = *unsafe { count.as_ref() }?;
        (room == 0 || !entries.is_null()).then_some(Caller { count, room, entries: entries.cast(), layout })
    }

    /// Answers with a list as NVML does: where there is no room, with the count alone.
    fn answer(&self, list: &[Listed]) -> c_int {
        let needed = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
        // SAFETY: not null, and valid by NVML's own rules, as NVML has accepted the call.
        unsafe { *self.count = needed };
        if needed > self.room {
            return INSUFFICIENT_SIZE;
        }
        let bytes = self.layout.words() * size_of::<u64>();
        for (at, one) in list.iter().enumerate() {
            let words = Layout::words_of(one);
            // SAFETY: the caller has room for `room` entries of this layout, of which this is one; the words are at least
            // as long.
            unsafe {
                std::ptr::copy_nonoverlapping(words.as_ptr().cast(), self.entries.add(at * bytes), bytes)
            };
        }
        SUCCESS
    }
}

/// NVML's own list.
struct Own {
    count: c_uint,
    words: Vec<u64>,
}

impl Own {
    /// More processes than a device can have contexts.
    const ROOM: c_uint = 4096;

    fn of(caller: &Caller) -> Own {
        let count = caller.room.clamp(Self::ROOM, 16 * Self::ROOM);
        Own { count, words: vec![0; count as usize * caller.layout.words()] }
    }

    fn read(&self, layout: Layout) -> Vec<Listed> {
        self.words.chunks_exact(layout.words()).take(self.count as usize).filter_map(Layout::read).collect()
    }
}

/// The course of every list. `real` is called once, with a place for NVML's list, or nothing where the call is to be handed
/// through.
fn list(
    call: Call,
    kind: Kind,
    device: Handle,
    caller: Option<Caller>,
    real: &mut dyn FnMut(Option<&mut Own>) -> c_int,
) -> c_int {
    let Some(looking) = Looking::enter() else { return real(None) };
    let code = answered(&looking, kind, device, caller, real);
    // SAFETY: the call as it was.
    unsafe { note(call, device.number(), 0, code) };
    code
}

fn answered(
    looking: &Looking,
    kind: Kind,
    device: Handle,
    caller: Option<Caller>,
    real: &mut dyn FnMut(Option<&mut Own>) -> c_int,
) -> c_int {
    let Some(caller) = caller else { return real(None) };
    let mut prepared = None;
    looking.quietly(|| prepared = ours(device).map(|ours| (ours, Own::of(&caller))));
    let Some((ours, mut own)) = prepared else { return real(None) };
    let code = real(Some(&mut own));
    let list = match code {
        SUCCESS => own.read(caller.layout),
        // Nothing was written.
        INSUFFICIENT_SIZE => Vec::new(),
        _ => return code,
    };
    let mut answer = UNKNOWN;
    looking.quietly(|| answer = caller.answer(&listed::shown(kind, &list, &ours)));
    answer
}

/// The living processes of the directory on a device. `None`: there is no ledger, or it cannot be known.
fn ours(device: Handle) -> Option<Vec<Listed>> {
    let device = Device::of(device)?;
    let accounts = observer::look()?.ledger?;
    let mut devices = if device.account(&accounts).is_some() { Vec::new() } else { device.instances()? };
    if devices.is_empty() {
        devices.push(device);
    }
    Some(devices.iter().flat_map(|device| on(device, &accounts)).collect())
}

fn on(device: &Device, accounts: &Accounts) -> Vec<Listed> {
    let Some(account) = device.account(accounts) else { return Vec::new() };
    let instance = device.instance();
    let holders = account.holders.iter().filter(|holder| holder.is_alive);
    holders
        .filter_map(|holder| {
            let who = holder.who.filter(|who| who.pid_namespace == accounts.me.pid_namespace)?;
            Some(Listed { pid: who.pid, bytes: holder.bytes, instance, protected: NOT_AVAILABLE })
        })
        .collect()
}
