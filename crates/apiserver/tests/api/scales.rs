//! The `scale` subresource, and patches that change apiVersion or kind.

use apiserver::User;
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually, send};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const STRANGER: &str = "00000000-0000-0000-0000-000000000000";

async fn patch(server: &Server, path: &str, kind: &str, body: Value) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let media = match kind {
        "apply" => "application/apply-patch+yaml".to_owned(),
        kind => format!("application/{kind}-patch+json"),
    };
    let headers = [("content-type", media.as_str())];
    send(server, user, "PATCH", path, &headers, body.to_string()).await
}

/// A server with one Deployment.
async fn deployed() -> Server {
    let server = Server::start().await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = admin(&server, "POST", DEPLOYMENTS, deployment).await;
    assert_eq!(made.code, 201, "{}", made.body);
    server
}

/// A server with one custom resource that has a scale subresource.
async fn defined() -> Server {
    let server = Server::start().await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"}}}, "status": {"type": "object", "properties": {
        "replicas": {"type": "integer"}}}}});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}}]}});
    let made = admin(&server, "POST", DEFINITIONS, definition).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let served = || async {
        let listed = admin(&server, "GET", THINGS, Value::Null).await;
        (listed.code == 200).then_some(())
    };
    eventually(served).await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"},
        "spec": {"replicas": 1}});
    let made = admin(&server, "POST", THINGS, thing).await;
    assert_eq!(made.code, 201, "{}", made.body);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_is_judged_as_the_patch_leaves_it() {
    let server = deployed().await;
    let path = format!("{DEPLOYMENTS}/d/scale?fieldManager=m");
    let conflict =
        format!("Precondition failed: UID in precondition: {STRANGER}, UID in object meta: ");
    let cases = [
        (
            "merge",
            json!({"metadata": {"uid": STRANGER}}),
            409,
            conflict.as_str(),
        ),
        (
            "merge",
            json!({"metadata": {"name": "other"}}),
            400,
            "the name of the object (other) does not match the name on the URL (d)",
        ),
        (
            "merge",
            json!({"metadata": {"namespace": "other"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "merge",
            json!({"metadata": {"finalizers": ["x"]}}),
            422,
            "Scale.autoscaling \"d\" is invalid: metadata.finalizers[0]: Invalid value: \"x\": name is neither a standard finalizer name nor is it fully qualified",
        ),
        (
            "merge",
            json!({"metadata": {"resourceVersion": "1"}}),
            409,
            "the object has been modified",
        ),
        (
            "merge",
            json!({"kind": "Pod"}),
            422,
            "no kind \"Pod\" is registered for version \"autoscaling/v1\"",
        ),
        (
            "json",
            json!([{"op": "replace", "path": "/kind", "value": "HorizontalPodAutoscaler"}]),
            422,
            "converting (v1.HorizontalPodAutoscaler) to (autoscaling.Scale): unknown conversion",
        ),
        ("strategic-merge", json!({"kind": "Pod"}), 200, ""),
    ];
    for (kind, body, code, why) in cases {
        let answer = patch(&server, &path, kind, body.clone()).await;
        assert_eq!(answer.code, code, "{body}: {}", answer.body);
        let message = answer.json()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(message.contains(why), "{body}: {message}");
    }
    let wish = json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "d", "uid": STRANGER}, "spec": {"replicas": 3}});
    let forced = format!("{path}&force=true");
    let applied = patch(&server, &forced, "apply", wish).await;
    assert_eq!(
        applied.json()["details"]["kind"],
        "deployments/scale",
        "{}",
        applied.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_a_version_has_nothing() {
    let server = deployed().await;
    for path in [format!("{DEPLOYMENTS}/d"), format!("{DEPLOYMENTS}/d/scale")] {
        let refused = patch(&server, &path, "merge", json!({"apiVersion": null})).await;
        assert_eq!(refused.code, 400, "{}", refused.body);
        let why =
            "the name of the object (d based on URL) was undeterminable: name must be provided";
        assert_eq!(refused.json()["message"], why);
        let reported = refused.headers.get_all("warning");
        let reported: Vec<&str> = reported
            .iter()
            .map(|reported| reported.to_str().unwrap())
            .collect();
        let unknown = |field: &str| format!("299 - \"unknown field \\\"{field}\\\"\"");
        assert_eq!(reported, ["metadata", "spec", "status"].map(unknown));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_stays_what_it_is() {
    let server = defined().await;
    let path = format!("{THINGS}/t");
    let cases = [
        (
            json!({"kind": "Other"}),
            422,
            "Other.example.com \"t\" is invalid: kind: Invalid value: \"Other\": must be Thing",
        ),
        (
            json!({"apiVersion": "v1"}),
            422,
            "Thing \"t\" is invalid: apiVersion: Invalid value: \"v1\": must be example.com/v1",
        ),
        (
            json!({"apiVersion": null}),
            500,
            "Internal error occurred: Object 'apiVersion' is missing in 'object has no apiVersion field'",
        ),
        (
            json!({"kind": null}),
            422,
            "Object 'Kind' is missing in '{\"apiVersion\":\"example.com/v1\",\"metadata\":{\"creationTimestamp\":",
        ),
        (
            json!({"apiVersion": "a/b/c"}),
            422,
            "unexpected GroupVersion string: a/b/c",
        ),
    ];
    for (body, code, why) in cases {
        let answer = patch(&server, &path, "merge", body.clone()).await;
        assert_eq!(answer.code, code, "{body}: {}", answer.body);
        let message = answer.json()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(message.contains(why), "{body}: {message}");
    }
    let status = patch(
        &server,
        &format!("{path}/status"),
        "merge",
        json!({"kind": "Other"}),
    )
    .await;
    assert_eq!(
        (status.code, &status.json()["kind"]),
        (200, &json!("Thing"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_custom_resource_without_a_manager_cannot_be_applied() {
    let server = defined().await;
    let path = format!("{THINGS}/t/scale?fieldManager=m");
    let wish = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "t"},
        "spec": {"replicas": 1}});
    let owned = patch(&server, &path, "apply", wish.clone()).await;
    assert_eq!(owned.code, 200, "{}", owned.body);
    let forget = json!({"metadata": {"managedFields": [{}]}});
    admin(&server, "PATCH", &format!("{THINGS}/t"), forget).await;
    let refused = patch(&server, &path, "apply", wish).await;
    assert_eq!(refused.code, 500, "{}", refused.body);
    let strategic = patch(&server, &path, "strategic-merge", json!({})).await;
    assert_eq!(strategic.code, 415, "{}", strategic.body);
}
