//! The cgroups above the containers: one per class and one per pod, with the pod's bounds, on
//! cgroup v1 and v2. Without a root, cgroups are left to the runtime.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;
use tracing::{debug, warn};

use crate::{
    Config, Error, Result,
    make::{
        cgroups,
        resources::{self, PodBounds},
    },
    pod::spec::QosClass,
};

const MOUNT: &str = "/sys/fs/cgroup";
const V1: &[&str] = &[
    "cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "devices", "freezer",
];
const V2: &[&str] = &["cpu", "memory", "pids", "cpuset", "io"];

const CLASSES: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

/// Whether the machine has the unified hierarchy.
pub fn is_v2() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// The directory of a cgroup; version 2 has one tree without a controller's name.
pub fn below(controller: &str, path: &str) -> PathBuf {
    Path::new(MOUNT)
        .join(controller)
        .join(path.trim_start_matches('/'))
}

/// Makes the cgroups of the classes. All pods together may have `max_pids` processes and threads.
pub fn ensure_classes(root: &str, max_pids: Option<i64>) -> Result<()> {
    if root.is_empty() {
        return Ok(());
    }
    for class in CLASSES {
        make(&cgroups::class(root, class))?;
    }
    let least = PodBounds {
        cpu_shares: 2,
        cpu_quota: None,
        memory: None,
    };
    apply(&cgroups::class(root, QosClass::BestEffort), least);
    limit_pids(&cgroups::kubepods(root), max_pids);
    Ok(())
}

/// Limits the processes and threads below a cgroup, or lifts the limit.
fn limit_pids(path: &str, max: Option<i64>) {
    let dir = if is_v2() {
        below("", path)
    } else {
        below("pids", path)
    };
    if !dir.exists() {
        return;
    }
    let value = max.map_or_else(|| "max".to_owned(), |max| max.to_string());
    let file = dir.join("pids.max");
    if let Err(error) = fs::write(&file, value) {
        warn!(file = %file.display(), %error, "cannot limit processes");
    }
}

/// Makes a pod's cgroup and sets its bounds.
pub fn ensure_pod(config: &Config, pod: &Pod) -> Result<()> {
    let (root, pids_limit) = (&config.cgroup_root, config.kubelet.pod_pids_limit);
    if root.is_empty() {
        return Ok(());
    }
    let path = cgroups::pod(root, pod);
    make(&path)?;
    apply(&path, resources::of_pod(pod));
    // Otherwise the node's limit holds.
    limit_pids(&path, Some(pids_limit).filter(|limit| *limit > 0));
    Ok(())
}

/// Raises a pod's bounds to what its spec allows now, and lowers none.
pub fn grow_pod(root: &str, pod: &Pod) {
    if root.is_empty() {
        return;
    }
    let path = cgroups::pod(root, pod);
    let read = |file: PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.split_whitespace()
            .next()
            .and_then(|number| number.parse::<i64>().ok())
    };
    let (quota, memory) = if is_v2() {
        (
            read(below("", &path).join("cpu.max")),
            read(below("", &path).join("memory.max")),
        )
    } else {
        (
            read(below("cpu", &path).join("cpu.cfs_quota_us")),
            read(below("memory", &path).join("memory.limit_in_bytes")),
        )
    };
    let wanted = resources::of_pod(pod);
    let larger = |wanted: Option<i64>, current: Option<i64>| {
        wanted.filter(|wanted| current.is_some_and(|current| current >= 0 && current < *wanted))
    };
    apply(
        &path,
        PodBounds {
            cpu_shares: wanted.cpu_shares,
            cpu_quota: larger(wanted.cpu_quota, quota),
            memory: larger(wanted.memory, memory),
        },
    );
}

/// Removes a pod's cgroup once its containers are gone. Of a pod that only the runtime knew, the
/// class is unknown: it is looked for in each.
pub fn remove_pod(root: &str, uid: &str) {
    if root.is_empty() {
        return;
    }
    for class in CLASSES {
        remove(&cgroups::pod_of_class(root, class, uid));
    }
}

/// Removes a cgroup with those below it. What still holds a process stays.
pub fn remove(path: &str) {
    if let Err(error) = libcgroups::Cgroup::new(path).remove() {
        debug!(path, %error, "a cgroup stays");
    }
}

/// The cgroups of pods that there are: uids and paths.
pub fn pods(root: &str) -> Vec<(String, String)> {
    if root.is_empty() {
        return Vec::new();
    }
    let mut found = BTreeSet::new();
    let controllers: &[&str] = if is_v2() { &[""] } else { V1 };
    for class in CLASSES.map(|class| cgroups::class(root, class)) {
        for controller in controllers {
            let Ok(entries) = fs::read_dir(below(controller, &class)) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if let Some(uid) = name.strip_prefix("pod") {
                    found.insert((uid.to_owned(), format!("{class}/{name}")));
                }
            }
        }
    }
    found.into_iter().collect()
}

fn make(path: &str) -> Result<()> {
    if !is_v2() {
        for controller in V1
            .iter()
            .filter(|controller| below(controller, "").exists())
        {
            make_v1(controller, path)?;
        }
        return Ok(());
    }
    let mut dir = PathBuf::from(MOUNT);
    for part in path.split('/').filter(|part| !part.is_empty()) {
        // A controller must be handed down at every level above the one that uses it.
        for controller in V2 {
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        dir.push(part);
        make_dir(&dir)?;
    }
    for controller in V2 {
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    Ok(())
}

fn make_v1(controller: &str, path: &str) -> Result<()> {
    let mut dir = below(controller, "");
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let parent = dir.clone();
        dir.push(part);
        make_dir(&dir)?;
        if *controller == *"cpuset" {
            // A new cpuset is empty and takes no process until it is filled.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let own = fs::read_to_string(dir.join(file)).unwrap_or_default();
                if own.trim().is_empty() {
                    let inherited = fs::read_to_string(parent.join(file)).unwrap_or_default();
                    let _ = fs::write(dir.join(file), inherited.trim());
                }
            }
        }
    }
    Ok(())
}

fn make_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(dir)(error))
        }
        _ => Ok(()),
    }
}

fn apply(path: &str, bounds: PodBounds) {
    let write = |file: PathBuf, value: String| {
        if let Err(error) = fs::write(&file, value) {
            warn!(file = %file.display(), %error, "cannot set a limit");
        }
    };
    if is_v2() {
        let weight = 1 + ((bounds.cpu_shares - 2) * 9999) / 262_142;
        write(below("", path).join("cpu.weight"), weight.to_string());
        if let Some(quota) = bounds.cpu_quota {
            write(below("", path).join("cpu.max"), format!("{quota} 100000"));
        }
        if let Some(memory) = bounds.memory {
            write(below("", path).join("memory.max"), memory.to_string());
        }
        return;
    }
    write(
        below("cpu", path).join("cpu.shares"),
        bounds.cpu_shares.to_string(),
    );
    if let Some(quota) = bounds.cpu_quota {
        write(
            below("cpu", path).join("cpu.cfs_quota_us"),
            quota.to_string(),
        );
    }
    if let Some(memory) = bounds.memory {
        write(
            below("memory", path).join("memory.limit_in_bytes"),
            memory.to_string(),
        );
    }
}
