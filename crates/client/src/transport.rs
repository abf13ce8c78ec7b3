//! HTTPS to an API server: rustls over TCP, HTTP/2 if the server offers it, one bearer token or
//! client certificate per client. Host names are resolved by our own code: the binary is static,
//! and a static glibc has no usable resolver.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderMap, HeaderValue, Request, Uri,
    header::{AUTHORIZATION, USER_AGENT},
    uri::Authority,
};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::Body;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, sync::watch, task::JoinSet};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::{BoxError, ServiceExt};

use crate::{Error, metrics::Counted, proxy::Proxy, servers::Servers, unvectored::Unvectored};

/// The default user agent.
const AGENT: &str = concat!("mainstay/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The keep-alive timeout, after which a vanished peer is noticed, also by watches.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The connect timeout if there are other servers.
const SOON: Duration = Duration::from_secs(2);
/// The keep-alive interval and timeout if there are other servers: a silent one is left after less
/// than two seconds.
const SEVERAL: (Duration, Duration) = (Duration::from_millis(700), Duration::from_secs(1));
/// A server that has not answered after this time is not waited for alone: the next one is tried in
/// parallel.
const STAGGER: Duration = Duration::from_millis(300);

/// The options of a client.
#[derive(Clone, Default)]
pub struct Options {
    /// Sent as `Authorization: Bearer …`.
    pub token: Option<String>,
    /// The expected name in the server's certificate, if it is not the address.
    pub server_name: Option<String>,
    /// The default namespace.
    pub namespace: Option<String>,
    /// Changes when the client certificate was renewed: later requests use new connections, with
    /// the new certificate. Requests in flight on older ones continue.
    pub renewals: Option<watch::Receiver<u64>>,
    /// Sent with every request, such as impersonation headers.
    pub headers: HeaderMap,
    /// Other servers of the same cluster, tried when one does not answer.
    pub servers: Option<Servers>,
    /// `http://[USER:PASSWORD@]HOST:PORT`, `https://…` or `socks5://…` of a proxy.
    pub proxy: Option<String>,
    /// Whether to accept `http://` servers: for command line tools only, never for a component.
    pub allow_plaintext: bool,
}

/// A client of `server` (`https://ADDRESS[:PORT][/PREFIX]`). Must be called inside a Tokio runtime.
pub fn https(server: &str, tls: ClientConfig, options: Options) -> Result<kube::Client, Error> {
    let mut base = Base::parse(server, options.token.as_deref(), options.allow_plaintext)?;
    base.headers = options.headers;
    let mut connector = Connect::new(tls, options.server_name)?;
    connector.proxy = options.proxy.as_deref().map(Proxy::parse).transpose()?;
    connector.servers = options.servers;
    let pool = Pool {
        http: open_pool(connector.clone()),
        has_others: connector.has_others(),
        connector,
        renewals: options.renewals,
    };
    let host = base.authority.to_string();
    let service = pool.map_request(move |request| base.complete(request));
    let service = Counted::new(service, &host);
    Ok(kube::Client::new(
        service,
        options.namespace.unwrap_or_else(|| "default".to_owned()),
    ))
}

type Http = Client<Connect, Body>;

fn open_pool(connector: Connect) -> Http {
    // With other servers, a vanished one is given up soon.
    let (interval, patience) = match connector.has_others() {
        true => SEVERAL,
        false => (KEEP_ALIVE, KEEP_ALIVE),
    };
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(interval)
        .http2_keep_alive_timeout(patience)
        .build(connector)
}

/// The connections to one server, opened again when the client certificate has changed, or when the
/// cluster gets its second server.
#[derive(Clone)]
struct Pool {
    http: Http,
    /// Whether the pool was opened for several servers.
    has_others: bool,
    connector: Connect,
    renewals: Option<watch::Receiver<u64>>,
}

impl tower::Service<Request<Body>> for Pool {
    type Response = <Http as tower::Service<Request<Body>>>::Response;
    type Error = <Http as tower::Service<Request<Body>>>::Error;
    type Future = <Http as tower::Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut is_stale = self.has_others != self.connector.has_others();
        if let Some(renewals) = &mut self.renewals
            && renewals.has_changed().unwrap_or_default()
        {
            renewals.mark_unchanged();
            is_stale = true;
        }
        if is_stale {
            self.http = open_pool(self.connector.clone());
            self.has_others = self.connector.has_others();
        }
        self.http.call(request)
    }
}

