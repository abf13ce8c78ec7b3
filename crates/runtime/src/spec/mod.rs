//! The OCI runtime configuration of a container, made from what CRI asks for. Pure but for looking
//! into the container's root file system and at the node's devices; everything in the request takes
//! effect here or is refused.

mod apparmor;
mod capabilities;
mod cdi;
mod devices;
mod mounts;
mod namespaces;
mod process;
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

/// Where programs are looked for when neither image nor pod say.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Nothing newer is used, and other runtimes refuse what they do not know.
const OCI_VERSION: &str = "1.0.2";

/// Everything that a container's configuration depends on.
pub(crate) struct Inputs<'a> {
    /// What was asked for.
    pub config: &'a ContainerConfig,
    /// The pod that it belongs to.
    pub sandbox: &'a PodSandboxConfig,
    /// The pod's pinned namespaces.
    pub pins: &'a Pins,
    /// The first process of the container whose PID namespace is to be shared.
    pub target_pid: Option<i32>,
    /// Files of the pod that its containers see: `hostname`, `hosts`, `resolv.conf`, `shm`.
    pub pod_files: &'a PodFiles,
    /// What the image says.
    pub image: &'a ImageConfig,
    /// Images that are mounted as volumes.
    pub bound_images: &'a [BoundImage],
    /// The mounted root file system.
    pub rootfs: &'a Path,
    /// The container's cgroup.
    pub cgroup: &'a str,
    /// The lowest OOM score that may be set here, if that is limited.
    pub lowest_oom_score: Option<i32>,
    /// Where devices are described that are asked for by name.
    pub cdi_dirs: &'a [PathBuf],
}

/// Files of a pod that its containers see.
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
    /// Whom the process runs as.
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

/// The process of an exec: the container's own with another command.
pub(crate) fn exec_process(container: &Value, command: &[String], tty: bool) -> Value {
    let mut process = container["process"].clone();
    process["args"] = json!(command);
    process["terminal"] = json!(tty);
    if tty {
        process::set_default_env(&mut process["env"], "TERM", "xterm");
    }
    // The scores of the container's own processes stay theirs.
    if let Some(process) = process.as_object_mut() {
        process.remove("oomScoreAdj");
    }
    process
}
