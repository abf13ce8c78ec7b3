//! The streaming server in every protocol: SPDY/3.1 in four versions, WebSocket in five,
//! port-forward in three; with slow and disconnected clients.

use std::{fs, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use cri::v1;
use futures::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper::{client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use streaming::{
    Stream,
    spdy::{Connection, Role},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol},
};

use crate::support::{Node, container_config, sandbox_config};

const HELLO: &[&str] = &["/mainstay", "hello"];

type Io = TokioIo<Upgraded>;

/// Requests an upgrade; returns the negotiated protocol and the connection.
async fn upgrade(url: &str, headers: &[(&str, &str)]) -> (String, Io) {
    let uri: http::Uri = url.parse().unwrap();
    let stream = TcpStream::connect(uri.authority().unwrap().as_str())
        .await
        .unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = http::Request::post(uri.path())
        .header("host", "localhost")
        .header("connection", "Upgrade");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if headers.iter().any(|header| header.1 == "websocket") {
        request = request.method("GET");
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 101, "{response:?}");
    let agreed = ["x-stream-protocol-version", "sec-websocket-protocol"]
        .iter()
        .find_map(|name| response.headers().get(*name))
        .map(|value| value.to_str().unwrap().to_owned());
    let io = hyper::upgrade::on(response).await.unwrap();
    (agreed.unwrap_or_default(), TokioIo::new(io))
}

async fn spdy(url: &str, version: &str) -> Connection {
    let mut headers = vec![("upgrade", "SPDY/3.1")];
    if !version.is_empty() {
        headers.push(("x-stream-protocol-version", version));
    }
    let (agreed, io) = upgrade(url, &headers).await;
    assert_eq!(agreed, version);
    Connection::start(io, Role::Client)
}

async fn websocket(url: &str, version: &str) -> WebSocketStream<Io> {
    let mut headers = vec![
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    if !version.is_empty() {
        headers.push(("sec-websocket-protocol", version));
    }
    let (agreed, io) = upgrade(url, &headers).await;
    assert_eq!(agreed, version);
    WebSocketStream::from_raw_socket(io, protocol::Role::Client, None).await
}

fn open(connection: &mut Connection, kind: &str) -> Stream {
    connection.open(&[("streamtype", kind)])
}

async fn text(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

fn hello(args: &[&str]) -> Vec<String> {
    HELLO
        .iter()
        .chain(args)
        .map(|word| (*word).to_owned())
        .collect()
}

async fn exec(node: &Node, container: &str, args: &[&str], tty: bool, stdin: bool) -> String {
    let request = v1::ExecRequest {
        container_id: container.into(),
        cmd: hello(args),
        tty,
        stdin,
        stdout: true,
        stderr: !tty,
    };
    let answer = node.cri.clone().runtime.exec(request).await.unwrap();
    answer.into_inner().url
}

async fn idle(node: &Node, name: &str) -> (String, String) {
    let pod = node.run_sandbox(sandbox_config(node, name)).await;
    let container = node.run(&pod, container_config("idle", &["sleep"])).await;
    (pod, container)
}

const SPDY_VERSIONS: [&str; 5] = [
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "",
];

#[tokio::test(flavor = "multi_thread")]
async fn spdy_carries_commands_in_every_version() {
    let node = Node::start().await;
    let (_, container) = idle(&node, "spdy").await;
    for version in SPDY_VERSIONS {
        let url = exec(&node, &container, &["log", "2"], false, false).await;
        let mut connection = spdy(&url, version).await;
        let mut error = open(&mut connection, "error");
        let mut stdout = open(&mut connection, "stdout");
        let mut stderr = open(&mut connection, "stderr");
        assert_eq!(text(&mut stdout).await, "out 1\nout 2\n", "{version}");
        assert_eq!(text(&mut stderr).await, "err 1\nerr 2\n", "{version}");
        let said = text(&mut error).await;
        if version.starts_with("v4") {
            assert!(said.contains("\"Success\""), "{said}");
        } else {
            assert_eq!(said, "", "{version}");
        }

        let url = exec(&node, &container, &["exit", "9"], false, true).await;
        let mut connection = spdy(&url, version).await;
        let mut error = open(&mut connection, "error");
        let _others = ["stdin", "stdout", "stderr"].map(|kind| open(&mut connection, kind));
        let said = text(&mut error).await;
        assert!(said.contains("exit status 9"), "{version}: {said}");
        assert_eq!(
            said.contains("\"ExitCode\""),
            version.starts_with("v4"),
            "{said}"
        );
    }
    // Input ends with its stream.
    let url = exec(&node, &container, &["cat"], false, true).await;
    let mut connection = spdy(&url, SPDY_VERSIONS[0]).await;
    let mut error = open(&mut connection, "error");
    let mut stdin = open(&mut connection, "stdin");
    let mut stdout = open(&mut connection, "stdout");
    let _stderr = open(&mut connection, "stderr");
    stdin.write_all(b"there and back\n").await.unwrap();
    stdin.shutdown().await.unwrap();
    assert_eq!(text(&mut stdout).await, "there and back\n");
    assert!(text(&mut error).await.contains("Success"));
}

#[tokio::test(flavor = "multi_thread")]
async fn spdy_carries_terminals_attachments_and_ports() {
    let node = Node::start().await;
    let (_, container) = idle(&node, "spdy").await;
    let url = exec(&node, &container, &["signals"], true, true).await;
    let mut connection = spdy(&url, SPDY_VERSIONS[0]).await;
    let mut error = open(&mut connection, "error");
    let mut stdin = open(&mut connection, "stdin");
    let mut stdout = open(&mut connection, "stdout");
    let mut resize = open(&mut connection, "resize");
    until(&mut stdout, "waiting for signals\r\n").await;
    resize
        .write_all(b"{\"Width\":90,\"Height\":30}\n")
        .await
        .unwrap();
    until(&mut stdout, &format!("signal {}", libc::SIGWINCH)).await;
    stdin.write_all(&[0x1c]).await.unwrap();
    assert!(text(&mut error).await.contains("Success"));

    let pod = node.run_sandbox(sandbox_config(&node, "more")).await;
    let mut config = container_config("cat", &["cat"]);
    config.stdin = true;
    config.stdin_once = true;
    let cat = node.run(&pod, config).await;
    let request = v1::AttachRequest {
        container_id: cat.clone(),
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    let url = node
        .cri
        .clone()
        .runtime
        .attach(request)
        .await
        .unwrap()
        .into_inner()
        .url;
    let mut connection = spdy(&url, SPDY_VERSIONS[0]).await;
    let _error = open(&mut connection, "error");
    let mut stdin = open(&mut connection, "stdin");
    let mut stdout = open(&mut connection, "stdout");
    let _stderr = open(&mut connection, "stderr");
    stdin.write_all(b"typed\n").await.unwrap();
    until(&mut stdout, "typed\n").await;
    stdin.shutdown().await.unwrap();
    assert_eq!(node.wait_exit(&cat).await.exit_code, 0);

    node.run(&pod, container_config("web", &[])).await;
    node.wait_for("the server", || !node.log("more", "web").is_empty())
        .await;
    let url = forward(&node, &pod).await;
    let mut connection = spdy(&url, "portforward.k8s.io").await;
    for request in ["0", "1"] {
        let mut open = |kind: &str| {
            connection.open(&[
                ("streamtype", kind),
                ("port", "8080"),
                ("requestid", request),
            ])
        };
        let mut error = open("error");
        let mut data = open("data");
        data.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        assert!(text(&mut data).await.ends_with("more\n"));
        data.shutdown().await.unwrap();
        assert_eq!(text(&mut error).await, "");
    }
    let mut open =
        |kind: &str| connection.open(&[("streamtype", kind), ("port", "9"), ("requestid", "2")]);
    let mut error = open("error");
    let _data = open("data");
    assert!(text(&mut error).await.contains("port 9"));
}

async fn forward(node: &Node, pod: &str) -> String {
    let request = v1::PortForwardRequest {
        pod_sandbox_id: pod.into(),
        port: vec![8080],
    };
    let answer = node.cri.clone().runtime.port_forward(request).await;
    answer.unwrap().into_inner().url
}

async fn until(stream: &mut Stream, wanted: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let byte = stream.read_u8().await;
        seen.push(byte.unwrap_or_else(|error| panic!("{error} after {seen:?}")));
    }
}

/// Messages of a WebSocket by channel, until it closes.
async fn channels(socket: &mut WebSocketStream<Io>) -> [String; 5] {
    let mut seen: [Vec<u8>; 5] = Default::default();
    while let Some(Ok(message)) = socket.next().await {
        let (channel, data) = match message {
            Message::Binary(bytes) if !bytes.is_empty() => (bytes[0], bytes[1..].to_vec()),
            Message::Text(text) if !text.is_empty() => {
                let (channel, data) = text.split_at(1);
                (
                    channel.parse().unwrap(),
                    BASE64_STANDARD.decode(data).unwrap(),
                )
            }
            Message::Close(_) => break,
            _ => continue,
        };
        seen[usize::from(channel)].extend(data);
    }
    seen.map(|bytes| String::from_utf8(bytes).unwrap())
}

/// Waits until the program that prints signals has installed its handlers.
async fn ready(socket: &mut WebSocketStream<Io>) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("waiting for signals") {
        match socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => seen.extend(bytes.iter().skip(1)),
            Message::Text(text) => seen.extend(BASE64_STANDARD.decode(&text[1..]).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

fn message(base64: bool, channel: u8, data: &[u8]) -> Message {
    if base64 {
        return Message::text(format!("{channel}{}", BASE64_STANDARD.encode(data)));
    }
    Message::binary([&[channel], data].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_carry_commands_in_every_version() {
    let node = Node::start().await;
    let (_, container) = idle(&node, "ws").await;
    for version in [
        "v5.channel.k8s.io",
        "v4.channel.k8s.io",
        "v4.base64.channel.k8s.io",
        "channel.k8s.io",
        "base64.channel.k8s.io",
        "",
    ] {
        let url = exec(&node, &container, &["log", "1"], false, false).await;
        let seen = channels(&mut websocket(&url, version).await).await;
        assert_eq!(
            (seen[1].as_str(), seen[2].as_str()),
            ("out 1\n", "err 1\n"),
            "{version}"
        );
        let json = version.starts_with('v');
        assert_eq!(seen[3].contains("Success"), json, "{version}: {}", seen[3]);
        let url = exec(&node, &container, &["exit", "4"], false, false).await;
        let seen = channels(&mut websocket(&url, version).await).await;
        assert!(seen[3].contains("exit status 4"), "{version}: {}", seen[3]);
        assert_eq!(seen[3].contains("\"ExitCode\""), json);

        // Input: only the newest version can close it, others end the program with a signal.
        let url = exec(&node, &container, &["signals"], true, true).await;
        let mut socket = websocket(&url, version).await;
        let base64 = version.contains("base64");
        ready(&mut socket).await;
        socket.send(message(base64, 0, &[0x1c])).await.unwrap();
        let seen = channels(&mut socket).await;
        assert!(seen[1].contains("signal 3"), "{version}: {seen:?}");
    }
    let url = exec(&node, &container, &["cat"], false, true).await;
    let mut socket = websocket(&url, "v5.channel.k8s.io").await;
    socket.send(message(false, 0, b"half")).await.unwrap();
    socket.send(Message::binary(vec![255, 0])).await.unwrap();
    let seen = channels(&mut socket).await;
    assert_eq!(seen[1], "half");
    assert!(seen[3].contains("Success"));

    let url = exec(&node, &container, &["signals"], true, true).await;
    let mut socket = websocket(&url, "v5.channel.k8s.io").await;
    ready(&mut socket).await;
    socket
        .send(message(false, 4, b"{\"Width\":91,\"Height\":31}"))
        .await
        .unwrap();
    socket.send(message(false, 0, &[0x1c])).await.unwrap();
    let seen = channels(&mut socket).await;
    assert!(
        seen[1].contains("signal 28") && seen[1].contains("signal 3"),
        "{seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn old_websockets_forward_the_ports_that_were_named() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "ws")).await;
    node.run(&pod, container_config("web", &[])).await;
    node.wait_for("the server", || !node.log("ws", "web").is_empty())
        .await;
    for version in ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"] {
        let url = forward(&node, &pod).await;
        let mut socket = websocket(&url, version).await;
        let base64 = version.contains("base64");
        let request = b"GET / HTTP/1.0\r\n\r\n";
        socket.send(message(base64, 0, request)).await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("ws\n") {
            let bytes = match socket.next().await.unwrap().unwrap() {
                Message::Binary(bytes) if bytes[0] == 0 => bytes[1..].to_vec(),
                Message::Text(text) if text.starts_with('0') => {
                    BASE64_STANDARD.decode(&text[1..]).unwrap()
                }
                Message::Close(_) => break,
                _ => continue,
            };
            // Both channels start with their port.
            answer.push_str(&String::from_utf8_lossy(&bytes));
        }
        assert!(answer.ends_with("ws\n"), "{version}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_disconnected_clients_affect_no_others() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "slow")).await;
    let big = node.root.join("big");
    fs::write(&big, vec![b'x'; 8 << 20]).unwrap();
    let mut config = container_config("idle", &["sleep"]);
    config.mounts = vec![v1::Mount {
        container_path: "/big".into(),
        host_path: big.display().to_string(),
        readonly: true,
        ..Default::default()
    }];
    let container = node.run(&pod, config).await;
    // A client that does not read must not block others, on the same or other connections.
    let url = exec(&node, &container, &["cat", "/big"], false, false).await;
    let mut connection = spdy(&url, SPDY_VERSIONS[0]).await;
    let mut error = open(&mut connection, "error");
    let mut stdout = open(&mut connection, "stdout");
    let _stderr = open(&mut connection, "stderr");
    let url = exec(&node, &container, &["cat", "/big"], false, false).await;
    let mut slow = websocket(&url, "v5.channel.k8s.io").await;
    for _ in 0..3 {
        let output = node.exec(&container, &["/mainstay", "hello", "pwd"]).await;
        assert_eq!(output.stdout, b"/\n");
    }
    assert_eq!(text(&mut stdout).await.len(), 8 << 20);
    assert!(text(&mut error).await.contains("Success"));
    assert_eq!(channels(&mut slow).await[1].len(), 8 << 20);

    // Closing a terminal ends its command, and so does closing the input.
    let before = node.processes().len();
    let url = exec(&node, &container, &["sleep"], true, true).await;
    let mut connection = spdy(&url, SPDY_VERSIONS[0]).await;
    let streams = ["error", "stdin", "stdout", "resize"].map(|kind| open(&mut connection, kind));
    node.wait_for("the command", || node.processes().len() > before)
        .await;
    drop(streams);
    connection.shutdown().await;
    node.wait_for("the command to end", || node.processes().len() == before)
        .await;
    let url = exec(&node, &container, &["cat"], false, true).await;
    let socket = websocket(&url, "v5.channel.k8s.io").await;
    node.wait_for("the command", || node.processes().len() > before)
        .await;
    drop(socket);
    node.wait_for("the command to end", || node.processes().len() == before)
        .await;

    // A command that times out is killed.
    let late = node
        .try_exec(&container, &["/mainstay", "hello", "sleep"], 1)
        .await;
    assert_eq!(late.unwrap_err().code(), cri::tonic::Code::DeadlineExceeded);
    node.wait_for("the command to end", || node.processes().len() == before)
        .await;
    tokio::time::timeout(Duration::from_secs(20), node.stop(&container, 1))
        .await
        .unwrap();
}
