//! The cgroups above the containers: one per QoS class and one per pod, with the pod's limits, on
//! cgroup v1 and v2. Without a cgroup root the kubelet makes none and the runtime chooses. With the driver
//! systemd, units are made first and get the limits, too.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use libcgroups::systemd::{Limits, Manager};
use tokio::{runtime::RuntimeFlavor, sync::watch};
use tracing::{debug, warn};

use crate::{
    Error, Result,
    core::Core,
    make::{
        cgroups::{CgroupRoot, Driver},
        resources::{self, PodBounds},
    },
    pod::spec::QosClass,
};

const MOUNT: &str = "/sys/fs/cgroup";
const V1: &[&str] = &[
    "cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "devices", "freezer", HUGE_PAGES,
];
const V2: &[&str] = &["cpu", "memory", "pids", "cpuset", "io", HUGE_PAGES];
/// The hugetlb controller; not every kernel has it.
const HUGE_PAGES: &str = "hugetlb";
const UNLIMITED: i64 = 1 << 62;
/// The cpu shares of a cgroup without requests.
const LEAST_SHARES: i64 = 2;

const CLASSES: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

/// Whether the machine has the unified hierarchy (cgroup v2).
pub(crate) fn is_v2() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// The directory of a cgroup; cgroup v2 has one tree for all controllers.
pub(crate) fn below(controller: &str, path: &str) -> PathBuf {
    Path::new(MOUNT)
        .join(controller)
        .join(path.trim_start_matches('/'))
}

/// Whether the kernel accounts swap per cgroup. The root of v2 has no limits.
pub(crate) fn account_swap(root: &CgroupRoot) -> bool {
    let file = match is_v2() {
        true => below("", &root.kubepods()).join("memory.swap.max"),
        false => below("memory", "").join("memory.memsw.limit_in_bytes"),
    };
    file.exists()
}

/// Makes the cgroups of the QoS classes. They do not limit huge pages; pods do.
pub(crate) fn ensure_classes(root: &CgroupRoot, page_sizes: &[i64]) -> Result<()> {
    if root.is_empty() {
        return Ok(());
    }
    let unlimited = |size: &i64| (resources::page_name(*size), UNLIMITED);
    for class in CLASSES {
        let path = root.class(class);
        make(root, &path)?;
        let bounds = PodBounds {
            cpu_shares: (class == QosClass::BestEffort).then_some(LEAST_SHARES),
            huge_pages: page_sizes.iter().map(unlimited).collect(),
            ..PodBounds::default()
        };
        warn_of(apply(root, &path, &bounds, None));
    }
    Ok(())
}

/// Sets limits and, if given, the maximum number of processes and threads on an existing cgroup.
/// Fails with the first value that the kernel rejects.
pub(crate) fn enforce(
    root: &CgroupRoot,
    path: &str,
    bounds: &PodBounds,
    max_pids: Option<i64>,
) -> Result<()> {
    let dir = if is_v2() {
        below("", path)
    } else {
        below("cpu", path)
    };
    if !dir.exists() {
        return Err(Error::Other(format!("the cgroup {path:?} does not exist")));
    }
    apply(root, path, bounds, Some(max_pids))?;
    limit_pids(path, max_pids)
}

/// Limits the processes and threads below a cgroup, or lifts the limit.
fn limit_pids(path: &str, max: Option<i64>) -> Result<()> {
    let dir = if is_v2() {
        below("", path)
    } else {
        below("pids", path)
    };
    if !dir.exists() {
        return Ok(());
    }
    let value = max.map_or_else(|| "max".to_owned(), |max| max.to_string());
    set(&[(dir.join("pids.max"), value)])
}

/// Sets the cpu weight of the burstable class to the sum of its requests, whenever it changes.
/// Never returns.
pub(crate) async fn follow_weight(core: Arc<Core>, mut requests: watch::Receiver<i64>) {
    if core.config.cgroup_root.is_empty() {
        return;
    }
    loop {
        let bounds = PodBounds {
            cpu_shares: Some(resources::shares(*requests.borrow_and_update())),
            ..PodBounds::default()
        };
        let root = core.cgroup_root();
        let path = root.class(QosClass::Burstable);
        warn_of(apply(&root, &path, &bounds, None));
        if requests.changed().await.is_err() {
            return;
        }
    }
}

