//! Limits on what unauthenticated clients may make the server read and buffer.

use futures::future::join_all;
use machinery::json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    security::regressions::{over_tls, without_credentials},
    support::{Server, dial_with},
};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_without_an_identity_is_refused_and_not_read_to_its_end() {
    let server = Server::start().await;
    let tls = dial_with(&server, without_credentials(&server)).await;
    let (mut reads, mut writes) = tokio::io::split(tls);
    let sending = tokio::spawn(async move {
        let size = 256 << 20;
        let head =
            format!("POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
        writes.write_all(head.as_bytes()).await.unwrap();
        let (piece, mut sent) = (vec![b'x'; 64 * 1024], 0);
        while sent < size && writes.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
        (sent, size)
    });
    let mut answer = [0; 12];
    reads.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403");
    let (sent, size) = sending.await.unwrap();
    assert!(sent < size, "all of it was read");
}

#[tokio::test(flavor = "multi_thread")]
async fn authenticated_users_are_served_while_others_send_heads_without_end() {
    let server = Server::start().await;
    let others = (0..100).map(|_| async {
        let mut tls = dial_with(&server, without_credentials(&server)).await;
        let head = format!(
            "GET /version HTTP/1.1\r\nhost: x\r\nx-long: {}",
            "x".repeat(200_000)
        );
        // Unread bytes stay in the sockets or in the client.
        let written = tokio::time::timeout(
            std::time::Duration::from_millis(200),
            tls.write_all(head.as_bytes()),
        );
        let _ = written.await;
        tls
    });
    let _others = join_all(others).await;
    let admin = || server.pki.client_config(pki::Leaf::Admin).unwrap();
    let large =
        json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(900_000)}}).to_string();
    let headers = [("content-type", "application/json")];
    let made = over_tls(&server, admin(), "POST", CONFIG_MAPS, &headers, &large).await;
    assert_eq!(made.unwrap().code, 201);
    let health = over_tls(
        &server,
        without_credentials(&server),
        "GET",
        "/livez",
        &[],
        "",
    )
    .await;
    assert_eq!(
        health.unwrap().code,
        200,
        "also without an identity, with a short head"
    );
}
