//! Tables of the binder's decisions, with a cluster in memory.

use std::collections::BTreeMap;

use reconcile::storage::{
    BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, EXTERNAL_FINALIZER,
    IN_TREE_FINALIZER, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER,
};
use serde_json::{Value, json};

use super::{decision::Change, *};

/// Claims of one namespace, volumes and classes, with resourceVersions.
#[derive(Default, Clone)]
pub(super) struct Memory {
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub classes: BTreeMap<String, Arc<StorageClass>>,
    pub pods: Vec<String>,
    version: usize,
}

impl Memory {
    pub(super) fn add_class(&mut self, name: &str, mode: &str, provisioner: &str) {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": mode});
        let class = serde_json::from_value(class).unwrap();
        self.classes.insert(name.to_owned(), Arc::new(class));
    }

    fn next_version(&mut self) -> Option<String> {
        self.version += 1;
        Some(self.version.to_string())
    }

    pub(super) fn put_claim(&mut self, mut claim: PersistentVolumeClaim) {
        claim.metadata.resource_version = self.next_version();
        let name = claim.metadata.name.clone().unwrap();
        self.claims.insert(name, Arc::new(claim));
    }

    pub(super) fn put_volume(&mut self, mut volume: PersistentVolume) {
        volume.metadata.resource_version = self.next_version();
        let name = volume.metadata.name.clone().unwrap();
        self.volumes.insert(name, Arc::new(volume));
    }

    /// Writes a change if it was decided on the current version; returns whether it was.
    pub(super) fn write(&mut self, change: Change) -> bool {
        match change {
            Change::Claim(claim) | Change::ClaimStatus(claim) => {
                let known = self.claims.get(claim.metadata.name.as_deref().unwrap());
                let version = known.map(|known| &known.metadata.resource_version);
                let is_newest = version == Some(&claim.metadata.resource_version);
                if is_newest {
                    self.put_claim(*claim);
                }
                is_newest
            }
            Change::Volume(volume) | Change::VolumeStatus(volume) => {
                let known = self.volumes.get(volume.metadata.name.as_deref().unwrap());
                let version = known.map(|known| &known.metadata.resource_version);
                let is_newest = version == Some(&volume.metadata.resource_version);
                if is_newest {
                    self.put_volume(*volume);
                }
                is_newest
            }
        }
    }
}

impl ClusterView for Memory {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn candidates(&self, _: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
        self.volumes.values().cloned().collect()
    }

    fn claim(&self, _: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(name).cloned()
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(name).cloned()
    }

    fn default_class(&self) -> Option<Arc<StorageClass>> {
        let name = default_class(self.classes.values().map(AsRef::as_ref))?
            .metadata
            .name
            .clone();
        self.classes.get(&name?).cloned()
    }

    fn unscheduled_pods(&self, _: &PersistentVolumeClaim) -> Vec<String> {
        self.pods.clone()
    }

    fn active_pods(&self, namespace: &str, _: &str) -> Vec<String> {
        let pods = self.pods.iter();
        pods.map(|name| format!("{namespace}/{name}")).collect()
    }
}

fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                 "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    change(&mut claim);
    serde_json::from_value(claim).unwrap()
}

fn volume(change: impl FnOnce(&mut Value)) -> PersistentVolume {
    let mut volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
                 "storageClassName": "", "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"},
    });
    change(&mut volume);
    serde_json::from_value(volume).unwrap()
}

/// Decides and writes until nothing is left to write; returns reason and message of the events.
fn settle(world: &mut Memory, name: &str, is_claim: bool) -> Vec<(&'static str, String)> {
    let (said, last) = settle_until(world, name, is_claim);
    assert!(matches!(last, Decision::Rest(_)), "{last:?}");
    said
}

