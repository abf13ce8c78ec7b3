//! WebSockets: exec, attach and port-forward to kubelets that support them and to kubelets that
//! support only SPDY, logs, and watches.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use streaming::{ExitStatus, TerminalSize, client::Handshake};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use crate::{
    kubelet::{PODS, with_pod},
    support::{Server, admin, over_socket},
};

const LIMIT: Duration = Duration::from_secs(20);
const ALL: &str = "stdin=true&stdout=true&stderr=true";

fn empty() -> Full<Bytes> {
    Full::default()
}

async fn ask(server: &Server, handshake: &Handshake, path: &str) -> Response<Incoming> {
    let request = handshake.request().uri(path).body(empty()).unwrap();
    over_socket(server, request).await
}

/// Runs a command with this stdin; returns its stdout, stderr and exit status.
async fn run(server: &Server, path: &str, stdin: &str) -> (String, String, ExitStatus) {
    let handshake = Handshake::for_exec();
    let response = ask(server, &handshake, path).await;
    let mut exec = handshake.exec(response).await.unwrap();
    let whole = async {
        let mut writer = exec.stdin.take().unwrap();
        writer.write_all(stdin.as_bytes()).await.unwrap();
        drop(writer);
        let (mut out, mut err) = (String::new(), String::new());
        let (mut stdout, mut stderr) = (exec.stdout.take().unwrap(), exec.stderr.take().unwrap());
        let (read, also, status) = tokio::join!(
            stdout.read_to_string(&mut out),
            stderr.read_to_string(&mut err),
            exec.status()
        );
        read.unwrap();
        also.unwrap();
        (out, err, status)
    };
    tokio::time::timeout(LIMIT, whole).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_speaks_only_spdy_gets_exec_and_attach_translated() {
    let server = with_pod(Value::Null).await;
    for action in ["exec", "attach"] {
        let path = format!("{PODS}/p/{action}?container=a&command=cat&{ALL}");
        let (out, err, status) = run(&server, &path, "hello").await;
        let asked = "input=1&output=1&error=1&command=cat POST SPDY/3.1 v4.channel.k8s.io\nhello";
        assert_eq!(out, format!("/{action}/default/p/a?{asked}"));
        assert_eq!((err.as_str(), status), ("5", ExitStatus::Code(3)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_speaks_websockets_gets_them_as_they_come() {
    let server = with_pod(json!(["ExtendWebSocketsToKubelet"])).await;
    let path = format!("{PODS}/p/exec?container=a&command=cat&{ALL}");
    let (out, err, status) = run(&server, &path, "hello").await;
    assert!(out.contains("GET websocket v5.channel.k8s.io"), "{out}");
    assert!(out.ends_with("\nhello"), "{out}");
    assert_eq!((err.as_str(), status), ("5", ExitStatus::Code(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_sizes_are_translated() {
    let server = with_pod(Value::Null).await;
    let handshake = Handshake::for_exec();
    let path = format!("{PODS}/p/exec?container=a&command=sh&stdin=true&stdout=true&tty=true");
    let response = ask(&server, &handshake, &path).await;
    let mut exec = handshake.exec(response).await.unwrap();
    let size = TerminalSize {
        width: 120,
        height: 40,
    };
    exec.resize.send(size).await.unwrap();
    drop(exec.stdin.take());
    let mut out = String::new();
    let mut stdout = exec.stdout.take().unwrap();
    let read = async { tokio::join!(stdout.read_to_string(&mut out), exec.status()) };
    tokio::time::timeout(LIMIT, read).await.unwrap().0.unwrap();
    assert!(out.ends_with("\n120x40\n"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_through_a_websocket_to_either_kind_of_kubelet() {
    for (features, spoken) in [
        (Value::Null, "POST SPDY/3.1 portforward.k8s.io"),
        (
            json!(["ExtendWebSocketsToKubelet"]),
            "GET websocket SPDY/3.1+portforward.k8s.io",
        ),
    ] {
        let server = with_pod(features).await;
        let handshake = Handshake::for_port_forward();
        let response = ask(&server, &handshake, &format!("{PODS}/p/portforward")).await;
        let mut forward = handshake.port_forward(response).await.unwrap();
        let talk = async {
            let mut web = forward.open(80);
            web.data.write_all(b"hello").await.unwrap();
            web.data.shutdown().await.unwrap();
            let (mut heard, mut why) = (String::new(), String::new());
            web.data.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, format!("80 {spoken}\nhello"));
            let mut none = forward.open(1);
            none.error.read_to_string(&mut why).await.unwrap();
            assert_eq!(why, "nobody listens");
        };
        tokio::time::timeout(LIMIT, talk).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_or_redirected_upgrade_leaves_no_tunnel() {
    for features in [Value::Null, json!(["ExtendWebSocketsToKubelet"])] {
        let server = with_pod(features).await;
        for (container, code, why) in [
            ("refused", StatusCode::FORBIDDEN, "not today"),
            ("away", StatusCode::BAD_GATEWAY, "redirect"),
        ] {
            let path = format!("{PODS}/p/exec?container={container}&command=x&{ALL}");
            let response = ask(&server, &Handshake::for_exec(), &path).await;
            assert_eq!(response.status(), code);
            assert!(!response.headers().contains_key("location"));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8_lossy(&body).into_owned();
            assert!(body.contains(why), "{body}");
            let spdy = Request::post(&path)
                .header("connection", "Upgrade")
                .header("upgrade", "SPDY/3.1")
                .header("x-stream-protocol-version", "v4.channel.k8s.io");
            let response = over_socket(&server, spdy.body(empty()).unwrap()).await;
            assert_eq!(response.status(), code);
        }
    }
}

/// A WebSocket of messages.
async fn messages(
    server: &Server,
    path: &str,
    protocol: &str,
    accept: &str,
) -> (
    Response<()>,
    WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
) {
    let mut request = Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    if !protocol.is_empty() {
        request = request.header("sec-websocket-protocol", protocol);
    }
    if !accept.is_empty() {
        request = request.header("accept", accept);
    }
    let response = over_socket(server, request.body(empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let head = response.headers().clone();
    let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut answer = Response::new(());
    *answer.headers_mut() = head;
    (
        answer,
        WebSocketStream::from_raw_socket(io, Role::Client, None).await,
    )
}

async fn next(socket: &mut WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>) -> Message {
    let next = tokio::time::timeout(LIMIT, socket.next());
    next.await.unwrap().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_come_as_bytes_or_as_base64() {
    let server = with_pod(Value::Null).await;
    let path = format!("{PODS}/p/log?container=a&follow=true");
    let expected = "GET /containerLogs/default/p/a?follow=true";
    for protocol in ["", "binary.k8s.io"] {
        let (answer, mut socket) = messages(&server, &path, protocol, "").await;
        let chosen = answer.headers().get("sec-websocket-protocol");
        assert_eq!(chosen.is_some(), !protocol.is_empty());
        assert_eq!(
            next(&mut socket).await,
            Message::binary(Bytes::new()),
            "a greeting"
        );
        assert_eq!(next(&mut socket).await, Message::binary(expected));
        assert!(next(&mut socket).await.is_close());
    }
    let (answer, mut socket) = messages(&server, &path, "base64.binary.k8s.io", "").await;
    assert_eq!(
        answer.headers()["sec-websocket-protocol"],
        "base64.binary.k8s.io"
    );
    assert_eq!(next(&mut socket).await, Message::text(""));
    let text = next(&mut socket).await.into_text().unwrap();
    let plain = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text.as_str()).unwrap();
    assert_eq!(plain, expected.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelets_refusal_of_logs_is_a_status() {
    let server = with_pod(Value::Null).await;
    let log = |container: &'static str| {
        let server = &server;
        async move {
            let path = format!("{PODS}/p/log?container={container}");
            let answer = admin(server, "GET", &path, Value::Null).await;
            let status = answer.json();
            let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
            (answer.code, text("reason"), text("message"))
        }
    };
    let (code, reason, message) = log("broken").await;
    assert_eq!((code, reason.as_str()), (500, "InternalError"));
    assert!(message.contains("disk on fire"), "{message}");
    let (code, reason, _) = log("refused").await;
    assert_eq!((code, reason.as_str()), (403, "Forbidden"));
    let (code, _, message) = log("away").await;
    assert_eq!(code, 500);
    assert!(message.contains("redirects are not followed"), "{message}");
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_sends_one_event_per_message() {
    let server = Server::start().await;
    for name in ["one", "two"] {
        let made = admin(&server, "POST", MAPS, json!({"metadata": {"name": name}})).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let path = format!("{MAPS}?watch=true&fieldSelector=metadata.name!%3Dkube-root-ca.crt");
    let (answer, mut socket) = messages(&server, &path, "base64.binary.k8s.io", "").await;
    assert_eq!(
        answer.headers()["sec-websocket-protocol"],
        "base64.binary.k8s.io"
    );
    let mut seen = Vec::new();
    for round in 0..3 {
        if round == 2 {
            admin(&server, "DELETE", &format!("{MAPS}/one"), Value::Null).await;
        }
        let Message::Text(text) = next(&mut socket).await else {
            panic!("not text");
        };
        let event: Value = machinery::json::from_str(&text).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        seen.push((
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"]),
        ));
    }
    let expected = [("ADDED", "one"), ("ADDED", "two"), ("DELETED", "one")];
    assert_eq!(
        seen,
        expected.map(|(kind, name)| (kind.to_owned(), name.to_owned()))
    );
    let (_, mut short) = messages(&server, &format!("{path}&timeoutSeconds=1"), "", "").await;
    assert!(next(&mut short).await.is_text());
    assert!(next(&mut short).await.is_close(), "the time is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_in_protobuf_sends_bytes_without_lengths() {
    let server = Server::start().await;
    let made = admin(&server, "POST", MAPS, json!({"metadata": {"name": "one"}})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let accept = "application/vnd.kubernetes.protobuf";
    let path = format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Done");
    let (_, mut socket) = messages(&server, &path, "", accept).await;
    let Message::Binary(event) = next(&mut socket).await else {
        panic!("not bytes");
    };
    // Field 1 of a WatchEvent is its type; the object inside carries its own envelope.
    assert_eq!(event[..7], *b"\x0a\x05ADDED");
    assert!(event.windows(4).any(|window| window == b"k8s\0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_without_a_key_is_refused() {
    let server = Server::start().await;
    let request = Request::get(format!("{MAPS}?watch=true"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .body(empty())
        .unwrap();
    assert_eq!(over_socket(&server, request).await.status(), 400);
}
