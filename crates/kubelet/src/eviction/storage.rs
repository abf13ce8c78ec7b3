//! Limits of a pod's local storage: emptyDirs, containers and the pod as a whole. A pod that
//! exceeds one is evicted, however much space the node has. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;
use reconcile::pod_resources::{Field, from_spec};

use crate::pod::spec;

/// A pod's usage of local storage, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalUsage {
    /// By volume.
    pub volumes: BTreeMap<String, i64>,
    /// Writable layer and logs, by container.
    pub containers: BTreeMap<String, i64>,
    /// Everything.
    pub total: i64,
}

const STORAGE: &str = "ephemeral-storage";

/// Whether the pod has a limit that [`exceeded`] checks.
pub fn has_limits(pod: &Pod) -> bool {
    let mut volumes = spec::spec(pod).volumes.iter().flatten();
    volumes.any(|volume| {
        let source = volume.empty_dir.as_ref();
        source.is_some_and(|source| source.size_limit.is_some())
    }) || spec::containers(pod).any(|(_, container)| limit(&container).is_some())
}

/// Why the pod must go, if it must.
pub fn exceeded(pod: &Pod, used: &LocalUsage) -> Option<String> {
    empty_dir(pod, used)
        .or_else(|| whole_pod(pod, used))
        .or_else(|| container(pod, used))
}

fn empty_dir(pod: &Pod, used: &LocalUsage) -> Option<String> {
    spec::spec(pod).volumes.iter().flatten().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let bytes = quantity::value(&limit.0).filter(|bytes| *bytes > 0)?;
        let exceeds = *used.volumes.get(&volume.name)? > bytes;
        exceeds.then(|| {
            format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.0
            )
        })
    })
}

fn limit(container: &Container) -> Option<&Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    limits.get(STORAGE)
}

/// Checks the pod's total limit. Containers without a limit add nothing, as upstream.
fn whole_pod(pod: &Pod, used: &LocalUsage) -> Option<String> {
    let total = *from_spec(Field::Limits, pod).total().get(STORAGE)?;
    (used.total > total.value()).then(|| {
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {total}. ")
    })
}

fn container(pod: &Pod, used: &LocalUsage) -> Option<String> {
    spec::spec(pod).containers.iter().find_map(|container| {
        let limit = limit(container)?;
        let bytes = quantity::value(&limit.0).filter(|bytes| *bytes > 0)?;
        let exceeds = *used.containers.get(&container.name)? > bytes;
        exceeds.then(|| {
            format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                container.name, limit.0
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: i64 = 1024 * 1024;

    fn pod() -> Pod {
        let container = |name: &str, limit: &str| json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}});
        serde_json::from_value(json!({"spec": {
            "containers": [container("a", "10Mi"), container("b", "20Mi")],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "5Mi"}}, {"name": "w", "emptyDir": {}}],
        }}))
        .unwrap()
    }

    fn used(volume: i64, a: i64, b: i64) -> LocalUsage {
        LocalUsage {
            volumes: [("v".to_owned(), volume), ("w".to_owned(), 0)].into(),
            containers: [("a".to_owned(), a), ("b".to_owned(), b)].into(),
            total: volume + a + b,
        }
    }

    #[test]
    fn each_storage_limit_is_enforced_with_upstreams_message() {
        let pod = pod();
        let reported = |volume, a, b| exceeded(&pod, &used(volume * MIB, a * MIB, b * MIB));
        assert_eq!(reported(5, 10, 15), None);
        assert_eq!(
            reported(6, 0, 0).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". "
        );
        assert_eq!(
            reported(5, 9, 19).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. "
        );
        assert_eq!(
            reported(0, 11, 0).unwrap(),
            "Container a exceeded its local ephemeral storage limit \"10Mi\". "
        );
    }

    #[test]
    fn a_pod_without_limits_exceeds_no_storage_limit() {
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}]}})).unwrap();
        assert_eq!(exceeded(&pod, &used(0, 1 << 40, 0)), None);
        assert!(!has_limits(&pod));
    }

    #[test]
    fn a_pod_with_a_limit_of_any_kind_is_looked_at() {
        let limit = json!({"limits": {"ephemeral-storage": "1Mi"}});
        for spec in [
            json!({"containers": [{"name": "a", "resources": limit}]}),
            json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i", "resources": limit}]}),
            json!({"containers": [{"name": "a"}],
                   "volumes": [{"name": "w", "emptyDir": {}}, {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]}),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert!(has_limits(&pod), "{pod:?}");
        }
    }
}
