//! Control groups: see the crate `libcgroups`, which libcontainer uses, too.

pub use libcgroups::{Cgroup, Hierarchies, Usage};
