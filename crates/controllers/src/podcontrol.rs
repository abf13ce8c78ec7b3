//! Creates and deletes pods for an owner, and records the events.

use std::future::Future;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::ObjectMeta;
use reconcile::{Error, Kind, Recorder, Writer};

use crate::{
    members::Member,
    shared::{Watched, controller_reference},
};

/// The maximum length of object names.
const NAME_LENGTH: usize = 253;
/// The maximum number of concurrent calls.
const MOST_AT_ONCE: usize = 128;

/// A pod from the template, owned by `owner`, with a generateName from the owner's name.
pub(crate) fn from_template<O: Watched>(owner: &O, template: Option<&PodTemplateSpec>) -> Pod {
    let meta = template.and_then(|template| template.metadata.clone());
    let meta = meta.unwrap_or_default();
    let metadata = ObjectMeta {
        namespace: owner.meta().namespace.clone(),
        generate_name: Some(prefix(owner.meta().name.as_deref().unwrap_or_default())),
        labels: meta.labels,
        annotations: meta.annotations,
        finalizers: meta.finalizers,
        owner_references: Some(vec![controller_reference(owner)]),
        ..Default::default()
    };
    Pod {
        metadata,
        spec: template.and_then(|template| template.spec.clone()),
        status: None,
    }
}

/// The name with a dash, unless that is too long for a name. The API server truncates a
/// generateName to make room for its suffix.
fn prefix(name: &str) -> String {
    if name.len() < NAME_LENGTH {
        format!("{name}-")
    } else {
        name.to_owned()
    }
}

/// Creates a pod and records the event; returns whether it was created. A namespace that is being
/// deleted rejects pods, which is not an error.
pub(crate) async fn create<O: Watched>(
    pods: &Writer<Pod>,
    recorder: &Recorder,
    owner: &O,
    pod: &Pod,
) -> Result<bool, Error> {
    let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
    match pods.create_only(namespace, pod).await {
        Ok(created) => {
            let name = created.name;
            let about = owner.object_ref(&());
            recorder.event(
                &about,
                Kind::Normal,
                "SuccessfulCreate",
                format!("Created pod: {name}"),
            );
            Ok(true)
        }
        Err(error) if error.is_namespace_terminating() => Ok(false),
        Err(error) => {
            let text = format!("Error creating: {}", message(&error));
            recorder.event(&owner.object_ref(&()), Kind::Warning, "FailedCreate", text);
            Err(error)
        }
    }
}

/// Deletes a pod and records the event.
pub(crate) async fn delete<O: Watched>(
    pods: &Writer<Pod>,
    recorder: &Recorder,
    owner: &O,
    pod: &Pod,
) -> Result<(), Error> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    deleted(recorder, owner, name, pods.delete(pod).await)
}

/// The same without decoding the pod.
pub(crate) async fn delete_member<O: Watched>(
    pods: &Writer<Pod>,
    recorder: &Recorder,
    owner: &O,
    member: &Member,
) -> Result<(), Error> {
    let outcome = pods.delete_entry(member.entry()).await;
    deleted(recorder, owner, member.entry().name(), outcome)
}

/// Records the event of a deletion.
fn deleted<O: Watched>(
    recorder: &Recorder,
    owner: &O,
    name: &str,
    outcome: Result<(), Error>,
) -> Result<(), Error> {
    let (kind, reason, text) = match &outcome {
        Ok(()) => (
            Kind::Normal,
            "SuccessfulDelete",
            format!("Deleted pod: {name}"),
        ),
        Err(error) => (
            Kind::Warning,
            "FailedDelete",
            format!("Error deleting: {}", message(error)),
        ),
    };
    recorder.event(&owner.object_ref(&()), kind, reason, text);
    outcome
}

/// The API server's message, without our own prefix.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::Api(kube::Error::Api(status)) => status.message.clone(),
        Error::Several { first, .. } => message(first),
        other => other.to_string(),
    }
}

/// Creates `count` pods in batches of one, two, four and so on, until a batch has a failure: with a
/// quota or a broken template few requests are rejected. Returns how many were created.
pub(crate) async fn in_growing_batches<F>(
    count: usize,
    create: impl Fn(usize) -> F,
) -> (usize, Result<(), Error>)
where
    F: Future<Output = Result<bool, Error>>,
{
    let (mut begun, mut size, mut made) = (0, 1, 0);
    while begun < count {
        let batch = size.min(count - begun);
        let mut results = Vec::with_capacity(batch);
        for result in join_all((begun..begun + batch).map(&create)).await {
            made += usize::from(matches!(result, Ok(true)));
            results.push(result.map(drop));
        }
        if let Err(error) = reconcile::all(results) {
            return (made, Err(error));
        }
        begun += batch;
        size = (size * 2).min(MOST_AT_ONCE);
    }
    (made, Ok(()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn batches_grow_until_one_fails() {
        for (count, fails_at, calls, made) in [
            (0, usize::MAX, 0, 0),
            (10, usize::MAX, 10, 10),
            (500, 0, 1, 0),
            (500, 4, 7, 6),
            (500, usize::MAX, 500, 500),
        ] {
            let called = AtomicUsize::new(0);
            let (seen, outcome) = in_growing_batches(count, |number| {
                called.fetch_add(1, Ordering::Relaxed);
                async move {
                    if number == fails_at {
                        return Err(Error::Invalid("no".into()));
                    }
                    Ok(true)
                }
            })
            .await;
            let fails = fails_at < count;
            assert_eq!(
                (seen, outcome.is_err()),
                (made, fails),
                "{count} {fails_at}"
            );
            assert_eq!(called.into_inner(), calls, "{count} {fails_at}");
        }
    }

    #[test]
    fn a_name_that_leaves_no_room_for_a_dash_is_its_own_prefix() {
        assert_eq!(prefix("web"), "web-");
        assert_eq!(prefix(&"a".repeat(252)).len(), 253);
        assert_eq!(prefix(&"a".repeat(253)).len(), 253);
    }
}
