//! Exec, attach and port-forward over the streaming server.

use cri::v1;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use streaming::{
    ExitStatus, TerminalSize,
    client::{Exec, Handshake},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Node, container_config, sandbox_config};

const HELLO: &str = "/mainstay";

/// Requests an upgrade of a streaming URL.
async fn ask(url: &str, handshake: &Handshake) -> http::Response<hyper::body::Incoming> {
    let uri: http::Uri = url.parse().unwrap();
    let stream = TcpStream::connect(uri.authority().unwrap().as_str())
        .await
        .unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = handshake
        .request()
        .uri(uri.path())
        .header("host", "localhost");
    sender
        .send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap())
        .await
        .unwrap()
}

async fn open_exec(url: &str) -> Exec {
    let handshake = Handshake::for_exec();
    let response = ask(url, &handshake).await;
    handshake.exec(response).await.unwrap()
}

async fn exec_url(
    node: &Node,
    container: &str,
    command: &[&str],
    tty: bool,
    stdin: bool,
) -> String {
    let request = v1::ExecRequest {
        container_id: container.into(),
        cmd: command.iter().map(|word| (*word).to_owned()).collect(),
        tty,
        stdin,
        stdout: true,
        stderr: !tty,
    };
    node.cri
        .clone()
        .runtime
        .exec(request)
        .await
        .unwrap()
        .into_inner()
        .url
}

async fn text(reader: &mut Option<streaming::StreamReader>) -> String {
    let mut text = String::new();
    reader
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .await
        .unwrap();
    text
}

async fn idle_pod(node: &Node, name: &str) -> (String, String) {
    let pod = node.run_sandbox(sandbox_config(node, name)).await;
    let container = node.run(&pod, container_config("idle", &["sleep"])).await;
    (pod, container)
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_carries_both_outputs_input_and_the_exit_code() {
    let node = Node::start().await;
    let (_, container) = idle_pod(&node, "exec").await;

    let url = exec_url(
        &node,
        &container,
        &[HELLO, "hello", "log", "2"],
        false,
        false,
    )
    .await;
    let mut exec = open_exec(&url).await;
    assert_eq!(text(&mut exec.stdout).await, "out 1\nout 2\n");
    assert_eq!(text(&mut exec.stderr).await, "err 1\nerr 2\n");
    assert_eq!(exec.status().await, ExitStatus::Code(0));

    let again = ask(&url, &Handshake::for_exec()).await;
    assert_eq!(again.status(), 404, "a ticket works once");

    let url = exec_url(&node, &container, &[HELLO, "hello", "cat"], false, true).await;
    let mut exec = open_exec(&url).await;
    let mut stdin = exec.stdin.take().unwrap();
    let sent = "x".repeat(300_000);
    let reading = tokio::spawn({
        let mut stdout = exec.stdout.take();
        async move { text(&mut stdout).await }
    });
    stdin.write_all(sent.as_bytes()).await.unwrap();
    drop(stdin);
    assert_eq!(reading.await.unwrap().len(), sent.len());
    assert_eq!(exec.status().await, ExitStatus::Code(0));

    let url = exec_url(
        &node,
        &container,
        &[HELLO, "hello", "exit", "9"],
        false,
        false,
    )
    .await;
    assert_eq!(open_exec(&url).await.status().await, ExitStatus::Code(9));

    let url = exec_url(&node, &container, &["/no/such"], false, false).await;
    let ExitStatus::Failed(why) = open_exec(&url).await.status().await else {
        panic!("it ran")
    };
    assert!(why.contains("no such file or directory"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_with_a_terminal_has_one_output_and_gets_resizes() {
    let node = Node::start().await;
    let (_, container) = idle_pod(&node, "tty").await;
    let url = exec_url(&node, &container, &[HELLO, "hello", "signals"], true, true).await;
    let mut exec = open_exec(&url).await;
    let mut stdout = exec.stdout.take().unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 1024];
    let mut until = async |wanted: &str, seen: &mut String| {
        while !seen.contains(wanted) {
            let length = stdout.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "ended with {seen:?}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    };
    until("waiting for signals\r\n", &mut seen).await;
    exec.resize
        .send(TerminalSize {
            width: 100,
            height: 40,
        })
        .await
        .unwrap();
    until(&format!("signal {}", libc::SIGWINCH), &mut seen).await;
    // Ctrl-\ sends SIGQUIT, which ends it.
    let mut stdin = exec.stdin.take().unwrap();
    stdin.write_all(&[0x1c]).await.unwrap();
    until(&format!("signal {}", libc::SIGQUIT), &mut seen).await;
    assert_eq!(exec.status().await, ExitStatus::Code(0));
}

async fn attach_url(node: &Node, container: &str) -> String {
    let request = v1::AttachRequest {
        container_id: container.to_owned(),
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    let answer = node.cri.clone().runtime.attach(request).await;
    answer.unwrap().into_inner().url
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_ends_with_the_clients_input_where_the_containers_stays_open() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "attach")).await;
    let mut config = container_config("cat", &["cat"]);
    config.stdin = true;
    let container = node.run(&pod, config).await;
    for _ in 0..2 {
        let mut attach = open_exec(&attach_url(&node, &container).await).await;
        let mut stdin = attach.stdin.take().unwrap();
        stdin.write_all(b"typed\n").await.unwrap();
        let mut line = [0; 6];
        let mut stdout = attach.stdout.take().unwrap();
        stdout.read_exact(&mut line).await.unwrap();
        drop(stdin);
        assert_eq!(attach.status().await, ExitStatus::Code(0));
    }
    assert_eq!(
        node.log("attach", "cat"),
        ["stdout F typed", "stdout F typed"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_joins_the_containers_own_streams() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "attach")).await;
    let mut config = container_config("cat", &["cat"]);
    config.stdin = true;
    config.stdin_once = true;
    let container = node.run(&pod, config).await;
    let url = attach_url(&node, &container).await;
    let mut attach = open_exec(&url).await;
    let mut stdin = attach.stdin.take().unwrap();
    stdin.write_all(b"typed\n").await.unwrap();
    let mut stdout = attach.stdout.take().unwrap();
    let mut line = [0; 6];
    stdout.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"typed\n");
    drop(stdin);
    assert_eq!(
        node.wait_exit(&container).await.exit_code,
        0,
        "its input ended with the client's"
    );
    assert_eq!(attach.status().await, ExitStatus::Code(0));
    assert_eq!(node.log("attach", "cat"), ["stdout F typed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_into_the_pods_network() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "ports")).await;
    let container = node.run(&pod, container_config("web", &[])).await;
    node.wait_for("the server", || !node.log("ports", "web").is_empty())
        .await;
    assert_eq!(node.status(&container).await.exit_code, 0);
    let request = v1::PortForwardRequest {
        pod_sandbox_id: pod,
        port: vec![8080],
    };
    let url = node
        .cri
        .clone()
        .runtime
        .port_forward(request)
        .await
        .unwrap()
        .into_inner()
        .url;
    let handshake = Handshake::for_port_forward();
    let response = ask(&url, &handshake).await;
    let mut forwards = handshake.port_forward(response).await.unwrap();
    for _ in 0..2 {
        let mut forwarded = forwards.open(8080);
        forwarded
            .data
            .write_all(b"GET / HTTP/1.0\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        forwarded.data.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nports\n"), "{answer}");
    }
    let mut refused = forwards.open(9);
    let mut why = String::new();
    refused.error.read_to_string(&mut why).await.unwrap();
    assert!(why.contains("port 9"), "{why}");
}
