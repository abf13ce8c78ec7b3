//! Takes the condition DisruptionTarget back from pods that were not deleted after it: the disruption did not happen.

use std::{sync::Arc, time::Duration};

use client::Event;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use reconcile::{Action, Controller, Error, Key, StatusPatch, Writer, condition};

use super::ACCOUNT;
use crate::{pods, shared::Shared};

/// The name in [`crate::ALL`].
pub const NAME: &str = "stale-disruption";
const DISRUPTION: &str = "DisruptionTarget";
/// How long a pod may have the condition without being deleted.
const PATIENCE: Duration = Duration::from_secs(120);

struct Stale {
    shared: Arc<Shared>,
    pods: Writer<Pod>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Stale {
        shared: shared.clone(),
        pods: shared.writer(ACCOUNT),
    });
    shared
        .controller(&controller)
        .watches_with(controller.pods.cache(), |event| {
            let pod = event.object();
            let is_marked = !matches!(event, Event::Deleted(_)) && mark(pod).is_some();
            is_marked
                .then(|| Key::from_object(&**pod))
                .into_iter()
                .collect()
        })
        .start();
}

/// The condition of a pod that should be deleted soon. The kubelet may take any time to end a pod that it has marked.
fn mark(pod: &Pod) -> Option<&PodCondition> {
    if pods::is_deleting(pod) || pods::is_terminal(pod) {
        return None;
    }
    let mark = pods::condition(pod, DISRUPTION)?;
    let is_ours = mark.reason.as_deref() != Some("TerminationByKubelet");
    (mark.status == "True" && is_ours).then_some(mark)
}

/// How long the condition of a pod may stay; `None` if it need not go.
fn time_left(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let since = mark(pod)?.last_transition_time.as_ref();
    let passed = since.map_or(PATIENCE, |since| {
        Duration::try_from(now.duration_since(since.0)).unwrap_or_default()
    });
    Some(PATIENCE.saturating_sub(passed))
}

impl Controller for Stale {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(pod) = self.pods.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let now = self.shared.now();
        match time_left(&pod, now) {
            None => Ok(Action::Done),
            Some(Duration::ZERO) => {
                let known = pods::conditions(&pod);
                if let Some(condition) = condition::transition(known, taken_back(&pod), now) {
                    let patch = StatusPatch::new(&*pod).if_unchanged(&*pod);
                    let patch = patch.condition(&condition);
                    self.pods.patch_status(&pod, &patch).await?;
                }
                Ok(Action::Done)
            }
            Some(left) => Ok(Action::After(left)),
        }
    }
}

fn taken_back(pod: &Pod) -> PodCondition {
    PodCondition {
        type_: DISRUPTION.to_owned(),
        status: "False".to_owned(),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::samples::at;

    #[test]
    fn a_mark_stays_for_two_minutes_unless_the_pod_goes_or_its_kubelet_made_it() {
        let pod = |status: &str, reason: &str, phase: &str, deleted: Option<&str>| {
            let pod = json!({
                "metadata": {"name": "p", "deletionTimestamp": deleted},
                "status": {"phase": phase, "conditions": [{
                    "type": DISRUPTION, "status": status, "reason": reason,
                    "lastTransitionTime": at(100).to_string(),
                }]},
            });
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let left = |pod: &Pod, now| time_left(pod, at(now)).map(|left| left.as_secs());
        let marked = pod("True", "EvictionByEvictionAPI", "Running", None);
        assert_eq!(left(&marked, 130), Some(90));
        assert_eq!(left(&marked, 220), Some(0));
        assert_eq!(left(&marked, 999), Some(0));
        for other in [
            pod("False", "EvictionByEvictionAPI", "Running", None),
            pod("True", "TerminationByKubelet", "Running", None),
            pod("True", "EvictionByEvictionAPI", "Failed", None),
            pod(
                "True",
                "EvictionByEvictionAPI",
                "Running",
                Some("2024-01-01T00:00:00Z"),
            ),
            Pod::default(),
        ] {
            assert_eq!(left(&other, 999), None);
        }
    }
}
