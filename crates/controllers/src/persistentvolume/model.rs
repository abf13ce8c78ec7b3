//! A model test of the binder and the local-path provisioner: users, the scheduler, another
//! provisioner and several workers act at random. Workers decide on caches that lag behind, each
//! kind by itself, and decisions are written late or never, as after a crash between two writes.
//! Invariants: no volume is bound to two claims, no claim changes its volume, and no data is
//! deleted that is to be retained or that a claim still uses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use rand::{Rng, SeedableRng, rngs::StdRng};
use reconcile::storage::{
    BOUND_BY_CONTROLLER, EXTERNAL_FINALIZER, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER,
    annotate, annotation, find_match, is_fully_bound, reference, uid,
};
use serde_json::json;

use super::{claim, decision::Change, tests::Memory, volume, *};
use crate::localpath::{
    self,
    decide::{self as local_path, Deletion, Provision},
};

const PROVISIONER: &str = "example.com/made";
const POLICIES: [&str; 3] = ["Retain", "Delete", "Recycle"];

struct Run {
    world: Memory,
    /// What the workers see.
    seen: Memory,
    nodes: Vec<Node>,
    random: StdRng,
    /// Decisions that are not written yet.
    late: Vec<Change>,
    made: usize,
    /// The first volume of each claim, by uid.
    first: BTreeMap<String, String>,
    /// How often data was removed, by source and policy.
    removed: BTreeMap<String, usize>,
    log: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut world = Memory::default();
        world.add_class("now", "Immediate", PROVISIONER);
        world.add_class("later", "WaitForFirstConsumer", PROVISIONER);
        world.add_class("local", "WaitForFirstConsumer", localpath::PROVISIONER);
        let node = json!({"metadata": {"name": "n1", "uid": "n",
            "annotations": {(localpath::NODE_ROOT): "/data"}}});
        Self {
            seen: world.clone(),
            nodes: vec![serde_json::from_value(node).unwrap()],
            world,
            random: StdRng::seed_from_u64(seed),
            late: Vec::new(),
            made: 0,
            first: BTreeMap::new(),
            removed: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() {
            return None;
        }
        let at = self.random.random_range(0..all.len());
        Some(all[at].clone())
    }

