//! Connections to one aggregated API server. A ready endpoint of its Service is chosen for every
//! request, so that connections to backends that are gone are never reused.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use kinds::tree;
use machinery::Value;
use request::{BodyError, User};
use rustls::{ClientConfig, client::ResolvesClientCert};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use webhook::{Connector, Services};

use crate::{Slots, front_proxy};

/// A forwarded request body.
pub type ProxyBody = UnsyncBoxBody<Bytes, BodyError>;

const IDLE_CONNECTIONS: usize = 25;
const IDLE: Duration = Duration::from_secs(90);
/// Maximum bytes of a fetched document.
const LARGEST_DOCUMENT: usize = 32 << 20;
/// What is read of a response of which only the status counts, and for how long.
const LARGEST_REST: usize = 64 << 10;
const REST: Duration = Duration::from_millis(500);
const HTTPS: u16 = 443;

/// The identity of a connection. APIServices with equal targets share connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    ca_bundle: Vec<u8>,
    insecure: bool,
}

impl Target {
    /// Parses the spec of an APIService; `None` if it is local.
    pub(crate) fn read(spec: &Value) -> Option<Self> {
        let service = &spec["service"];
        if !service.is_object() {
            return None;
        }
        let port = service["port"]
            .as_u64()
            .and_then(|port| port.try_into().ok());
        let bundle = tree::text(&spec["caBundle"]);
        Some(Self {
            namespace: tree::text(&service["namespace"]).to_owned(),
            name: tree::text(&service["name"]).to_owned(),
            port: port.unwrap_or(HTTPS),
            ca_bundle: STANDARD.decode(bundle).unwrap_or_default(),
            insecure: tree::truth(&spec["insecureSkipTLSVerify"]),
        })
    }
}

/// A complete response.
pub(crate) struct Document {
    pub(crate) code: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The connections to one target.
pub struct Link {
    pub target: Target,
    services: Arc<dyn Services>,
    /// An error if no connection is possible.
    transport: Result<Transport, String>,
    /// Bounds the concurrent requests to this backend.
    pub slots: Slots,
}

struct Transport {
    connector: Connector,
    http: Client<Connector, ProxyBody>,
}

impl Link {
    pub(crate) fn new(
        target: Target,
        services: Arc<dyn Services>,
        identity: Option<Arc<dyn ResolvesClientCert>>,
    ) -> Self {
        Self {
            transport: Transport::new(&target, identity),
            target,
            services,
            slots: Slots::default(),
        }
    }

    /// Why no connection is possible, regardless of the backend.
    pub fn broken(&self) -> Option<&str> {
        self.transport.as_ref().err().map(String::as_str)
    }

    /// Host and port of a ready backend.
    pub async fn resolve(&self) -> Result<String, String> {
        let Target {
            namespace,
            name,
            port,
            ..
        } = &self.target;
        let (host, port) = self.services.resolve(namespace, name, *port).await?;
        Ok(match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
    }

    /// Sends a request whose URI names the backend; returns before the response's body is read.
    pub async fn send(&self, request: Request<ProxyBody>) -> Result<Response<Incoming>, String> {
        let transport = self.transport.as_ref().map_err(String::clone)?;
        let answered = transport.http.request(request).await;
        answered.map_err(|error| webhook::describe_error(&error))
    }

    /// A dedicated connection, for a request that upgrades it.
    pub async fn dial(&self, uri: &Uri) -> Result<TlsStream<TcpStream>, String> {
        let transport = self.transport.as_ref().map_err(String::clone)?;
        let dialed = transport.connector.dial(uri).await;
        dialed.map_err(|failure| failure.to_string())
    }

    /// Fetches a document as the aggregator itself.
    pub(crate) async fn get(
        &self,
        authority: &str,
        path: &str,
        headers: HeaderMap,
        timeout: Duration,
    ) -> Result<Document, String> {
        within(timeout, authority, path, async {
            let request = own_request(authority, path, headers)?;
            let (parts, body) = self.send(request).await?.into_parts();
            let body = read(body, LARGEST_DOCUMENT).await?;
            Ok(Document {
                code: parts.status,
                headers: parts.headers,
                body,
            })
        })
        .await
    }

    /// The status code of the response, whatever its body is.
    pub(crate) async fn status(
        &self,
        authority: &str,
        path: &str,
        timeout: Duration,
    ) -> Result<StatusCode, String> {
        within(timeout, authority, path, async {
            let request = own_request(authority, path, HeaderMap::new())?;
            let (parts, body) = self.send(request).await?.into_parts();
            // The connection is used again if its response was read.
            let _ = tokio::time::timeout(REST, read(body, LARGEST_REST)).await;
            Ok(parts.status)
        })
        .await
    }

    /// The same from any ready backend.
    pub(crate) async fn get_from_any(
        &self,
        path: &str,
        headers: HeaderMap,
        timeout: Duration,
    ) -> Result<Document, String> {
        let authority = self.resolve().await?;
        self.get(&authority, path, headers, timeout).await
    }
}

impl Transport {
    fn new(target: &Target, identity: Option<Arc<dyn ResolvesClientCert>>) -> Result<Self, String> {
        let mut tls: ClientConfig = match target.insecure {
            true => {
                let config = pki::unverified_client_config().map_err(|error| error.to_string())?;
                ClientConfig::clone(&config)
            }
            false => webhook::trusting(&target.ca_bundle)?,
        };
        if let Some(identity) = identity {
            tls.client_auth_cert_resolver = identity;
        }
        // No HTTP/2: requests are spread over the endpoints, and a hanging one blocks no other on
        // its connection.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server_name = format!("{}.{}.svc", target.name, target.namespace);
        let connector = Connector::new(tls, &server_name, None)?;
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(connector.clone());
        Ok(Self { connector, http })
    }
}

/// A GET as the aggregator itself.
fn own_request(
    authority: &str,
    path: &str,
    headers: HeaderMap,
) -> Result<Request<ProxyBody>, String> {
    let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::new(body);
    *request.method_mut() = Method::GET;
    let uri = format!("https://{authority}{path}").parse();
    *request.uri_mut() = uri.map_err(|error: http::uri::InvalidUri| error.to_string())?;
    *request.headers_mut() = headers;
    let user = User::new("system:kube-aggregator", ["system:masters"]);
    request.headers_mut().extend(front_proxy::headers(&user)?);
    Ok(request)
}

/// The result of a GET in time; errors name the URL.
async fn within<T>(
    timeout: Duration,
    authority: &str,
    path: &str,
    get: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let got = tokio::time::timeout(timeout, get).await;
    let got = got.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
    got.map_err(|why| {
        let url = machinery::text::quote(&format!("https://{authority}{path}"));
        format!("Get {url}: {why}")
    })
}

async fn read(mut body: Incoming, limit: usize) -> Result<Bytes, String> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| "unexpected EOF".to_owned())?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if all.len() + data.len() > limit {
            let why = format!("the response is larger than {limit} bytes");
            return Err(why);
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// A header map with one `Accept`.
pub(crate) fn accepting(media: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(header::ACCEPT, http::HeaderValue::from_static(media))])
}
