//! PodDisruptionBudgets: how many pods may be evicted now. The eviction subresource reads the
//! status.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::{Pod, ReplicationController},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Selector, Writer, condition};

use crate::{
    intorpercent::scaled,
    pods::{is_deleting, is_ready, is_terminal},
    shared::{REST, Shared, controller_of, selected_in},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "disruption";
const ACCOUNT: &str = "disruption-controller";
/// An allowed eviction that did not delete the pod expires after this time.
const PATIENCE: Duration = Duration::from_secs(120);

struct Budgets {
    shared: Arc<Shared>,
    budgets: Writer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    replica_sets: Informer<ReplicaSet>,
    deployments: Informer<Deployment>,
    stateful_sets: Informer<StatefulSet>,
    controllers: Informer<ReplicationController>,
    recorder: Recorder,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Budgets {
        shared: shared.clone(),
        budgets: shared.writer(ACCOUNT),
        pods: shared.informer(),
        replica_sets: shared.informer(),
        deployments: shared.informer(),
        stateful_sets: shared.informer(),
        controllers: shared.informer(),
        recorder: shared.recorder(ACCOUNT, "controllermanager"),
    });
    let budgets = controller.budgets.cache().clone();
    shared
        .controller(&controller)
        .watches(controller.budgets.cache())
        .watches_with(&controller.pods, move |event| {
            let namespace = event.object().metadata.namespace.as_deref();
            let concerns = |budget: &PodDisruptionBudget| {
                let selector = selector(budget);
                let mut versions = event.old().into_iter().chain([event.object()]);
                versions.any(|pod| selector.matches(pod.metadata.labels.as_ref()))
            };
            let found = budgets.list_in(namespace.unwrap_or_default());
            let found = found.into_iter().filter(|budget| concerns(budget));
            found.map(|budget| Key::from_object(&*budget)).collect()
        })
        .reads(&controller.replica_sets)
        .reads(&controller.deployments)
        .reads(&controller.stateful_sets)
        .reads(&controller.controllers)
        .workers(2)
        .rest(REST)
        .start();
}

fn selector(budget: &PodDisruptionBudget) -> Selector {
    Selector::from_label_selector(budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()))
}

impl Controller for Budgets {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(budget) = self.budgets.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let selector = selector(&budget);
        let mut pods = selected_in(&self.pods, &key.namespace, &selector);
        pods.retain(|pod| !is_terminal(pod));
        if pods.is_empty() {
            let about = kube::Resource::object_ref(&*budget, &());
            self.recorder
                .event(&about, Kind::Normal, "NoPods", "No matching pods found");
        }
        let expected = self.expected(&budget, &pods);
        let (status, after) = decide(&budget, &pods, expected, self.shared.now());
        if budget.status.as_ref() != Some(&status) {
            let updated = PodDisruptionBudget {
                status: Some(status),
                ..(*budget).clone()
            };
            self.budgets.update_status(&key.namespace, &updated).await?;
        }
        Ok(after.map_or(Action::Done, Action::After))
    }
}

impl Budgets {
    /// The expected number of pods: the sum of their controllers' replicas, each counted once. An
    /// absolute minAvailable needs no controllers.
    fn expected(&self, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<i32, String> {
        let spec = budget.spec.clone().unwrap_or_default();
        let by_number = matches!(
            &spec.min_available,
            Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(_))
        );
        if by_number {
            return Ok(i32::try_from(pods.len()).unwrap_or(i32::MAX));
        }
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        for pod in pods {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let Some(owner) = controller_of(&**pod) else {
                return Err(format!("found no controller ref for pod \"{name}\""));
            };
            if let Some((uid, size)) = self.scale(pod, &owner.kind, &owner.name) {
                scales.insert(uid, size);
            } else {
                return Err(format!("found no controllers for pod \"{name}\""));
            }
        }
        Ok(scales.values().sum())
    }

    /// The uid and replicas of a pod's controller.
    fn scale(&self, pod: &Pod, kind: &str, name: &str) -> Option<(String, i32)> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        match kind {
            "ReplicaSet" => {
                let set = self.replica_sets.get(namespace, name)?;
                let owner = controller_of(&*set).filter(|owner| owner.kind == "Deployment");
                let deployment =
                    owner.and_then(|owner| self.deployments.get(namespace, &owner.name));
                match deployment {
                    Some(deployment) => Some((
                        deployment.metadata.uid.clone()?,
                        deployment.spec.as_ref()?.replicas?,
                    )),
                    None => Some((set.metadata.uid.clone()?, set.spec.as_ref()?.replicas?)),
                }
            }
            "StatefulSet" => {
                let set = self.stateful_sets.get(namespace, name)?;
                Some((set.metadata.uid.clone()?, set.spec.as_ref()?.replicas?))
            }
            "ReplicationController" => {
                let controller = self.controllers.get(namespace, name)?;
                Some((
                    controller.metadata.uid.clone()?,
                    controller.spec.as_ref()?.replicas?,
                ))
            }
            _ => None,
        }
    }
}

