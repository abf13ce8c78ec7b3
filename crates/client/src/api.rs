//! Requests for objects of one kind, with the name checks and decoding of Go's client.
//!
//! `kube::Api` puts names into paths unchecked and decodes strictly. Names come from fields that
//! users set (owner references, volumes, annotations): one with a slash would direct a component's
//! request, with all its permissions, to a path of the user's choice. Objects with nulls in
//! required fields, which the API server stores, could not be decoded, and were logged as a whole,
//! including Secrets. So components use this type: a name is one path segment or the request is not
//! sent, and responses are decoded by [`FromJson`]. Namespaces come from objects' metadata, which
//! the API server has validated.

use std::marker::PhantomData;

use futures::future::BoxFuture;
use http::Request as HttpRequest;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::{
    Client, Resource,
    api::{
        DeleteParams, GetParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams,
        Request,
    },
    core::{DynamicResourceScope, request},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{FromJson, ToJson};

type Result<T, E = kube::Error> = std::result::Result<T, E>;

/// Requests for one kind, in one namespace or in all.
pub struct Api<K> {
    client: Client,
    request: Request,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Api<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            request: Request::new(&*self.request.url_path),
            kind: PhantomData,
        }
    }
}

impl<K: Resource> Api<K> {
    /// All objects of a kind: cluster-scoped ones, or those of all namespaces.
    pub fn all_with(client: Client, kind: &K::DynamicType) -> Self {
        Self::at(client, K::url_path(kind, None))
    }

    /// Objects in a namespace, of a kind known only at run time.
    pub fn namespaced_with(client: Client, namespace: &str, kind: &K::DynamicType) -> Self
    where
        K: Resource<Scope = DynamicResourceScope>,
    {
        Self::at(client, K::url_path(kind, Some(namespace)))
    }

    /// Objects in a namespace.
    pub fn namespaced(client: Client, namespace: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Self::at(client, K::url_path(&(), Some(namespace)))
    }

    /// Cluster-scoped objects.
    pub fn all(client: Client) -> Self
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        Self::at(client, K::url_path(&(), None))
    }

    fn at(client: Client, path: String) -> Self {
        Self {
            client,
            request: Request::new(path),
            kind: PhantomData,
        }
    }
}

impl<K: FromJson> Api<K> {
    /// Gets an object.
    pub async fn get(&self, name: &str) -> Result<K> {
        self.send(self.request.get(&segment(name)?, &GetParams::default()))
            .await
    }

