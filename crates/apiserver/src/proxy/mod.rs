//! What is answered by somebody else: logs and streams by the kubelet of the pod's node, proxied
//! requests by pods, services and nodes.

mod backend;
mod locate;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Uri, header};
use machinery::Status;

use crate::{
    Resource,
    pipeline::Request,
    respond::{self, Answer},
};

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path_and_query: String,
}

/// Headers that are about the connection to us, or about who the caller is.
const OURS: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "authorization",
    "cookie",
    "host",
    "x-remote-user",
    "x-remote-uid",
];

/// What is quoted of a refusal.
const MAX_REFUSAL: usize = 10 * 1024;

/// Serves `log`, `exec`, `attach`, `portforward` and `proxy`.
pub(crate) async fn serve(request: Request, resource: Arc<Resource>) -> Answer {
    let Some(location) = locate::locate(&request, &resource).await? else {
        return Ok(respond::text(http::StatusCode::OK, ""));
    };
    let wants_upgrade = request.parts.headers.contains_key(header::UPGRADE);
    let streams = request.info.resource.as_ref().is_some_and(|subject| {
        matches!(
            subject.subresource.as_str(),
            "exec" | "attach" | "portforward"
        )
    });
    if streams && !wants_upgrade {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let transport = backend::connect(&request.core, &location).await?;
    if wants_upgrade {
        return upgrade(request, location, transport).await;
    }
    let is_log = request
        .info
        .resource
        .as_ref()
        .is_some_and(|subject| subject.subresource == "log");
    let answer = forward(request, location, transport).await?;
    if is_log && answer.status() == http::StatusCode::BAD_REQUEST {
        return Err(Status::bad_request(refusal(answer).await));
    }
    Ok(answer)
}

/// Why a kubelet refused, in its own words.
async fn refusal(answer: http::Response<crate::Body>) -> String {
    let body = http_body_util::Limited::new(answer.into_body(), MAX_REFUSAL);
    let body = http_body_util::BodyExt::collect(body).await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

/// Sends the request on and its answer back.
async fn forward(request: Request, location: Location, transport: backend::Transport) -> Answer {
    let mut forwarded = http::Request::new(request.take_body());
    let parts = request.parts;
    *forwarded.method_mut() = parts.method;
    *forwarded.uri_mut() = uri(&location)?;
    *forwarded.headers_mut() = headers(&parts.headers, &location);
    backend::send(forwarded, transport).await
}

/// Joins the client's connection with the backend's once the backend agrees.
async fn upgrade(request: Request, location: Location, transport: backend::Transport) -> Answer {
    let Request {
        core,
        mut parts,
        audit,
        ..
    } = request;
    parts.uri = uri(&location)?;
    if let Ok(host) = HeaderValue::from_str(&authority(&location)) {
        parts.headers.insert(header::HOST, host);
    }
    let request = http::Request::from_parts(parts, ());
    let tunnel = streaming::tunnel::upgrade(request, transport).await;
    let (answer, splice) =
        tunnel.map_err(|error| Status::internal(format!("error dialing backend: {error}")))?;
    if let Some(splice) = splice {
        let stopping = core.stopping.clone();
        core.streams.spawn(async move {
            // The request lasts as long as its stream.
            let _audit = audit;
            tokio::select! {
                // Either side hanging up is how streams end.
                _ = splice.run() => {}
                () = stopping.cancelled() => {}
            }
        });
    }
    let (parts, body) = answer.into_parts();
    let body = http_body_util::BodyExt::collect(body).await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    Ok(http::Response::from_parts(parts, crate::Body::whole(bytes)))
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

fn headers(given: &HeaderMap, location: &Location) -> HeaderMap {
    let private = |name: &str| {
        OURS.contains(&name)
            || name.starts_with("impersonate-")
            || name.starts_with("x-remote-group")
            || name.starts_with("x-remote-extra-")
    };
    let mut headers = HeaderMap::new();
    for (name, value) in given.iter().filter(|(name, _)| !private(name.as_str())) {
        headers.append(name, value.clone());
    }
    if let Ok(host) = HeaderValue::from_str(&authority(location)) {
        headers.insert(header::HOST, host);
    }
    headers
}
