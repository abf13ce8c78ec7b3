//! Tunnels through proxies: HTTP's CONNECT, also over TLS, and SOCKS5 (RFC 1928), with a name and a password if the
//! address has them.
//! The proxy resolves the server's name.

use std::{net::IpAddr, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Uri;
use rustls::{ClientConfig, pki_types::ServerName};
use stdx::percent::decode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use tower::BoxError;

use crate::{Error, unvectored::Unvectored};

/// The longest response to CONNECT.
const MAX_ANSWER: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http,
    Https,
    Socks5,
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    kind: Kind,
    pub host: String,
    pub port: u16,
    credentials: Option<(String, String)>,
}

impl Proxy {
    /// Parses `http://[USER[:PASSWORD]@]HOST[:PORT]`, or the same with `https://` or `socks5://`.
    pub(crate) fn parse(proxy: &str) -> Result<Self, Error> {
        // Without the credentials.
        let shown = match (proxy.split_once("://"), proxy.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
            (None, Some((_, host))) => host.to_owned(),
            (_, None) => proxy.to_owned(),
        };
        let bad = |why: &str| Error::Server(shown.clone(), why.to_owned());
        let uri: Uri = proxy.parse().map_err(|error| bad(&format!("{error}")))?;
        let (kind, usual) = match uri.scheme_str() {
            Some("http") => (Kind::Http, 80),
            Some("https") => (Kind::Https, 443),
            Some("socks5" | "socks5h") => (Kind::Socks5, 1080),
            _ => {
                return Err(bad(
                    "a proxy must begin with http://, https:// or socks5://",
                ));
            }
        };
        let host = uri.host().ok_or_else(|| bad("names no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let user = authority.rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decode(name), decode(password))
        });
        Ok(Self {
            kind,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(usual),
            credentials: user,
        })
    }

    /// Asks the proxy for a tunnel to the server. Its certificate is verified as the server's is, which is also what
    /// upstream's clients do.
    pub(crate) async fn tunnel(
        &self,
        tcp: TcpStream,
        tls: &ClientConfig,
        host: &str,
        port: u16,
    ) -> Result<Unvectored, BoxError> {
        let mut stream = Unvectored::Tcp(tcp);
        if self.kind == Kind::Https {
            let mut config = tls.clone();
            config.alpn_protocols.clear();
            let name = ServerName::try_from(self.host.clone())?;
            let connector = TlsConnector::from(Arc::new(config));
            stream = Unvectored::Tunnel(Box::new(connector.connect(name, stream).await?));
        }
        match self.kind {
            Kind::Http | Kind::Https => self.connect(&mut stream, host, port).await?,
            Kind::Socks5 => self.socks(&mut stream, host, port).await?,
        }
        Ok(stream)
    }

    async fn connect(&self, tcp: &mut Unvectored, host: &str, port: u16) -> Result<(), BoxError> {
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some((name, password)) = &self.credentials {
            let basic = BASE64_STANDARD.encode(format!("{name}:{password}"));
            request.push_str(&format!("Proxy-Authorization: Basic {basic}\r\n"));
        }
        request.push_str("\r\n");
        tcp.write_all(request.as_bytes()).await?;
        tcp.flush().await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() > MAX_ANSWER {
                return Err("the proxy's answer is too long".into());
            }
            answer.push(tcp.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&answer);
        let line = line.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => Err(format!("the proxy refused: {line}").into()),
        }
    }

    async fn socks(&self, tcp: &mut Unvectored, host: &str, port: u16) -> Result<(), BoxError> {
        let greeting: &[u8] = match self.credentials {
            Some(_) => &[5, 2, 0, 2],
            None => &[5, 1, 0],
        };
        tcp.write_all(greeting).await?;
        let mut chosen = [0; 2];
        tcp.read_exact(&mut chosen).await?;
        match (chosen, &self.credentials) {
            ([5, 0], _) => {}
            ([5, 2], Some((name, password))) => log_in(tcp, name, password).await?,
            _ => return Err("the proxy accepts none of our ways to authenticate".into()),
        }
        let mut request = vec![5, 1, 0];
        match host.parse() {
            Ok(IpAddr::V4(address)) => {
                request.push(1);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(4);
                request.extend(address.octets());
            }
            Err(_) => {
                request.push(3);
                put_text(&mut request, host)?;
            }
        }
        request.extend(port.to_be_bytes());
        tcp.write_all(&request).await?;
        let mut answer = [0; 4];
        tcp.read_exact(&mut answer).await?;
        if answer[1] != 0 {
            return Err(format!("the proxy refused: {}", reason(answer[1])).into());
        }
        // The proxy's own address is of no use.
        let length = match answer[3] {
            1 => 4,
            4 => 16,
            _ => usize::from(tcp.read_u8().await?),
        };
        tcp.read_exact(&mut vec![0; length + 2]).await?;
        Ok(())
    }
}

/// Name and password of SOCKS5 (RFC 1929).
async fn log_in(tcp: &mut Unvectored, name: &str, password: &str) -> Result<(), BoxError> {
    let mut request = vec![1];
    put_text(&mut request, name)?;
    put_text(&mut request, password)?;
    tcp.write_all(&request).await?;
    let mut answer = [0; 2];
    tcp.read_exact(&mut answer).await?;
    match answer[1] {
        0 => Ok(()),
        _ => Err("the proxy refused the name or the password".into()),
    }
}

fn put_text(into: &mut Vec<u8>, text: &str) -> Result<(), BoxError> {
    let length = u8::try_from(text.len()).map_err(|_| "too long for SOCKS5")?;
    into.push(length);
    into.extend(text.as_bytes());
    Ok(())
}

