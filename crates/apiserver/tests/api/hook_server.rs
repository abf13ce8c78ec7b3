//! A webhook for tests: HTTPS on loopback, answers by a function, and records its requests.

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
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use parking_lot::Mutex;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::support::{Server, admin, eventually};

/// A webhook's response.
pub(crate) enum Reply {
    Json(Value),
    Raw(u16, Vec<u8>),
    /// To another path of the same server.
    Redirect(&'static str),
    /// An error after which the client may retry at once.
    Busy,
    /// No response.
    Never,
    /// A head, and then single bytes without end.
    Slow,
}

/// A running webhook; dropping it stops it.
pub(crate) struct Hook {
    pub address: SocketAddr,
    /// PEM of its self-signed certificate.
    pub certificate: String,
    /// The bodies of requests, in order.
    pub seen: Arc<Mutex<Vec<Value>>>,
    /// Paths with their queries.
    pub paths: Arc<Mutex<Vec<String>>>,
    /// The `Authorization` headers of requests that have one.
    pub authorizations: Arc<Mutex<Vec<String>>>,
    /// How many connections were made.
    pub connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hook {
    pub(crate) async fn start(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::with_client_ca(None, answer).await
    }

    /// A webhook that accepts only clients with a certificate of this CA.
    pub(crate) async fn with_client_ca(
        client_ca: Option<&str>,
        answer: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let names = ["127.0.0.1", "localhost", "hook.default.svc"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names.to_vec()).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let mut tls = match client_ca {
            Some(ca) => demanding(ca, &certificate, &key),
            None => pki::server_config_from_pem(certificate.as_bytes(), key.as_bytes()).unwrap(),
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
        let paths: Arc<Mutex<Vec<String>>> = Arc::default();
        let connections: Arc<AtomicUsize> = Arc::default();
        let authorizations: Arc<Mutex<Vec<String>>> = Arc::default();
        let answer = Arc::new(answer);
        let (all, asked, counted) = (seen.clone(), paths.clone(), connections.clone());
        let shown = authorizations.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                let (all, asked, counted) = (all.clone(), asked.clone(), counted.clone());
                let shown = shown.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    counted.fetch_add(1, Ordering::Relaxed);
                    let service = service_fn(move |request: http::Request<_>| {
                        let header = request.headers().get("authorization");
                        let header = header.map(|value| value.to_str().unwrap().to_owned());
                        shown.lock().extend(header);
                        serve(request, answer.clone(), all.clone(), asked.clone())
                    });
                    let io = TokioIo::new(stream);
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(io, service)
                        .await;
                });
            }
        });
        Self {
            address,
            certificate,
            seen,
            paths,
            authorizations,
            connections,
            task,
        }
    }

    /// A webhook that allows everything, with additional response fields.
    pub(crate) async fn allowing(more: Value) -> Self {
        Self::start(move |review| Reply::Json(allowed(review, more.clone()))).await
    }

    /// A `clientConfig` by URL.
    pub(crate) fn by_url(&self) -> Value {
        json!({"url": format!("https://{}/hook", self.address), "caBundle": STANDARD.encode(&self.certificate)})
    }

    /// The received requests, without their uids.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let seen = self.seen.lock();
        seen.iter()
            .map(|review| review["request"].clone())
            .collect()
    }
}

/// TLS that demands a client certificate.
fn demanding(client_ca: &str, certificate: &str, key: &str) -> rustls::ServerConfig {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(client_ca.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap()
}

async fn serve(
    request: http::Request<hyper::body::Incoming>,
    answer: Arc<impl Fn(&Value) -> Reply>,
    all: Arc<Mutex<Vec<Value>>>,
    asked: Arc<Mutex<Vec<String>>>,
) -> Result<http::Response<UnsyncBoxBody<Bytes, Infallible>>, hyper::Error> {
    let path = request.uri().to_string();
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = machinery::json::from_slice(&body).unwrap_or_default();
    let reply = answer(&review);
    asked.lock().push(path);
    all.lock().push(review);
    let more = match reply {
        Reply::Busy => Some(("retry-after", "0")),
        Reply::Redirect(to) => Some(("location", to)),
        _ => None,
    };
    let (code, body) = match reply {
        Reply::Json(value) => (200, whole(value.to_string().into_bytes())),
        Reply::Raw(code, body) => (code, whole(body)),
        Reply::Redirect(_) => (307, whole(Vec::new())),
        Reply::Busy => (503, whole(Vec::new())),
        Reply::Slow => (200, slow()),
        Reply::Never => std::future::pending().await,
    };
    let mut response = http::Response::builder().status(code);
    if let Some((name, value)) = more {
        response = response.header(name, value);
    }
    let response = response
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    Ok(response)
}

fn whole(body: Vec<u8>) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(Bytes::from(body)).boxed_unsync()
}

fn slow() -> UnsyncBoxBody<Bytes, Infallible> {
    let bytes = futures::stream::repeat(()).then(|()| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Frame::data(Bytes::from_static(b" ")))
    });
    StreamBody::new(bytes).boxed_unsync()
}

/// The response to a review, with these fields.
pub(crate) fn answer(review: &Value, fields: Value) -> Value {
    let mut response = json!({"uid": review["request"]["uid"]});
    for (key, value) in fields.as_object().unwrap() {
        response[key.as_str()] = value.clone();
    }
    json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response})
}

/// A response that allows the request.
pub(crate) fn allowed(review: &Value, mut more: Value) -> Value {
    more["allowed"] = true.into();
    answer(review, more)
}

/// An answer with a patch.
pub(crate) fn patched(review: &Value, operations: &Value) -> Value {
    let patch = STANDARD.encode(operations.to_string());
    allowed(review, json!({"patchType": "JSONPatch", "patch": patch}))
}

/// A webhook of a configuration for creates of ConfigMaps, with changes.
pub(crate) fn webhook(name: &str, client: Value, changes: Value) -> Value {
    let mut webhook = json!({
        "name": name, "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [rule(&["CREATE"], "", "v1", &["configmaps"])],
        // The probe of [`install`] is not sent to the installed webhooks.
        "objectSelector": {"matchExpressions": [{"key": "marker", "operator": "DoesNotExist"}]},
    });
    for (key, value) in changes.as_object().into_iter().flatten() {
        webhook[key.as_str()] = value.clone();
    }
    webhook
}

pub(crate) fn rule(operations: &[&str], group: &str, version: &str, resources: &[&str]) -> Value {
    json!({"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": resources})
}

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";

/// Stores a configuration and waits until the server uses it.
pub(crate) async fn install(server: &Server, mutating: bool, name: &str, mut webhooks: Vec<Value>) {
    let denies = |review: &Value| Reply::Json(answer(review, json!({"allowed": false})));
    let marker = Hook::start(denies).await;
    let kind = if mutating { "mutating" } else { "validating" };
    let labels = json!({"marker": name});
    webhooks.push(webhook(
        &format!("marker.{name}.example.com"),
        marker.by_url(),
        json!({"objectSelector": {"matchLabels": labels}}),
    ));
    let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations");
    let body = json!({"metadata": {"name": name}, "webhooks": webhooks});
    let made = admin(server, "POST", &path, body).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let object = json!({"metadata": {"name": format!("marker-{name}"), "labels": labels}});
    let maps = "/api/v1/namespaces/kube-system/configmaps?dryRun=All";
    eventually(|| async {
        let tried = admin(server, "POST", maps, object.clone()).await;
        tried.body.contains("marker.").then_some(())
    })
    .await;
}
