//! Decisions: pure functions of their arguments, without `unsafe`, clock, environment or driver.

pub mod config;
pub mod drift;
pub mod follow;
pub mod limit;
pub mod listed;
pub mod ordinal;
pub mod quota;
pub mod reconcile;
pub mod refusal;
pub mod sizes;
pub mod versions;
