//! Asking the dynamic loader which modules there are.
//!
//! Everything that reads a module's memory runs inside `dl_iterate_phdr`, which holds the lock that `dlclose`
//! needs to unmap a module: what is visited stays mapped until the visit is over. No address into a module is
//! kept for longer.
//!
//! That lock is the loader's and cannot be tried, so two situations are kept away from it:
//! * a child that was forked while another thread of ours was inside (the lock is then held for ever by a thread
//!   that the child lacks): [`Visits`] counts, and the child makes do with the rules that it inherited;
//! * a signal handler that interrupts a visit of its own thread.

use super::memory::this_thread;
use core::ffi::{CStr, c_int, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long a module may be gone before its rules are dropped.
///
/// The clock behind it costs six nanoseconds and advances every few milliseconds.
pub(super) const CHECK_INTERVAL_NS: u64 = 5_000_000;

/// How many modules were ever loaded and unloaded, as last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Generation {
    pub(super) fn new(loads: u64, unloads: u64) -> Self {
        Self(unloads << 32 | loads & 0xffff_ffff)
    }

    pub(super) fn loads(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).unwrap_or(0)
    }

    /// The low 16 bits of the number of unloads.
    pub(super) fn tag(self) -> u64 {
        self.0 >> 32 & 0xffff
    }
}

/// Written only inside a visit, so that the loader's lock keeps an older value from overwriting a newer one.
static SEEN: AtomicU64 = AtomicU64::new(0);
static NEXT_CHECK_NS: AtomicU64 = AtomicU64::new(0);

/// The current generation, at most [`CHECK_INTERVAL_NS`] old.
#[inline(always)]
pub(super) fn generation() -> Generation {
    let now = coarse_time_ns();
    // Relaxed, here and below: each value means something by itself, none announces another.
    let due = NEXT_CHECK_NS.load(Relaxed);
    if now >= due {
        check(now, due);
    }
    Generation(SEEN.load(Relaxed))
}

/// The generation as somebody saw it last.
pub(super) fn seen() -> Generation {
    Generation(SEEN.load(Relaxed))
}

#[cold]
#[inline(never)]
fn check(now: u64, due: u64) {
    let next = now.saturating_add(CHECK_INTERVAL_NS);
    // One thread goes, the others use what is known.
    if NEXT_CHECK_NS.compare_exchange(due, next, Relaxed, Relaxed).is_ok() {
        refresh();
    }
}

/// Looks at the loader's counters now.
pub(super) fn refresh() {
    // The counters arrive with the first module.
    visit(&mut |_, _| ControlFlow::Break(()));
}

fn coarse_time_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec to write to.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) } != 0 {
        // Without a clock, look each time.
        return u64::MAX;
    }
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}

/// A module that stays loaded for as long as `'a`, the time of a visit.
#[derive(Clone, Copy)]
pub(super) struct Loaded<'a> {
    /// The path by which the loader knows it; empty for the main program.
    pub(super) name: &'a [u8],
    /// The first module is the main program.
    pub(super) is_main: bool,
    /// What to add to the addresses in the file.
    pub(super) bias: u64,
    headers: &'a [libc::Elf64_Phdr],
}

impl<'a> Loaded<'a> {
    /// The segments of one type.
    pub(super) fn segments(&self, kind: u32) -> impl Iterator<Item = &'a libc::Elf64_Phdr> + use<'a> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// First and last address + 1 of a segment in memory.
    pub(super) fn range(&self, segment: &libc::Elf64_Phdr) -> Option<(u64, u64)> {
        // The main program of old may have a bias that wraps, which the loader allows.
        let start = self.bias.wrapping_add(segment.p_vaddr);
        Some((start, start.checked_add(segment.p_memsz)?))
    }

    pub(super) fn holds_code(&self, pc: u64) -> bool {
        self.segments(libc::PT_LOAD)
            .filter(|segment| segment.p_flags & libc::PF_X != 0)
            .filter_map(|segment| self.range(segment))
            .any(|(start, end)| (start..end).contains(&pc))
    }

    /// From `start` to the end of the segment that holds it, if that is constant: mapped for reading only.
    pub(super) fn constant_data(&self, start: u64) -> Option<&'a [u8]> {
        let (_, end) = self
            .segments(libc::PT_LOAD)
            .filter(|segment| segment.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R)
            .filter_map(|segment| self.range(segment))
            .find(|(first, end)| (*first..*end).contains(&start))?;
        let length = usize::try_from(end.checked_sub(start)?).ok()?;
        let start = usize::try_from(start).ok()?;
        // SAFETY: the range lies within a segment that the loader mapped for reading and not for writing, and
        // 'a ends before the loader's lock is released, so it stays mapped and unchanged.
        Some(unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(start), length) })
    }
}

