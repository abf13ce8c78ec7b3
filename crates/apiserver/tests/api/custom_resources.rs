//! Custom resources: from their definition to their deletion.

use std::time::Duration;

use machinery::json::{Value, json};

use crate::support::{Server, admin, send};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn version(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1},
                "colour": {"type": "string", "default": "blue"},
                "replicas": {"type": "integer"},
            }},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}},
        "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector"}},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
        "selectableFields": [{"jsonPath": ".spec.colour"}],
    })
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [version("v1", true), version("v2", false)]},
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// Waits until a request returns a code.
async fn wait(server: &Server, path: &str, code: u16) -> Value {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let answer = admin(server, "GET", path, Value::Null).await;
        if answer.code == code {
            // An unserved path does not return a Status.
            return machinery::json::from_str(&answer.body).unwrap_or_default();
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{path}: {}",
            answer.body
        );
        tokio::task::yield_now().await;
    }
}

async fn defined() -> Server {
    let server = Server::start().await;
    let made = admin(&server, "POST", DEFINITIONS, definition()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    wait(&server, WIDGETS, 200).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_is_established_and_found() {
    let server = defined().await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let status = admin(&server, "GET", &path, Value::Null).await.json()["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        if conditions
            .iter()
            .any(|c| c["type"] == "Established" && c["status"] == "True")
        {
            assert_eq!(status["acceptedNames"]["singular"], "widget");
            assert_eq!(status["storedVersions"], json!(["v1"]));
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{status}");
        tokio::task::yield_now().await;
    }
    // Discovery follows the condition, as upstream's does.
    wait(&server, "/apis/example.com/v1", 200).await;
    let document = admin(&server, "GET", "/apis/example.com/v1", Value::Null)
        .await
        .json();
    let names: Vec<_> = document["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    let group = admin(&server, "GET", "/apis/example.com", Value::Null)
        .await
        .json();
    assert_eq!(group["preferredVersion"]["version"], "v2");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_pruned_filled_in_and_checked() {
    let server = defined().await;
    let made = admin(
        &server,
        "POST",
        WIDGETS,
        widget("a", json!({"size": 2, "junk": 1})),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.json()["spec"], json!({"size": 2, "colour": "blue"}));
    assert_eq!(
        made.headers["warning"],
        "299 - \"unknown field \\\"spec.junk\\\"\""
    );
    assert_eq!(made.json()["metadata"]["generation"], 1);
    let bad = admin(&server, "POST", WIDGETS, widget("b", json!({"size": 0}))).await;
    assert_eq!(bad.code, 422);
    assert_eq!(
        bad.json()["message"],
        "Widget.example.com \"b\" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"
    );
    let bad = admin(&server, "POST", WIDGETS, widget("b", json!({}))).await;
    assert_eq!(
        bad.json()["message"],
        "Widget.example.com \"b\" is invalid: spec.size: Required value"
    );
    let list = admin(&server, "GET", WIDGETS, Value::Null).await.json();
    assert_eq!(
        (list["kind"].as_str(), list["items"][0]["kind"].as_str()),
        (Some("WidgetList"), Some("Widget"))
    );
    let selected = admin(
        &server,
        "GET",
        &format!("{WIDGETS}?fieldSelector=spec.colour%3Dred"),
        Value::Null,
    )
    .await
    .json();
    assert_eq!(selected["items"], json!([]));
    let user = apiserver::User::new("kubernetes-admin", ["system:masters"]);
    let media = [("content-type", "application/strategic-merge-patch+json")];
    let patched = send(
        &server,
        user,
        "PATCH",
        &format!("{WIDGETS}/a"),
        &media,
        "{}",
    )
    .await;
    assert_eq!(patched.code, 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_versions_show_the_same_object() {
    let server = defined().await;
    admin(&server, "POST", WIDGETS, widget("a", json!({"size": 2}))).await;
    let other = "/apis/example.com/v2/namespaces/default/widgets";
    let read = admin(&server, "GET", &format!("{other}/a"), Value::Null)
        .await
        .json();
    assert_eq!(
        (read["apiVersion"].as_str(), &read["spec"]["size"]),
        (Some("example.com/v2"), &json!(2))
    );
    let patched = admin(
        &server,
        "PATCH",
        &format!("{other}/a"),
        json!({"spec": {"size": 5}}),
    )
    .await;
    assert_eq!(
        patched.json()["apiVersion"],
        "example.com/v2",
        "{}",
        patched.body
    );
    let read = admin(&server, "GET", &format!("{WIDGETS}/a"), Value::Null)
        .await
        .json();
    assert_eq!(
        (read["apiVersion"].as_str(), &read["spec"]["size"]),
        (Some("example.com/v1"), &json!(5))
    );
    assert_eq!(read["metadata"]["generation"], 2);
    let list = admin(&server, "GET", other, Value::Null).await.json();
    assert_eq!(list["items"][0]["apiVersion"], "example.com/v2");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_scale_are_subresources() {
    let server = defined().await;
    admin(
        &server,
        "POST",
        WIDGETS,
        widget("a", json!({"size": 2, "replicas": 1})),
    )
    .await;
    let status = json!({"status": {"replicas": 1, "selector": "app=a"}, "spec": {"size": 9}});
    let patched = admin(&server, "PATCH", &format!("{WIDGETS}/a/status"), status)
        .await
        .json();
    assert_eq!(
        (&patched["status"]["replicas"], &patched["spec"]["size"]),
        (&json!(1), &json!(2))
    );
    let scale = admin(&server, "GET", &format!("{WIDGETS}/a/scale"), Value::Null)
        .await
        .json();
    assert_eq!(scale["status"], json!({"replicas": 1, "selector": "app=a"}));
    let scaled = admin(
        &server,
        "PATCH",
        &format!("{WIDGETS}/a/scale"),
        json!({"spec": {"replicas": 3}}),
    )
    .await;
    assert_eq!(
        (scaled.code, &scaled.json()["spec"]["replicas"]),
        (200, &json!(3)),
        "{}",
        scaled.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_the_columns_of_the_definition() {
    let server = defined().await;
    admin(&server, "POST", WIDGETS, widget("a", json!({"size": 2}))).await;
    let Some(out) = server.kubectl_ok(&["get", "wd"], "").await else {
        return;
    };
    assert!(
        out.starts_with("NAME   SIZE   AGE\na      2      "),
        "{out}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_takes_its_objects_with_it() {
    let server = defined().await;
    admin(&server, "POST", WIDGETS, widget("a", json!({"size": 2}))).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let deleted = admin(&server, "DELETE", &path, Value::Null).await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    wait(&server, &path, 404).await;
    wait(&server, WIDGETS, 404).await;
    let made = admin(&server, "POST", DEFINITIONS, definition()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let list = wait(&server, WIDGETS, 200).await;
    assert_eq!(list["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_made_of_a_definition_is_freed_with_it() {
    let registry = apiserver::Registry::builtin();
    let server = Server::start_with_kinds(registry.clone()).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    admin(&server, "POST", DEFINITIONS, definition()).await;
    wait(&server, WIDGETS, 200).await;
    let kinds: Vec<_> = ["v1", "v2"]
        .map(|version| registry.get("example.com", version, "widgets").unwrap())
        .map(|resource| match &resource.kind {
            registry::KindRef::Shared(kind) => std::sync::Arc::downgrade(kind),
            registry::KindRef::Static(_) => panic!("a custom resource is not built in"),
        })
        .into();
    // Fills every cache of the kind.
    let documents = [
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/apis/example.com/v1",
        "/apis",
        "/apis/example.com/v2",
    ];
    admin(&server, "POST", WIDGETS, widget("a", json!({"size": 2}))).await;
    let asked = [
        "/apis/example.com/v2/namespaces/default/widgets/a",
        "/apis/example.com/v1/widgets?fieldSelector=spec.colour=blue",
        "/apis/example.com/v1/widgets?watch=true&timeoutSeconds=1",
    ];
    for path in documents.into_iter().chain(asked) {
        let answer = admin(&server, "GET", path, Value::Null).await;
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
    }
    assert!(kinds.iter().all(|kind| kind.upgrade().is_some()));
    admin(&server, "DELETE", &path, Value::Null).await;
    wait(&server, WIDGETS, 404).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while kinds.iter().any(|kind| kind.upgrade().is_some()) {
        assert!(tokio::time::Instant::now() < deadline, "a kind is kept");
        // Documents are rebuilt when requested.
        for path in documents {
            admin(&server, "GET", path, Value::Null).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_objects_are_created_while_their_definition_terminates() {
    let server = defined().await;
    let mut held = widget("held", json!({"size": 2}));
    held["metadata"]["finalizers"] = json!(["example.com/stays"]);
    admin(&server, "POST", WIDGETS, held).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let deleted = admin(&server, "DELETE", &path, Value::Null).await.json();
    assert_eq!(deleted["metadata"]["generation"], 1);
    assert_eq!(
        deleted["metadata"]["deletionGracePeriodSeconds"],
        Value::Null
    );
    let reason = |definition: &Value| {
        let conditions = definition["status"]["conditions"].as_array().unwrap();
        let ends = conditions.iter().find(|one| one["type"] == "Terminating");
        ends.unwrap()["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(reason(&deleted), "InstanceDeletionPending");
    loop {
        let now = admin(&server, "GET", &path, Value::Null).await.json();
        if reason(&now) == "InstanceDeletionInProgress" {
            break;
        }
    }
    let refused = admin(&server, "POST", WIDGETS, widget("late", json!({"size": 2}))).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert_eq!(
        refused.json()["message"],
        "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating"
    );
}

/// A patch of the given type, as the administrator.
async fn patch(server: &Server, path: &str, media: &str, body: &str) -> crate::support::Raw {
    let user = apiserver::User::new("kubernetes-admin", ["system:masters"]);
    send(
        server,
        user,
        "PATCH",
        path,
        &[("content-type", media)],
        body,
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_get_the_defaults_of_a_newer_schema_when_they_are_read() {
    let server = defined().await;
    let made = admin(&server, "POST", WIDGETS, widget("old", json!({"size": 1}))).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    // Both versions: selectable fields require the same schema in all versions, or they differ as
    // well.
    let add = |version: u8| {
        let at = "schema/openAPIV3Schema/properties/spec/properties/shape";
        let shape = json!({"type": "string", "default": "round"});
        json!({"op": "add", "path": format!("/spec/versions/{version}/{at}"), "value": shape})
    };
    let change = json!([add(0), add(1)]);
    let patched = patch(
        &server,
        &path,
        "application/json-patch+json",
        &change.to_string(),
    )
    .await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    let one = format!("{WIDGETS}/old");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let read = loop {
        let read = admin(&server, "GET", &one, Value::Null).await.json();
        if read["spec"]["shape"] == "round" {
            break read;
        }
        assert!(tokio::time::Instant::now() < deadline, "{read}");
        tokio::task::yield_now().await;
    };
    let version = made.json()["metadata"]["resourceVersion"].clone();
    assert_eq!(read["metadata"]["resourceVersion"], version);
    let list = admin(&server, "GET", WIDGETS, Value::Null).await.json();
    assert_eq!(list["items"][0]["spec"]["shape"], "round");
    let merge = json!({"spec": {"size": 2}}).to_string();
    let changed = patch(&server, &one, "application/merge-patch+json", &merge).await;
    assert_eq!(changed.json()["spec"]["shape"], "round");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_refuses_fields_that_the_schema_lacks_and_keys_that_come_twice() {
    let server = defined().await;
    let apply = async |spec: &str, validation: &str| {
        let path = format!("{WIDGETS}/a?fieldManager=me&fieldValidation={validation}");
        let body =
            format!("apiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: a}}\n{spec}");
        patch(&server, &path, "application/apply-patch+yaml", &body).await
    };
    for validation in ["Strict", "Ignore"] {
        let odd = apply("odd: 1\nspec: {size: 1}", validation).await;
        assert_eq!(odd.code, 500, "{}", odd.body);
        assert_eq!(
            odd.json()["message"],
            "failed to create typed patch object (/a; example.com/v1, Kind=Widget): .odd: field not declared in schema"
        );
    }
    let twice = apply("spec:\n  size: 1\n  size: 2", "Strict").await;
    assert_eq!(twice.code, 400, "{}", twice.body);
    let message = twice.json()["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("error strict decoding YAML: "),
        "{message}"
    );
    assert!(
        message.contains("line 6: key \"size\" already set in map"),
        "{message}"
    );
    assert_eq!(
        apply("spec:\n  size: 1\n  size: 2", "Ignore").await.code,
        201
    );
}

/// Managed fields are nested deeper than the fields they name.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_any_depth_that_was_made_can_be_changed_in_every_way() {
    let server = defined().await;
    let user = || apiserver::User::new("kubernetes-admin", ["system:masters"]);
    let ask = async |method: &str, path: &str, media: &str, body: &str| {
        let headers = [("content-type", media)];
        send(&server, user(), method, path, &headers, body.to_owned()).await
    };
    let json = "application/json";
    let mut accepted = Vec::new();
    for levels in [10, 100, 114, 115, 116, 117, 118, 119, 120, 130] {
        let (at, status) = (
            format!("{WIDGETS}/w{levels}"),
            format!("{WIDGETS}/w{levels}/status"),
        );
        let mut object = widget(&format!("w{levels}"), json!({"size": 1}));
        let made = ask("POST", WIDGETS, json, &object.to_string()).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let nested =
            |leaf: u8| (1..levels).fold(json!({"a": leaf}), |inner, _| json!({"a": inner}));
        object["status"] = nested(1);
        let applied_object = object.to_string();
        object["metadata"]["resourceVersion"] = made.json()["metadata"]["resourceVersion"].clone();
        let put = ask("PUT", &status, json, &object.to_string()).await;
        if put.code != 200 {
            assert_eq!(put.code, 400, "{}", put.body);
            continue;
        }
        accepted.push(levels);
        let merge = json!({"status": nested(2)}).to_string();
        let applied = format!("{status}?fieldManager=m&force=true");
        for (path, media, body) in [
            (
                &at,
                "application/merge-patch+json",
                r#"{"metadata":{"labels":{"a":"b"}}}"#,
            ),
            (
                &at,
                "application/json-patch+json",
                r#"[{"op":"add","path":"/metadata/labels/c","value":"d"}]"#,
            ),
            (&status, "application/merge-patch+json", merge.as_str()),
            (&applied, "application/apply-patch+yaml", &applied_object),
        ] {
            let patched = ask("PATCH", path, media, body).await;
            assert_eq!(patched.code, 200, "{levels} {media}: {}", patched.body);
        }
        for form in [
            "application/yaml",
            "application/json;as=Table;g=meta.k8s.io;v=v1",
        ] {
            let read = send(&server, user(), "GET", &at, &[("accept", form)], "").await;
            assert_eq!(read.code, 200, "{levels} {form}: {}", read.body);
        }
    }
    assert_eq!(accepted, [10, 100, 114, 115, 116, 117, 118, 119]);
}
