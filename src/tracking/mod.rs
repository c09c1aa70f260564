//! What this process holds: one record for each live allocation, found by its address or handle.

pub mod askers;
pub mod contexts;
pub mod graphs;
pub mod index;
pub mod memory_map;
pub mod pools;
pub mod runtimes;
pub mod samples;
pub mod stacks;