fn reason(code: u8) -> &'static str {
    match code {
        2 => "connection not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "general failure",
    }
}

#[cfg(test)]
mod tests {
    use pki::{Leaf, Names, Pki};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_have_a_scheme_a_port_and_credentials() {
        for (text, kind, host, port, credentials) in [
            ("http://p", Kind::Http, "p", 80, None),
            (
                "http://a:b%40c@p:3128",
                Kind::Http,
                "p",
                3128,
                Some(("a", "b@c")),
            ),
            ("https://p", Kind::Https, "p", 443, None),
            ("socks5://[::1]:9", Kind::Socks5, "::1", 9, None),
            ("socks5h://u@p", Kind::Socks5, "p", 1080, Some(("u", ""))),
        ] {
            let proxy = Proxy::parse(text).unwrap_or_else(|_| panic!("{text}"));
            let owned = credentials.map(|(a, b)| (a.to_owned(), b.to_owned()));
            assert_eq!(
                (proxy.kind, proxy.host.as_str(), proxy.port),
                (kind, host, port)
            );
            assert_eq!(proxy.credentials, owned, "{text}");
        }
        for text in ["ftp://p", "p", "", "ftp://a:secret@p", "a:secret@p"] {
            let error = Proxy::parse(text).err().expect("no proxy").to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// What a proxy is sent in each step when it gives these answers, and the outcome.
    async fn spoken(proxy: &str, host: &str, script: &[(usize, &[u8])]) -> (Vec<u8>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut proxy = Proxy::parse(proxy).unwrap_or_else(|_| panic!("{proxy}"));
        proxy.port = address.port();
        let (_, client) = tls();
        let served = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            for (length, answer) in script {
                let mut part = vec![0; *length];
                tcp.read_exact(&mut part).await.unwrap();
                received.extend(part);
                tcp.write_all(answer).await.unwrap();
            }
            received
        };
        let asked = async {
            let tcp = TcpStream::connect(address).await.unwrap();
            proxy.tunnel(tcp, &client, host, 6443).await.is_ok()
        };
        tokio::join!(served, asked)
    }

    #[tokio::test]
    async fn a_tunnel_through_socks_names_the_server() {
        let granted: &[u8] = &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let (sent, is_open) = spoken("socks5://p", "s.x", &[(3, &[5, 0]), (10, granted)]).await;
        assert!(is_open);
        assert_eq!(sent, b"\x05\x01\x00\x05\x01\x00\x03\x03s.x\x19\x2b");
        let (sent, is_open) = spoken(
            "socks5://p",
            "10.0.0.1",
            &[(3, &[5, 0]), (10, &[5, 5, 0, 1])],
        )
        .await;
        assert!(!is_open);
        assert_eq!(sent[3..], [5, 1, 0, 1, 10, 0, 0, 1, 0x19, 0x2b]);
        let named = [(4, &[5, 2][..]), (7, &[1, 0]), (10, granted)];
        let (sent, is_open) = spoken("socks5://u:pwd@p", "s.x", &named).await;
        assert!(is_open);
        assert_eq!(sent[4..11], *b"\x01\x01u\x03pwd");
    }

    /// A server's and a client's TLS configuration of one CA.
    fn tls() -> (Arc<rustls::ServerConfig>, ClientConfig) {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(dir.path(), &Names::default()).unwrap();
        let mut client = pki.client_config(Leaf::Admin).unwrap();
        client.alpn_protocols = vec![b"h2".to_vec()];
        (pki.apiserver_config().unwrap(), client)
    }

    #[tokio::test]
    async fn an_https_proxy_is_asked_after_its_certificate_was_verified() {
        let (server, client) = tls();
        let (_, stranger) = tls();
        for (client, is_trusted) in [(client, true), (stranger, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let proxy = Proxy::parse(&format!("https://localhost:{}", address.port()))
                .unwrap_or_else(|_| panic!("a proxy"));
            let acceptor = tokio_rustls::TlsAcceptor::from(server.clone());
            let served = async {
                let (tcp, _) = listener.accept().await.unwrap();
                let Ok(mut tls) = acceptor.accept(tcp).await else {
                    return Vec::new();
                };
                // HTTP/2 has no CONNECT of this form.
                assert_eq!(tls.get_ref().1.alpn_protocol(), None);
                let mut received = vec![0; b"CONNECT s.x:6443".len()];
                tls.read_exact(&mut received).await.unwrap();
                tls.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello")
                    .await
                    .unwrap();
                tls.flush().await.unwrap();
                received
            };
            let asked = async {
                let tcp = TcpStream::connect(address).await.unwrap();
                let mut tunnel = proxy.tunnel(tcp, &client, "s.x", 6443).await.ok()?;
                let mut received = [0; 5];
                tunnel.read_exact(&mut received).await.ok()?;
                Some(received)
            };
            let (request, answer) = tokio::join!(served, asked);
            let (expected, hello): (&[u8], _) = match is_trusted {
                true => (b"CONNECT s.x:6443", Some(*b"hello")),
                false => (b"", None),
            };
            assert_eq!((request.as_slice(), answer), (expected, hello));
        }
    }

    #[tokio::test]
    async fn a_password_is_sent_to_an_http_proxy() {
        let expected = "CONNECT s.x:6443 HTTP/1.1\r\nHost: s.x:6443\r\nProxy-Authorization: Basic dTpw\r\n\r\n";
        let answer: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
        let (sent, is_open) = spoken("http://u:p@p", "s.x", &[(expected.len(), answer)]).await;
        assert!(is_open);
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }
}
