//! The proxy between a client and a backend: forwards an upgrade request, and joins the two
//! connections only after the backend has accepted exactly that upgrade.
//!
//! If a backend refuses, its response is returned and the connection closed: no byte of the client
//! reaches it afterwards. Redirects of a backend are not followed.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

use crate::{
    Error, Transport,
    negotiate::{self, Answer, refusal},
};

/// An error response is a Status or a line of text.
const MAX_REFUSAL: usize = 1 << 20;
const ANSWER: Duration = Duration::from_secs(60);
const BUFFER: usize = 64 * 1024;

/// Credentials and identity headers are not forwarded.
const PRIVATE: &[&str] = &["authorization", "x-remote-user", "x-remote-uid"];
const PRIVATE_PREFIXES: &[&str] = &["impersonate-", "x-remote-group", "x-remote-extra-"];

/// Two connections to be joined once the client has read the response.
pub struct Splice(BoxFuture<'static, Result<(), Error>>);

impl Splice {
    pub(crate) fn new(join: impl Future<Output = Result<(), Error>> + Send + 'static) -> Self {
        Self(Box::pin(join))
    }

    /// Copies both ways until both sides have ended.
    pub async fn run(self) -> Result<(), Error> {
        self.0.await
    }
}

/// Copies between two connections until both have ended.
pub(crate) async fn join(
    mut client: impl Transport,
    mut backend: impl Transport,
) -> Result<(), Error> {
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut backend, BUFFER, BUFFER).await?;
    Ok(())
}

/// Forwards the client's upgrade request over `backend`. Returns the response for the client and,
/// if the backend accepted, the splice to run after it was sent.
///
/// The request's URI is sent unchanged: the caller rewrites path, query and `Host` before.
pub async fn upgrade<B>(
    request: Request<B>,
    backend: impl Transport,
) -> Result<(Answer, Option<Splice>), Error> {
    upgrade_as(request, HeaderMap::new(), backend).await
}

/// The same; the backend also gets these identity headers, instead of those of the request.
pub async fn upgrade_as<B>(
    request: Request<B>,
    identity: HeaderMap,
    backend: impl Transport,
) -> Result<(Answer, Option<Splice>), Error> {
    let (parts, _) = request.into_parts();
    let mut client = Request::from_parts(parts, ());
    if negotiate::requested_upgrade(client.headers()).is_none() {
        let message = "the request has no upgrade header";
        return Ok((refusal(StatusCode::BAD_REQUEST, message), None));
    }
    let mut forwarded = Request::new(Empty::<Bytes>::new());
    *forwarded.method_mut() = client.method().clone();
    *forwarded.uri_mut() = client.uri().clone();
    *forwarded.headers_mut() = public(client.headers());
    forwarded.headers_mut().extend(identity);
    let client = hyper::upgrade::on(&mut client);
    match ask(forwarded, backend).await? {
        Err(answer) => Ok((answer, None)),
        Ok((headers, backend)) => {
            let mut answer = Answer::default();
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *answer.headers_mut() = headers;
            let splice = async { join(TokioIo::new(client.await?), TokioIo::new(backend)).await };
            Ok((answer, Some(Splice::new(splice))))
        }
    }
}

/// A backend's acceptance: its headers and its connection.
pub(crate) type Agreed = (HeaderMap, Upgraded);

/// Sends an upgrade request to a backend: returns its acceptance, or the response to return
/// instead.
pub(crate) async fn ask(
    request: Request<Empty<Bytes>>,
    backend: impl Transport,
) -> Result<Result<Agreed, Answer>, Error> {
    let wanted = negotiate::requested_upgrade(request.headers());
    let wanted = wanted.unwrap_or_default().to_owned();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(backend)).await?;
    let connection = connection.with_upgrades();
    let exchange = async {
        let response = sender.send_request(request).await?;
        answer(response, &wanted).await
    };
    // The connection must be driven during the exchange, and is dropped with it.
    let exchange = async {
        tokio::pin!(connection, exchange);
        tokio::select! {
            answered = &mut exchange => answered,
            ended = &mut connection => { ended?; exchange.await }
        }
    };
    match tokio::time::timeout(ANSWER, exchange).await {
        Ok(answered) => answered,
        Err(_) => {
            let message = "the backend did not answer";
            Ok(Err(refusal(StatusCode::GATEWAY_TIMEOUT, message)))
        }
    }
}

async fn answer(
    mut response: Response<hyper::body::Incoming>,
    wanted: &str,
) -> Result<Result<Agreed, Answer>, Error> {
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let got = negotiate::requested_upgrade(response.headers());
        if !got.is_some_and(|got| got.eq_ignore_ascii_case(wanted)) {
            let message = "the backend switched to a protocol that was not asked for";
            return Ok(Err(refusal(StatusCode::BAD_GATEWAY, message)));
        }
        let backend = hyper::upgrade::on(&mut response).await?;
        return Ok(Ok((response.headers().clone(), backend)));
    }
    if status.is_redirection() {
        let message = "the backend attempted to redirect this request, which is not permitted";
        return Ok(Err(refusal(StatusCode::BAD_GATEWAY, message)));
    }
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_REFUSAL).collect().await;
    let Ok(body) = body else {
        let message = "the backend's error response was truncated";
        return Ok(Err(refusal(StatusCode::BAD_GATEWAY, message)));
    };
    let mut answer = Response::new(Full::new(body.to_bytes()));
    *answer.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        answer
            .headers_mut()
            .insert(header::CONTENT_TYPE, kind.clone());
    }
    // A success without an upgrade is an error.
    if parts.status.is_success() || parts.status.is_informational() {
        let message = "the backend did not upgrade the connection";
        return Ok(Err(refusal(StatusCode::BAD_GATEWAY, message)));
    }
    Ok(Err(answer))
}

/// The headers to forward.
pub(crate) fn public(headers: &HeaderMap) -> HeaderMap {
    let hidden = |name: &HeaderName| {
        let name = name.as_str();
        PRIVATE.contains(&name)
            || PRIVATE_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    let mut public = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| !hidden(name)) {
        public.append(name.clone(), value.clone());
    }
    // An upgrade carries no body.
    public.remove(header::CONTENT_LENGTH);
    public.remove(header::TRANSFER_ENCODING);
    public
}
