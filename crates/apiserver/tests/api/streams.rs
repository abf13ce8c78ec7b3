//! Logs, exec and proxies against a stand-in kubelet: what is forwarded, and where to.

use std::{convert::Infallible, sync::Arc};

use apiserver::User;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use machinery::json::{Value, json};
use pki::Leaf;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{Server, admin, send};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Answers with the request's path, or echoes after an upgrade.
async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let asked = request.uri().path_and_query().unwrap().to_string();
    if !asked.starts_with("/exec/") {
        return Ok(Response::new(Full::new(Bytes::from(format!(
            "{} {asked}",
            request.method()
        )))));
    }
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let mut io = TokioIo::new(upgraded);
        io.write_all(asked.as_bytes()).await.unwrap();
        let (mut read, mut write) = tokio::io::split(io);
        tokio::io::copy(&mut read, &mut write).await.ok();
    });
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert("connection", "Upgrade".parse().unwrap());
    response
        .headers_mut()
        .insert("upgrade", "SPDY/3.1".parse().unwrap());
    Ok(response)
}

/// A kubelet that accepts only the API server's certificate.
async fn kubelet(server: &Server) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = tokio_rustls::TlsAcceptor::from(server.pki.kubelet_config().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let tls = acceptor.accept(stream).await.unwrap();
                assert!(
                    tls.get_ref().1.peer_certificates().is_some(),
                    "no client certificate"
                );
                let serve = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(tls), service_fn(answer));
                serve.with_upgrades().await.ok();
            });
        }
    });
    port
}

