//! Waiting for work: at that moment a pool gives back what it keeps above its threshold.
//!
//! Nothing else about these functions concerns memory, so a process whose pools keep nothing back pays one load.
//! Waiting for an event has the same effect in the driver and is not hooked, like all of events: the books are then
//! on the safe side until the pool is used, or a stream or context is waited for, or room is needed.

use super::guard::{Before, around};
use super::pool;
use super::table::hook;
use crate::cuda::abi::*;
use crate::process::Process;

hook! {
    fn cuCtxSynchronize() |real| {
        and_settle(real)
    }
    fn cuCtxSynchronize_v2(ctx: CUcontext) |real| {
        and_settle(real)
    }
    fn cuStreamSynchronize(hStream: CUstream) |real| {
        and_settle(real)
    }
    fn cuStreamSynchronize_ptsz(hStream: CUstream) |real| {
        and_settle(real)
    }
}

#[inline(always)]
fn and_settle(real: impl Fn() -> CUresult) -> CUresult {
    if Process::current().is_some_and(|process| process.pools.any_unused()) {
        then_settle(&real)
    } else {
        real()
    }
}

#[cold]
fn then_settle(real: &dyn Fn() -> CUresult) -> CUresult {
    around(
        |_| Before::Then(()),
        real,
        |process, (), code| {
            pool::refresh_unused(process);
            code
        },
    )
}
