//! Why CUDA does not start: evidence of the machine, the chain of NVML calls, and the causes that they show.
//!
//! [`machine`] reads, [`chain`] asks NVML, [`causes`] concludes. Used in the process at the moment of a failure, and by
//! `cuwarden doctor` before there is one. Nothing here initialises CUDA.

pub mod causes;
pub mod chain;
#[cfg(test)]
pub(crate) mod fake;
pub mod image;
pub mod machine;
pub mod nvml;
pub mod visible;

pub use causes::{Case, Cause, Failure, Known, explain};
