//! What the shim knows in this process, made at the first CUDA call that needs it.
//!
//! A process that never comes here has no file, no thread and no parsed environment. A forked child starts
//! afresh: its parent's allocations are its parent's.

mod alive;
mod growth;
pub mod observer;
mod report;
mod start;

use crate::cuda::abi::CUdevice;
use crate::event::Events;
use crate::ledger::{Account, Entered, Ledger};
use crate::policy::config::Config;
use crate::record::layout::{Device, MAX_DEVICES};
use crate::record::writer::Writer;
use crate::tracking::contexts::Contexts;
use crate::tracking::graphs::GraphMemory;
use crate::tracking::index::Index;
use crate::tracking::memory_map::MemoryMap;
use crate::tracking::pools::Pools;
use crate::tracking::runtimes::{MOST_LOADED, Runtimes};
use crate::tracking::stacks::Stacks;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use report::write_exit_report;
pub use start::{Verdict, default_directory, note_initialised, start};

/// The books and settings of this process. Made once, never freed.
pub struct Process {
    /// What the operator asked for.
    pub config: Config,
    /// The record file.
    pub writer: Writer,
    /// Live allocations.
    pub index: Index,
    /// Call stacks.
    pub stacks: Stacks,
    /// Contexts by handle.
    pub contexts: Contexts,
    /// Memory pools.
    pub pools: Pools,
    /// Where events go.
    pub events: Events,
    /// Graphs that can take memory when they are launched.
    pub graphs: GraphMemory,
    /// By the number of a runtime: its place among the versions in the record file, plus 1; 0 = not looked for yet.
    pub runtime_places: [AtomicU8; MOST_LOADED],
    /// What all processes of the directory share.
    pub ledger: Ledger,
    /// Boxed: the whole is put together on the stack of whoever calls cuInit.
    entered: [OnceLock<Box<Entered>>; MAX_DEVICES],
    entering: Mutex<()>,
    /// Bit n: nothing may be allocated on device n, whose quota cannot be kept.
    shut: AtomicU64,
    memory_map: Mutex<MemoryMap>,
    runtimes: Mutex<Runtimes>,
    /// Of what something has been said. Lists, since they stay short.
    denials: Mutex<Vec<(CUdevice, &'static str)>>,
    failures: Mutex<Vec<(&'static str, i32, CUdevice)>>,
    pid: u32,
    alive: alive::Alive,
    started_coarse_ns: u64,
    is_forked: bool,
    forked_from: Option<u32>,
    growth_started: AtomicBool,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

impl Process {
    /// The books of this process, if it has any already.
    #[inline(always)]
    pub fn current() -> Option<&'static Process> {
        // Acquire pairs with the Release in `start`: the books are whole.
        let process = CURRENT.load(Ordering::Acquire);
        if process.is_null() {
            return None;
        }
        // SAFETY: set once to a leaked box.
        let process: &'static Process = unsafe { &*process };
        process.alive.is_ours(process.pid).then_some(process)
    }

    /// The account of a device that is known already.
    #[inline(always)]
    pub fn account(&self, device: u8) -> Option<Account<'_>> {
        let entered = self.entered.get(device as usize)?.get()?;
        Some(Account { entered, peak: &self.device(device)?.peak_bytes, thread: self.thread_id() })
    }

    /// Notes this process's part in a device's account. The first one stays.
    pub fn set_entered(&self, device: u8, entered: Entered) {
        if let Some(place) = self.entered.get(device as usize) {
            let _ = place.set(Box::new(entered));
        }
    }

    /// Held while a device is entered in the books.
    pub fn entering(&self) -> MutexGuard<'_, ()> {
        self.entering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing is allocated on a device.
    pub fn shut(&self, device: u8) {
        // Relaxed: concerns this bit alone.
        self.shut.fetch_or(1u64.checked_shl(device.into()).unwrap_or(0), Ordering::Relaxed);
    }

    /// True when nothing may be allocated on a device.
    pub fn is_shut(&self, device: u8) -> bool {
        self.shut.load(Ordering::Relaxed).checked_shr(device.into()).unwrap_or(0) & 1 != 0
    }

    /// The thread's id, asked of the kernel once.
    #[inline(always)]
    pub fn thread_id(&self) -> u32 {
        let words = cuwarden_arch::thread_words();
        // A forked child's only thread has the words of the thread that forked it.
        let generation = u64::from(self.pid) << 32;
        // SAFETY: the thread's own words.
        unsafe {
            if (*words).tid & !0xffff_ffff != generation || (*words).tid as u32 == 0 {
                (*words).tid = generation | u64::from(crate::event::thread_id());
            }
            (*words).tid as u32
        }
    }

    /// A device's entry in the record file.
    #[inline(always)]
    pub fn device(&self, device: u8) -> Option<&'static Device> {
        self.writer.header().devices.get(device as usize)
    }

    /// Nanoseconds since the record file was made, to a few milliseconds.
    #[inline(always)]
    pub fn age_ns(&self) -> u64 {
        coarse_ns().saturating_sub(self.started_coarse_ns)
    }

    /// True where this process was forked from one that used the shim already. Locks of the loader may be held for ever:
    /// nothing is loaded and no thread is started for questions of our own.
    pub fn is_forked(&self) -> bool {
        self.is_forked
    }

    /// The process that had initialised CUDA before this one was forked from it.
    pub fn forked_from(&self) -> Option<u32> {
        self.forked_from
    }

    /// As it was when the books were opened.
    #[inline]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Mappings and handles of physical allocations.
    pub fn memory_map(&self) -> MutexGuard<'_, MemoryMap> {
        self.memory_map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// CUDA runtimes of the process. Not to be held while the loader is asked: whoever waits for this lock may have the
    /// loader's.
    pub fn runtimes(&self) -> MutexGuard<'_, Runtimes> {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when this denial is the first of its kind and worth a line.
    pub fn first_denial(&self, device: CUdevice, api: &'static str) -> bool {
        is_first(&self.denials, (device, api))
    }

    /// True when this failure has not been reported yet.
    pub fn first_failure(&self, api: &'static str, code: i32, device: CUdevice) -> bool {
        is_first(&self.failures, (api, code, device))
    }
}

fn is_first<T: PartialEq>(said: &Mutex<Vec<T>>, this: T) -> bool {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let first = !said.contains(&this);
    if first {
        said.push(this);
    }
    first
}

/// A clock that costs a few nanoseconds; the precise one would be the most expensive step of an allocation.
#[inline(always)]
fn coarse_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer; on failure it stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
