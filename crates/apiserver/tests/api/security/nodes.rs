//! A compromised node can harm only itself.

use apiserver::User;
use machinery::json::{Value, json};

use super::ask;
use crate::{
    security::regressions::over_tls,
    support::{Raw, Server, admin},
};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn kubelet(node: &str) -> User {
    User::new(format!("system:node:{node}"), ["system:nodes"])
}

async fn make(server: &Server, path: &str, object: Value) -> Value {
    let made = admin(server, "POST", path, object).await;
    assert_eq!(made.code, 201, "{path}: {}", made.body);
    made.json()
}

/// Two nodes with a pod each.
async fn with_nodes() -> Server {
    let server = Server::start().await;
    for node in ["a", "b"] {
        let labels = json!({"node-restriction.kubernetes.io/tier": "trusted"});
        let taints = json!([{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]);
        let object =
            json!({"metadata": {"name": node, "labels": labels}, "spec": {"taints": taints}});
        make(&server, "/api/v1/nodes", object).await;
        let token = |audience: &str| json!({"serviceAccountToken": {"path": audience, "audience": audience}});
        let pod = json!({"metadata": {"name": format!("on-{node}")}, "spec": {
            "nodeName": node, "serviceAccountName": "default", "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "t", "projected": {"sources": [token("vault")]}}]}});
        make(&server, PODS, pod).await;
    }
    server
}

fn assert_refused(answer: &Raw, what: &str) {
    assert_eq!(answer.code, 403, "{what}: {}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_tokens_for_the_audiences_that_its_pods_ask_for() {
    let server = with_nodes().await;
    let uid = admin(&server, "GET", &format!("{PODS}/on-a"), Value::Null)
        .await
        .json();
    let uid = uid["metadata"]["uid"].as_str().unwrap().to_owned();
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let asked = |audiences: Value| {
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "on-a", "uid": uid});
        json!({"spec": {"audiences": audiences, "boundObjectRef": bound}})
    };
    let own = kubelet("a");
    let given = ask(&server, &own, "POST", path, asked(json!(["vault"]))).await;
    assert_eq!(given.code, 201, "{}", given.body);
    for audiences in [
        json!(["bank"]),
        json!([]),
        json!(["vault", "bank"]),
        json!(["https://kubernetes.default.svc.cluster.local"]),
    ] {
        let refused = ask(&server, &own, "POST", path, asked(audiences.clone())).await;
        assert_refused(&refused, &audiences.to_string());
    }
    // An administrator may grant a node more.
    let rules = json!([{"verbs": ["request-serviceaccounts-token-audience"], "apiGroups": [""],
                        "resources": ["bank"], "resourceNames": ["default"]}]);
    super::grant(&server, "system:node:a", rules).await;
    let given = ask(&server, &own, "POST", path, asked(json!(["bank"]))).await;
    assert_eq!(given.code, 201, "{}", given.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_shed_its_taints_and_labels() {
    let server = with_nodes().await;
    let own = kubelet("a");
    let path = "/api/v1/nodes/a";
    assert_refused(
        &ask(&server, &own, "DELETE", path, Value::Null).await,
        "delete",
    );
    let all = "/api/v1/nodes";
    assert_refused(
        &ask(&server, &own, "DELETE", all, Value::Null).await,
        "delete all",
    );
    for patch in [
        json!({"spec": {"taints": null}}),
        json!({"metadata": {"labels": {"node-restriction.kubernetes.io/tier": null}}}),
        json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "1"}]}}),
    ] {
        for path in [path.to_owned(), format!("{path}/status")] {
            let refused = ask(&server, &own, "PATCH", &path, patch.clone()).await;
            assert_refused(&refused, &format!("{path} {patch}"));
        }
    }
    // A node may not change another Node.
    let other = ask(
        &server,
        &own,
        "PATCH",
        "/api/v1/nodes/b/status",
        json!({"status": {}}),
    )
    .await;
    assert_refused(&other, "another's status");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_what_its_pods_use() {
    let server = with_nodes().await;
    let own = kubelet("a");
    let namespace = "/api/v1/namespaces/default";
    make(
        &server,
        &format!("{namespace}/serviceaccounts"),
        json!({"metadata": {"name": "theirs"}}),
    )
    .await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let claim =
        json!({"metadata": {"name": "theirs"}, "spec": {"devices": {"requests": [request]}}});
    make(&server, claims, claim).await;
    for (path, code) in [
        (format!("{PODS}/on-a"), 200),
        (format!("{PODS}/on-b"), 403),
        (format!("{PODS}?fieldSelector=spec.nodeName%3Da"), 200),
        (format!("{PODS}?fieldSelector=spec.nodeName%3Db"), 403),
        (PODS.to_owned(), 403),
        (format!("{PODS}?fieldSelector=metadata.name%3Don-b"), 403),
        (format!("{PODS}/on-a/log"), 403),
        (format!("{namespace}/serviceaccounts/default"), 200),
        (format!("{namespace}/serviceaccounts/theirs"), 403),
        (format!("{namespace}/serviceaccounts"), 403),
        (format!("{claims}/theirs"), 403),
        (claims.to_owned(), 403),
        ("/api/v1/nodes/a".to_owned(), 200),
        ("/api/v1/nodes/b".to_owned(), 403),
        ("/api/v1/nodes".to_owned(), 403),
        ("/api/v1/secrets".to_owned(), 403),
        ("/apis/resource.k8s.io/v1/resourceslices".to_owned(), 403),
        (
            "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Da".to_owned(),
            200,
        ),
    ] {
        let answer = ask(&server, &own, "GET", &path, Value::Null).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_is_refused_costs_no_budget() {
    let server = with_nodes().await;
    let labels = json!({"metadata": {"labels": {"app": "web"}}});
    admin(&server, "PATCH", &format!("{PODS}/on-b"), labels).await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 0,
        "selector": {"matchLabels": {"app": "web"}}}});
    make(&server, budgets, budget).await;
    let path = format!("{budgets}/web/status");
    let status = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0,
                                   "expectedPods": 1, "observedGeneration": 1}});
    let set = admin(&server, "PATCH", &path, status).await;
    assert_eq!(set.code, 200, "{}", set.body);
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "on-b"}});
    let path = format!("{PODS}/on-b/eviction");
    assert_refused(
        &ask(&server, &kubelet("a"), "POST", &path, eviction).await,
        "eviction",
    );
    let budget = admin(&server, "GET", &format!("{budgets}/web"), Value::Null)
        .await
        .json();
    assert_eq!(budget["status"]["disruptionsAllowed"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_notes_where_a_request_for_a_certificate_came_from() {
    let server = Server::start().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "system:node:n1");
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "system:nodes");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = {
        use base64::{Engine, prelude::BASE64_STANDARD};
        BASE64_STANDARD.encode(pem)
    };
    let all = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let noted = async |name: &str, config: rustls::ClientConfig, more: &[(&str, &str)]| {
        let annotations = json!({"mainstay.local/peer-address": "10.43.0.1", "mainstay.local/in-process": "true"});
        let csr = json!({"metadata": {"name": name, "annotations": annotations}, "spec": {
            "request": request, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]}});
        let headers = [&[("content-type", "application/json")], more].concat();
        let made = over_tls(&server, config, "POST", all, &headers, &csr.to_string())
            .await
            .unwrap();
        assert_eq!(made.code, 201, "{}", made.body);
        made.json()["metadata"]["annotations"].clone()
    };
    let own = || server.pki.client_config(pki::Leaf::Kubelet).unwrap();
    let seen = json!({"mainstay.local/peer-address": "127.0.0.1"});
    assert_eq!(noted("own", own(), &[]).await, seen);
    // Through a front proxy or impersonation, the caller's address is unknown.
    let front = server
        .pki
        .client_config(pki::Leaf::FrontProxyClient)
        .unwrap();
    let node = [
        ("x-remote-user", "system:node:n1"),
        ("x-remote-group", "system:nodes"),
    ];
    assert_eq!(noted("front", front, &node).await, Value::Null);
    let admin_config = server.pki.client_config(pki::Leaf::Admin).unwrap();
    let node = [
        ("impersonate-user", "system:node:n1"),
        ("impersonate-group", "system:nodes"),
    ];
    assert_eq!(noted("assumed", admin_config, &node).await, Value::Null);
    // The recorded address stays.
    let patch = json!({"metadata": {"annotations": {"mainstay.local/peer-address": "10.43.0.1"}}});
    let patched = admin(&server, "PATCH", &format!("{all}/own"), patch).await;
    assert_eq!(
        patched.json()["metadata"]["annotations"],
        seen,
        "{}",
        patched.body
    );
}
