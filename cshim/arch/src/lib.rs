//! x86
#![allow(missing_docs)]
