//! emptyDir: a directory that exists as long as its pod, on disk, in memory or in huge pages.

use std::{
    collections::{BTreeMap, BTreeSet},
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
use crate::{Error, MountOptions, Plugin, Request, Result, ownership};

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
        match medium {
            "" => make_dir(dir, 0o777)?,
            "Memory" => {
                make_dir(dir, 0o777)?;
                request.mounter.tmpfs(dir, memory_size(request, limit))?;
                // Sticky, as the kernel creates it: a user cannot remove the files of other users.
                make_dir(dir, 0o1777)?;
            }
            medium => {
                let size = format!("pagesize={}", page_size(request.pod, medium)?);
                let options = MountOptions::new(&[size], false);
                make_dir(dir, 0o777)?;
                let source = Path::new("nodev");
                request.mounter.mount(source, dir, "hugetlbfs", &options)?;
                make_dir(dir, 0o777)?;
            }
        }
        if let Some(group) = ownership::fs_group(request.pod) {
            ownership::give_to_group(dir, group, false)?;
        }
        Ok(dir.to_owned())
    }
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
    use crate::testing::set_up;

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
    fn a_volume_in_memory_is_sticky() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("v");
        let volume = serde_json::json!({"name": "v", "emptyDir": {"medium": "Memory"}});
        set_up(volume, Default::default(), Default::default(), &dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o7777, 0o1777);
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
