//! Admission webhooks that speak no proper HTTP, or too much of it: each such call fails in its time, nothing is stored,
//! and requests that no webhook matches are served meanwhile.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use machinery::json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

use crate::{
    hook_server::{install, webhook},
    support::{Raw, Server, admin},
    webhooks::{MAPS, is_stored, message},
};

/// What a webhook writes after a request: something once, then something else again and again.
#[derive(Clone, Copy)]
struct Answer {
    first: &'static [u8],
    again: Option<&'static [u8]>,
    pause: Duration,
}

const fn once(first: &'static str) -> Answer {
    Answer {
        first: first.as_bytes(),
        again: None,
        pause: Duration::ZERO,
    }
}

const fn endless(first: &'static str, again: &'static str) -> Answer {
    Answer {
        again: Some(again.as_bytes()),
        ..once(first)
    }
}

/// A byte at a time.
const fn dripping(first: &'static str, again: &'static str) -> Answer {
    Answer {
        pause: Duration::from_millis(50),
        ..endless(first, again)
    }
}

/// A webhook over TLS that writes bytes; dropping it stops it.
struct RawHook {
    address: SocketAddr,
    certificate: String,
    task: JoinHandle<()>,
}

impl Drop for RawHook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RawHook {
    async fn start(protocol: &'static str, answer: Answer) -> Self {
        let names = vec!["127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let tls = pki::server_config_from_pem(certificate.as_bytes(), key.as_bytes());
        let mut tls = tls.unwrap();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        write(stream, answer).await;
                    }
                });
            }
        });
        Self {
            address,
            certificate,
            task,
        }
    }

    /// A webhook of a configuration, called for ConfigMaps with a label.
    fn webhook(&self, name: &str) -> Value {
        let client = json!({"url": format!("https://{}/hook", self.address),
            "caBundle": STANDARD.encode(&self.certificate)});
        let selector = json!({"matchLabels": {"case": name}});
        let changes = json!({"objectSelector": selector, "timeoutSeconds": 1});
        webhook(&format!("{name}.example.com"), client, changes)
    }
}

/// Reads the beginning of a request and writes the answer, until the client goes.
async fn write(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Answer) {
    let mut head = [0; 1024];
    if stream.read(&mut head).await.is_err() || stream.write_all(answer.first).await.is_err() {
        return;
    }
    while let Some(again) = answer.again {
        if !answer.pause.is_zero() {
            tokio::time::sleep(answer.pause).await;
        }
        if stream.write_all(again).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

async fn create(server: &Server, name: &str) -> Raw {
    let object = json!({"metadata": {"name": name, "labels": {"case": name}}});
    admin(server, "POST", MAPS, object).await
}

/// Each answer fails the call, also when all come at once.
async fn all_fail(protocol: &'static str, cases: &[(&'static str, Answer)]) {
    let server = Server::start().await;
    let (mut hooks, mut webhooks) = (Vec::new(), Vec::new());
    for (name, answer) in cases {
        let hook = RawHook::start(protocol, *answer).await;
        webhooks.push(hook.webhook(name));
        hooks.push(hook);
    }
    install(&server, false, "raw", webhooks).await;
    let tried = cases.iter().map(|(name, _)| create(&server, name));
    let mut tried = std::pin::pin!(futures::future::join_all(tried));
    let answers = loop {
        tokio::select! {
            answers = &mut tried => break answers,
            listed = admin(&server, "GET", MAPS, Value::Null) => assert_eq!(listed.code, 200),
        }
    };
    for ((name, _), refused) in cases.iter().zip(answers) {
        assert_eq!(refused.code, 500, "{name}: {}", refused.body);
        let said = message(&refused);
        let start = format!(
            "Internal error occurred: failed calling webhook \"{name}.example.com\": failed to call webhook: "
        );
        assert!(said.starts_with(&start), "{name}: {said}");
        assert!(said.len() < 4096, "{name}: {} bytes", said.len());
        assert!(!is_stored(&server, name).await, "{name}");
    }
    let made = create(&server, "unmatched").await;
    assert_eq!(made.code, 201, "{}", made.body);
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_that_break_the_protocol_fail_in_their_time() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    const LARGE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n";
    const BOMB: &str = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 10\r\n\r\n\u{1f}\u{8}aaaaaaaa";
    let continues = "HTTP/1.1 100 Continue\r\n\r\n";
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let switches = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: x\r\n\r\n";
    all_fail(
        "http/1.1",
        &[
            ("hangs-up", once("")),
            ("other-protocol", once("220 ready\r\n\r\n")),
            ("hints-without-end", endless(hints, hints)),
            ("continues-without-end", endless(continues, continues)),
            ("continues-slowly", dripping(continues, continues)),
            (
                "headers-without-end",
                endless(OK, "x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
            ),
            (
                "header-without-end",
                endless(OK, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
            ),
            ("head-in-drops", dripping("", "H")),
            ("body-in-drops", dripping(CHUNKED, "1\r\n \r\n")),
            ("body-without-end", endless(CHUNKED, "8\r\n        \r\n")),
            (
                "trailers-without-end",
                endless(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
                    "x-a: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
                ),
            ),
            (
                "chunk-of-no-size",
                once("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
            ),
            (
                "truncated",
                once("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"kind\":"),
            ),
            ("enormous", dripping(LARGE, " ")),
            ("compressed", once(BOMB)),
            ("switches", once(switches)),
            ("no-content", once("HTTP/1.1 204 No Content\r\n\r\n")),
            (
                "two-lengths",
                once("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
            ),
        ],
    )
    .await;
}

/// A frame of HTTP/2 without a payload, or with one of zeros.
macro_rules! frame {
    ($length:literal, $kind:literal, $flags:literal, $stream:literal, $($payload:literal),*) => {
        [0, 0, $length, $kind, $flags, 0, 0, 0, $stream $(, $payload)*]
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_that_break_http2_fail_in_their_time() {
    const SETTINGS: [u8; 9] = frame!(0, 4, 0, 0,);
    const PING: [u8; 17] = frame!(8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const EMPTY_DATA: [u8; 9] = frame!(0, 0, 0, 1,);
    /// Settings, then a reset of the first stream.
    const RESET: [u8; 22] = [
        0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2,
    ];
    /// Settings, then the end of the connection with an error.
    const GONE: [u8; 26] = [
        0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11,
    ];
    /// Settings, then the beginning of a head whose rest never ends.
    const HEAD: [u8; 18] = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
    const MORE: [u8; 9] = frame!(0, 9, 0, 1,);
    /// Settings with a window of a size that is not allowed.
    const BAD_SETTINGS: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 255, 255, 255, 255];
    let bytes = |first: &'static [u8], again: Option<&'static [u8]>| Answer {
        first,
        again,
        pause: Duration::ZERO,
    };
    all_fail(
        "h2",
        &[
            ("closes", bytes(&SETTINGS, None)),
            ("resets", bytes(&RESET, None)),
            ("resets-always", bytes(&RESET, Some(&RESET))),
            ("goes", bytes(&GONE, None)),
            ("pings", bytes(&SETTINGS, Some(&PING))),
            ("settings", bytes(&SETTINGS, Some(&SETTINGS))),
            ("bad-settings", bytes(&BAD_SETTINGS, None)),
            ("data-first", bytes(&SETTINGS, Some(&EMPTY_DATA))),
            ("head-without-end", bytes(&HEAD, Some(&MORE))),
            (
                "other-protocol",
                once("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
            ),
        ],
    )
    .await;
}
