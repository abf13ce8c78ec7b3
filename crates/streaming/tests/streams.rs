//! Exec and port-forward from a client through a tunnel to a server, and the tunnel's rejections.

#![allow(clippy::unwrap_used)]

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use streaming::{
    ExitStatus, Options, TerminalSize, client::Handshake, portforward, server, tunnel,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::Notify,
};

type Answer = Response<Full<Bytes>>;

const LIMIT: Duration = Duration::from_secs(20);

/// A container that echoes stdin on stdout, counts it on stderr and exits with 3.
async fn echo(mut session: streaming::Session) {
    let mut all = Vec::new();
    session
        .stdin
        .take()
        .unwrap()
        .read_to_end(&mut all)
        .await
        .unwrap();
    session
        .stdout
        .take()
        .unwrap()
        .write_all(&all)
        .await
        .unwrap();
    if let Some(mut stderr) = session.stderr.take() {
        stderr
            .write_all(all.len().to_string().as_bytes())
            .await
            .unwrap();
    }
    session.finish(ExitStatus::Code(3)).await;
}

/// A pod whose ports answer with their number and what they received.
async fn forward(mut forwards: portforward::PortForward) {
    while let Some(mut forward) = forwards.next().await {
        if forward.port == 1 {
            forward.fail("nobody listens").await;
            continue;
        }
        tokio::spawn(async move {
            let mut heard = String::new();
            forward.data.read_to_string(&mut heard).await.unwrap();
            let answer = format!("{} heard {heard}", forward.port);
            forward.data.write_all(answer.as_bytes()).await.unwrap();
        });
    }
}

async fn backend(mut request: Request<Incoming>) -> Result<Answer, Infallible> {
    assert!(
        request.headers().get("authorization").is_none(),
        "credentials reached the backend"
    );
    let refuse = |status, message: &'static str| {
        let mut response = Answer::new(Full::from(message));
        *response.status_mut() = status;
        Ok(response)
    };
    let tty = request.uri().query() == Some("tty");
    match request.uri().path() {
        "/exec" => {
            let options = Options {
                stdin: true,
                stdout: true,
                stderr: true,
                tty,
            };
            let (answer, pending) = match server::exec(&mut request, options) {
                Ok(accepted) => accepted,
                Err(refusal) => return Ok(refusal),
            };
            tokio::spawn(async move {
                let mut session = pending.open().await.unwrap();
                if tty {
                    let size = session.resize.as_mut().unwrap().next().await.unwrap();
                    let text = format!("{}x{}", size.width, size.height);
                    session
                        .stdout
                        .as_mut()
                        .unwrap()
                        .write_all(text.as_bytes())
                        .await
                        .unwrap();
                    assert!(session.stderr.is_none(), "a terminal has one output");
                    session.finish(ExitStatus::Code(0)).await;
                } else {
                    echo(session).await;
                }
            });
            Ok(answer)
        }
        "/portforward" => {
            let (answer, pending) = match portforward::accept(&mut request, &[]) {
                Ok(accepted) => accepted,
                Err(refusal) => return Ok(refusal),
            };
            tokio::spawn(async move { forward(pending.open().await.unwrap()).await });
            Ok(answer)
        }
        "/redirect" => {
            let mut response = Answer::default();
            *response.status_mut() = StatusCode::FOUND;
            let elsewhere = "http://127.0.0.1:1/".parse().unwrap();
            response.headers_mut().insert("location", elsewhere);
            Ok(response)
        }
        "/ok" => refuse(StatusCode::OK, "fine"),
        _ => refuse(StatusCode::FORBIDDEN, "not for you"),
    }
}

fn serve<F, R>(io: DuplexStream, service: F)
where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Answer, Infallible>> + Send + 'static,
{
    let service = service_fn(service);
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    tokio::spawn(connection);
}

/// The proxy's side: every request is tunnelled to a fresh backend connection.
async fn proxy(
    request: Request<Incoming>,
    backend_gone: Arc<Notify>,
) -> Result<Answer, Infallible> {
    let (near, far) = tokio::io::duplex(1024);
    let service = service_fn(backend);
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(far), service)
        .with_upgrades();
    tokio::spawn(async move {
        let _ = connection.await;
        backend_gone.notify_one();
    });
    let (answer, splice) = tunnel::upgrade(request, near).await.unwrap();
    if let Some(splice) = splice {
        tokio::spawn(splice.run());
    }
    Ok(answer)
}

