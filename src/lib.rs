//! cuwarden: the library behind the preloaded shim and the command line.
//!
//! Layers, each using only those below it: `hooks` (FFI) → `policy` (decisions) → `tracking`, `ledger` →
//! `record`, `event`, `stack`, `cuda`. The exported symbols live in `cshim` alone.

pub mod record;
pub mod report;
