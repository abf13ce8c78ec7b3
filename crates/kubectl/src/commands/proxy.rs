//! `kubectl proxy`: the API server on a local port, with the user's credentials.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use client::kube::{self, client::Body};
use http::{HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::copy_bidirectional;

use crate::{kubeconfig::connection::Connection, session::Session};

const DEFAULT_PORT: i64 = 8001;

/// Flags of `proxy`.
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// The port on which to run the proxy; 0 picks a random port
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    port: i64,
    /// The IP address on which to serve
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// Unix socket on which to run the proxy
    #[arg(short, long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Prefix to serve the proxied API under
    #[arg(long, default_value = "/")]
    api_prefix: String,
    /// Also serve static files from the given directory under the specified prefix
    #[arg(short, long, value_name = "DIR")]
    www: Option<PathBuf>,
    /// Prefix to serve static files under
    #[arg(short = 'P', long, default_value = "/static/")]
    www_prefix: String,
    /// Regular expression for hosts that the proxy should accept
    #[arg(long, default_value = r"^localhost$,^127\.0\.0\.1$,^\[::1\]$")]
    accept_hosts: String,
    /// Regular expression for paths that the proxy should accept
    #[arg(long, default_value = "^.*")]
    accept_paths: String,
    /// Regular expression for paths that the proxy should reject
    #[arg(long, default_value = "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach")]
    reject_paths: String,
    /// Regular expression for HTTP methods that the proxy should reject
    #[arg(long, default_value = "^$")]
    reject_methods: String,
    /// Send keepalives this often on idle connections; 0 sends none
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    keepalive: String,
    /// Put the path of the server's address before the path of each request
    #[arg(long)]
    append_server_path: bool,
    /// Accept every request
    #[arg(long)]
    disable_filter: bool,
}

/// Which requests are accepted.
struct Filter {
    hosts: Patterns,
    paths: Patterns,
    not_paths: Patterns,
    not_methods: Patterns,
    is_off: bool,
}

struct Patterns(Vec<regex::Regex>);

impl Patterns {
    fn parse(text: &str) -> Result<Self> {
        let pattern = |text: &str| {
            regex::Regex::new(text).with_context(|| format!("invalid regular expression {text:?}"))
        };
        Ok(Self(text.split(',').map(pattern).collect::<Result<_>>()?))
    }

    fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(text))
    }
}

impl Filter {
    fn accepts(&self, method: &Method, path: &str, host: &str) -> bool {
        self.is_off
            || (!self.not_paths.matches(path)
                && !self.not_methods.matches(method.as_str())
                && self.paths.matches(path)
                && self.hosts.matches(host))
    }
}

/// Serves the requests.
struct Server {
    client: kube::Client,
    /// Over HTTP/1.1, whose connections can become streams.
    upgrading: kube::Client,
    connection: Connection,
    filter: Filter,
    api_prefix: String,
    www: Option<(PathBuf, String)>,
}

type Answer = Response<Either<Body, Full<Bytes>>>;

impl Proxy {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        if self.unix_socket.is_some() && self.port != DEFAULT_PORT {
            bail!("cannot set --unix-socket and --port at the same time");
        }
        let slashed = |text: &str| format!("/{}/", text.trim_matches('/')).replace("//", "/");
        let mut connection = session.connection.clone();
        if !self.append_server_path {
            let path = connection.remove_path();
            if !["", "/"].contains(&path.as_str()) {
                eprintln!(
                    "Your kube context contains a server path {path}, use --append-server-path to automatically append the path to each request"
                );
            }
        }
        let server = Arc::new(Server {
            client: connection.client(false)?,
            upgrading: connection.client(true)?,
            connection,
            filter: Filter {
                hosts: Patterns::parse(&self.accept_hosts)?,
                paths: Patterns::parse(&self.accept_paths)?,
                not_paths: Patterns::parse(&self.reject_paths)?,
                not_methods: Patterns::parse(&self.reject_methods)?,
                is_off: self.disable_filter,
            },
            api_prefix: slashed(&self.api_prefix),
            www: self
                .www
                .clone()
                .map(|directory| (directory, slashed(&self.www_prefix))),
        });
        if self.disable_filter && self.unix_socket.is_none() {
            eprintln!(
                "Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious"
            );
        }
        if let Some(path) = &self.unix_socket {
            let listener = listen_unix(path)?;
            println!("Starting to serve on {}", path.display());
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(serve(TokioIo::new(stream), server.clone()));
            }
        }
        if u16::try_from(self.port).is_err() {
            bail!("listen tcp: address {}: invalid port", self.port);
        }
        let address: SocketAddr = match self.address.as_str() {
            "" => format!("[::]:{}", self.port),
            "localhost" => format!("127.0.0.1:{}", self.port),
            name if name.contains(':') => {
                format!("[{}]:{}", name.trim_matches(['[', ']']), self.port)
            }
            name => format!("{name}:{}", self.port),
        }
        .parse()
        .with_context(|| format!("{} is not an address", self.address))?;
        let listener = tokio::net::TcpListener::bind(address).await;
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                let why = crate::error::io_reason(&error);
                bail!("listen tcp {address}: bind: {why}")
            }
        };
        println!("Starting to serve on {}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(serve(TokioIo::new(stream), server.clone()));
        }
    }
}

