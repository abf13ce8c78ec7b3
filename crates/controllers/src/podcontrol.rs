//! Creating and deleting pods on behalf of an owner, with the events that say so.

use std::{future::Future, sync::Arc};

use client::Event;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::ObjectMeta;
use reconcile::{Error, Key, Kind, Recorder, Writer};

use crate::shared::{Watched, controller_of, controller_reference};

/// A pod as its template says, owned by `owner`, with a name made from the owner's.
pub fn from_template<O: Watched>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let template_meta = template.metadata.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        namespace: owner.meta().namespace.clone(),
        generate_name: Some(prefix(owner.meta().name.as_deref().unwrap_or_default())),
        labels: template_meta.labels,
        annotations: template_meta.annotations,
        finalizers: template_meta.finalizers,
        owner_references: Some(vec![controller_reference(owner)]),
        ..Default::default()
    };
    Pod {
        metadata,
        spec: template.spec.clone(),
        status: None,
    }
}

/// The server adds five characters; a pod's name has at most 63 to be a host name.
fn prefix(name: &str) -> String {
    format!("{name}-")
}

/// Creates a pod and says so. A namespace that is being deleted wants no pods: that is no failure.
pub async fn create<O: Watched>(
    pods: &Writer<Pod>,
    recorder: &Recorder,
    owner: &O,
    pod: &Pod,
) -> Result<(), Error> {
    let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
    match pods.create(namespace, pod).await {
        Ok(created) => {
            let name = created.metadata.name.unwrap_or_default();
            let about = owner.object_ref(&());
            recorder.event(
                &about,
                Kind::Normal,
                "SuccessfulCreate",
                format!("Created pod: {name}"),
            );
            Ok(())
        }
        Err(error) if error.is_namespace_terminating() => Ok(()),
        Err(error) => {
            let text = format!("Error creating: {}", message(&error));
            recorder.event(&owner.object_ref(&()), Kind::Warning, "FailedCreate", text);
            Err(error)
        }
    }
}

/// Deletes a pod and says so.
pub async fn delete<O: Watched>(
    pods: &Writer<Pod>,
    recorder: &Recorder,
    owner: &O,
    pod: &Pod,
) -> Result<(), Error> {
    let (name, about) = (
        pod.metadata.name.as_deref().unwrap_or_default(),
        owner.object_ref(&()),
    );
    match pods.delete(pod).await {
        Ok(()) => {
            recorder.event(
                &about,
                Kind::Normal,
                "SuccessfulDelete",
                format!("Deleted pod: {name}"),
            );
            Ok(())
        }
        Err(error) => {
            let text = format!("Error deleting: {}", message(&error));
            recorder.event(&about, Kind::Warning, "FailedDelete", text);
            Err(error)
        }
    }
}

/// What the API server said, without our own words around it.
pub fn message(error: &Error) -> String {
    match error {
        Error::Api(kube::Error::Api(status)) => status.message.clone(),
        Error::Several { first, .. } => message(first),
        other => other.to_string(),
    }
}

/// Runs `count` calls, one, then two, then four at once, until a batch has a failure.
pub async fn in_growing_batches<F>(count: usize, call: impl Fn(usize) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let (mut done, mut size) = (0, 1);
    while done < count {
        let batch = size.min(count - done);
        let results = join_all((done..done + batch).map(&call)).await;
        reconcile::all(results)?;
        done += batch;
        size *= 2;
    }
    Ok(())
}

/// The owners that a pod's change concerns: the controllers it has and had, and for an orphan those
/// that `candidates` says could adopt it.
pub fn owner_keys(
    event: &Event<Pod>,
    kind: &str,
    candidates: impl Fn(&Pod) -> Vec<Key>,
) -> Vec<Key> {
    let key = |pod: &Pod| {
        let controller = controller_of(pod).filter(|controller| controller.kind == kind)?;
        Some(Key::new(
            pod.metadata.namespace.clone().unwrap_or_default(),
            controller.name.clone(),
        ))
    };
    let new: &Arc<Pod> = event.object();
    let mut keys: Vec<Key> = event.old().and_then(|old| key(old)).into_iter().collect();
    keys.extend(key(new).filter(|key| !keys.contains(key)));
    let changed = event.old().is_none_or(|old| {
        old.metadata.labels != new.metadata.labels
            || controller_of(&**old).is_some() != controller_of(&**new).is_some()
    });
    let leaves = matches!(event, Event::Deleted(_));
    if controller_of(&**new).is_none() && changed && !leaves {
        keys.extend(candidates(new));
    }
    keys
}
