//! Server-side apply and managedFields.

use apiserver::User;
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, send};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

async fn apply(server: &Server, path: &str, query: &str, body: Value) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let media = [("content-type", "application/apply-patch+yaml")];
    send(
        server,
        user,
        "PATCH",
        &format!("{path}?{query}"),
        &media,
        body.to_string(),
    )
    .await
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_share_an_object_and_meet_in_conflicts() {
    let server = Server::start().await;
    let path = format!("{MAPS}/a");
    let made = apply(
        &server,
        &path,
        "fieldManager=one",
        map(json!({"x": "1", "y": "1"})),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let managers = made.json()["metadata"]["managedFields"].clone();
    assert_eq!(managers[0]["manager"], "one");
    assert_eq!(managers[0]["operation"], "Apply");
    assert_eq!(
        managers[0]["fieldsV1"],
        json!({"f:data": {"f:x": {}, "f:y": {}}})
    );
    let conflict = apply(&server, &path, "fieldManager=two", map(json!({"x": "2"}))).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(
        conflict.json()["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .data.x"
    );
    let forced = apply(
        &server,
        &path,
        "fieldManager=two&force=true",
        map(json!({"x": "2", "z": "2"})),
    )
    .await;
    assert_eq!(
        (forced.code, &forced.json()["data"]),
        (200, &json!({"x": "2", "y": "1", "z": "2"}))
    );
    let less = apply(&server, &path, "fieldManager=one", map(json!({}))).await;
    assert_eq!(
        less.json()["data"],
        json!({"x": "2", "z": "2"}),
        "a field without a manager is removed: {}",
        less.body
    );
    let again = apply(&server, &path, "fieldManager=one", map(json!({}))).await;
    assert_eq!(
        again.json()["metadata"]["resourceVersion"],
        less.json()["metadata"]["resourceVersion"]
    );
    let without_manager = apply(&server, &path, "", map(json!({}))).await;
    assert_eq!(without_manager.code, 422, "{}", without_manager.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_updates_and_patches_are_in_managed_fields() {
    let server = Server::start().await;
    let made = admin(
        &server,
        "POST",
        &format!("{MAPS}?fieldManager=maker"),
        map(json!({"x": "1"})),
    )
    .await
    .json();
    let managers = &made["metadata"]["managedFields"];
    assert_eq!(
        (
            managers[0]["manager"].as_str(),
            managers[0]["operation"].as_str()
        ),
        (Some("maker"), Some("Update"))
    );
    assert_eq!(
        managers[0]["fieldsV1"],
        json!({"f:data": {".": {}, "f:x": {}}})
    );
    let patched = admin(
        &server,
        "PATCH",
        &format!("{MAPS}/a?fieldManager=other"),
        json!({"data": {"y": "2"}}),
    )
    .await
    .json();
    let managers = patched["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .clone();
    let other = managers.iter().find(|m| m["manager"] == "other").unwrap();
    assert_eq!(other["fieldsV1"], json!({"f:data": {"f:y": {}}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_on_the_server_side() {
    let server = Server::start().await;
    let deployment = |image: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": image}]}}}})
        .to_string()
    };
    let arguments = ["apply", "--server-side", "-f", "-"];
    let Some(out) = server.kubectl_ok(&arguments, &deployment("one")).await else {
        return;
    };
    assert_eq!(out, "deployment.apps/web serverside-applied\n");
    let read = admin(&server, "GET", &format!("{DEPLOYMENTS}/web"), Value::Null)
        .await
        .json();
    assert_eq!(
        read["spec"]["template"]["spec"]["containers"][0]["image"],
        "one"
    );
    assert_eq!(read["metadata"]["generation"], 1);
    server
        .kubectl_ok(&["scale", "deployment/web", "--replicas=5"], "")
        .await
        .unwrap();
    let refused = server
        .kubectl(&arguments, &deployment("two"))
        .await
        .unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains("conflict with \"kubectl\" with subresource \"scale\""),
        "{error}"
    );
    let forced = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    server
        .kubectl_ok(&forced, &deployment("two"))
        .await
        .unwrap();
    let read = admin(&server, "GET", &format!("{DEPLOYMENTS}/web"), Value::Null)
        .await
        .json();
    assert_eq!(read["spec"]["replicas"], 2);
    assert_eq!(
        read["spec"]["template"]["spec"]["containers"][0]["image"],
        "two"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_applied_through_scale_and_change_hands() {
    let server = Server::start().await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let path = format!("{DEPLOYMENTS}/d");
    let made = apply(&server, &path, "fieldManager=one", deployment).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let scale = |replicas: i64| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"},
            "spec": {"replicas": replicas}})
    };
    let at = format!("{path}/scale");
    let refused = apply(&server, &at, "fieldManager=two", scale(5)).await;
    assert_eq!(
        (refused.code, refused.json()["message"].clone()),
        (
            409,
            json!("Apply failed with 1 conflict: conflict with \"one\": .spec.replicas")
        )
    );
    let forced = apply(&server, &at, "fieldManager=two&force=true", scale(5)).await;
    assert_eq!(
        (forced.code, forced.json()["kind"].clone()),
        (200, json!("Scale"))
    );
    let read = admin(&server, "GET", &path, Value::Null).await.json();
    assert_eq!(read["spec"]["replicas"], 5);
    let managers = read["metadata"]["managedFields"].as_array().unwrap();
    let of = |name: &str| managers.iter().find(|m| m["manager"] == name).unwrap();
    assert_eq!(of("one")["fieldsV1"]["f:spec"].get("f:replicas"), None);
    assert_eq!(of("two")["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(
        (&of("two")["subresource"], &of("two")["apiVersion"]),
        (&json!("scale"), &json!("apps/v1"))
    );
    let other = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
    let refused = apply(&server, &at, "fieldManager=two", other).await;
    assert_eq!(
        (refused.code, refused.json()["message"].clone()),
        (400, json!("invalid object type: apps/v1, Kind=Deployment"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscalers_managers_are_judged_in_the_version_they_speak() {
    let server = Server::start().await;
    let path = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers/h")
    };
    let scaler = |version: &str, spec: Value| {
        json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h"}, "spec": spec})
    };
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let old = scaler(
        "v1",
        json!({"scaleTargetRef": target, "maxReplicas": 4,
        "targetCPUUtilizationPercentage": 50}),
    );
    let made = apply(&server, &path("v1"), "fieldManager=one", old).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let metrics = json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 60}}}]);
    let new = scaler("v2", json!({"metrics": metrics}));
    let refused = apply(&server, &path("v2"), "fieldManager=two", new.clone()).await;
    assert_eq!(
        (refused.code, refused.json()["message"].clone()),
        (
            409,
            json!(
                "Apply failed with 1 conflict: conflict with \"one\": .spec.targetCPUUtilizationPercentage"
            )
        )
    );
    let forced = apply(&server, &path("v2"), "fieldManager=two&force=true", new).await;
    assert_eq!(forced.code, 200, "{}", forced.body);
    let managers = forced.json()["metadata"]["managedFields"].clone();
    let one = managers
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["manager"] == "one");
    assert_eq!(
        one.unwrap()["fieldsV1"]["f:spec"].get("f:targetCPUUtilizationPercentage"),
        None
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_owns_a_field_of_a_disabled_feature_gate_although_it_is_dropped() {
    let server = Server::start().await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i",
                "lifecycle": {"stopSignal": "SIGTERM"}}]}}}});
    let one = "k:{\"name\":\"c\"}";
    for (manager, made) in [
        (
            "creator",
            admin(
                &server,
                "POST",
                &format!("{DEPLOYMENTS}?fieldManager=creator"),
                deployment.clone(),
            )
            .await,
        ),
        (
            "applier",
            apply(
                &server,
                &format!("{DEPLOYMENTS}/e"),
                "fieldManager=applier",
                {
                    let mut other = deployment.clone();
                    other["metadata"]["name"] = json!("e");
                    other
                },
            )
            .await,
        ),
    ] {
        assert_eq!(made.code, 201, "{}", made.body);
        let made = made.json();
        let container = &made["spec"]["template"]["spec"]["containers"][0];
        assert!(container.get("lifecycle").is_none(), "{container}");
        let entry = &made["metadata"]["managedFields"][0];
        assert_eq!(entry["manager"], manager);
        let owned = &entry["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"][one];
        assert_eq!(owned["f:lifecycle"]["f:stopSignal"], json!({}), "{owned}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_in_another_version_without_changes_keeps_the_object() {
    let server = Server::start().await;
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let metric = |name: &str| {
        json!({"type": "Resource", "resource": {"name": name,
            "target": {"type": "Utilization", "averageUtilization": 50}}})
    };
    let metrics = json!([metric("cpu"), metric("memory")]);
    let made = admin(
        &server,
        "POST",
        path,
        json!({"metadata": {"name": "h"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "maxReplicas": 4, "metrics": metrics}}),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    // The older version stores memory in an annotation, and would put it first when converted back.
    let older = path.replace("/v2/", "/v1/");
    let applied = apply(
        &server,
        &format!("{older}/h"),
        "fieldManager=a",
        json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"}, "spec": {"maxReplicas": 4}}),
    )
    .await;
    assert_eq!(applied.code, 200, "{}", applied.body);
    let now = admin(&server, "GET", &format!("{path}/h"), Value::Null)
        .await
        .json();
    assert_eq!(now["spec"]["metrics"], metrics);
    let managers = now["metadata"]["managedFields"].as_array().unwrap();
    assert!(
        managers.iter().any(|entry| entry["manager"] == "a"),
        "{managers:?}"
    );
}
