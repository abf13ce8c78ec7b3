//! Keeps as many pods of a template as wanted: the core of ReplicaSet and ReplicationController,
//! which differ in nothing but their type.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Api, Resource};
use reconcile::{Action, Controller, Error, Key, Queue, Recorder, Selector, Writer};

use crate::{
    claim, podcontrol,
    pods::{self, is_active, is_terminating},
    shared::{OWNER, Shared, Watched, controller_of, orphans_of},
};

/// At most this many pods are created or deleted in one go.
const BURST: usize = 500;
const WORKERS: usize = 5;

/// A kind that says how many pods of a template it wants.
pub trait Owner: Watched + Resource<Scope = NamespaceResourceScope> {
    /// Whose service account writes.
    const ACCOUNT: &'static str;
    /// The component in events.
    const COMPONENT: &'static str;
    /// The same wish as a ReplicaSet.
    fn as_replica_set(&self) -> ReplicaSet;
    /// This object with another status.
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

struct Replicas<K: Owner> {
    shared: Arc<Shared>,
    owners: Writer<K>,
    pods: Writer<Pod>,
    recorder: Recorder,
}

/// Starts the controller of one such kind.
pub fn start<K: Owner>(shared: &Arc<Shared>) {
    let controller = Arc::new(Replicas::<K> {
        shared: shared.clone(),
        owners: shared.writer(K::ACCOUNT),
        pods: shared.writer(K::ACCOUNT),
        recorder: shared.recorder(K::ACCOUNT, K::COMPONENT),
    });
    let shared = shared.clone();
    let context = shared.context.clone();
    context.spawn(K::ACCOUNT, async move {
        let (owners, pods) = (
            controller.owners.cache().clone(),
            controller.pods.cache().clone(),
        );
        owners.synced().await;
        pods.synced().await;
        let queue = Queue::default();
        reconcile::follow(&shared.context, &owners, &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        let lookup = owners.clone();
        reconcile::follow(&shared.context, &pods, &queue, move |event| {
            podcontrol::owner_keys(event, &K::kind(&()), |pod| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let matching = lookup.list_in(namespace).into_iter().filter(|owner| {
                    let selector = owner.as_replica_set().spec.map(|spec| spec.selector);
                    Selector::of(selector.as_ref()).matches(pod.metadata.labels.as_ref())
                });
                matching.map(|owner| Key::of(&*owner)).collect()
            })
        });
        reconcile::run(&shared.context, controller, queue, WORKERS);
        std::future::pending::<()>().await;
    });
}

impl<K: Owner> Controller for Replicas<K> {
    fn name(&self) -> &'static str {
        K::COMPONENT
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(owner) = self.owners.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let set = owner.as_replica_set();
        let spec = set.spec.clone().unwrap_or_default();
        let cache = self.pods.cache();
        let mut all = cache.by_index(OWNER, set.metadata.uid.as_deref().unwrap_or_default());
        all.extend(cache.by_index(OWNER, &orphans_of(&key.namespace)));
        let (active, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|pod| is_active(pod));
        let selector = Selector::of(Some(&spec.selector));
        let api = Api::namespaced(self.shared.client(K::ACCOUNT), &key.namespace);
        let mut active = claim::claim(&*owner, &api, &selector, &self.pods, active, None).await?;
        let mine = |pod: &Pod| {
            controller_of(pod).map(|owner| &owner.uid) == set.metadata.uid.as_ref()
                && selector.matches(pod.metadata.labels.as_ref())
        };
        let terminating = rest
            .iter()
            .filter(|pod| is_terminating(pod) && mine(pod))
            .count();
        let now = self.shared.now();
        let mut outcome = Ok(());
        if set.metadata.deletion_timestamp.is_none() {
            let related = self.related(&set, &active);
            outcome = match plan(&set, &mut active, &related, now) {
                Plan::Nothing => Ok(()),
                Plan::Create(count) => self.create(&*owner, &set, count).await,
                Plan::Delete(pods) => self.delete(&*owner, pods).await,
            };
        }
        let failure = outcome.as_ref().err().map(podcontrol::message);
        let status = status(&set, &active, terminating, failure, now);
        let updated = owner.with_status(status);
        if updated.as_replica_set().status != set.status {
            self.owners.update_status(&key.namespace, &updated).await?;
        }
        outcome?;
        Ok(next_look(&active, spec.min_ready_seconds.unwrap_or(0), now))
    }
}

impl<K: Owner> Replicas<K> {
    /// The pods of all sets with the same controller: their crowding decides who goes.
    fn related(&self, set: &ReplicaSet, own: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let Some(controller) = controller_of(set) else {
            return own.to_vec();
        };
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let siblings = self
            .owners
            .cache()
            .list_in(namespace)
            .into_iter()
            .filter(|sibling| {
                controller_of(&**sibling).is_some_and(|other| other.uid == controller.uid)
            });
        let cache = self.pods.cache();
        let uid = |sibling: &K| sibling.meta().uid.clone().unwrap_or_default();
        siblings
            .flat_map(|sibling| cache.by_index(OWNER, &uid(&sibling)))
            .collect()
    }

    /// Creates pods in batches that double as long as they succeed, so that a quota or a broken
    /// template costs one refusal, not hundreds.
    async fn create(&self, owner: &K, set: &ReplicaSet, count: usize) -> Result<(), Error> {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        let pod = podcontrol::from_template(owner, template);
        let (_, outcome) = podcontrol::in_growing_batches(count, |_| {
            podcontrol::create(&self.pods, &self.recorder, owner, &pod)
        })
        .await;
        outcome
    }

