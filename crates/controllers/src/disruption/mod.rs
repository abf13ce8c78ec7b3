//! PodDisruptionBudgets: how many pods may be evicted now. The eviction subresource reads the
//! status.

pub mod stale;

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
    apimachinery::pkg::{
        apis::meta::v1::{Condition, LabelSelector, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Writer, condition};

use crate::{
    intorpercent::scaled,
    pods::{is_deleting, is_ready, is_terminal},
    scaletargets::{self, Targets},
    selecting::{Selecting, keys_selecting},
    shared::{REST, Shared, controller_of, rest_of_pods, selected_in},
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
    /// Controllers of other kinds, by their scale subresources.
    targets: Targets,
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
        targets: Targets::new(shared.client(ACCOUNT)),
        recorder: shared.recorder(ACCOUNT, "controllermanager"),
    });
    let budgets = controller.budgets.cache().clone();
    shared
        .controller(&controller)
        .watches(controller.budgets.cache())
        .watches_with(&controller.pods, move |event| {
            let pod = event.object();
            // Of most changes both versions have the same labels.
            let old = event.old();
            let old = old.filter(|old| old.metadata.labels != pod.metadata.labels);
            let versions = old.into_iter().chain([pod]);
            versions
                .flat_map(|pod| keys_selecting(&budgets, &**pod))
                .collect()
        })
        .reads(&controller.replica_sets)
        .reads(&controller.deployments)
        .reads(&controller.stateful_sets)
        .reads(&controller.controllers)
        .workers(2)
        // Nothing else tells when a kind gets its scale subresource.
        .retry_cap(scaletargets::FRESH)
        .rest(REST)
        .start();
}

impl Controller for Budgets {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(budget) = self.budgets.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let selector = budget.selector();
        let mut pods = selected_in(&self.pods, &key.namespace, &selector);
        pods.retain(|pod| !is_terminal(pod));
        if pods.is_empty() {
            let about = kube::Resource::object_ref(&*budget, &());
            self.recorder
                .event(&about, Kind::Normal, "NoPods", "No matching pods found");
        }
        let expected = self.expected(&budget, &pods).await;
        if expected
            .as_ref()
            .is_ok_and(|expected| expected.has_unmanaged)
        {
            let about = kube::Resource::object_ref(&*budget, &());
            let text = unmanaged_text(&budget);
            self.recorder
                .event(&about, Kind::Warning, "UnmanagedPods", text);
        }
        let expected = expected.map(|expected| expected.pods);
        let problem = expected.as_ref().err().cloned();
        let (status, after) = decide(&budget, &pods, expected, self.shared.now());
        if budget.status.as_ref() != Some(&status) {
            let updated = PodDisruptionBudget {
                status: Some(status),
                ..(*budget).clone()
            };
            self.budgets.update_status(&key.namespace, &updated).await?;
        }
        // Nothing else tells when a kind of controllers is served, such as that of a new definition.
        if let Some(problem) = problem {
            return Err(Error::Invalid(problem));
        }
        Ok(after.map_or_else(|| rest_of_pods(pods.len()), Action::After))
    }
}

impl Budgets {
    /// The expected number of pods: the sum of their controllers' replicas, each counted once. An
    /// absolute minAvailable needs no controllers.
    async fn expected(
        &self,
        budget: &PodDisruptionBudget,
        pods: &[Arc<Pod>],
    ) -> Result<Expected, String> {
        let spec = budget.spec.clone().unwrap_or_default();
        let by_number = matches!(&spec.min_available, Some(IntOrString::Int(_)));
        if by_number {
            return Ok(Expected {
                pods: i32::try_from(pods.len()).unwrap_or(i32::MAX),
                has_unmanaged: false,
            });
        }
        let mut known = HashSet::new();
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        let mut has_unmanaged = false;
        for pod in pods {
            let Some(owner) = controller_of(&**pod) else {
                has_unmanaged = true;
                continue;
            };
            if !known.insert(owner.uid.as_str()) {
                continue;
            }
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let found = match self.scale(namespace, owner) {
                None => self.custom_scale(namespace, owner).await?,
                found => found,
            };
            let Some((uid, size)) = found else {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                return Err(format!("found no controllers for pod \"{name}\""));
            };
            scales.insert(uid, size);
        }
        let pods = scales
            .values()
            .fold(0, |sum: i32, size| sum.saturating_add(*size));
        Ok(Expected {
            pods,
            has_unmanaged,
        })
    }

    /// The uid and replicas of a pod's controller of a built-in kind.
    fn scale(&self, namespace: &str, owner: &OwnerReference) -> Option<(String, i32)> {
        let is_owner = |uid: &Option<String>| uid.as_ref() == Some(&owner.uid);
        match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("apps/v1", "ReplicaSet") => {
                let set = self.replica_sets.get(namespace, &owner.name)?;
                if !is_owner(&set.metadata.uid) {
                    return None;
                }
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
            ("apps/v1", "StatefulSet") => {
                let set = self.stateful_sets.get(namespace, &owner.name)?;
                let uid = Some(set.metadata.uid.clone()).filter(is_owner)?;
                Some((uid?, set.spec.as_ref()?.replicas?))
            }
            ("v1", "ReplicationController") => {
                let controller = self.controllers.get(namespace, &owner.name)?;
                let uid = Some(controller.metadata.uid.clone()).filter(is_owner)?;
                Some((uid?, controller.spec.as_ref()?.replicas?))
            }
            _ => None,
        }
    }

    /// The uid and replicas of a pod's controller of any kind with a scale subresource.
    async fn custom_scale(
        &self,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Result<Option<(String, i32)>, String> {
        let now = self.shared.now();
        let resource = self.targets.resource(&owner.api_version, &owner.kind, now);
        let resource = resource.await?;
        match self.targets.scale(&resource, namespace, &owner.name).await {
            Ok(scale) if scale.metadata.uid.as_ref() == Some(&owner.uid) => {
                let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
                Ok(Some((owner.uid.clone(), replicas)))
            }
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let details = status.details.as_ref();
                if details.is_some_and(|details| details.name == owner.name) {
                    return Ok(None);
                }
                let (plural, group) = (&resource.api.plural, &resource.api.group);
                let dot = if group.is_empty() { "" } else { "." };
                Err(format!(
                    "{plural}{dot}{group} does not implement the scale subresource"
                ))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// How many pods a budget expects.
struct Expected {
    pods: i32,
    /// Whether there are also pods without a controller.
    has_unmanaged: bool,
}

fn unmanaged_text(budget: &PodDisruptionBudget) -> String {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.map_or_else(|| "nil".to_owned(), shown);
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. \
         As a result, the status of the PDB cannot be calculated correctly, which may result in \
         undefined behavior. To account for these pods please set \".spec.minAvailable\" field of \
         the PDB to an integer value."
    )
}

/// A selector as upstream prints it.
fn shown(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels
        .map(|(key, value)| format!("{key}: {value},"))
        .collect();
    let expressions = selector.match_expressions.iter().flatten();
    let expressions: String = expressions
        .map(|one| {
            let values = one.values.as_deref().unwrap_or_default().join(" ");
            let (key, operator) = (&one.key, &one.operator);
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
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
    use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;

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
    fn a_selector_is_printed_as_upstream_prints_it() {
        let selector = serde_json::json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
        });
        let selector = serde_json::from_value(selector).unwrap();
        assert_eq!(
            shown(&selector),
            "&LabelSelector{MatchLabels:map[string]string{app: web,},\
             MatchExpressions:[]LabelSelectorRequirement{\
             LabelSelectorRequirement{Key:tier,Operator:In,Values:[a b],},},}"
        );
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
