//! The provisioner's decisions about claims and volumes. Pure.

use std::{collections::BTreeMap, sync::Arc};

use super::{NODE_ROOT, PROVISIONER, cleaning::Site};
use k8s_openapi::{
    api::{
        core::v1::{
            LocalVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
            PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::api::ObjectMeta;
use reconcile::storage::{
    EXTERNAL_FINALIZER, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, annotation, capacity,
    claim_class, claim_ref, is_fully_bound, reference, storage, uid, volume_name,
    waits_for_consumer,
};

const HOSTNAME: &str = "kubernetes.io/hostname";
/// The annotation of a volume with the node that has its data, as in Rancher's
/// local-path-provisioner. The volume's node affinity does not suffice: nodes may change their own
/// hostname label.
const DATA_NODE: &str = "local.path.provisioner/selected-node";

/// The StorageClass parameter that limits volumes to their capacity.
const ENFORCE_PARAMETER: &str = "enforceCapacity";
/// The annotation that tells the kubelet to limit a volume to its capacity.
const ENFORCE_CAPACITY: &str = "mainstay.dev/enforce-capacity";

/// Whether the binder has assigned the claim to this provisioner.
pub(crate) fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_none()
        && claim.metadata.deletion_timestamp.is_none()
        && annotation(&claim.metadata, STORAGE_PROVISIONER) == Some(PROVISIONER)
}

/// The next step for a claim.
#[derive(Debug, PartialEq)]
pub(crate) enum Provision {
    /// Wait: the scheduler has not selected a node yet.
    Wait,
    /// Create this volume.
    Make(Box<PersistentVolume>),
    /// The claim requests something that is not supported.
    Refuse(String),
    /// The node cannot have the volume: the scheduler must select another.
    Reschedule(String),
}

/// Decides about a claim of this provisioner; `node` is the selected node, if it exists.
pub(crate) fn provision(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    node: Option<&Node>,
) -> Provision {
    let Some(class) = class else {
        let name = claim_class(claim);
        return Provision::Refuse(format!("storageclass.storage.k8s.io {name:?} not found"));
    };
    if class.provisioner != PROVISIONER {
        return Provision::Wait;
    }
    let selected = annotation(&claim.metadata, SELECTED_NODE);
    let Some(selected) = selected else {
        if waits_for_consumer(class) {
            return Provision::Wait;
        }
        let why = "volumes on a node need a class with volumeBindingMode WaitForFirstConsumer";
        return Provision::Refuse(why.to_owned());
    };
    if let Some(why) = unsupported(claim) {
        return Provision::Refuse(why.to_owned());
    }
    if let Err(why) = enforces_capacity(class) {
        return Provision::Refuse(why);
    }
    let Some(node) = node else {
        return Provision::Reschedule(format!("node {selected:?} not found"));
    };
    let Some(root) = root(node) else {
        let why = format!("node {selected:?} has no annotation {NODE_ROOT}");
        return Provision::Reschedule(why);
    };
    Provision::Make(Box::new(volume(claim, class, node, root)))
}

/// Whether volumes of the class are limited to their capacity. Unknown parameters are rejected.
fn enforces_capacity(class: &StorageClass) -> Result<bool, String> {
    let mut enforces = false;
    for (key, value) in class.parameters.iter().flatten() {
        enforces = match (key.as_str(), value.as_str()) {
            (ENFORCE_PARAMETER, "true") => true,
            (ENFORCE_PARAMETER, "false") => false,
            _ => {
                return Err(format!(
                    "invalid parameter {key:?} with value {value:?}: \
                     only {ENFORCE_PARAMETER:?} is supported, with \"true\" or \"false\""
                ));
            }
        };
    }
    Ok(enforces)
}

fn unsupported(claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let spec = claim.spec.as_ref()?;
    let mut modes = spec.access_modes.iter().flatten();
    if !modes.all(|mode| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod")) {
        return Some("only the access modes ReadWriteOnce and ReadWriteOncePod are supported");
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("volumeMode Block is not supported");
    }
    if spec.selector.is_some() {
        return Some("claim.Spec.Selector is not supported");
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("data sources are not supported");
    }
    None
}

/// The directory of a node's volumes: an absolute path without `.` and `..`.
pub(super) fn root(node: &Node) -> Option<&str> {
    let root = annotation(&node.metadata, NODE_ROOT)?;
    let mut parts = root.strip_prefix('/')?.split('/');
    parts
        .all(|part| !part.is_empty() && part != "." && part != "..")
        .then_some(root)
}

fn hostname(node: &Node) -> &str {
    let labels = node.metadata.labels.as_ref();
    let name = || node.metadata.name.as_deref().unwrap_or_default();
    let label = labels.and_then(|labels| labels.get(HOSTNAME));
    label.map_or_else(name, String::as_str)
}

fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
    root: &str,
) -> PersistentVolume {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests);
    let size = requests.and_then(|requests| requests.get("storage").cloned());
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![NodeSelectorRequirement {
            key: HOSTNAME.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![hostname(node).to_owned()]),
        }]),
        match_fields: None,
    };
    let affinity = VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
    };
    let data_node = node.metadata.name.clone().unwrap_or_default();
    let mut annotations = BTreeMap::from([
        (PROVISIONED_BY.into(), PROVISIONER.into()),
        (DATA_NODE.into(), data_node),
    ]);
    if enforces_capacity(class) == Ok(true) {
        annotations.insert(ENFORCE_CAPACITY.to_owned(), "true".to_owned());
    }
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(annotations),
            finalizers: (policy == "Delete").then(|| vec![EXTERNAL_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                size.unwrap_or_else(|| Quantity("0".to_owned())),
            )])),
            access_modes: spec.access_modes,
            claim_ref: Some(reference(claim)),
            local: Some(LocalVolumeSource {
                path: format!("{root}/{name}"),
                fs_type: None,
            }),
            mount_options: class.mount_options.clone(),
            node_affinity: Some(affinity),
            persistent_volume_reclaim_policy: Some(policy.to_owned()),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    }
}

