//! Forwards requests to aggregated API servers, with the user in front-proxy headers. Responses are
//! streamed, not buffered.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aggregator::{Backend, front_proxy};
use connect::{Streams, UNREACHED, end_to_end, handshake_response};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use machinery::Status;
use streaming::tunnel;

use crate::{
    Body, audit,
    pipeline::Request,
    respond::{self, Answer},
};

/// Timeout of a backend's discovery.
const DISCOVERY: Duration = Duration::from_secs(5);
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// CORS headers that are removed from a backend's response: this server answers browsers itself.
const CORS: &[&str] = &[
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// Adds the headers that a backend uses for its own audit log.
pub(crate) fn trace_to_backend(
    headers: &mut HeaderMap,
    remote: Option<SocketAddr>,
    audit_id: HeaderValue,
) {
    headers.insert(audit::ID, audit_id);
    let Some(remote) = remote else {
        return;
    };
    let own = remote.ip().to_canonical().to_string();
    let prior = headers.get_all(FORWARDED_FOR).iter();
    let mut hops: Vec<&str> = prior.filter_map(|value| value.to_str().ok()).collect();
    hops.push(&own);
    // Cannot fail: the parts were header values, and an address.
    if let Ok(hops) = HeaderValue::from_str(&hops.join(", ")) {
        headers.insert(FORWARDED_FOR, hops);
    }
}

/// Forwards a request.
pub(super) async fn serve(streams: &Streams, request: Request, backend: Arc<Backend>) -> Answer {
    match forward_or_refuse(streams, request, &backend).await {
        Ok(answer) => Ok(answer),
        Err(Refusal::Text(code, why)) => Ok(text(code, &why)),
        Err(Refusal::Status(status)) => Err(*status),
    }
}

/// Why a request was not forwarded.
enum Refusal {
    Text(StatusCode, String),
    Status(Box<Status>),
}

fn text(code: StatusCode, why: &str) -> Response<Body> {
    respond::unsniffed(respond::text(code, format!("{why}\n")))
}

fn unavailable(why: impl Into<String>) -> Refusal {
    Refusal::Text(StatusCode::SERVICE_UNAVAILABLE, why.into())
}

fn internal(why: impl Into<String>) -> Refusal {
    Refusal::Text(StatusCode::INTERNAL_SERVER_ERROR, why.into())
}

async fn forward_or_refuse(
    streams: &Streams,
    request: Request,
    backend: &Backend,
) -> Result<Response<Body>, Refusal> {
    if has_dot_segments(request.parts.uri.path()) {
        // The backend would resolve another path than the authorized one.
        return Ok(super::no_page());
    }
    if !backend.available {
        return Err(unavailable("service unavailable"));
    }
    let link = &backend.link;
    if let Some(why) = link.broken() {
        return Err(internal(why));
    }
    let identity = front_proxy::headers(&request.user).map_err(internal)?;
    let authority = link.resolve().await.map_err(|why| {
        tracing::debug!(name = backend.name, why, "no endpoint for APIService");
        unavailable("service unavailable")
    })?;
    let path = request.parts.uri.path_and_query();
    let path = path.map_or("/", |path| path.as_str());
    let uri: Uri = format!("https://{authority}{path}")
        .parse()
        .map_err(|error: http::uri::InvalidUri| internal(error.to_string()))?;
    // The backend does the work: release the flow control seat. Its own slots bound the waiting
    // requests.
    drop(request.take_seat());
    let slot = link.slots.take(&request.user.name).ok_or_else(|| {
        let why = "too many requests wait for this API server, please try again later";
        Refusal::Status(Box::new(Status::too_many_requests(why, 1)))
    })?;
    if request.parts.headers.contains_key(header::UPGRADE) {
        return upgrade(streams, request, backend, uri, identity).await;
    }
    let is_long_running = request.deadline.is_none();
    let mut answer = forward(request, backend, uri, identity).await?;
    // Once a watch has begun, it no longer holds a slot.
    if !is_long_running {
        answer.body_mut().hold(slot);
    }
    Ok(answer)
}

async fn forward(
    request: Request,
    backend: &Backend,
    uri: Uri,
    identity: HeaderMap,
) -> Result<Response<Body>, Refusal> {
    let unreached = |why: &str| unavailable(format!("{UNREACHED}: {why}"));
    let is_discovery = request.info.resource.is_none() && is_version_path(&request.info.path);
    let mut forwarded = http::Request::new(request.take_body());
    *forwarded.method_mut() = request.parts.method.clone();
    *forwarded.uri_mut() = uri;
    *forwarded.headers_mut() = end_to_end(&request.parts.headers);
    forwarded.headers_mut().extend(identity);
    let sent = backend.link.send(forwarded);
    let sent = match is_discovery {
        false => sent.await,
        true => match tokio::time::timeout(DISCOVERY, sent).await {
            Ok(sent) => sent,
            Err(_) => Err("context deadline exceeded".to_owned()),
        },
    };
    sent.map(forwarded_response).map_err(|why| unreached(&why))
}

/// A backend's response as forwarded to the client.
fn forwarded_response(response: Response<Incoming>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    if parts.status.is_redirection() && parts.headers.contains_key(header::LOCATION) {
        let why = "the backend attempted to redirect this request, which is not permitted";
        return respond::text(StatusCode::BAD_GATEWAY, why);
    }
    parts.headers = end_to_end(&parts.headers);
    for name in CORS {
        parts.headers.remove(*name);
    }
    let pieces = BodyStream::new(body).filter_map(|frame| async move {
        match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(error.into())),
        }
    });
    Response::from_parts(parts, Body::stream(pieces))
}

