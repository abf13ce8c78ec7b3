//! Requests served by other processes: logs and streams by the kubelet of the pod's node, proxy
//! requests by pods, services and nodes. Authorization and admission are done before
//! ([`Backends::serve`] gets what they left of the request).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod html;
mod locate;
mod log_options;
mod redirect;
mod streams;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header, request::Parts};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use machinery::{Object, Status};
use registry::Reader;
use request::{Answer, AuditTrail, Body, Query, RequestBody, ResourceRequest, respond};

use self::locate::Lookup;
pub use self::streams::{Streams, handshake_head, handshake_response};

/// A request that another process serves.
pub struct Connect {
    pub parts: Parts,
    /// The query as admission left it.
    pub query: Query,
    /// The object and subresource of its path.
    pub subject: ResourceRequest,
    pub body: RequestBody,
    /// Its audit event, which ends with its stream.
    pub audit: Option<Arc<dyn AuditTrail>>,
}

/// The processes that serve requests for pods, services and nodes.
pub struct Backends {
    pub reader: Reader,
    /// The client certificate for kubelets, and their CA.
    pub kubelet_tls: Option<Arc<rustls::ClientConfig>>,
    pub streams: Streams,
}

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Location {
    tls: Option<Trust>,
    host: String,
    port: u16,
    path_and_query: String,
    /// Whether the backend supports every WebSocket protocol itself; kubelets declare it in their
    /// node's status.
    websockets: bool,
}

/// The trust of a TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Trust {
    /// The kubelet of the named node; it gets our client certificate. Its serving certificate must
    /// name the node: a node writes its own addresses, and must not direct us to another node's
    /// kubelet or to an API server.
    Kubelet(String),
    /// Any server: certificates of pods are not verified.
    Anybody,
}

/// Hop-by-hop headers. The pipeline has already removed the credentials from every request.
const OURS: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "host",
];

/// The message for an unreachable backend.
pub const UNREACHED: &str = "error trying to reach service";

/// Maximum bytes quoted from a backend's error.
const MAX_REFUSAL: usize = 10 * 1024;

impl Backends {
    /// Serves `log`, `exec`, `attach`, `portforward` and `proxy` of the resource with this plural.
    pub async fn serve(&self, request: Connect, plural: &str) -> Answer {
        let lookup = Lookup {
            reader: &self.reader,
            parts: &request.parts,
            query: &request.query,
            subject: &request.subject,
        };
        let location = lookup.location(plural).await?;
        let subject = &request.subject;
        if subject.subresource == "proxy"
            && let Some(answer) = redirect::to_root(&request.parts, subject.depth)
        {
            return Ok(answer);
        }
        match (subject.subresource.as_str(), location) {
            ("log", location) => self.log(request, location).await,
            (_, None) => Ok(respond::text(http::StatusCode::OK, "")),
            ("proxy", Some(location)) => self.proxy(request, location).await,
            (_, Some(location)) => {
                if !request.parts.headers.contains_key(header::UPGRADE) {
                    return Err(Status::bad_request("Upgrade request required"));
                }
                self.upgrade(request, location).await
            }
        }
    }

    /// Forwards any request to a pod, a service or a node.
    async fn proxy(&self, request: Connect, location: Location) -> Answer {
        if request.parts.headers.contains_key(header::UPGRADE) {
            return self.upgrade(request, location).await;
        }
        let (base, transport) = (
            redirect::Base::new(request.parts.uri.path(), &location),
            self.dial(&location)
                .await
                .map_err(|why| Status::service_unavailable(format!("{UNREACHED}: {why}")))?,
        );
        let answer = forward(request, location, transport).await?;
        base.lead_back(answer).await
    }

    /// Reads a path of a node's kubelet, at most `limit` bytes.
    pub async fn kubelet_page(
        &self,
        node: &Object,
        path: &str,
        limit: usize,
    ) -> Result<Bytes, String> {
        let location = locate::kubelet_location(node, path.to_owned());
        let location = location.map_err(|status| status.message)?;
        let transport = self.dial(&location).await?;
        let empty = Empty::new().map_err(|never| match never {});
        let request = http::Request::get(path)
            .header(header::HOST, authority(&location))
            .body(empty.boxed_unsync())
            .map_err(|error| error.to_string())?;
        let answer = backend::send(request, transport).await;
        let answer = answer.map_err(|status| status.message)?;
        if answer.status() != http::StatusCode::OK {
            return Err(format!("{}: {}", answer.status(), refusal(answer).await));
        }
        let body = Limited::new(answer.into_body(), limit).collect().await;
        body.map(Collected::to_bytes)
            .map_err(|error| error.to_string())
    }
}

/// The text of a kubelet's error response.
async fn refusal(answer: http::Response<Body>) -> String {
    let body = Limited::new(answer.into_body(), MAX_REFUSAL)
        .collect()
        .await;
    let bytes = body.map(Collected::to_bytes).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

/// Forwards the request and returns the response.
async fn forward(request: Connect, location: Location, transport: backend::Transport) -> Answer {
    let mut forwarded = http::Request::new(request.body);
    let parts = request.parts;
    *forwarded.method_mut() = parts.method;
    *forwarded.uri_mut() = uri(&location)?;
    *forwarded.headers_mut() = headers(&parts.headers, &location);
    backend::send(forwarded, transport).await
}

fn uri(location: &Location) -> Result<Uri, Status> {
    location.path_and_query.parse().map_err(Status::internal)
}

fn authority(location: &Location) -> String {
    if location.host.contains(':') {
        format!("[{}]:{}", location.host, location.port)
    } else {
        format!("{}:{}", location.host, location.port)
    }
}

/// The headers that are not hop-by-hop.
pub fn end_to_end(given: &HeaderMap) -> HeaderMap {
    let private = |name: &str| OURS.contains(&name);
    let mut headers = HeaderMap::new();
    for (name, value) in given.iter().filter(|(name, _)| !private(name.as_str())) {
        headers.append(name, value.clone());
    }
    headers
}

fn headers(given: &HeaderMap, location: &Location) -> HeaderMap {
    let mut headers = end_to_end(given);
    if let Ok(host) = HeaderValue::from_str(&authority(location)) {
        headers.insert(header::HOST, host);
    }
    headers
}
