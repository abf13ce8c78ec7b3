//! The kubelet's HTTPS server: logs, exec, run, attach, port-forward, statistics and metrics. Every
//! request is authenticated and authorized ([`auth`]).

pub(crate) mod auth;
mod cadvisor;
mod checkpoint;
mod client_authorities;
mod configz;
mod containers;
mod guests;
mod healthz;
mod idle;
mod logs;
mod metrics;
mod node_log_query;
mod node_logs;
mod pods;
mod run;
mod stats;
mod upgrade;
mod zpages;

pub use healthz::serve as serve_healthz;

pub use client_authorities::read as read_client_authorities;
pub(crate) use containers::bare_id;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use crate::{Error, Result, core::Core};
use auth::{User, certificate_user};
use guests::{UnauthorizedConnection, UnauthorizedConnections};

/// A buffered or streamed body.
pub type Body = BoxBody<Bytes, std::io::Error>;

const HANDSHAKE: Duration = Duration::from_secs(10);
/// The idle timeout between requests, as upstream's.
const IDLE: Duration = Duration::from_secs(90);
/// The maximum size of request headers, which contain the command of an exec.
const MAX_HEADERS: u32 = 256 << 10;
const MAX_STREAMS: u32 = 250;

/// A listening socket with its TLS settings.
pub struct Listener {
    socket: TcpListener,
    acceptor: TlsAcceptor,
}

/// Binds the socket, before the kubelet is ready.
pub async fn bind(core: &Core) -> Result<Listener> {
    let config = &core.config;
    let tls = match config.kubelet.authentication.x509.client_ca_file.as_str() {
        "" => config.tls.clone(),
        file => client_authorities::server_config(&config.tls, &config.client_ca, file.as_ref())
            .map(Arc::new)
            .map_err(Error::Other)?,
    };
    let address = SocketAddr::new(core.config.listen, core.config.port);
    let socket = TcpListener::bind(address)
        .await
        .map_err(|error| Error::Other(format!("cannot listen on {address}: {error}")))?;
    Ok(Listener {
        socket,
        acceptor: TlsAcceptor::from(tls),
    })
}