/// What is added to every request.
#[derive(Clone)]
struct Base {
    scheme: &'static str,
    authority: Authority,
    headers: HeaderMap,
    prefix: String,
    authorization: Option<HeaderValue>,
}

impl Base {
    fn parse(server: &str, token: Option<&str>, allow_plaintext: bool) -> Result<Self, Error> {
        let bad = |why: &str| Error::Server(server.to_owned(), why.to_owned());
        let uri: Uri = server.parse().map_err(|error| bad(&format!("{error}")))?;
        let scheme = match uri.scheme_str() {
            Some("https") => "https",
            Some("http") if allow_plaintext => "http",
            _ => return Err(bad("must begin with https://")),
        };
        let authority = uri
            .authority()
            .cloned()
            .ok_or_else(|| bad("names no host"))?;
        let authorization = match token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
                    .map_err(|_| bad("the token has characters that a header cannot carry"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self {
            scheme,
            authority,
            headers: HeaderMap::new(),
            prefix,
            authorization,
        })
    }

    fn complete(&self, mut request: Request<Body>) -> Request<Body> {
        let path = request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str());
        let uri = Uri::builder()
            .scheme(self.scheme)
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.prefix))
            .build();
        if let Ok(uri) = uri {
            *request.uri_mut() = uri;
        }
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        let agent = || HeaderValue::from_static(AGENT);
        request
            .headers_mut()
            .entry(USER_AGENT)
            .or_insert_with(agent);
        request
    }
}

/// Opens TLS connections.
#[derive(Clone)]
struct Connect {
    tls: TlsConnector,
    server_name: Option<ServerName<'static>>,
    proxy: Option<Proxy>,
    servers: Option<Servers>,
}

impl Connect {
    fn new(mut tls: ClientConfig, server_name: Option<String>) -> Result<Self, Error> {
        if tls.alpn_protocols.is_empty() {
            tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        let server_name = server_name.map(ServerName::try_from).transpose();
        let server_name = server_name.map_err(|error| Error::Tls(error.to_string()))?;
        Ok(Self {
            tls: TlsConnector::from(Arc::new(tls)),
            server_name,
            proxy: None,
            servers: None,
        })
    }

    /// Whether there are other servers.
    fn has_others(&self) -> bool {
        self.servers.as_ref().is_some_and(Servers::are_several)
    }

    /// A connection to the server of the address, or to another one of the cluster.
    async fn open(self, uri: Uri) -> Result<Stream, BoxError> {
        let Some(servers) = self.servers.clone() else {
            return self.open_one(uri, CONNECT_TIMEOUT).await;
        };
        let candidates = servers.candidates(&uri);
        let patience = match candidates.len() {
            1 => CONNECT_TIMEOUT,
            _ => SOON,
        };
        let (stream, winner) = first_of(candidates, move |candidate| {
            self.clone().open_one(candidate, patience)
        })
        .await?;
        servers.prefer(&winner);
        Ok(stream)
    }

    async fn open_one(self, uri: Uri, patience: Duration) -> Result<Stream, BoxError> {
        let host = uri.host().ok_or("the address names no host")?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let is_plaintext = uri.scheme_str() == Some("http");
        let port = uri
            .port_u16()
            .unwrap_or(if is_plaintext { 80 } else { 443 });
        let (near, near_port) = match &self.proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (host.as_str(), port),
        };
        let address = SocketAddr::new(resolve(near).await?, near_port);
        let tcp = tokio::time::timeout(patience, TcpStream::connect(address))
            .await
            .map_err(|_| format!("no connection to {address} within {patience:?}"))??;
        tcp.set_nodelay(true)?;
        let stream = if let Some(proxy) = &self.proxy {
            let tunnel = proxy.tunnel(tcp, self.tls.config(), &host, port);
            tokio::time::timeout(patience, tunnel)
                .await
                .map_err(|_| format!("no tunnel through {address} within {patience:?}"))??
        } else {
            Unvectored::Tcp(tcp)
        };
        if is_plaintext {
            return Ok(Stream::Plain(TokioIo::new(stream)));
        }
        let name = match self.server_name {
            Some(name) => name,
            None => ServerName::try_from(host)?,
        };
        let tls = tokio::time::timeout(patience, self.tls.connect(name, stream))
            .await
            .map_err(|_| format!("no TLS handshake with {address} within {patience:?}"))??;
        Ok(Stream::Tls(Box::new(TokioIo::new(tls))))
    }
}

