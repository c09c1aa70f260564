//! The record file: one per process under `CUWARDEN_DIR/proc`, holding what the process has allocated.
//!
//! It is a shared file mapping, so a process that is killed at any instruction leaves its books behind.
//! [`layout`] is the format, [`snapshot`] reads one from bytes that nobody has to trust.

pub mod api;
pub mod head;
pub mod identity;
pub mod layout;
pub mod mapping;
pub mod predecessor;
pub mod snapshot;
pub mod users;
pub mod writer;
