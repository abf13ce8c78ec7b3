//! The PersistentVolumeClaims of a StatefulSet's pods, and their owners by the retention policy.
//! Pure.

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::Resource;

use super::pod::{is_wanted, ordinal};

fn templates(set: &StatefulSet) -> impl Iterator<Item = &PersistentVolumeClaim> {
    let spec = set.spec.iter();
    spec.flat_map(|spec| spec.volume_claim_templates.iter().flatten())
}

/// The template name and the claim name of each template for an ordinal.
pub(super) fn names(set: &StatefulSet, ordinal: i64) -> Vec<(String, String)> {
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    let names = templates(set).map(|template| {
        let name = template.metadata.name.clone().unwrap_or_default();
        let claim = format!("{name}-{set_name}-{ordinal}");
        (name, claim)
    });
    names.collect()
}

/// The claims of an ordinal's pod.
pub(super) fn wanted(set: &StatefulSet, ordinal: i64) -> Vec<PersistentVolumeClaim> {
    let selector = set.spec.as_ref().map(|spec| &spec.selector);
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    let pairs = templates(set).zip(names(set, ordinal));
    let claims = pairs.map(|(template, (_, name))| {
        let mut claim = template.clone();
        claim.metadata.name = Some(name);
        claim.metadata.namespace = set.metadata.namespace.clone();
        if let Some(labels) = labels {
            let own = claim.metadata.labels.get_or_insert_default();
            own.extend(labels.clone());
        }
        claim.status = None;
        claim
    });
    claims.collect()
}

/// Whether claims are deleted with the set, and when scaled down.
fn policy(set: &StatefulSet) -> (bool, bool) {
    let spec = set.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    (
        deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
        deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
    )
}

