//! The pods of a workload by facts that the informer keeps for every pod: a workload may have more pods than can be kept
//! decoded. Also the order in which pods are deleted. Pure.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use client::{
    Informer,
    informer::{Entry, Labelled},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use reconcile::Selector;

use crate::{
    endpointslice::view::addresses,
    job, pods, resourceclaim,
    shared::{LABEL, OWNER, claims_of, controller_of, orphans_of, selected_key},
};

/// The kind of a pod's controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerKind {
    None,
    ReplicaSet,
    ReplicationController,
    DaemonSet,
    StatefulSet,
    Job,
    Other,
}

impl OwnerKind {
    fn of_pod(pod: &Pod) -> Self {
        let owner = controller_of(pod);
        owner.map_or(Self::None, |owner| Self::from_name(&owner.kind))
    }

    fn from_name(kind: &str) -> Self {
        match kind {
            "ReplicaSet" => Self::ReplicaSet,
            "ReplicationController" => Self::ReplicationController,
            "DaemonSet" => Self::DaemonSet,
            "StatefulSet" => Self::StatefulSet,
            "Job" => Self::Job,
            _ => Self::Other,
        }
    }
}

/// The facts of a pod that decide about the pods of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    is_terminal: bool,
    has_failed: bool,
    is_deleting: bool,
    stage: (bool, u8, bool),
    ready_since: Option<Timestamp>,
    created: Option<Timestamp>,
    deletion_cost: i32,
    restarts: i32,
    has_claims: bool,
    has_device_claims: bool,
    is_tracked: bool,
    owner: OwnerKind,
    node: Box<str>,
    addresses: Box<[IpAddr]>,
}

impl Facts {
    pub(crate) fn new(pod: &Pod) -> Self {
        Self {
            is_terminal: pods::is_terminal(pod),
            has_failed: pods::phase(pod) == "Failed",
            is_deleting: pods::is_deleting(pod),
            stage: pods::stage(pod),
            ready_since: pods::ready_since(pod),
            created: pods::created(pod),
            deletion_cost: deletion_cost(pod),
            restarts: pods::restarts(pod),
            has_claims: !claims_of(pod).is_empty(),
            has_device_claims: resourceclaim::decide::has_claims(pod),
            is_tracked: job::is_tracked(pod),
            owner: OwnerKind::of_pod(pod),
            node: pods::node(pod).into(),
            addresses: addresses(pod).into(),
        }
    }