/// Makes a pod's cgroup and sets its limits. A limit that the kernel rejects is an error: the pod
/// would run without it.
pub(crate) fn ensure_pod(core: &Core, pod: &Pod) -> Result<()> {
    let root = core.cgroup_root();
    if root.is_empty() {
        return Ok(());
    }
    let path = root.pod(pod);
    // Without a limit per pod only the node's holds.
    let pids = Some(core.settings().pod_pids_limit).filter(|limit| *limit > 0);
    make(&root, &path)
        .and_then(|()| apply(&root, &path, &bounds(core, pod), Some(pids)))
        .and_then(|()| limit_pids(&path, pids))
        .map_err(|error| Error::PodCgroup(error.to_string()))
}

fn bounds(core: &Core, pod: &Pod) -> PodBounds {
    resources::of_pod(pod, core.settings().cfs_quota(), core.machine.page_sizes())
}

/// A pod's memory: the limit from its spec, the current limit of its cgroup, and the usage. Zero means no limit.
pub(crate) fn memory(core: &Core, pod: &Pod) -> Option<(i64, i64, Option<u64>)> {
    let root = core.cgroup_root();
    if root.is_empty() {
        return None;
    }
    let usage = libcgroups::Cgroup::new(root.pod(pod)).usage();
    let held = usage
        .memory_limit
        .and_then(|limit| i64::try_from(limit).ok());
    let wanted = bounds(core, pod).memory.unwrap_or(0);
    Some((wanted, held.unwrap_or(0), usage.memory))
}

/// Raises a pod's bounds to what its spec allows now, and lowers none.
pub(crate) fn grow_pod(core: &Core, pod: &Pod) -> Result<()> {
    let root = core.cgroup_root();
    if root.is_empty() {
        return Ok(());
    }
    let path = root.pod(pod);
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
    let wanted = bounds(core, pod);
    let larger = |wanted: Option<i64>, current: Option<i64>| {
        wanted.filter(|wanted| current.is_some_and(|current| current >= 0 && current < *wanted))
    };
    let grown = PodBounds {
        cpu_quota: larger(wanted.cpu_quota, quota),
        memory: larger(wanted.memory, memory),
        ..wanted
    };
    apply(&root, &path, &grown, None)
}

/// Removes a pod's cgroup once its containers are gone. The QoS class of a pod that only the
/// runtime knew is unknown, so that every class is tried.
pub(crate) fn remove_pod(root: &CgroupRoot, uid: &str) {
    if root.is_empty() {
        return;
    }
    for class in CLASSES {
        remove(root, &root.pod_of_class(class, uid));
    }
}

/// Removes a cgroup and those below it. One that still has a process stays.
pub(crate) fn remove(root: &CgroupRoot, path: &str) {
    if let Some(unit) = unit(root, path)
        && below("", path).exists()
        && let Err(error) = systemd(|manager| manager.stop(unit))
    {
        warn!(unit, %error, "cannot stop slice");
    }
    if let Err(error) = libcgroups::Cgroup::new(path).remove() {
        debug!(path, %error, "cannot remove cgroup");
    }
}

/// The pod cgroups that exist: uid and path.
pub(crate) fn pods(root: &CgroupRoot) -> Vec<(String, String)> {
    if root.is_empty() {
        return Vec::new();
    }
    let mut found = BTreeSet::new();
    let controllers: &[&str] = if is_v2() { &[""] } else { V1 };
    for (class, path) in CLASSES.map(|class| (class, root.class(class))) {
        for controller in controllers {
            let Ok(entries) = fs::read_dir(below(controller, &path)) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if let Some(uid) = root.uid(class, &name) {
                    found.insert((uid, format!("{path}/{name}")));
                }
            }
        }
    }
    found.into_iter().collect()
}

