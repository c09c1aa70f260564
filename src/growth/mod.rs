//! What grows: the same judgement for a report, for the process itself while it runs, and for who watches it from outside.
//!
//! Pure: bytes through time go in, and a class or a suspicion comes out. [`class`] is for a call stack that is looked
//! back at, [`drift`] for a process that runs.

pub mod class;
pub mod drift;
mod trend;

pub use class::{Births, Growth, GrowthClass, classify};
pub use drift::{Detector, Rule, Suspicion};

/// What was live at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// In seconds.
    pub at_s: f64,
    /// In bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests;