/// Listens on a socket that only the user can connect to. One that is left over is replaced, another file is not.
fn listen_unix(path: &Path) -> Result<tokio::net::UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if std::fs::metadata(path).is_ok_and(|known| known.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let failed = |error: std::io::Error| {
        let why = crate::error::io_reason(&error);
        anyhow::anyhow!("listen unix {}: bind: {why}", path.display())
    };
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let listener = tokio::net::UnixListener::bind(path);
    rustix::process::umask(mask);
    let listener = listener.map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn serve<I>(io: I, server: Arc<Server>)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection_with_upgrades(io, service).await;
}

impl Server {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let host = request
            .headers()
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default();
        let host = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
            _ => host.to_owned(),
        };
        // The server decodes paths, so the filter looks at what it will see.
        let Some(path) = decoded(request.uri().path()) else {
            return plain(StatusCode::BAD_REQUEST, "Bad Request");
        };
        let clean = cleaned(&path);
        if clean != path {
            let query = request.uri().query().map(|query| format!("?{query}"));
            return moved(&clean, &query.unwrap_or_default());
        }
        if let Some((directory, prefix)) = &self.www
            && let Some(file) = path.strip_prefix(prefix.as_str())
        {
            return static_file(directory, file);
        }
        if !self.filter.accepts(request.method(), &path, &host) {
            return plain(StatusCode::FORBIDDEN, "Forbidden");
        }
        match self.forward(request).await {
            Ok(answer) => answer,
            Err(error) => plain(
                StatusCode::BAD_GATEWAY,
                &format!("Error while proxying request: {error:#}"),
            ),
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Answer> {
        let query = request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str());
        let path = match query.strip_prefix(self.api_prefix.as_str()) {
            Some(rest) => format!("/{rest}"),
            None if self.api_prefix == "/" => query.to_owned(),
            None => return Ok(plain(StatusCode::NOT_FOUND, "404 page not found")),
        };
        if request.headers().contains_key(header::UPGRADE) {
            return self.forward_upgrade(request, &path).await;
        }
        let mut forwarded = Request::builder().method(request.method()).uri(path);
        for (name, value) in request.headers() {
            let is_of_connection = [
                header::CONNECTION,
                header::UPGRADE,
                header::TRANSFER_ENCODING,
            ];
            if !is_of_caller(name) && !is_of_connection.contains(name) {
                forwarded = forwarded.header(name, value);
            }
        }
        let body = request.into_body().collect().await?.to_bytes();
        let mut forwarded = forwarded.body(Body::from(body.to_vec()))?;
        self.connection.authorize(&mut forwarded)?;
        let response = self.client.send(forwarded).await?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(tokens) = self.connection.tokens()
        {
            tokens.refuse();
        }
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::TRANSFER_ENCODING);
        parts.headers.remove(header::CONNECTION);
        Ok(Response::from_parts(parts, Either::Left(body)))
    }

    /// Forwards a request for another protocol (exec, attach, port-forward, watch over WebSocket).
    /// If the server agrees, the two connections are joined.
    async fn forward_upgrade(&self, mut request: Request<Incoming>, path: &str) -> Result<Answer> {
        let mut forwarded = Request::builder().method(request.method()).uri(path);
        for (name, value) in request.headers() {
            if !is_of_caller(name) {
                forwarded = forwarded.header(name, value);
            }
        }
        let mut forwarded = forwarded.body(Body::empty())?;
        self.connection.authorize(&mut forwarded)?;
        let mut response = self.upgrading.send(forwarded).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let caller = hyper::upgrade::on(&mut request);
            let server = hyper::upgrade::on(&mut response);
            tokio::spawn(async move {
                let (caller, server) = tokio::try_join!(caller, server)?;
                let (mut caller, mut server) = (TokioIo::new(caller), TokioIo::new(server));
                copy_bidirectional(&mut caller, &mut server).await?;
                anyhow::Ok(())
            });
        }
        Ok(response.map(Either::Left))
    }
}

/// Whether a header is between the caller and this proxy: the server gets the user's own credentials.
fn is_of_caller(name: &HeaderName) -> bool {
    [header::HOST, header::AUTHORIZATION].contains(name)
}

/// A path without its percent encoding; `None` if that is invalid.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(is_hex.then_some(digits)?, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// The path without empty parts, `.` and `..`, which the filter would not recognise.
fn cleaned(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{end}", parts.join("/"))
}

/// The type of a file of a page, by its name.
fn content_type(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()? {
        "css" => "text/css; charset=utf-8",
        "gif" => "image/gif",
        "htm" | "html" => "text/html; charset=utf-8",
        "jpeg" | "jpg" => "image/jpeg",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        "xml" => "text/xml; charset=utf-8",
        _ => return None,
    })
}

