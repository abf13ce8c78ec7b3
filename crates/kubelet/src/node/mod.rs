//! The node as the API sees it: registered once, its status when it changed, its Lease as a sign of
//! life.

pub mod cgroup_driver;
pub mod conditions;
pub mod lease;
pub mod machine;
pub mod register;
pub mod status;
