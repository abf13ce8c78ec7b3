//! A stand-in kubelet: accepts only the API server's certificate, reports how it was called, and
//! behaves as the container's name says.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use streaming::{ExitStatus, Options, portforward, server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{Server, admin};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

type Answer = Response<Full<Bytes>>;

/// How the kubelet was called.
fn spoken(request: &Request<Incoming>) -> String {
    let header = |headers: &HeaderMap, name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let headers = request.headers();
    format!(
        "{} {} {}{}\n",
        request.method(),
        header(headers, "upgrade"),
        header(headers, "x-stream-protocol-version"),
        header(headers, "sec-websocket-protocol"),
    )
}

/// Reports how it was called, echoes stdin, reports terminal sizes on stderr, exits with 3.
async fn echo(pending: server::Pending, spoken: String) {
    let mut session = pending.open().await.unwrap();
    let mut stdout = session.stdout.take().unwrap();
    stdout.write_all(spoken.as_bytes()).await.unwrap();
    if let Some(mut sizes) = session.resize.take() {
        let size = sizes.next().await.unwrap();
        let text = format!("{}x{}\n", size.width, size.height);
        stdout.write_all(text.as_bytes()).await.unwrap();
    }
    let mut all = Vec::new();
    if let Some(mut stdin) = session.stdin.take() {
        stdin.read_to_end(&mut all).await.unwrap();
    }
    stdout.write_all(&all).await.unwrap();
    drop(stdout);
    if let Some(mut stderr) = session.stderr.take() {
        let count = all.len().to_string();
        stderr.write_all(count.as_bytes()).await.unwrap();
    }
    session.finish(ExitStatus::Code(3)).await;
}

/// Every port answers with its number, how it was called, and what it received.
async fn forward(pending: portforward::Pending, spoken: String) {
    let mut forwards = pending.open().await.unwrap();
    while let Some(mut forward) = forwards.next().await {
        if forward.port == 1 {
            forward.fail("nobody listens").await;
            continue;
        }
        let spoken = spoken.clone();
        tokio::spawn(async move {
            let mut heard = String::new();
            forward.data.read_to_string(&mut heard).await.unwrap();
            let answer = format!("{} {spoken}{heard}", forward.port);
            forward.data.write_all(answer.as_bytes()).await.unwrap();
        });
    }
}

fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = Answer::new(Full::from(text.into()));
    *answer.status_mut() = status;
    if status.is_redirection() {
        let elsewhere = "https://127.0.0.1:1/elsewhere".parse().unwrap();
        answer.headers_mut().insert("location", elsewhere);
    }
    answer
}

async fn answer(mut request: Request<Incoming>) -> Result<Answer, Infallible> {
    assert!(!request.headers().contains_key("authorization"));
    let asked = request.uri().path_and_query().unwrap().to_string();
    let path = request.uri().path().to_owned();
    let mut words = path.trim_start_matches('/').split('/');
    let (action, container) = (
        words.next().unwrap_or_default(),
        words.nth(2).unwrap_or_default(),
    );
    match container {
        "away" => return Ok(plain(StatusCode::FOUND, "")),
        "refused" => return Ok(plain(StatusCode::FORBIDDEN, "not today")),
        "broken" => return Ok(plain(StatusCode::INTERNAL_SERVER_ERROR, "disk on fire")),
        _ => {}
    }
    let spoken = spoken(&request);
    Ok(match action {
        "exec" | "attach" => {
            let flag = |name: &str| asked.contains(&format!("{name}=1"));
            let options = Options {
                stdin: flag("input"),
                stdout: flag("output"),
                stderr: flag("error"),
                tty: flag("tty"),
            };
            match server::exec(&mut request, options) {
                Err(refusal) => refusal,
                Ok((answer, pending)) => {
                    tokio::spawn(echo(pending, format!("{asked} {spoken}")));
                    answer
                }
            }
        }
        "portForward" => match portforward::accept(&mut request, &[]) {
            Err(refusal) => refusal,
            Ok((answer, pending)) => {
                tokio::spawn(forward(pending, spoken));
                answer
            }
        },
        "metrics" => plain(StatusCode::OK, resource_metrics()),
        _ => plain(StatusCode::OK, format!("{} {asked}", request.method())),
    })
}

/// Metrics: the node uses half a processor, and each container a quarter, of the pod `p` and of one
/// that does not exist.
fn resource_metrics() -> String {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    // The start time: small enough for exact fractions.
    static BEGUN: std::sync::OnceLock<u128> = std::sync::OnceLock::new();
    let at = since.as_millis();
    let seconds = (at - BEGUN.get_or_init(|| at)) as f64 / 1e3;
    let mut page = format!(
        "node_cpu_usage_seconds_total {} {at}\nnode_memory_working_set_bytes 3145728 {at}\n",
        seconds / 2.0
    );
    for (container, pod) in [("a", "p"), ("away", "p"), ("a", "elsewhere")] {
        let labels = format!("container=\"{container}\",namespace=\"default\",pod=\"{pod}\"");
        let cpu = seconds / 4.0;
        page += &format!("container_cpu_usage_seconds_total{{{labels}}} {cpu} {at}\n");
        page += &format!("container_memory_working_set_bytes{{{labels}}} 1048576 {at}\n");
    }
    page
}

/// Listens; returns its port.
pub(crate) async fn start(server: &Server) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = tokio_rustls::TlsAcceptor::from(server.pki.kubelet_config().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let tls = acceptor.accept(stream).await.unwrap();
                assert!(tls.get_ref().1.peer_certificates().is_some());
                let serve = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(tls), service_fn(answer));
                serve.with_upgrades().await.ok();
            });
        }
    });
    port
}

/// A node with the stand-in kubelet, and a pod whose containers behave differently. `features` are
/// the node's declared features.
pub(crate) async fn with_pod(features: Value) -> Server {
    let server = Server::start().await;
    let port = start(&server).await;
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "declaredFeatures": features,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    let made = admin(&server, "POST", "/api/v1/nodes", node).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let containers: Vec<Value> = ["a", "away", "refused", "broken"]
        .map(|name| json!({"name": name, "image": "i"}))
        .to_vec();
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": containers}});
    let made = admin(&server, "POST", PODS, pod).await;
    assert_eq!(made.code, 201, "{}", made.body);
    server
}
