//! The node as the API sees it: registered once, its status when it changed, its Lease as a sign of
//! life.

pub(crate) mod cgroup_driver;
pub(crate) mod conditions;
pub(crate) mod lease;
pub(crate) mod machine;
pub(crate) mod register;
pub(crate) mod status;
