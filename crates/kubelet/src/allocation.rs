//! The resources that are allocated to a pod, kept in a file in its directory: a resize that was
//! requested while the kubelet did not run, or that is deferred, is not in effect after a restart.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::pod::spec;

const FILE: &str = "allocated_resources";

/// Allocated resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Allocation {
    /// The pod-level resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<ResourceRequirements>,
    /// By container name.
    containers: BTreeMap<String, ResourceRequirements>,
    /// Whether the pod-level resources are unknown. If they are known, none means none.
    #[serde(skip)]
    is_partial: bool,
}

impl Allocation {
    /// The resources of the pod's spec.
    pub(crate) fn from_pod(pod: &Pod) -> Self {
        let spec = spec::spec(pod);
        let init = spec.init_containers.iter().flatten();
        let containers = init.chain(&spec.containers).filter_map(|container| {
            let resources = container.resources.clone()?;
            Some((container.name.clone(), resources))
        });
        Self {
            pod: spec.resources.clone(),
            containers: containers.collect(),
            is_partial: false,
        }
    }

    /// The resources of the pod's status.
    pub(crate) fn shown(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let init = status.init_container_statuses.into_iter().flatten();
        let containers = init.chain(status.container_statuses.into_iter().flatten());
        let containers = containers.filter_map(|status| Some((status.name, status.resources?)));
        Self {
            pod: None,
            containers: containers.collect(),
            is_partial: true,
        }
    }

    /// Puts these resources into the pod's spec; containers that are not in here keep theirs.
    pub(crate) fn apply(&self, pod: &mut Arc<Pod>) {
        if self.holds_for(spec::spec(pod)) {
            return;
        }
        let Some(spec) = Arc::make_mut(pod).spec.as_mut() else {
            return;
        };
        if !self.is_partial {
            spec.resources.clone_from(&self.pod);
        }
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            if let Some(resources) = self.containers.get(&container.name) {
                container.resources = Some(resources.clone());
            }
        }
    }

    fn holds_for(&self, spec: &PodSpec) -> bool {
        let init = spec.init_containers.iter().flatten();
        let mut containers = init.chain(&spec.containers);
        (self.is_partial || self.pod == spec.resources)
            && containers.all(|container| {
                let given = self.containers.get(&container.name);
                given.is_none() || given == container.resources.as_ref()
            })
    }

    /// Reads the allocation of a pod that an earlier kubelet admitted.
    pub(crate) fn read(pod_dir: &Path) -> Option<Self> {
        let text = std::fs::read(pod_dir.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes the file. A pod without requests and limits cannot be resized and needs none.
    pub(crate) fn write(&self, pod_dir: &Path) {
        let empty =
            |resources: &ResourceRequirements| *resources == ResourceRequirements::default();
        if self.pod.is_none() && self.containers.values().all(empty) {
            return;
        }
        let (file, fresh) = (pod_dir.join(FILE), pod_dir.join(".allocated_resources"));
        let write = || {
            std::fs::create_dir_all(pod_dir)?;
            std::fs::write(&fresh, serde_json::to_vec(self)?)?;
            std::fs::rename(&fresh, &file)
        };
        if let Err(error) = write() {
            warn!(file = %file.display(), %error, "cannot save a pod's allocated resources");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(own: &str, cpu: &str) -> Arc<Pod> {
        let json = serde_json::json!({"spec": {"resources": {"requests": {"cpu": own}}, "containers": [
            {"name": "a", "resources": {"requests": {"cpu": cpu}}}, {"name": "b"}]}});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn allocated_resources_are_saved_and_restored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Allocation::read(dir.path()), None);
        let given = Allocation::from_pod(&pod("2", "1"));
        given.write(dir.path());
        let kept = Allocation::read(dir.path()).unwrap();
        assert_eq!(kept, given);
        let mut asked = pod("4", "3");
        kept.apply(&mut asked);
        assert_eq!(asked, pod("2", "1"));
        let same = asked.clone();
        kept.apply(&mut asked);
        assert!(Arc::ptr_eq(&asked, &same));
    }

    #[test]
    fn pod_level_resources_that_are_not_allocated_have_no_effect() {
        let dir = tempfile::tempdir().unwrap();
        let without = |mut pod: Arc<Pod>| {
            let spec = Arc::make_mut(&mut pod).spec.as_mut();
            spec.unwrap().resources = None;
            pod
        };
        let admitted = without(pod("2", "1"));
        Allocation::from_pod(&admitted).write(dir.path());
        let mut asked = pod("2", "1");
        Allocation::read(dir.path()).unwrap().apply(&mut asked);
        assert_eq!(asked, admitted);
        // The status does not tell them apart from the sum of the containers.
        let mut asked = pod("2", "1");
        Allocation::shown(&asked).apply(&mut asked);
        assert_eq!(asked, pod("2", "1"));
    }

    #[test]
    fn a_pod_that_requests_nothing_has_no_file_and_a_broken_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let plain = serde_json::json!({"spec": {"containers": [{"name": "a", "resources": {}}]}});
        Allocation::from_pod(&serde_json::from_value(plain).unwrap()).write(dir.path());
        assert!(!dir.path().join(FILE).exists());
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(Allocation::read(dir.path()), None);
    }
}
