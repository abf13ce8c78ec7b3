//! `/healthz`, also on a port of its own without TLS for service managers.

use std::{sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info, warn};

use super::{Body, text};
use crate::core::Core;

/// The node's status is computed every ten seconds; if it was not for this long, the kubelet is
/// stuck.
const STUCK: Duration = Duration::from_secs(120);
const IDLE: Duration = Duration::from_secs(30);

/// The response.
pub(super) fn answer(core: &Core) -> Response<Body> {
    let seen = *core.status_seen.borrow();
    let is_stuck = seen.is_some_and(|at| core.now() - STUCK > at);
    for (check, is_healthy) in [("ping", true), ("log", true), ("syncloop", !is_stuck)] {
        core.metrics.health_checked(check, is_healthy);
    }
    if is_stuck {
        let message = "[-]syncloop failed: the node's status was not looked at for two minutes\n";
        return text(StatusCode::INTERNAL_SERVER_ERROR, message);
    }
    text(StatusCode::OK, "ok")
}

/// Serves `/healthz` without TLS. Never returns; retries if the port is in use.
pub async fn serve(core: Arc<Core>) {
    let Some(address) = core.config.healthz else {
        return;
    };
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => warn!(%address, %error, "cannot serve healthz"),
        }
        core.config.clock.sleep(Duration::from_secs(5)).await;
    };
    info!(%address, "serving healthz");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let owner = core.clone();
                core.context.spawn("healthz", connection(owner, stream));
            }
            Err(error) => {
                debug!(%error, "cannot accept");
                core.config.clock.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(core: Arc<Core>, stream: TcpStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = match request.uri().path() {
            "/healthz" | "/healthz/" | "/healthz/ping" | "/healthz/syncloop" => answer(&core),
            _ => text(StatusCode::NOT_FOUND, "404 page not found"),
        };
        async move { Ok::<_, std::convert::Infallible>(response) }
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
