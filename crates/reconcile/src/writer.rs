//! Writes that return only when the writer's own informer has them. A controller that reads its own
//! writes needs no expectations: its next read is never older than its last write. An informer that
//! lags behind for too long is marked, and no controller that reads it reconciles until it has
//! caught up.

use std::{fmt::Debug, sync::Arc, time::Duration};

use client::{
    Api, Informer, ToJson,
    informer::{Entry, Object},
};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::{
    Resource,
    api::{
        DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy, Request,
    },
    core::request,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::{Error, StatusPatch};

/// How long a write waits for the informer.
const CACHE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many creates and deletions of a writer are in flight at once, of all workers of its controller: more of them take
/// memory and are not done earlier.
const IN_FLIGHT: usize = 128;

/// What most writers need of the response to a write: the rest is not decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Written {
    /// The name, which the API server may have completed.
    pub name: String,
    /// The new version.
    pub resource_version: String,
}

/// Writes objects of one kind as one user.
pub struct Writer<K> {
    client: kube::Client,
    informer: Informer<K>,
    in_flight: Arc<Semaphore>,
}

impl<K> Clone for Writer<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            informer: self.informer.clone(),
            in_flight: self.in_flight.clone(),
        }
    }
}

impl<K> Writer<K>
where
    K: Object + Resource<DynamicType = ()> + ToJson + Clone + Debug,
{
    /// Writes with `client`, waits for `informer`.
    pub fn new(client: kube::Client, informer: Informer<K>) -> Self {
        Self {
            client,
            informer,
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
        }
    }

    /// The informer that this writer waits for.
    pub fn cache(&self) -> &Informer<K> {
        &self.informer
    }

    fn api(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates an object.
    pub async fn create(&self, namespace: &str, object: &K) -> Result<K, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let created = self
            .api(namespace)
            .create(&PostParams::default(), object)
            .await?;
        Ok(self.shown(created).await)
    }

    /// Creates an object whose stored form is not needed.
    pub async fn create_only(&self, namespace: &str, object: &K) -> Result<Written, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        // The semaphore is never closed.
        let permit = self.in_flight.acquire().await;
        let body = object.to_json().map_err(kube::Error::SerdeError)?;
        let request = Request::new(K::url_path(&(), Some(namespace)));
        let created = self
            .answer(request.create(&PostParams::default(), body))
            .await?;
        drop(permit);
        self.reached(&created.resource_version).await;
        Ok(created)
    }

    /// Replaces an object, with its resourceVersion as a precondition.
    pub async fn update(&self, namespace: &str, object: &K) -> Result<K, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let name = object.meta().name.clone().unwrap_or_default();
        let updated = self
            .api(namespace)
            .replace(&name, &PostParams::default(), object)
            .await?;
        Ok(self.shown(updated).await)
    }

    /// Replaces an object's status, with its resourceVersion as a precondition.
    pub async fn update_status(&self, namespace: &str, object: &K) -> Result<Written, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let name = segment(object.meta().name.as_deref())?;
        let body = object.to_json().map_err(kube::Error::SerdeError)?;
        let request = Request::new(K::url_path(&(), Some(namespace)));
        let params = PostParams::default();
        self.send(request.replace_subresource("status", name, &params, body))
            .await
    }

    /// Applies a merge patch to an object.
    pub async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let api = self.api(namespace);
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(self.shown(patched).await)
    }

    /// Applies a strategic merge patch, which changes elements of a list without replacing the
    /// list.
    pub async fn patch_strategic(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Written, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let name = segment(Some(name))?;
        let request = Request::new(K::url_path(&(), Some(namespace)));
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        self.send(request.patch(name, &params, &patch)).await
    }

    /// Patches conditions and fields of an object's status.
    pub async fn patch_status(&self, object: &K, patch: &StatusPatch) -> Result<K, Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let meta = object.meta();
        let api = self.api(meta.namespace.as_deref().unwrap_or_default());
        let name = meta.name.as_deref().unwrap_or_default();
        let patched = patch.send(&api, name).await?;
        Ok(self.shown(patched).await)
    }

    /// Deletes this object, with its uid as a precondition; one that is gone is no error.
    pub async fn delete(&self, object: &K) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        self.delete_with(object, PropagationPolicy::Background)
            .await
    }

    /// Deletes this object, with a propagation policy.
    pub async fn delete_with(&self, object: &K, policy: PropagationPolicy) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let meta = object.meta();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let uid = meta.uid.as_deref().unwrap_or_default();
        self.delete_named((namespace, name, uid), policy).await
    }

    /// Deletes the object of an entry like [`Writer::delete`], without decoding it.
    pub async fn delete_entry(&self, entry: &Entry<K>) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let identity = (entry.namespace(), entry.name(), &*entry.uid());
        self.delete_named(identity, PropagationPolicy::Background)
            .await
    }

    /// Deletes the object of this namespace, name and uid.
    async fn delete_named(
        &self,
        (namespace, name, uid): (&str, &str, &str),
        policy: PropagationPolicy,
    ) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let preconditions = Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        };
        let mut params = DeleteParams::default().preconditions(preconditions);
        params.propagation_policy = Some(policy);
        // The semaphore is never closed.
        let permit = self.in_flight.acquire().await;
        match self.api(namespace).delete(name, &params).await {
            Ok(()) => {}
            // Another object has the name, or none: this one is gone.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error.into()),
        }
        drop(permit);
        let shown = self
            .informer
            .left_within(namespace, name, uid, CACHE_TIMEOUT)
            .await;
        self.warn_unless(shown);
        Ok(())
    }

    fn cluster_api(&self) -> Api<K>
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        Api::all(self.client.clone())
    }

    /// Creates a cluster-scoped object.
    pub async fn cluster_create(&self, object: &K) -> Result<K, Error>
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        let params = PostParams::default();
        let created = self.cluster_api().create(&params, object).await?;
        Ok(self.shown(created).await)
    }

    /// Replaces a cluster-scoped object, with its resourceVersion as a precondition.
    pub async fn cluster_update(&self, object: &K) -> Result<K, Error>
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        let (api, params) = (self.cluster_api(), PostParams::default());
        let name = object.meta().name.clone().unwrap_or_default();
        let updated = api.replace(&name, &params, object).await?;
        Ok(self.shown(updated).await)
    }

    /// Replaces the status of a cluster-scoped object, with its resourceVersion as a precondition.
    pub async fn cluster_update_status(&self, object: &K) -> Result<K, Error>
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        let (api, params) = (self.cluster_api(), PostParams::default());
        let name = object.meta().name.clone().unwrap_or_default();
        let updated = api.replace_status(&name, &params, object).await?;
        Ok(self.shown(updated).await)
    }

    /// Applies a merge patch to the status of a cluster-scoped object.
    pub async fn cluster_patch_status(&self, name: &str, patch: &Value) -> Result<K, Error>
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        let (api, params) = (self.cluster_api(), PatchParams::default());
        let patched = api
            .patch_status(name, &params, &Patch::Merge(patch))
            .await?;
        Ok(self.shown(patched).await)
    }

    /// Deletes this cluster-scoped object, with its uid as a precondition; one that is gone is no
    /// error. It may remain while it has finalizers.
    pub async fn cluster_delete(&self, object: &K) -> Result<(), Error>
    where
        K: Resource<Scope = ClusterResourceScope>,
    {
        let meta = object.meta();
        let name = meta.name.clone().unwrap_or_default();
        let preconditions = Preconditions {
            uid: meta.uid.clone(),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(preconditions);
        match self.cluster_api().delete(&name, &params).await {
            Ok(_) => {}
            // Another object has the name: this one is gone.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error.into()),
        }
        let uid = meta.uid.clone().unwrap_or_default();
        let shown = self
            .informer
            .left_within("", &name, &uid, CACHE_TIMEOUT)
            .await;
        self.warn_unless(shown);
        Ok(())
    }

    async fn shown(&self, object: K) -> K {
        let version = object.meta().resource_version.as_deref();
        self.reached(version.unwrap_or_default()).await;
        object
    }

    /// Sends a write and waits until the informer shows it.
    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<Written, Error> {
        let written = self.answer(request).await?;
        self.reached(&written.resource_version).await;
        Ok(written)
    }

    /// Sends a write and reads the answer.
    async fn answer(
        &self,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<Written, Error> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        Ok(read(&self.client.request_text(request).await?)?)
    }

    async fn reached(&self, version: &str) {
        let shown = self.informer.reached_within(version, CACHE_TIMEOUT).await;
        self.warn_unless(shown);
    }

    fn warn_unless(&self, shown: bool) {
        if !shown {
            warn!(kind = %K::kind(&()), "informer cache does not show a write yet, its controllers wait");
        }
    }
}

