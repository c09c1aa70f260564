//! Leak reports: what a process still held when it ended, or holds now.
//!
//! [`model`] is the JSON schema, [`grouped`] makes a report from a record file's contents; the shim uses
//! both. Names, source lines and the text for a terminal are made by the command line.

#[cfg(feature = "cli")]
mod debug_info;
mod grouped;
pub mod model;
pub mod size;
#[cfg(feature = "cli")]
pub mod symbols;
#[cfg(feature = "cli")]
pub mod text;
pub mod time;
pub mod uuid;

pub use grouped::labels;
pub use model::{Report, Termination};
