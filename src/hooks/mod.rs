//! The functions that stand in the place of the driver's and of NVML's: FFI only.
//!
//! Each is one row of [`table`]. A hook decides nothing by itself: it turns arguments into a request, asks
//! `policy`, `ledger` and `tracking`, and calls the real function exactly once ([`guard`]).

mod allocate;
mod array;
mod baseline;
mod context;
mod context_cost;
mod devices;
mod driver;
pub mod exec;
mod graph;
mod guard;
mod info;
mod init;
mod init_failure;
mod linear;
pub mod lookup;
mod module;
mod nvml;
mod nvml_ask;
mod pool;
mod private_table;
mod refuse;
pub mod runtime;
mod synchronize;
pub mod table;
mod vmm;

pub use lookup::Owner;
pub use table::names;
