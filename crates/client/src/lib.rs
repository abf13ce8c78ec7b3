//! Clients of the Kubernetes API: `kube::Client`, over a function call in the same process or over
//! HTTPS, and shared informers. Nothing here depends on the server; the same code works with
//! upstream Kubernetes.

#![forbid(unsafe_code)]

mod api;
pub mod informer;
mod json;
pub mod kubeconfig;
mod lenient;
mod limited;
pub mod metrics;
mod proxy;
mod servers;
mod transport;
mod unvectored;

use std::path::PathBuf;

use bytes::Bytes;
use http::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Service};

pub use api::Api;
pub use informer::{Event, Informer, Subscription};
pub use json::{FromJson, ToJson};
pub use kube;
pub use kubeconfig::Kubeconfig;
pub use limited::{Rate, limited};
pub use servers::Servers;
pub use transport::{Options, https};

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the kubeconfig, or the kubeconfig itself, cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Not a valid kubeconfig.
    #[error("kubeconfig: {0}")]
    Kubeconfig(String),
    /// Invalid certificates or keys.
    #[error("TLS: {0}")]
    Tls(String),
    /// An invalid server address.
    #[error("server address {0:?}: {1}")]
    Server(String, String),
}

/// A client whose requests are calls of `service`, which already knows the user.
///
/// Must be called inside a Tokio runtime.
pub fn in_process<S, B>(service: S) -> kube::Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = metrics::Counted::new(service, "in-process");
    kube::Client::new(service, "default")
}

/// A client for the kubeconfig's current context. Must be called inside a Tokio runtime.
pub fn from_kubeconfig(path: impl Into<PathBuf>) -> Result<kube::Client, Error> {
    let path = path.into();
    Kubeconfig::read(&path)?.client(None)
}

/// Creates clients for users; used by a component that acts as several users.
pub trait Connector: Send + Sync + 'static {
    /// A client that acts as `user`, with that user's groups.
    fn client(&self, user: &str) -> kube::Client;
}

impl<F> Connector for F
where
    F: Fn(&str) -> kube::Client + Send + Sync + 'static,
{
    fn client(&self, user: &str) -> kube::Client {
        self(user)
    }
}

/// A client that sends writes only while `may_write` returns true; reads are always sent. Used
/// under leader election, so that a leader that lost its lease cannot overwrite its successor's
/// work.
///
/// Must be called inside a Tokio runtime.
pub fn fenced(
    client: &kube::Client,
    may_write: impl Fn() -> bool + Send + Sync + 'static,
) -> kube::Client {
    let (client, may_write) = (client.clone(), std::sync::Arc::new(may_write));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, may_write) = (client.clone(), may_write.clone());
        async move {
            let writes = !matches!(*request.method(), http::Method::GET | http::Method::HEAD);
            if writes && !may_write() {
                return Err(BoxError::from(
                    "no longer the leader: the write was not sent",
                ));
            }
            client.send(request).await.map_err(BoxError::from)
        }
    });
    in_process(service)
}