fn make(root: &CgroupRoot, path: &str) -> Result<()> {
    if root.driver == Driver::Systemd && !below("", path).exists() {
        systemd(|manager| manager.ensure_slice(path))?;
    }
    if !is_v2() {
        for controller in mounted(Path::new(MOUNT)) {
            make_v1(controller, path)?;
        }
        return Ok(());
    }
    let mut dir = PathBuf::from(MOUNT);
    for part in path.split('/').filter(|part| !part.is_empty()) {
        // A controller must be enabled at every level above the cgroup that uses it.
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

/// The mounted controllers of cgroup v1. The directory of one that cannot be mounted may exist, as
/// with systemd in a container.
fn mounted(mount: &Path) -> impl Iterator<Item = &'static str> {
    let is_mounted = |controller: &&str| mount.join(controller).join("cgroup.procs").exists();
    V1.iter().copied().filter(is_mounted)
}

fn make_v1(controller: &str, path: &str) -> Result<()> {
    let dir = below(controller, path);
    let (above, _) = path
        .trim_end_matches('/')
        .rsplit_once('/')
        .unwrap_or_default();
    match make_dir(&dir) {
        // Usually everything above exists.
        Err(_) if !above.is_empty() && !below(controller, above).exists() => {
            make_v1(controller, above)?;
            make_dir(&dir)?;
        }
        made => made?,
    }
    if controller == "cpuset" {
        // A new cpuset is empty and accepts no process until it is filled.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = fs::read_to_string(dir.join(file)).unwrap_or_default();
            if own.trim().is_empty() {
                let inherited = below(controller, above).join(file);
                let inherited = fs::read_to_string(inherited).unwrap_or_default();
                let _ = fs::write(dir.join(file), inherited.trim());
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

/// Sets limits. Without `pids` their number is not changed; the files have it separately.
fn apply(
    root: &CgroupRoot,
    path: &str,
    bounds: &PodBounds,
    pids: Option<Option<i64>>,
) -> Result<()> {
    if let Some(unit) = unit(root, path) {
        let limits = Limits {
            cpu_weight: bounds.cpu_shares.map(weight),
            cpu_quota: bounds
                .cpu_quota
                .map(|quota| (quota, bounds.cpu_period.unsigned_abs())),
            memory: bounds.memory,
            swap: None,
            pids: pids.map(|pids| pids.unwrap_or(-1)),
        };
        systemd(|manager| manager.limit(unit, &limits))?;
    }
    set(&writes(path, bounds))
}

/// The slice at this path, if systemd makes cgroups.
fn unit<'a>(root: &CgroupRoot, path: &'a str) -> Option<&'a str> {
    let name = path.rsplit('/').next()?;
    (root.driver == Driver::Systemd && name.ends_with(".slice")).then_some(name)
}

/// Asks systemd, which may take a while: other tasks go on in other threads.
fn systemd(work: impl FnOnce(&mut Manager) -> std::io::Result<()>) -> Result<()> {
    let ask = || Manager::connect().and_then(|mut manager| work(&mut manager));
    let runtime = tokio::runtime::Handle::try_current();
    let outcome = match runtime.map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(ask),
        _ => ask(),
    };
    outcome.map_err(|error| Error::Other(error.to_string()))
}

/// The weight of cgroup v2 for the shares of v1.
fn weight(shares: i64) -> u64 {
    let weight = 1 + ((shares - LEAST_SHARES) * 9999) / 262_142;
    u64::try_from(weight).unwrap_or(1)
}

/// Writes every file, even after a write that the kernel rejected; fails with the first such error.
fn set(writes: &[(PathBuf, String)]) -> Result<()> {
    let mut outcome = Ok(());
    for (file, value) in writes {
        let refused = |error| {
            Error::Other(format!(
                "cannot write {value:?} to {}: {error}",
                file.display()
            ))
        };
        let written = fs::write(file, value).map_err(refused);
        outcome = outcome.and(written);
    }
    outcome
}

/// Pods start even if the weights and limits of the QoS classes cannot be set.
fn warn_of(outcome: Result<()>) {
    if let Err(error) = outcome {
        warn!(%error, "cannot set the cgroup limits of a QoS class");
    }
}

/// The files of a cgroup and their values, without controllers that the machine lacks.
fn writes(path: &str, bounds: &PodBounds) -> Vec<(PathBuf, String)> {
    let writes = if is_v2() {
        writes_v2(bounds)
    } else {
        writes_v1(bounds)
    };
    let files = writes.into_iter().map(|write| {
        let dir = below(if is_v2() { "" } else { write.controller }, path);
        (write.controller, dir.join(write.file), write.value)
    });
    files
        .filter(|(controller, file, _)| *controller != HUGE_PAGES || file.exists())
        .map(|(_, file, value)| (file, value))
        .collect()
}

/// One file of one controller.
#[derive(Debug, PartialEq)]
struct Write {
    controller: &'static str,
    file: String,
    value: String,
}

fn write(controller: &'static str, file: &str, value: impl ToString) -> Write {
    Write {
        controller,
        file: file.to_owned(),
        value: value.to_string(),
    }
}

fn writes_v1(bounds: &PodBounds) -> Vec<Write> {
    let mut all = Vec::new();
    if let Some(shares) = bounds.cpu_shares {
        all.push(write("cpu", "cpu.shares", shares));
    }
    if let Some(quota) = bounds.cpu_quota {
        all.push(write("cpu", "cpu.cfs_period_us", bounds.cpu_period));
        all.push(write("cpu", "cpu.cfs_quota_us", quota));
    }
    if let Some(memory) = bounds.memory {
        all.push(write("memory", "memory.limit_in_bytes", memory));
    }
    for (size, limit) in &bounds.huge_pages {
        let file = format!("hugetlb.{size}.limit_in_bytes");
        all.push(write(HUGE_PAGES, &file, limit));
    }
    all
}

fn writes_v2(bounds: &PodBounds) -> Vec<Write> {
    let mut all = Vec::new();
    if let Some(shares) = bounds.cpu_shares {
        all.push(write("cpu", "cpu.weight", weight(shares)));
    }
    if let Some(quota) = bounds.cpu_quota {
        let quota = Some(quota).filter(|quota| *quota > 0);
        let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
        let value = format!("{quota} {}", bounds.cpu_period);
        all.push(write("cpu", "cpu.max", value));
    }
    if let Some(memory) = bounds.memory {
        all.push(write("memory", "memory.max", memory));
    }
    for (size, limit) in &bounds.huge_pages {
        all.push(write(HUGE_PAGES, &format!("hugetlb.{size}.max"), limit));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_cannot_be_written_is_an_error_with_its_file_and_the_others_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let refused = file("missing/memory.max");
        let writes = [
            (file("cpu.max"), "max 100000".to_owned()),
            (refused.clone(), "1048576".to_owned()),
            (file("pids.max"), "7".to_owned()),
        ];
        let reported = set(&writes).unwrap_err().to_string();
        let expected = format!("cannot write \"1048576\" to {}: ", refused.display());
        assert!(reported.starts_with(&expected), "{reported}");
        assert_eq!(fs::read_to_string(file("pids.max")).unwrap(), "7");
        assert!(set(&writes[..1]).is_ok());
    }

    #[test]
    fn a_directory_without_a_mounted_controller_is_no_hierarchy() {
        let mount = tempfile::tempdir().unwrap();
        for controller in ["cpu", "memory", HUGE_PAGES] {
            fs::create_dir(mount.path().join(controller)).unwrap();
        }
        for controller in ["cpu", "memory"] {
            fs::write(mount.path().join(controller).join("cgroup.procs"), "").unwrap();
        }
        let found: Vec<_> = mounted(mount.path()).collect();
        assert_eq!(found, ["cpu", "memory"]);
    }

    #[test]
    fn bounds_have_their_files_in_both_versions() {
        let bounds = PodBounds {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: 100_000,
            memory: Some(1 << 20),
            huge_pages: [("2MB".to_owned(), 4 << 20)].into(),
        };
        let shown = |writes: Vec<Write>| -> Vec<String> {
            let shown = writes.iter();
            shown.map(|w| format!("{} {}", w.file, w.value)).collect()
        };
        assert_eq!(
            shown(writes_v1(&bounds)),
            [
                "cpu.shares 1024",
                "cpu.cfs_period_us 100000",
                "cpu.cfs_quota_us 50000",
                "memory.limit_in_bytes 1048576",
                "hugetlb.2MB.limit_in_bytes 4194304"
            ]
        );
        assert_eq!(
            shown(writes_v2(&bounds)),
            [
                "cpu.weight 39",
                "cpu.max 50000 100000",
                "memory.max 1048576",
                "hugetlb.2MB.max 4194304"
            ]
        );
        let lifted = PodBounds {
            cpu_quota: Some(-1),
            cpu_period: 100_000,
            ..PodBounds::default()
        };
        assert_eq!(shown(writes_v2(&lifted)), ["cpu.max max 100000"]);
        assert!(writes_v1(&PodBounds::default()).is_empty());
    }
}
