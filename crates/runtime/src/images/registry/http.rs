//! HTTP requests to registries: one connection per request, redirects followed, authentication by
//! challenge.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::auth::{Challenge, Credentials, Token, token_query};
use crate::error::{Error, Result};

const CONNECT: Duration = Duration::from_secs(15);
/// The timeout of the response headers, and of the whole response if it is a document.
const ANSWER: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 5;
const MAX_TOKEN: usize = 1 << 20;

/// The system's CA bundles.
const SYSTEM_CA: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A client of one registry.
pub(super) struct Client {
    tls: TlsConnector,
    credentials: Credentials,
    /// The authorization header that worked last.
    authorization: Mutex<Option<String>>,
}

impl Client {
    pub(super) fn new(credentials: &Credentials, ca: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let system = SYSTEM_CA
            .iter()
            .find_map(|path| std::fs::read(path).ok())
            .unwrap_or_default();
        for pem in [system.as_slice(), ca.as_bytes()] {
            for certificate in rustls_pemfile::certs(&mut &*pem).flatten() {
                // An invalid certificate is skipped.
                let _ = roots.add(certificate);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Registry(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: Arc::new(config).into(),
            authorization: Mutex::new(credentials.eager()),
            credentials: credentials.clone(),
        })
    }

    /// Gets a URL, authenticating if challenged. Responses other than 2xx are errors.
    pub(super) async fn get(
        &self,
        url: &str,
        headers: &[(&str, String)],
    ) -> Result<Response<Incoming>> {
        let known = self.authorization.lock().clone();
        let first = self.follow(url, headers, known, None).await?;
        if first.status() != StatusCode::UNAUTHORIZED {
            return check(first, url);
        }
        let wanted = first.headers().get_all(header::WWW_AUTHENTICATE).iter();
        let challenge = wanted
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .next();
        let header = match challenge {
            Some(Challenge::Basic) => self.credentials.basic(),
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => {
                if url.starts_with("https:") && !realm.starts_with("https:") {
                    let message =
                        format!("{url}: refusing to get a token without TLS from {realm}");
                    return Err(Error::Registry(message));
                }
                self.token(&realm, &service, &scope).await?
            }
            None => None,
        };
        let Some(header) = header else {
            return check(first, url);
        };
        *self.authorization.lock() = Some(header.clone());
        check(self.follow(url, headers, Some(header), None).await?, url)
    }

    async fn token(&self, realm: &str, service: &str, scope: &str) -> Result<Option<String>> {
        let query = token_query(service, scope);
        let asked = match self.credentials.refresh() {
            // A refresh token is exchanged by POST, and never sent in a URL.
            Some(refresh) => {
                let form = format!("{query}&{refresh}");
                let kind = "application/x-www-form-urlencoded".to_owned();
                self.follow(realm, &[("content-type", kind)], None, Some(form))
                    .await
            }
            None => {
                let mark = if realm.contains('?') { '&' } else { '?' };
                let url = format!("{realm}{mark}{query}");
                self.follow(&url, &[], self.credentials.basic(), None).await
            }
        };
        let body = whole(check(asked?, realm)?, MAX_TOKEN, realm).await?;
        let token: Token = serde_json::from_slice(&body)
            .map_err(|error| Error::Registry(format!("{realm}: {error}")))?;
        Ok(token.header())
    }

    async fn follow(
        &self,
        url: &str,
        headers: &[(&str, String)],
        authorization: Option<String>,
        form: Option<String>,
    ) -> Result<Response<Incoming>> {
        let mut uri: Uri = url
            .parse()
            .map_err(|_| Error::Registry(format!("{url:?} is not a URL")))?;
        let origin = uri.authority().cloned();
        for _ in 0..=MAX_REDIRECTS {
            // Credentials must not be sent to another host.
            let own = uri.authority() == origin.as_ref();
            let answer = self
                .send(
                    &uri,
                    headers,
                    authorization.as_ref().filter(|_| own),
                    form.as_ref().filter(|_| own),
                )
                .await?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let target = answer
                .headers()
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok());
            let target = target
                .ok_or_else(|| Error::Registry(format!("{uri}: redirect without a location")))?;
            uri = redirect(&uri, target)?;
        }
        Err(Error::Registry(format!("{url}: too many redirects")))
    }

