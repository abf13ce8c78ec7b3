//! Resizes of admitted pods. All that wait are decided together, in upstream's order: first those that
//! request no more than before, then by priority, by QoS class, and by the time since when they wait.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};

use super::{Admitted, Shortage, State, request, shortages};
use crate::pod::spec::{self, QosClass};

/// Why a pod cannot be resized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoom {
    /// The node is too small, even without other pods (`Infeasible`).
    Ever(Shortage),
    /// Other pods use the resources (`Deferred`).
    Now(Shortage),
}

/// The answer to a pod that asks for a new size.
#[derive(Debug)]
pub struct Resized {
    /// The pod as it counts now: with the new size, or with the old one.
    pub counted: Arc<Pod>,
    /// Why it does not have the new size.
    pub missing: Option<NoRoom>,
    /// Other pods that have got the size that they wait for.
    pub granted: Vec<String>,
}

/// A pod that waits for resources to grow.
pub(super) struct Deferred {
    /// The pod with the size that it asks for.
    pod: Arc<Pod>,
    since: Timestamp,
}

impl Admitted {
    /// Records that an admitted pod asks for a new size, without deciding.
    pub fn defer(&self, pod: &Arc<Pod>, now: Timestamp) {
        self.state.lock().defer(pod, now);
    }

    /// Decides about a new size, together with the others that wait. Until there is room, the old
    /// size counts.
    pub fn resize(
        &self,
        pod: &Arc<Pod>,
        allocatable: &BTreeMap<String, Quantity>,
        now: Timestamp,
    ) -> Resized {
        let mut state = self.state.lock();
        let uid = spec::uid(pod);
        let missing = match shortages(pod, &[], allocatable).into_iter().next() {
            Some(short) => {
                state.deferred.remove(uid);
                Some(NoRoom::Ever(short))
            }
            None => {
                state.defer(pod, now);
                None
            }
        };
        let mut granted = self.grant(&mut state, allocatable);
        granted.retain(|other| other != uid);
        let missing = missing.or_else(|| {
            state.deferred.get(uid)?;
            let short = shortages(pod, &state.others(uid), allocatable);
            short.into_iter().next().map(NoRoom::Now)
        });
        let counted = state.pods.get(uid).map_or(pod, |counted| &counted.pod);
        Resized {
            counted: counted.clone(),
            missing,
            granted,
        }
    }

    /// Forgets a pod's wish for a new size.
    pub fn keep_size(&self, uid: &str) {
        self.state.lock().deferred.remove(uid);
    }

    /// Gives waiting pods their new sizes as far as there is room. Returns their uids.
    pub(super) fn grant(
        &self,
        state: &mut State,
        allocatable: &BTreeMap<String, Quantity>,
    ) -> Vec<String> {
        let mut granted = Vec::new();
        for uid in state.deferred_in_order() {
            let Some(pod) = state.deferred.get(&uid).map(|waiting| waiting.pod.clone()) else {
                continue;
            };
            if shortages(&pod, &state.others(&uid), allocatable).is_empty() {
                state.deferred.remove(&uid);
                self.count(state, &pod);
                granted.push(uid);
            }
        }
        granted
    }
}

impl State {
    fn defer(&mut self, pod: &Arc<Pod>, now: Timestamp) {
        let uid = spec::uid(pod);
        let since = self.deferred.get(uid).map(|waiting| waiting.since);
        let since = since.or_else(|| pending_since(pod)).unwrap_or(now);
        let pod = pod.clone();
        self.deferred
            .insert(uid.to_owned(), Deferred { pod, since });
    }