/// The same, also returns the first decision that is no write.
fn settle_until(
    world: &mut Memory,
    name: &str,
    is_claim: bool,
) -> (Vec<(&'static str, String)>, Decision) {
    let mut said = Vec::new();
    for _ in 0..20 {
        let decision = if is_claim {
            claim::decide(&world.claims[name], world)
        } else {
            volume::decide(&world.volumes[name], world, true)
        };
        match decision {
            Decision::Write(change, event) => {
                assert!(world.write(change));
                said.extend(event.map(|event| (event.reason, event.message)));
            }
            Decision::Rest(events) => {
                said.extend(
                    events
                        .into_iter()
                        .map(|event| (event.reason, event.message)),
                );
                return (said, Decision::DONE);
            }
            other => return (said, other),
        }
    }
    panic!("it never rests");
}

fn phases(world: &Memory) -> (Option<&str>, Option<&str>) {
    let claim = world
        .claims
        .get("data")
        .and_then(|claim| claim.status.as_ref());
    let volume = world
        .volumes
        .get("pv")
        .and_then(|volume| volume.status.as_ref());
    (
        claim.and_then(|status| status.phase.as_deref()),
        volume.and_then(|status| status.phase.as_deref()),
    )
}

#[test]
fn a_claim_and_a_volume_are_bound_on_both_sides() {
    let mut world = Memory::default();
    world.put_claim(claim(|_| {}));
    world.put_volume(volume(|_| {}));
    assert_eq!(settle(&mut world, "data", true), []);
    assert_eq!(phases(&world), (Some("Bound"), Some("Bound")));
    let claim = serde_json::to_value(&*world.claims["data"]).unwrap();
    assert_eq!(claim["spec"]["volumeName"], "pv");
    let marks = json!({BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"});
    assert_eq!(claim["metadata"]["annotations"], marks);
    assert_eq!(claim["status"]["capacity"], json!({"storage": "2Gi"}));
    assert_eq!(claim["status"]["accessModes"], json!(["ReadWriteOnce"]));
    let volume = serde_json::to_value(&*world.volumes["pv"]).unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], "c");
    assert_eq!(
        volume["metadata"]["annotations"],
        json!({BOUND_BY_CONTROLLER: "yes"})
    );
    assert_eq!(settle(&mut world, "pv", false), []);
}

#[test]
fn pre_bound_volumes_are_completed_and_not_marked_as_bound_by_the_controller() {
    let mut world = Memory::default();
    world.put_claim(claim(|claim| claim["spec"]["volumeName"] = json!("pv")));
    world.put_volume(volume(|volume| {
        volume["spec"]["claimRef"] = json!({"namespace": "default", "name": "data"});
    }));
    assert_eq!(settle(&mut world, "data", true), []);
    assert_eq!(phases(&world), (Some("Bound"), Some("Bound")));
    let marks = world.claims["data"].metadata.annotations.clone().unwrap();
    assert_eq!(marks.keys().collect::<Vec<_>>(), [BIND_COMPLETED]);
    assert_eq!(world.volumes["pv"].metadata.annotations, None);
}

/// The state of an unbound claim, and its event.
struct Unbound {
    class: &'static str,
    /// The binding mode; empty if the class does not exist.
    mode: &'static str,
    provisioner: &'static str,
    is_node_selected: bool,
    pods: usize,
    reason: &'static str,
    message: &'static str,
}

const PROVISIONING: &str = "Waiting for a volume to be created either by the external provisioner 'x.io/made' or \
    manually by the system administrator. If volume creation is delayed, please verify that the provisioner is \
    running and correctly registered.";

/// Of a class with a provisioner, for no pod yet.
const OF_CLASS: Unbound = Unbound {
    class: "fast",
    mode: "WaitForFirstConsumer",
    provisioner: "x.io/made",
    is_node_selected: false,
    pods: 0,
    reason: "WaitForFirstConsumer",
    message: "waiting for first consumer to be created before binding",
};

const UNBOUND: [Unbound; 8] = [
    OF_CLASS,
    Unbound {
        class: "",
        mode: "",
        reason: "FailedBinding",
        message: "no persistent volumes available for this claim and no storage class is set",
        ..OF_CLASS
    },
    Unbound {
        mode: "",
        reason: "ProvisioningFailed",
        message: "storageclass.storage.k8s.io \"fast\" not found",
        ..OF_CLASS
    },
    Unbound {
        mode: "Immediate",
        provisioner: "kubernetes.io/no-provisioner",
        reason: "ProvisioningFailed",
        message: "no volume plugin matched name: kubernetes.io/no-provisioner",
        ..OF_CLASS
    },
    Unbound {
        mode: "Immediate",
        reason: "ExternalProvisioning",
        message: PROVISIONING,
        ..OF_CLASS
    },
    Unbound {
        pods: 1,
        reason: "WaitForPodScheduled",
        message: "waiting for pod p0 to be scheduled",
        ..OF_CLASS
    },
    Unbound {
        pods: 2,
        reason: "WaitForPodScheduled",
        message: "waiting for pods p0,p1 to be scheduled",
        ..OF_CLASS
    },
    Unbound {
        is_node_selected: true,
        pods: 1,
        reason: "ExternalProvisioning",
        message: PROVISIONING,
        ..OF_CLASS
    },
];

#[test]
fn an_unbound_claim_has_an_event_with_the_reason() {
    for Unbound {
        class,
        mode,
        provisioner,
        is_node_selected,
        pods,
        reason,
        message,
    } in UNBOUND
    {
        let mut world = Memory::default();
        if !mode.is_empty() {
            world.add_class(class, mode, provisioner);
        }
        world.pods = (0..pods).map(|number| format!("p{number}")).collect();
        world.put_claim(claim(|claim| {
            claim["spec"]["storageClassName"] = json!(class);
            if is_node_selected {
                claim["metadata"]["annotations"] = json!({SELECTED_NODE: "n1"});
            }
        }));
        let said = settle(&mut world, "data", true);
        assert_eq!(said, [(reason, message.to_owned())], "{class} {mode}");
        let marks = &world.claims["data"].metadata;
        let is_asked = reason == "ExternalProvisioning";
        for key in [STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER] {
            let asked = reconcile::storage::annotation(marks, key);
            assert_eq!(asked, is_asked.then_some("x.io/made"));
        }
    }
}

#[test]
fn a_claim_without_a_class_gets_the_default_one_later_and_an_empty_class_stays() {
    let mut world = Memory::default();
    world.put_claim(claim(|claim| {
        claim["spec"]["storageClassName"] = Value::Null
    }));
    settle(&mut world, "data", true);
    assert_eq!(claim_class(&world.claims["data"]), "");
    world.add_class("fast", "Immediate", "x.io/made");
    let mut class = (*world.classes["fast"]).clone();
    let key = "storageclass.kubernetes.io/is-default-class".to_owned();
    class.metadata.annotations = Some(BTreeMap::from([(key, "true".to_owned())]));
    world.classes.insert("fast".into(), Arc::new(class));
    settle(&mut world, "data", true);
    assert_eq!(claim_class(&world.claims["data"]), "fast");
    world.put_claim(claim(|_| {}));
    settle(&mut world, "data", true);
    assert_eq!(claim_class(&world.claims["data"]), "");
}

#[test]
fn a_volume_requested_by_name_must_match_and_be_available() {
    let asks = |claim: &mut Value| claim["spec"]["volumeName"] = json!("pv");
    let mut world = Memory::default();
    world.put_claim(claim(asks));
    assert_eq!(settle(&mut world, "data", true), [], "it may come later");
    world.put_volume(volume(|volume| {
        volume["spec"]["volumeMode"] = json!("Block")
    }));
    let why = "Cannot bind to requested volume \"pv\": incompatible volumeMode".to_owned();
    assert_eq!(settle(&mut world, "data", true), [("VolumeMismatch", why)]);
    world.put_volume(volume(|volume| {
        volume["spec"]["claimRef"] = json!({"namespace": "default", "name": "other"});
    }));
    let why = "volume \"pv\" already bound to a different claim.".to_owned();
    assert_eq!(settle(&mut world, "data", true), [("FailedBinding", why)]);
    assert_eq!(phases(&world), (Some("Pending"), Some("Available")));
}

#[test]
fn a_bound_claim_whose_volume_was_deleted_is_lost() {
    let bound = |claim: &mut Value| {
        claim["metadata"]["annotations"] = json!({BIND_COMPLETED: "yes"});
        claim["spec"]["volumeName"] = json!("pv");
        claim["status"]["phase"] = json!("Bound");
    };
    let mut world = Memory::default();
    world.put_claim(claim(bound));
    let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!".to_owned();
    assert_eq!(settle(&mut world, "data", true), [("ClaimLost", why)]);
    assert_eq!(settle(&mut world, "data", true), [], "one event");
    assert_eq!(phases(&world).0, Some("Lost"));
    world.put_claim(claim(bound));
    world.put_volume(volume(|volume| {
        volume["spec"]["claimRef"] = json!({"namespace": "default", "name": "x", "uid": "x"});
    }));
    let why = "Two claims are bound to the same volume, this one is bound incorrectly".to_owned();
    assert_eq!(settle(&mut world, "data", true), [("ClaimMisbound", why)]);
}

fn owned(volume: &mut Value) {
    let claim = json!({"namespace": "default", "name": "data", "uid": "c"});
    volume["spec"]["claimRef"] = claim;
    volume["status"]["phase"] = json!("Bound");
}

#[test]
fn a_volume_whose_claim_was_deleted_is_released_and_reclaimed_by_its_policy() {
    let no_deleter = "error getting deleter volume plugin for volume \"pv\": \
                      no deletable volume plugin matched";
    let no_plugin = "no volume plugin matched name: kubernetes.io/gone";
    for (policy, by, csi, phase, event) in [
        ("Retain", "", false, "Released", None),
        ("Delete", "x.io/made", false, "Released", None),
        ("Delete", "", true, "Released", None),
        (
            "Delete",
            "",
            false,
            "Failed",
            Some(("VolumeFailedDelete", no_deleter)),
        ),
        (
            "Delete",
            "kubernetes.io/gone",
            false,
            "Failed",
            Some(("VolumeFailedDelete", no_plugin)),
        ),
        (
            "Recycle",
            "",
            false,
            "Failed",
            Some((
                "VolumeFailedRecycle",
                "No recycler plugin found for the volume!",
            )),
        ),
    ] {
        let mut world = Memory::default();
        world.put_volume(volume(|volume| {
            owned(volume);
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
            if csi {
                volume["spec"]["csi"] = json!({"driver": "x.io", "volumeHandle": "1"});
            }
            if !by.is_empty() {
                volume["metadata"]["annotations"] = json!({PROVISIONED_BY: by});
            }
        }));
        let before = volume::decide(&world.volumes["pv"], &world, false);
        if !by.starts_with("kubernetes.io/") {
            assert_eq!(before, Decision::Confirm, "the API server is asked first");
        }
        let said = settle(&mut world, "pv", false);
        assert_eq!(phases(&world).1, Some(phase), "{policy} {by}");
        let event = event.map(|(reason, message)| (reason, message.to_owned()));
        assert_eq!(said, event.into_iter().collect::<Vec<_>>());
        assert!(claim_ref(&world.volumes["pv"]).is_some());
    }
}

#[test]
fn a_released_host_path_volume_is_recycled_or_removed_by_its_policy() {
    for (policy, by, used) in [
        ("Recycle", "", false),
        ("Recycle", "", true),
        ("Delete", "", false),
        ("Delete", "kubernetes.io/host-path", false),
    ] {
        let mut world = Memory::default();
        if used {
            world.pods = vec!["a".to_owned(), "b".to_owned()];
        }
        world.put_volume(volume(|volume| {
            owned(volume);
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
            volume["spec"]["hostPath"] = json!({"path": "/tmp/data"});
            if !by.is_empty() {
                volume["metadata"]["annotations"] = json!({PROVISIONED_BY: by});
            }
        }));
        let (said, last) = settle_until(&mut world, "pv", false);
        let now = world.volumes["pv"].clone();
        let wanted = match (policy, used) {
            ("Recycle", false) => Decision::Recycle(Box::new((*now).clone())),
            ("Recycle", true) => Decision::DONE,
            _ => Decision::RemoveHostPath(Box::new((*now).clone())),
        };
        assert_eq!((last, phases(&world).1), (wanted, Some("Released")));
        let why = "Volume is used by pods: default/a,default/b".to_owned();
        let events = used.then_some(("VolumeFailedRecycle", why));
        assert_eq!(said, events.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_volume_whose_claim_is_bound_to_another_is_released() {
    let elsewhere = |claim: &mut Value| claim["spec"]["volumeName"] = json!("other");
    for (annotations, reference) in [
        (json!({BOUND_BY_CONTROLLER: "yes"}), Value::Null),
        (json!({}), json!({"namespace": "default", "name": "data"})),
    ] {
        let mut world = Memory::default();
        world.put_claim(claim(elsewhere));
        world.put_volume(volume(|volume| {
            owned(volume);
            volume["metadata"]["annotations"] = annotations;
        }));
        settle(&mut world, "pv", false);
        assert_eq!(phases(&world).1, Some("Available"));
        let volume = serde_json::to_value(&*world.volumes["pv"]).unwrap();
        assert_eq!(volume["spec"]["claimRef"], reference);
    }
    let mut world = Memory::default();
    world.put_claim(claim(elsewhere));
    world.put_volume(volume(|volume| {
        owned(volume);
        volume["metadata"]["annotations"] = json!({PROVISIONED_BY: "x.io/made"});
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    }));
    settle(&mut world, "pv", false);
    assert_eq!(
        phases(&world).1,
        Some("Released"),
        "it was made for nothing"
    );
}

#[test]
fn finalizers_follow_the_provisioner_and_the_policy() {
    for (by, policy, before, after) in [
        (
            "x.io/made",
            "Delete",
            vec![EXTERNAL_FINALIZER],
            vec![EXTERNAL_FINALIZER],
        ),
        ("kubernetes.io/a", "Delete", vec![], vec![IN_TREE_FINALIZER]),
        (
            "kubernetes.io/a",
            "Delete",
            vec![EXTERNAL_FINALIZER],
            vec![IN_TREE_FINALIZER],
        ),
        ("kubernetes.io/a", "Retain", vec![IN_TREE_FINALIZER], vec![]),
        (
            "kubernetes.io/aws-ebs",
            "Delete",
            vec![IN_TREE_FINALIZER],
            vec![],
        ),
    ] {
        let mut world = Memory::default();
        world.put_volume(volume(|volume| {
            volume["metadata"]["annotations"] = json!({PROVISIONED_BY: by});
            volume["metadata"]["finalizers"] = json!(before);
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
        }));
        settle(&mut world, "pv", false);
        let found = world.volumes["pv"].metadata.finalizers.clone();
        assert_eq!(found.unwrap_or_default(), after, "{by} {policy}");
    }
}
