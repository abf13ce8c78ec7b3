//! Device nodes of a container beside the default ones.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use cri::v1::LinuxContainerSecurityContext;
use serde_json::{Value, json};

use super::Inputs;
use crate::error::{Error, Result};

/// A device of the host.
struct Node {
    kind: &'static str,
    major: u64,
    minor: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// The device nodes to create.
pub(super) fn devices(
    inputs: &Inputs<'_>,
    security: &LinuxContainerSecurityContext,
) -> Result<Vec<Value>> {
    let mut found: BTreeMap<PathBuf, Value> = BTreeMap::new();
    if security.privileged {
        for path in below(Path::new("/dev")) {
            if let Ok(Some(node)) = node(&path) {
                found.insert(path.clone(), entry(&path, &node));
            }
        }
    }
    for device in &inputs.config.devices {
        for (source, target) in expand(&device.host_path, &device.container_path)? {
            if let Some(node) = node(&source).map_err(Error::file(&source))? {
                found.insert(target.clone(), entry(&target, &node));
            }
        }
    }
    Ok(found.into_values().collect())
}

/// The device cgroup rules: everything is denied but what is listed.
pub(super) fn rules(
    inputs: &Inputs<'_>,
    security: &LinuxContainerSecurityContext,
) -> Result<Vec<Value>> {
    if security.privileged {
        return Ok(vec![json!({ "allow": true, "access": "rwm" })]);
    }
    let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
    for device in &inputs.config.devices {
        let access = if device.permissions.is_empty() {
            "rwm"
        } else {
            &device.permissions
        };
        if !access.chars().all(|letter| "rwm".contains(letter)) {
            return Err(Error::Invalid(format!(
                "{access:?} are not permissions of a device"
            )));
        }
        for (source, _) in expand(&device.host_path, &device.container_path)? {
            if let Some(node) = node(&source).map_err(Error::file(&source))? {
                rules.push(json!({
                    "allow": true, "type": node.kind, "major": node.major, "minor": node.minor,
                    "access": access,
                }));
            }
        }
    }
    Ok(rules)
}

/// A device, or all devices in a directory.
fn expand(host: &str, container: &str) -> Result<Vec<(PathBuf, PathBuf)>> {
    let source = fs::canonicalize(host).map_err(Error::file(host))?;
    let target = PathBuf::from(if container.is_empty() {
        host
    } else {
        container
    });
    if !source.is_dir() {
        return Ok(vec![(source, target)]);
    }
    let within = |path: PathBuf| {
        let relative = path.strip_prefix(&source).unwrap_or(&path);
        (path.clone(), target.join(relative))
    };
    Ok(below(&source).into_iter().map(within).collect())
}

fn below(dir: &Path) -> Vec<PathBuf> {
    // Terminals, shared memory and message queues are the container's own.
    const OWN: &[&str] = &[
        "pts",
        "shm",
        "fd",
        "mqueue",
        ".lxc",
        ".lxd-mounts",
        "console",
    ];
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(dir) else {
        return found;
    };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if OWN.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if kind.is_dir() {
            found.extend(below(&entry.path()));
        } else if kind.is_char_device() || kind.is_block_device() {
            found.push(entry.path());
        }
    }
    found
}

fn node(path: &Path) -> io::Result<Option<Node>> {
    let metadata = fs::metadata(path)?;
    let kind = match metadata.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return Ok(None),
    };
    let rdev = metadata.rdev();
    Ok(Some(Node {
        kind,
        major: u64::from(libc::major(rdev)),
        minor: u64::from(libc::minor(rdev)),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    }))
}

fn entry(path: &Path, node: &Node) -> Value {
    json!({
        "path": path, "type": node.kind, "major": node.major, "minor": node.minor,
        "fileMode": node.mode, "uid": node.uid, "gid": node.gid,
    })
}
