//! A container runtime that implements CRI: images, snapshots, sandboxes and containers of one
//! node.
//!
//! Containers outlive this process. Each pod has a [`shim`] that holds its containers; the daemon
//! can stop, crash or be replaced, and the next one finds them again. Everything that clones,
//! changes namespaces or handles a container's terminal happens in single-threaded helper
//! processes, which are re-executions of the same program (see [`reexec`]) or forks of the shim.

mod base_mounts;
mod cgroup;
mod config;
mod container;
mod disk;
mod engine;
mod error;
mod helper;
mod id;
pub mod images;
mod matching;
pub mod mount_table;
mod mounts;
mod poll;
mod pulls;
pub mod reexec;
mod remove_tree;
mod rooted;
mod sandbox;
mod service;
pub mod shim;
mod signals;
mod snapshot;
mod spec;
mod stamp;
mod stats;
mod streams;
mod terminal;
mod wire;
mod xattrs;

use std::sync::Arc;

pub use config::{Config, LogLimits};
pub use error::{Error, Result};
use lifecycle::{Context, Run, Service};
pub use snapshot::Snapshots;

use crate::engine::Engine;

/// The runtime service.
pub struct Runtime {
    config: Config,
}

impl Runtime {
    pub(crate) fn new(config: Config) -> Self {
        Self { config }
    }
}

impl Service for Runtime {
    fn name(&self) -> &'static str {
        "runtime"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let engine = Engine::start(self.config.clone(), context.clone()).await?;
            service::serve(engine, context).await?;
            Ok(())
        })
    }
}
