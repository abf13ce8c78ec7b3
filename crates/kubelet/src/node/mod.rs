//! The node in the API: registered once, its status written when it changed, its Lease renewed as a
//! heartbeat.

pub(crate) mod cgroup_driver;
pub(crate) mod conditions;
pub(crate) mod lease;
pub(crate) mod machine;
pub(crate) mod register;
pub(crate) mod status;
