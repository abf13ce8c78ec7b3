//! cgroup v1 and v2 through their files: joining, limits, devices, usage, killing and removing. Those with
//! the name of a systemd scope are made by systemd, which also gets their limits ([`systemd`]).
//!
//! The crate has the name and, in [`common`], [`v1`] and [`v2`], the interface of the one that
//! libcontainer uses, and replaces it in this workspace's build. So the same code sets a
//! container's limits at its creation and later, and a process joins its cgroups without the
//! kernel's grace periods (see [`Cgroup::enter`]), which otherwise take most of the time of
//! starting a container. On v2 the device rules are enforced, too.

pub mod common;
mod devices;
mod group;
mod hierarchies;
mod limits;
mod pressure;
#[cfg(test)]
mod real;
mod stats;
pub mod systemd;
mod usage;
pub mod v1;
pub mod v2;

pub use group::Cgroup;
pub use hierarchies::Hierarchies;
pub use pressure::{Pressure, PressureResource, Stalled};
pub use usage::Usage;