    /// Gets an object; `None` if it does not exist.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>> {
        if_found(self.get(name).await)
    }

    /// Gets an object's metadata.
    pub async fn get_metadata(&self, name: &str) -> Result<PartialObjectMeta<K>>
    where
        PartialObjectMeta<K>: FromJson,
    {
        let asked = self
            .request
            .get_metadata(&segment(name)?, &GetParams::default());
        self.send(asked).await
    }

    /// Gets an object's metadata; `None` if it does not exist.
    pub async fn get_metadata_opt(&self, name: &str) -> Result<Option<PartialObjectMeta<K>>>
    where
        PartialObjectMeta<K>: FromJson,
    {
        let asked = self
            .request
            .get_metadata(&segment(name)?, &GetParams::default());
        if_found(self.send(asked).await)
    }

    /// Lists the objects that `params` select.
    pub async fn list(&self, params: &ListParams) -> Result<Vec<K>> {
        self.items(self.request.list(params)).await
    }

    /// Lists one page of the objects that `params` select, and returns the token of the next page.
    pub async fn page(&self, params: &ListParams) -> Result<(Vec<K>, Option<String>)> {
        self.items_of_page(self.request.list(params)).await
    }

    /// Lists the metadata of the objects that `params` select.
    pub async fn list_metadata(&self, params: &ListParams) -> Result<Vec<PartialObjectMeta<K>>>
    where
        PartialObjectMeta<K>: FromJson,
    {
        self.items(self.request.list_metadata(params)).await
    }

    /// Creates an object.
    pub async fn create(&self, params: &PostParams, object: &K) -> Result<K>
    where
        K: ToJson,
    {
        self.send(self.request.create(params, json(object)?)).await
    }

    /// Replaces an object.
    pub async fn replace(&self, name: &str, params: &PostParams, object: &K) -> Result<K>
    where
        K: ToJson,
    {
        let asked = self.request.replace(&segment(name)?, params, json(object)?);
        self.send(asked).await
    }

    /// Replaces an object's status.
    pub async fn replace_status(&self, name: &str, params: &PostParams, object: &K) -> Result<K>
    where
        K: ToJson,
    {
        self.replace_subresource("status", name, params, object)
            .await
    }

    /// Replaces a subresource of an object.
    pub async fn replace_subresource(
        &self,
        subresource: &str,
        name: &str,
        params: &PostParams,
        object: &K,
    ) -> Result<K>
    where
        K: ToJson,
    {
        let (name, body) = (segment(name)?, json(object)?);
        let request = &self.request;
        let asked = request.replace_subresource(subresource, &name, params, body);
        self.send(asked).await
    }

    /// Posts to a subresource.
    pub async fn create_subresource<T: ToJson + FromJson>(
        &self,
        subresource: &str,
        name: &str,
        params: &PostParams,
        object: &T,
    ) -> Result<T> {
        let (name, body) = (segment(name)?, json(object)?);
        let request = &self.request;
        let asked = request.create_subresource(subresource, &name, params, body);
        self.send(asked).await
    }

    /// Patches an object.
    pub async fn patch<P: Serialize>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K> {
        self.send(self.request.patch(&segment(name)?, params, patch))
            .await
    }

    /// Patches an object and returns its metadata.
    pub async fn patch_metadata<P: Serialize>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<PartialObjectMeta<K>>
    where
        PartialObjectMeta<K>: FromJson,
    {
        let name = segment(name)?;
        self.send(self.request.patch_metadata(&name, params, patch))
            .await
    }

    /// Patches an object's status.
    pub async fn patch_status<P: Serialize>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<K> {
        let name = segment(name)?;
        let asked = self
            .request
            .patch_subresource("status", &name, params, patch);
        self.send(asked).await
    }

    async fn items<T: FromJson>(&self, asked: Asked) -> Result<Vec<T>> {
        Ok(self.items_of_page(asked).await?.0)
    }

    async fn items_of_page<T: FromJson>(&self, asked: Asked) -> Result<(Vec<T>, Option<String>)> {
        #[derive(Deserialize)]
        struct List<'a> {
            #[serde(default)]
            metadata: Meta,
            #[serde(borrow)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Deserialize, Default)]
        struct Meta {
            r#continue: Option<String>,
        }
        let text = answer(&self.client, asked).await?;
        let list: List<'_> = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let items = list.items.into_iter().flatten();
        let read = items.map(|item| T::from_json(item.get()));
        let read: Result<Vec<T>, _> = read.collect();
        let next = list.metadata.r#continue.filter(|token| !token.is_empty());
        Ok((read.map_err(kube::Error::SerdeError)?, next))
    }

    async fn send<T: FromJson>(&self, asked: Asked) -> Result<T> {
        let text = answer(&self.client, asked).await?;
        T::from_json(&text).map_err(kube::Error::SerdeError)
    }
}

impl<K> Api<K> {
    /// Deletes an object.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<()> {
        let asked = self.request.delete(&segment(name)?, params);
        answer(&self.client, asked).await.map(drop)
    }

    /// Deletes all objects that `selected` selects.
    pub async fn delete_collection(
        &self,
        params: &DeleteParams,
        selected: &ListParams,
    ) -> Result<()> {
        let asked = self.request.delete_collection(params, selected);
        answer(&self.client, asked).await.map(drop)
    }
}

/// Sends a request and returns the body of its answer. Boxed and not generic: the state machine of a request is compiled
/// once and is not a part of every caller's future.
fn answer(client: &Client, asked: Asked) -> BoxFuture<'_, Result<String>> {
    Box::pin(async move {
        let asked = asked.map_err(kube::Error::BuildRequest)?;
        client.request_text(asked).await
    })
}

