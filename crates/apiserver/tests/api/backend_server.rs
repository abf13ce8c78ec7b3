//! An aggregated API server for tests: HTTPS on loopback behind a Service, accepts only the front
//! proxy's certificate, serves one kind, and records its requests.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use parking_lot::Mutex;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::{AbortHandle, JoinHandle},
};

use crate::support::{Server, admin, eventually};

pub(crate) const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
pub(crate) const GROUP: &str = "agg.example.com";

/// How a backend behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Supports aggregated discovery and OpenAPI v3.
    Modern,
    /// Supports only legacy discovery, as servers before 1.26 do.
    Old,
    /// Never responds.
    Hangs,
    /// Responds with errors.
    Broken,
    /// After a request, sends the first bytes on every new connection, then repeats the second
    /// without end; without a second it closes the connection.
    Raw(&'static str, Option<&'static str>),
}

/// A recorded request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub method: String,
    pub path: String,
    pub headers: http::HeaderMap,
    pub body: String,
}

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

struct State {
    mode: Mutex<Mode>,
    asked: Mutex<Vec<Asked>>,
    /// Resources beside `things`.
    more: Mutex<Vec<&'static str>>,
    /// Bytes written in [`Mode::Raw`].
    written: AtomicUsize,
    /// The connections.
    connections: Mutex<Vec<AbortHandle>>,
}

/// A running backend; dropping it stops it.
pub(crate) struct Backend {
    pub address: SocketAddr,
    /// PEM of its self-signed certificate.
    pub certificate: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Backend {
    pub(crate) async fn start(server: &Server, mode: Mode) -> Self {
        let names = vec!["backend.default.svc".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let mut roots = RootCertStore::empty();
        let authority = server.pki.front_proxy_ca().pem();
        roots
            .add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            mode: Mutex::new(mode),
            asked: Mutex::default(),
            more: Mutex::default(),
            written: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let shared = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), shared.clone());
                let connection = tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mode = *state.mode.lock();
                    if let Mode::Raw(first, again) = mode {
                        return send_raw(stream, first, again, &state.written).await;
                    }
                    let service = service_fn(move |request| serve(request, state.clone()));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades()
                        .await;
                });
                shared.connections.lock().push(connection.abort_handle());
            }
        });
        Self {
            address,
            certificate,
            state,
            task,
        }
    }

    /// Changes the behaviour; existing connections are closed.
    pub(crate) fn set(&self, mode: Mode) {
        *self.state.mode.lock() = mode;
        if let Mode::Raw(..) = mode {
            let connections = std::mem::take(&mut *self.state.connections.lock());
            connections.iter().for_each(AbortHandle::abort);
        }
    }

    /// Bytes written in [`Mode::Raw`].
    pub(crate) fn written(&self) -> usize {
        self.state.written.load(Ordering::Relaxed)
    }

    /// Serves another resource, too.
    pub(crate) fn serve_also(&self, resource: &'static str) {
        self.state.more.lock().push(resource);
    }

    /// Requests below a path, in order.
    pub(crate) fn asked(&self, prefix: &str) -> Vec<Asked> {
        let asked = self.state.asked.lock();
        let below = asked.iter().filter(|one| one.path.starts_with(prefix));
        below.cloned().collect()
    }

    /// Creates the Service with an endpoint at this backend.
    pub(crate) async fn make_service(&self, server: &Server) {
        let service = json!({"metadata": {"name": "backend"}, "spec": {"ports": [{"name": "https", "port": 443}]}});
        let made = admin(
            server,
            "POST",
            "/api/v1/namespaces/default/services",
            service,
        )
        .await;
        assert_eq!(made.code, 201, "{}", made.body);
        self.make_slice(server).await;
    }

    pub(crate) async fn make_slice(&self, server: &Server) {
        // Validation forbids loopback for addressType IPv4, but not for FQDN.
        let slice = json!({"metadata": {"name": "backend-1", "labels": {"kubernetes.io/service-name": "backend"}},
            "addressType": "FQDN", "ports": [{"name": "https", "port": self.address.port()}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]});
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let made = admin(server, "POST", path, slice).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }

    /// Changes its endpoint, so that availability is checked at once.
    pub(crate) async fn move_endpoint(&self, server: &Server, hostname: &str) {
        let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/backend-1";
        let moved = json!({"endpoints": [{"addresses": ["127.0.0.1"], "hostname": hostname}]});
        let patched = admin(server, "PATCH", slice, moved).await;
        assert_eq!(patched.code, 200, "{}", patched.body);
    }

    /// Its APIService.
    pub(crate) fn api_service(&self, version: &str) -> Value {
        json!({"metadata": {"name": format!("{version}.{GROUP}")}, "spec": {
            "group": GROUP, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 10,
            "caBundle": STANDARD.encode(&self.certificate),
            "service": {"namespace": "default", "name": "backend"}}})
    }

    /// Registers it and waits until it is available.
    pub(crate) async fn install(&self, server: &Server) {
        self.make_service(server).await;
        let made = admin(server, "POST", SERVICES, self.api_service("v1")).await;
        assert_eq!(made.code, 201, "{}", made.body);
        assert!(made.headers.get("warning").is_none());
        wait_for(server, "Passed").await;
    }
}

