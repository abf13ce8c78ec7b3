//! Conversion webhooks of custom resources: every verb in every version, and what happens when they fail.

use std::sync::Arc;

use futures::StreamExt;
use http_body_util::BodyStream;
use machinery::json::{Value, json};
use parking_lot::Mutex;

use crate::{
    hook_server::{Hook, Reply},
    support::{Raw, Server, admin, eventually, over_socket, send},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn path(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/hosts")
}

/// `v1` has `hostPort`, `v2` has `host` and `port`.
fn convert(object: &Value, desired: &Value) -> Value {
    let mut made = object.clone();
    made["apiVersion"] = desired.clone();
    let spec = &object["spec"];
    if *desired != "example.com/v1" {
        let text = spec["hostPort"].as_str().unwrap_or_default();
        let (host, port) = text.split_once(':').unwrap_or((text, ""));
        made["spec"] = json!({"host": host, "port": port});
    } else {
        let text = |key: &str| spec[key].as_str().unwrap_or_default();
        made["spec"] = json!({"hostPort": format!("{}:{}", text("host"), text("port"))});
    }
    made
}

fn converted(review: &Value) -> Value {
    let request = &review["request"];
    let objects = request["objects"].as_array().unwrap().iter();
    let objects: Vec<Value> = objects
        .map(|object| convert(object, &request["desiredAPIVersion"]))
        .collect();
    respond(
        review,
        json!({"result": {"status": "Success"}, "convertedObjects": objects}),
    )
}

fn respond(review: &Value, mut response: Value) -> Value {
    response["uid"] = review["request"]["uid"].clone();
    json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response})
}

fn version(name: &str, storage: bool, fields: &[&str]) -> Value {
    let mut properties = json!({});
    for field in fields {
        properties[*field] = json!({"type": "string"});
    }
    let selectable = fields
        .iter()
        .map(|field| json!({"jsonPath": format!(".spec.{field}")}));
    json!({
        "name": name, "served": true, "storage": storage,
        "selectableFields": selectable.collect::<Vec<_>>(),
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": properties}}}},
    })
}

fn definition(hook: &Hook) -> Value {
    json!({
        "metadata": {"name": "hosts.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "hosts", "singular": "host", "kind": "Host", "listKind": "HostList"},
            "versions": [version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"]),
                version("v3", false, &["host", "port"])],
            "conversion": {"strategy": "Webhook", "webhook": {
                "clientConfig": hook.by_url(), "conversionReviewVersions": ["v1", "v1beta1"]}},
        },
    })
}

async fn serve(hook: &Hook) -> Server {
    let server = Server::start().await;
    let made = admin(&server, "POST", DEFINITIONS, definition(hook)).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert!(made.headers.get("warning").is_none(), "{:?}", made.headers);
    eventually(|| async {
        let listed = admin(&server, "GET", &path("v2"), Value::Null).await;
        (listed.code == 200).then_some(())
    })
    .await;
    server
}

fn first(name: &str, host_port: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": name}, "spec": {"hostPort": host_port}})
}

fn second(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Host", "metadata": {"name": name},
        "spec": {"host": host, "port": port}})
}

