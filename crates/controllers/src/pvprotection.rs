//! Protects bound PersistentVolumes: removes the finalizer only when the volume is not bound.

use std::sync::Arc;

use client::{Api, Informer};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::PostParams;
use reconcile::{Action, Controller, Error, Key};

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "pv-protection";
const ACCOUNT: &str = "pv-protection-controller";
const FINALIZER: &str = "kubernetes.io/pv-protection";

struct Protection {
    client: kube::Client,
    volumes: Informer<PersistentVolume>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Protection {
        client: shared.client(ACCOUNT),
        volumes: shared.informer(),
    });
    shared
        .controller(&controller)
        .watches(&controller.volumes)
        .start();
}

/// The volume with its finalizer added or removed; `None` if nothing changes.
fn decide(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let needed = volume.metadata.deletion_timestamp.is_none() || phase == Some("Bound");
    let mut updated = volume.clone();
    let finalizers = updated.metadata.finalizers.get_or_insert_default();
    let there = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if needed && !there {
        finalizers.push(FINALIZER.to_owned());
    } else {
        finalizers.retain(|finalizer| needed || finalizer != FINALIZER);
    }
    (there != needed).then_some(updated)
}

impl Controller for Protection {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let updated = self
            .volumes
            .get("", &key.name)
            .and_then(|volume| decide(&volume));
        if let Some(updated) = updated {
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            api.replace(&key.name, &PostParams::default(), &updated)
                .await?;
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::PersistentVolumeStatus, apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::pods::samples::at;

    #[test]
    fn a_volume_is_protected_while_it_is_bound() {
        let held = decide(&PersistentVolume::default()).unwrap();
        assert_eq!(
            held.metadata.finalizers.as_deref(),
            Some(&[FINALIZER.to_owned()][..])
        );
        let mut leaving = held;
        leaving.metadata.deletion_timestamp = Some(Time(at(1)));
        leaving.status = Some(PersistentVolumeStatus {
            phase: Some("Bound".into()),
            ..Default::default()
        });
        assert!(decide(&leaving).is_none());
        leaving.status = None;
        assert_eq!(
            decide(&leaving).unwrap().metadata.finalizers,
            Some(Vec::new())
        );
    }
}
