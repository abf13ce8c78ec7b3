//! A schema that becomes stricter while objects exist: values that were valid before are kept.

use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GADGETS: &str = "/apis/example.com/v1/gadgets";

fn definition(spec: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": spec,
                    "status": {"type": "object", "properties": {"note": {"type": "string", "maxLength": 9}}}}}}}]},
    })
}

fn spec(limit: Option<u32>) -> Value {
    let mut spec = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "other": {"type": "string"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "string"}, "size": {"type": "integer"}}}}}});
    if let Some(limit) = limit {
        spec["required"] = json!(["must"]);
        spec["properties"]["must"] = json!({"type": "string"});
        spec["properties"]["name"]["maxLength"] = json!(limit);
        spec["properties"]["tags"]["additionalProperties"]["maxLength"] = json!(limit);
        spec["properties"]["parts"]["items"]["properties"]["size"]["maximum"] = json!(limit);
    }
    spec
}

async fn put(server: &Server, object: &Value) -> Raw {
    admin(server, "PUT", &format!("{GADGETS}/a"), object.clone()).await
}

fn causes(answer: &Raw) -> Vec<String> {
    let status = answer.json();
    let causes = status["details"]["causes"].as_array().cloned();
    let fields = causes.into_iter().flatten();
    fields
        .map(|cause| cause["field"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn unchanged_fields_are_let_pass_and_changed_ones_are_not() {
    let server = Server::start().await;
    let loose = admin(&server, "POST", DEFINITIONS, definition(spec(None))).await;
    assert_eq!(loose.code, 201, "{}", loose.body);
    let object = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "a"},
        "spec": {"name": "too long", "other": "o", "tags": {"t": "too long", "u": "ok"},
            "parts": [{"id": "x", "size": 9}, {"id": "y", "size": 1}]}});
    let mut held = eventually(|| async {
        let made = admin(&server, "POST", GADGETS, object.clone()).await;
        (made.code == 201).then(|| made.json())
    })
    .await;
    let one = format!("{DEFINITIONS}/gadgets.example.com");
    // The server writes the status meanwhile.
    eventually(|| async {
        let mut strict = admin(&server, "GET", &one, Value::Null).await.json();
        strict["spec"] = definition(spec(Some(3)))["spec"].clone();
        let answer = admin(&server, "PUT", &one, strict).await;
        (answer.code == 200).then_some(())
    })
    .await;
    eventually(|| async {
        let mut other = object.clone();
        other["metadata"]["name"] = json!("b");
        let refused = admin(&server, "POST", GADGETS, other).await;
        (refused.code == 422).then_some(())
    })
    .await;

    held["metadata"]["labels"] = json!({"l": "v"});
    let answer = put(&server, &held).await;
    assert_eq!(answer.code, 200, "nothing of it changed: {}", answer.body);
    held = answer.json();
    held["spec"]["other"] = json!("p");
    let answer = put(&server, &held).await;
    assert_eq!(causes(&answer), ["spec.must"], "{}", answer.body);
    held["spec"]["must"] = json!("m");
    held["spec"]["parts"] = json!([{"id": "y", "size": 2}, {"id": "x", "size": 9}]);
    let answer = put(&server, &held).await;
    assert_eq!(answer.code, 200, "found again by its key: {}", answer.body);
    held = answer.json();
    for (path, value, field) in [
        ("/spec/name", json!("still too long"), "spec.name"),
        ("/spec/tags/u", json!("too long"), "spec.tags.u"),
        ("/spec/parts/0/size", json!(8), "spec.parts[0].size"),
    ] {
        let mut wrong = held.clone();
        *wrong.pointer_mut(path).unwrap() = value;
        let answer = put(&server, &wrong).await;
        assert_eq!(answer.code, 422);
        assert_eq!(causes(&answer), [field], "{}", answer.body);
    }
    held["status"] = json!({"note": "short"});
    let path = format!("{GADGETS}/a/status");
    let answer = admin(&server, "PUT", &path, held).await;
    assert_eq!(
        answer.code, 200,
        "the rest is not looked at: {}",
        answer.body
    );
}