async fn get(server: &Server, version: &str, name: &str) -> Raw {
    admin(
        server,
        "GET",
        &format!("{}/{name}", path(version)),
        Value::Null,
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_written_and_read_in_every_version() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    let made = admin(&server, "POST", &path("v1"), first("a", "localhost:80")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert!(
        hook.seen.lock().is_empty(),
        "what is stored in its own version is not converted"
    );
    let read = get(&server, "v2", "a").await;
    assert_eq!(
        read.json()["spec"],
        json!({"host": "localhost", "port": "80"}),
        "{}",
        read.body
    );
    assert_eq!(read.json()["metadata"], made.json()["metadata"]);
    let made = admin(&server, "POST", &path("v2"), second("b", "example", "443")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.json()["apiVersion"], "example.com/v2");
    assert_eq!(
        made.json()["spec"],
        json!({"host": "example", "port": "443"})
    );
    assert_eq!(
        get(&server, "v1", "b").await.json()["spec"],
        json!({"hostPort": "example:443"})
    );
    let patched = admin(
        &server,
        "PATCH",
        &format!("{}/b", path("v2")),
        json!({"spec": {"port": "8443"}}),
    )
    .await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert_eq!(
        get(&server, "v1", "b").await.json()["spec"]["hostPort"],
        "example:8443"
    );
    let mut whole = get(&server, "v2", "a").await.json();
    whole["spec"]["host"] = "other".into();
    let updated = admin(&server, "PUT", &format!("{}/a", path("v2")), whole).await;
    assert_eq!(updated.code, 200, "{}", updated.body);
    assert_eq!(
        get(&server, "v1", "a").await.json()["spec"]["hostPort"],
        "other:80"
    );
    let gone = admin(&server, "DELETE", &format!("{}/a", path("v2")), Value::Null).await;
    assert_eq!(gone.code, 200, "{}", gone.body);
    assert_eq!(get(&server, "v1", "a").await.code, 404);
    let path = format!("{DEFINITIONS}/hosts.example.com");
    let stored = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(stored.json()["status"]["storedVersions"], json!(["v1"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_converted_at_once_and_selected_by_the_fields_of_their_version() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    for (name, value) in [("a", "x:1"), ("b", "y:1"), ("c", "x:2")] {
        let made = admin(&server, "POST", &path("v1"), first(name, value)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let listed = admin(&server, "GET", &path("v2"), Value::Null).await;
    assert_eq!(
        listed.json()["items"].as_array().unwrap().len(),
        3,
        "{}",
        listed.body
    );
    let objects = |review: &Value| review["request"]["objects"].as_array().unwrap().len();
    let sizes: Vec<usize> = hook.seen.lock().iter().map(objects).collect();
    assert_eq!(sizes, [3], "one review for all");
    let names = |answer: Raw| {
        let items = answer.json()["items"].as_array().unwrap().clone();
        let names = items
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    for (version, selector, expected) in [
        ("v2", "spec.host=x", "a c"),
        ("v2", "spec.port=1", "a b"),
        ("v1", "spec.hostPort=y:1", "b"),
    ] {
        let path = format!("{}?fieldSelector={selector}", path(version));
        let listed = admin(&server, "GET", &path, Value::Null).await;
        assert_eq!(listed.code, 200, "{}", listed.body);
        assert_eq!(names(listed), expected, "{version} {selector}");
    }
    let refused = admin(
        &server,
        "GET",
        &format!("{}?fieldSelector=spec.host=x", path("v1")),
        Value::Null,
    )
    .await;
    assert_eq!(refused.code, 400, "{}", refused.body);
    let watch = format!(
        "{}?watch=true&fieldSelector=spec.host=x&timeoutSeconds=1",
        path("v2")
    );
    let watched = admin(&server, "GET", &watch, Value::Null).await;
    let lines: Vec<Value> = watched
        .body
        .lines()
        .map(|line| machinery::json::from_str(line).unwrap())
        .collect();
    let seen: Vec<&Value> = lines
        .iter()
        .map(|event| &event["object"]["spec"]["port"])
        .collect();
    assert_eq!(seen, ["1", "2"], "{}", watched.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_changes_in_their_version() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    let made = admin(&server, "POST", &path("v1"), first("a", "x:1")).await;
    let since = made.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    for change in [
        json!({"spec": {"hostPort": "x:2"}}),
        json!({"metadata": {"labels": {"l": "1"}}}),
    ] {
        let changed = admin(&server, "PATCH", &format!("{}/a", path("v1")), change).await;
        assert_eq!(changed.code, 200, "{}", changed.body);
    }
    admin(&server, "DELETE", &format!("{}/a", path("v1")), Value::Null).await;
    let watch = format!(
        "{}?watch=true&resourceVersion={since}&timeoutSeconds=1",
        path("v2")
    );
    let watched = admin(&server, "GET", &watch, Value::Null).await;
    let seen: Vec<String> = watched
        .body
        .lines()
        .map(|line| {
            let event: Value = machinery::json::from_str(line).unwrap();
            let object = &event["object"];
            format!(
                "{} {} {}",
                event["type"], object["apiVersion"], object["spec"]["port"]
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            "\"MODIFIED\" \"example.com/v2\" \"2\"",
            "\"MODIFIED\" \"example.com/v2\" \"2\"",
            "\"DELETED\" \"example.com/v2\" \"2\"",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_of_other_versions_keep_their_fields() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    let apply = async |version: &str, manager: &str, body: Value| {
        let user = apiserver::User::new("kubernetes-admin", ["system:masters"]);
        let path = format!("{}/a?fieldManager={manager}", path(version));
        let media = [("content-type", "application/apply-patch+yaml")];
        send(&server, user, "PATCH", &path, &media, body.to_string()).await
    };
    let made = apply("v1", "one", first("a", "x:1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let same = apply("v2", "two", second("a", "x", "1")).await;
    assert_eq!(same.code, 200, "{}", same.body);
    let managers = get(&server, "v2", "a").await.json()["metadata"]["managedFields"].clone();
    let mut managers: Vec<String> = managers
        .as_array()
        .unwrap()
        .iter()
        .map(|manager| format!("{} {}", manager["manager"], manager["apiVersion"]))
        .collect();
    managers.sort();
    assert_eq!(
        managers,
        ["\"one\" \"example.com/v1\"", "\"two\" \"example.com/v2\""]
    );
    let conflict = apply("v2", "two", second("a", "y", "1")).await;
    assert_eq!(conflict.code, 409, "{}", conflict.body);
    assert!(conflict.body.contains(".spec.host"), "{}", conflict.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_conversion_is_told_and_stores_nothing() {
    let hook = Hook::start(|review| {
        let objects = review["request"]["objects"].as_array().unwrap();
        let name = objects[0]["metadata"]["name"].as_str().unwrap_or_default();
        let spoilt = |change: fn(&mut Value)| {
            let mut made = converted(review);
            change(&mut made["response"]["convertedObjects"][0]);
            Reply::Json(made)
        };
        match name {
            "garbage" => Reply::Raw(200, b"garbage".to_vec()),
            "large" => Reply::Raw(200, vec![b' '; 20 << 20]),
            "refused" => Reply::Json(respond(
                review,
                json!({"result": {"status": "Failure", "message": "I do not convert"}}),
            )),
            "fewer" => Reply::Json(respond(
                review,
                json!({"result": {"status": "Success"}, "convertedObjects": []}),
            )),
            "renamed" => spoilt(|object| object["metadata"]["name"] = "other".into()),
            "aged" => spoilt(|object| object["metadata"]["generation"] = 77.into()),
            "mislabelled" => {
                spoilt(|object| object["metadata"]["labels"] = json!({"not a label": "x"}))
            }
            _ => Reply::Json(converted(review)),
        }
    })
    .await;
    let server = serve(&hook).await;
    for (name, words) in [
        (
            "garbage",
            "conversion webhook for example.com/v2, Kind=Host failed: couldn't get version/kind; json parse error: ",
        ),
        (
            "large",
            "conversion webhook for example.com/v2, Kind=Host failed: unexpected error when reading response body. ",
        ),
        (
            "refused",
            "conversion webhook for example.com/v2, Kind=Host failed: I do not convert",
        ),
        (
            "fewer",
            "conversion webhook for example.com/v2, Kind=Host returned 0 objects, expected 1",
        ),
        (
            "renamed",
            "conversion webhook for example.com/v2, Kind=Host returned invalid object: must have the same name: renamed != other",
        ),
        (
            "mislabelled",
            "conversion webhook for example.com/v2, Kind=Host returned invalid metadata: ",
        ),
    ] {
        let refused = admin(&server, "POST", &path("v2"), second(name, "x", "1")).await;
        assert_eq!(refused.code, 500, "{name}: {}", refused.body);
        let said = refused.json()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(said.starts_with(words), "{name}: {said}");
        assert_eq!(get(&server, "v1", name).await.code, 404, "{name}");
    }
    let made = admin(&server, "POST", &path("v2"), second("aged", "x", "1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(
        made.json()["metadata"]["generation"],
        1,
        "metadata is not the webhook's"
    );
    let stored = admin(&server, "POST", &path("v1"), first("refused", "x:1")).await;
    assert_eq!(stored.code, 201, "{}", stored.body);
    let read = get(&server, "v2", "refused").await;
    assert_eq!(read.code, 500, "{}", read.body);
    let listed = admin(&server, "GET", &path("v2"), Value::Null).await;
    assert_eq!(listed.code, 500, "{}", listed.body);
    assert_eq!(get(&server, "v1", "refused").await.code, 200);
}

/// A change of the objects that a webhook returns.
type Lie = fn(&mut Vec<Value>);

/// What a webhook does with the objects `a` and `b`, and the error.
const LIES: [(&str, Lie, &str); 9] = [
    (
        "reorders",
        |objects| objects.reverse(),
        "returned invalid converted object at index 0: must have the same name: a != b",
    ),
    (
        "drops",
        |objects| drop(objects.pop()),
        "returned 1 objects, expected 2",
    ),
    (
        "adds",
        |objects| objects.push(objects[0].clone()),
        "returned 3 objects, expected 2",
    ),
    (
        "repeats",
        |objects| objects[1] = objects[0].clone(),
        "returned invalid converted object at index 1: must have the same name: b != a",
    ),
    (
        "moves",
        |objects| objects[1]["metadata"]["namespace"] = "kube-system".into(),
        "returned invalid converted object at index 1: must have the same namespace: default != kube-system",
    ),
    (
        "reidentifies",
        |objects| objects[1]["metadata"]["uid"] = "other".into(),
        "returned invalid converted object at index 1: must have the same UID: ",
    ),
    (
        "retypes",
        |objects| objects[1]["kind"] = "Secret".into(),
        "returned invalid converted object at index 1: invalid kind (expected Host, received Secret)",
    ),
    (
        "keeps the version",
        |objects| objects[1]["apiVersion"] = "example.com/v1".into(),
        "returned invalid converted object at index 1: invalid groupVersion (expected example.com/v2, received example.com/v1)",
    ),
    (
        "empties",
        |objects| objects[1] = Value::Null,
        "returned invalid converted object at index 1: ",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_a_conversion_webhook_that_lies_are_errors_and_change_nothing() {
    let lie: Arc<Mutex<Option<Lie>>> = Arc::default();
    let current = lie.clone();
    let hook = Hook::start(move |review| {
        let mut answer = converted(review);
        if let (Some(lie), Some(objects)) = (
            *current.lock(),
            answer["response"]["convertedObjects"].as_array_mut(),
        ) {
            lie(objects);
        }
        Reply::Json(answer)
    })
    .await;
    let server = serve(&hook).await;
    for name in ["a", "b"] {
        let made = admin(&server, "POST", &path("v1"), first(name, "x:1")).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let stored = admin(&server, "GET", &path("v1"), Value::Null).await.json();
    for (what, change, words) in LIES {
        *lie.lock() = Some(change);
        let listed = admin(&server, "GET", &path("v2"), Value::Null).await;
        assert_eq!(listed.code, 500, "{what}: {}", listed.body);
        let message = listed.json()["message"].as_str().unwrap().to_owned();
        let start = "conversion webhook for example.com/v1, Kind=Host ";
        let why = message.strip_prefix(start);
        assert!(
            why.is_some_and(|why| why.starts_with(words)),
            "{what}: {message}"
        );
        let cleared = admin(&server, "DELETE", &path("v2"), Value::Null).await;
        assert_eq!(cleared.code, 500, "{what}: {}", cleared.body);
        let now = admin(&server, "GET", &path("v1"), Value::Null).await.json();
        assert_eq!(now["items"], stored["items"], "{what}");
    }
    *lie.lock() = None;
    let listed = admin(&server, "GET", &path("v2"), Value::Null).await;
    assert_eq!(listed.code, 200, "{}", listed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_webhook_of_another_authority_or_without_endpoints_converts_nothing() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let other = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    let made = admin(&server, "POST", &path("v1"), first("old", "x:1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443}]}});
    let services = "/api/v1/namespaces/default/services";
    assert_eq!(admin(&server, "POST", services, service).await.code, 201);
    let mut stranger = hook.by_url();
    stranger["caBundle"] = other.by_url()["caBundle"].clone();
    let mut empty = json!({"service": {"namespace": "default", "name": "hook"}});
    empty["caBundle"] = hook.by_url()["caBundle"].clone();
    for (client, words) in [
        (
            stranger,
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        ),
        (empty, "no endpoints available for service \"hook\""),
    ] {
        let definition = format!("{DEFINITIONS}/hosts.example.com");
        // The server may write the definition's status at the same time.
        eventually(|| async {
            let mut current = admin(&server, "GET", &definition, Value::Null).await.json();
            current["spec"]["conversion"]["webhook"]["clientConfig"] = client.clone();
            let changed = admin(&server, "PUT", &definition, current).await;
            assert!([200, 409].contains(&changed.code), "{}", changed.body);
            (changed.code == 200).then_some(())
        })
        .await;
        eventually(|| async {
            let read = get(&server, "v2", "old").await;
            (read.code == 500 && read.body.contains(&words.replace('"', "\\\""))).then_some(())
        })
        .await;
        let refused = admin(&server, "POST", &path("v2"), second("new", "x", "1")).await;
        assert_eq!(refused.code, 500, "{}", refused.body);
        assert_eq!(get(&server, "v1", "new").await.code, 404);
        // What needs no conversion is served.
        assert_eq!(get(&server, "v1", "old").await.code, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_storage_version_may_change_while_objects_of_both_are_stored() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    let made = admin(&server, "POST", &path("v1"), first("old", "x:1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let versions = json!({"spec": {"versions": [
        version("v1", false, &["hostPort"]), version("v2", true, &["host", "port"])]}});
    let definition = format!("{DEFINITIONS}/hosts.example.com");
    let changed = admin(&server, "PATCH", &definition, versions).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    let stored = eventually(|| async {
        let read = admin(&server, "GET", &definition, Value::Null).await;
        let stored = read.json()["status"]["storedVersions"].clone();
        (stored.as_array().unwrap().len() == 2).then_some(stored)
    })
    .await;
    assert_eq!(stored, json!(["v1", "v2"]));
    let made = admin(&server, "POST", &path("v1"), first("new", "y:2")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    for version in ["v1", "v2"] {
        let listed = admin(&server, "GET", &path(version), Value::Null).await;
        let items = listed.json()["items"].as_array().unwrap().clone();
        assert_eq!(items.len(), 2, "{}", listed.body);
        let is_own = |item: &Value| item["apiVersion"] == format!("example.com/{version}");
        assert!(items.iter().all(is_own), "{}", listed.body);
    }
    assert_eq!(
        get(&server, "v2", "old").await.json()["spec"],
        json!({"host": "x", "port": "1"})
    );
    assert_eq!(
        get(&server, "v1", "new").await.json()["spec"],
        json!({"hostPort": "y:2"})
    );
}

/// Creates a policy about hosts in version 2 and its binding, with additions to their specs.
async fn bind(server: &Server, name: &str, mut policy: Value, mut binding: Value) {
    let group = "/apis/admissionregistration.k8s.io/v1";
    policy["matchConstraints"] = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["example.com"],
        "apiVersions": ["v2"], "resources": ["hosts"]}]});
    binding["policyName"] = name.into();
    binding["validationActions"] = json!(["Deny"]);
    for (kind, spec) in [("policies", policy), ("policybindings", binding)] {
        let path = format!("{group}/validatingadmission{kind}");
        let body = json!({"metadata": {"name": name}, "spec": spec});
        let made = admin(server, "POST", &path, body).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

/// The response to the creation of a host once it is rejected.
async fn refused(server: &Server, host: &Value) -> String {
    let path = format!("{}?dryRun=All", path("v1"));
    eventually(|| async {
        let tried = admin(server, "POST", &path, host.clone()).await;
        (tried.code == 422).then(|| tried.json()["message"].as_str().unwrap().to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_see_objects_in_the_version_that_they_match() {
    let broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let switch = broken.clone();
    let hook = Hook::start(
        move |review| match switch.load(std::sync::atomic::Ordering::Relaxed) {
            true => Reply::Raw(500, b"broken".to_vec()),
            false => Reply::Json(converted(review)),
        },
    )
    .await;
    let server = serve(&hook).await;
    let rules = json!({"validations": [{"expression": "object.spec.host != 'bad'", "message": "a bad host"}]});
    bind(&server, "hosts", rules, json!({})).await;
    let message = refused(&server, &first("a", "bad:80")).await;
    assert!(message.ends_with("denied request: a bad host"), "{message}");
    let made = admin(&server, "POST", &path("v1"), first("a", "good:80")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    // If the conversion webhook fails, the policy cannot be evaluated, and the request is rejected.
    broken.store(true, std::sync::atomic::Ordering::Relaxed);
    let message = refused(&server, &first("b", "good:80")).await;
    assert!(
        message.contains("failed to convert object version: conversion webhook for"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_see_parameters_in_the_version_of_their_kind() {
    let hook = Hook::start(|review| Reply::Json(converted(review))).await;
    let server = serve(&hook).await;
    let made = admin(&server, "POST", &path("v1"), first("limits", "bad:80")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    for (name, reference) in [
        ("named", json!({"name": "limits"})),
        ("selected", json!({"selector": {}})),
    ] {
        let mut reference = reference;
        reference["parameterNotFoundAction"] = "Deny".into();
        let rules = json!({"paramKind": {"apiVersion": "example.com/v2", "kind": "Host"},
            "validations": [{"expression": "object.spec.host != params.spec.host", "message": name}]});
        bind(&server, name, rules, json!({"paramRef": reference})).await;
        let message = refused(&server, &first("a", "bad:443")).await;
        assert!(
            message.ends_with(&format!("denied request: {name}")),
            "{message}"
        );
        let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        let path = format!("{policies}/{name}");
        admin(&server, "DELETE", &path, Value::Null).await;
        let path = self::path("v1");
        eventually(|| async {
            let path = format!("{path}?dryRun=All");
            let tried = admin(&server, "POST", &path, first("a", "bad:443")).await;
            (tried.code == 201).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_watchers_of_a_version_share_one_conversion() {
    const WATCHERS: usize = 100;
    let hook = Hook::start(|review| {
        // Slow enough that all watchers have the event before the first has its conversion.
        std::thread::sleep(std::time::Duration::from_millis(200));
        Reply::Json(converted(review))
    })
    .await;
    let server = serve(&hook).await;
    let mut watches = Vec::new();
    // The first version to be converted to is cached with the object, others are not.
    for version in ["v2", "v3"] {
        for _ in 0..WATCHERS {
            let watch = format!("{}?watch=true", path(version));
            let request = http::Request::get(&watch).body(http_body_util::Full::default());
            let answer = over_socket(&server, request.unwrap()).await;
            assert_eq!(answer.status(), 200, "{version}");
            watches.push(BodyStream::new(answer.into_body()));
        }
    }
    let made = admin(&server, "POST", &path("v1"), first("a", "x:1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    for watch in &mut watches {
        let event = watch.next().await.unwrap().unwrap().into_data().unwrap();
        let event = String::from_utf8_lossy(&event).into_owned();
        assert!(event.contains(r#""host":"x""#), "{event}");
    }
    let asked = hook.seen.lock().len();
    assert!(asked <= 4, "{asked} calls for one event in two versions");
}
