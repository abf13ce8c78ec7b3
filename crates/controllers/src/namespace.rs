//! Deletes the contents of a namespace: its pods first, so that none runs without its network
//! policies, then everything else of all kinds, then the namespace's finalizer. Conditions show
//! what is left.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::Api;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Client,
    api::{DeleteParams, DynamicObject, ListParams, PartialObjectMeta, PostParams},
};
use reconcile::{Action, Controller, Error, Key};

use crate::{
    discovery::{Resource, discover},
    podcontrol,
    shared::Shared,
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "namespace";
const ACCOUNT: &str = "namespace-controller";
const FINALIZER: &str = "kubernetes";
/// How soon to retry while something is left.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const AT_ONCE: usize = 8;

struct Namespaces {
    shared: Arc<Shared>,
    client: Client,
    cache: client::Informer<Namespace>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let client = shared.client(ACCOUNT);
    let controller = Arc::new(Namespaces {
        shared: shared.clone(),
        client,
        cache: shared.informer(),
    });
    shared
        .controller(&controller)
        .watches_with(&controller.cache, |event| {
            let namespace = event.object();
            let leaving = namespace.metadata.deletion_timestamp.is_some();
            leaving
                .then(|| Key::from_object(&**namespace))
                .into_iter()
                .collect()
        })
        .retry_cap(Duration::from_secs(30))
        .workers(4)
        .start();
}

/// The remaining objects by kind, and errors.
#[derive(Debug, Default)]
struct Leftovers {
    counts: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    errors: Vec<String>,
    undiscovered: Vec<String>,
}

impl Leftovers {
    fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.errors.is_empty() && self.undiscovered.is_empty()
    }

    fn note(
        &mut self,
        resource: &Resource,
        left: Result<Vec<PartialObjectMeta<DynamicObject>>, Error>,
    ) {
        let objects = match left {
            Err(error) => return self.errors.push(podcontrol::message(&error)),
            Ok(objects) if objects.is_empty() => return,
            Ok(objects) => objects,
        };
        let name = format!("{}.{}", resource.api.plural, resource.api.group);
        self.counts.insert(name, objects.len());
        let finalizers = objects
            .iter()
            .flat_map(|object| object.metadata.finalizers.iter().flatten());
        for finalizer in finalizers {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }
}

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let Some(namespace) = self.cache.get("", &key.name) else {
            return Ok(Action::Done);
        };
        if namespace.metadata.deletion_timestamp.is_none() || !is_held(&namespace) {
            return Ok(Action::Done);
        }
        let leftovers = self.empty(&key.name).await?;
        let status = status(&namespace, &leftovers, self.shared.now());
        let is_written = namespace.status.as_ref() == Some(&status);
        let mut namespace = (*namespace).clone();
        if !is_written {
            namespace.status = Some(status);
            namespace = match api
                .replace_status(&key.name, &PostParams::default(), &namespace)
                .await
            {
                Ok(namespace) => namespace,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Action::Done),
                Err(error) => return Err(error.into()),
            };
        }
        if !leftovers.is_empty() {
            return Ok(Action::After(RETRY_DELAY));
        }
        self.release(namespace).await?;
        Ok(Action::Done)
    }
}

fn is_held(namespace: &Namespace) -> bool {
    let finalizers = namespace
        .spec
        .iter()
        .flat_map(|spec| spec.finalizers.iter().flatten());
    finalizers
        .into_iter()
        .any(|finalizer| finalizer == FINALIZER)
}

/// Separates pods from other kinds.
fn pods_first(resources: impl Iterator<Item = Resource>) -> (Vec<Resource>, Vec<Resource>) {
    resources.partition(|resource| resource.api.group.is_empty() && resource.api.plural == "pods")
}

impl Namespaces {
    /// Deletes everything and returns what is left. While pods are left, nothing else is deleted.
    async fn empty(&self, namespace: &str) -> Result<Leftovers, Error> {
        let (resources, undiscovered) = discover(&self.client).await?;
        let deletable =
            |resource: &Resource| resource.namespaced && resource.can(&["list", "delete"]);
        let (pods, others) = pods_first(resources.into_iter().filter(deletable));
        let mut leftovers = Leftovers::default();
        self.empty_all(namespace, pods, &mut leftovers).await;
        if leftovers.is_empty() {
            self.empty_all(namespace, others, &mut leftovers).await;
        }
        leftovers.undiscovered = undiscovered;
        Ok(leftovers)
    }

