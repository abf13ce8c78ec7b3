//! What stands between a client and a backend: forwards the request that asks for an upgrade, and
//! only after the backend has agreed to exactly that upgrade joins the two connections.
//!
//! A backend that refuses is quoted and hung up on: no byte of the client reaches it afterwards.
//! A backend that redirects is not followed.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use crate::{
    Error, Transport,
    negotiate::{self, Answer, refusal},
};

/// A refusal is a Status or a line of text.
const MAX_REFUSAL: usize = 1 << 20;
const ANSWER: Duration = Duration::from_secs(60);
const BUFFER: usize = 64 * 1024;

/// Credentials and identities are for us, not for the backend.
const PRIVATE: &[&str] = &["authorization", "cookie", "x-remote-user", "x-remote-uid"];
const PRIVATE_PREFIXES: &[&str] = &["impersonate-", "x-remote-group", "x-remote-extra-"];

/// Two connections that are to be joined once the client has read the answer.
pub struct Splice {
    client: OnUpgrade,
    backend: Upgraded,
}

impl Splice {
    /// Passes bytes both ways until both sides have ended.
    pub async fn run(self) -> Result<(), Error> {
        let mut client = TokioIo::new(self.client.await?);
        let mut backend = TokioIo::new(self.backend);
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut backend, BUFFER, BUFFER).await?;
        Ok(())
    }
}

/// Forwards the client's request for an upgrade over `backend`. Gives the answer for the client
/// and, if the backend agreed, what must be run after it was sent.
///
/// The request's URI is sent as it is: the caller rewrites path, query and `Host` before.
pub async fn upgrade<B>(
    request: Request<B>,
    backend: impl Transport,
) -> Result<(Answer, Option<Splice>), Error> {
    let (parts, _) = request.into_parts();
    let mut client = Request::from_parts(parts, ());
    let Some(wanted) = negotiate::requested_upgrade(client.headers()).map(str::to_owned) else {
        return Ok((
            refusal(StatusCode::BAD_REQUEST, "the request asks for no upgrade"),
            None,
        ));
    };
    let mut forwarded = Request::new(Empty::<Bytes>::new());
    *forwarded.method_mut() = client.method().clone();
    *forwarded.uri_mut() = client.uri().clone();
    *forwarded.headers_mut() = public(client.headers());
    let on_client = hyper::upgrade::on(&mut client);

    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(backend)).await?;
    let connection = connection.with_upgrades();
    let exchange = async {
        let response = sender.send_request(forwarded).await?;
        answer(response, &wanted).await
    };
    // The connection's own end is part of the exchange: it must be driven, and dropped with it.
    let exchange = async {
        tokio::pin!(connection, exchange);
        tokio::select! {
            answered = &mut exchange => answered,
            ended = &mut connection => { ended?; exchange.await }
        }
    };
    let answered = tokio::time::timeout(ANSWER, exchange).await;
    match answered {
        Err(_) => Ok((
            refusal(StatusCode::GATEWAY_TIMEOUT, "the backend did not answer"),
            None,
        )),
        Ok(Err(error)) => Err(error),
        Ok(Ok((answer, None))) => Ok((answer, None)),
        Ok(Ok((answer, Some(backend)))) => Ok((
            answer,
            Some(Splice {
                client: on_client,
                backend,
            }),
        )),
    }
}

async fn answer(
    mut response: Response<hyper::body::Incoming>,
    wanted: &str,
) -> Result<(Answer, Option<Upgraded>), Error> {
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let got = negotiate::requested_upgrade(response.headers());
        if !got.is_some_and(|got| got.eq_ignore_ascii_case(wanted)) {
            let message = "the backend switched to a protocol that was not asked for";
            return Ok((refusal(StatusCode::BAD_GATEWAY, message), None));
        }
        let mut answer = Answer::default();
        *answer.status_mut() = status;
        *answer.headers_mut() = response.headers().clone();
        let backend = hyper::upgrade::on(&mut response).await?;
        return Ok((answer, Some(backend)));
    }
    if status.is_redirection() {
        let message = "the backend attempted to redirect this request, which is not permitted";
        return Ok((refusal(StatusCode::BAD_GATEWAY, message), None));
    }
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_REFUSAL).collect().await;
    let Ok(body) = body else {
        return Ok((
            refusal(StatusCode::BAD_GATEWAY, "the backend's refusal was cut off"),
            None,
        ));
    };
    let mut answer = Response::new(Full::new(body.to_bytes()));
    *answer.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        answer
            .headers_mut()
            .insert(header::CONTENT_TYPE, kind.clone());
    }
    // A success without an upgrade is no answer to a request for one.
    if parts.status.is_success() || parts.status.is_informational() {
        let message = "the backend did not upgrade the connection";
        return Ok((refusal(StatusCode::BAD_GATEWAY, message), None));
    }
    Ok((answer, None))
}

/// The headers that the backend may see.
fn public(headers: &HeaderMap) -> HeaderMap {
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