/// The first candidate for which `open` succeeds. They are tried in order: the next one at once if
/// one fails, and in parallel if one is slow.
async fn first_of<T, F>(candidates: Vec<Uri>, open: impl Fn(Uri) -> F) -> Result<(T, Uri), BoxError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, BoxError>> + Send + 'static,
{
    let (mut waiting, mut attempts) = (candidates.into_iter(), JoinSet::new());
    let mut last = BoxError::from("no server is known");
    loop {
        if let Some(candidate) = waiting.next() {
            let attempt = open(candidate.clone());
            attempts.spawn(async move { (attempt.await, candidate) });
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok((Ok(opened), candidate))) => return Ok((opened, candidate)),
                Some(Ok((Err(error), _))) => last = error,
                Some(Err(error)) => last = error.into(),
                None => return Err(last),
            },
            () = tokio::time::sleep(STAGGER), if waiting.len() > 0 => {}
        }
    }
}

impl tower::Service<Uri> for Connect {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().open(uri))
    }
}

/// Resolves a host: an address, /etc/hosts or DNS.
async fn resolve(host: &str) -> Result<IpAddr, BoxError> {
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    let name = host.to_owned();
    let found = tokio::task::spawn_blocking(move || stdx::resolve::resolve(&name)).await?;
    let found = found.map_err(|error| format!("{host:?} has no address: {error}"))?;
    match found.first() {
        Some(address) => Ok(*address),
        None if host == "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        None => Err(format!("{host:?} has no address").into()),
    }
}

/// A connection that reports the negotiated protocol to hyper.
enum Stream {
    Tls(Box<TokioIo<TlsStream<Unvectored>>>),
    Plain(TokioIo<Unvectored>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Tls(tls) if tls.inner().get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            _ => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_get_the_servers_address_its_path_prefix_and_the_token() {
        let base = Base::parse("https://[::1]:6443/clusters/a/", Some("secret\n"), false).unwrap();
        let request = Request::get("/api/v1/pods?limit=1")
            .body(Body::empty())
            .unwrap();
        let request = base.complete(request);
        assert_eq!(
            request.uri(),
            "https://[::1]:6443/clusters/a/api/v1/pods?limit=1"
        );
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer secret");
    }

    #[tokio::test]
    async fn a_server_that_fails_or_is_silent_is_not_waited_for() {
        let uris = |names: &[&str]| -> Vec<Uri> {
            let uri = |name: &&str| format!("https://{name}:1").parse().unwrap();
            names.iter().map(uri).collect()
        };
        let open = |uri: Uri| async move {
            match uri.host() {
                Some("silent") => std::future::pending().await,
                Some("gone") => return Err("refused".into()),
                Some("slow") => tokio::time::sleep(2 * STAGGER).await,
                _ => {}
            }
            Ok(())
        };
        let winner = async |names: &[&str]| {
            let first = first_of(uris(names), open).await;
            first.map(|(_, uri)| uri.host().unwrap_or_default().to_owned())
        };
        assert_eq!(winner(&["a", "b"]).await.unwrap(), "a");
        assert_eq!(winner(&["gone", "silent", "b"]).await.unwrap(), "b");
        // A slow first candidate may still win.
        assert_eq!(winner(&["slow", "silent"]).await.unwrap(), "slow");
        assert_eq!(winner(&["gone"]).await.unwrap_err().to_string(), "refused");
        assert!(winner(&[]).await.is_err());
    }

    #[test]
    fn only_https_addresses_are_accepted_unless_plaintext_is_allowed() {
        assert!(Base::parse("http://127.0.0.1:8080", None, true).is_ok());
        assert!(Base::parse("http://127.0.0.1:8080", None, false).is_err());
        assert!(Base::parse("127.0.0.1", None, true).is_err());
    }
}
