//! The ledger: one account a device for all processes that share a directory.
//!
//! [`protocol`] is how they share it without a lock, and why that is exact, [`cell`] what a process keeps spare. [`layout`]
//! and [`file`] are its bytes,
//! [`slots`] how a process takes part, [`liveness`] who is dead, [`limit`] what the quota is, [`account`] what hooks
//! use, [`view`] what those see who only look.

pub mod account;
pub mod atomic;
pub mod cell;
pub mod file;
pub mod layout;
pub mod limit;
pub mod liveness;
pub mod protocol;
pub mod slots;
pub mod view;

pub use account::{Account, Reserved};
pub use file::Unusable;
pub use protocol::Denied;
pub use slots::{Entered, Ledger};
