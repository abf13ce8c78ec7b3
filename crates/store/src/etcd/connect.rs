//! Connections to the members: TCP or TLS, one lazy channel per endpoint.

use std::{io, net::Ipv6Addr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// The connect timeout.
const CONNECT: Duration = Duration::from_secs(3);

/// Certificates and keys, as PEM.
#[derive(Clone)]
pub struct Tls {
    /// The CA to trust.
    pub ca: Vec<u8>,
    /// The client certificate and key, if etcd requires one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, if it is not the endpoint's host.
    pub server_name: Option<String>,
}

/// A member of the cluster.
#[derive(Clone)]
pub(super) struct Member {
    /// As configured.
    pub endpoint: String,
    /// The name or address in the endpoint.
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// No connection was made: nothing can have reached the member.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {endpoint}: {cause}")]
pub(super) struct NotConnected {
    endpoint: String,
    cause: io::Error,
}

/// The members that a configuration names.
pub(super) fn members(endpoints: &[String], tls: Option<&Tls>) -> Result<Vec<Member>, Error> {
    if endpoints.is_empty() {
        return Err(Error::Invalid("no etcd endpoint is given".into()));
    }
    let connector = tls.map(client_config).transpose()?;
    endpoints
        .iter()
        .map(|endpoint| member(endpoint, tls, connector.as_ref()))
        .collect()
}

fn member(
    endpoint: &str,
    tls: Option<&Tls>,
    connector: Option<&TlsConnector>,
) -> Result<Member, Error> {
    let invalid = |why: &str| Error::Invalid(format!("etcd endpoint {endpoint:?}: {why}"));
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    let (host, port) = rest
        .trim_end_matches('/')
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host_of(host)?, port.parse().ok()?)))
        .ok_or_else(|| invalid("must be a host and a port, such as https://10.0.0.1:2379"))?;
    let tls = match (scheme, tls, connector) {
        ("http", _, _) => None,
        ("https", Some(tls), Some(connector)) => {
            let name = tls.server_name.as_ref().unwrap_or(&host).clone();
            let name =
                ServerName::try_from(name).map_err(|_| invalid("the server name is not a name"))?;
            Some((connector.clone(), name))
        }
        ("https", ..) => return Err(invalid("https needs the certificate authority to trust")),
        _ => return Err(invalid("must start with http:// or https://")),
    };
    Ok(Member {
        endpoint: endpoint.to_owned(),
        host,
        port,
        tls,
    })
}

/// A host name, an IPv4 address, or an IPv6 address in brackets.
fn host_of(text: &str) -> Option<String> {
    if let Some(inside) = text.strip_prefix('[') {
        let address = inside.strip_suffix(']')?;
        return address.parse::<Ipv6Addr>().ok().map(|ip| ip.to_string());
    }
    let is_name = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_name.then(|| text.to_owned())
}

fn client_config(tls: &Tls) -> Result<TlsConnector, Error> {
    let invalid = |what: &str| Error::Invalid(format!("etcd TLS: {what}"));
    let certificates = |pem: &[u8], what: &str| -> Result<Vec<CertificateDer<'static>>, Error> {
        let read: Result<Vec<_>, _> = rustls_pemfile::certs(&mut &pem[..]).collect();
        read.ok()
            .filter(|found| !found.is_empty())
            .ok_or_else(|| invalid(what))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca, "no certificate in the CA file")? {
        roots
            .add(certificate)
            .map_err(|error| invalid(&error.to_string()))?;
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&error.to_string()))?
            .with_root_certificates(roots);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(chain, "no certificate in the certificate file")?;
            let key: PrivateKeyDer<'static> = rustls_pemfile::private_key(&mut &key[..])
                .ok()
                .flatten()
                .ok_or_else(|| invalid("no private key in the key file"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| invalid(&error.to_string()))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Member {
    /// A channel that connects at its first use, and reconnects. It runs on the calling runtime.
    pub(super) fn channel(&self) -> Channel {
        let member = self.clone();
        // The scheme does not matter: the connector does TLS itself.
        endpoint().connect_with_connector_lazy(tower::service_fn(move |_| {
            let member = member.clone();
            async move { member.connect().await }
        }))
    }

    async fn connect(&self) -> Result<TokioIo<Box<dyn Stream>>, NotConnected> {
        let connect = async {
            let stream = self.dial().await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match &self.tls {
                None => Box::new(stream),
                Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
            };
            Ok(TokioIo::new(stream))
        };
        let timed = tokio::time::timeout(CONNECT, connect).await;
        timed
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|cause| NotConnected {
                endpoint: self.endpoint.clone(),
                cause,
            })
    }

    /// Resolves the host each time, since its address may change. Uses the first address that
    /// answers.
    async fn dial(&self) -> io::Result<TcpStream> {
        let host = self.host.clone();
        let found = tokio::task::spawn_blocking(move || stdx::resolve::resolve(&host)).await;
        let addresses = found.map_err(io::Error::other)??;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses {
            match TcpStream::connect((address, self.port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn endpoint() -> Endpoint {
    // Not a real address: the connector knows the host.
    Endpoint::from_static("http://etcd")
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
}

/// A TCP or TLS stream.
pub(super) trait Stream:
    tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin
{
}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_names_or_addresses_with_a_port() {
        let parsed = |endpoint: &str| {
            let members = members(&[endpoint.to_owned()], None)?;
            Ok::<_, Error>((members[0].host.clone(), members[0].port))
        };
        let cases = [
            ("http://10.0.0.1:2379", "10.0.0.1"),
            ("http://etcd-1.example.com:2379/", "etcd-1.example.com"),
            ("localhost:2379", "localhost"),
            ("http://[::1]:2379", "::1"),
        ];
        for (endpoint, host) in cases {
            assert_eq!(parsed(endpoint).ok(), Some((host.to_owned(), 2379)));
        }
        let refused = [
            "http://10.0.0.1",
            "http://:2379",
            "http://a b:2379",
            "http://::1:2379",
            "http://[::1:2379",
            "http://host:port",
            "ftp://host:1",
            "https://host:2379",
        ];
        for endpoint in refused {
            assert!(
                matches!(&parsed(endpoint), Err(Error::Invalid(why)) if why.contains(endpoint)),
                "{endpoint}"
            );
        }
    }
}
