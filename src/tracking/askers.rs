//! Who looked the driver's functions up through it, and for which CUDA version: a runtime that is linked into a program
//! has no name, but its look-ups are a fingerprint.
//!
//! Asked at every look-up of a runtime, hundreds at its start: no lock and no allocation. It lies in static memory, since
//! look-ups come before the books.

use core::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Modules that look functions up; later ones are not noted.
const MODULES: usize = 32;

/// What one module asked for.
struct Asker {
    /// The module's code; `end` is written last.
    start: AtomicU64,
    end: AtomicU64,
    caller: AtomicU64,
    highest: AtomicU32,
    count: AtomicU32,
    /// Among the first look-ups is that of cuInit.
    asked_init_early: AtomicBool,
}

static ASKERS: [Asker; MODULES] = [const {
    Asker {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        caller: AtomicU64::new(0),
        highest: AtomicU32::new(0),
        count: AtomicU32::new(0),
        asked_init_early: AtomicBool::new(false),
    }
}; MODULES];

/// What is known of a module that looked functions up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Where its first look-up came from.
    pub caller: u64,
    /// The highest CUDA version that it asked for.
    pub highest: u32,
    /// How many look-ups there were.
    pub count: u32,
    /// One of the first two was for cuInit: the runtimes begin so.
    pub asked_init_early: bool,
}

/// Notes a look-up; true when it is the first of its module. `module` answers the code of the module that a caller lies
/// in; it is asked once for each.
#[inline]
pub fn note(
    caller: u64,
    cuda_version: i32,
    is_init: impl FnOnce() -> bool,
    module: fn(u64) -> Option<Range<u64>>,
) -> bool {
    let Some(asker) = find(caller).or_else(|| enter(caller, module)) else { return false };
    // Relaxed, here and elsewhere: each number means something by itself.
    let before = asker.count.fetch_add(1, Ordering::Relaxed);
    if before < 2 && is_init() {
        asker.asked_init_early.store(true, Ordering::Relaxed);
    }
    let version = u32::try_from(cuda_version).unwrap_or(0);
    if asker.highest.load(Ordering::Relaxed) < version {
        asker.highest.fetch_max(version, Ordering::Relaxed);
    }
    before == 0
}

/// What the module that holds this code asked for.
pub fn of(code: u64) -> Option<Asked> {
    let asker = find(code)?;
    Some(Asked {
        caller: asker.caller.load(Ordering::Relaxed),
        highest: asker.highest.load(Ordering::Relaxed),
        count: asker.count.load(Ordering::Relaxed),
        asked_init_early: asker.asked_init_early.load(Ordering::Relaxed),
    })
}

fn find(code: u64) -> Option<&'static Asker> {
    ASKERS.iter().take_while(|asker| asker.start.load(Ordering::Relaxed) != 0).find(|asker| {
        // Acquire pairs with the Release in `enter`: the other fields are there.
        let end = asker.end.load(Ordering::Acquire);
        (asker.start.load(Ordering::Relaxed)..end).contains(&code)
    })
}

#[cold]
fn enter(caller: u64, module: fn(u64) -> Option<Range<u64>>) -> Option<&'static Asker> {
    let text = module(caller).filter(|text| text.start != 0)?;
    let asker = ASKERS.iter().find(|asker| {
        match asker.start.compare_exchange(0, text.start, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            // Another thread of the same module, or what was unloaded and lay there before.
            Err(start) => start == text.start,
        }
    })?;
    asker.caller.store(caller, Ordering::Relaxed);
    asker.highest.store(0, Ordering::Relaxed);
    asker.count.store(0, Ordering::Relaxed);
    asker.asked_init_early.store(false, Ordering::Relaxed);
    asker.end.store(text.end, Ordering::Release);
    Some(asker)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Addresses that no other test uses: the table is the process's.
    const A: u64 = 0x7000_0000_1000;

    fn module_of(code: u64) -> Option<Range<u64>> {
        // Modules of 4 KiB, one page apart; below A there are none.
        (code >= A).then(|| code / 0x2000 * 0x2000..code / 0x2000 * 0x2000 + 0x1000)
    }

    #[test]
    fn each_module_for_itself() {
        let [first, second] = [A + 0x1000, A + 0x3000];
        assert!(note(first + 5, 2000, || true, module_of));
        assert!(!note(first + 9, 12080, || false, module_of));
        note(second, 11070, || false, module_of);
        note(first, 3020, || panic!("only the first two are asked"), module_of);
        note(second + 1, -5, || false, module_of);
        let asked = of(first + 0xfff).unwrap();
        assert_eq!(asked, Asked { caller: first + 5, highest: 12080, count: 3, asked_init_early: true });
        let asked = of(second).unwrap();
        assert_eq!((asked.highest, asked.count, asked.asked_init_early), (11070, 2, false));
        assert_eq!(of(first + 0x1000), None, "between the modules");
        note(5, 12000, || true, module_of);
        assert_eq!(of(5), None, "no module");
        // A full table only knows no more.
        for n in 0..2 * MODULES as u64 {
            note(A + 0x10_0000 + n * 0x2000, 2000, || true, module_of);
        }
        assert_eq!(of(A + 0x10_0000 + 2 * MODULES as u64 * 0x2000), None);
        assert_eq!(of(first).unwrap().count, 3);
    }
}