/// Whether a bound claim requests more than its capacity.
pub(super) fn wants_to_grow(claim: &PersistentVolumeClaim) -> bool {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let wanted = storage(resources.and_then(|resources| resources.requests.as_ref()));
    let status = claim.status.as_ref();
    let known = storage(status.and_then(|status| status.capacity.as_ref()));
    is_fully_bound(claim) && known.is_some() && wanted > known
}

/// The volume with the capacity that its claim requests; `None` if it has it, or may not be
/// changed. The kubelet does the rest. A claim may request less again until its node has expanded
/// the volume, which may have too little space.
pub(super) fn resized(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolume> {
    let is_bound = is_fully_bound(claim)
        && volume_name(claim) == volume.metadata.name.as_deref()
        && claim_ref(volume).and_then(uid) == claim.metadata.uid.as_deref();
    let is_kept = volume.metadata.deletion_timestamp.is_none();
    if !is_bound || !is_kept || annotation(&volume.metadata, PROVISIONED_BY) != Some(PROVISIONER) {
        return None;
    }
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let status = claim.status.as_ref();
    let reached = storage(status.and_then(|status| status.capacity.as_ref()))?;
    let (requested, planned) = (storage(Some(requests))?, capacity(volume)?);
    if requested == planned || requested < reached {
        return None;
    }
    let wanted = requests.get("storage")?;
    let mut changed = volume.clone();
    let amounts = changed.spec.as_mut()?.capacity.get_or_insert_default();
    amounts.insert("storage".to_owned(), wanted.clone());
    Some(changed)
}

/// Whether this provisioner must delete the volume and its data: it created it, its claim is gone,
/// its reclaim policy is Delete, and it is not deleted yet. One without a claim was taken back by its
/// administrator, to be bound again.
pub(crate) fn is_to_delete(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    let is_held = has_finalizer(volume);
    annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
        && matches!(phase, Some("Released" | "Failed"))
        && claim_ref(volume).and_then(uid).is_some()
        && policy == Some("Delete")
        && (is_held || volume.metadata.deletion_timestamp.is_none())
}

/// Whether a volume that was to be deleted in the cache is to be deleted in the API server's
/// current state, too: its policy may have become Retain meanwhile.
pub(crate) fn is_still_to_delete(
    cached: &PersistentVolume,
    current: Option<&PersistentVolume>,
) -> bool {
    current
        .is_some_and(|current| current.metadata.uid == cached.metadata.uid && is_to_delete(current))
}

fn has_finalizer(volume: &PersistentVolume) -> bool {
    let mut finalizers = volume.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == EXTERNAL_FINALIZER)
}

/// Whether a volume has this provisioner's finalizer but is not to be deleted by it: its reclaim
/// policy was changed. Deleting the object then keeps the data.
pub(crate) fn is_to_release(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
        && policy != Some("Delete")
        && has_finalizer(volume)
}

