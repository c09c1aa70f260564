//! The CUDA runtimes' functions: each caller reaches the runtime that it is bound to, and the record says through which
//! call of which runtime an allocation came.
//!
//! Nothing is decided or counted here: a runtime comes down to the driver, where the bytes are counted. A process can
//! have several runtimes, of several versions or from several paths, so each has its own place in [`instances`], and
//! [`bind`] finds the one that a caller would have reached without us.
//!
//! The exported entries and the tables of entries that look-ups answer are in `cshim`. All come to [`enter`] before the
//! real function and to [`leave`] after it.

mod bind;
mod instances;
pub(super) mod notices;
pub mod table;

use super::guard::{shielded, start_quietly};
use super::init_failure;
use super::lookup::Answer;
use crate::cuda::error;
use crate::process::{Process, Verdict};
use crate::record::layout::MAX_RUNTIMES;
use core::ffi::{c_char, c_void};
use instances::Number;
use std::ffi::CStr;
use table::{CALLS, Node};

pub use crate::tracking::runtimes::MOST_LOADED;
use crate::tracking::runtimes::note_version;
pub use bind::closing;

/// In the index of an entry: the entry of one runtime, and not of a version node.
pub const OF_INSTANCE: u32 = 1 << 16;

/// What the runtime call that this one is part of had noted.
#[derive(Debug)]
#[repr(C)]
pub struct Outer {
    via: u64,
    frame: u64,
}

/// Before a call of a runtime: answers the real function; null where there is none. `index`: the call in the lowest byte,
/// the node or, with [`OF_INSTANCE`], the runtime in the next. `caller`: where the call returns to. `frame`: of the entry.
///
/// # Safety
/// `outer` must be writable, and the same for [`leave`].
pub unsafe extern "C" fn enter(
    index: u32,
    caller: *const c_void,
    frame: u64,
    outer: *mut Outer,
) -> *const c_void {
    let (call, place) = ((index & 0xff) as usize, (index >> 8 & 0xff) as u8);
    let found = if index & OF_INSTANCE == 0 {
        Node::from_u8(place).and_then(|node| bind::function(node, call, caller))
    } else {
        let number = Number(place);
        instances::function(number, call).map(|function| (function, Some(number)))
    };
    let words = cuwarden_arch::thread_words();
    // SAFETY: the thread's own words, and the caller's promise.
    unsafe {
        let is_left = (*words).via_frame <= frame;
        *outer = if is_left {
            Outer { via: 0, frame: 0 }
        } else {
            Outer { via: (*words).via, frame: (*words).via_frame }
        };
        (*words).failed = 0;
        (*words).via = via(call, found.and_then(|(_, number)| number));
        (*words).via_frame = frame;
    }
    found.map_or(std::ptr::null(), |(function, _)| function)
}

/// After a call of a runtime: answers `code`.
///
/// # Safety
/// `outer` as [`enter`] left it.
pub unsafe extern "C" fn leave(index: u32, code: i32, outer: *const Outer) -> i32 {
    let words = cuwarden_arch::thread_words();
    // SAFETY: the thread's own words, and the caller's promise.
    let (is_said, number) = unsafe {
        let number = number_in((*words).via);
        (*words).via = (*outer).via;
        (*words).via_frame = (*outer).frame;
        ((*words).failed != 0, number)
    };
    if code != 0 && !is_said && error::is_init_failure(code) {
        failed(index, code, number);
    }
    code
}

/// The driver failed to start and that was said: the runtime call that it is part of says nothing more.
pub(super) fn note_failure() {
    // SAFETY: the thread's own words.
    unsafe { (*cuwarden_arch::thread_words()).failed = 1 };
}

/// True while the thread is in a call of a runtime that comes back to [`leave`].
pub(super) fn is_in_call() -> bool {
    let words = cuwarden_arch::thread_words();
    // SAFETY: the thread's own words.
    unsafe { (*words).via != 0 && (*words).via_frame > cuwarden_arch::stack_pointer() }
}

