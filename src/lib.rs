//! cuwarden: the library behind the preloaded shim and the command line.
//!
//! Layers, each using only those below it: `hooks` (FFI) → `policy` (decisions) → `tracking`, `ledger` →
//! `record`, `event`, `stack`, `cuda`. The exported symbols live in `cshim` alone.

#[cfg(feature = "cli")]
pub mod cli;
pub mod cuda;
pub mod diagnose;
#[cfg(feature = "cli")]
pub mod diff;
pub mod event;
pub mod growth;
pub mod hooks;
pub mod ledger;
pub mod order;
pub mod policy;
pub mod process;
pub mod record;
pub mod report;
pub use cuwarden_stack as stack;
mod sync;
pub mod tracking;