/// The next step for a volume to delete.
#[derive(Debug, PartialEq)]
pub(crate) enum Deletion {
    /// Remove its data on the node.
    Clean(Site),
    /// The node is gone, and the data with it: only delete the object.
    Forget,
    /// The path is outside of the provisioner's directory: nothing is touched.
    Refuse(String),
}

/// The node with the data of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DataNode<'a> {
    Named(&'a str),
    /// By its hostname, for volumes of earlier versions.
    OfHost(&'a str),
}

impl DataNode<'_> {
    pub(crate) fn is(self, node: &Node) -> bool {
        match self {
            Self::Named(name) => node.metadata.name.as_deref() == Some(name),
            Self::OfHost(host) => hostname(node) == host,
        }
    }
}

/// Decides about a volume that is to be deleted. `find` looks up its node.
pub(crate) fn deletion(
    volume: &PersistentVolume,
    find: impl FnOnce(DataNode) -> Option<Arc<Node>>,
) -> Deletion {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(path) = local_path(volume).filter(|_| is_volume_name(name)) else {
        return Deletion::Refuse(format!("volume {name:?} was not made by {PROVISIONER}"));
    };
    // Volumes of earlier versions have no annotation.
    let by_name = annotation(&volume.metadata, DATA_NODE).map(DataNode::Named);
    let by_host = || volume_host(volume).map(DataNode::OfHost);
    let Some(place) = by_name.or_else(by_host) else {
        return Deletion::Refuse(format!("volume {name:?} names no node"));
    };
    let (DataNode::Named(host) | DataNode::OfHost(host)) = place;
    let Some(node) = find(place) else {
        return Deletion::Forget;
    };
    let Some(root) = root(&node) else {
        return Deletion::Refuse(format!("node {host:?} has no annotation {NODE_ROOT}"));
    };
    if path != format!("{root}/{name}") {
        return Deletion::Refuse(format!("path {path:?} is not {root}/{name}"));
    }
    Deletion::Clean(Site {
        node: node.metadata.name.clone().unwrap_or_default(),
        node_uid: node.metadata.uid.clone().unwrap_or_default(),
        root: root.to_owned(),
    })
}

fn local_path(volume: &PersistentVolume) -> Option<&str> {
    let local = volume.spec.as_ref()?.local.as_ref()?;
    Some(&local.path)
}

/// The hostname in the volume's node affinity, if there is exactly one.
fn volume_host(volume: &PersistentVolume) -> Option<&str> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    let [term] = affinity.required.as_ref()?.node_selector_terms.as_slice() else {
        return None;
    };
    let [only] = term.match_expressions.as_deref()? else {
        return None;
    };
    match only.values.as_deref() {
        Some([host]) if only.key == HOSTNAME && only.operator == "In" => Some(host),
        _ => None,
    }
}

