//! How a node's runtime is set up.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use network::PodNetwork;

use crate::{
    Runtime,
    error::Result,
    images::{Limits, registry},
    snapshot::Snapshots,
};

/// Everything the runtime needs to know.
#[derive(Clone)]
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// Images, snapshots and what must survive a reboot.
    pub root_dir: PathBuf,
    /// Sockets, namespaces and what must not.
    pub state_dir: PathBuf,
    /// Where CRI is served.
    pub socket: PathBuf,
    /// The cgroup that everything of ours is below.
    pub cgroup_root: String,
    /// Gives sandboxes their addresses.
    pub network: Arc<dyn PodNetwork>,
    /// Other OCI runtimes by the RuntimeClass handler that names them.
    pub handlers: BTreeMap<String, PathBuf>,
    /// How registries are reached.
    pub registries: registry::Registries,
    /// The program that the built-in hello image is made of; without it there is no such image.
    pub hello_program: Option<PathBuf>,
    /// Archives in these directories are imported at start.
    pub image_dirs: Vec<PathBuf>,
    /// How roots of containers are made.
    pub snapshots: Snapshots,
    /// What an image may cost; a larger one is refused.
    pub image_limits: Limits,
    /// Where devices are described that containers ask for by name; later ones win.
    pub cdi_dirs: Vec<PathBuf>,
    /// How much is kept of each container's log.
    pub log_limits: LogLimits,
}

/// How much is kept of a container's log. Kubelets rotate logs now and then; these limits hold while
/// output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// A file that has grown beyond this is set aside; zero: never.
    pub max_bytes: u64,
    /// How many files there may be, with the one that is written.
    pub max_files: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            max_bytes: 10 * 1024 * 1024,
            max_files: 5,
        }
    }
}

impl Config {
    /// The usual places for a cluster.
    pub fn new(id: &str, data_dir: PathBuf, network: Arc<dyn PodNetwork>) -> Self {
        let state_dir = PathBuf::from(format!("/run/mainstay/{id}"));
        Self {
            id: id.to_owned(),
            root_dir: data_dir.join("runtime"),
            image_dirs: vec![data_dir.join("images")],
            socket: state_dir.join("cri.sock"),
            state_dir,
            cgroup_root: format!("/mainstay-{id}"),
            network,
            handlers: BTreeMap::new(),
            registries: registry::Registries::default(),
            hello_program: std::env::current_exe().ok(),
            snapshots: Snapshots::default(),
            image_limits: Limits::default(),
            cdi_dirs: ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from).into(),
            log_limits: LogLimits::default(),
        }
    }

    /// Checks the configuration; nothing runs yet.
    pub fn build(self) -> Result<Arc<Runtime>> {
        Ok(Arc::new(Runtime::new(self)))
    }
}
