//! Control groups: see the crate `libcgroups`, which libcontainer uses, too.

pub use libcgroups::{Cgroup, Hierarchies, Pressure, Stalled, Usage, Waited};
