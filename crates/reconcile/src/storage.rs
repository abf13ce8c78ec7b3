//! Which PersistentVolume matches which PersistentVolumeClaim, and how a binding is written. Shared
//! by the volume binder, the attach/detach controller and the scheduler, so that they agree. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::{
            ObjectReference, PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm, Volume,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource,
};
use kube::api::ObjectMeta;
use machinery::quantity::Quantity;

use crate::{Selector, placement::matches_any};

type Labels = BTreeMap<String, String>;

/// Annotation of claims: the binding was completed once.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of claims and volumes: a controller made the binding, not a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation of claims: the node for provisioning.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of volumes: their provisioner.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of claims: the provisioner to use.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The deprecated form, which provisioners still read.
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The binder's finalizer of volumes of in-tree provisioners.
pub const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";
/// External provisioners' finalizer of the volumes that they must delete.
pub const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The provisioner of classes without dynamic provisioning.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// The value of an annotation.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether an annotation exists.
pub fn is_annotated(meta: &ObjectMeta, key: &str) -> bool {
    annotation(meta, key).is_some()
}

/// Sets an annotation.
pub fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) {
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(key.to_owned(), value.to_owned());
}

/// Whether the claim names a class; the empty name counts, too.
pub fn has_class(claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref();
    is_annotated(&claim.metadata, BETA_CLASS)
        || spec.is_some_and(|spec| spec.storage_class_name.is_some())
}

/// The class of a claim; empty if it has none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    let named = || spec.and_then(|spec| spec.storage_class_name.as_deref());
    let class = annotation(&claim.metadata, BETA_CLASS).or_else(named);
    class.unwrap_or_default()
}

/// The class of a volume; empty if it has none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let named = || spec.and_then(|spec| spec.storage_class_name.as_deref());
    let class = annotation(&volume.metadata, BETA_CLASS).or_else(named);
    class.unwrap_or_default()
}

/// The default class: the newest of the marked ones, then the first by name.
pub fn default_class<'a>(
    classes: impl Iterator<Item = &'a StorageClass>,
) -> Option<&'a StorageClass> {
    let is_default = |class: &&StorageClass| {
        let mut keys = DEFAULT_CLASS.iter();
        keys.any(|key| annotation(&class.metadata, key) == Some("true"))
    };
    classes.filter(is_default).min_by(|a, b| {
        let created = |class: &StorageClass| {
            let created = class.metadata.creation_timestamp.as_ref();
            created.map(|time| time.0)
        };
        created(b)
            .cmp(&created(a))
            .then_with(|| a.metadata.name.cmp(&b.metadata.name))
    })
}

/// Whether the class has WaitForFirstConsumer.
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// A claim's storage request.
pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    storage(requests).unwrap_or(Quantity::ZERO)
}

/// A volume's capacity.
pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

/// The `storage` quantity of a resource list.
pub fn storage(amounts: Option<&BTreeMap<String, resource::Quantity>>) -> Option<Quantity> {
    amounts?.get("storage")?.0.parse().ok()
}

/// The claim of a pod's volume: the one that it names, or that of a generic ephemeral volume.
pub fn claim_name(pod: &str, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    let made = volume.ephemeral.as_ref();
    made.map(|_| format!("{pod}-{}", volume.name))
}

/// The volume that the claim names, if any.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Whether the binding of a claim is completed.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some() && is_annotated(&claim.metadata, BIND_COMPLETED)
}

/// The claim that a volume is bound to or reserved for.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The uid, if it is set.
pub fn uid(reference: &ObjectReference) -> Option<&str> {
    reference.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// Whether the volume is bound to this claim, or reserved for a claim of its name.
pub fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = claim_ref(volume) else {
        return false;
    };
    let meta = &claim.metadata;
    reference.name == meta.name
        && reference.namespace == meta.namespace
        && uid(reference).is_none_or(|uid| Some(uid) == meta.uid.as_deref())
}

