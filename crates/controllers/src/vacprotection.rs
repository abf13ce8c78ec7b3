//! Protects a VolumeAttributesClass while a claim or a volume uses it or is about to.

use std::{collections::BTreeSet, sync::Arc};

use client::{Api, Event, Informer};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::api::PostParams;
use reconcile::{Action, Controller, Error, Key};

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "vac-protection";
const ACCOUNT: &str = "volumeattributesclass-protection-controller";
const FINALIZER: &str = "kubernetes.io/vac-protection";

struct Protection {
    client: kube::Client,
    classes: Informer<VolumeAttributesClass>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Protection {
        client: shared.client(ACCOUNT),
        classes: shared.informer(),
        claims: shared.informer(),
        volumes: shared.informer(),
    });
    shared
        .controller(&controller)
        .watches(&controller.classes)
        .watches_with(&controller.claims, |event| {
            classes_no_longer_used(event, of_claim)
        })
        .watches_with(&controller.volumes, |event| {
            classes_no_longer_used(event, of_volume)
        })
        .start();
}

/// The classes that an object no longer names.
fn classes_no_longer_used<K>(event: &Event<K>, classes: fn(&K) -> BTreeSet<&str>) -> Vec<Key> {
    let gone: Vec<&str> = match event {
        Event::Added(_) => Vec::new(),
        Event::Modified { old, new } => {
            let (before, now) = (classes(old), classes(new));
            before.difference(&now).copied().collect()
        }
        Event::Deleted(object) => classes(object).into_iter().collect(),
    };
    let key = |name: &str| Key::new(String::new(), name.to_owned());
    gone.into_iter().map(key).collect()
}

/// The classes that a claim requests, has, and is changing to.
fn of_claim(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let wanted = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let has = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .and_then(|modify| modify.target_volume_attributes_class_name.as_deref());
    let names = [wanted, has, target].into_iter().flatten();
    names.filter(|name| !name.is_empty()).collect()
}

fn of_volume(volume: &PersistentVolume) -> BTreeSet<&str> {
    let spec = volume.spec.as_ref();
    let name = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    name.filter(|name| !name.is_empty()).into_iter().collect()
}

/// The class with its finalizer added or removed; `None` if nothing changes.
fn decide(class: &VolumeAttributesClass, is_used: bool) -> Option<VolumeAttributesClass> {
    let needed = class.metadata.deletion_timestamp.is_none() || is_used;
    let mut updated = class.clone();
    let finalizers = updated.metadata.finalizers.get_or_insert_default();
    let there = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    let leaving = class.metadata.deletion_timestamp.is_some();
    if there == needed || (leaving && !there) {
        return None;
    }
    if needed {
        finalizers.push(FINALIZER.to_owned());
    } else {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    Some(updated)
}

impl Protection {
    fn is_used(&self, class: &str) -> bool {
        let of_claim = |claim: &Arc<PersistentVolumeClaim>| of_claim(claim).contains(class);
        let of_volume = |volume: &Arc<PersistentVolume>| of_volume(volume).contains(class);
        self.volumes.list().iter().any(of_volume) || self.claims.list().iter().any(of_claim)
    }
}

impl Controller for Protection {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(class) = self.classes.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let leaving = class.metadata.deletion_timestamp.is_some();
        if let Some(updated) = decide(&class, leaving && self.is_used(&key.name)) {
            let api: Api<VolumeAttributesClass> = Api::all(self.client.clone());
            api.replace(&key.name, &PostParams::default(), &updated)
                .await?;
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{
            ModifyVolumeStatus, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
        },
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::pods::samples::at;

    fn claim(wanted: &str, has: &str, target: &str) -> PersistentVolumeClaim {
        PersistentVolumeClaim {
            spec: Some(PersistentVolumeClaimSpec {
                volume_attributes_class_name: Some(wanted.into()),
                ..Default::default()
            }),
            status: Some(PersistentVolumeClaimStatus {
                current_volume_attributes_class_name: Some(has.into()),
                modify_volume_status: Some(ModifyVolumeStatus {
                    target_volume_attributes_class_name: Some(target.into()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_volume_attributes_class_is_protected_while_it_is_in_use() {
        let held = decide(&VolumeAttributesClass::default(), false).unwrap();
        let finalizers = [FINALIZER.to_owned()];
        assert_eq!(held.metadata.finalizers.as_deref(), Some(&finalizers[..]));
        assert!(decide(&held, false).is_none());
        let mut leaving = held;
        leaving.metadata.deletion_timestamp = Some(Time(at(1)));
        assert!(decide(&leaving, true).is_none());
        let free = decide(&leaving, false).unwrap();
        assert_eq!(free.metadata.finalizers, Some(Vec::new()));
        // A class that is being deleted gets no finalizer.
        assert!(decide(&free, true).is_none());
    }

    #[test]
    fn a_claim_protects_the_classes_it_names_and_releases_former_ones() {
        let before = Arc::new(claim("gold", "silver", "gold"));
        assert_eq!(of_claim(&before), BTreeSet::from(["gold", "silver"]));
        let now = Arc::new(claim("gold", "gold", ""));
        let named = |event| {
            let keys = classes_no_longer_used(&event, of_claim);
            keys.into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        let changed = Event::Modified {
            old: before.clone(),
            new: now.clone(),
        };
        assert_eq!(named(changed), ["silver"]);
        assert_eq!(named(Event::Deleted(now)), ["gold"]);
        assert_eq!(named(Event::Added(before)), [""; 0]);
    }
}