    fn deferred_in_order(&self) -> Vec<String> {
        let mut all: Vec<_> = self.deferred.iter().collect();
        all.sort_by_cached_key(|(uid, waiting)| {
            let pod = &waiting.pod;
            (
                self.grows(uid, pod),
                Reverse(spec::spec(pod).priority.unwrap_or(0)),
                spec::qos_class(pod) != QosClass::Guaranteed,
                waiting.since,
            )
        });
        all.into_iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// Whether the pod requests more CPU or memory than it has.
    fn grows(&self, uid: &str, pod: &Pod) -> bool {
        self.pods.get(uid).is_some_and(|counted| {
            let more = |resource| request(pod, resource) > request(&counted.pod, resource);
            more("cpu") || more("memory")
        })
    }
}

/// Since when the API shows that the pod waits, so that the order is the same after a restart.
fn pending_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let pending = conditions.iter().find(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Deferred")
    })?;
    pending.last_transition_time.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn allocatable() -> BTreeMap<String, Quantity> {
        [("cpu".to_owned(), Quantity("4".into()))].into()
    }

    /// Guaranteed pods have equal requests and limits of both resources.
    fn sized(uid: &str, cpu: &str, priority: i32, guaranteed: bool) -> Arc<Pod> {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        let limits = guaranteed.then(|| amounts.clone());
        let resources = json!({"requests": amounts, "limits": limits});
        let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"priority": priority,
            "containers": [{"name": "a", "resources": resources}]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
        sized(uid, cpu, 0, false)
    }

    #[test]
    fn a_new_size_counts_once_there_is_room_for_it() {
        let admitted = Admitted::default();
        for (uid, cpu) in [("a", "3"), ("b", "500m")] {
            admitted.keep(&pod(uid, cpu));
        }
        let resize = |cpu: &str| admitted.resize(&pod("b", cpu), &allocatable(), at(0));
        assert!(matches!(resize("5").missing, Some(NoRoom::Ever(_))));
        let deferred = resize("1500m");
        assert!(matches!(deferred.missing, Some(NoRoom::Now(_))));
        assert_eq!(*deferred.counted, *pod("b", "500m"));
        let taken = resize("1");
        assert_eq!((taken.missing, &*taken.counted), (None, &*pod("b", "1")));
        assert!(matches!(resize("1001m").missing, Some(NoRoom::Now(_))));
    }

    #[test]
    fn waiting_resizes_are_granted_by_priority_then_qos_class_then_age() {
        let wishes = [
            ("late", 0, false, 30),
            ("early", 0, false, 10),
            ("guaranteed", 0, true, 40),
            ("important", 7, false, 50),
        ];
        let admitted = Admitted::default();
        admitted.keep(&pod("full", "3600m"));
        for (uid, priority, guaranteed, _) in wishes {
            admitted.keep(&sized(uid, "100m", priority, guaranteed));
        }
        for (uid, priority, guaranteed, second) in wishes {
            let wish = sized(uid, "1", priority, guaranteed);
            let answer = admitted.resize(&wish, &allocatable(), at(second));
            assert!(matches!(answer.missing, Some(NoRoom::Now(_))), "{uid}");
        }
        // Every step frees 900m, which is what one of them needs.
        let mut order = Vec::new();
        for left in ["2700m", "1800m", "900m", "0"] {
            let freed = pod("full", left);
            order.extend(admitted.resize(&freed, &allocatable(), at(60)).granted);
        }
        assert_eq!(order, ["important", "guaranteed", "early", "late"]);
    }

    #[test]
    fn a_pod_that_ends_makes_room_for_the_first_in_order_that_fits() {
        let admitted = Admitted::default();
        for (uid, cpu) in [("ends", "1"), ("large", "1"), ("small", "2")] {
            admitted.keep(&pod(uid, cpu));
        }
        let wish = |uid, cpu, priority| sized(uid, cpu, priority, false);
        admitted.resize(&wish("large", "2500m", 9), &allocatable(), at(1));
        admitted.resize(&wish("small", "2500m", 0), &allocatable(), at(2));
        assert_eq!(admitted.release("ends", &allocatable()), ["small"]);
        let taken = admitted.resize(&wish("small", "2500m", 0), &allocatable(), at(3));
        assert_eq!(taken.missing, None);
    }

    #[test]
    fn after_a_restart_the_time_in_the_status_decides_and_nothing_is_granted_before_all_are_known()
    {
        let waiting = |uid: &str, cpu: &str, since: &str| {
            let mut pod = pod(uid, cpu);
            let condition = json!({"type": "PodResizePending", "status": "True",
                "reason": "Deferred", "lastTransitionTime": since});
            Arc::make_mut(&mut pod).status =
                serde_json::from_value(json!({"conditions": [condition]})).unwrap();
            pod
        };
        let admitted = Admitted::default();
        let wishes = [
            waiting("a", "3", "2026-01-01T00:00:02Z"),
            waiting("b", "3", "2026-01-01T00:00:01Z"),
        ];
        for wish in &wishes {
            admitted.keep(&pod(spec::uid(wish), "1"));
        }
        for wish in &wishes {
            admitted.defer(wish, at(0));
        }
        let answer = admitted.resize(&wishes[0], &allocatable(), at(0));
        assert!(matches!(answer.missing, Some(NoRoom::Now(_))));
        assert_eq!(answer.granted, ["b"]);
        // The worker of `b` starts later: what it was granted stays.
        admitted.keep(&pod("b", "1"));
        let taken = admitted.resize(&wishes[1], &allocatable(), at(0));
        assert_eq!(taken.missing, None);
    }

    #[test]
    fn a_withdrawn_resize_is_not_granted() {
        let admitted = Admitted::default();
        for uid in ["a", "b"] {
            admitted.keep(&pod(uid, "2"));
        }
        admitted.resize(&pod("b", "3"), &allocatable(), at(0));
        admitted.follow(&pod("b", "2"));
        assert!(admitted.release("a", &allocatable()).is_empty());
        admitted.keep(&pod("a", "2"));
        admitted.resize(&pod("b", "3"), &allocatable(), at(0));
        admitted.keep_size("b");
        assert!(admitted.release("a", &allocatable()).is_empty());
    }
}
