//! Why a namespace is not removed.

use client::{Api, kube};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;

use crate::{Answer, Result, question::Name};

pub(crate) async fn answer(client: &kube::Client, name: &Name) -> Result<Answer> {
    Ok(explain(
        &Api::<Namespace>::all(client.clone())
            .get(&name.name)
            .await?,
    ))
}

fn explain(namespace: &Namespace) -> Answer {
    let name = format!("namespace/{}", namespace.name_any());
    if namespace.metadata.deletion_timestamp.is_none() {
        return Answer::new(format!("{name} is Active"));
    }
    let mut answer = Answer::new(format!("{name} is Terminating"));
    let conditions = namespace
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    for condition in conditions
        .into_iter()
        .filter(|condition| condition.status == "True")
    {
        let message = condition.message.as_deref().unwrap_or_default();
        answer = answer.because(format!("{}: {message}", condition.type_));
        answer = match condition.type_.as_str() {
            "NamespaceContentRemaining" => answer.next(format!("kubectl get all --really-all -n {}", namespace.name_any())),
            "NamespaceFinalizersRemaining" => answer.next("the controllers that set these finalizers must remove them; are they still installed?"),
            "NamespaceDeletionDiscoveryFailure" => answer.next("an APIService is not available: kubectl get apiservices"),
            _ => answer,
        };
    }
    let finalizers = namespace
        .spec
        .as_ref()
        .and_then(|spec| spec.finalizers.clone());
    let others: Vec<String> = finalizers
        .into_iter()
        .flatten()
        .filter(|finalizer| finalizer != "kubernetes")
        .collect();
    if !others.is_empty() {
        answer = answer.because(format!(
            "waiting for spec.finalizers: {}",
            others.join(", ")
        ));
    }
    match namespace.finalizers() {
        [] => answer,
        own => answer.because(format!(
            "waiting for finalizers: {}; the controllers that set them must remove them",
            own.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn remaining_resources_of_a_namespace_are_reported() {
        let namespace = json!({"metadata": {"name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["d.e/f"]},
            "spec": {"finalizers": ["kubernetes", "a.b/c"]},
            "status": {"conditions": [
                {"type": "NamespaceContentRemaining", "status": "True", "message": "widgets. has 1 resource instances"},
                {"type": "NamespaceDeletionContentFailure", "status": "False", "message": "all deleted"}]}});
        let text = explain(&serde_json::from_value(namespace).unwrap()).to_string();
        for part in [
            "namespace/old is Terminating",
            "has 1 resource instances",
            "waiting for spec.finalizers: a.b/c",
            "waiting for finalizers: d.e/f;",
            "-> kubectl get all --really-all -n old",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("all deleted"), "{text}");
    }
}
