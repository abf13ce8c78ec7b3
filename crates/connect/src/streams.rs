//! Logs and upgraded connections of pods: forwarded unchanged, or translated for kubelets that do
//! not support the client's protocol.

use std::future::Future;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, BodyStream};
use machinery::Status;
use request::{Answer, Body};
use streaming::{Options, messages, translate, tunnel};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Backends, Connect, Location, authority, forward, refusal, uri};

/// Streams that outlive their request; they end when the server stops.
#[derive(Clone)]
pub struct Streams {
    pub tasks: TaskTracker,
    pub stopping: CancellationToken,
}

impl Streams {
    /// Runs a stream until an end closes it or the server stops. `held` is dropped with it.
    pub fn run(
        &self,
        held: impl Send + 'static,
        stream: impl Future<Output = Result<(), streaming::Error>> + Send + 'static,
    ) {
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            let _held = held;
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
}

impl Backends {
    /// A pod's log, also over a WebSocket.
    pub(super) async fn log(&self, mut request: Connect, location: Option<Location>) -> Answer {
        let websocket = streaming::is_websocket(&request.parts.headers);
        let audit = request.audit.clone();
        let upgrade = websocket
            .then(|| messages::bytes(&mut handshake_head(&mut request.parts)))
            .transpose();
        let upgrade = match upgrade {
            Ok(upgrade) => upgrade,
            Err(refused) => return Ok(handshake_response(refused)),
        };
        let log = match location {
            // The pod has no node yet, so its log is empty.
            None => {
                let mut nothing = http::Response::new(Body::empty());
                *nothing.status_mut() = StatusCode::NO_CONTENT;
                nothing
            }
            Some(location) => self.fetch(request, location).await?,
        };
        let Some((agreed, pending)) = upgrade else {
            return Ok(log);
        };
        let chunks = BodyStream::new(log.into_body());
        let chunks = chunks.filter_map(|frame| async { frame.ok()?.into_data().ok() });
        self.streams.run(audit, pending.send(chunks));
        Ok(handshake_response(agreed))
    }

    async fn fetch(&self, mut request: Connect, location: Location) -> Answer {
        let handshake = [
            header::SEC_WEBSOCKET_KEY,
            header::SEC_WEBSOCKET_VERSION,
            header::SEC_WEBSOCKET_PROTOCOL,
            header::SEC_WEBSOCKET_EXTENSIONS,
        ];
        for name in handshake {
            request.parts.headers.remove(name);
        }
        let name = request.subject.name.clone();
        let transport = self.dial(&location).await;
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

    /// Joins the client's connection with the backend's once the backend accepts the upgrade.
    pub(super) async fn upgrade(&self, request: Connect, location: Location) -> Answer {
        let transport = self.dial(&location).await;
        let transport =
            transport.map_err(|why| Status::internal(format!("error dialing backend: {why}")))?;
        let flag = |name: &str| request.query.flag(name);
        let options = Options {
            stdin: flag("stdin"),
            stdout: flag("stdout"),
            stderr: flag("stderr"),
            tty: flag("tty"),
        };
        let Connect {
            mut parts,
            subject,
            audit,
            ..
        } = request;
        parts.uri = uri(&location)?;
        if let Ok(host) = HeaderValue::from_str(&authority(&location)) {
            parts.headers.insert(header::HOST, host);
        }
        let request = http::Request::from_parts(parts, ());
        let headers = request.headers();
        let joined = match subject.subresource.as_str() {
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
            self.streams.run(audit, splice.run());
        }
        Ok(handshake_response(agreed))
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

/// The request's head with its connection, for the upgrade handshake.
pub fn handshake_head(parts: &mut Parts) -> http::Request<()> {
    let mut head = http::Request::new(());
    *head.headers_mut() = parts.headers.clone();
    std::mem::swap(head.extensions_mut(), &mut parts.extensions);
    head
}

/// The handshake's response to the client.
pub fn handshake_response(answer: messages::Answer) -> http::Response<Body> {
    let (parts, body) = answer.into_parts();
    // The body is complete, so this does not wait.
    let body = futures::FutureExt::now_or_never(body.collect());
    let bytes = match body {
        Some(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    http::Response::from_parts(parts, Body::whole(bytes))
}
