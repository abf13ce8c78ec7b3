//! A proxied backend sees the request without its credentials.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use tokio::net::TcpListener;

use super::ask;
use crate::{
    security::regressions::{over_tls, without_credentials},
    support::{Server, admin, over_socket, send},
};

/// Answers with the path and headers that it received; refuses upgrades in the same way.
async fn mirror(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut seen = vec![format!("{} {}", request.method(), request.uri())];
    for (name, value) in request.headers() {
        seen.push(format!(
            "{name}: {}",
            String::from_utf8_lossy(value.as_bytes())
        ));
    }
    let mut response = Response::new(Full::from(seen.join("\n")));
    if request.headers().contains_key("upgrade") {
        *response.status_mut() = http::StatusCode::FORBIDDEN;
    }
    Ok(response)
}

const PROXY: &str = "/api/v1/namespaces/default/services/web:http/proxy";

/// A server with a Service whose one endpoint answers as [`mirror`].
async fn with_backend() -> Server {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(mirror))
                    .await
                    .ok();
            });
        }
    });
    let made = async |path: &str, object: Value| {
        let made = admin(&server, "POST", path, object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    };
    let namespace = "/api/v1/namespaces/default";
    let ports = json!([{"name": "http", "port": 80}]);
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": ports}});
    made(&format!("{namespace}/services"), service).await;
    let pod =
        json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    made(&format!("{namespace}/pods"), pod).await;
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let path = format!("{namespace}/pods/web/status");
    let set = admin(&server, "PATCH", &path, status).await;
    assert_eq!(set.code, 200, "{}", set.body);
    let target = json!({"kind": "Pod", "namespace": "default", "name": "web"});
    // Validation forbids loopback for addressType IPv4, but not for FQDN.
    let slice = json!({"metadata": {"name": "web", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "FQDN", "ports": [{"name": "http", "port": port}], "endpoints": [
            {"addresses": ["127.0.0.1"], "targetRef": target}]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    made(slices, slice).await;
    server
}

/// A token with all permissions.
async fn token(server: &Server) -> String {
    let binding = json!({"metadata": {"name": "root"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    let path = format!("{}/clusterrolebindings", super::RBAC);
    assert_eq!(admin(server, "POST", &path, binding).await.code, 201);
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let made = admin(server, "POST", path, json!({"spec": {}})).await;
    let token = made.json()["status"]["token"].as_str().unwrap().to_owned();
    let bearer = format!("Bearer {token}");
    crate::support::eventually(|| async {
        let headers = [("authorization", bearer.as_str())];
        let path = "/api/v1/secrets";
        let seen = over_tls(
            server,
            without_credentials(server),
            "GET",
            path,
            &headers,
            "",
        )
        .await;
        seen.is_ok_and(|seen| seen.code == 200).then_some(())
    })
    .await;
    token
}

fn assert_blind(seen: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!seen.contains(secret), "{secret} in\n{seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_sees_neither_tokens_nor_identities() {
    let server = with_backend().await;
    let token = token(&server).await;
    let bearer = format!("Bearer {token}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("proxy-authorization", bearer.as_str()),
        ("impersonate-user", "system:serviceaccount:default:default"),
        ("impersonate-group", "system:masters"),
        ("cookie", "session=1"),
    ];
    let path = format!("{PROXY}/a");
    let seen = over_tls(
        &server,
        without_credentials(&server),
        "GET",
        &path,
        &headers,
        "",
    );
    let seen = seen.await.unwrap();
    assert_eq!(seen.code, 200, "{}", seen.body);
    assert!(seen.body.starts_with("GET /a\n"), "{}", seen.body);
    assert!(seen.body.contains("cookie: session=1"), "{}", seen.body);
    assert_blind(&seen.body, &[&token, "authorization", "impersonate"]);
    // The front proxy's user headers are for this server only.
    let front = server
        .pki
        .client_config(pki::Leaf::FrontProxyClient)
        .unwrap();
    let headers = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-scopes", "all"),
        ("x-remote-uid", "1"),
    ];
    let seen = over_tls(&server, front, "GET", &path, &headers, "")
        .await
        .unwrap();
    assert_eq!(seen.code, 200, "{}", seen.body);
    assert_blind(&seen.body, &["x-remote", "root", "system:masters"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websockets_token_ends_at_this_server() {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
    let server = with_backend().await;
    let token = token(&server).await;
    let protocol = format!(
        "base64url.bearer.authorization.k8s.io.{}",
        BASE64.encode(&token)
    );
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let path = format!("{PROXY}/ws");
    let both = format!("{protocol}, chat");
    let headers = [&upgrade[..], &[("sec-websocket-protocol", both.as_str())]].concat();
    let seen = over_tls(
        &server,
        without_credentials(&server),
        "GET",
        &path,
        &headers,
        "",
    );
    let seen = seen.await.unwrap();
    assert_eq!(seen.code, 403, "the backend refuses: {}", seen.body);
    assert!(seen.body.starts_with("GET /ws\n"), "{}", seen.body);
    assert!(
        seen.body.contains("sec-websocket-protocol: chat"),
        "{}",
        seen.body
    );
    assert_blind(&seen.body, &[&protocol, "base64url"]);
    // Also for a caller with a client certificate.
    let mut request = Request::get(&path);
    for (name, value) in &headers {
        request = request.header(*name, *value);
    }
    let answer = over_socket(&server, request.body(Full::default()).unwrap()).await;
    let seen = answer.into_body().collect().await.unwrap().to_bytes();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("GET /ws\n"), "{seen}");
    assert_blind(&seen, &[&protocol, "base64url"]);
    // A token as the only subprotocol, given twice, or without a WebSocket is not accepted.
    let twice = format!("{protocol}, {protocol}, chat");
    for (headers, code) in [
        (
            [&upgrade[..], &[("sec-websocket-protocol", &protocol)]].concat(),
            401,
        ),
        (
            [&upgrade[..], &[("sec-websocket-protocol", &twice)]].concat(),
            401,
        ),
        (vec![("sec-websocket-protocol", both.as_str())], 403),
    ] {
        let refused = over_tls(
            &server,
            without_credentials(&server),
            "GET",
            &path,
            &headers,
            "",
        );
        let refused = refused.await.unwrap();
        assert_eq!(refused.code, code, "{headers:?}: {}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_through_a_nodes_proxy_opens_no_stream_at_its_kubelet() {
    let server = Server::start().await;
    let node = json!({"metadata": {"name": "n1"}});
    let made = admin(&server, "POST", "/api/v1/nodes", node).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let rules =
        json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes", "nodes/proxy"]}]);
    super::grant(&server, "eve", rules).await;
    let eve = super::user("eve");
    let exec = "/api/v1/nodes/n1/proxy/exec/default/p/c?command=id&output=1";
    for (path, upgrade, may) in [
        (exec, Some("websocket"), false),
        (exec, Some("SPDY/3.1"), false),
        (
            "/api/v1/nodes/n1/proxy/%65xec/default/p/c",
            Some("websocket"),
            false,
        ),
        (
            "/api/v1/nodes/https:n1:10250/proxy/exec/default/p/c",
            Some("websocket"),
            false,
        ),
        ("/api/v1/nodes/n1/proxy/metrics", None, true),
    ] {
        let headers: Vec<(&str, &str)> = upgrade
            .into_iter()
            .flat_map(|upgrade| [("connection", "Upgrade"), ("upgrade", upgrade)])
            .collect();
        let answer = send(&server, eve.clone(), "GET", path, &headers, "").await;
        let refused = answer.code == 403 && answer.body.contains("cannot create resource");
        assert_eq!(refused, !may, "{path}: {} {}", answer.code, answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxied_path_arrives_whole() {
    let server = with_backend().await;
    let root = apiserver::User::new("root", ["system:masters"]);
    for path in [
        "/",
        "/x/pods/y",
        "/services/web:http/proxy/z",
        "/api/v1/namespaces/default/services/web:http/proxy",
        "/a%2Fb/services/web",
        "//double//slashes/",
        "/x?watch=true&q=/services/other/proxy/",
    ] {
        let answer = ask(
            &server,
            &root,
            "GET",
            &format!("{PROXY}{path}"),
            Value::Null,
        )
        .await;
        let seen = answer.body.lines().next().unwrap_or_default();
        assert_eq!(seen, format!("GET {path}"), "{}", answer.body);
    }
    let redirected = ask(&server, &root, "GET", PROXY, Value::Null).await;
    assert_eq!(redirected.code, 301);
    assert_eq!(redirected.headers["location"], format!("{PROXY}/"));
}
