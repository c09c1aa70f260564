//! Which runtime a caller is bound to.
//!
//! A program or library that was linked with libcudart asks for its functions by version node, and would find the first
//! library in its scope that has them. With us in front of that scope the question has to be asked again: where only one
//! loaded runtime has the node there is nothing to ask, and else the loader is asked what comes after us, then what the
//! caller's own libraries have. The answer is kept for each place that calls.
//!
//! Known limit: a function that ends in a jump to the runtime is not seen, but who called it. It matters only where two
//! runtimes of one version are loaded and the two libraries are bound to different ones.

use super::instances::{self, Candidate, Number, candidates, place_of};
use super::table::{Node, name_of};
use crate::hooks::lookup::elf::library_of;
use crate::hooks::lookup::{real_dlclose, real_dlvsym};
use crate::tracking::runtimes::MOST_LOADED;
use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Places that call, each with the runtime that it reaches: the address in the high 45 bits, then 16 bits of the
/// generation, then 3 of the runtime. 0 = free.
static SITES: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// Counts calls of dlclose. What was found before one is not believed after it.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// A library may be about to be unloaded.
pub extern "C" fn closing() {
    // Before the library goes: who still runs in it is not unloaded. Release pairs with the Acquire in `generation`.
    GENERATION.fetch_add(1, Ordering::Release);
    // What is entered from now on has the new generation, of which only 16 bits are kept.
    SITES.iter().for_each(|site| site.store(0, Ordering::Relaxed));
}

pub(super) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// The function that a caller's call reaches, and the place of its runtime if it has one.
#[inline(always)]
pub(super) fn function(
    node: Node,
    call: usize,
    caller: *const c_void,
) -> Option<(*const c_void, Option<Number>)> {
    let generation = generation();
    // Acquire pairs with the Release in `look_for`: the place is given.
    let word = site(caller).map_or(0, |site| site.load(Ordering::Acquire));
    if word & !7 == key(caller, generation)
        && let Some(function) = instances::function(Number((word & 7) as u8), call)
    {
        return Some((function, Some(Number((word & 7) as u8))));
    }
    look_for(node, call, caller, generation)
}

const _: () = assert!(MOST_LOADED <= 8);

#[inline(always)]
fn key(caller: *const c_void, generation: u64) -> u64 {
    // An address of user space has 47 bits at most; the lowest two are the slot's affair.
    (caller as u64 >> 2) << 19 | (generation & 0xffff) << 3
}

#[inline(always)]
fn site(caller: *const c_void) -> Option<&'static AtomicU64> {
    let hash = (caller as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
    SITES.get(hash as usize)
}

#[cold]
#[inline(never)]
fn look_for(
    node: Node,
    call: usize,
    caller: *const c_void,
    generation: u64,
) -> Option<(*const c_void, Option<Number>)> {
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    let found = bound(node, call, caller).and_then(|runtime| {
        let number = place_of(runtime);
        if let Some(Number(number)) = number
            && let Some(site) = site(caller)
        {
            site.store(key(caller, generation) | u64::from(number), Ordering::Release);
        }
        Some((runtime.function(call)?, number))
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    found
}

fn bound(node: Node, call: usize, caller: *const c_void) -> Option<Candidate> {
    let loaded = candidates(Some(node));
    if let [only] = loaded[..] {
        return Some(only);
    }
    let answer = after_us(node, call).or_else(|| of_caller(node, call, caller));
    let answered = loaded.iter().find(|runtime| answer.is_some() && runtime.function(call) == answer);
    answered.or(loaded.first()).copied()
}

/// What everybody sees after us.
fn after_us(node: Node, call: usize) -> Option<*const c_void> {
    by_version(libc::RTLD_NEXT, node, call)
}

/// What the caller's library was linked with.
fn of_caller(node: Node, call: usize, caller: *const c_void) -> Option<*const c_void> {
    let (_, path) = library_of(caller)?;
    // SAFETY: a C string; nothing is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        forget_error();
        return None;
    }
    let found = by_version(handle, node, call);
    if let Some(close) = real_dlclose() {
        // SAFETY: the handle from above, which only counted up.
        unsafe { close(handle) };
    }
    found
}

fn by_version(handle: *mut c_void, node: Node, call: usize) -> Option<*const c_void> {
    // SAFETY: C strings. The loader sees us as the caller.
    let found = unsafe { real_dlvsym()?(handle, name_of(call)?.as_ptr(), node.name().as_ptr()) };
    if found.is_null() {
        forget_error();
        return None;
    }
    Some(found.cast_const()).filter(|found| !instances::is_own(*found))
}

/// The text is not for the application's next dlerror.
fn forget_error() {
    // SAFETY: no arguments.
    unsafe { libc::dlerror() };
}
