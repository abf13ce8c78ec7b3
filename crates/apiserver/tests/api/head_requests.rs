//! HEAD: the headers of GET and no body, over HTTP/2 and HTTP/1.1, also for errors.

use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pki::Leaf;

use crate::support::{Server, admin};

/// Sends a request over HTTP/2; a body in a HEAD response would break the stream.
async fn ask(server: &Server, method: &str, path: &str) -> (u16, Option<String>, usize) {
    let mut config = server.pki.client_config(Leaf::Admin).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let address = server.url.trim_start_matches("https://");
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tls = connector.connect(name, stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = http::Request::builder()
        .method(method)
        .uri(format!("{}{path}", server.url))
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let code = response.status().as_u16();
    let length = response.headers().get("content-length").cloned();
    let length = length.map(|length| length.to_str().unwrap().to_owned());
    let body = response.into_body().collect().await.expect(path).to_bytes();
    (code, length, body.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_head_has_the_headers_of_the_one_to_get_and_no_body() {
    let server = Server::start().await;
    for path in [
        "/healthz",
        "/version",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces",
        "/api/v1/namespaces/missing",
        "/apis/nowhere",
        "/api/v1/namespaces?watch=1&timeoutSeconds=1",
    ] {
        let (code, length, size) = ask(&server, "HEAD", path).await;
        assert_eq!(size, 0, "{path}");
        if path.contains("watch") {
            continue;
        }
        let (same, whole, _) = ask(&server, "GET", path).await;
        // Reads return the same headers; other paths an error without a body.
        if code == same {
            assert_eq!(length, whole, "{path}");
        }
        let older = admin(&server, "HEAD", path, machinery::json::Value::Null).await;
        assert_eq!((older.code, older.body.as_str()), (code, ""), "{path}");
    }
}
