//! The proxy's HTTP servers: health, metrics, and a port per health check.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::Context;
use network::{ClientShares, IpNet};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    health::{Answer, Health},
    ruleset::ServiceKey,
};

const IDLE: Duration = Duration::from_secs(30);
/// The maximum number of connections per server, and of those per client address: pods and machines outside reach
/// these ports.
const AT_ONCE: usize = 256;
const PER_CLIENT: usize = 16;
const AGAIN: Duration = Duration::from_secs(5);

/// What a server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    /// `/healthz` and `/livez`.
    Health,
    /// `/metrics`, `/healthz` and `/proxyMode`.
    Metrics,
    /// The health check of a Service, at every path.
    Check(ServiceKey),
}

/// Where a server listens.
pub(crate) struct Listen {
    /// The first of them that can be bound.
    pub addresses: Vec<SocketAddr>,
    /// Connections to other addresses of the node are closed; none if it is empty.
    pub only_at: Arc<[IpNet]>,
}

impl Listen {
    /// At one address.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self {
            addresses: vec![address],
            only_at: Arc::default(),
        }
    }

    fn admits(&self, stream: &TcpStream) -> bool {
        let mut ranges = self.only_at.iter();
        let address = stream.local_addr().map(|at| at.ip().to_canonical());
        self.only_at.is_empty()
            || address.is_ok_and(|address| ranges.any(|range| range.contains(&address)))
    }
}

/// Serves at an address until the token is cancelled.
pub(crate) async fn serve(
    health: Arc<Health>,
    listen: Listen,
    page: Page,
    context: Context,
    until: CancellationToken,
) {
    let addresses = &listen.addresses;
    let listener = loop {
        match TcpListener::bind(addresses.as_slice()).await {
            Ok(listener) => break listener,
            Err(error) => warn!(?addresses, %error, "cannot serve health"),
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = until.cancelled() => return,
        }
    };
    let (limit, clients) = (
        Arc::new(Semaphore::new(AT_ONCE)),
        ClientShares::new(PER_CLIENT),
    );
    loop {
        let next = async {
            let permit = limit.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = until.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) if !listen.admits(&stream) => {}
            Ok((stream, from)) => {
                let Some(share) = clients.enter(from.ip()) else {
                    debug!(%from, "too many connections of one client");
                    continue;
                };
                let connection = connection(health.clone(), page.clone(), stream);
                context.spawn("health", async move {
                    let _held = (permit, share);
                    connection.await;
                });
            }
            Err(error) => {
                debug!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Runs one server per health check port, at the node's addresses in these ranges, as node ports; at all if there are none.
pub(crate) async fn serve_checks(health: Arc<Health>, only_at: Arc<[IpNet]>, context: Context) {
    let mut wanted = health.ports();
    let mut running: BTreeMap<u16, (ServiceKey, CancellationToken)> = BTreeMap::new();
    loop {
        let ports = wanted.borrow_and_update().clone();
        running.retain(|port, (key, until)| {
            let stays = ports.get(port) == Some(key);
            if !stays {
                until.cancel();
            }
            stays
        });
        for (port, key) in ports {
            running.entry(port).or_insert_with(|| {
                let until = CancellationToken::new();
                let page = Page::Check(key.clone());
                let listen = Listen {
                    addresses: everywhere(port),
                    only_at: only_at.clone(),
                };
                let server = serve(health.clone(), listen, page, context.clone(), until.clone());
                context.spawn("health check", server);
                (key, until)
            });
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// A dual-stack socket, or IPv4 if the machine has no IPv6.
fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
    ]
}

async fn connection(health: Arc<Health>, page: Page, stream: TcpStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(&health, &page, request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "connection ended");
    }
}

fn respond(health: &Health, page: &Page, path: &str) -> Response<Full<Bytes>> {
    match (page, path) {
        (Page::Check(key), _) => json(health.check(key)),
        (Page::Health, path) => json(health.answer(path)),
        (Page::Metrics, "/metrics") => text(StatusCode::OK, health.page()),
        (Page::Metrics, "/proxyMode") => text(StatusCode::OK, "nftables".to_owned()),
        (Page::Metrics, "/healthz") => text(StatusCode::OK, "ok".to_owned()),
        (Page::Metrics, _) => json(None),
    }
}

fn json(answer: Option<Answer>) -> Response<Full<Bytes>> {
    let Some(answer) = answer else {
        return text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
    };
    let mut response = text(answer.code, answer.body.to_string());
    let headers = response.headers_mut();
    let json = header::HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    let nosniff = header::HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    if let Some(weight) = answer.weight {
        let name = header::HeaderName::from_static("x-load-balancing-endpoint-weight");
        headers.insert(name, weight.into());
    }
    response
}

fn text(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
