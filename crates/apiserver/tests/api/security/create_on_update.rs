//! `patch` and `update` change objects; creating one requires `create`.

use apiserver::User;
use machinery::json::{Value, json};

use super::{apply, ask, grant, user};
use crate::{
    every_kind::all,
    support::{Raw, Server, admin, eventually},
};

const REFUSED: &str = "cannot create resource";

/// A user with every verb on everything, except `create`.
async fn changer(server: &Server) -> User {
    let rules = json!([{"verbs": ["update", "patch", "get", "list", "delete"],
                        "apiGroups": ["*"], "resources": ["*"]}]);
    grant(server, "eve", rules).await;
    user("eve")
}

fn assert_refused(answer: &Raw, path: &str) {
    assert_eq!(answer.code, 403, "{path}: {}", answer.body);
    assert!(answer.body.contains(REFUSED), "{path}: {}", answer.body);
}

async fn is_there(server: &Server, path: &str) -> bool {
    admin(server, "GET", path, Value::Null).await.code == 200
}

/// One valid object of the kind at a collection's path.
fn sample(samples: &Value, collection: &str, kind: &str) -> Value {
    let mut parts = collection.split('/').skip(1);
    let group = match parts.next() {
        Some("apis") => parts.next().unwrap(),
        _ => "",
    };
    let version = parts.next().unwrap();
    let mut sample = samples[format!("{group}/{kind}").as_str()].clone();
    sample["kind"] = kind.into();
    sample["apiVersion"] = match group {
        "" => version.into(),
        group => format!("{group}/{version}").into(),
    };
    if sample["metadata"]["name"].is_null() {
        sample["metadata"]["name"] = "sample".into();
    }
    sample
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kind_is_made_by_apply_or_put_without_create() {
    let server = Server::start().await;
    let eve = changer(&server).await;
    let samples: Value = machinery::json::from_str(include_str!("../samples.json")).unwrap();
    let (mut applied, mut put) = (0, Vec::new());
    for (collection, resource) in all(&server).await {
        let can = |wanted: &str| {
            let mut verbs = resource["verbs"].as_array().unwrap().iter();
            verbs.any(|verb| verb == wanted)
        };
        let kind = resource["kind"].as_str().unwrap();
        // Roles, and bindings of roles that eve does not hold, are rejected for another reason as
        // well.
        if !can("create") || !can("patch") {
            continue;
        }
        let sample = sample(&samples, &collection, kind);
        let path = format!(
            "{collection}/{}",
            sample["metadata"]["name"].as_str().unwrap()
        );
        let answer = apply(&server, &eve, &path, &sample).await;
        assert_refused(&answer, &path);
        assert!(!is_there(&server, &path).await, "{path} was made");
        applied += 1;
        let answer = ask(&server, &eve, "PUT", &path, sample).await;
        match answer.code {
            404 | 409 | 422 => {}
            _ => {
                assert_refused(&answer, &path);
                put.push(kind.to_owned());
            }
        }
        assert!(!is_there(&server, &path).await, "{path} was made by PUT");
        // A subresource of a missing object cannot be created.
        let status = apply(&server, &eve, &format!("{path}/status"), &json!({})).await;
        assert!(
            matches!(status.code, 400 | 404 | 405),
            "{path}: {}",
            status.body
        );
    }
    assert!(applied > 50, "{applied} kinds");
    for kind in [
        "Lease",
        "Endpoints",
        "Event",
        "LimitRange",
        "RuntimeClass",
        "RoleBinding",
    ] {
        let known = put.iter().any(|other| other == kind);
        assert!(known, "{kind} can be made by PUT: {put:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_not_made_by_apply_without_create() {
    let server = Server::start().await;
    let eve = changer(&server).await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true,
                      "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(admin(&server, "POST", path, definition).await.code, 201);
    let things = "/apis/example.com/v1/namespaces/default/things";
    eventually(|| async { is_there(&server, things).await.then_some(()) }).await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}});
    let path = format!("{things}/x");
    assert_refused(&apply(&server, &eve, &path, &thing).await, &path);
    let dry_run = format!("{path}?dryRun=All&fieldManager=test");
    let headers = [("content-type", super::APPLY)];
    let body = thing.to_string();
    let answer =
        crate::support::send(&server, eve.clone(), "PATCH", &dry_run, &headers, body).await;
    assert_refused(&answer, &dry_run);
    assert!(!is_there(&server, &path).await);
    // Existing objects may be changed.
    assert_eq!(
        admin(&server, "POST", things, thing.clone()).await.code,
        201
    );
    assert_eq!(apply(&server, &eve, &path, &thing).await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_for_some_names_is_enough_for_apply_of_those() {
    let server = Server::start().await;
    let rules = json!([
        {"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"]},
        {"verbs": ["patch"], "apiGroups": [""], "resources": ["configmaps"]}]);
    grant(&server, "bob", rules).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let bob = user("bob");
    let made = apply(&server, &bob, &format!("{maps}/mine"), &map("mine")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let refused = apply(&server, &bob, &format!("{maps}/theirs"), &map("theirs")).await;
    assert_refused(&refused, maps);
}
