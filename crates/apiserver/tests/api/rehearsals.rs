//! `dryRun=All` on every way to write: the answer is that of the write, and nothing is different
//! afterwards.

use apiserver::User;
use machinery::json::{Value, json};
use store::{Freshness, ListRequest};

use crate::support::{Server, admin, send};

/// Everything of these kinds that is stored, with its revision.
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
async fn a_rehearsal_of_any_write_changes_nothing() {
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
        let path = format!("{path}?dryRun=All&fieldManager=rehearsal");
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
