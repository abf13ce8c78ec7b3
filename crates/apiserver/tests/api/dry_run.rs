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

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_any_write_changes_nothing() {
    let server = Server::start().await;
    let space = "/api/v1/namespaces/default";
    let apps = "/apis/apps/v1/namespaces/default";
    let template = json!({"metadata": {"labels": {"app": "d"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}}, "template": template}});
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let service = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "type": "NodePort", "ports": [{"port": 80}]}})
    };
    for (path, object) in [
        (
            format!("{space}/configmaps"),
            json!({"metadata": {"name": "m"}}),
        ),
        (format!("{space}/pods"), pod),
        (format!("{space}/services"), service("s")),
        (format!("{apps}/deployments"), deployment),
    ] {
        let made = admin(&server, "POST", &path, object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let before = stored(&server).await;
    let map = |key: &str| json!({"metadata": {"name": "m"}, "data": {"k": key}});
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let eviction = json!({"metadata": {"name": "p"}});
    let token = json!({"spec": {"expirationSeconds": 3600}});
    let scale = json!({"metadata": {"name": "d"}, "spec": {"replicas": 7}});
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let merge = "application/merge-patch+json";
    let json_type = "application/json";
    let apply = "application/apply-patch+yaml";
    let status = json!({"status": {"phase": "Running"}});
    let cases: &[(&str, String, &str, Value, u16)] = &[
        (
            "POST",
            format!("{space}/configmaps"),
            json_type,
            json!({"metadata": {"name": "n"}}),
            201,
        ),
        (
            "POST",
            format!("{space}/services"),
            json_type,
            service("t"),
            201,
        ),
        (
            "PUT",
            format!("{space}/configmaps/m"),
            json_type,
            map("put"),
            200,
        ),
        (
            "PATCH",
            format!("{space}/configmaps/m"),
            merge,
            map("patch"),
            200,
        ),
        (
            "PATCH",
            format!("{space}/configmaps/m"),
            apply,
            applied,
            200,
        ),
        (
            "PATCH",
            format!("{space}/pods/p/status"),
            merge,
            status,
            200,
        ),
        (
            "PATCH",
            format!("{space}/services/s"),
            merge,
            json!({"spec": {"type": "ClusterIP"}}),
            200,
        ),
        (
            "PUT",
            format!("{apps}/deployments/d/scale"),
            json_type,
            scale,
            200,
        ),
        (
            "POST",
            format!("{space}/pods/p/binding"),
            json_type,
            binding,
            201,
        ),
        (
            "POST",
            format!("{space}/pods/p/eviction"),
            json_type,
            eviction,
            201,
        ),
        (
            "POST",
            format!("{space}/serviceaccounts/default/token"),
            json_type,
            token,
            201,
        ),
        (
            "DELETE",
            format!("{space}/configmaps/m"),
            json_type,
            Value::Null,
            200,
        ),
        (
            "DELETE",
            format!("{space}/services/s"),
            json_type,
            Value::Null,
            200,
        ),
        (
            "DELETE",
            format!("{space}/configmaps"),
            json_type,
            Value::Null,
            200,
        ),
    ];
    for (method, path, media, body, code) in cases {
        let user = User::new("kubernetes-admin", ["system:masters"]);
        let path = format!("{path}?dryRun=All&fieldManager=dry-run");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let headers = [("content-type", *media)];
        let answer = send(&server, user, method, &path, &headers, body).await;
        assert_eq!(answer.code, *code, "{method} {path}: {}", answer.body);
        assert_eq!(stored(&server).await, before, "{method} {path}");
    }
    let options = json!({"dryRun": ["All"]});
    let answer = admin(&server, "DELETE", &format!("{space}/configmaps/m"), options).await;
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
async fn a_dry_run_service_gets_ports_that_nobody_has() {
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
