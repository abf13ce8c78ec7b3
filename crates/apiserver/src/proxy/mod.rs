//! Requests served by other processes: logs and streams by the kubelet of the pod's node, proxy
//! requests by pods, services and nodes.

mod admit;
mod backend;
mod html;
mod locate;
mod log_options;
mod redirect;
pub(crate) mod streams;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use machinery::{Object, Status};

use crate::{
    Resource,
    pipeline::{Core, Request},
    respond::{self, Answer},
};

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) tls: Option<Trust>,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path_and_query: String,
    /// Whether the backend supports every WebSocket protocol itself; kubelets declare it in their
    /// node's status.
    pub(crate) websockets: bool,
}

/// The trust of a TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The kubelet of the named node; it gets our client certificate. Its serving certificate must
    /// name the node: a node writes its own addresses, and must not direct us to another node's
    /// kubelet or to an API server.
    Kubelet(String),
    /// Any server: certificates of pods are not verified.
    Anybody,
}

/// Hop-by-hop headers. Credentials have already been removed from every request
/// ([`crate::authn::bearer::strip`]).
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
pub(crate) const UNREACHED: &str = "error trying to reach service";

/// Maximum bytes quoted from a backend's error.
const MAX_REFUSAL: usize = 10 * 1024;

/// Serves `log`, `exec`, `attach`, `portforward` and `proxy`.
pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    let subject = request.info.resource.clone().unwrap_or_default();
    let mut request = request;
    if subject.subresource != "log" {
        admit::connect(&mut request, &resource).await?;
    }
    let location = locate::locate(&request, &resource).await?;
    if subject.subresource == "proxy"
        && let Some(answer) = redirect::to_root(&request.parts, subject.depth)
    {
        return Ok(answer);
    }
    match (subject.subresource.as_str(), location) {
        ("log", location) => streams::log(request, location).await,
        (_, None) => Ok(respond::text(http::StatusCode::OK, "")),
        ("proxy", Some(location)) => proxy(request, location).await,
        (_, Some(location)) => {
            if !request.parts.headers.contains_key(header::UPGRADE) {
                return Err(Status::bad_request("Upgrade request required"));
            }
            streams::upgrade(request, location).await
        }
    }
}

/// Forwards any request to a pod, a service or a node.
async fn proxy(request: Request, location: Location) -> Answer {
    if request.parts.headers.contains_key(header::UPGRADE) {
        return streams::upgrade(request, location).await;
    }
    let (base, transport) = (
        redirect::Base::from_request(&request, &location),
        backend::connect(&request.core, &location)
            .await
            .map_err(|why| Status::service_unavailable(format!("{UNREACHED}: {why}")))?,
    );
    let answer = forward(request, location, transport).await?;
    base.lead_back(answer).await
}

/// The text of a kubelet's error response.
async fn refusal(answer: http::Response<crate::Body>) -> String {
    let body = Limited::new(answer.into_body(), MAX_REFUSAL)
        .collect()
        .await;
    let bytes = body.map(Collected::to_bytes).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

/// Forwards the request and returns the response.
async fn forward(request: Request, location: Location, transport: backend::Transport) -> Answer {
    let mut forwarded = http::Request::new(request.take_body());
    let parts = request.parts;
    *forwarded.method_mut() = parts.method;
    *forwarded.uri_mut() = uri(&location)?;
    *forwarded.headers_mut() = headers(&parts.headers, &location);
    backend::send(forwarded, transport).await
}

fn uri(location: &Location) -> Result<Uri, Status> {
    location.path_and_query.parse().map_err(Status::internal)
}

/// Reads a path of a node's kubelet, at most `limit` bytes.
pub(crate) async fn kubelet_page(
    core: &Core,
    node: &Object,
    path: &str,
    limit: usize,
) -> Result<Bytes, String> {
    let location = locate::kubelet_location(node, path.to_owned());
    let location = location.map_err(|status| status.message)?;
    let transport = backend::connect(core, &location).await?;
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

fn authority(location: &Location) -> String {
    if location.host.contains(':') {
        format!("[{}]:{}", location.host, location.port)
    } else {
        format!("{}:{}", location.host, location.port)
    }
}

/// The headers that are not hop-by-hop.
pub(crate) fn end_to_end(given: &HeaderMap) -> HeaderMap {
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
