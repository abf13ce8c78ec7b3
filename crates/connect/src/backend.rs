//! Connections to kubelets and to proxied backends.

use std::{
    future::Future,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use machinery::Status;
use request::{Answer, Body, BodyError, NextFrame, RequestBody};
use rustls::pki_types::{CertificateDer, ServerName};
use stdx::os_error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Backends, Location, Trust};

const DIAL: Duration = Duration::from_secs(10);

/// A connection to a backend.
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Backends {
    /// Connects; errors are worded as upstream's.
    pub(super) async fn dial(&self, location: &Location) -> Result<Transport, String> {
        let place = super::authority(location);
        let address: IpAddr = location
            .host
            .parse()
            .map_err(|_| format!("dial tcp: lookup {}: no such host", location.host))?;
        let dial = TcpStream::connect((address, location.port));
        let stream = match tokio::time::timeout(DIAL, dial).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                return Err(format!(
                    "dial tcp {place}: connect: {}",
                    os_error::describe(&error)
                ));
            }
            Err(_) => return Err(format!("dial tcp {place}: i/o timeout")),
        };
        // If the peer has disconnected, the first write fails.
        let _ = stream.set_nodelay(true);
        let config = match &location.tls {
            None => return Ok(Transport::Plain(stream)),
            Some(Trust::Kubelet(_)) => self
                .kubelet_tls
                .clone()
                .ok_or("no client certificate for kubelets")?,
            Some(Trust::Anybody) => {
                pki::unverified_client_config().map_err(|error| error.to_string())?
            }
        };
        let handshake =
            TlsConnector::from(config).connect(ServerName::IpAddress(address.into()), stream);
        let stream = match tokio::time::timeout(DIAL, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("net/http: TLS handshake timeout".to_owned()),
        };
        if let Some(Trust::Kubelet(node)) = &location.tls
            && !is_of_node(stream.get_ref().1.peer_certificates(), node)
        {
            return Err(format!(
                "the certificate of {place} is not that of node {node}"
            ));
        }
        Ok(Transport::Tls(Box::new(stream)))
    }
}

/// Whether a verified certificate chain is that of the node's kubelet, by the names that the signer
/// requires.
fn is_of_node(chain: Option<&[CertificateDer<'_>]>, node: &str) -> bool {
    let first = chain.and_then(|chain| chain.first());
    let parsed = first.and_then(|der| x509_parser::parse_x509_certificate(der).ok());
    parsed.is_some_and(|(_, certificate)| {
        let name = pki::common_name(certificate.subject());
        let name = name.and_then(|name| name.as_str().ok());
        name.and_then(|name| name.strip_prefix("system:node:")) == Some(node)
    })
}

/// Sends one request; polling the response's body drives the connection.
pub(super) async fn send(request: http::Request<RequestBody>, transport: Transport) -> Answer {
    let failed =
        |error: hyper::Error| Status::service_unavailable(format!("{}: {error}", super::UNREACHED));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(transport))
        .await
        .map_err(failed)?;
    let mut connection: Driver = Box::pin(async move {
        // If the connection ends without a response, the request fails.
        let _ = connection.await;
    });
    let mut ended = false;
    let exchange = sender.send_request(request);
    tokio::pin!(exchange);
    let response = std::future::poll_fn(|context| {
        if !ended {
            ended = connection.as_mut().poll(context).is_ready();
        }
        exchange.as_mut().poll(context)
    })
    .await
    .map_err(failed)?;
    let (mut parts, body) = response.into_parts();
    for name in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
        parts.headers.remove(name);
    }
    let driven = Driven {
        connection: (!ended).then_some(connection),
        body,
    };
    let stream = http_body_util::BodyStream::new(driven);
    let stream = futures::StreamExt::filter_map(stream, |frame| async move {
        match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(error)),
        }
    });
    Ok(http::Response::from_parts(parts, Body::stream(stream)))
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A response body with the connection that delivers it.
struct Driven {
    connection: Option<Driver>,
    body: Incoming,
}

impl http_body::Body for Driven {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
        Pin::new(&mut self.body)
            .poll_frame(context)
            .map_err(Into::into)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, buffer),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
