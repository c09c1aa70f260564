//! How the CUDA runtime makes its context: through slot 2 of a private table of the driver, not through the
//! exported cuDevicePrimaryCtxRetain. When that fails the runtime answers cudaErrorInitializationError whatever
//! the reason was, so the slot's own code is the only place where the reason can be seen.
//!
//! The runtime checks the table's address, so it is not copied: the slot is exchanged in place, its page made
//! writable for that moment. Where anything looks other than expected, nothing is touched.
//! `CUWARDEN_PRIVATE_TABLES=0` turns it off.

use super::context::made;
use super::context_cost::{self, Coming};
use super::devices::device_number;
use super::driver;
use super::guard::{Before, around, start_quietly};
use super::init_failure::init_failure;
use super::table::{Id, hook, real as real_function};
use crate::cuda::abi::*;
use crate::cuda::error::{CUDA_ERROR_UNKNOWN, CUDA_SUCCESS};
use crate::event::cancel::NoCancel;
use crate::process::{Process, Verdict};
use crate::tracking::contexts::Origin;
use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

/// 6bd5fb6c-5bf4-e74a-8987-d93912fd9df9
const CONTEXT_TABLE: CUuuid = CUuuid {
    bytes: [0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9],
};
/// Slot 0 is the table's size in bytes.
const LEAST_BYTES: usize = 3 * size_of::<usize>();
const MOST_BYTES: usize = 4096;

/// What events call it.
const NAME: &str = "cuDevicePrimaryCtxRetain (by the CUDA runtime)";

type Slot = unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult;

static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static TRIED: AtomicBool = AtomicBool::new(false);

hook! {
    fn cuGetExportTable(ppExportTable: *mut *const c_void, pExportTableId: *const CUuuid) |real| {
        let code = real();
        // SAFETY: the driver has read the one and, when it succeeds, written the other.
        let table = unsafe {
            let wanted = code == CUDA_SUCCESS && pExportTableId.as_ref() == Some(&CONTEXT_TABLE);
            if wanted { ppExportTable.as_ref().copied() } else { None }
        };
        if let Some(table) = table {
            exchange_once(table);
        }
        code
    }
}

#[cold]
fn exchange_once(table: *const c_void) {
    let Verdict::On(process) = start_quietly() else { return };
    // Relaxed: only who comes first matters.
    if !process.config.private_tables || TRIED.swap(true, Ordering::Relaxed) {
        return;
    }
    super::guard::shielded(|| {
        // SAFETY: the driver's own table, which every runtime reads.
        unsafe { exchange(table.cast()) };
    });
}

/// # Safety
/// `table` must be the address that the driver gave for the table.
unsafe fn exchange(table: *const AtomicPtr<c_void>) -> Option<()> {
    // SAFETY: not null, and a table has at least its size.
    let bytes = unsafe { table.as_ref()?.load(Ordering::Relaxed) } as usize;
    if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes) {
        return None;
    }
    // SAFETY: three slots at least.
    let slot = unsafe { &*table.add(2) };
    let original = slot.load(Ordering::Relaxed);
    // SAFETY: cuInit's type; only its address is used.
    let driver = unsafe { real_function::<*const c_void>(Id::cuInit) }?;
    if !same_code(driver as u64, original as u64) {
        return None;
    }
    let page = Page::of(std::ptr::from_ref(slot) as usize)?;
    ORIGINAL.store(original, Ordering::Release);
    page.while_writable(|| slot.store(instead as *mut c_void, Ordering::Release))
}

/// True when both addresses are code of one library.
fn same_code(a: u64, b: u64) -> bool {
    let mut same = false;
    crate::stack::each_module(&mut |module| same |= module.text.contains(&a) && module.text.contains(&b));
    same
}

/// The pages of one word, and how they are protected now.
struct Page {
    start: usize,
    bytes: usize,
    protection: i32,
}

