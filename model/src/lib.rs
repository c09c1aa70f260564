//! Checks the ledger's protocol for every order in which the atomic operations of a few processes may happen, with loom.
//!
//! What is checked is the source itself, compiled with `--cfg loom`: then its atomics are those of [`atomic`]. A process
//! is a thread of loom, with a slot of its own. What it holds is known to the model beside the ledger, and compared with
//! it. Run by `scripts/model`.
#![cfg(loom)]

pub mod atomic;
pub mod device;
pub mod ledger;
pub mod sync;

use atomic::Memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `model` in every order with at most `preemptions` switches from a thread that could go on (or as many as
/// `LOOM_MAX_PREEMPTIONS` says), and prints how many executions these are.
pub fn explore(memory: Memory, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    // Enough for what ends; what goes round for ever exceeds it, and that is a failure.
    builder.max_branches = 20_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        atomic::begin(memory);
        model();
    });
    println!("executions: {}", count.load(Ordering::Relaxed));
}
