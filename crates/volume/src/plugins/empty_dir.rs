//! emptyDir: a directory that exists as long as its pod, on disk, in memory or in huge pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::core::v1::{Pod, ResourceRequirements, Volume},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::{
    pod_resources::{Field, PodResources},
    quantity,
};

use super::make_dir;
use crate::{Error, MountOptions, Plugin, Request, Result, ownership, remove_tree};

const HUGE_PAGES: &str = "HugePages";

pub(super) struct EmptyDir;

impl Plugin for EmptyDir {
    fn name(&self) -> &'static str {
        "kubernetes.io/empty-dir"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let source = request.volume.empty_dir.as_ref();
        let medium = source
            .and_then(|source| source.medium.as_deref())
            .unwrap_or_default();
        let dir = request.dir;
        // The files of a running pod are kept.
        if dir.exists() && (medium.is_empty() || request.mounter.is_mounted(dir)?) {
            return Ok(dir.to_owned());
        }
        let limit = source
            .and_then(|s| s.size_limit.as_ref())
            .and_then(|limit| quantity::value(&limit.0));
        let group = ownership::fs_group(request.pod);
        let gid = group.map(|group| format!("gid={group}"));
        let mut options: Vec<String> = gid.into_iter().collect();
        match medium {
            "" => make(dir, group)?,
            "Memory" => {
                // Sticky: a user cannot remove the files of other users. New files get the group.
                let mode = if group.is_some() { "3777" } else { "1777" };
                options.push(format!("mode={mode}"));
                let size = memory_size(request, limit);
                options.extend(size.map(|size| format!("size={size}")));
                mount(request, "tmpfs", &options)?;
            }
            medium => {
                options.push("mode=777".to_owned());
                options.push(format!("pagesize={}", page_size(request.pod, medium)?));
                mount(request, "hugetlbfs", &options)?;
                // Its mode has no bit for that.
                if let Some(group) = group {
                    ownership::give_to_group(dir, group, false)?;
                }
            }
        }
        Ok(dir.to_owned())
    }
}

/// Makes a directory with its permissions at once: one that exists is complete, also if the last
/// attempt was interrupted.
fn make(dir: &Path, group: Option<u32>) -> Result<()> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    // No volume has such a name.
    let fresh = dir.with_file_name(format!(".{name}.new"));
    remove_tree(&fresh)?;
    make_dir(&fresh, 0o777)?;
    if let Some(group) = group {
        ownership::give_to_group(&fresh, group, false)?;
    }
    fs::rename(&fresh, dir).map_err(Error::io("create", dir))
}

/// Mounts a file system that has its permissions from the beginning, also if this is interrupted.
fn mount(request: &Request, kind: &str, options: &[String]) -> Result<()> {
    make_dir(request.dir, 0o777)?;
    let options = MountOptions::new(options, false);
    let source = Path::new("nodev");
    request.mounter.mount(source, request.dir, kind, &options)
}

/// A memory-backed volume is limited to the pod's memory limit, and that to the node's allocatable
/// memory.
fn memory_size(request: &Request, limit: Option<i64>) -> Option<u64> {
    let of_node = request.node.allocatable.get("memory");
    let bounds = [
        of_node.and_then(|memory| quantity::value(&memory.0)),
        pod_memory(request.pod),
        limit,
    ];
    let least = bounds
        .into_iter()
        .flatten()
        .filter(|bound| *bound > 0)
        .min();
    least.and_then(|bound| u64::try_from(bound).ok())
}

/// The pod's memory limit, if it holds for all containers.
fn pod_memory(pod: &Pod) -> Option<i64> {
    let spec = machinery::json::to_value_or_null(&pod.spec);
    let limits = PodResources::from_json(Field::Limits, &spec, None);
    let total = limits.total().get("memory").copied();
    total
        .filter(|_| limits.all_have("memory"))
        .map(quantity::Quantity::value)
}