    async fn send(
        &self,
        uri: &Uri,
        headers: &[(&str, String)],
        authorization: Option<&String>,
        form: Option<&String>,
    ) -> Result<Response<Incoming>> {
        let wrong = |error: &dyn std::fmt::Display| Error::Registry(format!("{uri}: {error}"));
        let wire = timeout(CONNECT, self.connect(uri)).await;
        let wire = wire
            .map_err(|_| wrong(&"no connection in time"))?
            .map_err(|error| wrong(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(wire))
            .await
            .map_err(|error| wrong(&error))?;
        // Ends with the response body, which the caller holds.
        tokio::spawn(connection);
        let host = uri.authority().map(ToString::to_string).unwrap_or_default();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let method = if form.is_some() { "POST" } else { "GET" };
        let agent = concat!("mainstay/", env!("CARGO_PKG_VERSION"));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::USER_AGENT, agent);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(value) = authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request
            .body(Full::<Bytes>::from(form.cloned().unwrap_or_default()))
            .map_err(|error| wrong(&error))?;
        let answer = timeout(ANSWER, sender.send_request(request)).await;
        answer
            .map_err(|_| wrong(&"no answer in time"))?
            .map_err(|error| wrong(&error))
    }

    async fn connect(&self, uri: &Uri) -> io::Result<Box<dyn Wire>> {
        let host = uri
            .host()
            .ok_or_else(|| io::Error::other("no host"))?
            .to_owned();
        let tls = uri.scheme_str() != Some("http");
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let name = host.trim_matches(['[', ']']).to_owned();
        let addresses = resolve(name.clone()).await?;
        let mut trouble = io::Error::other("no address");
        for address in addresses {
            match TcpStream::connect((address, port)).await {
                Ok(stream) if tls => {
                    let name = ServerName::try_from(name).map_err(io::Error::other)?;
                    return Ok(Box::new(self.tls.connect(name, stream).await?));
                }
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }
}

/// A whole body of limited size: a server that sends it slowly must not hold up the pulls that wait for this one.
pub(super) async fn whole(answer: Response<Incoming>, limit: usize, url: &str) -> Result<Bytes> {
    let wrong = |error: &dyn std::fmt::Display| Error::Registry(format!("{url}: {error}"));
    let body = Limited::new(answer.into_body(), limit).collect();
    let body = timeout(ANSWER, body)
        .await
        .map_err(|_| wrong(&"no complete answer in time"))?;
    Ok(body.map_err(|error| wrong(&error))?.to_bytes())
}

/// The addresses of a host. A lookup takes a thread until name servers have answered, or not, however early its pull gave
/// up: only some run at a time.
async fn resolve(host: String) -> io::Result<Vec<IpAddr>> {
    static LOOKUPS: Semaphore = Semaphore::const_new(128);
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let slot = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let lookup = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        stdx::resolve::resolve(&host)
    });
    lookup.await.map_err(io::Error::other)?
}

/// Never from HTTPS to HTTP.
fn redirect(from: &Uri, target: &str) -> Result<Uri> {
    let wrong = || Error::Registry(format!("{from}: redirect to {target:?}"));
    let absolute = if target.starts_with('/') {
        let authority = from.authority().ok_or_else(wrong)?;
        format!(
            "{}://{authority}{target}",
            from.scheme_str().unwrap_or("https")
        )
    } else {
        target.to_owned()
    };
    let uri: Uri = absolute.parse().map_err(|_| wrong())?;
    let downgrade = from.scheme_str() == Some("https") && uri.scheme_str() != Some("https");
    if downgrade || uri.host().is_none() {
        Err(wrong())
    } else {
        Ok(uri)
    }
}

fn check(answer: Response<Incoming>, url: &str) -> Result<Response<Incoming>> {
    match answer.status() {
        status if status.is_success() => Ok(answer),
        StatusCode::NOT_FOUND => Err(Error::NoImage(url.to_owned())),
        status => Err(Error::Registry(format!("{url}: {status}"))),
    }
}
