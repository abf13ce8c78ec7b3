//! The node's agent: brings the pods that the API (or a manifest on disk) gives this node to life
//! through a container runtime, keeps them as their specs say, and tells the API about them.
//!
//! Every pod has one worker. Everything that can matter to a pod enters its worker's queue: changes
//! from the API, events of the runtime, probe results, ended work, timers. The worker looks, decides
//! purely ([`pod::decide`]), acts, and writes the status when it changed. Nothing polls.
//!
//! The kubelet keeps no state of its own that must last: after a restart it finds its pods in the
//! API and their containers in the runtime by their labels, and restarts nothing that runs.

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
pub use config::{Cloud, Config, version};
pub use error::{Error, Result};
pub use logs::links::{
    is_marked as owns_logs, mark as mark_logs, remove_dangling as remove_dangling_log_links,
};
pub use service::Kubelet;
pub use shutdown::period as shutdown_period;
