//! Creates the claim of each generic ephemeral volume. The pod owns it, so that the garbage
//! collector deletes it with the pod.

use std::sync::Arc;

use client::{Event, Informer};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use kube::api::ObjectMeta;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Writer, storage::claim_name};

use crate::{
    members::Facts,
    metrics::Metrics,
    shared::{CLAIM, Shared, claimed_key, controller_of, controller_reference},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "ephemeral-volume";
const ACCOUNT: &str = "ephemeral-volume-controller";

struct Ephemeral {
    pods: Informer<Pod>,
    claims: Writer<PersistentVolumeClaim>,
    events: Recorder,
    metrics: Metrics,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Ephemeral {
        pods: shared.informer(),
        claims: shared.writer(ACCOUNT),
        events: shared.recorder(ACCOUNT, "ephemeral_volume"),
        metrics: shared.metrics.clone(),
    });
    let pods = controller.pods.clone();
    shared
        .controller(&controller)
        .watches_with(
            &controller.pods.only(Facts::has_claims),
            |event| match event {
                // A pod's volumes never change, and the garbage collector deletes its claims.
                Event::Added(pod) if has_ephemeral(pod) => vec![Key::from_object(&**pod)],
                _ => Vec::new(),
            },
        )
        .watches_with(controller.claims.cache(), move |event| match event {
            Event::Deleted(claim) => {
                let key = Key::from_object(&**claim);
                let users = pods.by_index(CLAIM, &claimed_key(&key.namespace, &key.name));
                let users = users.iter().filter(|pod| has_ephemeral(pod));
                users.map(|pod| Key::from_object(&**pod)).collect()
            }
            _ => Vec::new(),
        })
        .workers(2)
        .start();
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| volume.ephemeral.is_some())
}

fn has_ephemeral(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && volumes(pod).next().is_some()
}

/// The claim of an ephemeral volume.
fn claim(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let meta = template.metadata.clone().unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: claim_name(pod.metadata.name.as_deref()?, volume),
            annotations: meta.annotations,
            labels: meta.labels,
            owner_references: Some(vec![controller_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        ..PersistentVolumeClaim::default()
    })
}

/// Why an existing claim of this name is not the pod's.
fn foreign(pod: &Pod, claim: &PersistentVolumeClaim) -> Option<String> {
    let owner = controller_of(claim).map(|owner| &owner.uid);
    if owner.is_some() && owner == pod.metadata.uid.as_ref() {
        return None;
    }
    let (claim, pod) = (Key::from_object(claim), Key::from_object(pod));
    Some(format!(
        "PVC {claim} was not created for pod {pod} (pod is not owner)"
    ))
}

impl Ephemeral {
    async fn ensure(&self, pod: &Pod, volume: &Volume) -> Result<(), Error> {
        let Some(wanted) = claim(pod, volume) else {
            return Ok(());
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        if let Some(known) = self.claims.cache().get(namespace, name) {
            return foreign(pod, &known).map_or(Ok(()), |why| Err(Error::Invalid(why)));
        }
        self.metrics.ephemeral_created.add([], 1);
        match self.claims.create(namespace, &wanted).await {
            Ok(_) => Ok(()),
            Err(error) => {
                self.metrics.ephemeral_failed.add([], 1);
                Err(Error::Invalid(format!("create PVC {name}: {error}")))
            }
        }
    }
}

impl Controller for Ephemeral {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        for volume in volumes(&pod) {
            if let Err(error) = self.ensure(&pod, volume).await {
                let message = format!("ephemeral volume {}: {error}", volume.name);
                let about = kube::Resource::object_ref(&*pod, &());
                self.events
                    .event(&about, Kind::Warning, "FailedBinding", message);
                return Err(error);
            }
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        let template = json!({
            "metadata": {"labels": {"app": "db"}, "annotations": {"note": "x"}},
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]},
        });
        let volumes = json!([
            {"name": "plain", "emptyDir": {}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}},
        ]);
        let meta = json!({"name": "web", "namespace": "default", "uid": "p"});
        let spec = json!({"containers": [], "volumes": volumes});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    #[test]
    fn the_claim_is_the_template_owned_by_its_pod() {
        let pod = pod();
        let made: Vec<_> = volumes(&pod)
            .filter_map(|volume| claim(&pod, volume))
            .collect();
        let [made] = &made[..] else {
            panic!("{made:?}");
        };
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "web-scratch", "labels": {"app": "db"}, "annotations": {"note": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p",
                                     "controller": true, "blockOwnerDeletion": true}],
            },
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]},
        });
        assert_eq!(serde_json::to_value(made).unwrap(), expected);
        assert_eq!(foreign(&pod, made), None);
    }

    #[test]
    fn a_claim_of_the_same_name_that_belongs_to_nothing_is_not_used() {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("web-scratch".into());
        claim.metadata.namespace = Some("default".into());
        let why = "PVC default/web-scratch was not created for pod default/web (pod is not owner)";
        assert_eq!(foreign(&pod(), &claim).as_deref(), Some(why));
    }
}
