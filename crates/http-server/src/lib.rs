//! The HTTPS side of the API server: TLS handshakes, HTTP/1.1 and HTTP/2, and limits on what slow,
//! silent or unauthenticated clients may cost. It knows nothing of what requests are about: a
//! [`Handler`] answers them.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
mod receiving;
mod sending;
mod slices;
mod stopped;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response};
use prometheus_client::metrics::counter::Counter;
use request::{Body, RequestBody};
use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    receiving::Sender,
    sending::{Budget, Charge},
    stopped::Stopped,
};

/// Answers the requests of all connections.
pub trait Handler: Send + Sync + 'static {
    /// What the handler remembers of a connection.
    type Connection: Send + Sync + 'static;

    /// Called after each TLS handshake. The handler reports to `sender` when the client is authenticated.
    fn connected(
        &self,
        remote: SocketAddr,
        certificates: Vec<CertificateDer<'static>>,
        sender: Arc<Sender>,
    ) -> Self::Connection;

    /// Answers one request; its body is `None` if it is empty.
    fn respond(
        self: Arc<Self>,
        request: Request<Option<RequestBody>>,
        connection: Arc<Self::Connection>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// What the connections of a server share.
pub struct HttpServer {
    tls: TlsAcceptor,
    /// How long a client may take to send the head of its next request.
    idle: Duration,
    /// Bounds the response bytes that clients have not read yet.
    pub budget: Arc<Budget>,
    /// Bounds the bytes buffered from unauthenticated clients.
    read_ahead: receiving::ReadAhead,
    /// Tasks of connections that may outlive them; they end when the server stops.
    pub streams: TaskTracker,
    /// Cancelled when the server stops: long-running requests end.
    pub stopping: CancellationToken,
    /// TLS handshakes that failed.
    pub handshake_errors: Counter,
}

impl HttpServer {
    /// `unsent` and `stall` bound what clients that do not read may cost: bytes of responses over
    /// all connections, and how long one may read nothing.
    pub fn new(
        tls: Arc<rustls::ServerConfig>,
        idle: Duration,
        unsent: usize,
        stall: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            tls: tls.into(),
            idle,
            budget: Budget::new(unsent, stall),
            read_ahead: receiving::ReadAhead::default(),
            streams: TaskTracker::default(),
            stopping: CancellationToken::default(),
            handshake_errors: Counter::default(),
        })
    }
}