    /// Neither terminated nor being deleted.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_terminal && !self.is_deleting
    }

    /// Being deleted, and not terminated.
    pub(crate) fn is_terminating(&self) -> bool {
        !self.is_terminal && self.is_deleting
    }

    /// Whether all its containers have ended for good.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether all its containers have ended for good, and it failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether it has a deletion timestamp.
    pub(crate) fn is_deleting(&self) -> bool {
        self.is_deleting
    }

    /// When it was created.
    pub(crate) fn created(&self) -> Option<Timestamp> {
        self.created
    }

    /// Whether it has volumes of PersistentVolumeClaims.
    pub(crate) fn has_claims(&self) -> bool {
        self.has_claims
    }

    /// Whether it has ResourceClaims, or entries for such.
    pub(crate) fn has_device_claims(&self) -> bool {
        self.has_device_claims
    }

    /// Whether it has the finalizer of Jobs.
    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// Whether a controller of this kind controls it, or none does.
    pub(crate) fn concerns(&self, kind: &str) -> bool {
        self.owner == OwnerKind::None || self.owner == OwnerKind::from_name(kind)
    }

    /// The name of its node; empty if it has none.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Whether it has this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        let canonical = address.to_canonical();
        self.addresses
            .iter()
            .any(|known| known.to_canonical() == canonical)
    }

    /// Whether the condition Ready is True.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage.2
    }

    /// How long until the pod has been ready for `min_ready_seconds`; zero if it has, `None` if it is not ready.
    pub(crate) fn available_in(&self, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
        let since = || self.ready_since;
        let is_ready = self.is_ready();
        is_ready.then(|| pods::available_after(since, min_ready_seconds, now))?
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    let cost = annotations.and_then(|map| map.get("controller.kubernetes.io/pod-deletion-cost"));
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// Whether a change of a pod can change what its workload does or its status. Most changes cannot, such as a pod's
/// assignment to a node.
pub(crate) fn concerns_workload(old: &Pod, new: &Pod) -> bool {
    let facts = |pod: &Pod| {
        (
            pods::is_terminal(pod),
            pods::is_deleting(pod),
            pods::is_ready(pod),
            pods::ready_since(pod),
            pods::restarts(pod),
        )
    };
    let (before, after) = (&old.metadata, &new.metadata);
    facts(old) != facts(new)
        || before.labels != after.labels
        || before.owner_references != after.owner_references
        || before.finalizers != after.finalizers
}

/// A pod that is not decoded.
#[derive(Clone)]
pub(crate) struct Member(Entry<Pod>);

impl Member {
    /// A pod that is not in the informer yet, such as one that was just adopted.
    pub(crate) fn detached(pod: Arc<Pod>) -> Self {
        let facts = Facts::new(&pod);
        Self(Entry::detached(pod, facts))
    }

    /// The pods under `key` of an index of the shared informer.
    pub(crate) fn by_index(pods: &Informer<Pod>, index: &str, key: &str) -> Vec<Self> {
        let entries = pods.entries_by_index(index, key).into_iter();
        let known = entries.filter(|entry| entry.summary::<Facts>().is_some());
        known.map(Self).collect()
    }

    pub(crate) fn entry(&self) -> &Entry<Pod> {
        &self.0
    }

    pub(crate) fn facts(&self) -> &Facts {
        // `by_index` leaves out entries without facts.
        self.0.summary().expect("a member has facts")
    }

    /// Whether a selector matches its labels.
    pub(crate) fn is_selected(&self, selector: &Selector) -> bool {
        selector.matches_with(|key| self.0.label(key))
    }
}

/// The pods that the object of this uid controls and its selector matches; and those that it may have to release, because
/// its selector does not match them, or to adopt, because they have no controller.
pub(crate) fn own_and_unclaimed(
    pods: &Informer<Pod>,
    uid: Option<&str>,
    namespace: &str,
    selector: &Selector,
) -> (Vec<Member>, Vec<Member>) {
    let controlled = Member::by_index(pods, OWNER, uid.unwrap_or_default()).into_iter();
    let (own, mut unclaimed): (Vec<_>, Vec<_>) =
        controlled.partition(|member| member.is_selected(selector));
    unclaimed.extend(selected_orphans(pods, namespace, selector));
    (own, unclaimed)
}

/// The pods of a namespace without a controller that a selector matches. A namespace may have many pods without a
/// controller, and a workload many pods with a label: the fewer ones are visited.
fn selected_orphans(pods: &Informer<Pod>, namespace: &str, selector: &Selector) -> Vec<Member> {
    let all = orphans_of(namespace);
    let labels = selector.required_labels();
    let keys = labels.map(|(label, value)| (LABEL, selected_key(namespace, label, value)));
    let fewest = keys
        .chain([(OWNER, all)])
        .min_by_key(|(index, key)| pods.count_by_index(index, key));
    let found = fewest.map(|(index, key)| Member::by_index(pods, index, &key));
    let mut found = found.unwrap_or_default();
    found.retain(|pod| pod.facts().owner == OwnerKind::None && pod.is_selected(selector));
    found
}

/// The pods that the object of this uid controls, and the orphans of its namespace that its selector matches. Other
/// orphans are not decoded: there may be many.
pub(crate) fn candidates(
    pods: &Informer<Pod>,
    uid: Option<&str>,
    namespace: &str,
    selector: &Selector,
) -> Vec<Arc<Pod>> {
    let mut candidates = pods.by_index(OWNER, uid.unwrap_or_default());
    let selected = selected_orphans(pods, namespace, selector).into_iter();
    candidates.extend(selected.map(|orphan| pods.read_entry(orphan.entry())));
    candidates
}

/// The age as a power of two, for comparison; no time counts as the youngest.
fn age_class(since: Option<Timestamp>, now: Timestamp) -> Option<u32> {
    let nanoseconds = now.duration_since(since?).as_nanos();
    Some(
        nanoseconds
            .max(0)
            .checked_ilog2()
            .map_or(0, |class| class + 1),
    )
}

/// Sorts pods in the order of deletion: unassigned before assigned, pending before running, not
/// ready before ready, lower deletion cost, nodes with more related pods, younger.
pub(crate) fn deletion_order(members: &mut [Member], related: &[Member], now: Timestamp) {
    let mut crowd: HashMap<&str, usize> = HashMap::new();
    for facts in related.iter().map(Member::facts) {
        if facts.is_active() {
            *crowd.entry(&*facts.node).or_default() += 1;
        }
    }
    // One key per pod makes the order total. Upstream compares two times of one class by uid and
    // two equal times by further criteria, which can be cyclic.
    members.sort_by_cached_key(|member| {
        let facts = member.facts();
        (
            facts.stage,
            facts.deletion_cost,
            Reverse(crowd.get(&*facts.node).copied()),
            age_class(facts.ready_since, now),
            Reverse(facts.restarts),
            age_class(facts.created, now),
            member.0.name().to_owned(),
        )
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::ContainerStatus, apimachinery::pkg::apis::meta::v1::OwnerReference,
    };

    use super::*;
    use crate::{
        pods::samples::{at, pod},
        shared::Watched,
    };

    fn order(pods: Vec<Pod>) -> Vec<String> {
        let mut members: Vec<_> = pods
            .into_iter()
            .map(Arc::new)
            .map(Member::detached)
            .collect();
        let related = members.clone();
        deletion_order(&mut members, &related, at(1000));
        let names = members.iter().map(|member| member.entry().name());
        names.map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_pod_concerns_the_kind_of_its_controller_or_all_kinds() {
        let owned = |kind: Option<&str>| {
            let mut pod = pod("a", None);
            pod.metadata.owner_references = kind.map(|kind| {
                vec![OwnerReference {
                    kind: kind.into(),
                    controller: Some(true),
                    ..Default::default()
                }]
            });
            Facts::new(&pod)
        };
        for (owner, kind, expected) in [
            (None, "Job", true),
            (Some("Job"), "Job", true),
            (Some("ReplicaSet"), "Job", false),
            (Some("Game"), "Job", false),
            (Some("DaemonSet"), "DaemonSet", true),
        ] {
            assert_eq!(owned(owner).concerns(kind), expected, "{owner:?} {kind}");
        }
    }

    #[test]
    fn an_assignment_to_a_node_does_not_concern_a_workload() {
        let running = pod("a", Some(100));
        let mut unassigned = running.clone();
        unassigned.spec = None;
        assert!(!concerns_workload(&unassigned, &running));
        let mut labelled = running.clone();
        labelled.metadata.labels = Some([("a".into(), "b".into())].into());
        assert!(concerns_workload(&running, &labelled));
        assert!(concerns_workload(&running, &pod("a", None)));
        assert!(concerns_workload(&running, &pod("a", Some(101))));
    }

    #[tokio::test]
    async fn a_workload_may_claim_its_own_pods_and_the_orphans_that_it_selects() {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let informer = Pod::indexed(Informer::builder(client::in_process(refused))).offline();
        for (name, namespace, owner, app) in [
            ("own", "ns", Some("set"), "a"),
            ("own-but-not-selected", "ns", Some("set"), "b"),
            ("orphan", "ns", None, "a"),
            ("other-orphan", "ns", None, "b"),
            ("far-orphan", "elsewhere", None, "a"),
            ("of-another", "ns", Some("other"), "a"),
        ] {
            let owner = owner.map(|uid| {
                serde_json::json!([{"apiVersion": "v1", "kind": "Set", "name": uid, "uid": uid, "controller": true}])
            });
            let pod = serde_json::json!({"metadata": {
                "namespace": namespace, "name": name, "uid": name,
                "labels": {"app": app}, "ownerReferences": owner,
            }});
            informer.upsert(serde_json::from_value(pod).unwrap());
        }
        let selector = Selector::labels(&[("app".to_owned(), "a".to_owned())].into());
        let found = candidates(&informer, Some("set"), "ns", &selector);
        let names: Vec<_> = found
            .iter()
            .map(|pod| pod.metadata.name.as_deref().unwrap())
            .collect();
        assert_eq!(names, ["own", "own-but-not-selected", "orphan"]);
        let (own, unclaimed) = own_and_unclaimed(&informer, Some("set"), "ns", &selector);
        let names = |members: &[Member]| {
            let names = members
                .iter()
                .map(|member| member.entry().name().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&own), ["own"]);
        assert_eq!(names(&unclaimed), ["own-but-not-selected", "orphan"]);
    }

    #[tokio::test]
    async fn selected_pods_are_found_by_labels_and_without() {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let informer = Pod::indexed(Informer::builder(client::in_process(refused))).offline();
        for (name, namespace, owner, labels) in [
            (
                "web",
                "ns",
                Some("set"),
                [("app", "web"), ("pod-template-hash", "1")],
            ),
            (
                "back",
                "ns",
                Some("set"),
                [("app", "web"), ("tier", "back")],
            ),
            (
                "orphan",
                "ns",
                None,
                [("app", "web"), ("pod-template-hash", "1")],
            ),
            ("far", "elsewhere", None, [("app", "web"), ("tier", "back")]),
        ] {
            let owner = owner.map(|uid| {
                serde_json::json!([{"apiVersion": "v1", "kind": "Set", "name": uid, "uid": uid, "controller": true}])
            });
            let pod = serde_json::json!({"metadata": {
                "namespace": namespace, "name": name, "uid": name,
                "labels": labels.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
                "ownerReferences": owner,
            }});
            informer.upsert(serde_json::from_value(pod).unwrap());
        }
        for (labels, selected, orphans) in [
            (vec![], vec!["back", "orphan", "web"], vec!["orphan"]),
            (
                vec![("app", "web")],
                vec!["back", "orphan", "web"],
                vec!["orphan"],
            ),
            (vec![("app", "web"), ("tier", "back")], vec!["back"], vec![]),
            (vec![("app", "other")], vec![], vec![]),
            // A label that controllers make is indexed only for pods without one.
            (
                vec![("pod-template-hash", "1")],
                vec!["orphan", "web"],
                vec!["orphan"],
            ),
            (
                vec![("app", "web"), ("pod-template-hash", "1")],
                vec!["orphan", "web"],
                vec!["orphan"],
            ),
        ] {
            let text = format!("{labels:?}");
            let labels = labels.into_iter();
            let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
            let selector = Selector::labels(&labels.collect());
            let found = crate::shared::selected_in(&informer, "ns", &selector);
            let names = found
                .iter()
                .map(|pod| pod.metadata.name.as_deref().unwrap());
            assert_eq!(names.collect::<Vec<_>>(), selected, "{text}");
            let found = selected_orphans(&informer, "ns", &selector);
            let names = found.iter().map(|member| member.entry().name());
            assert_eq!(names.collect::<Vec<_>>(), orphans, "{text}");
        }
        let found = |label| informer.count_by_index(LABEL, &selected_key("ns", label, "1"));
        assert_eq!(found("pod-template-hash"), 1);
    }

    #[test]
    fn facts_tell_when_a_pod_becomes_available_as_the_pod_does() {
        for pod in [pod("a", Some(100)), pod("b", None)] {
            for (seconds, now) in [(0, 100), (10, 105), (10, 110), (-1, 100)] {
                let expected = pods::available_in(&pod, seconds, at(now));
                let seen = Facts::new(&pod).available_in(seconds, at(now));
                assert_eq!(seen, expected);
            }
        }
    }

    #[test]
    fn many_pods_have_an_order_whatever_their_times_and_restarts() {
        // Equal times, times of one class, and restarts, for which pairwise comparison would be
        // cyclic.
        let pods: Vec<Pod> = (0..600)
            .map(|number| {
                let mut pod = pod(&format!("p{}", number * 7919 % 600), Some(100 + number % 5));
                let status = ContainerStatus {
                    restart_count: (number % 3) as i32,
                    ..Default::default()
                };
                pod.status.as_mut().unwrap().container_statuses = Some(vec![status]);
                pod
            })
            .collect();
        let forward = order(pods.clone());
        assert_eq!(order(pods.into_iter().rev().collect()), forward);
    }

    #[test]
    fn the_least_useful_pods_are_deleted_first() {
        let mut unassigned = pod("unassigned", None);
        unassigned.spec = None;
        let mut pending = pod("pending", None);
        pending.status.as_mut().unwrap().phase = Some("Pending".into());
        let mut cheap = pod("cheap", Some(10));
        cheap.metadata.annotations = Some(
            [(
                "controller.kubernetes.io/pod-deletion-cost".into(),
                "-5".into(),
            )]
            .into(),
        );
        let (old, young, unready) = (
            pod("old", Some(10)),
            pod("young", Some(990)),
            pod("unready", None),
        );
        let seen = order(vec![old, young, cheap, unready, pending, unassigned]);
        assert_eq!(
            seen,
            ["unassigned", "pending", "unready", "cheap", "young", "old"]
        );
    }

    #[test]
    fn pods_on_nodes_with_more_replicas_are_deleted_first() {
        let mut alone = pod("alone", Some(10));
        alone.spec.as_mut().unwrap().node_name = Some("n2".into());
        let seen = order(vec![alone, pod("a", Some(10)), pod("b", Some(10))]);
        assert_eq!(seen, ["a", "b", "alone"]);
    }
}