impl Page {
    fn of(address: usize) -> Option<Page> {
        const SIZE: usize = 4096;
        let start = address / SIZE * SIZE;
        let bytes = (address + size_of::<usize>() - start).next_multiple_of(SIZE);
        let _no_cancel = NoCancel::new();
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let protection = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
            if from > start || start + bytes > to {
                return None;
            }
            let bit = |at: usize, letter: u8, flag: i32| {
                if rest.as_bytes().get(at) == Some(&letter) { flag } else { 0 }
            };
            Some(
                bit(0, b'r', libc::PROT_READ)
                    | bit(1, b'w', libc::PROT_WRITE)
                    | bit(2, b'x', libc::PROT_EXEC),
            )
        })?;
        Some(Page { start, bytes, protection })
    }

    fn while_writable(&self, work: impl FnOnce()) -> Option<()> {
        let protect = |protection: i32| {
            // SAFETY: whole pages of the driver's data, which stay readable throughout.
            unsafe { libc::mprotect(self.start as *mut c_void, self.bytes, protection) == 0 }
        };
        if self.protection & libc::PROT_WRITE == 0 && !protect(self.protection | libc::PROT_WRITE) {
            return None;
        }
        work();
        if self.protection & libc::PROT_WRITE == 0 {
            protect(self.protection);
        }
        Some(())
    }
}

/// Stands in slot 2.
unsafe extern "C" fn instead(context: *mut CUcontext, device: CUdevice) -> CUresult {
    // Acquire pairs with the Release in `exchange`, before which nobody can be here.
    let original = ORIGINAL.load(Ordering::Acquire);
    if original.is_null() {
        return CUDA_ERROR_UNKNOWN;
    }
    // SAFETY: what stood in the slot has this type.
    let original = unsafe { std::mem::transmute::<*mut c_void, Slot>(original) };
    around(
        |process: &'static Process| before(process, device),
        // SAFETY: the runtime's own arguments.
        || unsafe { original(context, device) },
        |process, expected, code| {
            if code != CUDA_SUCCESS {
                init_failure(process, NAME, code, Some(device));
            // SAFETY: null is checked, and the driver has written it when it succeeds.
            } else if let Some(context) = unsafe { context.as_ref() } {
                made(process, *context, device, Origin::Primary);
            }
            after(process, expected, device, code)
        },
    )
}

/// What a driver does in the slot: it makes the context, or gives only its handle, and makes it at its first use.
/// Then the runtime calls the slot for devices that it never uses, and nothing may be refused there.
static MAKES_CONTEXTS: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const AT_ONCE: u8 = 1;
const LATER: u8 = 2;

enum Expected {
    /// The context is there already.
    Nothing,
    /// It would fit.
    Context(Coming),
    /// It would not.
    Refusal(CUresult),
}

fn before(process: &Process, device: CUdevice) -> Before<Expected> {
    // Relaxed, here and below: what every call in the slot finds out is the same.
    if MAKES_CONTEXTS.load(Ordering::Relaxed) == LATER {
        return Before::Then(Expected::Nothing);
    }
    match context_cost::primary_coming(process, device) {
        Ok(Some(coming)) => Before::Then(Expected::Context(coming)),
        Ok(None) => Before::Then(Expected::Nothing),
        Err(code) if MAKES_CONTEXTS.load(Ordering::Relaxed) == AT_ONCE => Before::Answer(code),
        Err(code) => Before::Then(Expected::Refusal(code)),
    }
}

fn after(process: &Process, expected: &Expected, device: CUdevice, code: CUresult) -> CUresult {
    let is_there = || driver::primary_is_active(device) == Some(true);
    match expected {
        Expected::Nothing if code == CUDA_SUCCESS && !is_there() => await_primary(process, device),
        Expected::Nothing => {}
        Expected::Context(coming) => {
            if code == CUDA_SUCCESS {
                MAKES_CONTEXTS.store(if is_there() { AT_ONCE } else { LATER }, Ordering::Relaxed);
            }
            context_cost::primary_answered(process, coming, code);
        }
        Expected::Refusal(refusal) if code == CUDA_SUCCESS => {
            if is_there() {
                MAKES_CONTEXTS.store(AT_ONCE, Ordering::Relaxed);
                driver::release_primary(device);
                return *refusal;
            }
            MAKES_CONTEXTS.store(LATER, Ordering::Relaxed);
            await_primary(process, device);
        }
        Expected::Refusal(_) => {}
    }
    code
}

fn await_primary(process: &Process, device: CUdevice) {
    if let Some(device) = device_number(device) {
        process.contexts.await_primary(device, process.config.count_contexts);
    }
}