/// The volume bound to the claim; `None` if it already is.
pub fn bound_to(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolume> {
    let by_user = is_bound_to(volume, claim);
    let complete = by_user && claim_ref(volume).is_some_and(|known| uid(known).is_some());
    let marked = by_user || is_annotated(&volume.metadata, BOUND_BY_CONTROLLER);
    if complete && marked {
        return None;
    }
    let mut bound = volume.clone();
    if !complete {
        bound.spec.get_or_insert_default().claim_ref = Some(reference(claim));
    }
    if !marked {
        annotate(&mut bound.metadata, BOUND_BY_CONTROLLER, "yes");
    }
    Some(bound)
}

/// The reference to a claim in a volume.
pub fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    let meta = &claim.metadata;
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// Whether the volume modes of claim and volume differ.
pub fn modes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    let claim = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_ref());
    let volume = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_ref());
    mode(claim) != mode(volume)
}

/// Whether the volume has every access mode that the claim requests.
pub fn has_access_modes(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let has = access_modes(volume);
    let wanted = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_ref());
    let mut wanted = wanted.into_iter().flatten();
    wanted.all(|mode| has.contains(mode))
}

/// The access modes of a volume.
pub fn access_modes(volume: &PersistentVolume) -> &[String] {
    let modes = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_ref());
    modes.map_or(&[], Vec::as_slice)
}

fn attributes_classes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let claim = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let volume = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_attributes_class_name.as_deref());
    claim.unwrap_or_default() != volume.unwrap_or_default()
}

/// Whether a node with these labels can access the volume.
pub fn reaches(volume: &PersistentVolume, labels: &Labels, node: &str) -> bool {
    let affinity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| matches_any(&required.node_selector_terms, labels, node))
}

/// Whether a node with these labels is in a topology that a class allows.
pub fn is_allowed_topology(terms: Option<&Vec<TopologySelectorTerm>>, labels: &Labels) -> bool {
    let Some(terms) = terms.filter(|terms| !terms.is_empty()) else {
        return true;
    };
    terms.iter().any(|term| {
        let mut expressions = term.match_label_expressions.iter().flatten();
        let has = |key: &str, values: &[String]| {
            labels.get(key).is_some_and(|value| values.contains(value))
        };
        let is_empty = term
            .match_label_expressions
            .as_ref()
            .is_none_or(Vec::is_empty);
        !is_empty && expressions.all(|wanted| has(&wanted.key, &wanted.values))
    })
}

/// Why a volume that the claim names cannot be bound to it, in upstream's words.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    if volume.metadata.deletion_timestamp.is_some() {
        return Some(format!("the volume is marked for deletion {name:?}"));
    }
    let size = capacity(volume).unwrap_or(Quantity::ZERO);
    let reason = if size.value() < requested(claim).value() {
        "requested PV is too small"
    } else if volume_class(volume) != claim_class(claim) {
        "storageClassName does not match"
    } else if attributes_classes_differ(claim, volume) {
        "volumeAttributesClassName does not match"
    } else if modes_differ(claim, volume) {
        "incompatible volumeMode"
    } else if !has_access_modes(claim, volume) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// The node for which a volume is searched.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
}

