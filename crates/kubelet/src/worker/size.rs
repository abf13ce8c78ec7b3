//! The resources that the node has given a pod. They are those of its spec, except while the node has
//! no room for a changed size: then the pod, and every container of it that restarts, keeps the old
//! one.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};

use super::Worker;
use crate::{
    admit::NoRoom,
    make::resources::Bounds,
    pod::{
        memory::Task,
        observed::State,
        spec::{self, Role},
        status::Resize,
    },
};

/// How often a pod that waits for room tries again.
const RETRY: Duration = Duration::from_secs(10);

/// What a pod has.
pub(super) struct Size {
    /// The pod with the resources that it was given.
    pod: Arc<Pod>,
    /// Where a changed size stands.
    resize: Option<Resize>,
}

impl Size {
    /// Of a pod that a worker begins with. If it waited for room before, its status says what it has.
    pub(super) fn of(pod: &Arc<Pod>) -> Self {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let waits = conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "PodResizePending" && c.status == "True");
        let mut sized = pod.clone();
        if waits {
            let given = |name: &str| {
                let status = pod.status.as_ref()?;
                let init = status.init_container_statuses.iter().flatten();
                let mut all = status.container_statuses.iter().flatten().chain(init);
                all.find(|status| status.name == name)?.resources.clone()
            };
            replace(&mut sized, given);
        }
        Self {
            pod: sized,
            resize: None,
        }
    }

    pub(super) fn pod(&self) -> &Pod {
        &self.pod
    }

    pub(super) fn shared(&self) -> &Arc<Pod> {
        &self.pod
    }

    pub(super) fn resize(&self) -> Option<&Resize> {
        self.resize.as_ref()
    }

    /// Follows everything of the pod but its resources.
    fn follow(&mut self, pod: &Arc<Pod>) {
        let before = std::mem::replace(&mut self.pod, pod.clone());
        let given = |name: &str| spec::find(&before, name)?.1.resources.clone();
        replace(&mut self.pod, given);
    }
}

fn resources(spec: &PodSpec) -> impl Iterator<Item = (&str, Option<&ResourceRequirements>)> {
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .map(|container| (container.name.as_str(), container.resources.as_ref()))
}

/// Gives every container the resources that `given` has for its name.
fn replace(pod: &mut Arc<Pod>, given: impl Fn(&str) -> Option<ResourceRequirements>) {
    let Some(spec) = Arc::make_mut(pod).spec.as_mut() else {
        return;
    };
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        if let Some(resources) = given(&container.name) {
            container.resources = Some(resources);
        }
    }
}

impl Worker {
    /// Takes a changed size over if there is room for it; says when to try again.
    pub(super) fn settle_size(&mut self, now: Timestamp) -> Option<Timestamp> {
        let (pod, size) = (&self.subject.pod, &mut self.subject.size);
        if Arc::ptr_eq(pod, &size.pod) && size.resize.is_none() {
            return None;
        }
        if resources(spec::spec(pod)).eq(resources(spec::spec(&size.pod))) {
            size.pod = pod.clone();
            size.resize = None;
        } else if self.life.ending().is_some() {
            size.follow(pod);
        } else {
            let core = &self.core;
            let allocatable = core
                .machine
                .allocatable(core.config.max_pods, &core.config.kubelet);
            let pending = |reason, message: String| Some(Resize::Pending { reason, message });
            size.resize = match core.admitted.resize(pod, &allocatable) {
                Ok(()) => None,
                Err(NoRoom::Ever(short)) => pending("Infeasible", short.to_string()),
                Err(NoRoom::Now(short)) => pending("Deferred", short.to_string()),
            };
            match size.resize {
                None => size.pod = pod.clone(),
                Some(_) => size.follow(pod),
            }
        }
        if self.subject.size.resize.is_some() {
            return Some(now + RETRY);
        }
        if self.is_resizing() {
            self.subject.size.resize = Some(Resize::InProgress);
        }
        None
    }

    /// Whether a running container does not have its size yet.
    fn is_resizing(&self) -> bool {
        let pod = self.subject.size.pod();
        let differs = || {
            spec::containers(pod).any(|(role, container)| {
                let seen = self.runtime.observed.active(&container.name);
                matches!(role, Role::Main | Role::Sidecar)
                    && seen.is_some_and(|seen| {
                        let held = self.memory.sizes.get(&seen.id).copied().or(seen.bounds);
                        seen.state == State::Running
                            && held.is_some_and(|has| has != Bounds::wanted(pod, &container))
                    })
            })
        };
        self.memory.is_running(&Task::Resize) || differs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(cpu: &str, label: &str) -> Arc<Pod> {
        let json = serde_json::json!({"metadata": {"labels": {"l": label}}, "spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": cpu}}}]}});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn cpu(size: &Size) -> String {
        let resources = size.pod().spec.as_ref().unwrap().containers[0]
            .resources
            .clone();
        resources.unwrap().requests.unwrap()["cpu"].0.clone()
    }

    #[test]
    fn a_pod_that_waits_for_room_keeps_its_resources_and_follows_everything_else() {
        let mut size = Size::of(&pod("1", "old"));
        size.follow(&pod("2", "new"));
        assert_eq!(cpu(&size), "1");
        assert_eq!(size.pod().metadata.labels.as_ref().unwrap()["l"], "new");
    }

    #[test]
    fn after_a_restart_the_status_says_what_a_waiting_pod_has() {
        let mut waiting = pod("2", "x");
        Arc::make_mut(&mut waiting).status = serde_json::from_value(serde_json::json!({
            "conditions": [{"type": "PodResizePending", "status": "True"}],
            "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "resources": {"requests": {"cpu": "1"}}}]}))
        .unwrap();
        assert_eq!(cpu(&Size::of(&waiting)), "1");
        assert_eq!(cpu(&Size::of(&pod("2", "x"))), "2");
    }
}
