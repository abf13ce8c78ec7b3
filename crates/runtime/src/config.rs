//! The runtime's configuration.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use network::PodNetwork;

use crate::{
    Runtime,
    error::Result,
    images::{Limits, registry},
    snapshot::Snapshots,
};

/// The runtime's configuration.
#[derive(Clone)]
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// Images, snapshots and other data that survives a reboot.
    pub root_dir: PathBuf,
    /// Sockets, namespaces and other data that does not survive a reboot.
    pub state_dir: PathBuf,
    /// The CRI socket.
    pub socket: PathBuf,
    /// The parent cgroup of everything of this runtime.
    pub cgroup_root: String,
    /// The pod network.
    pub network: Arc<dyn PodNetwork>,
    /// Other OCI runtimes by RuntimeClass handler.
    pub handlers: BTreeMap<String, PathBuf>,
    /// The registry configuration.
    pub registries: registry::Registries,
    /// The program in the built-in hello image; `None`: there is no such image.
    pub hello_program: Option<PathBuf>,
    /// Directories whose image archives are imported at start.
    pub image_dirs: Vec<PathBuf>,
    /// How root file systems of containers are made.
    pub snapshots: Snapshots,
    /// Size limits of images; larger ones are rejected.
    pub image_limits: Limits,
    /// Directories of CDI specs; later ones take precedence.
    pub cdi_dirs: Vec<PathBuf>,
    /// Limits of each container's log.
    pub log_limits: LogLimits,
}

/// Limits of a container's log. Kubelets rotate logs periodically; these limits are enforced at
/// every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// The size at which a file is rotated; zero: never.
    pub max_bytes: u64,
    /// The maximum number of files, including the current one.
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
    /// The default configuration of a cluster.
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

    /// Makes the runtime without starting it.
    pub fn build(self) -> Result<Arc<Runtime>> {
        Ok(Arc::new(Runtime::new(self)))
    }
}
