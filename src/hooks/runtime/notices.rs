//! What is to be said of the runtimes of a process, each once: a version that has no entries here, and a program that got
//! another version than it was built for.

use super::instances::{self, Number};
use crate::event::fields::fields;
use crate::hooks::lookup::elf::{needs, path_of};
use crate::hooks::lookup::missing;
use crate::policy::config::Level;
use crate::policy::versions::naming::{folder_in_search_path, runtime_major};
use crate::process::Process;
use crate::stack::cudart::Found;
use core::ffi::c_void;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::table::Node;

/// A caller and the runtime whose function it looked up although it needs another: kept until CUDA is started, since a
/// look-up starts nothing. The address in the high 56 bits, the place of the runtime plus 1 in the lowest 8.
static CONFLICTS: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// A look-up was answered with a function of a runtime.
pub(super) fn looked_up(caller: *const c_void, Number(number): Number) {
    let Some(node) = instances::node(Number(number)) else { return };
    let mut is_other = false;
    needs(caller, &mut |library| {
        if let Some(major) = runtime_major(library) {
            is_other |= major != node.major();
        }
    });
    let word = ((caller as u64) << 8) | (u64::from(number) + 1);
    if is_other && CONFLICTS.iter().all(|known| known.load(Ordering::Relaxed) != word) {
        // Relaxed: the word is all there is. More than these are not told.
        let _ = CONFLICTS
            .iter()
            .any(|place| place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok());
    }
}

/// The conflicts that look-ups have left.
#[inline(never)]
pub(in crate::hooks) fn say_conflicts(process: &Process) {
    for place in &CONFLICTS {
        let word = place.swap(0, Ordering::Relaxed);
        let Some(number) = ((word & 0xff) as u8).checked_sub(1).map(Number) else { continue };
        let mut caller = path_of((word >> 8) as *const c_void);
        if caller.is_empty() {
            caller = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
        }
        let Some(path) = instances::path(number) else { continue };
        let mut built_for = 0;
        needs((word >> 8) as *const c_void, &mut |library| {
            built_for = runtime_major(library).unwrap_or(built_for)
        });
        let found = instances::node(number).map_or(0, Node::major);
        conflict(process, &caller, built_for, &path, found);
    }
}

/// The functions that were looked up in a version that their library does not have.
#[inline(never)]
pub(in crate::hooks) fn say_missing(process: &Process) {
    missing::take(&mut |function, found| {
        process.events.emit(
            Level::Info,
            "symbol_missing",
            fields! {
                "function": &*function, "found": &*found,
                "message": format!(
                    "{function} was looked up and is not there. There is: {found}. Whoever asked was built for another \
                     version of that library, or can do without it."
                ),
            },
        );
    });
}

/// A shared runtime that was found in the process.
#[inline(never)]
pub(in crate::hooks) fn say(process: &Process, found: &Found) {
    if !found.is_shared_runtime || !process.runtimes().is_news(&found.path, u32::MAX) {
        return;
    }
    let path = String::from_utf8_lossy(&found.path).into_owned();
    let node = found.node.as_deref().map(String::from_utf8_lossy);
    let known = Node::all().find(|known| {
        let digits = known.name().to_bytes().strip_prefix(b"libcudart.so.");
        digits.is_some_and(|digits| Some(digits) == found.node.as_deref())
    });
    let Some(known) = known else {
        let version = node
            .as_deref()
            .map_or("no version".to_owned(), |node| format!("the version libcudart.so.{node}"));
        process.events.emit(
            Level::Warn,
            "runtime_unlisted",
            fields! {
                "file": &*path, "node": node,
                "message": format!(
                    "{path} has its functions at {version}, and there are entries here for libcudart.so.11.0, \
                     libcudart.so.12 and libcudart.so.13 only. What it allocates is counted all the same. Its own calls \
                     are not named in reports. A newer cuwarden may know it."
                ),
            },
        );
        return;
    };
    if let Some(built_for) = runtime_major(&found.path).filter(|major| *major != known.major()) {
        conflict(process, "", built_for, &path, known.major());
    }
}

fn conflict(process: &Process, caller: &str, built_for: u32, path: &str, found: u32) {
    if !process.runtimes().is_news(&[caller.as_bytes(), b"\0", path.as_bytes()].concat(), u32::MAX) {
        return;
    }
    let file = Path::new(path);
    let target = std::fs::canonicalize(file).map(|target| target.display().to_string()).unwrap_or_default();
    let search_path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let because = match folder_in_search_path(file, &search_path) {
        Some(folder) => format!("LD_LIBRARY_PATH has {folder}"),
        None if target != path && !target.is_empty() => format!("{path} is a link to {target}"),
        None => "the file was asked for by its path, or found where the loader looks always".to_owned(),
    };
    let right = instances::path_of_major(built_for);
    let who = if caller.is_empty() { "Whoever asked for it by that name" } else { caller };
    let way_out = match &right {
        Some(right) => format!("{right} is loaded as well and would be the right one."),
        None => format!("Take care that libcudart of CUDA {built_for} is found first."),
    };
    process.events.emit(
        Level::Warn,
        "symbol_conflict",
        fields! {
            "caller": caller, "built_for": built_for, "file": path, "target": target, "major": found,
            "right_file": right, "because": &*because,
            "message": format!(
                "{who} was built for CUDA {built_for} and got the runtime of CUDA {found}: {path}. The reason: {because}. \
                 {way_out}"
            ),
        },
    );
}
