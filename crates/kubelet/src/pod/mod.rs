//! One pod on this node: its observed state, the next actions, and its status.
//!
//! [`decide`] is pure: spec, runtime state, probe results and time go in, actions come out. The
//! worker is the thin shell that feeds it and carries the actions out.

pub mod decide;
pub mod memory;
pub mod observed;
pub mod restart;
pub mod spec;
pub mod status;
