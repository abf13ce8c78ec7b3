//! Calls webhooks. [`Client`] serves admission and conversion, and reaches a webhook by URL or as a Service. [`Remote`]
//! calls the server in a kubeconfig file, [`get`] fetches a document. Connections use TLS with the configured CAs;
//! clients reuse them. Error messages are upstream's. Callers encode and decode the bodies.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod config;
mod connect;
mod credentials;
mod remote;
mod tls;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client as Pool, Error as PoolError},
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;

pub use config::{ClientConfig, ServiceReference};
pub use connect::{ConnectFailure, Connector, Stream};
pub use credentials::Credentials;
pub use remote::{Remote, get};

/// The maximum number of webhooks with open connections; those of the least recently called webhook are dropped.
const KEPT: usize = 200;
const IDLE_CONNECTIONS: usize = 25;
const AGENT: &str = "kube-apiserver-admission";

/// Resolves a Service to a backend.
#[async_trait]
pub trait Services: Send + Sync + 'static {
    /// The host and port of a backend for a port of a Service, or the reason why there is none.
    async fn resolve(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<(String, u16), String>;
}

/// A request to a webhook, and the limits of its response.
pub struct Call {
    pub body: Bytes,
    /// The timeout from connecting to the last byte of the response.
    pub timeout: Duration,
    /// The maximum length of the response in bytes.
    pub limit: usize,
}

/// A successful response.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub content_type: String,
    pub body: Bytes,
}

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub message: String,
    /// The status code of the response; 503 if there was none.
    pub code: u16,
    /// Whether the call timed out.
    pub timed_out: bool,
}

impl Failure {
    fn unavailable(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 503,
            timed_out: false,
        }
    }
}

/// The maximum number of retries when a webhook responds with Retry-After.
const RETRIES: u32 = 10;

type Http = Pool<Connector, Full<Bytes>>;

/// The connections to one webhook.
struct Endpoint {
    http: Http,
    /// `https://host[:port]/path`
    url: String,
    authorization: Option<HeaderValue>,
}

/// Connections by webhook, each with the sequence number of its last call.
type Endpoints = HashMap<ClientConfig, (u64, Arc<Endpoint>)>;

/// The client of all webhooks.
pub struct Client {
    services: Arc<dyn Services>,
    credentials: Credentials,
    /// Guards the sequence number of the last call, and the connections.
    kept: Mutex<(u64, Endpoints)>,
}

impl Client {
    pub fn new(services: Arc<dyn Services>, credentials: Credentials) -> Self {
        Self {
            services,
            credentials,
            kept: Mutex::default(),
        }
    }

    /// Posts JSON to a webhook.
    pub async fn post(&self, config: &ClientConfig, call: Call) -> Result<Answer, Failure> {
        let endpoint = self.endpoint(config)?;
        let url = format!(
            "{}?timeout={}s",
            endpoint.url,
            call.timeout.as_secs_f64().ceil()
        );
        let failed = |why: &str| Failure::unavailable(format!("Post {}: {why}", quote(&url)));
        let request = || request(&endpoint, &url, call.body.clone()).map_err(|why| failed(&why));
        let is_read = AtomicBool::new(false);
        let exchange = async {
            let mut retries = 0;
            loop {
                let response = endpoint.http.request(request()?).await;
                let response = response.map_err(|error| failed(&describe_error(&error)))?;
                let (parts, body) = response.into_parts();
                is_read.store(true, Ordering::Relaxed);
                let body = read(body, call.limit).await?;
                is_read.store(false, Ordering::Relaxed);
                match answer::retry_after(&parts).filter(|_| retries < RETRIES) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return answer::read_answer(&parts, body),
                }
                retries += 1;
            }
        };
        match tokio::time::timeout(call.timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = "context deadline exceeded";
                let failure = match is_read.into_inner() {
                    true => unread(why),
                    false => failed(why),
                };
                Err(Failure {
                    timed_out: true,
                    ..failure
                })
            }
        }
    }

    fn endpoint(&self, config: &ClientConfig) -> Result<Arc<Endpoint>, Failure> {
        let mut kept = self.kept.lock();
        let (calls, endpoints) = &mut *kept;
        *calls += 1;
        if let Some((last, endpoint)) = endpoints.get_mut(config) {
            *last = *calls;
            return Ok(endpoint.clone());
        }
        let endpoint = Arc::new(self.open(config).map_err(Failure::unavailable)?);
        if endpoints.len() >= KEPT {
            let oldest = endpoints.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(oldest) = oldest.map(|(config, _)| config.clone()) {
                endpoints.remove(&oldest);
            }
        }
        endpoints.insert(config.clone(), (*calls, endpoint.clone()));
        Ok(endpoint)
    }

    fn open(&self, config: &ClientConfig) -> Result<Endpoint, String> {
        let target = config.target()?;
        let user = self.credentials.find(&target.host_and_port)?;
        let mut tls = tls::client_config(&config.ca_bundle, user.identity.as_ref())?;
        // HTTP/2 would send concurrent requests over one connection, and thus to one backend of a Service.
        tls.alpn_protocols = match target.is_loopback {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        let services = config.service.clone().map(|to| (self.services.clone(), to));
        let connector = Connector::new(tls, &target.server_name, services)?;
        let http = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(connector);
        Ok(Endpoint {
            http,
            url: target.url,
            authorization: user.authorization,
        })
    }
}

fn request(endpoint: &Endpoint, url: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, */*")
        .header(header::USER_AGENT, AGENT)
        .body(Full::new(body))
        .map_err(|error| error.to_string())?;
    if let Some(value) = &endpoint.authorization {
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, value.clone());
    }
    Ok(request)
}

/// The failure when the response body cannot be read.
fn unread(why: &str) -> Failure {
    Failure::unavailable(format!(
        "unexpected error when reading response body. Please retry. Original error: {why}"
    ))
}

/// Reads a response body up to the limit.
async fn read(mut body: Incoming, limit: usize) -> Result<Bytes, Failure> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| unread("unexpected EOF"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if all.len() + data.len() > limit {
            return Err(unread(&format!(
                "the response is larger than {limit} bytes"
            )));
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// A TLS client configuration that trusts the CAs of a caBundle, or the system's if it is empty.
pub fn trusting(ca_bundle: &[u8]) -> Result<rustls::ClientConfig, String> {
    tls::client_config(ca_bundle, None)
}

/// The message of a failed request, as upstream words it.
pub fn describe_error(error: &PoolError) -> String {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(failure) = error.downcast_ref::<ConnectFailure>() {
            return failure.0.clone();
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_incomplete_message() || error.is_closed())
        {
            return "EOF".to_owned();
        }
        source = error.source();
    }
    error.to_string()
}

/// Quotes a string as Go does.
fn quote(text: &str) -> String {
    machinery::text::quote(text)
}
