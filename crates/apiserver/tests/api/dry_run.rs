//! `dryRun=All` on every write path: the response is that of the write, and nothing is stored.

use apiserver::User;
use machinery::json::{Value, json};
use store::{Freshness, ListRequest};

use crate::support::{Server, admin, send};

/// All stored objects of these kinds, with their revisions.
async fn stored(server: &Server) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for prefix in [
        "core/configmaps/default/",
        "core/pods/",
        "core/services/",
        "core/nodeports/",
        "core/serviceaccounts/default/",
        "apps/deployments/",
        "networking.k8s.io/ipaddresses/",
    ] {
        let ask = ListRequest {
            prefix: format!("/registry/{prefix}").into(),
            from: None,
            limit: None,
            freshness: Freshness::Newest,
            skip_unreadable: false,
        };
        let listed = server.store.list(ask).await.unwrap();
        let entries = listed.entries.iter();
        all.extend(entries.map(|entry| {
            let key = String::from_utf8_lossy(&entry.key).into_owned();
            (key, entry.object.revision)
        }));
    }
    all
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// The path of objects in the default namespace.
fn in_default(path: &str) -> String {
    let api = match path.starts_with("deployments") {
        true => "/apis/apps/v1",
        false => "/api/v1",
    };
    format!("{api}/namespaces/default/{path}")
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}})
}

/// Creates an object of each kind.
async fn create_objects(server: &Server) {
    let template = json!({"metadata": {"labels": {"app": "d"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}}, "template": template}});
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (path, object) in [
        ("configmaps", json!({"metadata": {"name": "m"}})),
        ("pods", pod),
        ("services", service("s")),
        ("deployments", deployment),
    ] {
        let made = admin(server, "POST", &in_default(path), object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

/// Method, path, media type, body, and code of the response.
type DryRun = (&'static str, &'static str, &'static str, Value, u16);

fn dry_runs() -> Vec<DryRun> {
    let map = |key: &str| json!({"metadata": {"name": "m"}, "data": {"k": key}});
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let eviction = json!({"metadata": {"name": "p"}});
    let token = json!({"spec": {"expirationSeconds": 3600}});
    let scale = json!({"metadata": {"name": "d"}, "spec": {"replicas": 7}});
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let status = json!({"status": {"phase": "Running"}});
    let (new, none) = (json!({"metadata": {"name": "n"}}), Value::Null);
    let internal = json!({"spec": {"type": "ClusterIP"}});
    vec![
        ("POST", "configmaps", JSON, new, 201),
        ("POST", "services", JSON, service("t"), 201),
        ("PUT", "configmaps/m", JSON, map("put"), 200),
        ("PATCH", "configmaps/m", MERGE, map("patch"), 200),
        ("PATCH", "configmaps/m", APPLY, applied, 200),
        ("PATCH", "pods/p/status", MERGE, status, 200),
        ("PATCH", "services/s", MERGE, internal, 200),
        ("PUT", "deployments/d/scale", JSON, scale, 200),
        ("POST", "pods/p/binding", JSON, binding, 201),
        ("POST", "pods/p/eviction", JSON, eviction, 201),
        ("POST", "serviceaccounts/default/token", JSON, token, 201),
        ("DELETE", "configmaps/m", JSON, none.clone(), 200),
        ("DELETE", "services/s", JSON, none.clone(), 200),
        ("DELETE", "configmaps", JSON, none, 200),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_any_write_changes_nothing() {
    let server = Server::start().await;
    create_objects(&server).await;
    let before = stored(&server).await;
    for (method, path, media, body, code) in dry_runs() {
        let user = User::new("kubernetes-admin", ["system:masters"]);
        let path = format!("{}?dryRun=All&fieldManager=dry-run", in_default(path));
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let headers = [("content-type", media)];
        let answer = send(&server, user, method, &path, &headers, body).await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.body);
        assert_eq!(stored(&server).await, before, "{method} {path}");
    }
    let options = json!({"dryRun": ["All"]});
    let answer = admin(&server, "DELETE", &in_default("configmaps/m"), options).await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        stored(&server).await,
        before,
        "the options' dryRun counts, too"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_the_revision_and_the_link_that_came_with_it() {
    let server = Server::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let sent = json!({"metadata": {"name": "m", "resourceVersion": "77"}});
    let answered = admin(&server, "POST", &format!("{maps}?dryRun=All"), sent.clone()).await;
    assert_eq!(answered.json()["metadata"]["resourceVersion"], "77");
    let refused = admin(&server, "POST", maps, sent).await;
    assert_eq!(refused.code, 500);
    let made = admin(
        &server,
        "POST",
        maps,
        json!({"metadata": {"name": "m", "selfLink": "x"}}),
    )
    .await;
    assert!(
        made.json()["metadata"].get("selfLink").is_none(),
        "{}",
        made.body
    );
    let patch = json!({"metadata": {"selfLink": "x"}});
    for (query, link) in [("?dryRun=All", json!("x")), ("", Value::Null)] {
        let patched = admin(&server, "PATCH", &format!("{maps}/m{query}"), patch.clone()).await;
        assert_eq!(
            patched.json()["metadata"]["selfLink"],
            link,
            "{}",
            patched.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_service_gets_free_ports() {
    let server = Server::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, ports: Value| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": ports}});
    let asked = json!([{"name": "a", "port": 80, "nodePort": 30100}]);
    let made = admin(&server, "POST", services, service("s", asked.clone())).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let dry = format!("{services}?dryRun=All");
    let free = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]);
    let answered = admin(&server, "POST", &dry, service("t", free))
        .await
        .json();
    assert_eq!(
        answered["spec"]["ports"][0]["nodePort"], 32769,
        "{answered}"
    );
    assert_eq!(answered["spec"]["ports"][1]["nodePort"], 32770);
    let out_of_range = json!([{"name": "a", "port": 80, "nodePort": 99}]);
    let answered = admin(&server, "POST", &dry, service("t", out_of_range)).await;
    assert_eq!(answered.code, 201, "{}", answered.body);
    let taken = admin(&server, "POST", &dry, service("t", asked)).await;
    assert_eq!(taken.code, 422);
    let why = "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated";
    assert!(taken.body.contains(why), "{}", taken.body);
    let twice = json!({"spec": {"ports": [{"name": "a", "port": 80, "nodePort": 30100},
        {"name": "b", "port": 81, "nodePort": 30100}]}});
    let refused = admin(&server, "PATCH", &format!("{services}/s"), twice).await;
    assert_eq!(
        (refused.code, &refused.json()["message"]),
        (500, &json!("duplicate nodePort: {TCP 30100}"))
    );
}
