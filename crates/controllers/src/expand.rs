//! Records an event for a claim that requests more than its volume has: an external controller must
//! expand it, since v1.36 has no in-tree expansion. That controller and the kubelet write the
//! claim's status.

use std::sync::Arc;

use client::{Event, Informer};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Resource;
use reconcile::{
    Action, Controller, Error, Key, Kind, Recorder,
    storage::{claim_ref, requested, storage, volume_name},
};

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "volume-expand";
const ACCOUNT: &str = "expand-controller";

struct Expand {
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    events: Recorder,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Expand {
        claims: shared.informer(),
        volumes: shared.informer(),
        events: shared.recorder(ACCOUNT, "volume_expand"),
    });
    shared
        .controller(&controller)
        .watches_with(&controller.claims, |event| match event {
            Event::Modified { old, new } if requested(new) > requested(old) => {
                vec![Key::from_object(&**new)]
            }
            _ => Vec::new(),
        })
        .reads(&controller.volumes)
        .start();
}

/// Whether the claim is bound to the volume and requests more than it has.
fn is_to_expand(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let status = claim.status.as_ref();
    let has = storage(status.and_then(|status| status.capacity.as_ref()));
    let owner = claim_ref(volume).and_then(|owner| owner.uid.as_ref());
    owner.is_some()
        && owner == claim.metadata.uid.as_ref()
        && has.is_some_and(|has| requested(claim) > has)
}

impl Controller for Expand {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let volume = volume_name(&claim).and_then(|name| self.volumes.get("", name));
        if volume.is_some_and(|volume| is_to_expand(&claim, &volume)) {
            let message = "waiting for an external controller to expand this PVC";
            let about = claim.object_ref(&());
            self.events
                .event(&about, Kind::Normal, "ExternalExpanding", message);
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bound_claim_that_asks_for_more_than_it_has_is_to_be_expanded() {
        let claim = |asks: &str, has: &str| -> PersistentVolumeClaim {
            let spec = json!({"resources": {"requests": {"storage": asks}}});
            let claim = json!({"metadata": {"uid": "c"}, "spec": spec,
                "status": {"capacity": {"storage": has}}});
            serde_json::from_value(claim).unwrap()
        };
        let volume = |owner: &str| -> PersistentVolume {
            serde_json::from_value(json!({"spec": {"claimRef": {"uid": owner}}})).unwrap()
        };
        assert!(is_to_expand(&claim("2Gi", "1Gi"), &volume("c")));
        assert!(!is_to_expand(&claim("1Gi", "1024Mi"), &volume("c")));
        assert!(!is_to_expand(&claim("2Gi", "1Gi"), &volume("other")));
    }
}
