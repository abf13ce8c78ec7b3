//! A container's mounts: the kernel's file systems, the pod's files, and the mounts of the CRI
//! request. Sorted from the root down, since later mounts cover earlier ones.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cri::v1::{LinuxContainerSecurityContext, Mount, MountPropagation};
use serde_json::{Value, json};

use super::{
    Inputs,
    propagation::{self, Propagation},
};
use crate::error::{Error, Result};

/// An image volume.
#[derive(Debug, Clone)]
pub(crate) struct BoundImage {
    /// The path in the container.
    pub container_path: String,
    /// The path of its content, with the sub path applied.
    pub path: PathBuf,
}

pub(super) struct Mounts {
    pub list: Vec<Value>,
    /// The propagation of the root: the widest of all mounts.
    pub propagation: &'static str,
}

pub(super) fn mounts(
    inputs: &Inputs<'_>,
    security: &LinuxContainerSecurityContext,
) -> Result<Mounts> {
    let mut list = kernel(security.privileged);
    list.extend(pod_files(inputs, security));
    let mut propagation = None;
    for mount in &inputs.config.mounts {
        let (entry, wants) = requested(mount, inputs)?;
        propagation = propagation.max(wants);
        list.push(entry);
    }
    let mut kept: Vec<Value> = Vec::new();
    for entry in list {
        // A requested mount replaces a default one.
        kept.retain(|known| destination(known) != destination(&entry));
        kept.push(entry);
    }
    kept.sort_by_key(|entry| destination(entry).components().count());
    let propagation = match propagation {
        None => "private",
        Some(Propagation::Slave) => "slave",
        Some(Propagation::Shared) => "shared",
    };
    Ok(Mounts {
        list: kept,
        propagation,
    })
}

fn destination(entry: &Value) -> &Path {
    Path::new(entry["destination"].as_str().unwrap_or_default())
}

fn kernel(privileged: bool) -> Vec<Value> {
    let access = if privileged { "rw" } else { "ro" };
    let mount = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
    vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount(
            "/dev",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        mount(
            "/dev/pts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
            ],
        ),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", access]),
        mount(
            "/sys/fs/cgroup",
            "cgroup",
            &["nosuid", "noexec", "nodev", "relatime", access],
        ),
    ]
}

fn pod_files(inputs: &Inputs<'_>, security: &LinuxContainerSecurityContext) -> Vec<Value> {
    let access = if security.readonly_rootfs { "ro" } else { "rw" };
    let files = inputs.pod_files;
    let bind = |destination: &str, source: &Path, options: &[&str]| {
        let mut all = vec!["rbind", "rprivate"];
        all.extend(options);
        json!({ "destination": destination, "type": "bind", "source": source, "options": all })
    };
    vec![
        bind("/etc/hostname", &files.hostname, &[access]),
        bind("/etc/hosts", &files.hosts, &[access]),
        bind("/etc/resolv.conf", &files.resolv_conf, &[access]),
        bind("/dev/shm", &files.shm, &["rw", "nosuid", "nodev", "noexec"]),
    ]
}

fn requested(mount: &Mount, inputs: &Inputs<'_>) -> Result<(Value, Option<Propagation>)> {
    let destination = mount.container_path.as_str();
    if !destination.starts_with('/') {
        return Err(Error::Invalid(format!(
            "mount path {destination:?} is not absolute"
        )));
    }
    let image = inputs
        .bound_images
        .iter()
        .find(|bound| bound.container_path == destination);
    let source = match image {
        Some(bound) => bound.path.clone(),
        None => existing(Path::new(&mount.host_path))?,
    };
    let mode = MountPropagation::try_from(mount.propagation)
        .map_err(|_| Error::Invalid(format!("unknown propagation {}", mount.propagation)))?;
    let (option, wants) = match mode {
        MountPropagation::PropagationPrivate => ("rprivate", None),
        MountPropagation::PropagationHostToContainer => ("rslave", Some(Propagation::Slave)),
        MountPropagation::PropagationBidirectional => ("rshared", Some(Propagation::Shared)),
    };
    if let Some(wanted) = wants {
        propagation::check(&source, wanted)?;
    }
    let readonly = mount.readonly || image.is_some();
    if mount.recursive_read_only && (!mount.readonly || wants.is_some()) {
        let message = "a recursive read-only mount must be read-only and not propagated";
        return Err(Error::Invalid(format!("{destination}: {message}")));
    }
    let access = match (readonly, mount.recursive_read_only) {
        (_, true) => "rro",
        (true, false) => "ro",
        (false, false) => "rw",
    };
    let mut options = vec!["rbind", option, access];
    options.extend(mount.mount_options.iter().map(String::as_str));
    let entry = json!({
        "destination": destination, "type": "bind", "source": source, "options": options,
    });
    Ok((entry, wants))
}

/// The path with links resolved; a missing one is created as a directory, as other runtimes do.
fn existing(path: &Path) -> Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path).map_err(Error::file(path))?;
            fs::canonicalize(path).map_err(Error::file(path))
        }
        result => result.map_err(Error::file(path)),
    }
}
