//! Evicts pods that do not tolerate their node's NoExecute taints, or tolerate them only for some
//! seconds. As in Kubernetes these count from when this controller first saw the pod with the
//! taints: a pod that arrives at a node with an old taint has its full time, and `timeAdded` is not
//! needed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use client::{Event, Informer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Writer, placement::tolerates};

use crate::{
    pods,
    shared::{NODE, Shared},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "taint-eviction";
const ACCOUNT: &str = "node-controller";

struct Evictor {
    shared: Arc<Shared>,
    nodes: Informer<Node>,
    pods: Writer<Pod>,
    recorder: Recorder,
    /// Guards the scheduled evictions.
    scheduled: Mutex<Scheduled>,
}

/// Scheduled evictions: the pod's uid, and since when it waits.
#[derive(Default)]
struct Scheduled(HashMap<Key, (Option<String>, Timestamp)>);

impl Scheduled {
    /// The rest of the pod's time, which starts with the first call.
    fn time_left(
        &mut self,
        key: &Key,
        pod: Option<&String>,
        patience: Duration,
        now: Timestamp,
    ) -> Duration {
        let begin = || (pod.cloned(), now);
        let entry = self.0.entry(key.clone()).or_insert_with(begin);
        if entry.0.as_ref() != pod {
            *entry = begin();
        }
        let passed = Duration::try_from(now.duration_since(entry.1)).unwrap_or_default();
        patience.saturating_sub(passed)
    }

    /// Returns whether an eviction was scheduled.
    fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key).is_some()
    }
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Evictor {
        shared: shared.clone(),
        nodes: shared.informer(),
        pods: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, "taint-eviction-controller"),
        scheduled: Mutex::default(),
    });
    let (on_node, nodes) = (controller.pods.cache().clone(), controller.nodes.clone());
    shared
        .controller(&controller)
        .watches_with(&controller.nodes, move |event| {
            if !concerns_pods(event) {
                return Vec::new();
            }
            let name = event.object().metadata.name.as_deref().unwrap_or_default();
            let pods = on_node.entries_by_index(NODE, name).into_iter();
            pods.map(|pod| Key::new(pod.namespace(), pod.name()))
                .collect()
        })
        .watches_with(controller.pods.cache(), move |event| {
            let pod = event.object();
            let changed = event.old().is_none_or(|old| {
                pods::node(old) != pods::node(pod) || tolerations(old) != tolerations(pod)
            });
            // Most changes concern no taint: the node is not decoded for them.
            let tainted = || {
                let node = nodes.get("", pods::node(pod));
                node.is_some_and(|node| !taints(&node).is_empty())
            };
            (changed && tainted())
                .then(|| Key::from_object(&**pod))
                .into_iter()
                .collect()
        })
        .workers(8)
        .start();
}

/// Whether a change of a node may change when its pods leave it. Without taints, now and before, they stay.
fn concerns_pods(event: &Event<Node>) -> bool {
    match event {
        Event::Added(node) => !taints(node).is_empty(),
        Event::Modified { old, new } => taints(old) != taints(new),
        Event::Deleted(_) => true,
    }
}

/// The NoExecute taints.
fn taints(node: &Node) -> Vec<Taint> {
    let all = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    all.filter(|taint| taint.effect == "NoExecute")
        .cloned()
        .collect()
}

/// The time since the latest taint of the node was added that the pod does not tolerate without a time limit.
fn since(pod: &Pod, node: &Node, now: Timestamp) -> Duration {
    let is_tolerated = |taint: &Taint| {
        let mut matching = tolerations(pod).iter();
        let known = matching.find(|toleration| tolerates(toleration, taint));
        known.is_some_and(|toleration| toleration.toleration_seconds.is_none())
    };
    let taints = taints(node)
        .into_iter()
        .filter(|taint| !is_tolerated(taint));
    let added = taints.filter_map(|taint| Some(taint.time_added?.0)).max();
    added.map_or(Duration::ZERO, |added| {
        now.duration_since(added).unsigned_abs()
    })
}

fn tolerations(pod: &Pod) -> &[Toleration] {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}

#[derive(Debug, PartialEq, Eq)]
enum EvictionDecision {
    Stay,
    Leave,
    LeaveAfter(Duration),
}

/// How long a pod may stay with these taints. For each taint the first matching toleration counts,
/// and of all taints the shortest time.
fn decide(taints: &[Taint], tolerations: &[Toleration]) -> EvictionDecision {
    let mut shortest: Option<i64> = None;
    for taint in taints {
        let mut matching = tolerations.iter();
        let Some(toleration) = matching.find(|toleration| tolerates(toleration, taint)) else {
            return EvictionDecision::Leave;
        };
        let seconds = toleration.toleration_seconds;
        shortest = shortest.into_iter().chain(seconds).min();
    }
    match shortest {
        None => EvictionDecision::Stay,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => {
                EvictionDecision::LeaveAfter(Duration::from_secs(seconds))
            }
            _ => EvictionDecision::Leave,
        },
    }
}