    /// Deletes all objects of several kinds concurrently and records what is left.
    async fn empty_all(&self, namespace: &str, kinds: Vec<Resource>, leftovers: &mut Leftovers) {
        let deleted = stream::iter(kinds)
            .map(|resource| async move {
                let left = self.empty_of(namespace, &resource).await;
                (resource, left)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>();
        for (resource, left) in deleted.await {
            leftovers.note(&resource, left);
        }
        leftovers.errors.sort();
    }

    /// Deletes all objects of one kind; returns those that still exist.
    async fn empty_of(
        &self,
        namespace: &str,
        resource: &Resource,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource.api);
        let list = |api: Api<DynamicObject>| async move {
            let params = ListParams::default();
            api.list_metadata(&params).await.map_err(Error::from)
        };
        let before = match list(api.clone()).await {
            Err(error) if matches!(error.code(), Some(404 | 405)) => return Ok(Vec::new()),
            other => other?,
        };
        if before.is_empty() {
            return Ok(before);
        }
        let params = DeleteParams::background();
        if resource.can(&["deletecollection"]) {
            api.delete_collection(&params, &ListParams::default())
                .await?;
        } else {
            for object in &before {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                match api.delete(name, &params).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => other?,
                }
            }
        }
        list(api).await
    }

    /// Removes the finalizer; the API server deletes a namespace without finalizers.
    async fn release(&self, mut namespace: Namespace) -> Result<(), Error> {
        if let Some(finalizers) = namespace
            .spec
            .as_mut()
            .and_then(|spec| spec.finalizers.as_mut())
        {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        let name = namespace.metadata.name.clone().unwrap_or_default();
        let body = serde_json::to_vec(&namespace).map_err(kube::Error::SerdeError)?;
        let request = http::Request::put(format!("/api/v1/namespaces/{name}/finalize"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)?;
        match self.client.request::<serde_json::Value>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }
}

/// A condition's type, reason and message, for both statuses.
type Fact = (
    &'static str,
    Option<(&'static str, String)>,
    (&'static str, &'static str),
);

fn undiscovered(versions: &[String]) -> String {
    let stale = |version: &String| format!("{version}: stale GroupVersion discovery: {version}");
    let stale: Vec<String> = versions.iter().map(stale).collect();
    format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        versions.len(),
        stale.join(", ")
    )
}

/// The five conditions of what is left.
fn facts(left: &Leftovers) -> [Fact; 5] {
    let list = |items: &BTreeMap<String, usize>, verb: &str| {
        let part =
            |(name, count): (&String, &usize)| format!("{name} {verb} {count} resource instances");
        items.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let (counts, finalizers) = (list(&left.counts, "has"), list(&left.finalizers, "in"));
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            (!left.undiscovered.is_empty())
                .then(|| ("DiscoveryFailed", undiscovered(&left.undiscovered))),
            (
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            (
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
        ),
        (
            "NamespaceDeletionContentFailure",
            left.errors.first().map(|_| {
                let text = left.errors.join(", ");
                (
                    "ContentDeletionFailed",
                    format!(
                        "Failed to delete all resource types, {} remaining: {text}",
                        left.errors.len()
                    ),
                )
            }),
            (
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
        ),
        (
            "NamespaceContentRemaining",
            (!counts.is_empty()).then(|| {
                (
                    "SomeResourcesRemain",
                    format!("Some resources are remaining: {counts}"),
                )
            }),
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            (!finalizers.is_empty()).then(|| {
                (
                    "SomeFinalizersRemain",
                    format!("Some content in the namespace has finalizers remaining: {finalizers}"),
                )
            }),
            (
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
        ),
    ]
}

/// The phase and the conditions.
fn status(namespace: &Namespace, left: &Leftovers, now: Timestamp) -> NamespaceStatus {
    let before = namespace
        .status
        .clone()
        .unwrap_or_default()
        .conditions
        .unwrap_or_default();
    let condition = |(kind, problem, fine): Fact| {
        let (status, reason, message) = match problem {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", fine.0, fine.1.to_owned()),
        };
        let known = before.iter().find(|known| known.type_ == kind);
        let since = known.filter(|known| known.status == status);
        NamespaceCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: since
                .and_then(|known| known.last_transition_time.clone())
                .or(Some(Time(now))),
        }
    };
    NamespaceStatus {
        phase: Some("Terminating".to_owned()),
        conditions: Some(facts(left).into_iter().map(condition).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::samples::at;

    fn message(left: &Leftovers, kind: &str) -> String {
        let status = status(&Namespace::default(), left, at(1));
        let all = status.conditions.unwrap();
        let found = all
            .iter()
            .find(|condition| condition.type_ == kind)
            .unwrap();
        format!("{} {}", found.status, found.message.as_deref().unwrap())
    }

    #[test]
    fn remaining_resources_and_finalizers_are_in_the_namespace_conditions() {
        let left = Leftovers {
            counts: [("pods.".to_owned(), 2)].into(),
            finalizers: [("example.com/hold".to_owned(), 1)].into(),
            ..Leftovers::default()
        };
        assert_eq!(
            message(&left, "NamespaceContentRemaining"),
            "True Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            message(&left, "NamespaceFinalizersRemaining"),
            "True Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        );
        assert!(message(&Leftovers::default(), "NamespaceContentRemaining").starts_with("False"));
    }
}