/// Name and version in a response.
fn read(response: &str) -> Result<Written, kube::Error> {
    #[derive(Deserialize)]
    struct Response {
        metadata: Written,
    }
    let response: Response = serde_json::from_str(response).map_err(kube::Error::SerdeError)?;
    Ok(response.metadata)
}

/// The name of an object as one segment of a path. The API server has no objects with other names.
fn segment(name: Option<&str>) -> Result<&str, kube::Error> {
    let name = name.unwrap_or_default();
    let is_segment = !matches!(name, "" | "." | "..")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~:@!$'()*,;=".contains(&byte));
    if is_segment {
        return Ok(name);
    }
    let why = format!("invalid resource name {name:?}");
    Err(kube::Error::BuildRequest(request::Error::Validation(why)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn writes_return_name_and_version_without_decoding_the_rest() {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let line = format!("{} {}", request.method(), request.uri());
            seen.lock().unwrap().push(line);
            let metadata = json!({"name": "a-x", "resourceVersion": "7", "labels": null});
            let answer = json!({"metadata": metadata, "data": "not a map"}).to_string();
            let body = kube::client::Body::from(answer.into_bytes());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        let client = client::in_process(service);
        let map = |name: &str| ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                resource_version: Some("7".into()),
                ..Default::default()
            },
            ..Default::default()
        };
        let informer = Informer::<ConfigMap>::builder(client.clone()).offline();
        informer.upsert(map("a-x"));
        let writer = Writer::new(client, informer);
        let patch = json!({"data": {}});
        let written = [
            writer.create_only("d", &map("a")).await.unwrap(),
            writer.update_status("d", &map("a")).await.unwrap(),
            writer.patch_strategic("d", "a", &patch).await.unwrap(),
        ];
        let expected = Written {
            name: "a-x".into(),
            resource_version: "7".into(),
        };
        assert!(written.iter().all(|one| *one == expected), "{written:?}");
        let maps = "/api/v1/namespaces/d/configmaps";
        let expected = [
            format!("POST {maps}"),
            format!("PUT {maps}/a/status"),
            format!("PATCH {maps}/a"),
        ];
        let lines: Vec<String> = std::mem::take(&mut *asked.lock().unwrap());
        let lines = lines.iter().map(|line| line.trim_end_matches(['?', '&']));
        assert_eq!(lines.collect::<Vec<_>>(), expected);
        for name in ["", ".", "..", "a/b", "a%2fb", "a?b"] {
            let refused = writer.update_status("d", &map(name)).await;
            assert!(refused.is_err(), "{name}");
            assert!(writer.patch_strategic("d", name, &patch).await.is_err());
        }
        assert!(asked.lock().unwrap().is_empty());
    }
}
