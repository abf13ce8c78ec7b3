//! One pod on this node: what is seen of it, what should happen next, and what is told about it.
//!
//! [`decide`] is pure: spec, runtime state, probe results and time go in, actions come out. The
//! worker is the thin shell that feeds it and carries the actions out.

pub mod decide;
pub mod memory;
pub mod observed;
pub mod restart;
pub mod spec;
pub mod status;
