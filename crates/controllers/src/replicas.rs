//! Maintains the desired number of pods: the common part of ReplicaSet and ReplicationController.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::Api;
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{ReplicaSetCondition, ReplicaSetStatus},
        core::v1::{Pod, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::Resource;
use reconcile::{Action, Controller, Error, Key, Recorder, Selector, Writer};

use crate::{
    claim,
    members::{self, Facts, Member},
    podcontrol,
    selecting::{Selecting, keys_selecting},
    shared::{OWNER, REST, Shared, Watched, controller_of, rest_of_pods},
};

/// At most this many pods are created or deleted per reconciliation.
const BURST: usize = 500;
const WORKERS: usize = 32;

/// The desired replicas, template and selector.
pub(crate) struct DesiredReplicas<'a> {
    pub replicas: i32,
    pub min_ready_seconds: i32,
    pub selector: Selector,
    pub template: Option<&'a PodTemplateSpec>,
}

/// A kind with replicas and a template.
pub(crate) trait Owner:
    Watched + Selecting + k8s_openapi::Resource + Resource<Scope = NamespaceResourceScope>
{
    /// The service account that writes.
    const ACCOUNT: &'static str;
    /// The component in events.
    const COMPONENT: &'static str;
    /// Whether the status counts pods that are being deleted.
    const COUNTS_TERMINATING: bool;
    /// Its desired replicas, template and selector.
    fn wish(&self) -> DesiredReplicas<'_>;
    /// Its status as a ReplicaSetStatus.
    fn status(&self) -> Option<ReplicaSetStatus>;
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
pub(crate) fn start<K: Owner>(shared: &Arc<Shared>) {
    let controller = Arc::new(Replicas::<K> {
        shared: shared.clone(),
        owners: shared.writer(K::ACCOUNT),
        pods: shared.writer(K::ACCOUNT),
        recorder: shared.recorder(K::ACCOUNT, K::COMPONENT),
    });
    let owners = controller.owners.cache().clone();
    shared
        .controller(&controller)
        .skips(shared.metrics.replica_skips.skips())
        .watches(controller.owners.cache())
        .owns_if(
            members::concerns_workload,
            &controller
                .pods
                .cache()
                .only(|facts: &Facts| facts.concerns(<K as k8s_openapi::Resource>::KIND)),
            <K as k8s_openapi::Resource>::KIND,
            move |pod| keys_selecting(&owners, pod),
        )
        .workers(WORKERS)
        .rest(REST)
        .start();
}

impl<K: Owner> Controller for Replicas<K> {
    fn name(&self) -> &'static str {
        K::COMPONENT
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(owner) = self.owners.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let wish = owner.wish();
        let (mut active, mut terminating) = self.members(&*owner, &wish.selector).await?;
        let now = self.shared.now();
        let (mut outcome, mut is_settled) = (Ok(()), true);
        if owner.meta().deletion_timestamp.is_none() {
            let related = |own: &[Member]| self.related(&*owner, own);
            let plan = plan(wish.replicas, &mut active, related, now);
            is_settled = matches!(plan, Plan::Nothing);
            outcome = match plan {
                Plan::Nothing => Ok(()),
                Plan::Create(count) => self.create(&*owner, wish.template, count).await,
                Plan::Delete(members) => {
                    for ratio in age_ratios(&active, &members, now) {
                        let metric = &self.shared.metrics.deletion_age_ratio;
                        metric.observe([], ratio);
                    }
                    self.delete(&*owner, members).await
                }
            };
        }
        if !is_settled {
            // The informer shows what was created and deleted: counted now, it needs no second status.
            (active, terminating) = divide(self.own(&*owner, &wish.selector).0);
        }
        let terminating = K::COUNTS_TERMINATING.then_some(terminating);
        let before = owner.status();
        let failure = outcome.as_ref().err().map(podcontrol::message);
        let known = before.as_ref().and_then(|before| before.conditions.clone());
        let status = ReplicaSetStatus {
            terminating_replicas: terminating,
            observed_generation: owner.meta().generation,
            conditions: conditions(known, failure, count(active.iter()), wish.replicas, now),
            ..counts(&wish, &active, now)
        };
        if before.as_ref() != Some(&status) {
            let updated = owner.with_status(status);
            self.owners.update_status(&key.namespace, &updated).await?;
        }
        outcome?;
        Ok(next_look(&active, wish.min_ready_seconds, is_settled, now))
    }
}

