//! The stock kubectl against our exec and port-forward, over SPDY and over WebSocket. Skipped if
//! kubectl is not installed.

#![allow(clippy::unwrap_used)]

use std::{convert::Infallible, process::Stdio, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use streaming::{ExitStatus, Options, portforward, server};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
};

type Answer = Response<Full<Bytes>>;

fn document(path: &str) -> Value {
    match path {
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        "/api/v1" => json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [
            {"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
             "verbs": ["get", "list"]},
        ]}),
        _ => json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "web", "image": "web",
                                     "ports": [{"containerPort": 80}]}]},
            "status": {"phase": "Running"}}),
    }
}

/// Stands in for API server, kubelet and runtime together.
async fn api(mut request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path().to_owned();
    if path.ends_with("/exec") {
        let flags = request.uri().query().unwrap_or_default().to_owned();
        let has = |flag: &str| flags.split('&').any(|part| part == format!("{flag}=true"));
        let options = Options {
            stdin: has("stdin"),
            stdout: true,
            stderr: has("stderr"),
            tty: false,
        };
        let (answer, pending) = match server::exec(&mut request, options) {
            Ok(accepted) => accepted,
            Err(refusal) => return Ok(refusal),
        };
        tokio::spawn(async move {
            let mut session = pending.open().await.unwrap();
            let mut heard = Vec::new();
            if let Some(mut stdin) = session.stdin.take() {
                stdin.read_to_end(&mut heard).await.unwrap();
            }
            heard.reverse();
            session
                .stdout
                .as_mut()
                .unwrap()
                .write_all(&heard)
                .await
                .unwrap();
            session
                .stderr
                .as_mut()
                .unwrap()
                .write_all(b"complaint")
                .await
                .unwrap();
            session.finish(ExitStatus::Code(7)).await;
        });
        return Ok(answer);
    }
    if path.ends_with("/portforward") {
        let (answer, pending) = match portforward::accept(&mut request, &[]) {
            Ok(accepted) => accepted,
            Err(refusal) => return Ok(refusal),
        };
        tokio::spawn(async move {
            let mut forwards = pending.open().await.unwrap();
            while let Some(mut forward) = forwards.next().await {
                let mut line = [0; 4];
                forward.data.read_exact(&mut line).await.unwrap();
                let answer = format!("{} to {}", String::from_utf8_lossy(&line), forward.port);
                forward.data.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        return Ok(answer);
    }
    let body = document(&path).to_string();
    Ok(Response::builder()
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap())
}

/// The address of a running stand-in; it ends with the test's runtime.
async fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(io), service_fn(api))
                .with_upgrades();
            tokio::spawn(connection);
        }
    });
    format!("http://{address}")
}

fn kubectl(server: &str, home: &std::path::Path, websockets: bool) -> Command {
    let mut command = Command::new("kubectl");
    command
        .args(["--server", server, "--request-timeout", "20s"])
        .env("HOME", home)
        .env("KUBECONFIG", "/dev/null")
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets.to_string())
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn missing() -> bool {
    let version = Command::new("kubectl")
        .args(["version", "--client"])
        .output()
        .await;
    !version.is_ok_and(|output| output.status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_exec_carries_input_output_errors_and_the_exit_code() {
    if missing().await {
        return;
    }
    let server = start().await;
    let home = tempfile::tempdir().unwrap();
    for websockets in [false, true] {
        let mut child = kubectl(&server, home.path(), websockets)
            .args(["exec", "-i", "web", "--", "any"])
            .spawn()
            .unwrap();
        let input: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        let mut stdin = child.stdin.take().unwrap();
        let feed = input.clone();
        tokio::spawn(async move { stdin.write_all(&feed).await.unwrap() });
        let output = tokio::time::timeout(Duration::from_secs(30), child.wait_with_output());
        let output = output.await.unwrap().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(7),
            "websockets {websockets}: {complaint}"
        );
        assert!(
            output.stdout.iter().eq(input.iter().rev()),
            "websockets {websockets}"
        );
        // Before it, kubectl may log that the empty message that opens a WebSocket came before it knew the channel.
        assert!(complaint.contains("complaint"), "{complaint}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_port_forward_carries_several_connections() {
    if missing().await {
        return;
    }
    let server = start().await;
    let home = tempfile::tempdir().unwrap();
    for websockets in [false, true] {
        let mut child = kubectl(&server, home.path(), websockets)
            .args(["port-forward", "web", ":80"])
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await;
        let line = line.unwrap().unwrap().unwrap();
        let address = line.split_whitespace().nth(2).unwrap().to_owned();
        for _ in 0..3 {
            let mut connection = TcpStream::connect(&address).await.unwrap();
            connection.write_all(b"ping").await.unwrap();
            let mut answer = String::new();
            let read = connection.read_to_string(&mut answer);
            tokio::time::timeout(Duration::from_secs(10), read)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(answer, "ping to 80", "websockets {websockets}");
        }
        child.kill().await.unwrap();
    }
}