type Asked = Result<HttpRequest<Vec<u8>>, request::Error>;

fn json(object: &impl ToJson) -> Result<Vec<u8>> {
    object.to_json().map_err(kube::Error::SerdeError)
}

fn if_found<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// A name as one path segment. Rejects what Go's client rejects, and percent-encodes characters
/// with a meaning in URLs.
fn segment(name: &str) -> Result<String> {
    let is_segment = !matches!(name, "" | "." | "..") && !name.contains(['/', '%']);
    if !is_segment {
        let why = format!("invalid resource name {name:?}");
        return Err(kube::Error::BuildRequest(request::Error::Validation(why)));
    }
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@!$'()*,;=".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::{
        core::v1::{Pod, Secret},
        policy::v1::PodDisruptionBudget,
    };
    use serde_json::json;

    use super::*;

    /// A client that gets the same response to everything, and the requested paths.
    fn answering(answer: serde_json::Value) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = asked.clone();
        let service = tower::service_fn(move |request: HttpRequest<kube::client::Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let body = http_body_util::Full::new(bytes::Bytes::from(answer.to_string()));
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        (crate::in_process(service), asked)
    }

    #[tokio::test]
    async fn a_name_that_is_not_one_path_segment_is_refused_before_the_request() {
        let (client, asked) = answering(json!({"metadata": {"name": "a"}}));
        let pods: Api<Pod> = Api::namespaced(client, "default");
        for name in ["", ".", "..", "a/proxy/b", "../../nodes", "a%2fproxy", "/"] {
            let refused = pods.get_opt(name).await;
            assert!(
                matches!(refused, Err(kube::Error::BuildRequest(_))),
                "{name}"
            );
            let refused = pods.delete(name, &DeleteParams::default()).await;
            assert!(
                matches!(refused, Err(kube::Error::BuildRequest(_))),
                "{name}"
            );
        }
        assert!(asked.lock().unwrap().is_empty());
        pods.get("a?watch=true#b c:d").await.unwrap();
        let path = "/api/v1/namespaces/default/pods/a%3Fwatch=true%23b%20c:d";
        assert_eq!(*asked.lock().unwrap(), [path]);
    }

    #[tokio::test]
    async fn a_page_comes_with_the_token_of_the_next_one_unless_it_is_the_last() {
        for (token, expected) in [
            (json!("x"), Some("x")),
            (json!(""), None),
            (json!(null), None),
        ] {
            let items = json!([{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]);
            let (client, asked) =
                answering(json!({"metadata": {"continue": token}, "items": items}));
            let pods: Api<Pod> = Api::namespaced(client, "default");
            let params = ListParams::default().limit(2).continue_token("w");
            let (found, next) = pods.page(&params).await.unwrap();
            assert_eq!((found.len(), next.as_deref()), (2, expected));
            let path = "/api/v1/namespaces/default/pods?&limit=2&continue=w";
            assert_eq!(*asked.lock().unwrap(), [path]);
        }
    }

    #[tokio::test]
    async fn answers_are_read_with_nulls_in_required_places() {
        let condition = json!({
            "type": "DisruptionAllowed", "status": "True", "reason": "r", "message": "",
            "lastTransitionTime": null,
        });
        let budget = json!({"metadata": {"name": "a"}, "status": {"conditions": [condition]}});
        let (client, _) = answering(json!({"items": [budget]}));
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client, "default");
        let listed = budgets.list(&ListParams::default()).await.unwrap();
        let status = listed[0].status.clone().unwrap();
        assert_eq!(status.conditions.unwrap()[0].reason, "r");
        let (client, _) = answering(json!({"metadata": {"name": "a"}, "data": {"b": null}}));
        let secrets: Api<Secret> = Api::namespaced(client, "default");
        let secret = secrets.get("a").await.unwrap();
        assert!(secret.data.unwrap()["b"].0.is_empty());
    }
}