impl<K: Owner> Replicas<K> {
    /// The active pods that `owner` controls after adopting and releasing, and how many terminating ones it has. Only
    /// pods that it adopts or releases are decoded.
    async fn members(&self, owner: &K, selector: &Selector) -> Result<(Vec<Member>, i32), Error> {
        let cache = self.pods.cache();
        let (own, unclaimed) = self.own(owner, selector);
        let (mut active, terminating) = divide(own);
        let unclaimed: Vec<_> = unclaimed
            .into_iter()
            .filter(|member| member.facts().is_active())
            .map(|member| cache.read_entry(member.entry()))
            .collect();
        if !unclaimed.is_empty() {
            let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
            let api = Api::namespaced(self.shared.client(K::ACCOUNT), namespace);
            let adopted = claim::claim(owner, &api, selector, &self.pods, unclaimed, None).await?;
            active.extend(adopted.into_iter().map(Member::detached));
        }
        Ok((active, terminating))
    }

    /// The pods that `owner` controls, and those that it may have to release or adopt.
    fn own(&self, owner: &K, selector: &Selector) -> (Vec<Member>, Vec<Member>) {
        let meta = owner.meta();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let uid = meta.uid.as_deref();
        members::own_and_unclaimed(self.pods.cache(), uid, namespace, selector)
    }

    /// The pods of all ReplicaSets with the same controller, whose distribution over nodes affects
    /// the deletion order.
    fn related(&self, owner: &K, own: &[Member]) -> Vec<Member> {
        let Some(controller) = controller_of(owner) else {
            return own.to_vec();
        };
        let siblings = self.owners.cache().by_index(OWNER, &controller.uid);
        let cache = self.pods.cache();
        let uid = |sibling: &K| sibling.meta().uid.clone().unwrap_or_default();
        siblings
            .into_iter()
            .flat_map(|sibling| Member::by_index(cache, OWNER, &uid(&sibling)))
            .collect()
    }

    async fn create(
        &self,
        owner: &K,
        template: Option<&PodTemplateSpec>,
        count: usize,
    ) -> Result<(), Error> {
        let pod = podcontrol::from_template(owner, template);
        let create = |_| podcontrol::create(&self.pods, &self.recorder, owner, &pod);
        let (_, outcome) = podcontrol::in_growing_batches(count, create).await;
        outcome
    }

    async fn delete(&self, owner: &K, members: Vec<Member>) -> Result<(), Error> {
        let delete = |member| podcontrol::delete_member(&self.pods, &self.recorder, owner, member);
        let deletions = members.iter().map(delete);
        reconcile::all(reconcile::join_bounded(deletions).await)
    }
}

/// The active ones of these pods, and how many are terminating.
fn divide(own: Vec<Member>) -> (Vec<Member>, i32) {
    let (active, rest): (Vec<_>, Vec<_>) = own
        .into_iter()
        .partition(|member| member.facts().is_active());
    let terminating = rest.iter().filter(|member| member.facts().is_terminating());
    (active, count(terminating))
}

enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Member>),
}