    fn user_makes_a_claim(&mut self) {
        let name = self.one_of(&["a", "b", "c", "d", "e"]).unwrap();
        if self.world.claims.contains_key(name) {
            return;
        }
        self.made += 1;
        let classes = ["", "now", "later", "local"].map(|name| json!(name));
        let class = self.one_of(&[&classes[..], &[json!(null)]].concat());
        let size = self.one_of(&["1Gi", "2Gi", "5Gi"]);
        let wanted = self
            .one_of(&["", "", "", "v0", "v1"])
            .filter(|name| !name.is_empty());
        let uid = format!("00000000-0000-0000-0000-{:012}", self.made);
        let claim = json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                     "volumeName": wanted, "resources": {"requests": {"storage": size}}},
            "status": {"phase": "Pending"},
        });
        self.world.put_claim(serde_json::from_value(claim).unwrap());
    }

    fn user_makes_a_volume(&mut self) {
        let name = self.one_of(&["v0", "v1", "v2", "v3", "v4"]).unwrap();
        if self.world.volumes.contains_key(name) {
            return;
        }
        self.made += 1;
        let reserved = self
            .one_of(&["", "", "a", "b"])
            .filter(|name| !name.is_empty());
        let reserved = reserved.map(|name| json!({"namespace": "default", "name": name}));
        let host_path = self
            .random
            .random_bool(0.5)
            .then(|| json!({"path": "/tmp/x"}));
        let volume = json!({
            "metadata": {"name": name, "uid": format!("uid-{}", self.made)},
            "spec": {"accessModes": ["ReadWriteOnce"],
                     "capacity": {"storage": self.one_of(&["1Gi", "2Gi", "5Gi"])},
                     "storageClassName": self.one_of(&["", "now", "later"]),
                     "persistentVolumeReclaimPolicy": self.one_of(&POLICIES),
                     "hostPath": host_path, "claimRef": reserved},
        });
        self.world
            .put_volume(serde_json::from_value(volume).unwrap());
    }

    fn user_deletes_a_claim(&mut self) {
        let names: Vec<String> = self.world.claims.keys().cloned().collect();
        if let Some(name) = self.one_of(&names) {
            self.world.claims.remove(&name);
        }
    }

    /// Changes the reclaim policy.
    fn user_changes_a_policy(&mut self) {
        let volumes: Vec<_> = self.world.volumes.values().cloned().collect();
        let Some(volume) = self.one_of(&volumes) else {
            return;
        };
        let policy = self.one_of(&POLICIES).map(str::to_owned);
        let mut changed = (*volume).clone();
        let spec = changed.spec.get_or_insert_default();
        spec.persistent_volume_reclaim_policy = policy;
        self.world.write(Change::Volume(Box::new(changed)));
    }

    /// Deletes a volume that is not Bound.
    fn user_deletes_a_volume(&mut self) {
        let volumes = self.world.volumes.values();
        let free = volumes.filter(|volume| {
            let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
            phase != Some("Bound") && volume.metadata.finalizers.is_none()
        });
        let names: Vec<String> = free.filter_map(|v| v.metadata.name.clone()).collect();
        if let Some(name) = self.one_of(&names) {
            self.world.volumes.remove(&name);
        }
    }

    /// Acts as the scheduler: binds a volume, or selects a node.
    fn scheduler_serves_a_claim(&mut self) {
        let claims: Vec<_> = self.world.claims.values().cloned().collect();
        let Some(claim) = self.one_of(&claims) else {
            return;
        };
        if is_fully_bound(&claim) || !matches!(claim_class(&claim), "later" | "local") {
            return;
        }
        let labels = BTreeMap::new();
        let node = reconcile::storage::Node {
            name: "n1",
            labels: &labels,
        };
        let all: Vec<_> = self.world.volumes.values().cloned().collect();
        let volumes = all.iter().map(AsRef::as_ref);
        let none = BTreeSet::new();
        if let Some(volume) = find_match(&claim, volumes, Some(node), true, &none) {
            if let Some(bound) = reconcile::storage::bound_to(volume, &claim) {
                self.late.push(Change::Volume(Box::new(bound)));
            }
            return;
        }
        let mut chosen = (*claim).clone();
        annotate(&mut chosen.metadata, SELECTED_NODE, "n1");
        self.late.push(Change::Claim(Box::new(chosen)));
    }

    fn provisioner_makes_a_volume(&mut self) {
        let claims: Vec<_> = self.world.claims.values().cloned().collect();
        let Some(claim) = self.one_of(&claims) else {
            return;
        };
        let asked = annotation(&claim.metadata, STORAGE_PROVISIONER) == Some(PROVISIONER);
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap());
        if !asked || volume_name(&claim).is_some() || self.world.volumes.contains_key(&name) {
            return;
        }
        let policy = self.one_of(&["Retain", "Delete"]).unwrap();
        let finalizers = (policy == "Delete").then(|| vec![EXTERNAL_FINALIZER]);
        let volume = json!({
            "metadata": {"name": name, "uid": name, "finalizers": finalizers,
                         "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"},
                     "storageClassName": claim_class(&claim), "claimRef": reference(&claim),
                     "persistentVolumeReclaimPolicy": policy},
        });
        self.world
            .put_volume(serde_json::from_value(volume).unwrap());
    }

    fn local_path_makes_a_volume(&mut self) {
        let claims: Vec<_> = self.seen.claims.values().cloned().collect();
        let Some(claim) = self
            .one_of(&claims)
            .filter(|claim| local_path::is_ours(claim))
        else {
            return;
        };
        let class = self.seen.class(claim_class(&claim));
        let selected = annotation(&claim.metadata, SELECTED_NODE);
        let node = selected.and(self.nodes.first());
        let made = local_path::provision(&claim, class.as_deref(), node);
        if let Provision::Make(mut volume) = made {
            let name = volume.metadata.name.clone().unwrap();
            if !self.world.volumes.contains_key(&name) {
                volume.metadata.uid = Some(name);
                self.world.put_volume(*volume);
            }
        }
    }

    /// The local-path provisioner decides on its cache, and confirms before it removes data.
    fn local_path_deletes_a_volume(&mut self) {
        let volumes: Vec<_> = self.seen.volumes.values().cloned().collect();
        let Some(volume) = self.one_of(&volumes) else {
            return;
        };
        let name = volume.metadata.name.clone().unwrap();
        if local_path::is_to_delete(&volume) {
            let deletion = local_path::deletion(&volume, |place| {
                let node = self.nodes.iter().find(|node| place.is(node));
                node.cloned().map(Arc::new)
            });
            assert!(matches!(deletion, Deletion::Clean(_)), "{deletion:?}");
            let current = self.world.volumes.get(&name);
            if local_path::is_still_to_delete(&volume, current.map(AsRef::as_ref)) {
                self.data_is_removed(&name);
                self.world.volumes.remove(&name);
            }
        } else if local_path::is_to_release(&volume) {
            let mut free = (*volume).clone();
            free.metadata.finalizers = None;
            self.late.push(Change::Volume(Box::new(free)));
        }
    }

    fn provisioner_deletes_a_volume(&mut self) {
        let volumes: Vec<_> = self.world.volumes.values().cloned().collect();
        let Some(volume) = self.one_of(&volumes) else {
            return;
        };
        let spec = volume.spec.as_ref().unwrap();
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        if annotation(&volume.metadata, PROVISIONED_BY) != Some(PROVISIONER)
            || phase != Some("Released")
            || spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete")
        {
            return;
        }
        let name = volume.metadata.name.clone().unwrap();
        self.data_is_removed(&name);
        self.world.volumes.remove(&name);
    }

    /// The data of a volume is removed, which cannot be undone.
    fn data_is_removed(&mut self, name: &str) {
        let volume = &self.world.volumes[name];
        let spec = volume.spec.as_ref().unwrap();
        let policy = spec.persistent_volume_reclaim_policy.as_deref();
        assert_ne!(
            policy,
            Some("Retain"),
            "{name} is to be kept: {:#?}",
            self.log
        );
        let owner = claim_ref(volume).and_then(uid);
        let mut claims = self.world.claims.values();
        let holder = claims.find(|claim| {
            is_fully_bound(claim)
                && volume_name(claim) == Some(name)
                && claim.metadata.uid.as_deref() == owner
        });
        assert!(
            holder.is_none(),
            "data of {name} is in use: {:#?}",
            self.log
        );
        let kind = match (&spec.local, &spec.host_path) {
            (Some(_), _) => "local-path".to_owned(),
            (_, Some(_)) => format!("hostPath {}", policy.unwrap_or_default()),
            _ => "external".to_owned(),
        };
        *self.removed.entry(kind).or_default() += 1;
    }

    /// A worker removes data of a volume, after it read volume and claim again.
    fn worker_removes_data(&mut self, volume: &PersistentVolume, stays: bool) {
        let name = volume.metadata.name.clone().unwrap();
        let current = self.world.volumes.get(&name);
        let is_current = current.is_some_and(|current| {
            current.metadata.resource_version == volume.metadata.resource_version
        });
        let claim = claim_ref(volume)
            .and_then(|reference| self.world.claims.get(reference.name.as_deref()?).cloned());
        if !is_current || !super::reclaim::has_lost_its_claim(volume, claim.as_deref()) {
            return;
        }
        self.data_is_removed(&name);
        if stays {
            let free = Box::new(volume::unbound(volume));
            self.late.push(Change::Volume(free));
        } else {
            self.world.volumes.remove(&name);
        }
    }

    /// A worker decides about one object. The decision is written now, later or never.
    fn worker_decides(&mut self) {
        let decision = if self.random.random_bool(0.5) {
            let claims: Vec<_> = self.seen.claims.values().cloned().collect();
            let Some(claim) = self.one_of(&claims) else {
                return;
            };
            claim::decide(&claim, &self.seen)
        } else {
            let volumes: Vec<_> = self.seen.volumes.values().cloned().collect();
            let Some(volume) = self.one_of(&volumes) else {
                return;
            };
            match volume::decide(&volume, &self.seen, false) {
                Decision::Confirm if self.is_claim_gone(&volume) => {
                    volume::decide(&volume, &self.seen, true)
                }
                other => other,
            }
        };
        match decision {
            Decision::Write(change, _) => self.late.push(change),
            Decision::RemoveHostPath(volume) => self.worker_removes_data(&volume, false),
            Decision::Recycle(volume) => self.worker_removes_data(&volume, true),
            _ => {}
        }
    }

    /// Asks the API server, not the cache.
    fn is_claim_gone(&self, volume: &PersistentVolume) -> bool {
        let reference = claim_ref(volume);
        let name = reference.and_then(|reference| reference.name.as_deref());
        let claim = name.and_then(|name| self.world.claims.get(name));
        let owner = reference.and_then(uid);
        claim.is_none_or(|claim| claim.metadata.uid.as_deref() != owner)
    }

    /// Events reach the caches of claims and volumes independently.
    fn a_cache_catches_up(&mut self) {
        if self.random.random_bool(0.5) {
            self.seen.claims = self.world.claims.clone();
        } else {
            self.seen.volumes = self.world.volumes.clone();
        }
    }

    fn something_is_written(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.late.len());
        let change = self.late.swap_remove(at);
        if self.random.random_bool(0.9) {
            self.log.push(format!("{change:?}"));
            self.world.write(change);
        }
    }

    fn step(&mut self) {
        match self.random.random_range(0..26) {
            0 => self.user_makes_a_claim(),
            1 => self.user_makes_a_volume(),
            2 if self.random.random_bool(0.5) => self.user_deletes_a_claim(),
            3 if self.random.random_bool(0.3) => self.user_deletes_a_volume(),
            3 if self.random.random_bool(0.3) => self.user_changes_a_policy(),
            4 | 5 => self.scheduler_serves_a_claim(),
            6 => self.provisioner_makes_a_volume(),
            7 => self.provisioner_deletes_a_volume(),
            8 => self.local_path_makes_a_volume(),
            9 => self.local_path_deletes_a_volume(),
            10..15 => self.worker_decides(),
            15..20 => self.a_cache_catches_up(),
            _ => self.something_is_written(),
        }
        self.check();
    }

    fn check(&mut self) {
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        for claim in self.world.claims.values() {
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase != Some("Bound") {
                continue;
            }
            let (uid, volume) = (claim.metadata.uid.as_deref().unwrap(), volume_name(claim));
            let volume = volume.expect("a Bound claim names its volume");
            let other = holders.insert(volume, uid);
            assert_eq!(other, None, "{volume} is bound twice: {:#?}", self.log);
            let first = self.first.entry(uid.to_owned());
            let first = first.or_insert_with(|| volume.to_owned());
            assert_eq!(first, volume, "{uid} changed its volume: {:#?}", self.log);
        }
    }

    /// Writes every decision until nothing is left to do.
    fn settle(&mut self) {
        self.late.clear();
        for _ in 0..1000 {
            let claims: Vec<_> = self.world.claims.values().cloned().collect();
            let volumes: Vec<_> = self.world.volumes.values().cloned().collect();
            let of_claims = claims.iter().map(|claim| claim::decide(claim, &self.world));
            let of_volumes = volumes
                .iter()
                .map(|one| volume::decide(one, &self.world, true));
            let decisions: Vec<_> = of_claims.chain(of_volumes).collect();
            let changes = decisions.into_iter().filter_map(|decision| match decision {
                Decision::Write(change, _) => Some(change),
                _ => None,
            });
            let changes: Vec<_> = changes.collect();
            if changes.is_empty() {
                return;
            }
            for change in changes {
                self.world.write(change);
                self.check();
            }
        }
        panic!("it never rests: {:#?}", self.log);
    }

    /// Every object is bound on both sides, or on neither.
    fn check_settled(&self) {
        for claim in self
            .world
            .claims
            .values()
            .filter(|claim| is_fully_bound(claim))
        {
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            let volume = self.world.volume(volume_name(claim).unwrap());
            let holds = volume.is_some_and(|volume| {
                claim_ref(&volume).and_then(uid) == claim.metadata.uid.as_deref()
            });
            assert_eq!(holds, phase == Some("Bound"), "{claim:#?}");
        }
        for volume in self.world.volumes.values() {
            let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
            let owner = claim_ref(volume).and_then(uid);
            let reference: Option<&ObjectReference> = claim_ref(volume);
            let name = reference
                .and_then(|r| r.name.as_deref())
                .unwrap_or_default();
            let claim = self.world.claims.get(name);
            let held = claim.is_some_and(|claim| claim.metadata.uid.as_deref() == owner);
            match phase {
                Some("Bound") => assert!(held, "{volume:#?}"),
                Some("Available") => assert_eq!(owner, None, "{volume:#?}"),
                Some("Released" | "Failed") => assert!(owner.is_some(), "{volume:#?}"),
                other => panic!("{other:?}: {volume:#?}"),
            }
            let marked = reconcile::storage::is_annotated(&volume.metadata, BOUND_BY_CONTROLLER);
            assert!(!marked || reference.is_some(), "{volume:#?}");
        }
    }
}

#[test]
fn random_events_never_bind_a_volume_to_two_claims_or_lose_data() {
    let is_soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    let mut removed: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..if is_soak { 20_000 } else { 200 } {
        let mut run = Run::new(seed);
        for _ in 0..600 {
            run.step();
        }
        run.settle();
        run.check_settled();
        for (kind, times) in run.removed {
            *removed.entry(kind).or_default() += times;
        }
    }
    for kind in [
        "local-path",
        "hostPath Delete",
        "hostPath Recycle",
        "external",
    ] {
        let times = removed.get(kind).copied().unwrap_or_default();
        assert!(times > 20, "{removed:?}");
    }
}
