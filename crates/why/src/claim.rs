//! Why a PersistentVolumeClaim is not bound, or is not removed.

use client::{Api, kube};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{ResourceExt, api::ListParams};

use crate::{
    Answer, Result,
    events::{self, Warning},
    question::Name,
};

const PROTECTION: &str = "kubernetes.io/pvc-protection";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

pub(crate) async fn answer(client: &kube::Client, name: &Name) -> Result<Answer> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &name.namespace);
    let claim = claims.get(&name.name).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
    let everything = ListParams::default();
    let pods = pods.list(&everything).await?;
    let seen = Seen {
        users: pods
            .iter()
            .filter(|pod| uses(pod, &name.name))
            .map(ResourceExt::name_any)
            .collect(),
        classes: Api::all(client.clone()).list(&everything).await?,
        volumes: Api::all(client.clone()).list(&everything).await?,
        warnings: events::warnings(client, &name.namespace, "PersistentVolumeClaim", &name.name)
            .await?,
    };
    Ok(explain(&claim, &seen))
}

fn uses(pod: &Pod, claim: &str) -> bool {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let mut sources = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    sources.any(|source| source.claim_name == claim)
}

#[derive(Debug, Default)]
struct Seen {
    /// Pods that use the claim.
    users: Vec<String>,
    classes: Vec<StorageClass>,
    volumes: Vec<PersistentVolume>,
    warnings: Vec<Warning>,
}

fn explain(claim: &PersistentVolumeClaim, seen: &Seen) -> Answer {
    let name = format!("pvc/{}", claim.name_any());
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    let volume = volume.filter(|volume| !volume.is_empty());
    if claim.metadata.deletion_timestamp.is_some() {
        return terminating(&name, claim, seen);
    }
    match (phase, volume) {
        (Some("Bound"), Some(volume)) => Answer::new(format!("{name} is bound to volume {volume}")),
        (Some("Lost"), _) => Answer::new(format!("{name} has lost its volume"))
            .because(format!("volume {} does not exist", volume.unwrap_or("<none>")))
            .next("restore the volume's data and create a PersistentVolume of that name, or delete the claim"),
        (_, Some(volume)) => waits_for_volume(&name, volume, claim, seen),
        _ => pending(&name, claim, seen),
    }
    .because_all(seen.warnings.iter().map(Warning::line))
}

fn terminating(name: &str, claim: &PersistentVolumeClaim, seen: &Seen) -> Answer {
    let answer = Answer::new(format!("{name} is Terminating"));
    let finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|finalizer| finalizer == PROTECTION) && !seen.users.is_empty() {
        return answer.because(format!(
            "pods use it: {}; it is deleted when the last of them ends",
            seen.users.join(", ")
        ));
    }
    answer.because(format!("waiting for finalizers: {}", finalizers.join(", ")))
}

fn waits_for_volume(
    name: &str,
    volume: &str,
    claim: &PersistentVolumeClaim,
    seen: &Seen,
) -> Answer {
    let answer = Answer::new(format!(
        "{name} waits for volume {volume}, which it asks for by name"
    ));
    let Some(found) = seen.volumes.iter().find(|found| found.name_any() == volume) else {
        return answer.because("there is no such PersistentVolume");
    };
    let owner = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    match owner {
        Some(owner) if owner.uid.is_some() && owner.uid != claim.metadata.uid => {
            let (namespace, name) = (owner.namespace.as_deref(), owner.name.as_deref());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            answer.because(format!("the volume belongs to claim {namespace}/{name}"))
        }
        _ => answer.because(
            "the volume's size, access modes, volume mode or class do not match the claim",
        ),
    }
}

fn pending(name: &str, claim: &PersistentVolumeClaim, seen: &Seen) -> Answer {
    let answer = Answer::new(format!("{name} is Pending"));
    let asked = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref());
    let is_default = |class: &&StorageClass| {
        class
            .annotations()
            .get(DEFAULT_CLASS)
            .is_some_and(|value| value == "true")
    };
    let class = match asked {
        Some("") => return answer.because("its class is \"\": only a PersistentVolume without a class that was made by hand suits, and there is none free"),
        Some(asked) => match seen.classes.iter().find(|class| class.name_any() == asked) {
            Some(class) => class,
            None => {
                let known: Vec<String> = seen.classes.iter().map(ResourceExt::name_any).collect();
                return answer
                    .because(format!("there is no StorageClass {asked}"))
                    .next(format!("create it, or use one of: {}", known.join(", ")));
            }
        },
        None => match seen.classes.iter().find(is_default) {
            Some(class) => class,
            None => return answer.because("it names no class and no StorageClass is the default one"),
        },
    };
    let class_name = class.name_any();
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    match &seen.users[..] {
        [] if waits => answer
            .because(format!("class {class_name} provisions the volume on the node of the first pod, and no pod uses the claim yet"))
            .next("start a pod that uses it"),
        [first, ..] if waits => answer
            .because(format!("class {class_name} waits until pod {first} is scheduled"))
            .next(format!("mainstay why pod/{first}")),
        _ => answer.because(format!("the provisioner {} of class {class_name} has not provisioned the volume yet", class.provisioner)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_claim_state_is_explained() {
        let class = |name: &str, mode: &str| {
            serde_json::from_value::<StorageClass>(json!({"metadata": {"name": name}, "provisioner": "a.b/c", "volumeBindingMode": mode})).unwrap()
        };
        let classes = || {
            vec![
                class("late", "WaitForFirstConsumer"),
                class("soon", "Immediate"),
            ]
        };
        let claim = |meta: Value, spec: Value, phase: &str| {
            let mut whole =
                json!({"metadata": {"name": "data"}, "spec": spec, "status": {"phase": phase}});
            for (key, value) in meta.as_object().unwrap() {
                whole["metadata"][key] = value.clone();
            }
            serde_json::from_value::<PersistentVolumeClaim>(whole).unwrap()
        };
        let deleted =
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [PROTECTION]});
        let cases = [
            (
                claim(json!({}), json!({"storageClassName": "late"}), "Pending"),
                vec![],
                "no pod uses the claim yet",
            ),
            (
                claim(json!({}), json!({"storageClassName": "late"}), "Pending"),
                vec!["db"],
                "-> mainstay why pod/db",
            ),
            (
                claim(json!({}), json!({"storageClassName": "soon"}), "Pending"),
                vec![],
                "provisioner a.b/c of class soon",
            ),
            (
                claim(json!({}), json!({"storageClassName": "fast"}), "Pending"),
                vec![],
                "one of: late, soon",
            ),
            (
                claim(json!({}), json!({}), "Pending"),
                vec![],
                "no StorageClass is the default one",
            ),
            (
                claim(json!({}), json!({"volumeName": "v1"}), "Bound"),
                vec![],
                "is bound to volume v1",
            ),
            (
                claim(json!({}), json!({"volumeName": "v1"}), "Pending"),
                vec![],
                "no such PersistentVolume",
            ),
            (
                claim(json!({}), json!({"volumeName": "v1"}), "Lost"),
                vec![],
                "has lost its volume",
            ),
            (
                claim(deleted, json!({}), "Bound"),
                vec!["db"],
                "pods use it: db",
            ),
        ];
        for (claim, users, part) in cases {
            let seen = Seen {
                users: users.into_iter().map(str::to_owned).collect(),
                classes: classes(),
                ..Seen::default()
            };
            let text = explain(&claim, &seen).to_string();
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}