/// The runtime's function that the application called, where the thread is in one.
pub(super) fn calling() -> Option<&'static str> {
    if !is_in_call() {
        return None;
    }
    // SAFETY: the thread's own words.
    let call = (unsafe { (*cuwarden_arch::thread_words()).via } >> 32).checked_sub(1)?;
    CALLS.get(usize::try_from(call).ok()?).map(|call| call.name)
}

/// Where no function of the driver failed there may be no driver, or the runtime did not like what it found.
#[cold]
#[inline(never)]
fn failed(index: u32, code: i32, number: Option<Number>) {
    let Some(call) = CALLS.get((index & 0xff) as usize) else { return };
    shielded_start(|process| {
        if let Some(version) = number.and_then(instances::version) {
            let _ = note_version(process.writer.header(), version);
        }
        init_failure::init_failure(process, call.name, code, None);
    });
}

fn shielded_start(work: impl FnOnce(&'static Process)) {
    if let Verdict::On(process) = start_quietly() {
        shielded(|| work(process));
    }
}

/// What [`crate::record::layout::Record::place`] holds above the device: the runtime and the call of it that the thread is
/// in; 0 where it is in none. `here`: the stack pointer.
#[inline(always)]
pub(super) fn current(process: &Process, here: u64) -> u32 {
    let words = cuwarden_arch::thread_words();
    // SAFETY: the thread's own words.
    let (via, frame) = unsafe { ((*words).via, (*words).via_frame) };
    if via == 0 || frame <= here { 0 } else { place(process, via) }
}

fn via(call: usize, number: Option<Number>) -> u64 {
    let api = CALLS.get(call).map_or(0, |call| call.api);
    // Not 0 whatever it is.
    (call as u64 + 1) << 32 | number.map_or(0, |Number(number)| u64::from(number) + 1) << 16 | u64::from(api)
}

fn number_in(via: u64) -> Option<Number> {
    ((via >> 16 & 0xff) as u8).checked_sub(1).map(Number)
}

fn place(process: &Process, via: u64) -> u32 {
    let runtime = number_in(via).map_or(0, |number| runtime_place(process, number));
    (via as u32 & 0xffff) << 16 | u32::from(runtime) << 8
}

/// The place of a runtime's version in the record file, plus 1; 0 where it is not known.
fn runtime_place(process: &Process, number: Number) -> u8 {
    const NOT_KNOWN: u8 = MAX_RUNTIMES as u8 + 1;
    let Some(known) = process.runtime_places.get(usize::from(number.0)) else { return 0 };
    // Relaxed: the number is all there is.
    let mut place = known.load(std::sync::atomic::Ordering::Relaxed);
    if place == 0 {
        place = instances::version(number)
            .and_then(|version| note_version(process.writer.header(), version))
            .map_or(NOT_KNOWN, |place| place as u8 + 1);
        known.store(place, std::sync::atomic::Ordering::Relaxed);
    }
    if place == NOT_KNOWN { 0 } else { place }
}

/// What a look-up of a runtime's function should answer, where the real answer is `answer`.
///
/// # Safety
/// The name and the version must be C strings; the version may be null.
pub(super) unsafe fn look_up(
    name: &CStr,
    version: *const c_char,
    caller: *const c_void,
    answer: *mut c_void,
    entry: &dyn Fn(u32) -> *mut c_void,
) -> Answer {
    let Some(call) = table::call_of(name) else { return Answer::AsItIs };
    if answer.is_null() {
        return Answer::AsItIs;
    }
    let number = if instances::is_own(answer) {
        // Looked for by version where our own entry is found first.
        // SAFETY: as the caller promises.
        let node = (!version.is_null()).then(|| unsafe { CStr::from_ptr(version) });
        match node.and_then(Node::named).and_then(|node| bind::function(node, call, caller)) {
            Some((_, Some(number))) => Some(number),
            Some((function, None)) => return Answer::Instead(function.cast_mut()),
            None => return Answer::NotThere,
        }
    } else {
        instances::holding(answer, call)
    };
    if let Some(number) = number {
        notices::looked_up(caller, number);
    }
    match number {
        Some(Number(number)) => Answer::Instead(entry(OF_INSTANCE | u32::from(number) << 8 | call as u32)),
        None => Answer::AsItIs,
    }
}
