//! Control groups of both versions through their files: joining, limits, devices, usage, killing and
//! removing.
//!
//! The crate has the name and, in [`common`], [`v1`] and [`v2`], the interface of the one that
//! libcontainer uses, and takes its place in this workspace's build. So one piece of code sets a
//! container's limits when it is created and when they change, and a process joins its cgroups
//! without waiting for the kernel's grace periods (see [`Cgroup::enter`]), which is most of the time
//! that starting a container takes otherwise. On version 2 the device rules are enforced, too.

pub mod common;
mod devices;
mod group;
mod hierarchies;
mod limits;
mod pressure;
#[cfg(test)]
mod real;
mod stats;
mod usage;
pub mod v1;
pub mod v2;

pub use group::Cgroup;
pub use hierarchies::Hierarchies;
pub use pressure::{Pressure, Stalled, Waited};
pub use usage::Usage;
