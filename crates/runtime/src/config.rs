//! The runtime's configuration.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use libcgroups::systemd;
use network::PodNetwork;

use crate::{
    Runtime,
    error::{Error, Result},
    images::{Limits, registry},
    snapshot::Snapshots,
};

/// The prefix of containers' systemd scopes.
const SCOPES: &str = "cri-mainstay";

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
    /// Whether systemd makes the cgroups: containers and shims are scopes.
    pub systemd_cgroups: bool,
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
            systemd_cgroups: false,
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

    /// The cgroup of a sandbox for which the client named none.
    pub(crate) fn sandbox_cgroup(&self, id: &str) -> String {
        match self.systemd_cgroups {
            true => systemd::slice_path(&["mainstay", &self.id, "pods", id]),
            false => format!("{}/pods/{id}", self.cgroup_root),
        }
    }

    /// The cgroup of a sandbox' shim.
    pub(crate) fn shim_cgroup(&self, sandbox: &str) -> String {
        match self.systemd_cgroups {
            true => format!("/system.slice/mainstay-shim-{sandbox}.scope"),
            false => format!("{}/shims", self.cgroup_root),
        }
    }

    /// The cgroup of a container, below its sandbox' cgroup.
    pub(crate) fn container_cgroup(&self, parent: &str, id: &str) -> String {
        match self.systemd_cgroups {
            true => format!("{parent}/{SCOPES}-{id}.scope"),
            false => format!("{parent}/{id}"),
        }
    }

    /// A container's cgroup as other OCI runtimes expect it: the slice, a prefix and the name of a
    /// scope if systemd makes it.
    pub(crate) fn oci_cgroup(&self, parent: &str, id: &str) -> String {
        let slice = parent.rsplit('/').next().unwrap_or_default();
        match self.systemd_cgroups {
            true => format!("{slice}:{SCOPES}:{id}"),
            false => self.container_cgroup(parent, id),
        }
    }

    /// Makes the runtime without starting it.
    pub fn build(self) -> Result<Arc<Runtime>> {
        if let (true, Some(why)) = (self.systemd_cgroups, systemd::unavailable()) {
            let message = format!("cgroupDriver: systemd cannot be used: {why}; use cgroupfs");
            return Err(Error::Precondition(message));
        }
        Ok(Arc::new(Runtime::new(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(systemd_cgroups: bool) -> Config {
        let network = Arc::new(network::LoopbackNetwork);
        Config {
            systemd_cgroups,
            ..Config::new("i-1", "/d".into(), network)
        }
    }

    #[test]
    fn cgroups_are_directories_or_units() {
        let names = |config: &Config| {
            [
                config.sandbox_cgroup("s"),
                config.shim_cgroup("s"),
                config.container_cgroup("/a.slice/a-b.slice", "c"),
                config.oci_cgroup("/a.slice/a-b.slice", "c"),
            ]
        };
        assert_eq!(
            names(&config(false)),
            [
                "/mainstay-i-1/pods/s",
                "/mainstay-i-1/shims",
                "/a.slice/a-b.slice/c",
                "/a.slice/a-b.slice/c"
            ]
        );
        assert_eq!(
            names(&config(true)),
            [
                "/mainstay.slice/mainstay-i_1.slice/mainstay-i_1-pods.slice/mainstay-i_1-pods-s.slice",
                "/system.slice/mainstay-shim-s.scope",
                "/a.slice/a-b.slice/cri-mainstay-c.scope",
                "a-b.slice:cri-mainstay:c"
            ]
        );
    }

    #[test]
    fn systemds_cgroups_are_refused_where_systemd_does_not_run() {
        let refused = config(true).build().err().map(|error| error.to_string());
        let expected = systemd::unavailable();
        assert_eq!(refused.is_some(), expected.is_some());
        if let (Some(refused), Some(why)) = (refused, expected) {
            assert!(refused.contains(why), "{refused}");
        }
        assert!(config(false).build().is_ok());
    }
}