impl Controller for Evictor {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let pod = self.pods.cache().get(&key.namespace, &key.name);
        let pod = pod.filter(|pod| !pods::is_deleting(pod));
        let node = pod
            .as_ref()
            .and_then(|pod| self.nodes.get("", pods::node(pod)));
        let (Some(pod), Some(node)) = (pod, node) else {
            self.scheduled.lock().remove(key);
            return Ok(Action::Done);
        };
        let now = self.shared.now();
        match decide(&taints(&node), tolerations(&pod)) {
            EvictionDecision::Stay => {
                if self.scheduled.lock().remove(key) {
                    self.record(&pod, format!("Cancelling deletion of Pod {key}"));
                }
                Ok(Action::Done)
            }
            EvictionDecision::Leave => self.evict((&pod, &node), key).await,
            EvictionDecision::LeaveAfter(patience) => {
                let uid = pod.metadata.uid.as_ref();
                let left = self.scheduled.lock().time_left(key, uid, patience, now);
                if left.is_zero() {
                    return self.evict((&pod, &node), key).await;
                }
                Ok(Action::After(left))
            }
        }
    }
}

impl Evictor {
    fn record(&self, pod: &Pod, text: String) {
        let about = kube::Resource::object_ref(pod, &());
        self.recorder
            .event(&about, Kind::Normal, "TaintManagerEviction", text);
    }

    async fn evict(&self, (pod, node): (&Pod, &Node), key: &Key) -> Result<Action, Error> {
        let now = self.shared.now();
        self.record(pod, format!("Marking for deletion Pod {key}"));
        let message = "Taint manager: deleting due to NoExecute taint";
        let patch = pods::disruption(pod, "DeletionByTaintManager", message, now);
        if !patch.is_empty() {
            match self.pods.patch_status(pod, &patch).await {
                // Gone, or another pod of the same name.
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    self.scheduled.lock().remove(key);
                    return Ok(Action::Done);
                }
                outcome => outcome?,
            };
        }
        self.pods.delete(pod).await?;
        let metrics = &self.shared.metrics;
        metrics.taint_evictions.add([], 1);
        metrics
            .taint_eviction_seconds
            .took([], since(pod, node, self.shared.now()));
        self.scheduled.lock().remove(key);
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str) -> Taint {
        Taint {
            key: key.into(),
            effect: "NoExecute".into(),
            ..Default::default()
        }
    }

    fn toleration(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        }
    }

    #[test]
    fn pods_are_looked_at_only_if_taints_concern_them() {
        let node = |taints: &[&str]| {
            let mut node = Node::default();
            let taints = taints.iter().map(|key| taint(key));
            node.spec.get_or_insert_default().taints = Some(taints.collect());
            Arc::new(node)
        };
        let modified = |old: &[&str], new: &[&str]| Event::Modified {
            old: node(old),
            new: node(new),
        };
        for (event, expected) in [
            (Event::Added(node(&[])), false),
            (Event::Added(node(&["lost"])), true),
            (modified(&[], &["lost"]), true),
            (modified(&["lost"], &[]), true),
            (modified(&["lost"], &["lost"]), false),
            (modified(&[], &[]), false),
            (Event::Deleted(node(&[])), true),
        ] {
            assert_eq!(concerns_pods(&event), expected, "{event:?}");
        }
    }

    #[test]
    fn a_pod_stays_leaves_or_leaves_later_by_its_tolerations() {
        let lost = [taint("lost")];
        assert_eq!(decide(&lost, &[]), EvictionDecision::Leave);
        assert_eq!(
            decide(&lost, &[toleration("other", None)]),
            EvictionDecision::Leave
        );
        assert_eq!(
            decide(&lost, &[toleration("lost", None)]),
            EvictionDecision::Stay
        );
        let later = EvictionDecision::LeaveAfter(Duration::from_secs(300));
        assert_eq!(decide(&lost, &[toleration("lost", Some(300))]), later);
        assert_eq!(
            decide(&lost, &[toleration("lost", Some(0))]),
            EvictionDecision::Leave
        );
        assert_eq!(
            decide(&lost, &[toleration("lost", Some(-5))]),
            EvictionDecision::Leave
        );
        assert_eq!(decide(&[], &[]), EvictionDecision::Stay);
    }

    #[test]
    fn of_several_taints_the_shortest_time_counts() {
        let taints = [taint("a"), taint("b"), taint("c")];
        let tolerations = [
            toleration("a", Some(300)),
            toleration("b", Some(60)),
            toleration("c", None),
        ];
        let soon = EvictionDecision::LeaveAfter(Duration::from_secs(60));
        assert_eq!(decide(&taints, &tolerations), soon);
        assert_eq!(decide(&taints, &tolerations[..2]), EvictionDecision::Leave);
    }

    #[test]
    fn a_pods_time_begins_once_and_anew_for_another_of_its_name() {
        let mut scheduled = Scheduled::default();
        let (key, a, b) = (Key::new("default", "p"), "a".to_owned(), "b".to_owned());
        let mut left = |pod: &String, second: i64| {
            let now = Timestamp::from_second(second).unwrap();
            let left = scheduled.time_left(&key, Some(pod), Duration::from_secs(300), now);
            left.as_secs()
        };
        assert_eq!(left(&a, 1000), 300);
        assert_eq!(left(&a, 1200), 100, "another look does not prolong it");
        assert_eq!(left(&a, 1300), 0);
        assert_eq!(left(&b, 1300), 300);
    }
}
