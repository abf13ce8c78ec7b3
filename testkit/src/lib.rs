//! Temporary machines and clusters for tests from outside. A machine is a network and a mount
//! namespace with no route out; a cluster is the built binary running in one, or, with agents, in
//! several on one network. Dropping either ends its processes and removes what it made, also when a
//! test fails.
//!
//! Everything here panics on errors, with what it saw.

mod agent;
mod cluster;
mod containerd;
mod driver;
mod etcd;
mod image;
mod lan;
mod leftovers;
mod machine;
mod server;
mod stamp;
mod terminal;
mod wait;

pub use agent::Agent;
pub use cluster::{Cluster, is_ready};
pub use containerd::Containerd;
/// A CSI driver that records, fails and hangs as a test says.
pub use csi::testing as csi_driver;
pub use driver::ServedDriver;
pub use etcd::Etcd;
pub use image::{busybox_archive, pause_archive};
pub use lan::Lan;
pub use leftovers::Leftovers;
pub use machine::{Machine, Ran};
pub use server::Server;
pub use stamp::stamped;
pub use terminal::Terminal;
pub use wait::{eventually, until};
