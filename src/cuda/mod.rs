//! The CUDA driver's binary interface, as far as cuwarden reads or calls it.

pub mod abi;
pub mod error;