/// A node with the stand-in kubelet and a pod of two containers on it.
async fn with_pod() -> Server {
    let server = Server::start().await;
    let port = kubelet(&server).await;
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    let made = admin(&server, "POST", "/api/v1/nodes", node).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [
        {"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}});
    let made = admin(&server, "POST", PODS, pod).await;
    assert_eq!(made.code, 201, "{}", made.body);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_come_from_the_kubelet_of_the_node() {
    let server = with_pod().await;
    let get = |query: &'static str| {
        let server = &server;
        async move { admin(server, "GET", &format!("{PODS}/p/log{query}"), Value::Null).await }
    };
    let logs = get("?container=b&follow=true&tailLines=5&previous=false&junk=1").await;
    let expected = "GET /containerLogs/default/p/b?follow=true&previous=false&tailLines=5";
    assert_eq!((logs.code, logs.body.as_str()), (200, expected));
    let several = get("").await;
    assert_eq!(several.code, 400);
    let message = several.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(
        message,
        "a container name must be specified for pod p, choose one of: [a b]"
    );
    let wrong = get("?container=x").await;
    assert_eq!(
        wrong.json()["message"],
        "container x is not valid for pod p"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_shows_the_address_of_another_server_is_not_taken_for_it() {
    let server = with_pod().await;
    let node = admin(&server, "GET", "/api/v1/nodes/n1", Value::Null).await;
    let kubelet = node.json()["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].clone();
    let port = server.url.rsplit(':').next().unwrap();
    for (name, port) in [
        ("at-n1", kubelet),
        ("at-server", port.parse::<u64>().unwrap().into()),
    ] {
        let node = json!({"metadata": {"name": name}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        let made = admin(&server, "POST", "/api/v1/nodes", node).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let containers = json!([{"name": "a", "image": "i"}]);
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": name, "containers": containers}});
        assert_eq!(admin(&server, "POST", PODS, pod).await.code, 201);
        let logs = admin(&server, "GET", &format!("{PODS}/{name}/log"), Value::Null).await;
        let why = format!("is not that of node {name}");
        assert!(
            logs.code >= 500 && logs.body.contains(&why),
            "{} {}",
            logs.code,
            logs.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_is_tunnelled_byte_for_byte() {
    let server = with_pod().await;
    let mut config = server.pki.client_config(Leaf::Admin).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let address = server.url.trim_start_matches("https://").to_owned();
    let stream = TcpStream::connect(&address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
        .await
        .unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = Request::post(format!(
        "{PODS}/p/exec?container=a&command=sh&command=-c&command=a%20b&stdin=true&stdout=true"
    ))
    .header("host", &address)
    .header("connection", "Upgrade")
    .header("upgrade", "SPDY/3.1")
    .header("x-stream-protocol-version", "v4.channel.k8s.io")
    .body(Empty::<Bytes>::new())
    .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let asked = "/exec/default/p/a?input=1&output=1&command=sh&command=-c&command=a%20b";
    let mut read = vec![0; asked.len()];
    io.read_exact(&mut read).await.unwrap();
    assert_eq!(String::from_utf8(read).unwrap(), asked);
    io.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    io.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
    let plain = admin(
        &server,
        "POST",
        &format!("{PODS}/p/exec?container=a&command=x"),
        Value::Null,
    )
    .await;
    assert_eq!(plain.code, 400, "{}", plain.body);
}

/// An address of this machine that is not its loopback, if it has one. Nothing is sent.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_proxy_leads_neither_to_loopback_nor_with_our_certificate_to_others() {
    let server = with_pod().await;
    let get = async |path: &str| admin(&server, "GET", path, Value::Null).await;
    for (path, code, message) in [
        ("n1/proxy/stats/summary", 400, "address not allowed"),
        ("n1:1/proxy/", 400, "address not allowed"),
        ("none/proxy/", 404, "nodes \"none\" not found"),
        ("ftp:n1:1/proxy/", 400, "invalid node request \"ftp:n1:1\""),
        ("a:b:c:d/proxy/", 400, "invalid node request \"a:b:c:d\""),
    ] {
        let refused = get(&format!("/api/v1/nodes/{path}")).await;
        let said = refused.json()["message"].as_str().unwrap().to_owned();
        assert_eq!((refused.code, said.as_str()), (code, message), "{path}");
    }
    let Some(address) = own_address() else {
        return;
    };
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            served.await.ok();
        }
    });
    let node = json!({"metadata": {"name": "n2"}, "status": {
        "addresses": [{"type": "InternalIP", "address": address.to_string()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    let made = admin(&server, "POST", "/api/v1/nodes", node).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let plain = get(&format!("/api/v1/nodes/n2:{port}/proxy/a//b?x=y")).await;
    assert_eq!((plain.code, plain.body.as_str()), (200, "GET /a//b?x=y"));
    let kubelet = get("/api/v1/nodes/n2/proxy/").await;
    let said = kubelet.json()["message"].as_str().unwrap().to_owned();
    let expected =
        format!("error trying to reach service: dial tcp {address}:1: connect: connection refused");
    assert_eq!((kubelet.code, said), (503, expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_proxy_reaches_a_ready_endpoint() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move {
                builder
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await
                    .ok();
            });
        }
    });
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    assert_eq!(
        admin(
            &server,
            "POST",
            "/api/v1/namespaces/default/services",
            service
        )
        .await
        .code,
        201
    );
    let path = "/api/v1/namespaces/default/services/web:http/proxy/a/b%20c?q=1";
    let none = admin(&server, "GET", path, Value::Null).await;
    assert_eq!(
        (none.code, none.json()["message"].as_str().unwrap()),
        (404, "services \"web\" not found"),
        "it has no endpoints"
    );
    // Validation forbids loopback for addressType IPv4, but not for FQDN.
    let target = json!({"kind": "Pod", "namespace": "default", "name": "web-1"});
    let slice = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "FQDN", "ports": [{"name": "http", "port": port}], "endpoints": [
            {"addresses": ["127.0.0.1"], "conditions": {"ready": true}, "targetRef": target},
            {"addresses": ["192.0.2.1"], "conditions": {"ready": true}, "targetRef": target},
            {"addresses": ["192.0.2.2"], "conditions": {"ready": true}},
            {"addresses": ["192.0.2.3"], "conditions": {"ready": false}}]});
    let made = admin(
        &server,
        "POST",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        slice,
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let unavailable = admin(&server, "GET", path, Value::Null).await;
    assert_eq!(unavailable.code, 503, "the addresses are no pod's yet");
    let pod = json!({"metadata": {"name": "web-1"}, "spec": {"containers": [
        {"name": "a", "image": "i"}]}});
    let made = admin(&server, "POST", PODS, pod).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let headers = [("content-type", "application/merge-patch+json")];
    let root = User::new("root", ["system:masters"]);
    let at = format!("{PODS}/web-1/status");
    let set = send(&server, root, "PATCH", &at, &headers, status.to_string()).await;
    assert_eq!(set.code, 200, "{}", set.body);
    let answer = admin(&server, "GET", path, Value::Null).await;
    assert_eq!(
        (answer.code, answer.body.as_str()),
        (200, "GET /a/b%20c?q=1")
    );
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let answer = admin(&server, method, path, json!({})).await;
        assert_eq!(answer.body, format!("{method} /a/b%20c?q=1"));
    }
}
