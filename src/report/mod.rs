//! Leak reports.
