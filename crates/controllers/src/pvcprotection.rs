//! A PersistentVolumeClaim in use does not go: its finalizer is taken away only when no pod that
//! could still write to it is left.

use std::sync::Arc;

use client::Informer;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::{pods::is_terminal, shared::Shared};

/// As in the table of controllers.
pub const NAME: &str = "pvc-protection";
const ACCOUNT: &str = "pvc-protection-controller";
const FINALIZER: &str = "kubernetes.io/pvc-protection";

struct Protection {
    claims: Writer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Protection {
        claims: shared.writer(ACCOUNT),
        pods: shared.informer(),
    });
    shared
        .controller(&controller)
        .watches(controller.claims.cache())
        .watches_with(&controller.pods, |event| {
            let pod = event.object();
            let over = matches!(event, client::Event::Deleted(_)) || is_terminal(pod);
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let used = claims_of(pod).into_iter().filter(|_| over);
            used.map(|claim| Key::new(namespace.clone(), claim))
                .collect()
        })
        .workers(2)
        .start();
}

/// The claims that a pod's volumes name, ephemeral ones by the name they get.
fn claims_of(pod: &Pod) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| {
        let named = volume
            .persistent_volume_claim
            .as_ref()
            .map(|claim| claim.claim_name.clone());
        let made = || {
            volume
                .ephemeral
                .as_ref()
                .map(|_| format!("{name}-{}", volume.name))
        };
        named.or_else(made)
    };
    volumes.filter_map(claim).collect()
}

/// Whether the finalizer should be there.
fn is_needed(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> bool {
    let name = claim.metadata.name.clone().unwrap_or_default();
    claim.metadata.deletion_timestamp.is_none()
        || pods
            .iter()
            .any(|pod| !is_terminal(pod) && claims_of(pod).contains(&name))
}

impl Controller for Protection {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(claim) = self.claims.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let needed = is_needed(&claim, &self.pods.list_in(&key.namespace));
        let mut updated = (*claim).clone();
        let finalizers = updated.metadata.finalizers.get_or_insert_default();
        let there = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
        if there == needed {
            return Ok(Action::Done);
        }
        if needed {
            finalizers.push(FINALIZER.to_owned());
        } else {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        self.claims.update(&key.namespace, &updated).await?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{PersistentVolumeClaimVolumeSource, Volume},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::pods::samples::{self, at};

    fn user(phase: &str) -> Arc<Pod> {
        let mut pod = samples::pod("a", None);
        let source = PersistentVolumeClaimVolumeSource {
            claim_name: "data".into(),
            read_only: None,
        };
        let volume = Volume {
            persistent_volume_claim: Some(source),
            ..Default::default()
        };
        pod.spec.as_mut().unwrap().volumes = Some(vec![volume]);
        pod.status.as_mut().unwrap().phase = Some(phase.into());
        Arc::new(pod)
    }

    #[test]
    fn a_claim_is_held_while_a_pod_could_still_write_to_it() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".into());
        assert!(is_needed(&claim, &[]), "a claim that stays is protected");
        claim.metadata.deletion_timestamp = Some(Time(at(1)));
        assert!(is_needed(&claim, &[user("Running")]));
        assert!(!is_needed(&claim, &[user("Succeeded")]));
        assert!(!is_needed(&claim, &[]));
    }
}