/// Joins the client's connection with the backend's once the backend accepts the upgrade.
async fn upgrade(
    streams: &Streams,
    request: Request,
    backend: &Backend,
    uri: Uri,
    identity: HeaderMap,
) -> Result<Response<Body>, Refusal> {
    let audit = request.audit.clone();
    let stream = backend.link.dial(&uri).await.map_err(unavailable)?;
    let mut parts = request.parts;
    let host = uri.authority().map(|authority| authority.as_str());
    if let Ok(host) = HeaderValue::from_str(host.unwrap_or_default()) {
        parts.headers.insert(header::HOST, host);
    }
    // Other connection options of the client are not forwarded.
    let upgrade = HeaderValue::from_static("Upgrade");
    parts.headers.insert(header::CONNECTION, upgrade);
    let path = uri.path_and_query().cloned();
    parts.uri = path.map_or_else(Uri::default, Uri::from);
    let asked = http::Request::from_parts(parts, ());
    let joined = tunnel::upgrade_as(asked, identity, stream).await;
    let (agreed, splice) = joined.map_err(|error| unavailable(error.to_string()))?;
    if let Some(splice) = splice {
        streams.run(audit, splice.run());
    }
    Ok(handshake_response(agreed))
}

/// Whether a path is exactly `/apis/GROUP/VERSION`.
fn is_version_path(path: &str) -> bool {
    path.trim_matches('/').split('/').count() == 3
}

/// Whether a path has `.` or `..` segments.
fn has_dot_segments(path: &str) -> bool {
    let is_dots = |segment: &str| {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        plain == "." || plain == ".."
    };
    let lower = path.replace("%2f", "/").replace("%2F", "/");
    lower.split('/').any(is_dots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_upwards_are_found() {
        for (path, expected) in [
            ("/apis/a.b/v1/things/x", false),
            ("/apis/a.b/v1/things/..x", false),
            ("/apis/a.b/v1/../../../api", true),
            ("/apis/a.b/v1/%2e%2E/x", true),
            ("/apis/a.b/v1/things/x%2f..%2fy", true),
            ("/apis/a.b/v1/./x", true),
        ] {
            assert_eq!(has_dot_segments(path), expected, "{path}");
        }
    }

    #[test]
    fn a_backend_learns_the_whole_way_of_a_request() {
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_FOR, HeaderValue::from_static("192.0.2.1"));
        let remote = "198.51.100.7:1".parse().ok();
        trace_to_backend(&mut headers, remote, HeaderValue::from_static("id"));
        assert_eq!(headers[FORWARDED_FOR], "192.0.2.1, 198.51.100.7");
        assert_eq!(headers["audit-id"], "id");
    }
}
