//! Re-exports the crate `libcgroups`, which libcontainer uses, too.

pub(crate) use libcgroups::{Cgroup, Hierarchies, Pressure, PressureResource, Stalled, Usage};
