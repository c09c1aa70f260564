//! A cell: bytes that are charged to a process and not in use, in one word that an allocation takes them out of.
//!
//! [`super::protocol`] says who may change one when.

use super::atomic::{AtomicU64, Ordering};
use super::layout::Cell;

/// Bytes that a cell keeps; more is given back to the device.
pub const MOST_SPARE: u64 = if cfg!(loom) { 8 } else { 4 << 20 };

const SPARE: u64 = (1 << 23) - 1;
const OPEN: u64 = 1 << 23;
const VERSION: u64 = 1 << 24;
const _: () = assert!(MOST_SPARE <= SPARE);

/// True when it is changed directly, by its process.
#[inline]
pub fn is_open(cell: u64) -> bool {
    cell & OPEN != 0
}

/// How many bytes a cell says that it has.
#[inline]
pub fn spare_in(cell: u64) -> u64 {
    cell & SPARE
}

/// What a cell is after `before`. It is never again what it was, until 2^40 changes later.
#[inline]
pub fn next(before: u64, spare: u64, open: bool) -> u64 {
    let version = before & !(SPARE | OPEN);
    version.wrapping_add(VERSION) | if open { OPEN } else { 0 } | spare & SPARE
}

/// AcqRel, as for pairs: who sees a cell sees what came before it.
#[inline]
pub fn exchange(cell: &AtomicU64, before: u64, after: u64) -> Result<u64, u64> {
    cell.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire)
}

/// Takes `bytes` out of a cell, if they are there.
#[inline]
pub fn take_spare(Cell(cell): &Cell, bytes: u64) -> bool {
    change_spare(cell, |spare| spare.checked_sub(bytes))
}

/// Puts `bytes` into a cell, if there is room.
#[inline]
pub fn give_spare(Cell(cell): &Cell, bytes: u64) -> bool {
    change_spare(cell, |spare| spare.checked_add(bytes).filter(|sum| *sum <= MOST_SPARE))
}

#[inline]
fn change_spare(cell: &AtomicU64, change: impl Fn(u64) -> Option<u64>) -> bool {
    let mut now = cell.load(Ordering::Acquire);
    // Who meets others here that often goes the other way.
    for _ in 0..16 {
        let Some(after) = change(spare_in(now)).filter(|_| is_open(now)) else { return false };
        match exchange(cell, now, next(now, after, true)) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}