/// The condition of the APIService.
pub(crate) async fn condition(server: &Server) -> Value {
    let path = format!("{SERVICES}/v1.{GROUP}");
    let found = admin(server, "GET", &path, Value::Null).await;
    found.json()["status"]["conditions"][0].clone()
}

/// Waits for the condition's reason, and until requests reflect it.
pub(crate) async fn wait_for(server: &Server, reason: &str) -> Value {
    let condition = eventually(|| async {
        let found = condition(server).await;
        (found["reason"] == reason).then_some(found)
    })
    .await;
    let is_available = condition["status"] == "True";
    let path = format!("/apis/{GROUP}/v1/anything");
    eventually(|| async {
        let answer = admin(server, "GET", &path, Value::Null).await;
        ((answer.body != "service unavailable\n") == is_available).then_some(())
    })
    .await;
    condition
}

/// Reads the head of a request and writes bytes.
async fn send_raw(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    first: &str,
    again: Option<&str>,
    written: &AtomicUsize,
) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    let mut next = Some(first);
    while let Some(bytes) = next {
        if stream.write_all(bytes.as_bytes()).await.is_err() {
            return;
        }
        written.fetch_add(bytes.len(), Ordering::Relaxed);
        next = again;
    }
    let _ = stream.shutdown().await;
}