/// The status, and when allowed evictions expire.
fn decide(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    expected: Result<i32, String>,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Duration>) {
    let spec = budget.spec.clone().unwrap_or_default();
    let before = budget.status.clone().unwrap_or_default();
    let mut granted = before.disrupted_pods.clone().unwrap_or_default();
    // A pod that is being deleted no longer needs its entry; an eviction that deleted nothing
    // expires.
    let present = pods.iter().filter(|pod| !is_deleting(pod));
    let present: HashSet<_> = present.map(|pod| pod.metadata.name.as_deref()).collect();
    granted.retain(|name, time| present.contains(&Some(name.as_str())) && time.0 + PATIENCE > now);
    let after = granted
        .values()
        .map(|time| (time.0 + PATIENCE).duration_since(now))
        .min();
    let after = after.and_then(|left| Duration::try_from(left).ok());
    let healthy = pods.iter().filter(|pod| {
        let name = pod.metadata.name.clone().unwrap_or_default();
        is_ready(pod) && !is_deleting(pod) && !granted.contains_key(&name)
    });
    let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
    let (expected, desired, problem) = match expected {
        Err(problem) => (0, 0, Some(problem)),
        Ok(expected) => {
            let desired = match (&spec.min_available, &spec.max_unavailable) {
                (Some(least), _) => scaled(Some(least), expected, true),
                (None, most) => expected - scaled(most.as_ref(), expected, true),
            };
            (expected, desired.max(0), None)
        }
    };
    let allowed = if problem.is_some() || expected == 0 {
        0
    } else {
        (healthy - desired).max(0)
    };
    let condition = match problem {
        Some(problem) => ("False", "SyncFailed", problem),
        None if allowed > 0 => ("True", "SufficientPods", String::new()),
        None => ("False", "InsufficientPods", String::new()),
    };
    let status = PodDisruptionBudgetStatus {
        observed_generation: budget.metadata.generation,
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!granted.is_empty()).then_some(granted),
        conditions: Some(conditions(
            before.conditions.unwrap_or_default(),
            condition,
            budget.metadata.generation,
            now,
        )),
    };
    (status, after)
}

/// The conditions with this controller's own; others are kept.
fn conditions(
    mut conditions: Vec<Condition>,
    (status, reason, message): (&str, &str, String),
    observed_generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let own = Condition {
        type_: "DisruptionAllowed".into(),
        status: status.into(),
        reason: reason.into(),
        message,
        observed_generation,
        last_transition_time: Time(now),
    };
    if let Some(own) = condition::transition(&conditions, own, now) {
        let known = conditions.iter_mut().find(|known| known.type_ == own.type_);
        match known {
            Some(known) => *known = own,
            None => conditions.push(own),
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::policy::v1::PodDisruptionBudgetSpec, apimachinery::pkg::util::intstr::IntOrString,
    };

    use super::*;
    use crate::pods::samples::{at, pod};

    fn budget(least: Option<IntOrString>, most: Option<IntOrString>) -> PodDisruptionBudget {
        let spec = PodDisruptionBudgetSpec {
            min_available: least,
            max_unavailable: most,
            ..Default::default()
        };
        PodDisruptionBudget {
            spec: Some(spec),
            ..Default::default()
        }
    }

    fn pods(ready: usize, unready: usize) -> Vec<Arc<Pod>> {
        let ready = (0..ready).map(|n| pod(&format!("r{n}"), Some(1)));
        ready
            .chain((0..unready).map(|n| pod(&format!("u{n}"), None)))
            .map(Arc::new)
            .collect()
    }

    fn allowed(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], expected: i32) -> i32 {
        decide(budget, pods, Ok(expected), at(100))
            .0
            .disruptions_allowed
            .unwrap()
    }

    #[test]
    fn as_many_may_go_as_healthy_pods_are_left_over() {
        let least = budget(Some(IntOrString::Int(2)), None);
        assert_eq!(allowed(&least, &pods(3, 0), 3), 1);
        assert_eq!(allowed(&least, &pods(2, 1), 3), 0);
        let share = budget(Some(IntOrString::String("50%".into())), None);
        assert_eq!(allowed(&share, &pods(3, 0), 3), 1, "half of three is two");
        let most = budget(None, Some(IntOrString::Int(1)));
        assert_eq!(allowed(&most, &pods(3, 0), 3), 1);
        assert_eq!(allowed(&most, &pods(2, 0), 3), 0, "one is missing already");
    }

    #[test]
    fn a_granted_eviction_counts_until_it_happens_or_lapses() {
        let mut budget = budget(Some(IntOrString::Int(2)), None);
        let granted = [("r0".to_owned(), Time(at(50)))].into();
        budget.status = Some(PodDisruptionBudgetStatus {
            disrupted_pods: Some(granted),
            ..Default::default()
        });
        let (status, after) = decide(&budget, &pods(3, 0), Ok(3), at(100));
        assert_eq!(
            (status.current_healthy, status.disruptions_allowed),
            (Some(2), Some(0))
        );
        assert_eq!(after, Some(Duration::from_secs(70)));
        let (status, after) = decide(&budget, &pods(3, 0), Ok(3), at(171));
        assert_eq!((status.disruptions_allowed, after), (Some(1), None));
    }
}
