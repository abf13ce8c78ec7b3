//! Builds the OCI configuration of a container from its CRI configuration. Pure but for reading the
//! container's root file system and the node's devices. Everything in the request takes effect here
//! or is rejected.

mod apparmor;
mod capabilities;
mod cdi;
mod devices;
mod mounts;
mod namespaces;
mod process;
mod propagation;
mod resources;
mod seccomp;
pub(crate) mod syscalls;
mod user;

use std::path::{Path, PathBuf};

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext, PodSandboxConfig};
pub(crate) use mounts::BoundImage;
pub(crate) use resources::limits;
use serde_json::{Value, json};
pub(crate) use user::Identity;

use crate::{error::Result, images::ImageConfig, shim::protocol::Pins};

/// The PATH if neither image nor pod sets one.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Newer features are not used, and other runtimes reject unknown versions.
const OCI_VERSION: &str = "1.0.2";

/// The inputs of a container's configuration.
pub(crate) struct Inputs<'a> {
    /// The CRI configuration of the container.
    pub config: &'a ContainerConfig,
    /// The CRI configuration of its pod.
    pub sandbox: &'a PodSandboxConfig,
    /// The pod's pinned namespaces.
    pub pins: &'a Pins,
    /// The first process of the container whose PID namespace is shared.
    pub target_pid: Option<i32>,
    /// The shared files of the pod: `hostname`, `hosts`, `resolv.conf`, `shm`.
    pub pod_files: &'a PodFiles,
    /// The image configuration.
    pub image: &'a ImageConfig,
    /// Image volumes.
    pub bound_images: &'a [BoundImage],
    /// The mounted root file system.
    pub rootfs: &'a Path,
    /// The container's cgroup.
    pub cgroup: &'a str,
    /// The lowest `oom_score_adj` that this process may set, if it is limited.
    pub lowest_oom_score: Option<i32>,
    /// Directories of CDI specs.
    pub cdi_dirs: &'a [PathBuf],
}

/// The shared files of a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodFiles {
    /// `/etc/hostname`.
    pub hostname: PathBuf,
    /// `/etc/hosts`, unless the kubelet mounts one.
    pub hosts: PathBuf,
    /// `/etc/resolv.conf`.
    pub resolv_conf: PathBuf,
    /// `/dev/shm`.
    pub shm: PathBuf,
}

impl Inputs<'_> {
    fn security(&self) -> LinuxContainerSecurityContext {
        let linux = self.config.linux.as_ref();
        linux
            .and_then(|linux| linux.security_context.clone())
            .unwrap_or_default()
    }
}

/// A finished configuration.
pub(crate) struct Built {
    /// The content of `config.json`.
    pub spec: Value,
    /// The user and groups of the process.
    pub identity: Identity,
    /// Whether other processes of the container survive its first one.
    pub shares_pids: bool,
}

/// Makes the configuration.
pub(crate) fn build(inputs: &Inputs<'_>) -> Result<Built> {
    let security = inputs.security();
    let identity = user::identify(&security, &inputs.image.user, inputs.rootfs)?;
    let namespaces = namespaces::namespaces(inputs, &security)?;
    let process = process::process(inputs, &security, &identity)?;
    let mounts = mounts::mounts(inputs, &security)?;
    let mut linux = json!({
        "namespaces": namespaces.list,
        "cgroupsPath": inputs.cgroup,
        "resources": resources::resources(inputs, &security)?,
        "maskedPaths": security.masked_paths,
        "readonlyPaths": security.readonly_paths,
        "rootfsPropagation": mounts.propagation,
    });
    if security.privileged {
        linux["maskedPaths"] = json!([]);
        linux["readonlyPaths"] = json!([]);
    }
    let devices = devices::devices(inputs, &security)?;
    if !devices.is_empty() {
        linux["devices"] = json!(devices);
    }
    let capabilities = capabilities::effective(&security);
    if let Some(profile) = seccomp::profile(&security, &capabilities)? {
        linux["seccomp"] = profile;
    }
    let mut spec = json!({
        "ociVersion": OCI_VERSION,
        "root": { "path": inputs.rootfs, "readonly": security.readonly_rootfs },
        "mounts": mounts.list,
        "process": process,
        "linux": linux,
    });
    let named = inputs.config.cdi_devices.iter();
    let named: Vec<String> = named.map(|device| device.name.clone()).collect();
    cdi::apply(&mut spec, &named, inputs.cdi_dirs)?;
    Ok(Built {
        spec,
        identity,
        shares_pids: namespaces.shares_pids,
    })
}

/// The OCI process of an exec: the container's own with another command.
pub(crate) fn exec_process(container: &Value, command: &[String], tty: bool) -> Value {
    let mut process = container["process"].clone();
    process["args"] = json!(command);
    process["terminal"] = json!(tty);
    if tty {
        process::set_default_env(&mut process["env"], "TERM", "xterm");
    }
    // Keep the score of the container's own processes.
    if let Some(process) = process.as_object_mut() {
        process.remove("oomScoreAdj");
    }
    process
}
