//! Replays of vulnerabilities known from other API servers, from outside: over TLS where the connection matters.

use std::sync::Arc;

use apiserver::User;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use pki::{Leaf, Names, Pki};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;

use crate::support::{Raw, Server, admin, send};

/// One request over TLS; the error is the handshake's or the connection's.
pub(crate) async fn over_tls(
    server: &Server,
    config: ClientConfig,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Raw, String> {
    let address = server.url.trim_start_matches("https://").to_owned();
    let stream = TcpStream::connect(&address)
        .await
        .map_err(|e| e.to_string())?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", address);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from(body.to_owned()));
    let request = request.body(body).unwrap();
    let response = sender
        .send_request(request)
        .await
        .map_err(|e| e.to_string())?;
    let (parts, body) = response.into_parts();
    let bytes = body
        .collect()
        .await
        .map_err(|error| error.to_string())?
        .to_bytes();
    Ok(Raw {
        code: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// A client of this server without credentials.
pub(crate) fn without_credentials(server: &Server) -> ClientConfig {
    pki::bearer_client_config(server.pki.ca().pem().as_bytes()).unwrap()
}

async fn with_token(server: &Server, token: &str, path: &str) -> Raw {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    over_tls(
        server,
        without_credentials(server),
        "GET",
        path,
        &headers,
        "",
    )
    .await
    .unwrap()
}

/// A token of the account `bot` in `default`, for these audiences and this bound object.
async fn token(server: &Server, audiences: &[&str], bound: Value) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts/bot/token";
    let spec = json!({"audiences": audiences, "expirationSeconds": 3600, "boundObjectRef": bound});
    let made = admin(server, "POST", path, json!({"spec": spec})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    made.json()["status"]["token"].as_str().unwrap().to_owned()
}

async fn with_account() -> Server {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "bot"}});
    let path = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(admin(&server, "POST", path, account).await.code, 201);
    server
}

async fn allow(server: &Server, user: &str, name: &str, rules: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    let group = "/apis/rbac.authorization.k8s.io/v1";
    let made = admin(server, "POST", &format!("{group}/clusterroles"), role).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let made = admin(
        server,
        "POST",
        &format!("{group}/clusterrolebindings"),
        binding,
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
}

/// Repeats the request until the new role binding is effective.
async fn once_allowed(server: &Server, user: &User, path: &str) -> Raw {
    for _ in 0..500 {
        let answer = send(server, user.clone(), "GET", path, &[], "").await;
        if answer.code == 200 {
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("never allowed: {path}")
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_over_tls_see_no_discovery() {
    let server = Server::start().await;
    for path in [
        "/api",
        "/apis",
        "/api/v1",
        "/openapi/v2",
        "/openapi/v3",
        "/metrics",
        "/",
    ] {
        let refused = over_tls(&server, without_credentials(&server), "GET", path, &[], "")
            .await
            .unwrap();
        assert_eq!(refused.code, 403, "{path}: {}", refused.body);
        assert!(
            refused.body.contains("system:anonymous"),
            "{}",
            refused.body
        );
    }
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        let seen = over_tls(&server, without_credentials(&server), "GET", path, &[], "")
            .await
            .unwrap();
        assert_eq!(seen.code, 200, "{path}");
    }
    // Paths that only resemble the public ones.
    for path in [
        "/healthz/../metrics",
        "/livez/%2e%2e/api",
        "//metrics",
        "/version/../api",
        "/healthz%2f..%2fapi",
    ] {
        let refused = over_tls(&server, without_credentials(&server), "GET", path, &[], "")
            .await
            .unwrap();
        assert!(
            matches!(refused.code, 403 | 404),
            "{path}: {} {}",
            refused.code,
            refused.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_or_purpose_opens_nothing() {
    let server = Server::start().await;
    let directory = tempfile::tempdir().unwrap();
    let theirs = Pki::ensure(directory.path(), &Names::default()).unwrap();
    let admin_pem = |pki: &Pki, leaf: Leaf| {
        let issued = pki.issued(leaf).unwrap();
        (issued.certificate_pem(), issued.key_pem())
    };
    let with = |(certificate, key): (String, String)| {
        let identity = (certificate.as_bytes(), key.as_bytes());
        pki::client_config_from_pem(server.pki.ca().pem().as_bytes(), Some(identity)).unwrap()
    };
    let own = with(admin_pem(&server.pki, Leaf::Admin));
    let seen = over_tls(&server, own, "GET", "/api/v1/nodes", &[], "")
        .await
        .unwrap();
    assert_eq!(seen.code, 200);
    let foreign = with(admin_pem(&theirs, Leaf::Admin));
    let refused = over_tls(&server, foreign, "GET", "/api/v1/nodes", &[], "").await;
    assert!(
        refused.is_err(),
        "a foreign certificate gets no answer at all"
    );
    // A serving certificate is not a client identity.
    let serving = with(admin_pem(&server.pki, Leaf::KubeletServing));
    let refused = over_tls(&server, serving, "GET", "/api/v1/nodes", &[], "").await;
    assert!(refused.is_err(), "a serving certificate is no client's");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_or_not_yet_valid_certificate_opens_nothing() {
    let server = Server::start().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "eve");
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "system:masters");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = pki::csr::Request::parse(pem.as_bytes()).unwrap();
    let usages = pki::csr::Usages::parse(&["client auth"]).unwrap();
    let now = jiff::Timestamp::now();
    let hour = std::time::Duration::from_secs(3600);
    for (at, opens) in [
        (now, true),
        (now - hour * 48, false),
        (now + hour * 48, false),
    ] {
        let signed = server.pki.ca().sign(&request, &usages, at, hour).unwrap();
        let secret = key.serialize_pem();
        let identity = Some((signed.as_bytes(), secret.as_bytes()));
        let config = pki::client_config_from_pem(server.pki.ca().pem().as_bytes(), identity);
        let path = "/api/v1/nodes";
        let seen = over_tls(&server, config.unwrap(), "GET", path, &[], "").await;
        assert_eq!(seen.is_ok_and(|seen| seen.code == 200), opens, "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_proxys_headers_need_a_front_proxys_certificate() {
    let server = Server::start().await;
    let headers = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
    ];
    let path = "/api/v1/nodes";
    let ask = async |config: ClientConfig| {
        over_tls(&server, config, "GET", path, &headers, "")
            .await
            .unwrap()
    };
    assert_eq!(ask(without_credentials(&server)).await.code, 403);
    let dns = server.pki.client_config(Leaf::Dns).unwrap();
    let refused = ask(dns).await;
    assert!(refused.code == 403 && refused.body.contains("system:mainstay:dns"));
    let proxy = server.pki.client_config(Leaf::FrontProxyClient).unwrap();
    assert_eq!(ask(proxy.clone()).await.code, 200);
    // Without headers the proxy is anonymous, not a user with its certificate's name.
    let alone = over_tls(&server, proxy, "GET", path, &[], "")
        .await
        .unwrap();
    assert!(matches!(alone.code, 401 | 403), "{}", alone.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_for_its_audience_and_as_long_as_what_it_is_bound_to() {
    let server = with_account().await;
    let path = "/apis/apps/v1";
    let own = token(&server, &[], Value::Null).await;
    assert_eq!(with_token(&server, &own, path).await.code, 200);
    let vault = token(&server, &["vault"], Value::Null).await;
    assert_eq!(with_token(&server, &vault, path).await.code, 401);
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = admin(&server, "POST", secrets, json!({"metadata": {"name": "s"}})).await;
    let uid = secret.json()["metadata"]["uid"].clone();
    let bound = json!({"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": uid});
    let bound = token(&server, &[], bound).await;
    assert_eq!(with_token(&server, &bound, path).await.code, 200);
    admin(&server, "DELETE", &format!("{secrets}/s"), Value::Null).await;
    assert_eq!(with_token(&server, &bound, path).await.code, 401);
    let again = admin(&server, "POST", secrets, json!({"metadata": {"name": "s"}})).await;
    assert_eq!(again.code, 201);
    assert_eq!(
        with_token(&server, &bound, path).await.code,
        401,
        "another of its name"
    );
    let account = "/api/v1/namespaces/default/serviceaccounts/bot";
    admin(&server, "DELETE", account, Value::Null).await;
    assert_eq!(with_token(&server, &own, path).await.code, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_tokens_open_nothing() {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
    let server = with_account().await;
    let good = token(&server, &[], Value::Null).await;
    let parts: Vec<&str> = good.split('.').collect();
    let header: Value = machinery::json::from_slice(&BASE64.decode(parts[0]).unwrap()).unwrap();
    let claims: Value = machinery::json::from_slice(&BASE64.decode(parts[1]).unwrap()).unwrap();
    let encode = |value: &Value| BASE64.encode(value.to_string());
    let mut root = claims.clone();
    root["sub"] = "system:serviceaccount:kube-system:root".into();
    let none = json!({"alg": "none", "typ": "JWT"});
    let hmac = json!({"alg": "HS256", "kid": header["kid"]});
    let stranger = json!({"alg": "ES256", "kid": "other", "jku": "https://192.0.2.1/keys"});
    let mut elsewhere = claims.clone();
    elsewhere["iss"] = "https://example.com".into();
    let forged = [
        format!("{}.{}.", encode(&none), parts[1]),
        format!("{}.{}.{}", encode(&none), parts[1], parts[2]),
        format!("{}.{}.{}", encode(&hmac), parts[1], parts[2]),
        format!("{}.{}.{}", encode(&stranger), encode(&root), parts[2]),
        format!("{}.{}.{}", parts[0], encode(&root), parts[2]),
        format!("{}.{}.{}", parts[0], encode(&elsewhere), parts[2]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{good}x"),
        "..".to_owned(),
    ];
    for token in forged {
        let answer = with_token(&server, &token, "/apis/apps/v1").await;
        assert_eq!(answer.code, 401, "{token}");
    }
    assert_eq!(with_token(&server, &good, "/apis/apps/v1").await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonation_needs_permission_for_user_groups_and_extra() {
    let server = Server::start().await;
    let one = json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"],
                      "resourceNames": ["bob"]}]);
    allow(&server, "eve", "as-bob", one).await;
    let eve = User::new("eve", [""; 0]);
    let ask = async |headers: &[(&str, &str)]| {
        let path = "/apis/apps/v1";
        send(&server, eve.clone(), "GET", path, headers, "")
            .await
            .code
    };
    for _ in 0..500 {
        if ask(&[("impersonate-user", "bob")]).await == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(ask(&[("impersonate-user", "bob")]).await, 200);
    let bob = ("impersonate-user", "bob");
    for wrong in [
        vec![("impersonate-user", "alice")],
        vec![bob, ("impersonate-group", "system:masters")],
        vec![bob, ("impersonate-uid", "1")],
        vec![bob, ("impersonate-extra-scopes", "all")],
        vec![("impersonate-user", "system:serviceaccount:default:bob")],
    ] {
        assert_eq!(ask(&wrong).await, 403, "{wrong:?}");
    }
    // Impersonation headers without a user are rejected instead of ignored.
    for wrong in [
        ("impersonate-group", "x"),
        ("impersonate-uid", "1"),
        ("impersonate-extra-a", "b"),
    ] {
        assert!(ask(&[wrong]).await >= 400, "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_taken_over_with_constraints_is_good_for_what_was_allowed_only() {
    let server = Server::start().await;
    let rules = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"],
         "resourceNames": ["alice"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "verbs": ["impersonate:associated-node"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["impersonate-on:user-info:list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["impersonate-on:associated-node:get"]},
    ]);
    allow(
        &server,
        "system:serviceaccount:default:agent",
        "agent",
        rules,
    )
    .await;
    let view = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    allow(&server, "alice", "alice", view).await;
    let mut agent = User::service_account("default", "agent");
    let node = "authentication.kubernetes.io/node-name".to_owned();
    agent.extra.insert(node, vec!["n1".to_owned()]);
    let ask = async |path: &str, headers: &[(&str, &str)]| {
        let answer = send(&server, agent.clone(), "GET", path, headers, "").await;
        (answer.code, answer.body)
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    let alice = ("impersonate-user", "alice");
    crate::support::eventually(|| async { (ask(maps, &[alice]).await.0 == 200).then_some(()) })
        .await;
    assert_eq!(ask(maps, &[]).await.0, 403, "not by itself");
    let one = format!("{maps}/kube-root-ca.crt");
    let (code, body) = ask(&one, &[alice]).await;
    assert_eq!(code, 403);
    assert!(
        body.contains("cannot impersonate-on:user-info:get resource"),
        "{body}"
    );
    let (code, body) = ask(maps, &[("impersonate-user", "bob")]).await;
    assert_eq!(code, 403);
    assert!(
        body.contains("cannot impersonate:user-info resource"),
        "{body}"
    );
    assert_eq!(
        ask(maps, &[alice, ("impersonate-group", "dev")]).await.0,
        403
    );
    let own = ("impersonate-user", "system:node:n1");
    let (code, body) = ask("/api/v1/nodes/n1", &[own]).await;
    assert_eq!(code, 404, "allowed as the node itself: {body}");
    let other = ("impersonate-user", "system:node:n2");
    let (code, body) = ask("/api/v1/nodes/n2", &[other]).await;
    assert_eq!(code, 403);
    assert!(
        body.contains("cannot impersonate-on:arbitrary-node:get"),
        "{body}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_for_one_name_shows_one_object() {
    let server = Server::start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for name in ["mine", "mine-not", "theirs"] {
        let secret = json!({"metadata": {"name": name}});
        assert_eq!(admin(&server, "POST", secrets, secret).await.code, 201);
    }
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"],
                        "verbs": ["get", "list", "watch", "deletecollection"]}]);
    allow(&server, "eve", "one-secret", rules).await;
    let eve = User::new("eve", [""; 0]);
    once_allowed(&server, &eve, &format!("{secrets}/mine")).await;
    let ask =
        async |method: &str, path: &str| send(&server, eve.clone(), method, path, &[], "").await;
    let watch = "/api/v1/watch/namespaces/default/secrets/mine?timeoutSeconds=1";
    for path in [
        format!("{secrets}?fieldSelector=metadata.name%3Dmine"),
        format!("{secrets}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dmine"),
        watch.to_owned(),
    ] {
        let seen = ask("GET", &path).await;
        assert_eq!(seen.code, 200, "{path}: {}", seen.body);
        assert!(seen.body.contains("\"mine\""), "{path}");
        assert!(
            !seen.body.contains("theirs") && !seen.body.contains("mine-not"),
            "{path}"
        );
    }
    let refused = [
        secrets.to_owned(),
        format!("{secrets}?watch=1"),
        format!("{secrets}/theirs"),
        format!("{secrets}/mine/../theirs"),
        format!("{secrets}/mine%2f..%2ftheirs"),
        format!("{secrets}/mine%00"),
        format!("{secrets}?fieldSelector=metadata.namespace!%3Dx%5C,metadata.name%3Dmine"),
        format!("{secrets}?fieldSelector=metadata.name!%3Dmine"),
        format!("{secrets}?fieldSelector=type!%3Dx&fieldSelector=metadata.name%3Dmine"),
        format!("{secrets}?name=mine"),
        "/api/v1/watch/namespaces/default/secrets".to_owned(),
        "/api/v1/namespaces/default%2fsecrets/theirs".to_owned(),
        "/api/v1/secrets?fieldSelector=metadata.namespace%3Ddefault".to_owned(),
    ];
    for path in refused {
        let answer = ask("GET", &path).await;
        assert!(
            answer.code >= 400,
            "{path}: {} {}",
            answer.code,
            answer.body
        );
        assert!(
            !answer.body.contains("\"kind\":\"Secret"),
            "{path}: {}",
            answer.body
        );
    }
    let named = format!("{secrets}?fieldSelector=metadata.name%3Dmine");
    assert_eq!(ask("DELETE", secrets).await.code, 403);
    assert_eq!(ask("DELETE", &named).await.code, 200);
    let left = admin(&server, "GET", secrets, Value::Null).await;
    assert!(left.body.contains("theirs") && left.body.contains("mine-not"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_reads_the_secrets_of_its_own_pods_alone() {
    let server = Server::start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for name in ["here", "there"] {
        let secret = json!({"metadata": {"name": name}});
        assert_eq!(admin(&server, "POST", secrets, secret).await.code, 201);
    }
    for (pod, node, secret) in [("a", "n1", "here"), ("b", "n2", "there")] {
        let volumes = json!([{"name": "v", "secret": {"secretName": secret}}]);
        let spec = json!({"nodeName": node, "volumes": volumes,
                          "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": pod}, "spec": spec});
        let made = admin(&server, "POST", "/api/v1/namespaces/default/pods", pod).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let kubelet = User::new("system:node:n1", ["system:nodes"]);
    once_allowed(&server, &kubelet, &format!("{secrets}/here")).await;
    for path in [
        format!("{secrets}/there"),
        secrets.to_owned(),
        format!("{secrets}?fieldSelector=metadata.name%3Dthere"),
        "/api/v1/watch/namespaces/default/secrets/there".to_owned(),
    ] {
        let refused = send(&server, kubelet.clone(), "GET", &path, &[], "").await;
        assert_eq!(refused.code, 403, "{path}: {}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn external_addresses_are_refused_unless_they_are_allowed() {
    let service = json!({"metadata": {"name": "web"}, "spec": {
        "externalIPs": ["192.0.2.7"], "ports": [{"port": 80}]}});
    let path = "/api/v1/namespaces/default/services";
    let server = Server::start().await;
    let refused = admin(&server, "POST", path, service.clone()).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert!(
        refused
            .body
            .contains("Use of external IPs is denied by admission control")
    );
    let server = Server::configured(|config, _| {
        config.admission.disable = vec!["DenyServiceExternalIPs".to_owned()];
    })
    .await;
    assert_eq!(admin(&server, "POST", path, service).await.code, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn decompression_bombs_and_oversized_bodies_are_rejected() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let post = async |media: &str, body: String| {
        let headers = [("content-type", media)];
        let eve = User::new("eve", ["system:masters"]);
        send(&server, eve, "POST", path, &headers, body).await
    };
    let mut bomb = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (name, before) in ('b'..='i').zip('a'..) {
        let uses = vec![format!("*{before}"); 9].join(",");
        bomb.push_str(&format!("{name}: &{name} [{uses}]\n"));
    }
    let answer = post("application/yaml", bomb).await;
    assert!(
        matches!(answer.code, 400 | 413),
        "{} {}",
        answer.code,
        answer.body
    );
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let answer = post("application/json", format!("{{\"data\":{deep}}}")).await;
    assert_eq!(answer.code, 400, "{}", answer.body);
    let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert_eq!(post("application/json", deep).await.code, 400);
    let headers = [("content-type", "application/json-patch+json")];
    let admin_user = User::new("ops", ["system:masters"]);
    let copies = json!({"op": "copy", "from": "/data", "path": "/data/x"});
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "v".repeat(1000)}});
    assert_eq!(admin(&server, "POST", path, map).await.code, 201);
    let patch = Value::from(vec![copies; 2000]).to_string();
    let one = format!("{path}/m");
    let answer = send(&server, admin_user, "PATCH", &one, &headers, patch).await;
    assert!(answer.code >= 400, "{}", answer.code);
    // The connection's limits: oversized headers.
    let huge = "x".repeat(2 << 20);
    let headers = [("x-filler", huge.as_str())];
    let config = server.pki.client_config(Leaf::Admin).unwrap();
    let answer = over_tls(&server, config, "GET", "/api/v1/nodes", &headers, "").await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.code >= 400));
    let well = admin(&server, "GET", "/readyz", Value::Null).await;
    assert_eq!(well.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_escalation_is_forbidden() {
    let server = Server::start().await;
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "verbs": ["create", "update", "patch", "get"],
         "resources": ["clusterroles", "clusterrolebindings", "roles", "rolebindings"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    allow(&server, "eve", "role-maker", rules).await;
    let eve = User::new("eve", [""; 0]);
    let group = "/apis/rbac.authorization.k8s.io/v1";
    once_allowed(&server, &eve, &format!("{group}/clusterroles/view")).await;
    let ask = async |path: String, body: Value| {
        let headers = [("content-type", "application/json")];
        send(
            &server,
            eve.clone(),
            "POST",
            &path,
            &headers,
            body.to_string(),
        )
        .await
    };
    let role = |name: &str, verb: &str| {
        json!({"metadata": {"name": name},
               "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]}]})
    };
    let roles = || format!("{group}/clusterroles");
    assert_eq!(ask(roles(), role("own", "get")).await.code, 201);
    let refused = ask(roles(), role("more", "delete")).await;
    assert_eq!(refused.code, 403);
    assert!(
        refused
            .body
            .contains("attempting to grant RBAC permissions not currently held")
    );
    let aggregated = json!({"metadata": {"name": "sum"}, "aggregationRule": {
        "clusterRoleSelectors": [{"matchLabels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}]}});
    assert_eq!(ask(roles(), aggregated).await.code, 403);
    let bind = |role: &str| {
        json!({"metadata": {"name": format!("to-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]})
    };
    let bindings = || format!("{group}/clusterrolebindings");
    assert_eq!(ask(bindings(), bind("cluster-admin")).await.code, 403);
    for _ in 0..500 {
        if ask(bindings(), bind("own")).await.code == 201 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(ask(bindings(), bind("own")).await.code, 409);
    // The verb bind on one role permits binding that role only.
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
                        "resourceNames": ["view"], "verbs": ["bind"]}]);
    allow(&server, "eve", "view-giver", rules).await;
    for _ in 0..500 {
        if ask(bindings(), bind("view")).await.code == 201 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(ask(bindings(), bind("view")).await.code, 409);
    assert_eq!(ask(bindings(), bind("edit")).await.code, 403);
    let body = json!({"spec": {"namespace": "default"}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews".to_owned();
    let rules = ask(path, body).await;
    assert_eq!(rules.code, 201, "{}", rules.body);
    let status = rules.json()["status"].clone();
    let held = status["resourceRules"].as_array().unwrap();
    let reads = |rule: &Value| {
        rule["resources"] == json!(["configmaps"]) && rule["verbs"] == json!(["get"])
    };
    assert!(held.iter().any(reads), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_a_pods_exec_is_not_running_something_in_it() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    assert_eq!(admin(&server, "POST", pods, pod).await.code, 201);
    let rules = json!([{"apiGroups": [""], "verbs": ["get"],
                        "resources": ["pods", "pods/exec", "pods/attach", "pods/portforward"]}]);
    allow(&server, "eve", "reader", rules).await;
    let eve = User::new("eve", [""; 0]);
    once_allowed(&server, &eve, &format!("{pods}/p")).await;
    for stream in ["exec?command=sh", "attach", "portforward?ports=80"] {
        let path = format!("{pods}/p/{stream}");
        let headers = [("upgrade", "websocket"), ("connection", "Upgrade")];
        let refused = send(&server, eve.clone(), "GET", &path, &headers, "").await;
        assert_eq!(refused.code, 403, "{}", refused.body);
        assert!(
            refused.body.contains("cannot create resource"),
            "{}",
            refused.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_claims_the_servers_own_address_is_not_proxied_to() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    assert_eq!(admin(&server, "POST", pods, pod).await.code, 201);
    for address in ["127.0.0.1", "169.254.169.254", "::1"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let path = format!("{pods}/p/status");
        let headers = [("content-type", "application/merge-patch+json")];
        let root = User::new("root", ["system:masters"]);
        let body = status.to_string();
        let set = send(&server, root, "PATCH", &path, &headers, body).await;
        assert_eq!(set.code, 200, "{}", set.body);
        let refused = admin(&server, "GET", &format!("{pods}/p:80/proxy/"), Value::Null).await;
        assert_eq!(refused.code, 400, "{address}: {}", refused.body);
        assert_eq!(refused.json()["message"], "address not allowed");
    }
}