async fn serve(mut request: Request<Incoming>, state: Arc<State>) -> Result<Reply, Infallible> {
    let path = request.uri().path_and_query().unwrap().to_string();
    let headers = request.headers().clone();
    let method = request.method().to_string();
    let upgrade = headers.get("upgrade").cloned();
    let body = match upgrade {
        None => request.body_mut().collect().await.unwrap().to_bytes(),
        Some(_) => Bytes::new(),
    };
    let asked = Asked {
        method,
        path: path.clone(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    state.asked.lock().push(asked.clone());
    let mode = *state.mode.lock();
    if mode == Mode::Hangs {
        std::future::pending::<()>().await;
    }
    if mode == Mode::Broken {
        return Ok(whole(500, "text/plain", "broken".to_owned()));
    }
    if let Some(protocol) = upgrade {
        return Ok(echo(request, protocol));
    }
    Ok(answer(&asked, mode, &state))
}

fn answer(asked: &Asked, mode: Mode, state: &State) -> Reply {
    let accept = asked.headers.get("accept").and_then(|a| a.to_str().ok());
    let accept = accept.unwrap_or_default();
    let path = asked.path.split('?').next().unwrap();
    let more = state.more.lock().clone();
    let version = format!("/apis/{GROUP}/v1");
    match path {
        "/apis" if mode == Mode::Modern && accept.contains("APIGroupDiscoveryList") => {
            let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            whole(200, media, aggregated(&more).to_string())
        }
        "/apis" => json_answer(&json!({"kind": "APIGroupList", "groups": []})),
        path if path == version => json_answer(&resources(&more)),
        "/openapi/v3" if mode == Mode::Modern => {
            let place = format!("apis/{GROUP}/v1");
            let url = format!("/openapi/v3/{place}?hash=1");
            json_answer(&json!({"paths": {place: {"serverRelativeURL": url},
                "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=stolen"}}}))
        }
        "/openapi/v2" => json_answer(&swagger()),
        "/openapi/v3" => whole(404, "text/plain", "404 page not found".to_owned()),
        path if path.ends_with("/moved") => {
            let mut reply = whole(302, "text/plain", String::new());
            let target = "https://192.0.2.1/".parse().unwrap();
            reply.headers_mut().insert("location", target);
            reply
        }
        path if path.ends_with("/big") => streamed(64, Duration::ZERO),
        _ if asked.path.contains("watch=true") => streamed(3, Duration::from_millis(50)),
        _ => json_answer(&json!({"method": asked.method, "path": asked.path, "body": asked.body})),
    }
}

fn whole(code: u16, media: &str, body: String) -> Reply {
    Response::builder()
        .status(code)
        .header("content-type", media)
        .body(Full::new(Bytes::from(body)).boxed_unsync())
        .unwrap()
}

fn json_answer(value: &Value) -> Reply {
    whole(200, "application/json", value.to_string())
}

/// Pieces of a megabyte; with a pause, small pieces like those of a watch.
fn streamed(pieces: usize, pause: Duration) -> Reply {
    let piece = match pause.is_zero() {
        true => Bytes::from(vec![b' '; 1 << 20]),
        false => Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n"),
    };
    let pieces = futures::stream::iter(0..pieces).then(move |_| {
        let piece = piece.clone();
        async move {
            tokio::time::sleep(pause).await;
            Ok(Frame::data(piece))
        }
    });
    // A watch does not end.
    let rest = futures::stream::pending();
    let body = match pause.is_zero() {
        true => StreamBody::new(pieces.boxed()),
        false => StreamBody::new(pieces.chain(rest).boxed()),
    };
    Response::builder()
        .header("content-type", "application/json")
        .body(body.boxed_unsync())
        .unwrap()
}

fn echo(mut request: Request<Incoming>, protocol: http::HeaderValue) -> Reply {
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let mut io = TokioIo::new(upgraded);
        io.write_all(b"hello").await.unwrap();
        let (mut read, mut write) = tokio::io::split(io);
        tokio::io::copy(&mut read, &mut write).await.ok();
    });
    let mut reply = whole(101, "text/plain", String::new());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert("connection", "Upgrade".parse().unwrap());
    headers.insert("upgrade", protocol);
    reply
}

fn swagger() -> Value {
    let thing = json!({"$ref": "#/definitions/com.example.agg.v1.Thing"});
    let meta = json!({"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"});
    json!({"swagger": "2.0", "info": {"title": "backend", "version": "1"},
        "paths": {
            "/apis/agg.example.com/v1/things": {"get": {"responses": {"200": {"description": "OK", "schema": thing}}}},
            "/apis/apps/v1/stolen": {"get": {"responses": {}}}},
        "definitions": {
            "com.example.agg.v1.Thing": {"type": "object", "properties": {"metadata": meta}},
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object", "description": "another one"},
            "unused": {"type": "object"}}})
}

fn names<'a>(more: &'a [&'static str]) -> impl Iterator<Item = &'static str> + use<'a> {
    std::iter::once("things").chain(more.iter().copied())
}

const VERBS: [&str; 5] = ["create", "delete", "get", "list", "watch"];

fn resources(more: &[&'static str]) -> Value {
    let resource = |name| json!({"name": name, "singularName": "", "namespaced": true, "kind": "Thing", "verbs": VERBS});
    let resources: Vec<Value> = names(more).map(resource).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
        "resources": resources})
}

fn aggregated(more: &[&'static str]) -> Value {
    let resource = |name| {
        json!({"resource": name, "singularResource": "thing", "scope": "Namespaced", "verbs": VERBS,
            "responseKind": {"group": GROUP, "version": "v1", "kind": "Thing"}})
    };
    let resources: Vec<Value> = names(more).map(resource).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [
        {"metadata": {"name": GROUP}, "versions": [{"version": "v1", "resources": resources, "freshness": "Current"}]},
        {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [], "freshness": "Current"}]},
    ]})
}
