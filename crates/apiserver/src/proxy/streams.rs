//! Logs and upgraded connections of pods: forwarded unchanged, or translated for kubelets that do
//! not support the client's protocol.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, BodyStream};
use machinery::Status;
use streaming::{Options, messages, translate, tunnel};

use super::{Location, authority, backend, forward, refusal, uri};
use crate::{
    Body,
    audit::Ticket,
    pipeline::{Core, Request},
    respond::Answer,
};

/// A pod's log, also over a WebSocket.
pub(super) async fn log(mut request: Request, location: Option<Location>) -> Answer {
    let websocket = streaming::is_websocket(&request.parts.headers);
    let (core, audit) = (request.core.clone(), request.audit.clone());
    let upgrade = websocket
        .then(|| messages::bytes(&mut upgradable(&mut request)))
        .transpose();
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(refused) => return Ok(answer(refused)),
    };
    let log = match location {
        // The pod has no node yet, so its log is empty.
        None => {
            let mut nothing = http::Response::new(Body::empty());
            *nothing.status_mut() = StatusCode::NO_CONTENT;
            nothing
        }
        Some(location) => fetch(request, location).await?,
    };
    let Some((agreed, pending)) = upgrade else {
        return Ok(log);
    };
    let chunks = BodyStream::new(log.into_body());
    let chunks = chunks.filter_map(|frame| async { frame.ok()?.into_data().ok() });
    run(&core, audit, pending.send(chunks));
    Ok(answer(agreed))
}

async fn fetch(mut request: Request, location: Location) -> Answer {
    let handshake = [
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_EXTENSIONS,
    ];
    for name in handshake {
        request.parts.headers.remove(name);
    }
    let name = request.info.resource.as_ref().map(|pod| pod.name.clone());
    let name = name.unwrap_or_default();
    let transport = backend::connect(&request.core, &location).await;
    let transport = transport.map_err(|why| {
        let target = format!(
            "https://{}{}",
            authority(&location),
            location.path_and_query
        );
        Status::unknown(format!("Get {target:?}: {why}"))
    })?;
    let answer = forward(request, location, transport).await?;
    match answer.status() {
        StatusCode::OK => Ok(answer),
        StatusCode::BAD_REQUEST => Err(Status::bad_request(refusal(answer).await)),
        code if code.is_redirection() => Err(Status::internal("redirects are not followed")),
        code => {
            let why = refusal(answer).await;
            Err(refused(code, &name, &why))
        }
    }
}

/// A kubelet's error as a client sees it.
fn refused(code: StatusCode, name: &str, why: &str) -> Status {
    let reason = match code.as_u16() {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let message = match code.as_u16() {
        404 => "the server could not find the requested resource".to_owned(),
        401 | 403 if !why.is_empty() => why.to_owned(),
        500.. => {
            format!("an error on the server ({why:?}) has prevented the request from succeeding")
        }
        _ => format!(
            "the server responded with the status code {code} but did not return more information",
            code = code.as_u16()
        ),
    };
    Status::failure(
        code.as_u16(),
        reason,
        format!("{message} (get pods {name})"),
    )
}

/// Joins the client's connection with the backend's once the backend accepts the upgrade.
pub(super) async fn upgrade(mut request: Request, location: Location) -> Answer {
    let (core, audit) = (request.core.clone(), request.audit.clone());
    let transport = backend::connect(&core, &location).await;
    let transport =
        transport.map_err(|why| Status::internal(format!("error dialing backend: {why}")))?;
    let subresource = request.info.resource.take().unwrap_or_default().subresource;
    let flag = |name: &str| request.query.flag(name);
    let options = Options {
        stdin: flag("stdin"),
        stdout: flag("stdout"),
        stderr: flag("stderr"),
        tty: flag("tty"),
    };
    let mut parts = request.parts;
    parts.uri = uri(&location)?;
    if let Ok(host) = HeaderValue::from_str(&authority(&location)) {
        parts.headers.insert(header::HOST, host);
    }
    let request = http::Request::from_parts(parts, ());
    let headers = request.headers();
    let joined = match subresource.as_str() {
        "exec" | "attach" if !location.websockets && translate::is_exec(headers) => {
            translate::exec(request, options, transport).await
        }
        "portforward" if !location.websockets && translate::is_port_forward(headers) => {
            translate::port_forward(request, transport).await
        }
        _ => tunnel::upgrade(request, transport).await,
    };
    let (agreed, splice) =
        joined.map_err(|error| Status::internal(format!("error dialing backend: {error}")))?;
    if let Some(splice) = splice {
        run(&core, audit, splice.run());
    }
    Ok(answer(agreed))
}

/// Runs a stream until an end closes it or the server stops.
pub(crate) fn run(
    core: &Arc<Core>,
    audit: Option<Arc<Ticket>>,
    stream: impl Future<Output = Result<(), streaming::Error>> + Send + 'static,
) {
    let stopping = core.http.stopping.clone();
    core.http.streams.spawn(async move {
        // The request's audit event ends with its stream.
        let _audit = audit;
        tokio::select! {
            ended = stream => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "stream ended");
                }
            }
            () = stopping.cancelled() => {}
        }
    });
}

/// The request's head with its connection, for the upgrade handshake.
pub(crate) fn upgradable(request: &mut Request) -> http::Request<()> {
    let mut head = http::Request::new(());
    *head.headers_mut() = request.parts.headers.clone();
    std::mem::swap(head.extensions_mut(), &mut request.parts.extensions);
    head
}

/// The handshake's response to the client.
pub(crate) fn answer(answer: messages::Answer) -> http::Response<Body> {
    let (parts, body) = answer.into_parts();
    // The body is complete, so this does not wait.
    let body = futures::FutureExt::now_or_never(body.collect());
    let bytes = match body {
        Some(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    http::Response::from_parts(parts, Body::whole(bytes))
}
