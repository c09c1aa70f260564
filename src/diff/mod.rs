//! The comparison of two arms of an experiment: `cuwarden diff`.
//!
//! [`arm`] makes runs of reports and sees that an arm is one thing, [`stack`] says which call stacks of two builds are the
//! same, [`stats`] what is beyond noise, [`compare`] puts it together as the [`model`], which is the JSON schema, and
//! [`text`] and [`html`] show it.

pub mod arm;
pub mod compare;
pub mod html;
pub mod model;
pub mod stack;
pub mod stats;
pub mod text;
mod words;
