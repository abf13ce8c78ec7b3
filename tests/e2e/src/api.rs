//! An API client for tests that send so many requests that a kubectl for each would be too slow.

use std::time::Duration;

use client::{Kubeconfig, kube};
use futures::{Stream, StreamExt};
use http::{Method, Request};
use kube::core::WatchEvent;
use serde_json::Value;

/// Why a request did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The server rejected it with this code.
    Refused(u16),
    /// It is unknown whether it was applied.
    Lost,
}

/// A client with a timeout per request. Needs a Tokio runtime.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    patience: Duration,
}

impl Api {
    /// A client from a kubeconfig: of all servers, if it lists several.
    pub fn new(kubeconfig: &str, patience: Duration) -> Self {
        let config = Kubeconfig::parse(kubeconfig).expect("a kubeconfig");
        Self::with(&config, patience)
    }

    /// A client of a single server.
    pub fn of_server(kubeconfig: &str, url: &str, patience: Duration) -> Self {
        let mut config = Kubeconfig::parse(kubeconfig).expect("a kubeconfig");
        for cluster in &mut config.clusters {
            cluster.cluster.server = url.to_owned();
            cluster.cluster.extensions.clear();
        }
        Self::with(&config, patience)
    }

    /// A client of an HTTPS server with these certificates.
    pub fn of_files(files: &[String; 3], url: &str, patience: Duration) -> Self {
        let [authority, certificate, key] = files;
        let text = serde_json::json!({
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": url, "certificate-authority": authority}}],
            "users": [{"name": "it", "user": {"client-certificate": certificate, "client-key": key}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        });
        Self::new(&text.to_string(), patience)
    }

    fn with(config: &Kubeconfig, patience: Duration) -> Self {
        Self {
            client: config.client(None).expect("a client"),
            patience,
        }
    }

    /// Sends a request; a body is sent as JSON.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind);
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = request.body(body).expect("a request");
        let answer = tokio::time::timeout(self.patience, self.client.request(request)).await;
        match answer {
            Ok(Ok(value)) => Ok(value),
            // After a server error it is unknown whether it was written.
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => {
                Err(Failure::Refused(status.code))
            }
            Ok(Err(_)) | Err(_) => Err(Failure::Lost),
        }
    }

    /// Whether a path responds with success.
    pub async fn answers(&self, path: &str) -> bool {
        let request = Request::get(path).body(Vec::new()).expect("a request");
        let answer = tokio::time::timeout(self.patience, self.client.request_text(request)).await;
        matches!(answer, Ok(Ok(_)))
    }

    /// Watches a path, until the server ends it or nothing arrives within the timeout.
    pub async fn watch(&self, path: &str) -> impl Stream<Item = WatchEvent<Value>> + Unpin + use<> {
        let request = Request::get(path).body(Vec::new()).expect("a request");
        let begun = self.client.request_events::<Value>(request);
        let begun = tokio::time::timeout(self.patience, begun).await;
        let events = match begun {
            Ok(Ok(events)) => events.boxed(),
            Ok(Err(_)) | Err(_) => futures::stream::empty().boxed(),
        };
        let patience = self.patience;
        let next = move |mut events: futures::stream::BoxStream<'static, _>| async move {
            match tokio::time::timeout(patience, events.next()).await {
                Ok(Some(Ok(event))) => Some((event, events)),
                _ => None,
            }
        };
        Box::pin(futures::stream::unfold(events, next))
    }
}