    async fn delete(&self, owner: &K, pods: Vec<Arc<Pod>>) -> Result<(), Error> {
        let deletions = pods
            .iter()
            .map(|pod| podcontrol::delete(&self.pods, &self.recorder, owner, pod));
        reconcile::all(join_all(deletions).await)
    }
}

enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

fn plan(set: &ReplicaSet, active: &mut [Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) -> Plan {
    let wanted = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() < wanted {
        return Plan::Create((wanted - active.len()).min(BURST));
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus == 0 {
        return Plan::Nothing;
    }
    pods::deletion_order(active, related, now);
    Plan::Delete(active[..surplus].to_vec())
}

fn count(pods: impl Iterator) -> i32 {
    i32::try_from(pods.count()).unwrap_or(i32::MAX)
}

fn status(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<String>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let spec = set.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let labels = spec
        .template
        .and_then(|template| template.metadata?.labels)
        .unwrap_or_default();
    let labelled = Selector::labels(&labels);
    let positive = |count: i32| (count > 0).then_some(count);
    let replicas = count(active.iter());
    let full = active
        .iter()
        .filter(|pod| labelled.matches(pod.metadata.labels.as_ref()));
    let ready = active.iter().filter(|pod| pods::is_ready(pod));
    let available = active
        .iter()
        .filter(|pod| pods::is_available(pod, min_ready, now));
    let before = set.status.clone().unwrap_or_default();
    ReplicaSetStatus {
        replicas,
        fully_labeled_replicas: positive(count(full)),
        ready_replicas: positive(count(ready)),
        available_replicas: positive(count(available)),
        terminating_replicas: Some(i32::try_from(terminating).unwrap_or(i32::MAX)),
        observed_generation: set.metadata.generation,
        conditions: conditions(before.conditions, failure, replicas, spec.replicas, now),
    }
}

/// A failure stays told as it was first told until it is over.
fn conditions(
    before: Option<Vec<ReplicaSetCondition>>,
    failure: Option<String>,
    replicas: i32,
    wanted: Option<i32>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    const FAILURE: &str = "ReplicaFailure";
    let mut conditions = before.unwrap_or_default();
    let known = conditions
        .iter()
        .any(|condition| condition.type_ == FAILURE);
    match failure {
        Some(message) if !known => conditions.push(ReplicaSetCondition {
            type_: FAILURE.into(),
            status: "True".into(),
            reason: Some(
                if replicas < wanted.unwrap_or(1) {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                }
                .into(),
            ),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        }),
        None => conditions.retain(|condition| condition.type_ != FAILURE),
        Some(_) => {}
    }
    (!conditions.is_empty()).then_some(conditions)
}

/// Readiness that has not lasted long enough becomes availability by time alone.
fn next_look(active: &[Arc<Pod>], min_ready_seconds: i32, now: Timestamp) -> Action {
    let waits = active
        .iter()
        .filter_map(|pod| pods::available_in(pod, min_ready_seconds, now));
    match waits.filter(|wait| !wait.is_zero()).min() {
        Some(wait) => Action::After(wait + Duration::from_millis(1)),
        None => Action::Done,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSetSpec;

    use super::*;
    use crate::pods::samples::{at, pod};

    fn set(replicas: i32) -> ReplicaSet {
        let spec = ReplicaSetSpec {
            replicas: Some(replicas),
            ..Default::default()
        };
        ReplicaSet {
            spec: Some(spec),
            ..Default::default()
        }
    }

    fn decided(replicas: i32, pods: Vec<Pod>) -> String {
        let mut pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
        let related = pods.clone();
        match plan(&set(replicas), &mut pods, &related, at(100)) {
            Plan::Nothing => "nothing".into(),
            Plan::Create(count) => format!("create {count}"),
            Plan::Delete(pods) => {
                let names: Vec<_> = pods
                    .iter()
                    .map(|pod| pod.metadata.name.clone().unwrap())
                    .collect();
                format!("delete {}", names.join(" "))
            }
        }
    }

    #[test]
    fn missing_pods_are_created_and_surplus_ones_deleted_least_useful_first() {
        assert_eq!(decided(2, vec![pod("a", None)]), "create 1");
        assert_eq!(decided(1, vec![pod("a", None)]), "nothing");
        assert_eq!(
            decided(1, vec![pod("a", Some(1)), pod("b", None)]),
            "delete b"
        );
        assert_eq!(decided(0, vec![pod("a", Some(1))]), "delete a");
        assert_eq!(decided(2000, vec![]), "create 500");
    }

    #[test]
    fn the_status_counts_what_is_there() {
        let pods = [pod("a", Some(10)), pod("b", Some(99)), pod("c", None)].map(Arc::new);
        let mut set = set(3);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
        let status = status(&set, &pods, 1, None, at(100));
        assert_eq!(status.replicas, 3);
        assert_eq!(status.ready_replicas, Some(2));
        assert_eq!(status.available_replicas, Some(1));
        assert_eq!(status.terminating_replicas, Some(1));
        let wait = Duration::from_millis(9001);
        assert_eq!(next_look(&pods, 10, at(100)), Action::After(wait));
    }

    #[test]
    fn a_failure_is_told_once_and_taken_back_when_it_is_over() {
        let failed = conditions(None, Some("no".into()), 0, Some(1), at(1));
        assert_eq!(
            failed.as_ref().unwrap()[0].reason.as_deref(),
            Some("FailedCreate")
        );
        let again = conditions(failed.clone(), Some("still no".into()), 0, Some(1), at(2));
        assert_eq!(again, failed);
        assert_eq!(conditions(failed, None, 1, Some(1), at(3)), None);
    }
}
