//! The resources that are allocated to a pod: those of its spec, except while a resize is deferred
//! or infeasible. Then the pod, and every container of it that restarts, keeps the old ones.

use std::{borrow::Cow, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition};

use super::{
    Worker, resize_events,
    shrink::{self, ContainerLimit},
};
use crate::{
    admit::{NoRoom, Shortage},
    allocation::Allocation,
    make::resources::Bounds,
    pod::{
        memory::{Replaced, Task},
        observed::{Container as Seen, State},
        spec::{self, Role},
        status::Resize,
    },
};

/// How often a deferred resize is retried.
const RETRY: Duration = Duration::from_secs(10);

/// The allocated size of a pod.
pub(super) struct Size {
    /// The pod with its allocated resources.
    pod: Arc<Pod>,
    /// The state of a pending resize.
    resize: Option<Resize>,
    /// The reason and the generation of the last event about a pending resize.
    announced: Option<(String, Option<i64>)>,
}

impl Size {
    /// The size of a pod at the start of its worker.
    pub(super) fn from_pod(pod: &Arc<Pod>, pod_dir: &Path) -> Self {
        Self {
            pod: allocated(pod, pod_dir),
            resize: None,
            announced: announced(pod),
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

    /// Takes over everything of a changed pod but its resources.
    fn follow(&mut self, pod: &Arc<Pod>) {
        let given = Allocation::from_pod(&self.pod);
        self.pod = pod.clone();
        given.apply(&mut self.pod);
    }
}

/// The pod with the resources that an earlier kubelet allocated. Without a file, the status of a
/// pod with a pending resize has them.
pub(crate) fn allocated(pod: &Arc<Pod>, pod_dir: &Path) -> Arc<Pod> {
    let mut sized = pod.clone();
    match Allocation::read(pod_dir) {
        Some(given) => given.apply(&mut sized),
        None if has_condition(pod, "PodResizePending") => Allocation::shown(pod).apply(&mut sized),
        None => {}
    }
    sized
}

/// Whether the API shows this condition.
pub(super) fn has_condition(pod: &Pod, type_: &str) -> bool {
    condition(pod, type_).is_some()
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// What an earlier kubelet announced about a pending resize.
fn announced(pod: &Pod) -> Option<(String, Option<i64>)> {
    let pending = condition(pod, "PodResizePending")?;
    Some((pending.reason.clone()?, pending.observed_generation))
}

impl Worker {
    /// Allocates the resources of the spec if the node has them; returns when to retry.
    pub(super) fn settle_size(&mut self, now: Timestamp) -> Option<Timestamp> {
        let (pod, size) = (&self.subject.pod, &mut self.subject.size);
        if Arc::ptr_eq(pod, &size.pod) && size.resize.is_none() {
            return None;
        }
        let was_in_progress = matches!(size.resize, Some(Resize::InProgress { .. }));
        if Allocation::from_pod(pod) == Allocation::from_pod(&size.pod) {
            size.pod = pod.clone();
            size.resize = None;
            self.core.admitted.follow(pod);
        } else if self.life.ending().is_some() {
            self.core.admitted.keep_size(&self.subject.uid);
            size.follow(pod);
        } else {
            self.ask_for_size(now);
        }
        if self.subject.size.resize.is_some() {
            return Some(now + RETRY);
        }
        if self.is_resizing(now) {
            let failure = self.memory.resize_failure.as_ref();
            let error = failure.map(|failure| failure.message.clone());
            self.subject.size.resize = Some(Resize::InProgress { error });
        } else if was_in_progress && self.life.ending().is_none() {
            resize_events::completed(&self.core.events, &self.subject.pod);
        }
        None
    }

    /// Asks for the resources of the spec, and takes over those that are allocated.
    fn ask_for_size(&mut self, now: Timestamp) {
        let core = &self.core;
        let (pod, size) = (&self.subject.pod, &mut self.subject.size);
        let answer = core.admitted.resize(pod, &core.allocatable(), now);
        core.wake(answer.granted);
        // Others' requests may have led to a grant of an earlier wish.
        let given = Allocation::from_pod(&answer.counted);
        if given != Allocation::from_pod(&size.pod) {
            given.write(&core.pod_dir(&self.subject.uid));
            self.memory.pod_grows = true;
            self.memory.was_resized = true;
            self.memory.resize_failure = None;
            resize_events::started(&core.events, pod);
        }
        size.pod = pod.clone();
        given.apply(&mut size.pod);
        let pending = |reason, short: Shortage| Resize::Pending {
            reason,
            message: short.to_string(),
        };
        size.resize = answer.missing.map(|missing| match missing {
            NoRoom::Ever(short) => pending("Infeasible", short),
            NoRoom::Now(short) => pending("Deferred", short),
        });
        self.announce_pending();
    }

    /// Records one event for each reason and generation.
    fn announce_pending(&mut self) {
        let (pod, size) = (&self.subject.pod, &mut self.subject.size);
        let pending = match &size.resize {
            Some(Resize::Pending { reason, .. }) => {
                Some(((*reason).to_owned(), pod.metadata.generation))
            }
            _ => None,
        };
        if let Some(resize) = size.resize.as_ref().filter(|_| pending != size.announced) {
            resize_events::pending(&self.core.events, pod, resize);
        }
        size.announced = pending;
    }

    /// The running containers with the resources that the runtime applies to them.
    fn held_sizes(&self) -> impl Iterator<Item = (Cow<'_, Container>, &Seen, Bounds)> {
        let containers = spec::containers(self.subject.size.pod());
        let resizable = containers.filter(|(role, _)| *role != Role::Ephemeral);
        resizable.filter_map(|(_, container)| {
            let seen = self.runtime.observed.active(&container.name)?;
            let held = self.memory.held(seen)?;
            (seen.state == State::Running).then_some((container, seen, held))
        })
    }

    /// The running containers whose memory limit is to be decreased.
    pub(super) fn shrinking(&self) -> Vec<ContainerLimit> {
        let (pod, cfs) = (self.subject.size.pod(), self.memory.cfs);
        self.held_sizes()
            .filter_map(|(container, seen, held)| {
                shrink::of_container(seen, held, Bounds::wanted(pod, &container, cfs))
            })
            .collect()
    }

    /// Whether a resize is in progress: a running container or the pod does not have its allocated resources yet, or a
    /// container was killed for it and the next one does not run yet. Until then the status shows the killed one.
    fn is_resizing(&self, now: Timestamp) -> bool {
        let (pod, cfs) = (self.subject.size.pod(), self.memory.cfs);
        let differs = || {
            self.held_sizes()
                .any(|(container, _, held)| !held.are(&Bounds::wanted(pod, &container, cfs)))
        };
        let restarts = || {
            let killed = self.memory.replaced.values();
            let mut shown = killed.filter(|killed| killed.shown_until.is_none_or(|at| now < at));
            shown.any(|Replaced { was, .. }| {
                let wanted = spec::find(pod, &was.name)
                    .map(|(_, container)| Bounds::wanted(pod, &container, cfs));
                let held = self.memory.held(was);
                held.zip(wanted)
                    .is_some_and(|(held, wanted)| !held.are(&wanted))
            })
        };
        self.memory.is_running(&Task::Resize) || self.memory.pod_grows || differs() || restarts()
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
        let dir = tempfile::tempdir().unwrap();
        let mut size = Size::from_pod(&pod("1", "old"), dir.path());
        size.follow(&pod("2", "new"));
        assert_eq!(cpu(&size), "1");
        assert_eq!(size.pod().metadata.labels.as_ref().unwrap()["l"], "new");
    }

    #[test]
    fn allocated_resources_of_a_pod_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut waiting = pod("2", "x");
        Arc::make_mut(&mut waiting).status = serde_json::from_value(serde_json::json!({
            "conditions": [{"type": "PodResizePending", "status": "True"}],
            "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "resources": {"requests": {"cpu": "1"}}}]}))
        .unwrap();
        let of = |pod: &Arc<Pod>| cpu(&Size::from_pod(pod, dir.path()));
        assert_eq!((of(&waiting), of(&pod("2", "x"))), ("1".into(), "2".into()));
        // A resize requested while no kubelet ran is not allocated yet.
        Allocation::from_pod(&pod("500m", "x")).write(dir.path());
        assert_eq!(of(&pod("2", "x")), "500m");
    }
}