/// The volume to bind the claim to: the one that is bound to it or reserved for it, or the smallest
/// matching one. Without a `node`, a claim with WaitForFirstConsumer gets only a reserved volume.
pub fn find_match<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl Iterator<Item = &'a PersistentVolume>,
    node: Option<Node<'_>>,
    waits: bool,
    excluded: &BTreeSet<&str>,
) -> Option<&'a PersistentVolume> {
    let (wanted, class) = (requested(claim), claim_class(claim));
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.map(|selector| Selector::from_label_selector(Some(selector)));
    let mut best: Option<(Quantity, &PersistentVolume)> = None;
    for volume in volumes {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let reserved = is_bound_to(volume, claim);
        if excluded.contains(name) || (claim_ref(volume).is_some() && !reserved) {
            continue;
        }
        let size = capacity(volume).unwrap_or(Quantity::ZERO);
        if size < wanted
            || modes_differ(claim, volume)
            || attributes_classes_differ(claim, volume)
            || volume.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        let reachable = || node.is_none_or(|node| reaches(volume, node.labels, node.name));
        if reserved {
            return reachable().then_some(volume);
        }
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let labels = volume.metadata.labels.as_ref();
        if (node.is_none() && waits)
            || phase != Some("Available")
            || volume_class(volume) != class
            || !has_access_modes(claim, volume)
            || selector.as_ref().is_some_and(|all| !all.matches(labels))
            || !reachable()
        {
            continue;
        }
        if best.is_none_or(|best| is_closer(node.is_some(), (size, volume), best)) {
            best = Some((size, volume));
        }
    }
    best.map(|(_, volume)| volume)
}

