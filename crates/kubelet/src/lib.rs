//! The kubelet: runs the pods that the API server or a static manifest assigns to this node in a
//! container runtime, keeps them as their specs say, and reports their status.
//!
//! Every pod has one worker. Everything that concerns a pod enters its worker's queue: changes from
//! the API, events of the runtime, probe results, finished tasks, timers. The worker observes,
//! decides purely ([`pod::decide`]), acts, and writes the status when it changed. It does not poll.
//!
//! The kubelet keeps no state of its own that must survive: after a restart it finds its pods in
//! the API and their containers in the runtime by their labels, and restarts nothing that runs.

mod admit;
mod allocation;
mod cgroups;
mod claims;
mod collect;
mod config;
pub mod configuration;
mod core;
mod csi_drivers;
mod dispatch;
mod disruption;
mod enforce;
mod error;
mod events;
pub mod eviction;
mod follow_settings;
mod hooks;
mod images;
mod inotify;
mod logs;
pub mod make;
mod metrics;
mod node;
mod own_process;
mod plugins;
pub mod pod;
mod probe;
mod pull_call;
mod pull_records;
mod pulls;
mod rate;
mod registry;
mod relist;
mod rotate;
mod runtime;
pub mod server;
mod service;
mod shutdown;
mod sources;
mod start;
mod static_pods;
mod stats;
mod sweep;
mod volumes;
mod worker;

pub use admit::is_allowable_sysctl;
pub use config::{Certificates, Cloud, Config, version};
pub use error::{Error, Result};
pub use logs::links::{
    is_marked as owns_logs, mark as mark_logs, remove_dangling as remove_dangling_log_links,
};
pub use service::Kubelet;
pub use shutdown::period as shutdown_period;
