//! `metrics.k8s.io` from the pages of a stand-in kubelet.

use apiserver::User;
use machinery::json::{Value, json};

use crate::{
    kubelet::{PODS, with_pod},
    support::{Raw, Server, admin, eventually, send},
};

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn get(server: &Server, path: &str) -> Raw {
    admin(server, "GET", &format!("{METRICS}{path}"), Value::Null).await
}

/// A server whose node was scraped twice, with a running pod.
async fn measured() -> Server {
    let server = with_pod(json!([])).await;
    let node = json!({"metadata": {"labels": {"tier": "x"}}});
    let merge = [("content-type", "application/merge-patch+json")];
    let user = || User::new("kubernetes-admin", ["system:masters"]);
    let patch = async |path: &str, body: Value| {
        let made = send(&server, user(), "PATCH", path, &merge, &body.to_string()).await;
        assert_eq!(made.code, 200, "{}", made.body);
    };
    patch("/api/v1/nodes/n1", node).await;
    let labels = json!({"metadata": {"labels": {"app": "p"}}});
    patch(&format!("{PODS}/p"), labels).await;
    let before = get(&server, "/namespaces/default/pods/p").await;
    assert_eq!(before.code, 404);
    let status = json!({"status": {"phase": "Running"}});
    patch(&format!("{PODS}/p/status"), status).await;
    eventually(|| async { (get(&server, "/nodes/n1").await.code == 200).then_some(()) }).await;
    server
}

fn names(list: &Raw) -> Vec<String> {
    assert_eq!(list.code, 200, "{}", list.body);
    let list = list.json();
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_nodes_and_pods_is_served_as_metrics_server_serves_it() {
    let server = measured().await;
    let node = get(&server, "/nodes/n1").await.json();
    assert_eq!(node["kind"], "NodeMetrics");
    assert_eq!(node["metadata"]["labels"]["tier"], "x");
    let expected = json!({"cpu": "500m", "memory": "3Mi"});
    assert_eq!(node["usage"], expected, "{node}");
    assert!(node["window"].as_str().unwrap().ends_with('s'), "{node}");
    let pod = get(&server, "/namespaces/default/pods/p").await.json();
    let quarter = json!({"cpu": "250m", "memory": "1Mi"});
    let expected = json!([{"name": "a", "usage": quarter}, {"name": "away", "usage": quarter}]);
    assert_eq!(pod["containers"], expected, "{pod}");
    assert_eq!(pod["apiVersion"], "metrics.k8s.io/v1beta1");
    assert_eq!(pod["metadata"]["labels"], json!({"app": "p"}));
    for (path, expected) in [
        ("/nodes", vec!["n1"]),
        ("/nodes?labelSelector=tier%3Dx", vec!["n1"]),
        ("/nodes?labelSelector=tier%3Dy", vec![]),
        ("/pods", vec!["p"]),
        ("/namespaces/default/pods", vec!["p"]),
        ("/namespaces/other/pods", vec![]),
        ("/pods?labelSelector=app%3Dp", vec!["p"]),
        ("/pods?labelSelector=app!%3Dp", vec![]),
        ("/pods?fieldSelector=metadata.name%3Dp", vec!["p"]),
        ("/pods?fieldSelector=metadata.namespace%3Dother", vec![]),
    ] {
        assert_eq!(names(&get(&server, path).await), expected, "{path}");
    }
    let list = get(&server, "/pods").await.json();
    assert_eq!(list["kind"], "PodMetricsList");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_shown_in_every_form_and_refused_as_everything_is() {
    let server = measured().await;
    let user = || User::new("kubernetes-admin", ["system:masters"]);
    let ask = async |accept: &str, path: &str| {
        let path = format!("{METRICS}{path}");
        send(&server, user(), "GET", &path, &[("accept", accept)], "").await
    };
    let table = ask(TABLE, "/pods").await.json();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    let columns: Vec<_> = columns
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
    let cells = &table["rows"][0]["cells"];
    assert_eq!(
        (&cells[0], &cells[1], &cells[2]),
        (&"p".into(), &"500m".into(), &"2Mi".into())
    );
    let packed = ask("application/vnd.kubernetes.protobuf", "/nodes").await;
    assert_eq!(packed.code, 200);
    assert_eq!(
        packed.headers["content-type"],
        "application/vnd.kubernetes.protobuf"
    );
    for (path, code, message) in [
        ("/nodes/no", 404, "nodes \"no\" not found"),
        ("/namespaces/default/pods/no", 404, "pods \"no\" not found"),
        (
            "/pods?fieldSelector=spec.nodeName%3Dx",
            400,
            "\"spec.nodeName\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
    ] {
        let refused = get(&server, path).await;
        let said = refused.json()["message"].as_str().unwrap().to_owned();
        assert_eq!((refused.code, said.as_str()), (code, message), "{path}");
    }
    for (verb, path) in [
        ("POST", "/nodes"),
        ("DELETE", "/nodes/n1"),
        ("PUT", "/nodes/n1"),
    ] {
        let refused = admin(&server, verb, &format!("{METRICS}{path}"), json!({})).await;
        assert_eq!(refused.code, 405, "{verb}: {}", refused.body);
    }
    let watched = get(&server, "/nodes?watch=true").await;
    assert_eq!(watched.code, 405, "{}", watched.body);
    let stranger = User::new("nobody", ["system:authenticated"]);
    let path = format!("{METRICS}/nodes");
    let refused = send(&server, stranger, "GET", &path, &[], "").await;
    assert_eq!(refused.code, 403, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_group_is_offered_and_its_readers_may_read_it() {
    let server = Server::start().await;
    let list = get(&server, "").await.json();
    let resources = list["resources"].as_array().unwrap().iter();
    let resources: Vec<_> = resources
        .map(|one| {
            (
                one["name"].as_str().unwrap().to_owned(),
                one["kind"].clone(),
                one["verbs"].clone(),
            )
        })
        .collect();
    let verbs = json!(["get", "list"]);
    let expected = [("nodes", "NodeMetrics"), ("pods", "PodMetrics")];
    let expected = expected.map(|(name, kind)| (name.to_owned(), kind.into(), verbs.clone()));
    assert_eq!(resources, expected);
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";
    let service = eventually(|| async {
        let service = admin(&server, "GET", path, Value::Null).await;
        (service.code == 200).then(|| service.json())
    })
    .await;
    let condition = &service["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&"Available".into(), &"Local".into())
    );
    let document = admin(
        &server,
        "GET",
        "/openapi/v3/apis/metrics.k8s.io/v1beta1",
        Value::Null,
    )
    .await;
    assert_eq!(document.code, 200);
    let document = document.json();
    let schemas = &document["components"]["schemas"];
    let window =
        &schemas["io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"]["properties"]["window"];
    assert!(!window.is_null(), "{document}");
    let reader = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:aggregated-metrics-reader";
    let role = eventually(|| async {
        let role = admin(&server, "GET", reader, Value::Null).await;
        (role.code == 200).then(|| role.json())
    })
    .await;
    let labels = &role["metadata"]["labels"];
    for to in ["admin", "edit", "view"] {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{to}");
        assert_eq!(labels[label.as_str()], "true", "{labels}");
    }
}