/// `pvc-` and a uid.
fn is_volume_name(name: &str) -> bool {
    let Some(uid) = name.strip_prefix("pvc-") else {
        return false;
    };
    let groups: Vec<&str> = uid.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let is_hex = |group: &&str| {
        let mut bytes = group.bytes();
        bytes.all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    lengths == [8, 4, 4, 4, 12] && groups.iter().all(is_hex)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

    fn node() -> Node {
        let meta = json!({"name": "n1", "labels": {HOSTNAME: "host-1"},
            "annotations": {NODE_ROOT: "/data/volumes"}});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    fn class(mode: &str, policy: &str) -> StorageClass {
        let class = json!({"metadata": {"name": "local-path"}, "provisioner": PROVISIONER,
            "volumeBindingMode": mode, "reclaimPolicy": policy});
        serde_json::from_value(class).unwrap()
    }

    fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "default", "uid": UID, "annotations": {
                STORAGE_PROVISIONER: PROVISIONER, SELECTED_NODE: "n1"}},
            "spec": {"storageClassName": "local-path", "accessModes": ["ReadWriteOnce"],
                     "resources": {"requests": {"storage": "1Gi"}}},
        });
        change(&mut claim);
        serde_json::from_value(claim).unwrap()
    }

    fn made(policy: &str) -> PersistentVolume {
        let class = class("WaitForFirstConsumer", policy);
        match provision(&claim(|_| {}), Some(&class), Some(&node())) {
            Provision::Make(volume) => *volume,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_claim_gets_a_directory_on_the_node_that_the_scheduler_chose() {
        let volume = serde_json::to_value(made("Delete")).unwrap();
        assert_eq!(volume["metadata"]["name"], format!("pvc-{UID}"));
        assert_eq!(
            volume["metadata"]["finalizers"],
            json!([EXTERNAL_FINALIZER])
        );
        let spec = &volume["spec"];
        assert_eq!(spec["local"]["path"], format!("/data/volumes/pvc-{UID}"));
        assert_eq!(spec["capacity"], json!({"storage": "1Gi"}));
        assert_eq!(spec["claimRef"]["uid"], UID);
        let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        let wanted = json!({"key": HOSTNAME, "operator": "In", "values": ["host-1"]});
        assert_eq!(term["matchExpressions"], json!([wanted]));
        assert_eq!(made("Retain").metadata.finalizers, None);
    }

    #[test]
    fn a_class_may_enforce_the_capacity_and_its_other_parameters_are_refused() {
        let class = |key: &str, value: &str| {
            let mut class = class("WaitForFirstConsumer", "Delete");
            class.parameters = Some([(key.to_owned(), value.to_owned())].into());
            provision(&claim(|_| {}), Some(&class), Some(&node()))
        };
        let enforced = |provision: Provision| match provision {
            Provision::Make(volume) => {
                annotation(&volume.metadata, ENFORCE_CAPACITY).map(str::to_owned)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            enforced(class("enforceCapacity", "true")),
            Some("true".into())
        );
        assert_eq!(enforced(class("enforceCapacity", "false")), None);
        for (key, value) in [("enforceCapacity", "yes"), ("size", "1Gi")] {
            let refused = class(key, value);
            assert!(matches!(refused, Provision::Refuse(_)), "{refused:?}");
        }
    }

    #[test]
    fn a_volume_grows_with_the_claim_that_it_is_bound_to() {
        let bound = |size: &str, uid: &str| {
            claim(|claim| {
                claim["metadata"]["uid"] = json!(uid);
                claim["metadata"]["annotations"] =
                    json!({"pv.kubernetes.io/bind-completed": "yes"});
                claim["spec"]["volumeName"] = json!(format!("pvc-{UID}"));
                claim["spec"]["resources"]["requests"]["storage"] = json!(size);
                claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            })
        };
        let volume = made("Delete");
        let larger = resized(&volume, &bound("2Gi", UID)).unwrap();
        assert_eq!(capacity(&larger).map(|size| size.value()), Some(2 << 30));
        // Its node has too little space, and the claim requests less.
        let huge = resized(&volume, &bound("9Ti", UID)).unwrap();
        let smaller = resized(&huge, &bound("2Gi", UID)).unwrap();
        assert_eq!(capacity(&smaller), capacity(&larger));
        let mut done = bound("2Gi", UID);
        let amounts = done.status.as_mut().unwrap().capacity.as_mut().unwrap();
        amounts.insert("storage".to_owned(), Quantity("9Ti".to_owned()));
        assert_eq!(resized(&huge, &done), None, "it was expanded");
        assert!(wants_to_grow(&bound("2Gi", UID)) && !wants_to_grow(&bound("1Gi", UID)));
        assert_eq!(resized(&volume, &bound("1Gi", UID)), None);
        assert_eq!(resized(&volume, &bound("2Gi", "another")), None);
        let mut foreign = volume.clone();
        foreign.metadata.annotations = None;
        assert_eq!(resized(&foreign, &bound("2Gi", UID)), None);
    }

    #[test]
    fn claims_wait_for_a_node_and_unsupported_claims_are_refused() {
        let waits = class("WaitForFirstConsumer", "Delete");
        let no_node = claim(|claim| claim["metadata"]["annotations"] = json!({}));
        assert_eq!(provision(&no_node, Some(&waits), None), Provision::Wait);
        let immediate = class("Immediate", "Delete");
        let refused = provision(&no_node, Some(&immediate), None);
        assert!(matches!(refused, Provision::Refuse(_)), "{refused:?}");
        for (field, value) in [
            ("accessModes", json!(["ReadWriteMany"])),
            ("volumeMode", json!("Block")),
            ("selector", json!({})),
            (
                "dataSource",
                json!({"kind": "PersistentVolumeClaim", "name": "x"}),
            ),
        ] {
            let claim = claim(|claim| claim["spec"][field] = value);
            let refused = provision(&claim, Some(&waits), Some(&node()));
            assert!(
                matches!(refused, Provision::Refuse(_)),
                "{field}: {refused:?}"
            );
        }
        let gone = provision(&claim(|_| {}), Some(&waits), None);
        let why = "node \"n1\" not found".to_owned();
        assert_eq!(gone, Provision::Reschedule(why));
        let mut foreign = node();
        foreign.metadata.annotations = None;
        let moved = provision(&claim(|_| {}), Some(&waits), Some(&foreign));
        assert!(matches!(moved, Provision::Reschedule(_)), "{moved:?}");
    }

    fn released(change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut volume = serde_json::to_value(made("Delete")).unwrap();
        volume["status"] = json!({"phase": "Released"});
        change(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn only_released_volumes_of_its_own_with_the_policy_delete_are_deleted() {
        assert!(is_to_delete(&released(|_| {})));
        for (path, value) in [
            ("/status/phase", "Bound"),
            ("/status/phase", "Available"),
            ("/spec/persistentVolumeReclaimPolicy", "Retain"),
            ("/spec/claimRef", ""),
            ("/metadata/annotations", ""),
        ] {
            let volume = released(|volume| {
                let at = volume.pointer_mut(path).unwrap();
                *at = if value.is_empty() {
                    json!({})
                } else {
                    json!(value)
                };
            });
            assert!(!is_to_delete(&volume), "{path} {value}");
        }
        let deleted_before = released(|volume| {
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
        });
        assert!(!is_to_delete(&deleted_before));
    }

    #[test]
    fn a_volume_whose_policy_became_retain_is_held_no_longer() {
        let retained = |volume: &mut Value| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        };
        assert!(is_to_release(&released(retained)));
        assert!(!is_to_release(&released(|_| {})));
        assert!(!is_to_release(&made("Retain")));
        let of_others = released(|volume| {
            retained(volume);
            volume["metadata"]["annotations"] = json!({});
        });
        assert!(!is_to_release(&of_others));
    }

    #[test]
    fn data_is_removed_only_where_this_provisioner_puts_it() {
        let node = node();
        let decide = |volume: &PersistentVolume| deletion(volume, among(&[&node]));
        let Deletion::Clean(site) = decide(&released(|_| {})) else {
            panic!();
        };
        assert_eq!((&*site.node, &*site.root), ("n1", "/data/volumes"));
        for (path, value) in [
            ("/spec/local/path", "/data/volumes/../etc"),
            ("/spec/local/path", "/data/volumes"),
            ("/spec/local/path", "/data/volumes/pvc-x"),
            ("/metadata/name", "pvc-.."),
            ("/metadata/name", "data"),
        ] {
            let crafted = released(|volume| {
                *volume.pointer_mut(path).unwrap() = json!(value);
            });
            let refused = decide(&crafted);
            assert!(
                matches!(refused, Deletion::Refuse(_)),
                "{value}: {refused:?}"
            );
        }
        assert_eq!(deletion(&released(|_| {}), among(&[])), Deletion::Forget);
    }

    fn among(nodes: &[&Node]) -> impl Fn(DataNode) -> Option<Arc<Node>> {
        let nodes: Vec<Arc<Node>> = nodes.iter().map(|node| Arc::new((*node).clone())).collect();
        move |place| nodes.iter().find(|node| place.is(node)).cloned()
    }

    #[test]
    fn a_node_that_takes_anothers_hostname_does_not_get_its_cleaners() {
        let mut rogue = node();
        rogue.metadata.name = Some("rogue".to_owned());
        let mut renamed = node();
        let labels = renamed.metadata.labels.get_or_insert_default();
        labels.insert(HOSTNAME.to_owned(), "elsewhere".to_owned());
        let cleaned_on = |volume: &PersistentVolume, nodes: &[&Node]| {
            let Deletion::Clean(site) = deletion(volume, among(nodes)) else {
                panic!();
            };
            site.node
        };
        let volume = released(|_| {});
        assert_eq!(cleaned_on(&volume, &[&rogue, &node()]), "n1");
        assert_eq!(cleaned_on(&volume, &[&rogue, &renamed]), "n1");
        let gone = deletion(&volume, among(&[&rogue]));
        assert_eq!(gone, Deletion::Forget);
        let of_earlier_version = released(|volume| {
            let annotations = volume["metadata"]["annotations"].as_object_mut();
            annotations.unwrap().remove(DATA_NODE);
        });
        assert_eq!(cleaned_on(&of_earlier_version, &[&node()]), "n1");
    }

    #[test]
    fn only_a_normalized_absolute_root_is_accepted() {
        for (text, ok) in [
            ("/a/b", true),
            ("/", false),
            ("a", false),
            ("/a/../b", false),
        ] {
            let mut node = node();
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(NODE_ROOT.into(), text.into());
            assert_eq!(root(&node).is_some(), ok, "{text}");
        }
    }
}