/// A redirect to the clean path, as Go's servers send.
fn moved(path: &str, query: &str) -> Answer {
    let location: Vec<String> = path.split('/').map(crate::discovery::encode).collect();
    let location = format!("{}{query}", location.join("/"));
    let mut response = plain(StatusCode::MOVED_PERMANENTLY, "Moved Permanently");
    if let Ok(location) = location.parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(format!("{text}\n")))));
    *response.status_mut() = status;
    response
}

/// A file below the directory, never above it.
fn static_file(directory: &std::path::Path, file: &str) -> Answer {
    let is_inside = std::path::Path::new(file).components().all(|part| {
        matches!(
            part,
            std::path::Component::Normal(_) | std::path::Component::CurDir
        )
    });
    let path = directory.join(file);
    let path = if path.is_dir() {
        path.join("index.html")
    } else {
        path
    };
    match is_inside.then(|| std::fs::read(&path)) {
        Some(Ok(bytes)) => {
            let mut response = Response::new(Either::Right(Full::new(bytes.into())));
            if let Some(kind) = content_type(&path) {
                let value = http::HeaderValue::from_static(kind);
                response.headers_mut().insert(header::CONTENT_TYPE, value);
            }
            response
        }
        _ => plain(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn exec_other_hosts_and_outside_files_are_refused() {
        let filter = Filter {
            hosts: Patterns::parse(r"^localhost$,^127\.0\.0\.1$").unwrap(),
            paths: Patterns::parse("^.*").unwrap(),
            not_paths: Patterns::parse("^/api/.*/pods/.*/exec").unwrap(),
            not_methods: Patterns::parse("^$").unwrap(),
            is_off: false,
        };
        assert!(filter.accepts(&Method::GET, "/api/v1/pods", "localhost"));
        assert!(!filter.accepts(&Method::GET, "/api/v1/pods", "evil.example"));
        assert!(!filter.accepts(
            &Method::POST,
            "/api/v1/namespaces/a/pods/b/exec",
            "localhost"
        ));
        let encoded = decoded("/api/v1/namespaces/a/pods/b/%65x%65c").unwrap();
        assert!(!filter.accepts(&Method::POST, &encoded, "localhost"));
        for (path, clean) in [
            ("//api/v1/pods", "/api/v1/pods"),
            ("/x/../api/./v1/", "/api/v1/"),
            ("/../..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(cleaned(path), clean);
        }
        assert_eq!(decoded("/%zz"), None);
        assert_eq!(decoded("/a%2"), None);
        let outside = static_file(std::path::Path::new("/etc/ssl"), "../passwd");
        assert_eq!(outside.status(), StatusCode::NOT_FOUND);
    }

    /// A server that accepts any upgrade and echoes; returns its address and the head of the first request.
    async fn echoing_server() -> (SocketAddr, tokio::sync::oneshot::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, head) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            sender.send(read_head(&mut stream).await).unwrap();
            let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            stream.write_all(agreed.as_bytes()).await.unwrap();
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        });
        (address, head)
    }

    async fn read_head(stream: &mut TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap().to_lowercase()
    }

    #[tokio::test]
    async fn an_upgrade_joins_the_caller_with_the_server() {
        let (address, head) = echoing_server().await;
        let global = crate::args::Global {
            server: Some(format!("http://{address}")),
            ..Default::default()
        };
        let connection =
            crate::kubeconfig::connection::Connection::resolve(&serde_json::Value::Null, &global)
                .unwrap();
        let nothing = || Patterns(Vec::new());
        let server = Server {
            client: connection.client(false).unwrap(),
            upgrading: connection.client(true).unwrap(),
            connection,
            filter: Filter {
                hosts: nothing(),
                paths: nothing(),
                not_paths: nothing(),
                not_methods: nothing(),
                is_off: true,
            },
            api_prefix: "/".to_owned(),
            www: None,
        };
        let (mut caller, accepted) = tokio::io::duplex(1024);
        tokio::spawn(serve(TokioIo::new(accepted), Arc::new(server)));
        let request = "POST /api/v1/namespaces/a/pods/b/exec?command=ls HTTP/1.1\r\nHost: localhost\r\n\
            Authorization: Bearer caller\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nbytes";
        caller.write_all(request.as_bytes()).await.unwrap();
        let head = head.await.unwrap();
        assert!(head.starts_with("post /api/v1/namespaces/a/pods/b/exec?command=ls "));
        assert!(head.contains("upgrade: spdy/3.1") && !head.contains("bearer caller"));
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nbytes") {
            answer.push(caller.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "));
    }

    #[tokio::test]
    async fn a_socket_is_the_users_alone_and_replaces_no_other_file() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for _ in 0..2 {
            let _listener = listen_unix(&path).unwrap();
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let file = directory.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert!(listen_unix(&file).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
    }
}
