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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a model is explored.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Switches from a process that could go on, where all see all operations in one order.
    pub strong: usize,
    /// The same, where two loads may answer an older value.
    pub weak: usize,
}

/// Runs `model` in every order within the bounds. `CUWARDEN_MODEL_MORE` is added to them.
pub fn explore(bounds: Bounds, model: impl Fn() + Send + Sync + 'static) {
    println!("executions: {}", count(bounds, model));
}

/// Runs `model`, in which a process stops before operation 0, 1, 2 and so on, until there is no such operation. It is
/// given the number and answers whether there was one.
pub fn stop_everywhere(bounds: Bounds, model: impl Fn(u32) -> bool + Send + Sync + 'static) {
    let (model, mut executions) = (Arc::new(model), 0);
    for most in 0.. {
        let (model, stopped) = (model.clone(), Arc::new(AtomicBool::new(false)));
        let any = stopped.clone();
        executions += count(bounds, move || {
            if model(most) {
                any.store(true, Ordering::Relaxed);
            }
        });
        if !stopped.load(Ordering::Relaxed) {
            println!("executions: {executions}, stopped before each of {most} operations");
            return;
        }
    }
}

fn count(bounds: Bounds, model: impl Fn() + Send + Sync + 'static) -> u64 {
    let more = std::env::var("CUWARDEN_MODEL_MORE").map_or(0, |more| more.parse().expect("a number"));
    let (model, executions) = (Arc::new(model), Arc::new(AtomicU64::new(0)));
    for (memory, preemptions) in [(Memory::Strong, bounds.strong), (Memory::Weak(2), bounds.weak)] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions + more);
        // Enough for what ends; what goes round for ever exceeds it, and that is a failure.
        builder.max_branches = 20_000;
        let (model, executions) = (model.clone(), executions.clone());
        builder.check(move || {
            executions.fetch_add(1, Ordering::Relaxed);
            atomic::begin(memory);
            model();
        });
    }
    executions.load(Ordering::Relaxed)
}
