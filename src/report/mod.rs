//! Leak reports: what a process still held when it ended, or holds now.
//!
//! [`model`] is the JSON schema, [`grouped`] makes a report from a record file's contents; the shim uses
//! both. All else is the command line's: names and source lines, whose a leak is, what is left out, and the formats.

mod course;
#[cfg(feature = "cli")]
mod debug_info;
#[cfg(feature = "cli")]
pub mod folded;
mod grouped;
#[cfg(feature = "cli")]
pub mod html;
#[cfg(feature = "cli")]
pub mod json;
#[cfg(feature = "cli")]
pub mod judged;
#[cfg(feature = "cli")]
pub mod library;
pub mod model;
#[cfg(feature = "cli")]
pub mod pattern;
#[cfg(feature = "cli")]
pub mod pprof;
pub mod size;
pub mod suspect;
#[cfg(feature = "cli")]
pub mod symbols;
#[cfg(feature = "cli")]
pub mod text;
pub mod time;
pub mod uuid;

pub use grouped::labels;
pub use model::{Report, Termination};
