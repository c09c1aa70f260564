//! Call stacks of the application, taken at every allocation inside its own process.
//!
//! Most programs are built without frame pointers, so a frame is undone by the rules of its module's
//! `.eh_frame`. Evaluating those costs microseconds; a program allocates from few places, so the rule for each
//! code address is compiled once into 64 bits and kept in a table that all threads share. A warm walk is then
//! one cache line and two stack words a frame.
//!
//! What can go wrong inside somebody else's process, and what keeps it from doing so:
//!
//! | risk | kept away by |
//! |---|---|
//! | a wrong rule or a damaged stack leads outside the stack | every read is checked ([`memory`]) |
//! | a library is unloaded while its unwind data is read | it is only read under the loader's lock ([`loader`]) |
//! | a rule outlives its library | rules are tagged with the loader's unload count ([`cache`]) |
//! | fork while another thread holds the loader's lock | counted; the child then learns no new rule ([`loader`]) |
//! | a signal handler captures in the middle of a capture | no lock of ours; a nested capture learns no rule |
//! | endless walk | the stack pointer must rise, and the number of steps is bounded |
//!
//! Each of them at worst shortens a stack or, for a few milliseconds after a `dlclose`, makes a frame wrong.
//! The warm path allocates nothing, makes no system call and leaves `errno` alone.

mod cache;
pub mod cudart;
mod loader;
mod memory;
mod modules;
mod rule;
#[cfg(test)]
mod tests;
mod unwind_info;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use modules::{ModuleInfo, each_module};

use cache::RULES;
use memory::Stack;
use rule::Rule;

/// How many frames of our own may lie between [`capture`] and the application.
///
/// Only bounds the search for `skip_to`; hooks are a handful of frames deep.
const SHIM_FRAMES: usize = 32;

/// Addresses below the lowest page that the kernel lets a program map are never code.
const LOWEST_CODE: u64 = 4096;

/// The registers that a walk starts from and carries from frame to frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Where the frame goes on: a return address, or the address after the current instruction.
    pub ip: u64,
    /// The stack pointer at `ip`.
    pub sp: u64,
    /// The frame pointer register at `ip`; meaningful only where a rule says so.
    pub bp: u64,
}

/// Fills `frames` with the application's return addresses, innermost first, and returns how many there are.
///
/// `skip_to` is the address to which the hooked call returns. Frames before it are the shim's and are cut; it
/// becomes the first frame. With 0, or when it does not occur in the first frames (a hook that was reached by a
/// tail call through something else), nothing is cut and the first frame is the caller of `capture`.
///
/// The walk begins at `capture` itself, whose registers are read here, and passes the shim's frames by the
/// shim's own `.eh_frame`. A naked trampoline that knows the application's registers saves that with
/// [`capture_from`].
///
/// To name a frame, look up its address − 1: a call may be the last instruction of its function. Only the frame
/// that a signal interrupted is exact.
#[inline(never)]
pub fn capture(frames: &mut [u64], skip_to: u64) -> usize {
    let start = Registers::here();
    let kept = walk(start, frames, 0, skip_to);
    // Without this the call above might become a jump that gives up our frame while it is being walked.
    arch::keep_frame();
    kept
}

/// Like [`capture`], starting at given registers: `start.ip` is a return address and becomes the first frame,
/// `start.sp` is the stack pointer after that return.
///
/// Any values are safe. Registers that do not describe a frame yield few frames or wrong ones.
#[inline(never)]
pub fn capture_from(start: Registers, frames: &mut [u64]) -> usize {
    let Some(first) = frames.first_mut() else {
        return 0;
    };
    *first = start.ip;
    walk(start, frames, 1, 0)
}

/// Drops all cached rules of modules that may be gone.
///
/// Unloading is noticed without this within [`loader::CHECK_INTERVAL_NS`]. A hook that sees `dlclose` return can
/// close that gap.
pub fn modules_changed() {
    loader::refresh();
}

/// Changes when a module is unloaded, noticed as late as [`modules_changed`] says. 16 bits.
pub fn unloads() -> u64 {
    loader::generation().tag()
}

/// The same as it was last seen, without asking the loader: its lock must not be taken over and over by a thread beside
/// which others fork.
pub fn unloads_seen() -> u64 {
    loader::seen().tag()
}

#[inline(always)]
fn walk(start: Registers, frames: &mut [u64], already: usize, skip_to: u64) -> usize {
    let mut generation = loader::generation();
    let mut stack = Stack::holding(start.sp);
    let mut regs = start;
    let mut kept = already;
    let mut in_shim = skip_to != 0;
    // A return address may be the first byte of the next function; the byte before it belongs to the call.
    let mut back = 1;
    for _ in 0..frames.len().saturating_add(SHIM_FRAMES) {
        if kept >= frames.len() && !in_shim {
            break;
        }
        let at = regs.ip.wrapping_sub(back);
        let rule = match RULES.find(at, generation) {
            Some(rule) => rule,
            None => match unwind_info::learn(at) {
                Some((rule, seen)) => {
                    generation = seen;
                    rule
                }
                None => break,
            },
        };
        let Some(next) = undo(rule, regs, &mut stack) else {
            break;
        };
        back = u64::from(!rule.is_signal_frame());
        regs = next;
        if in_shim && regs.ip == skip_to {
            in_shim = false;
            kept = 0;
        }
        if let Some(slot) = frames.get_mut(kept) {
            *slot = regs.ip;
            kept = kept.saturating_add(1);
        }
    }
    kept
}

/// The caller's registers, or `None` where the stack ends.
#[inline(always)]
fn undo(rule: Rule, regs: Registers, stack: &mut Stack) -> Option<Registers> {
    let next = if rule.is_plain() {
        rule.undo(regs, stack)?
    } else if rule.is_signal_frame() {
        // The interrupted code may have run on another stack, and its stack pointer is only what a frame
        // claims: from here on each page is verified before it is read.
        stack.distrust();
        arch::undo_signal_frame(regs, stack)?
    } else {
        return None;
    };
    (next.ip >= LOWEST_CODE).then_some(next)
}
