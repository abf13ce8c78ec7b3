//! TLS connections to a webhook or an aggregated API server: to the host of a URL, or to a backend
//! of a Service, which is resolved for every new connection.

use std::{
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::{ClientConfig, pki_types::ServerName};
use stdx::os_error;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{ServiceReference, Services, tls};

const DIAL: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Why a connection failed, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectFailure(pub(crate) String);

/// Opens connections to one server.
#[derive(Clone)]
pub struct Connector {
    tls: TlsConnector,
    server_name: ServerName<'static>,
    service: Option<(Arc<dyn Services>, ServiceReference)>,
}

impl Connector {
    /// `service` overrides the host and port of the URL.
    pub fn new(
        tls: ClientConfig,
        server_name: &str,
        service: Option<(Arc<dyn Services>, ServiceReference)>,
    ) -> Result<Self, String> {
        let name =
            ServerName::try_from(server_name.to_owned()).map_err(|error| error.to_string())?;
        Ok(Self {
            tls: TlsConnector::from(Arc::new(tls)),
            server_name: name,
            service,
        })
    }

    /// A dedicated connection, for requests that upgrade it.
    pub async fn dial(&self, uri: &Uri) -> Result<TlsStream<TcpStream>, ConnectFailure> {
        let (host, port) = match &self.service {
            Some((services, to)) => services
                .resolve(&to.namespace, &to.name, to.port)
                .await
                .map_err(ConnectFailure)?,
            None => {
                let host = uri.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']');
                (host.to_owned(), uri.port_u16().unwrap_or(443))
            }
        };
        let address = address_of(&host).await.map_err(ConnectFailure)?;
        let place = std::net::SocketAddr::new(address, port);
        let stream = match tokio::time::timeout(DIAL, TcpStream::connect(place)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let why = os_error::describe(&error);
                return Err(ConnectFailure(format!("dial tcp {place}: connect: {why}")));
            }
            Err(_) => return Err(ConnectFailure(format!("dial tcp {place}: i/o timeout"))),
        };
        // If the peer has disconnected, the first write fails.
        let _ = stream.set_nodelay(true);
        let handshake = self.tls.connect(self.server_name.clone(), stream);
        match tokio::time::timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(ConnectFailure(tls::describe_error(
                &error,
                &self.server_name,
            ))),
            Err(_) => Err(ConnectFailure("net/http: TLS handshake timeout".to_owned())),
        }
    }
}

/// An address, or a name resolved by /etc/hosts or DNS.
async fn address_of(host: &str) -> Result<IpAddr, String> {
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    let name = host.to_owned();
    let found = tokio::task::spawn_blocking(move || stdx::resolve::resolve(&name)).await;
    let found = found.ok().and_then(Result::ok).unwrap_or_default();
    match found.first() {
        Some(address) => Ok(*address),
        None if host == "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        None => Err(format!("dial tcp: lookup {host}: no such host")),
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectFailure;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectFailure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectFailure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let stream = connector.dial(&uri).await?;
            Ok(Stream(TokioIo::new(stream)))
        })
    }
}

/// A TLS stream that reports the negotiated protocol.
pub struct Stream(TokioIo<TlsStream<TcpStream>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self.0.inner().get_ref().1.alpn_protocol() {
            Some(b"h2") => Connected::new().negotiated_h2(),
            _ => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
