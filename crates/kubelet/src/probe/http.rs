//! HTTP probes and hooks: a GET to the pod, with TLS but without verification if asked, following
//! redirects on the same host only.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use tokio_rustls::TlsConnector;

use super::Answer;

const MAX_BODY: usize = 10 * 1024;
const MAX_REDIRECTS: usize = 10;

/// The error of a TLS client whose server does not use TLS.
const NO_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// The URL and headers of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    tls: bool,
    host: String,
    port: u16,
    path: String,
    headers: Vec<(String, String)>,
    agent: &'static str,
}

impl Target {
    /// From `httpGet` of a probe; the host defaults to the pod's IP.
    pub(crate) fn new(
        get: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
    ) -> Result<Self, String> {
        let host = get
            .host
            .as_deref()
            .filter(|host| !host.is_empty())
            .unwrap_or(pod_ip);
        let path = get
            .path
            .as_deref()
            .filter(|path| !path.is_empty())
            .unwrap_or("/");
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        let headers = get.http_headers.iter().flatten();
        Ok(Self {
            tls: get.scheme.as_deref() == Some("HTTPS"),
            host: host.to_owned(),
            port: super::port(&get.port, container)?,
            path,
            headers: headers
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
            agent: "kube-probe/1.36",
        })
    }

    /// The target of a hook.
    pub(crate) fn of_hook(self) -> Self {
        Self {
            agent: "kube-lifecycle/1.36",
            ..self
        }
    }

    /// The same without TLS, and without credentials.
    fn without_tls(&self) -> Self {
        let headers = self.headers.iter();
        let kept = headers.filter(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        Self {
            tls: false,
            headers: kept.cloned().collect(),
            ..self.clone()
        }
    }

    /// The URL.
    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    /// The host and port.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Succeeds with a status from 200 to 399.
pub(crate) async fn probe(target: &Target, timeout: Duration) -> Answer {
    match get(target, timeout).await {
        Ok((200..300, _)) => Answer::Ok,
        Ok((300..400, body)) => {
            Answer::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        Ok((status, _)) => Answer::Failed(format!("HTTP probe failed with statuscode: {status}")),
        Err(message) => Answer::Failed(message),
    }
}

/// The status and the beginning of the body.
async fn get(target: &Target, timeout: Duration) -> Result<(u16, String), String> {
    match tokio::time::timeout(timeout, follow(target)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            target.url()
        )),
    }
}

/// Sends the request of a hook and waits for the response, whose status does not matter, as upstream. A server without
/// TLS gets an HTTPS request again in plain HTTP; returns whether that happened.
pub(crate) async fn call(target: &Target) -> Result<bool, String> {
    match follow(target).await {
        Ok(_) => Ok(false),
        Err(message) if target.tls && message.ends_with(NO_TLS) => {
            follow(&target.without_tls()).await.map(|_| true)
        }
        Err(message) => Err(message),
    }
}

/// The response after redirects.
async fn follow(first: &Target) -> Result<(u16, String), String> {
    let mut target = first.clone();
    for _ in 0..MAX_REDIRECTS {
        let answer = ask(&target).await;
        let (status, location, body) =
            answer.map_err(|message| format!("Get \"{}\": {message}", first.url()))?;
        match location.filter(|_| (300..400).contains(&status)) {
            Some(location) => match redirected(&target, &location) {
                Some(next) => target = next,
                None => return Ok((status, body)),
            },
            None => return Ok((status, body)),
        }
    }
    Err(format!(
        "Get \"{}\": stopped after 10 redirects",
        first.url()
    ))
}

/// The next target, unless it is on another host. A location without a host is relative to the target.
fn redirected(target: &Target, location: &str) -> Option<Target> {
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, rest) = match location.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (Some(scheme), format!("//{rest}")),
        _ => (None, location.to_owned()),
    };
    let tls = match scheme.map(str::to_ascii_lowercase).as_deref() {
        None => target.tls,
        Some("http") => false,
        Some("https") => true,
        Some(_) => return None,
    };
    let Some(rest) = rest.strip_prefix("//") else {
        return Some(Target {
            path: resolved(&target.path, location),
            ..target.clone()
        });
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority: http::uri::Authority = authority.parse().ok()?;
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    (authority.host().trim_matches(['[', ']']) == target.host).then(|| Target {
        tls,
        port,
        path: resolved("/", path),
        ..target.clone()
    })
}

fn is_scheme(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    !text.is_empty() && text.bytes().all(allowed)
}

/// A reference without a host, resolved against a path with a query (RFC 3986, section 5.2).
fn resolved(base: &str, reference: &str) -> String {
    let (base_path, base_query) = match base.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (base, None),
    };
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let (path, query) = match path {
        "" => (base_path.to_owned(), query.or(base_query)),
        _ if path.starts_with('/') => (without_dots(path), query),
        _ => {
            let (directory, _) = base_path.rsplit_once('/').unwrap_or_default();
            (without_dots(&format!("{directory}/{path}")), query)
        }
    };
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

/// A path without the segments `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (index, segment) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

async fn ask(target: &Target) -> Result<(u16, Option<String>, String), String> {
    let tcp = super::tcp::connect(&target.host, target.port).await?;
    if target.tls {
        let connector =
            TlsConnector::from(pki::unverified_client_config().map_err(|error| error.to_string())?);
        let host = target.host.trim_matches(['[', ']']).to_owned();
        let name =
            rustls::pki_types::ServerName::try_from(host).map_err(|error| error.to_string())?;
        let tls = connector
            .connect(name, tcp)
            .await
            .map_err(|error| tls_error(&error))?;
        exchange(target, TokioIo::new(tls)).await
    } else {
        exchange(target, TokioIo::new(tcp)).await
    }
}