/// Sends one request through the proxy.
async fn send(request: Request<Empty<Bytes>>) -> (Response<Incoming>, Arc<Notify>) {
    let (near, far) = tokio::io::duplex(1024);
    let gone = Arc::new(Notify::new());
    let notify = gone.clone();
    serve(far, move |request| proxy(request, notify.clone()));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
        .await
        .unwrap();
    tokio::spawn(connection.with_upgrades());
    (sender.send_request(request).await.unwrap(), gone)
}

fn request(handshake: &Handshake, path: &str) -> Request<Empty<Bytes>> {
    let request = handshake.request().uri(path).header("host", "pod");
    request
        .header("authorization", "Bearer secret")
        .body(Empty::new())
        .unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap()
}

#[tokio::test]
async fn a_command_gets_its_input_and_its_output_and_exit_code_come_back() {
    let handshake = Handshake::for_exec();
    let (response, _) = send(request(&handshake, "/exec")).await;
    let mut exec = handshake.exec(response).await.unwrap();
    let data = vec![b'x'; 300_000];
    let mut stdin = exec.stdin.take().unwrap();
    let input = data.clone();
    let feeding = tokio::spawn(async move { stdin.write_all(&input).await.unwrap() });
    let (mut stdout, mut stderr) = (Vec::new(), String::new());
    let (mut out, mut err) = (exec.stdout.take().unwrap(), exec.stderr.take().unwrap());
    let (status, read, _) = within(async {
        tokio::join!(
            exec.status(),
            out.read_to_end(&mut stdout),
            err.read_to_string(&mut stderr)
        )
    })
    .await;
    read.unwrap();
    feeding.await.unwrap();
    assert_eq!((status, stdout), (ExitStatus::Code(3), data));
    assert_eq!(stderr, "300000");
    within(exec.close()).await;
}

#[tokio::test]
async fn a_terminals_size_reaches_the_command() {
    let handshake = Handshake::for_exec();
    let (response, _) = send(request(&handshake, "/exec?tty")).await;
    let mut exec = handshake.exec(response).await.unwrap();
    exec.resize
        .send(TerminalSize {
            width: 80,
            height: 24,
        })
        .await
        .unwrap();
    assert_eq!(within(exec.status()).await, ExitStatus::Code(0));
    let mut shown = String::new();
    exec.stdout
        .take()
        .unwrap()
        .read_to_string(&mut shown)
        .await
        .unwrap();
    assert_eq!(shown, "80x24");
}

#[tokio::test]
async fn connections_are_forwarded_side_by_side_and_a_failure_says_why() {
    let handshake = Handshake::for_port_forward();
    let (response, _) = send(request(&handshake, "/portforward")).await;
    let mut forward = handshake.port_forward(response).await.unwrap();
    let (mut first, mut second, mut bad) = (forward.open(80), forward.open(443), forward.open(1));
    second.data.write_all(b"second").await.unwrap();
    first.data.write_all(b"first").await.unwrap();
    for (connection, expected) in [
        (&mut first, "80 heard first"),
        (&mut second, "443 heard second"),
    ] {
        connection.data.shutdown().await.unwrap();
        let mut answer = String::new();
        within(connection.data.read_to_string(&mut answer))
            .await
            .unwrap();
        assert_eq!(answer, expected);
        let mut error = String::new();
        within(connection.error.read_to_string(&mut error))
            .await
            .unwrap();
        assert_eq!(error, "");
    }
    let mut why = String::new();
    within(bad.error.read_to_string(&mut why)).await.unwrap();
    assert_eq!(why, "nobody listens");
}

#[tokio::test]
async fn a_refused_upgrade_leaves_no_way_to_the_backend() {
    for (path, status, text) in [
        ("/forbidden", StatusCode::FORBIDDEN, "not for you"),
        ("/ok", StatusCode::BAD_GATEWAY, "did not upgrade"),
        ("/redirect", StatusCode::BAD_GATEWAY, "redirect"),
    ] {
        let handshake = Handshake::for_exec();
        let (response, backend_gone) = send(request(&handshake, path)).await;
        assert_eq!(response.status(), status, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(
            String::from_utf8_lossy(&body).contains(text),
            "{path}: {body:?}"
        );
        within(backend_gone.notified()).await;
    }
}

#[tokio::test]
async fn a_request_without_an_upgrade_never_reaches_the_backend() {
    let request = Request::get("/exec")
        .header("host", "pod")
        .body(Empty::new())
        .unwrap();
    let (response, _) = send(request).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}