/// Never returns.
pub async fn serve(core: Arc<Core>, listener: Listener) {
    let Listener { socket, acceptor } = listener;
    let guests = UnauthorizedConnections::default();
    info!(address = ?socket.local_addr().ok(), "serving the kubelet API");
    loop {
        match socket.accept().await {
            Ok((stream, from)) => {
                let Some(guest) = guests.enter(from.ip()) else {
                    continue;
                };
                let (core, acceptor) = (core.clone(), acceptor.clone());
                core.clone().context.spawn("connection", async move {
                    let served = connection(core, acceptor, stream, guest.clone());
                    tokio::select! {
                        () = served => {}
                        () = guest.expired() => debug!(%from, "no request was authorized in time"),
                    }
                });
            }
            Err(error) => {
                debug!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(
    core: Arc<Core>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    guest: UnauthorizedConnection,
) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(tls)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let certificates = tls.get_ref().1.peer_certificates();
    let user = Arc::new(certificates.and_then(certificate_user));
    let service = service_fn(move |request: Request<Incoming>| {
        let (core, user, guest) = (core.clone(), user.clone(), guest.clone());
        async move {
            let is_head = request.method() == Method::HEAD;
            let response = handle(core, user.as_ref().as_ref(), &guest, request).await;
            Ok::<_, std::convert::Infallible>(if is_head {
                without_body(response)
            } else {
                response
            })
        }
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MAX_HEADERS as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .keep_alive_interval(IDLE / 3)
        .keep_alive_timeout(IDLE);
    let served = builder
        .serve_connection_with_upgrades(TokioIo::new(tls), service)
        .await;
    if let Err(error) = served {
        debug!(error, "connection ended");
    }
}

/// A request: its decoded path segments and query.
pub struct KubeletRequest {
    pub method: Method,
    pub parts: Vec<String>,
    pub query: Vec<(String, String)>,
}

impl KubeletRequest {
    fn new<B>(request: &Request<B>) -> Self {
        let parts = request
            .uri()
            .path()
            .split('/')
            .filter(|part| !part.is_empty());
        let query = request.uri().query().unwrap_or_default();
        Self {
            method: request.method().clone(),
            parts: parts.map(decode).collect(),
            query: query
                .split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        }
    }

    /// The first value of a query parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a query parameter.
    pub fn all(&self, key: &str) -> Vec<String> {
        let wanted = self.query.iter().filter(|(name, _)| name == key);
        wanted.map(|(_, value)| value.clone()).collect()
    }

    /// Whether a boolean parameter is set, under any of its names.
    pub fn is_on(&self, keys: &[&str]) -> bool {
        keys.iter()
            .any(|key| matches!(self.get(key), Some("1" | "true" | "True")))
    }
}

/// Percent-decoding; a plus is a space.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut ahead = rest.clone();
                match (hex(ahead.next()), hex(ahead.next())) {
                    (Some(high), Some(low)) => {
                        bytes.push((high * 16 + low) as u8);
                        rest = ahead;
                    }
                    _ => bytes.push(b'%'),
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Handlers that `enableDebuggingHandlers` turns off.
const DEBUGGING: &[&str] = &[
    "attach",
    "checkpoint",
    "containerLogs",
    "exec",
    "logs",
    "portForward",
    "run",
    "runningpods",
];

async fn handle(
    core: Arc<Core>,
    certificate: Option<&User>,
    guest: &UnauthorizedConnection,
    request: Request<Incoming>,
) -> Response<Body> {
    let ask = KubeletRequest::new(&request);
    let turn = guest.turn().await;
    let admitted = core.auth.admit(certificate, request.headers(), &ask).await;
    drop(turn);
    if let Err(refused) = admitted {
        return *refused;
    }
    guest.welcome();
    let parts: Vec<&str> = ask.parts.iter().map(String::as_str).collect();
    if !core.settings().enable_debugging_handlers
        && parts.first().is_some_and(|first| DEBUGGING.contains(first))
    {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "Debug endpoints are disabled.",
        );
    }
    if matches!(parts.first(), Some(&("exec" | "attach" | "portForward"))) {
        return match ask.method {
            Method::GET | Method::POST => upgrade::serve(&core, &ask, request).await,
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed"),
        };
    }
    if matches!(parts.first(), Some(&("checkpoint" | "run"))) {
        return post(&core, &ask, &parts).await;
    }
    if !matches!(ask.method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    match parts.as_slice() {
        ["healthz", ..] => healthz::answer(&core),
        ["pods"] => pods::all(&core),
        ["runningpods"] => pods::running(&core).await,
        ["metrics"] => metrics::serve(&core).await,
        ["metrics", "resource"] => stats::resource(&core).await,
        ["metrics", "cadvisor"] => cadvisor::serve(core.clone()).await,
        ["metrics", "probes"] => metrics::probes(&core),
        ["metrics", "slis"] => metrics::indicators(&core),
        ["statusz"] => zpages::statusz(&core, request.headers()),
        ["flagz"] => zpages::flagz(&core, request.headers()),
        ["stats", "summary"] => {
            let reduced = ask.is_on(&["only_cpu_and_memory"]);
            stats::summary(&core, reduced).await
        }
        ["configz"] => configz::serve(&core),
        ["logs", ..] if !core.settings().enable_system_log_handler => {
            text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.")
        }
        ["logs", path @ ..] => {
            let queried = match core.settings().enable_system_log_query {
                true => node_log_query::serve(&core, &ask).await,
                false => None,
            };
            queried.unwrap_or_else(|| node_logs::serve(&core, path, request.uri().path()))
        }
        ["containerLogs", namespace, pod, container] => {
            logs::serve(core.clone(), namespace, pod, container, &ask).await
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Handles paths that only POST is for.
async fn post(core: &Core, ask: &KubeletRequest, parts: &[&str]) -> Response<Body> {
    let is_post = ask.method == Method::POST;
    match parts {
        ["checkpoint", namespace, pod, container] if is_post => {
            checkpoint::serve(core, namespace, pod, container, ask).await
        }
        ["run", namespace, pod, container] | ["run", namespace, pod, _, container] if is_post => {
            run::serve(core, namespace, pod, container, ask).await
        }
        [_, _, _, _] | ["run", _, _, _, _] => {
            text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// The response to HEAD: only headers. HTTP/2 clients treat a body as a protocol error.
fn without_body(response: Response<Body>) -> Response<Body> {
    use hyper::body::Body as _;
    let length = response.body().size_hint().exact();
    let (mut parts, _) = response.into_parts();
    if let Some(length) = length {
        parts
            .headers
            .entry(header::CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    let empty = http_body_util::Empty::new().map_err(|never| match never {});
    Response::from_parts(parts, empty.boxed())
}

/// A plain text response.
pub fn text(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    whole(
        status,
        "text/plain; charset=utf-8",
        message.into().into_bytes(),
    )
}

/// A JSON response.
pub fn json(value: &serde_json::Value) -> Response<Body> {
    whole(
        StatusCode::OK,
        "application/json",
        value.to_string().into_bytes(),
    )
}

fn whole(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Body> {
    let body = Full::new(Bytes::from(body))
        .map_err(|never| match never {})
        .boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_decoded() {
        let request =
            Request::get("/exec/ns/pod/c?command=sh&command=-c&command=a%20%2B+b&input=1")
                .body(())
                .unwrap();
        let ask = KubeletRequest::new(&request);
        assert_eq!(ask.parts, ["exec", "ns", "pod", "c"]);
        assert_eq!(ask.all("command"), ["sh", "-c", "a + b"]);
        assert!(ask.is_on(&["stdin", "input"]) && !ask.is_on(&["tty"]));
        assert_eq!(decode("100%"), "100%");
    }
}