/// The huge page size that the pod requests, in bytes; the medium may select one of several.
fn page_size(pod: &Pod, medium: &str) -> Result<i64> {
    let spec = pod.spec.clone().unwrap_or_default();
    let init = spec.init_containers.into_iter().flatten();
    let containers = init.chain(spec.containers);
    let lists = containers
        .map(|container| container.resources)
        .chain([spec.resources])
        .flatten();
    let requests = |resources: ResourceRequirements| -> BTreeMap<String, Quantity> {
        resources.requests.unwrap_or_default()
    };
    let sizes: BTreeSet<i64> = lists
        .flat_map(requests)
        .filter_map(|(name, _)| quantity::value(name.strip_prefix("hugepages-")?))
        .collect();
    let wanted = medium
        .strip_prefix(HUGE_PAGES)
        .and_then(|rest| rest.strip_prefix('-'));
    let mut fitting = sizes
        .into_iter()
        .filter(|size| wanted.is_none_or(|wanted| quantity::value(wanted) == Some(*size)));
    match (fitting.next(), fitting.next()) {
        (Some(size), None) => Ok(size),
        (None, _) => Err(Error::HugePages(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        ))),
        (Some(_), Some(_)) => Err(Error::HugePages(format!(
            "medium: {medium} can't be used if container requests multiple huge page sizes"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinuxMounter, testing::set_up};

    #[test]
    fn huge_pages_have_the_size_that_the_pod_requests() {
        let pod = |names: &[&str]| -> Pod {
            let requests: BTreeMap<&str, &str> = names.iter().map(|name| (*name, "4Mi")).collect();
            serde_json::from_value(serde_json::json!({"spec": {"containers": [
                {"name": "a", "resources": {"requests": requests}}]}}))
            .unwrap()
        };
        let (two, both) = (
            pod(&["hugepages-2Mi", "cpu"]),
            pod(&["hugepages-2Mi", "hugepages-1Gi"]),
        );
        let reported = |pod: &Pod, medium: &str| page_size(pod, medium).map_err(|e| e.to_string());
        assert_eq!(reported(&two, "HugePages"), Ok(2 << 20));
        assert_eq!(reported(&both, "HugePages-1Gi"), Ok(1 << 30));
        assert!(
            reported(&both, "HugePages")
                .unwrap_err()
                .contains("multiple")
        );
        assert!(
            reported(&two, "HugePages-1Gi")
                .unwrap_err()
                .contains("no resource request")
        );
    }

    #[test]
    fn a_volume_in_memory_is_as_large_as_its_pod_may_be() {
        let limited = |limit: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"spec": {
                "initContainers": [{"name": "i", "resources": {"limits": {"memory": "3Mi"}}}],
                "containers": [{"name": "a", "resources": {"limits": {"memory": "1Mi"}}},
                    {"name": "b", "resources": {"limits": limit}}]}}))
            .unwrap()
        };
        assert_eq!(
            pod_memory(&limited(serde_json::json!({"memory": "1Mi"}))),
            Some(3 << 20)
        );
        assert_eq!(
            pod_memory(&limited(serde_json::json!({"memory": "4Mi"}))),
            Some(5 << 20)
        );
        assert_eq!(pod_memory(&limited(serde_json::json!({}))), None);
    }

    #[test]
    fn a_volume_in_memory_is_sticky_limited_and_of_the_pods_group() {
        use rustix::{mount::MountPropagationFlags, thread::UnshareFlags};
        use std::os::unix::fs::MetadataExt;
        // The mounts exist only for this thread.
        // SAFETY: only this thread's view of mounts and its working directory change.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        rustix::mount::mount_change("/", private).unwrap();
        let root = tempfile::tempdir().unwrap();
        for (context, mode, group) in [
            (serde_json::json!({}), 0o1777, 0),
            (serde_json::json!({"fsGroup": 77}), 0o3777, 77),
        ] {
            let dir = root.path().join(group.to_string());
            let volume = serde_json::json!({"name": "v",
                "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
            let pod = serde_json::json!({"spec": {"containers": [], "securityContext": context}});
            let request = Request {
                pod: &serde_json::from_value(pod).unwrap(),
                volume: &serde_json::from_value(volume).unwrap(),
                dir: &dir,
                objects: &Default::default(),
                node: &Default::default(),
                mounter: &LinuxMounter,
            };
            EmptyDir.set_up(&request).unwrap();
            let found = std::fs::metadata(&dir).unwrap();
            assert_eq!((found.mode() & 0o7777, found.gid()), (mode, group));
            let size = rustix::fs::statvfs(&dir).unwrap();
            assert_eq!(size.f_blocks * size.f_frsize, 1 << 20);
            // The files of a running pod are kept.
            std::fs::write(dir.join("f"), "x").unwrap();
            EmptyDir.set_up(&request).unwrap();
            assert!(dir.join("f").exists());
            EmptyDir.tear_down(&dir, &LinuxMounter).unwrap();
            assert!(!dir.exists());
        }
    }

    #[test]
    fn what_an_interrupted_attempt_left_is_not_taken_for_the_volume() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let root = tempfile::tempdir().unwrap();
        let fresh = root.path().join(".v.new");
        std::fs::create_dir(&fresh).unwrap();
        std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o700)).unwrap();
        let group = rustix::process::getgid().as_raw();
        make(&root.path().join("v"), Some(group)).unwrap();
        let made = std::fs::metadata(root.path().join("v")).unwrap();
        assert_eq!((made.mode() & 0o7777, made.gid()), (0o2777, group));
        assert!(!fresh.exists());
    }

    #[test]
    fn content_survives_a_second_set_up_and_the_directory_is_world_writable() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("v");
        let volume = serde_json::json!({"name": "v", "emptyDir": {}});
        set_up(volume.clone(), Default::default(), Default::default(), &dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o7777, 0o777);
        std::fs::write(dir.join("f"), "x").unwrap();
        set_up(volume, Default::default(), Default::default(), &dir).unwrap();
        assert!(dir.join("f").exists());
    }
}
