//! Finds the scale subresource of a target by discovery, which is refreshed when a kind is missing
//! or the cache is old.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::{v1::Scale, v2::CrossVersionObjectReference};
use parking_lot::Mutex;

use crate::discovery::{self, Resource};

/// How long a discovery result is cached.
pub(crate) const FRESH: Duration = Duration::from_secs(30);

/// The served kinds, cached.
pub(crate) struct Targets {
    client: kube::Client,
    /// Guards the discovery result and its time.
    seen: Mutex<Option<(Timestamp, Arc<Vec<Resource>>)>>,
}

impl Targets {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self {
            client,
            seen: Mutex::default(),
        }
    }

    /// The resource of a reference's apiVersion and kind. Only the group of the version counts.
    pub(crate) async fn resource(
        &self,
        api_version: &str,
        kind: &str,
        now: Timestamp,
    ) -> Result<Resource, String> {
        let Some(group) = group(api_version) else {
            return Err(format!("unexpected GroupVersion string: {api_version}"));
        };
        let resources = self.discovered(now).await?;
        let found = resources.iter();
        let mut found = found.filter(|r| r.api.group == group && r.api.kind == kind);
        found
            .next()
            .cloned()
            .ok_or_else(|| format!("no matches for kind \"{kind}\" in group \"{group}\""))
    }

    async fn discovered(&self, now: Timestamp) -> Result<Arc<Vec<Resource>>, String> {
        let seen = self.seen.lock().clone();
        if let Some((when, resources)) = seen
            && when + FRESH > now
        {
            return Ok(resources);
        }
        let found = discovery::discover(&self.client).await;
        let (resources, _) = found.map_err(|error| error.to_string())?;
        let resources = Arc::new(resources);
        *self.seen.lock() = Some((now, resources.clone()));
        Ok(resources)
    }

    pub(crate) async fn scale(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Scale, kube::Error> {
        let request = http::Request::get(path(resource, namespace, name)).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    /// Sets the size; retries a conflict with the newest scale.
    pub(crate) async fn resize(
        &self,
        resource: &Resource,
        mut scale: Scale,
        replicas: i32,
    ) -> Result<(), kube::Error> {
        const ATTEMPTS: usize = 5;
        let namespace = scale.metadata.namespace.clone().unwrap_or_default();
        let name = scale.metadata.name.clone().unwrap_or_default();
        let mut attempt = 1;
        loop {
            scale.spec.get_or_insert_default().replicas = Some(replicas);
            let body = serde_json::to_vec(&scale).map_err(kube::Error::SerdeError)?;
            let request = http::Request::put(path(resource, &namespace, &name))
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body);
            let request = request.map_err(kube::Error::HttpError)?;
            match self.client.request::<Scale>(request).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => {
                    scale = self.scale(resource, &namespace, &name).await?;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The group of an apiVersion; `None` if it is none.
fn group(api_version: &str) -> Option<&str> {
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [group, _] => Some(group),
        [_] => Some(""),
        _ => None,
    }
}

/// Whether the apiVersion of a target is one.
pub(crate) fn is_version(target: &CrossVersionObjectReference) -> bool {
    group(target.api_version.as_deref().unwrap_or_default()).is_some()
}

fn path(resource: &Resource, namespace: &str, name: &str) -> String {
    let api = &resource.api;
    let prefix = if api.group.is_empty() {
        "/api"
    } else {
        "/apis"
    };
    let (version, plural) = (&api.api_version, &api.plural);
    format!("{prefix}/{version}/namespaces/{namespace}/{plural}/{name}/scale")
}
