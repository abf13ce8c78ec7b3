//! Protects PersistentVolumeClaims in use: removes the finalizer of a deleted claim only when no
//! scheduled pod uses it.

use std::sync::Arc;

use client::Informer;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, api::ListParams};
use reconcile::{Action, Controller, Error, Key, Writer, storage::claim_name};

use crate::shared::{CLAIM, Shared, claimed_key, claims_of, controller_of};

/// The name in [`crate::ALL`].
pub const NAME: &str = "pvc-protection";
const ACCOUNT: &str = "pvc-protection-controller";
const FINALIZER: &str = "kubernetes.io/pvc-protection";

struct Protection {
    client: kube::Client,
    claims: Writer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Protection {
        client: shared.client(ACCOUNT),
        claims: shared.writer(ACCOUNT),
        pods: shared.informer(),
    });
    shared
        .controller(&controller)
        .watches(controller.claims.cache())
        .watches_with(&controller.pods, |event| {
            let pod = event.object();
            let is_over = matches!(event, client::Event::Deleted(_)) || is_shut_down(pod);
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let used = claims_of(pod).into_iter().filter(|_| is_over);
            used.map(|claim| Key::new(namespace.clone(), claim))
                .collect()
        })
        .workers(2)
        .start();
}

/// The kubelet has stopped the pod, or it was deleted by force: only finalizers keep its object.
fn is_shut_down(pod: &Pod) -> bool {
    let meta = &pod.metadata;
    meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0)
}

/// Whether the pod uses the claim. An unscheduled pod does not: the kubelet starts no pod whose
/// claim is being deleted.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref());
    if node.is_none_or(str::is_empty) {
        return false;
    }
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let is_made_for_pod =
        || controller_of(claim).is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref());
    let mut volumes = spec.into_iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.any(|volume| {
        claim_name(pod_name, volume) == claim.metadata.name
            && (volume.persistent_volume_claim.is_some()
                || (!is_shut_down(pod) && is_made_for_pod()))
    })
}

impl Protection {
    /// Whether a pod uses the claim. Also asks the API server, since the cache may lack a new pod.
    async fn is_used(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let known = self.pods.by_index(CLAIM, &claimed_key(namespace, name));
        if known.iter().any(|pod| uses(pod, claim)) {
            return Ok(true);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pods = api.list(&ListParams::default()).await?;
        Ok(pods.iter().any(|pod| uses(pod, claim)))
    }
}

impl Controller for Protection {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(claim) = self.claims.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let has = |claim: &PersistentVolumeClaim| {
            let mut finalizers = claim.metadata.finalizers.iter().flatten();
            finalizers.any(|finalizer| finalizer == FINALIZER)
        };
        let is_leaving = claim.metadata.deletion_timestamp.is_some();
        if has(&claim) != is_leaving || (is_leaving && self.is_used(&claim).await?) {
            return Ok(Action::Done);
        }
        let mut updated = (*claim).clone();
        let finalizers = updated.metadata.finalizers.get_or_insert_default();
        if is_leaving {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        } else {
            finalizers.push(FINALIZER.to_owned());
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
    use crate::{
        pods::samples::{self, at},
        shared::controller_reference,
    };

    fn user(change: impl FnOnce(&mut Pod)) -> Pod {
        let mut pod = samples::pod("a", None);
        pod.metadata.uid = Some("pod".into());
        let source = PersistentVolumeClaimVolumeSource {
            claim_name: "data".into(),
            read_only: None,
        };
        let volume = Volume {
            persistent_volume_claim: Some(source),
            ..Default::default()
        };
        let spec = pod.spec.as_mut().unwrap();
        spec.volumes = Some(vec![volume]);
        spec.node_name = Some("n1".into());
        change(&mut pod);
        pod
    }

    fn shut_down(pod: &mut Pod) {
        pod.metadata.deletion_timestamp = Some(Time(at(1)));
        pod.metadata.deletion_grace_period_seconds = Some(0);
    }

    #[test]
    fn a_claim_is_protected_while_a_pod_on_a_node_uses_it() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".into());
        assert!(uses(&user(|_| {}), &claim));
        assert!(uses(&user(shut_down), &claim), "its object is still there");
        let no_node = user(|pod| pod.spec.as_mut().unwrap().node_name = None);
        assert!(!uses(&no_node, &claim));
        claim.metadata.name = Some("other".into());
        assert!(!uses(&user(|_| {}), &claim));
    }

    #[test]
    fn an_ephemeral_claim_is_protected_until_its_pod_has_ended() {
        let ephemeral = |pod: &mut Pod| {
            let volume = Volume {
                name: "data".into(),
                ephemeral: Some(Default::default()),
                ..Default::default()
            };
            pod.spec.as_mut().unwrap().volumes = Some(vec![volume]);
        };
        let pod = user(ephemeral);
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some(format!("{}-data", pod.metadata.name.as_ref().unwrap()));
        assert!(!uses(&pod, &claim), "not made for this pod");
        claim.metadata.owner_references = Some(vec![controller_reference(&pod)]);
        assert!(uses(&pod, &claim));
        let ended = user(|pod| {
            ephemeral(pod);
            shut_down(pod);
        });
        assert!(!uses(&ended, &claim));
    }
}