type Visitor<'v> = &'v mut dyn FnMut(&Loaded<'_>, Generation) -> ControlFlow<()>;

struct Visit<'v> {
    visitor: Visitor<'v>,
    any_yet: bool,
}

/// Calls `visitor` for each module, in the loader's order, and says whether it may have been called at all.
///
/// It runs under the loader's lock and must not load or unload anything. A panic in it ends the visit.
pub(super) fn visit(visitor: Visitor<'_>) -> bool {
    this_thread(|thread| {
        if thread.is_visiting.replace(true) {
            return false;
        }
        let entered = VISITS.enter();
        if entered {
            let mut visit = Visit { visitor, any_yet: false };
            // SAFETY: `on_module` has the expected signature and gets the `Visit` that it expects.
            unsafe { libc::dl_iterate_phdr(Some(on_module), (&raw mut visit).cast::<c_void>()) };
            VISITS.leave();
        }
        thread.is_visiting.set(false);
        entered
    })
}

/// `info` as the loader gives it, `size` its size there, `data` a [`Visit`].
unsafe extern "C" fn on_module(info: *mut libc::dl_phdr_info, size: usize, data: *mut c_void) -> c_int {
    const STOP: c_int = 1;
    // Loaders without the counters are older than anything we run on; without them rules could not expire.
    if info.is_null() || data.is_null() || size < size_of::<libc::dl_phdr_info>() {
        return STOP;
    }
    // SAFETY: not null, as large as we think, and the loader's for the time of this call.
    let info = unsafe { &*info };
    // SAFETY: `visit` passes its own `Visit`, which nothing else uses meanwhile.
    let visit = unsafe { &mut *data.cast::<Visit<'_>>() };
    let generation = Generation::new(info.dlpi_adds, info.dlpi_subs);
    // Relaxed: see `generation`; the loader's lock orders the writers.
    SEEN.store(generation.0, Relaxed);
    let name = if info.dlpi_name.is_null() {
        &[]
    } else {
        // SAFETY: the loader's own string, which lives as long as the module.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
    };
    let headers = if info.dlpi_phdr.is_null() {
        &[]
    } else {
        // SAFETY: the loader's own table of that many headers, which lives as long as the module.
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
    };
    let module = Loaded { name, is_main: !visit.any_yet, bias: info.dlpi_addr, headers };
    visit.any_yet = true;
    // Unwinding must not cross the loader's C frames.
    match catch_unwind(AssertUnwindSafe(|| (visit.visitor)(&module, generation))) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) | Err(_) => STOP,
    }
}

/// How many threads of which process are inside a visit: process id in the upper half, count in the lower.
struct Visits(AtomicU64);

static VISITS: Visits = Visits(AtomicU64::new(0));

impl Visits {
    fn enter(&self) -> bool {
        let own = u64::from(std::process::id()) << 32;
        // Relaxed, everywhere here: fork copies the word with the loader's lock, and within one process the
        // count need not agree with anything else.
        let entered = self.0.fetch_update(Relaxed, Relaxed, |word| {
            let count = word & 0xffff_ffff;
            if word & !0xffff_ffff == own {
                return word.checked_add(1);
            }
            // Another process's word: our parent's, copied by fork.
            (count == 0).then_some(own | 1)
        });
        entered.is_ok()
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicU64, Generation, Relaxed, Visits};

    #[test]
    fn a_child_forked_during_a_visit_stays_out() {
        let parent = u64::from(std::process::id().wrapping_add(1)) << 32;
        assert!(!Visits(AtomicU64::new(parent | 1)).enter());

        let quiet = Visits(AtomicU64::new(parent));
        assert!(quiet.enter() && quiet.enter());
        quiet.leave();
        quiet.leave();
        assert_eq!(quiet.0.load(Relaxed), u64::from(std::process::id()) << 32);
    }

    #[test]
    fn a_generation_holds_both_counts() {
        let generation = Generation::new(0x1_0000_0007, 0x2_0003);
        assert_eq!(generation.loads(), 7);
        assert_eq!(generation.tag(), 3);
    }
}