/// Whether a volume is a better match than the best so far. Without a node, fewer access modes are
/// preferred to a smaller size.
fn is_closer(
    by_size: bool,
    (size, volume): (Quantity, &PersistentVolume),
    (best_size, best): (Quantity, &PersistentVolume),
) -> bool {
    let (modes, best_modes) = (access_modes(volume).len(), access_modes(best).len());
    if by_size || modes == best_modes {
        return size < best_size;
    }
    modes < best_modes
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        let meta = json!({"name": "data", "namespace": "default", "uid": "c"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    fn volume(name: &str, size: &str, modes: &[&str]) -> Value {
        json!({
            "metadata": {"name": name, "labels": {"name": name}},
            "spec": {"capacity": {"storage": size}, "accessModes": modes},
            "status": {"phase": "Available"},
        })
    }

    fn asking(size: &str, modes: &[&str]) -> Value {
        json!({"accessModes": modes, "resources": {"requests": {"storage": size}}})
    }

    fn found(claim: &PersistentVolumeClaim, volumes: &[Value], waits: bool) -> Option<String> {
        let volumes: Vec<PersistentVolume> = volumes
            .iter()
            .map(|volume| serde_json::from_value(volume.clone()).unwrap())
            .collect();
        let found = find_match(claim, volumes.iter(), None, waits, &BTreeSet::new());
        found.and_then(|volume| volume.metadata.name.clone())
    }

    #[test]
    fn the_smallest_volume_with_the_fewest_access_modes_is_taken() {
        let volumes = [
            volume("small", "1Gi", &["ReadWriteOnce"]),
            volume("many-modes", "5Gi", &["ReadWriteOnce", "ReadOnlyMany"]),
            volume("large", "10Gi", &["ReadWriteOnce"]),
            volume("fitting", "8Gi", &["ReadWriteOnce"]),
            volume("other-mode", "5Gi", &["ReadWriteMany"]),
        ];
        let asks = claim(asking("5Gi", &["ReadWriteOnce"]));
        assert_eq!(found(&asks, &volumes, false).as_deref(), Some("fitting"));
        assert_eq!(
            found(&asks, &volumes[..2], false).as_deref(),
            Some("many-modes")
        );
        assert_eq!(found(&asks, &volumes[4..], false), None);
        assert_eq!(found(&asks, &volumes, true), None, "the scheduler binds it");
    }

    #[test]
    fn unsuitable_volumes_are_skipped() {
        let asks = claim(asking("1Gi", &["ReadWriteOnce"]));
        let changed = |path: &str, value: Value| {
            let mut one = volume("pv", "1Gi", &["ReadWriteOnce"]);
            *one.pointer_mut(path).unwrap() = value;
            found(&asks, &[one], false)
        };
        assert!(changed("/status/phase", json!("Available")).is_some());
        assert_eq!(changed("/status/phase", json!("Released")), None);
        assert_eq!(changed("/spec/accessModes", json!(["ReadOnlyMany"])), None);
        for (field, value) in [
            ("storageClassName", json!("fast")),
            ("volumeMode", json!("Block")),
            ("volumeAttributesClassName", json!("gold")),
            ("claimRef", json!({"name": "other", "namespace": "default"})),
            (
                "claimRef",
                json!({"name": "data", "namespace": "default", "uid": "old"}),
            ),
        ] {
            let mut one = volume("pv", "1Gi", &["ReadWriteOnce"]);
            one["spec"][field] = value;
            assert_eq!(found(&asks, &[one], false), None, "{field}");
        }
        let mut picky = asking("1Gi", &["ReadWriteOnce"]);
        picky["selector"] = json!({"matchLabels": {"name": "b"}});
        let volumes = ["a", "b"].map(|name| volume(name, "1Gi", &["ReadWriteOnce"]));
        let chosen = found(&claim(picky), &volumes, false);
        assert_eq!(chosen.as_deref(), Some("b"));
    }

    #[test]
    fn a_volume_reserved_for_the_claim_comes_first_also_for_a_class_that_waits() {
        let mut reserved = volume("reserved", "50Gi", &["ReadWriteOnce"]);
        reserved["spec"]["claimRef"] = json!({"name": "data", "namespace": "default"});
        let volumes = [volume("pv", "1Gi", &["ReadWriteOnce"]), reserved];
        let asks = claim(asking("1Gi", &["ReadWriteOnce"]));
        for waits in [false, true] {
            let chosen = found(&asks, &volumes, waits);
            assert_eq!(chosen.as_deref(), Some("reserved"));
        }
    }

    #[test]
    fn binding_fills_in_a_users_reservation_and_marks_only_its_own() {
        let asks = claim(json!({}));
        let free: PersistentVolume =
            serde_json::from_value(volume("pv", "1Gi", &["ReadWriteOnce"])).unwrap();
        let bound = bound_to(&free, &asks).unwrap();
        assert!(is_annotated(&bound.metadata, BOUND_BY_CONTROLLER));
        assert_eq!(claim_ref(&bound).and_then(uid), Some("c"));
        assert!(bound_to(&bound, &asks).is_none());
        let mut reserved = free;
        reserved.spec.as_mut().unwrap().claim_ref = Some(ObjectReference {
            uid: None,
            ..reference(&asks)
        });
        let bound = bound_to(&reserved, &asks).unwrap();
        assert!(!is_annotated(&bound.metadata, BOUND_BY_CONTROLLER));
        assert_eq!(claim_ref(&bound).and_then(uid), Some("c"));
    }

    #[test]
    fn a_volume_asked_for_by_name_says_why_it_does_not_suit() {
        let pv = |change: &dyn Fn(&mut Value)| {
            let mut pv = volume("pv", "1Gi", &["ReadWriteOnce"]);
            change(&mut pv);
            serde_json::from_value::<PersistentVolume>(pv).unwrap()
        };
        let asks = claim(asking("1Gi", &["ReadWriteOnce"]));
        assert_eq!(mismatch(&pv(&|_| {}), &asks), None);
        let leaving = json!("2026-01-01T00:00:00Z");
        let leaving = pv(&|pv| pv["metadata"]["deletionTimestamp"] = leaving.clone());
        let why = mismatch(&leaving, &asks).unwrap();
        assert_eq!(why, "the volume is marked for deletion \"pv\"");
        for (field, value, why) in [
            (
                "capacity",
                json!({"storage": "1"}),
                "requested PV is too small",
            ),
            (
                "storageClassName",
                json!("x"),
                "storageClassName does not match",
            ),
            (
                "volumeAttributesClassName",
                json!("x"),
                "volumeAttributesClassName does not match",
            ),
            ("volumeMode", json!("Block"), "incompatible volumeMode"),
            ("accessModes", json!([]), "incompatible accessMode"),
        ] {
            let changed = pv(&|pv| pv["spec"][field] = value.clone());
            assert_eq!(mismatch(&changed, &asks).as_deref(), Some(why));
        }
    }
}