fn reference(owner: &impl Resource<DynamicType = ()>, kind: &str, version: &str) -> OwnerReference {
    OwnerReference {
        api_version: version.to_owned(),
        kind: kind.to_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The set and a pod as owners.
struct Owners {
    set: OwnerReference,
    pod: OwnerReference,
}

impl Owners {
    fn new(set: &StatefulSet, pod: &Pod) -> Self {
        Self {
            set: reference(set, "StatefulSet", "apps/v1"),
            pod: reference(pod, "Pod", "v1"),
        }
    }

    fn names(known: &OwnerReference, owner: &OwnerReference) -> bool {
        (&known.api_version, &known.kind, &known.name)
            == (&owner.api_version, &owner.kind, &owner.name)
    }

    /// Whether it refers to the set or the pod by name.
    fn ours(&self, known: &OwnerReference) -> bool {
        Self::names(known, &self.set) || Self::names(known, &self.pod)
    }

    /// The right name, but another uid: an earlier set or pod, which the garbage collector handles.
    fn is_stale(&self, known: &OwnerReference) -> bool {
        (Self::names(known, &self.set) && known.uid != self.set.uid)
            || (Self::names(known, &self.pod) && known.uid != self.pod.uid)
    }
}

/// Whether another controller owns a claim that the policy would delete.
pub(super) fn has_other_controller(
    set: &StatefulSet,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> bool {
    let owners = Owners::new(set, pod);
    let known = claim.metadata.owner_references.iter().flatten();
    policy(set) != (false, false)
        && known.into_iter().any(|known| {
            owners.is_stale(known) || (!owners.ours(known) && known.controller == Some(true))
        })
}

/// The owners that a claim should have; `None` if it has them.
pub(super) fn owners(
    set: &StatefulSet,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let owners = Owners::new(set, pod);
    let known = claim.metadata.owner_references.clone().unwrap_or_default();
    if known.iter().any(|known| owners.is_stale(known)) {
        return None;
    }
    let (with_set, with_pod) = policy(set);
    let scaled_away = !ordinal(set, pod).is_some_and(|ordinal| is_wanted(set, ordinal));
    let mut right: Vec<_> = known
        .iter()
        .filter(|known| !owners.ours(known))
        .cloned()
        .collect();
    if !has_other_controller(set, pod, claim) {
        if with_set && !(with_pod && scaled_away) {
            right.push(owners.set.clone());
        }
        if with_pod && scaled_away {
            right.push(owners.pod.clone());
        }
    }
    let is_same = |a: &OwnerReference, b: &OwnerReference| {
        (&a.uid, a.controller.unwrap_or(false)) == (&b.uid, b.controller.unwrap_or(false))
    };
    let same =
        known.len() == right.len() && known.iter().all(|a| right.iter().any(|b| is_same(a, b)));
    (!same).then_some(right)
}

/// Whether a claim belongs to an earlier pod of the ordinal and will be deleted with it: a new pod
/// must wait.
pub(super) fn is_stale(set: &StatefulSet, pod_name: &str, claim: &PersistentVolumeClaim) -> bool {
    let known = claim.metadata.owner_references.iter().flatten();
    let (_, with_pod) = policy(set);
    with_pod
        && known.into_iter().any(|known| {
            (
                known.api_version.as_str(),
                known.kind.as_str(),
                known.name.as_str(),
            ) == ("v1", "Pod", pod_name)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(deleted: &str, scaled: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "ns", "uid": "set"},
            "spec": {
                "replicas": 2, "template": {}, "selector": {"matchLabels": {"app": "db"}},
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled},
                "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"a": "b"}}}],
            },
        }))
        .unwrap()
    }

    fn pod(ordinal: i64) -> Pod {
        let name = format!("db-{ordinal}");
        serde_json::from_value(json!({"metadata": {"name": name, "uid": name}})).unwrap()
    }

    fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
        let version = if kind == "StatefulSet" {
            "apps/v1"
        } else {
            "v1"
        };
        json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controller})
    }

    fn claim(owners: &[Value]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"ownerReferences": owners}})).unwrap()
    }

    #[test]
    fn claims_are_named_and_labelled_by_template_set_and_ordinal() {
        let claim = wanted(&set("Retain", "Retain"), 3).remove(0);
        assert_eq!(claim.metadata.name.as_deref(), Some("data-db-3"));
        let labels = claim.metadata.labels.unwrap();
        assert_eq!((labels["a"].as_str(), labels["app"].as_str()), ("b", "db"));
        assert_eq!(claim.metadata.owner_references, None);
    }

    #[test]
    fn the_retention_policy_decides_the_owner_of_a_claim() {
        let set_owns = owner("StatefulSet", "db", "set", true);
        let pod_owns = |ordinal: i64| {
            owner(
                "Pod",
                &format!("db-{ordinal}"),
                &format!("db-{ordinal}"),
                true,
            )
        };
        // Ordinals 0 and 1 are wanted, 5 is scaled down.
        for (deleted, scaled, ordinal, known, expected) in [
            ("Retain", "Retain", 0, vec![], None),
            ("Retain", "Retain", 0, vec![set_owns.clone()], Some(vec![])),
            ("Retain", "Retain", 5, vec![], None),
            ("Delete", "Retain", 0, vec![], Some(vec!["set"])),
            ("Delete", "Retain", 0, vec![set_owns.clone()], None),
            ("Delete", "Retain", 5, vec![set_owns.clone()], None),
            ("Retain", "Delete", 0, vec![], None),
            ("Retain", "Delete", 5, vec![], Some(vec!["db-5"])),
            ("Retain", "Delete", 5, vec![pod_owns(5)], None),
            ("Retain", "Delete", 0, vec![pod_owns(0)], Some(vec![])),
            ("Delete", "Delete", 0, vec![], Some(vec!["set"])),
            (
                "Delete",
                "Delete",
                5,
                vec![set_owns.clone()],
                Some(vec!["db-5"]),
            ),
            // Not as a controller: corrected.
            (
                "Delete",
                "Retain",
                0,
                vec![owner("StatefulSet", "db", "set", false)],
                Some(vec!["set"]),
            ),
            // An earlier set's or pod's: left alone.
            (
                "Delete",
                "Retain",
                0,
                vec![owner("StatefulSet", "db", "earlier", true)],
                None,
            ),
            (
                "Delete",
                "Delete",
                5,
                vec![owner("Pod", "db-5", "earlier", true)],
                None,
            ),
            // Another controller's: our reference is removed, and the claim never deleted.
            (
                "Delete",
                "Delete",
                0,
                vec![owner("Other", "x", "x", true)],
                None,
            ),
            (
                "Delete",
                "Retain",
                0,
                vec![owner("Other", "x", "x", true), set_owns.clone()],
                Some(vec!["x"]),
            ),
            // Owners that are not controllers stay.
            (
                "Delete",
                "Retain",
                0,
                vec![owner("Other", "x", "x", false)],
                Some(vec!["x", "set"]),
            ),
        ] {
            let right = owners(&set(deleted, scaled), &pod(ordinal), &claim(&known));
            let uids =
                right.map(|right| right.into_iter().map(|owner| owner.uid).collect::<Vec<_>>());
            let expected =
                expected.map(|uids| uids.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(uids, expected, "{deleted} {scaled} {ordinal} {known:?}");
        }
    }

    #[test]
    fn a_claim_that_leaves_with_its_pod_keeps_the_next_one_waiting() {
        let left = claim(&[owner("Pod", "db-1", "earlier", true)]);
        assert!(is_stale(&set("Retain", "Delete"), "db-1", &left));
        assert!(!is_stale(&set("Retain", "Retain"), "db-1", &left));
        assert!(!is_stale(&set("Retain", "Delete"), "db-0", &left));
        assert!(!is_stale(&set("Retain", "Delete"), "db-1", &claim(&[])));
    }
}
