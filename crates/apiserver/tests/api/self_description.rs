//! What the server reports about itself: fields it does not enforce, health, and metrics.

use machinery::json::{Value, json};

use crate::support::{Server, admin, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_are_not_enforced_return_a_warning() {
    let server = Server::start().await;
    let group = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = json!({"metadata": {"name": "devices"}, "spec": {"devices": {}}});
    let made = admin(&server, "POST", group, claim).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let warning = made.headers["warning"].to_str().unwrap();
    assert!(warning.starts_with("299 - \"devices are allocated, but nodes have no drivers"));
    // A write that does not add the field gets no warning.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let path = format!("{group}/devices");
    let patched = admin(&server, "PATCH", &path, label).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert!(
        patched.headers.get("warning").is_none(),
        "{:?}",
        patched.headers
    );
    let plain = json!({"metadata": {"name": "c"}, "data": {"a": "b"}});
    let plain = admin(
        &server,
        "POST",
        "/api/v1/namespaces/default/configmaps",
        plain,
    )
    .await;
    assert!(
        plain.headers.get("warning").is_none(),
        "{:?}",
        plain.headers
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_that_cannot_be_held_is_refused() {
    let server = Server::start().await;
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"a": {"type": "string", "pattern": r"(\pL{900}|\pN{900})\pL{900}"}},
            }}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let refused = admin(&server, "POST", path, definition).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(
        refused.body.contains("expression too large"),
        "{}",
        refused.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_checks_have_the_names_that_monitoring_looks_for() {
    let server = Server::start().await;
    for path in ["/healthz?verbose", "/livez?verbose", "/readyz?verbose"] {
        let text = eventually(|| async {
            let answer = admin(&server, "GET", path, Value::Null).await;
            (answer.code == 200).then_some(answer.body)
        })
        .await;
        for name in [
            "ping",
            "log",
            "etcd",
            "poststarthook/start-apiserver-admission-initializer",
            "poststarthook/generic-apiserver-start-informers",
            "poststarthook/start-apiextensions-informers",
            "poststarthook/start-apiextensions-controllers",
            "poststarthook/crd-informer-synced",
            "poststarthook/bootstrap-controller",
            "poststarthook/start-system-namespaces-controller",
            "poststarthook/start-service-ip-repair-controllers",
            "poststarthook/scheduling/bootstrap-system-priority-classes",
            "poststarthook/start-cluster-authentication-info-controller",
            "poststarthook/start-kube-aggregator-informers",
            "poststarthook/apiservice-registration-controller",
            "poststarthook/apiservice-status-local-available-controller",
            "poststarthook/apiservice-status-remote-available-controller",
            "poststarthook/kube-apiserver-autoregistration",
            "autoregister-completion",
            "poststarthook/apiservice-openapi-controller",
            "poststarthook/storage-readiness",
        ] {
            assert!(
                text.contains(&format!("[+]{name} ok\n")),
                "{path} {name}: {text}"
            );
        }
    }
    let services = admin(
        &server,
        "GET",
        "/apis/apiregistration.k8s.io/v1/apiservices",
        Value::Null,
    )
    .await;
    let services = services.json()["items"].as_array().unwrap().len();
    assert!(services > 10, "registration is complete: {services}");
}

#[tokio::test(flavor = "multi_thread")]
async fn component_statuses_say_how_the_parts_are() {
    let server = Server::start().await;
    let list = admin(&server, "GET", "/api/v1/componentstatuses", Value::Null).await;
    assert!(
        list.headers["warning"]
            .to_str()
            .unwrap()
            .contains("v1 ComponentStatus is deprecated")
    );
    let list = list.json();
    assert_eq!(
        (&list["kind"], &list["metadata"]),
        (&"ComponentStatusList".into(), &json!({}))
    );
    let items = list["items"].as_array().unwrap();
    let names: Vec<_> = items
        .iter()
        .map(|one| one["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["controller-manager", "etcd-0", "scheduler"]);
    assert_eq!(
        items[1]["conditions"],
        json!([{"type": "Healthy", "status": "True", "message": "ok"}])
    );
    // No scheduler or controllers run here.
    assert_eq!(items[2]["conditions"][0]["status"], "False");
    let one = admin(
        &server,
        "GET",
        "/api/v1/componentstatuses/etcd-0",
        Value::Null,
    )
    .await;
    assert_eq!(one.json()["kind"], "ComponentStatus");
    let none = admin(
        &server,
        "GET",
        "/api/v1/componentstatuses/nope",
        Value::Null,
    )
    .await;
    assert_eq!(none.json()["message"], "componentstatus \"nope\" not found");
    let selected = admin(
        &server,
        "GET",
        "/api/v1/componentstatuses?labelSelector=a%3Db",
        Value::Null,
    )
    .await;
    assert!(selected.json()["items"].as_array().unwrap().is_empty());
}

/// The metrics that kube-prometheus' rules for the API server use.
#[tokio::test(flavor = "multi_thread")]
async fn the_figures_that_alerts_read_are_there() {
    let server = Server::start().await;
    let object = json!({"metadata": {"name": "c"}});
    admin(
        &server,
        "POST",
        "/api/v1/namespaces/default/configmaps",
        object,
    )
    .await;
    admin(
        &server,
        "GET",
        "/api/v1/namespaces/default/configmaps/c",
        Value::Null,
    )
    .await;
    admin(
        &server,
        "GET",
        "/api/v1/namespaces/default/configmaps",
        Value::Null,
    )
    .await;
    let remote = json!({
        "metadata": {"name": "v1.remote.example.com"},
        "spec": {
            "group": "remote.example.com", "version": "v1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"namespace": "default", "name": "remote"},
        },
    });
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let made = admin(&server, "POST", path, remote).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let text = admin(&server, "GET", "/metrics", Value::Null).await.body;
    for line in [
        r#"apiserver_request_sli_duration_seconds_count{verb="POST",group="",version="v1",resource="configmaps",subresource="",scope="namespace",component="apiserver"} 1"#,
        r#"etcd_request_duration_seconds_count{operation="create",group="",resource="configmaps"} "#,
        r#"etcd_requests_total{operation="get",group="",resource="configmaps"} "#,
        r#"apiserver_storage_list_returned_objects_total{group="",resource="configmaps"} 1"#,
        r#"authentication_attempts{result="success"} "#,
        r#"authorization_attempts_total{result="allowed"} "#,
        r#"authenticated_user_requests{username="other"} "#,
        r#"rest_client_requests_total{code="201",host="in-process",method="POST"} "#,
        "apiserver_client_certificate_expiration_seconds_count 0",
        "apiserver_tls_handshake_errors_total 0",
        r#"aggregator_unavailable_apiservice{name="v1.remote.example.com"} 1"#,
        "# TYPE apiserver_admission_controller_admission_duration_seconds histogram",
        "# TYPE apiserver_flowcontrol_current_executing_requests gauge",
        "kubernetes_build_info{",
    ] {
        assert!(text.contains(&format!("\n{line}")), "{line}\n{text}");
    }
}