fn tls_error(error: &std::io::Error) -> String {
    let inner = error.get_ref();
    let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        // The first byte of plain HTTP is no type of a TLS record.
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            NO_TLS.to_owned()
        }
        _ => error.to_string(),
    }
}

async fn exchange<T>(target: &Target, io: T) -> Result<(u16, Option<String>, String), String>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
        .await
        .map_err(|error| error.to_string())?;
    let mut request = Request::get(&target.path)
        .header(header::USER_AGENT, target.agent)
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close");
    let own_host = target
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"));
    if !own_host {
        request = request.header(header::HOST, target.authority());
    }
    for (name, value) in &target.headers {
        request = request.header(name, value);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let location = response.headers().get(header::LOCATION);
        let location = location
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let body = beginning(response.into_body()).await?;
        Ok((status, location, body))
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            // A response that was complete before the connection closed counts.
            Ok(()) => answer.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

/// Reads the body up to a limit.
async fn beginning(mut body: Incoming) -> Result<String, String> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_BODY
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(|error| error.to_string())?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], AsRef::as_ref));
    }
    bytes.truncate(MAX_BODY);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn answering(response: &'static str) -> Target {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = [0; 16 * 1024];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        let get: HTTPGetAction =
            serde_json::from_value(serde_json::json!({"port": port, "path": "healthz"})).unwrap();
        Target::new(&get, &Container::default(), "127.0.0.1").unwrap()
    }

    #[tokio::test]
    async fn statuses_below_400_are_fine() {
        let second = Duration::from_secs(2);
        let fine = answering("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(probe(&fine, second).await, Answer::Ok);
        let bad = answering("HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n").await;
        let expected = "HTTP probe failed with statuscode: 503".to_owned();
        assert_eq!(probe(&bad, second).await, Answer::Failed(expected));
        let away = answering(
            "HTTP/1.1 302 X\r\nlocation: http://10.0.0.1/\r\ncontent-length: 5\r\n\r\nFound",
        )
        .await;
        let expected = "Probe terminated redirects, Response body: Found".to_owned();
        assert_eq!(probe(&away, second).await, Answer::Warning(expected));
    }

    #[tokio::test]
    async fn a_hook_succeeds_with_any_status_and_falls_back_to_plain_http() {
        let bad = answering("HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(call(&bad).await, Ok(false));
        let secure = Target {
            tls: true,
            headers: vec![("Authorization".into(), "x".into())],
            ..bad.clone()
        };
        assert_eq!(call(&secure).await, Ok(true));
        assert!(secure.without_tls().headers.is_empty());
        let probed = probe(&secure, Duration::from_secs(2)).await;
        let url = secure.url();
        let expected = format!("Get \"{url}\": {NO_TLS}");
        assert_eq!(probed, Answer::Failed(expected));
        let closed = Target { port: 1, ..bad };
        assert!(call(&closed).await.is_err());
    }

    #[test]
    fn locations_are_resolved_against_the_request_as_urls_are() {
        let target = Target {
            tls: false,
            host: "10.0.0.1".into(),
            port: 8080,
            path: "/a/b?c".into(),
            headers: Vec::new(),
            agent: "",
        };
        let shown = |location: &str| {
            let next = redirected(&target, location)?;
            let scheme = if next.tls { "https" } else { "http" };
            Some(format!("{scheme}://{}{}", next.authority(), next.path))
        };
        for (location, expected) in [
            ("/ok", "http://10.0.0.1:8080/ok"),
            ("ok", "http://10.0.0.1:8080/a/ok"),
            ("healthz", "http://10.0.0.1:8080/a/healthz"),
            ("ok/now?x=1", "http://10.0.0.1:8080/a/ok/now?x=1"),
            ("./ok", "http://10.0.0.1:8080/a/ok"),
            ("../ok#part", "http://10.0.0.1:8080/ok"),
            ("../../..", "http://10.0.0.1:8080/"),
            ("?x=1", "http://10.0.0.1:8080/a/b?x=1"),
            ("", "http://10.0.0.1:8080/a/b?c"),
            (
                "/?next=http://other/",
                "http://10.0.0.1:8080/?next=http://other/",
            ),
            ("//10.0.0.1:81/x", "http://10.0.0.1:81/x"),
            ("http://10.0.0.1", "http://10.0.0.1:80/"),
            ("HTTPS://10.0.0.1/x", "https://10.0.0.1:443/x"),
            ("http://10.0.0.1?x", "http://10.0.0.1:80/?x"),
        ] {
            assert_eq!(shown(location).as_deref(), Some(expected), "{location}");
        }
        for away in [
            "http://10.0.0.2:8080/ok",
            "//other/ok",
            "ftp://10.0.0.1/ok",
            "http://10.0.0.1@other/",
            "http:///ok",
        ] {
            assert_eq!(shown(away), None, "{away}");
        }
    }

    #[test]
    fn named_ports_are_found() {
        let container: Container = serde_json::from_value(serde_json::json!({"name": "c",
            "ports": [{"name": "web", "containerPort": 8080}]}))
        .unwrap();
        let get = |port: serde_json::Value| -> HTTPGetAction {
            serde_json::from_value(serde_json::json!({"port": port})).unwrap()
        };
        let target = Target::new(&get("web".into()), &container, "10.0.0.1").unwrap();
        assert_eq!((target.port, target.path.as_str()), (8080, "/"));
        assert!(Target::new(&get("nope".into()), &container, "10.0.0.1").is_err());
    }
}
