//! The ledger's source, as it is.

#[path = "../../src/ledger/atomic.rs"]
pub mod atomic;
#[path = "../../src/ledger/cell.rs"]
pub mod cell;
#[path = "../../src/ledger/layout.rs"]
pub mod layout;
#[path = "../../src/ledger/protocol.rs"]
pub mod protocol;
