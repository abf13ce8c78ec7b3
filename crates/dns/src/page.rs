//! The HTTP server for metrics, on CoreDNS' port.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use network::ClientShares;
use stdx::exposition::TEXT;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tracing::{debug, warn};

/// The idle timeout of a connection.
const IDLE: Duration = Duration::from_secs(30);
/// The delay before a used port is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// The maximum number of connections, and of those per client address.
const AT_ONCE: usize = 64;
const PER_CLIENT: usize = 8;

/// Makes the metrics page.
pub(crate) type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves `/metrics` while polled.
pub(crate) async fn serve(address: SocketAddr, page: Page, context: lifecycle::Context) {
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => warn!(%address, %error, "cannot serve metrics"),
        }
        tokio::time::sleep(AGAIN).await;
    };
    let (limit, clients) = (
        Arc::new(Semaphore::new(AT_ONCE)),
        ClientShares::new(PER_CLIENT),
    );
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, from)) => {
                let Some(share) = clients.enter(from.ip()) else {
                    debug!(%from, "too many connections of one client");
                    continue;
                };
                let page = page.clone();
                context.spawn("metrics", async move {
                    let _held = (permit, share);
                    connection(page, stream).await;
                });
            }
            Err(error) => {
                debug!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(page: Page, stream: TcpStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = match request.uri().path() {
            "/metrics" => respond(StatusCode::OK, page()),
            _ => respond(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        };
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

fn respond(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    let plain = header::HeaderValue::from_static(TEXT);
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