/// `related` is called only if pods must be deleted.
fn plan(
    wanted: i32,
    active: &mut [Member],
    related: impl FnOnce(&[Member]) -> Vec<Member>,
    now: Timestamp,
) -> Plan {
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() < wanted {
        return Plan::Create((wanted - active.len()).min(BURST));
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus == 0 {
        return Plan::Nothing;
    }
    if surplus < active.len() {
        let related = related(active);
        members::deletion_order(active, &related, now);
    }
    Plan::Delete(active[..surplus].to_vec())
}

/// The age of each ready pod that was chosen, in times of the age of the youngest ready one, without fractions. Nothing is
/// chosen if all pods are deleted.
fn age_ratios(active: &[Member], chosen: &[Member], now: Timestamp) -> Vec<f64> {
    if chosen.len() == active.len() {
        return Vec::new();
    }
    let created = |members: &[Member]| -> Vec<Timestamp> {
        let ready = members.iter().map(Member::facts);
        let ready = ready.filter(|facts| facts.is_ready());
        ready.filter_map(Facts::created).collect()
    };
    let age = |created: Timestamp| now.duration_since(created).as_millis();
    let youngest = created(active).into_iter().max().map_or(0, age);
    let ages = created(chosen).into_iter().map(age);
    ages.filter_map(|age| Some(age.checked_div(youngest)? as f64))
        .collect()
}

fn count(pods: impl Iterator) -> i32 {
    i32::try_from(pods.count()).unwrap_or(i32::MAX)
}

/// The counts of a status.
fn counts(wish: &DesiredReplicas, active: &[Member], now: Timestamp) -> ReplicaSetStatus {
    let meta = wish
        .template
        .and_then(|template| template.metadata.as_ref());
    let labels = meta.and_then(|meta| meta.labels.as_ref());
    let labelled = labels.map_or_else(|| Selector::labels(&BTreeMap::new()), Selector::labels);
    let positive = |count: i32| (count > 0).then_some(count);
    let full = active.iter().filter(|member| member.is_selected(&labelled));
    let facts = || active.iter().map(Member::facts);
    let ready = facts().filter(|facts| facts.is_ready());
    let available = facts()
        .filter(|facts| facts.available_in(wish.min_ready_seconds, now) == Some(Duration::ZERO));
    ReplicaSetStatus {
        replicas: count(active.iter()),
        fully_labeled_replicas: positive(count(full)),
        ready_replicas: positive(count(ready)),
        available_replicas: positive(count(available)),
        ..Default::default()
    }
}

/// A failure keeps the message of its first occurrence.
fn conditions(
    before: Option<Vec<ReplicaSetCondition>>,
    failure: Option<String>,
    replicas: i32,
    wanted: i32,
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
                if replicas < wanted {
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

/// When the next ready pod becomes available. An owner whose pods all exist rests longer the more they are.
fn next_look(
    active: &[Member],
    min_ready_seconds: i32,
    is_settled: bool,
    now: Timestamp,
) -> Action {
    let waits = active
        .iter()
        .filter_map(|member| member.facts().available_in(min_ready_seconds, now));
    match waits.filter(|wait| !wait.is_zero()).min() {
        Some(wait) => Action::After(wait + Duration::from_millis(1)),
        None if is_settled => rest_of_pods(active.len()),
        None => Action::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::samples::{at, pod};

    fn decided(replicas: i32, pods: Vec<Pod>) -> String {
        let mut members: Vec<_> = pods
            .into_iter()
            .map(Arc::new)
            .map(Member::detached)
            .collect();
        match plan(replicas, &mut members, <[_]>::to_vec, at(100)) {
            Plan::Nothing => "nothing".into(),
            Plan::Create(count) => format!("create {count}"),
            Plan::Delete(members) => {
                let names: Vec<_> = members
                    .iter()
                    .map(|member| member.entry().name().to_owned())
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
    fn ages_of_chosen_pods_are_compared_with_that_of_the_youngest_ready_one() {
        let aged = |created: i64, ready: Option<i64>| {
            let mut pod = pod("a", ready);
            pod.metadata.creation_timestamp = Some(Time(at(created)));
            Member::detached(Arc::new(pod))
        };
        let active = [aged(0, Some(1)), aged(60, Some(61)), aged(90, None)];
        for (chosen, expected) in [
            (&active[..1], vec![2.0]),
            (&active[1..2], vec![1.0]),
            (&active[2..], vec![]),
            (&active[..], vec![]),
        ] {
            assert_eq!(age_ratios(&active, chosen, at(100)), expected);
        }
        let new = [aged(100, Some(100)), aged(0, Some(1))];
        assert!(age_ratios(&new, &new[..1], at(100)).is_empty());
    }

    #[test]
    fn siblings_are_collected_only_when_pods_have_to_go() {
        let mut one = [Member::detached(Arc::new(pod("a", None)))];
        for wanted in [1, 2] {
            let never = |_: &[Member]| panic!("nothing is deleted");
            plan(wanted, &mut one, never, at(100));
        }
    }

    #[test]
    fn the_status_counts_existing_pods() {
        let members = [pod("a", Some(10)), pod("b", Some(99)), pod("c", None)];
        let members = members.map(Arc::new).map(Member::detached);
        let wish = DesiredReplicas {
            replicas: 3,
            min_ready_seconds: 10,
            selector: Selector::nothing(),
            template: None,
        };
        let status = counts(&wish, &members, at(100));
        assert_eq!(status.replicas, 3);
        assert_eq!(status.ready_replicas, Some(2));
        assert_eq!(status.available_replicas, Some(1));
        let wait = Duration::from_millis(9001);
        for is_settled in [true, false] {
            let next = next_look(&members, 10, is_settled, at(100));
            assert_eq!(next, Action::After(wait));
        }
    }

    #[test]
    fn many_pods_that_exist_let_their_owner_rest_longer() {
        let members = vec![Member::detached(Arc::new(pod("a", None))); 5000];
        let next = |is_settled| next_look(&members, 0, is_settled, at(100));
        assert_eq!(next(true), Action::Rest(Duration::from_millis(100)));
        assert_eq!(next(false), Action::Done);
    }

    #[test]
    fn a_failure_is_reported_once_and_taken_back_when_it_is_over() {
        let failed = conditions(None, Some("no".into()), 0, 1, at(1));
        assert_eq!(
            failed.as_ref().unwrap()[0].reason.as_deref(),
            Some("FailedCreate")
        );
        let again = conditions(failed.clone(), Some("still no".into()), 0, 1, at(2));
        assert_eq!(again, failed);
        assert_eq!(conditions(failed, None, 1, 1, at(3)), None);
    }
}
