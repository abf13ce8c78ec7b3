//! Translation between WebSocket clients and backends that support only SPDY: exec and attach of
//! protocol v5 become SPDY v4, and the SPDY frames of a port-forward are taken out of their
//! WebSocket.
//!
//! The backend is asked first: a client whose backend refuses gets that response, and no connection
//! is left open.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body_util::Empty;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::{
    Error, ExitStatus, Options, Session, Transport,
    negotiate::{self, Answer, PROTOCOL_VERSION, SPDY},
    portforward::TUNNEL,
    server, spdy,
    tunnel::{self, Splice},
    websocket::{Bytestream, frames},
};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const PORT_FORWARD: &str = "portforward.k8s.io";

fn speaks(headers: &HeaderMap, protocol: &str) -> bool {
    negotiate::is_websocket(headers)
        && negotiate::subprotocols(headers).any(|spoken| spoken == protocol)
}

/// Whether the client supports the WebSocket protocol that can close stdin (v5).
pub fn is_exec(headers: &HeaderMap) -> bool {
    speaks(headers, V5)
}

/// Whether the client sends SPDY frames inside a WebSocket.
pub fn is_port_forward(headers: &HeaderMap) -> bool {
    speaks(headers, TUNNEL)
}

/// Exec or attach. The request's URI is sent unchanged.
pub async fn exec<B>(
    request: Request<B>,
    options: Options,
    backend: impl Transport,
) -> Result<(Answer, Option<Splice>), Error> {
    let (forwarded, mut client) = as_spdy(request, V4);
    let (answer, pending) = match server::exec(&mut client, options) {
        Ok(accepted) => accepted,
        Err(refusal) => return Ok((refusal, None)),
    };
    Ok(match tunnel::ask(forwarded, backend).await? {
        Err(refusal) => (refusal, None),
        Ok((_, backend)) => {
            let run =
                async move { Box::pin(translate(pending.open().await?, options, backend)).await };
            (answer, Some(Splice::new(run)))
        }
    })
}

/// Port-forward. The request's URI is sent unchanged.
pub async fn port_forward<B>(
    request: Request<B>,
    backend: impl Transport,
) -> Result<(Answer, Option<Splice>), Error> {
    let (forwarded, mut client) = as_spdy(request, PORT_FORWARD);
    let answer = match negotiate::handshake(client.headers(), TUNNEL) {
        Ok(answer) => answer,
        Err(refusal) => return Ok((refusal, None)),
    };
    let upgrade = hyper::upgrade::on(&mut client);
    Ok(match tunnel::ask(forwarded, backend).await? {
        Err(refusal) => (refusal, None),
        Ok((_, backend)) => {
            let run = async move {
                let client = frames(TokioIo::new(upgrade.await?), Role::Server).await;
                tunnel::join(Bytestream::new(client), TokioIo::new(backend)).await
            };
            (answer, Some(Splice::new(run)))
        }
    })
}

/// The request over SPDY, and the client's own.
fn as_spdy<B>(request: Request<B>, version: &'static str) -> (Request<Empty<Bytes>>, Request<()>) {
    let (parts, _) = request.into_parts();
    let mut headers = tunnel::public(&parts.headers);
    for name in [
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_EXTENSIONS,
    ] {
        headers.remove(name);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
    let mut forwarded = Request::new(Empty::new());
    *forwarded.method_mut() = Method::POST;
    *forwarded.uri_mut() = parts.uri.clone();
    *forwarded.headers_mut() = headers;
    (forwarded, Request::from_parts(parts, ()))
}

/// Copies all streams until the backend has sent the exit status or the client has disconnected.
async fn translate(mut session: Session, options: Options, backend: Upgraded) -> Result<(), Error> {
    let mut connection = spdy::Connection::start(TokioIo::new(backend), spdy::Role::Client);
    let mut open =
        |wanted: bool, kind: &str| wanted.then(|| connection.open(&[("streamtype", kind)]));
    // The order that kubelets expect; unused halves stay open to the end.
    let mut error = open(true, "error").ok_or(Error::Closed)?;
    let stdin = open(session.stdin.is_some(), "stdin");
    let stdout = open(session.stdout.is_some(), "stdout");
    let stderr = open(session.stderr.is_some(), "stderr");
    let resize = open(options.tty, "resize");

    let (mut typed, mut sizes) = (session.stdin.take(), session.resize.take());
    let (mut out, mut err) = (session.stdout.take(), session.stderr.take());
    let gone = session.closed();
    let to_backend = async {
        let input = async {
            if let (Some(from), Some(mut to)) = (&mut typed, stdin) {
                // A command that stops reading stdin has not failed.
                let _ = tokio::io::copy(from, &mut to.writer).await;
                let _ = to.writer.shutdown().await;
                let _ = tokio::io::copy(&mut to.reader, &mut tokio::io::sink()).await;
            }
        };
        let resizes = async {
            if let (Some(sizes), Some(mut to)) = (&mut sizes, resize) {
                while let Some(size) = sizes.next().await {
                    let mut json = serde_json::to_vec(&size).unwrap_or_default();
                    json.push(b'\n');
                    if to.writer.write_all(&json).await.is_err() {
                        break;
                    }
                }
                std::future::pending::<()>().await;
            }
        };
        tokio::join!(input, resizes);
        std::future::pending::<()>().await
    };
    let mut outcome = Vec::new();
    let from_backend = async {
        let output = async {
            if let (Some(mut from), Some(to)) = (stdout, &mut out) {
                let _ = tokio::io::copy(&mut from.reader, to).await;
            }
        };
        let errors = async {
            if let (Some(mut from), Some(to)) = (stderr, &mut err) {
                let _ = tokio::io::copy(&mut from.reader, to).await;
            }
        };
        let ended = error.reader.read_to_end(&mut outcome);
        let _ = tokio::join!(output, errors, ended);
    };
    tokio::select! {
        () = from_backend => {}
        () = to_backend => {}
        () = gone.cancelled() => return Ok(()),
    }
    drop((out, err));
    if outcome.is_empty() {
        let cut = ExitStatus::Failed("the connection to the node ended".to_owned());
        session.finish(cut).await;
    } else {
        session.finish_with(&outcome).await;
    }
    connection.shutdown().await;
    Ok(())
}
