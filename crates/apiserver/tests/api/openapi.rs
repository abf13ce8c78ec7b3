//! OpenAPI: content, hashes, both versions, custom resources.

use apiserver::User;
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, send};

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    send(server, user, "GET", path, headers, "").await
}

async fn index(server: &Server) -> Value {
    get(server, "/openapi/v3", &[]).await.json()["paths"].clone()
}

fn url(index: &Value, place: &str) -> String {
    index[place]["serverRelativeURL"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_named_by_their_hash_and_kept_for_good() {
    let server = Server::start().await;
    let named = url(&index(&server).await, "api/v1");
    let document = get(&server, &named, &[]).await;
    assert_eq!(document.code, 200);
    assert_eq!(document.headers["cache-control"], "public, immutable");
    assert!(
        document.headers["expires"]
            .to_str()
            .unwrap()
            .ends_with("GMT")
    );
    assert_eq!(document.headers["vary"], "Accept");
    let etag = document.headers["etag"].to_str().unwrap().to_owned();
    let hash = named.rsplit_once('=').unwrap().1;
    assert_eq!(etag, format!("\"{hash}\""));
    let known = get(&server, &named, &[("if-none-match", &etag)]).await;
    assert_eq!((known.code, known.body.as_str()), (304, ""));
    let unnamed = get(&server, "/openapi/v3/api/v1", &[]).await;
    assert_eq!(
        (unnamed.code, &unnamed.headers["cache-control"]),
        (200, &"no-cache, private".parse().unwrap())
    );
    let old = get(&server, "/openapi/v3/api/v1?hash=0123", &[]).await;
    assert_eq!(
        (old.code, old.headers["location"].to_str().unwrap()),
        (301, named.as_str())
    );
    let refused = get(&server, &named, &[("accept", "text/html")]).await;
    assert_eq!(refused.code, 406);

    let schemas = &document.json()["components"]["schemas"];
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert!(
        pod["description"]
            .as_str()
            .unwrap()
            .contains("collection of containers")
    );
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert!(
        containers["description"]
            .as_str()
            .unwrap()
            .starts_with("List of containers")
    );
    let described = schemas.as_object().unwrap().values();
    let fields = described
        .flat_map(|schema| schema["properties"].as_object())
        .flatten();
    let (mut with, mut without) = (0, Vec::new());
    for (name, field) in fields {
        match field["description"].is_string() {
            true => with += 1,
            false => without.push(name.as_str()),
        }
    }
    assert!(
        with > 900 && without.is_empty(),
        "{with} described, {without:?} not"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_document_comes_in_both_forms() {
    let server = Server::start().await;
    let json = get(&server, "/openapi/v2", &[]).await;
    let etag = json.headers["etag"].to_str().unwrap().to_owned();
    let document = json.json();
    assert_eq!(document["swagger"], "2.0");
    let replicas =
        &document["definitions"]["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["replicas"];
    assert!(
        replicas["description"]
            .as_str()
            .unwrap()
            .contains("Number of desired pods")
    );
    let known = get(&server, "/openapi/v2", &[("if-none-match", &etag)]).await;
    assert_eq!(known.code, 304);
    for media in [
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf,application/json",
    ] {
        let message = get(&server, "/openapi/v2", &[("accept", media)]).await;
        assert_eq!(
            message.headers["content-type"],
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        );
        assert!(
            message.body.starts_with("\n\u{3}2.0"),
            "a document with its version first"
        );
        assert!(message.body.contains("io.k8s.api.apps.v1.DeploymentSpec"));
    }
    assert_eq!(
        get(&server, "/openapi/v2", &[("accept", "text/html")])
            .await
            .code,
        406
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_published_in_both_and_only_their_hash_changes() {
    let server = Server::start().await;
    let before = index(&server).await;
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "integer", "description": "How large it is."}}}}}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = admin(&server, "POST", path, definition.clone()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let after = crate::support::eventually(|| async {
        let after = index(&server).await;
        after.get("apis/example.com/v1").is_some().then_some(after)
    })
    .await;
    assert_eq!(url(&before, "apis/apps/v1"), url(&after, "apis/apps/v1"));
    let first = url(&after, "apis/example.com/v1");
    let widget = "com.example.v1.Widget";
    let size = |document: &Value, from: &str| {
        let schema = document
            .pointer(&format!("{from}/{widget}"))
            .unwrap()
            .clone();
        assert_eq!(
            schema["x-kubernetes-group-version-kind"][0]["kind"],
            "Widget"
        );
        assert!(schema["properties"]["metadata"].is_object());
        schema["properties"]["spec"]["properties"]["size"]["description"].clone()
    };
    let v3 = get(&server, &first, &[]).await.json();
    assert_eq!(size(&v3, "/components/schemas"), "How large it is.");
    assert_eq!(v3["info"]["title"], "Kubernetes CRD Swagger");
    let v2 = get(&server, "/openapi/v2", &[]).await.json();
    assert_eq!(size(&v2, "/definitions"), "How large it is.");
    assert!(
        v2["paths"]
            .get("/apis/example.com/v1/namespaces/{namespace}/widgets")
            .is_some()
    );
    assert_eq!(v2["paths"].get("/apis/example.com/v1/"), None);

    let patch = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/description", "value": "How wide it is."}]);
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let media = [("content-type", "application/json-patch+json")];
    let one = format!("{path}/widgets.example.com");
    let patched = send(&server, user, "PATCH", &one, &media, patch.to_string()).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    let changed = crate::support::eventually(|| async {
        let changed = url(&index(&server).await, "apis/example.com/v1");
        (changed != first).then_some(changed)
    })
    .await;
    let v3 = get(&server, &changed, &[]).await.json();
    assert_eq!(size(&v3, "/components/schemas"), "How wide it is.");
    let old = get(&server, &first, &[]).await;
    assert_eq!(
        (old.code, old.headers["location"].to_str().unwrap()),
        (301, changed.as_str())
    );
}

/// A document of the reference data, which is not part of the project.
fn reference(path: &str) -> Option<Value> {
    let file = reference::find(&format!("openapi/{path}"))?;
    Some(machinery::json::from_slice(&std::fs::read(file).unwrap()).unwrap())
}

/// A path item in the common form of both documents: parameters inlined and sorted, without
/// descriptions (ours are in our own words) and without media types behind disabled gates.
fn plain(item: &Value, shared: &Value) -> Value {
    match item {
        Value::Object(object) => {
            let target = object.get("$ref").and_then(Value::as_str);
            if let Some(name) = target.and_then(|target| target.strip_prefix("#/parameters/")) {
                return plain(&shared[name], shared);
            }
            let parameter = object.contains_key("in") && object.contains_key("name");
            let kept = object
                .iter()
                .filter(|(key, _)| !(key.contains("cbor") || parameter && *key == "description"));
            kept.map(|(key, value)| (key.clone(), plain(value, shared)))
                .collect()
        }
        Value::Array(list) => {
            let cbor = |value: &Value| value.as_str().is_some_and(|text| text.contains("cbor"));
            let mut list: Vec<Value> = list
                .iter()
                .filter(|value| !cbor(value))
                .map(|value| plain(value, shared))
                .collect();
            let name = |value: &Value| (value["name"].to_string(), value["in"].to_string());
            if list.iter().all(|value| value.get("in").is_some()) {
                list.sort_by_key(name);
            }
            Value::Array(list)
        }
        other => other.clone(),
    }
}

/// A group that upstream leaves to metrics-server.
const OURS: &str = "apis/metrics.k8s.io";

/// Compares the paths of a document with the reference's: all of ours, and all of theirs in served
/// groups and versions.
fn compare_paths(ours: &Value, theirs: &Value, served: &dyn Fn(&str) -> bool) -> usize {
    let (own, reference) = (
        ours["paths"].as_object().unwrap(),
        theirs["paths"].as_object().unwrap(),
    );
    for (path, item) in own.iter().filter(|(path, _)| !path[1..].starts_with(OURS)) {
        let expected = reference
            .get(path)
            .unwrap_or_else(|| panic!("{path} is ours alone"));
        let (item, expected) = (
            plain(item, &ours["parameters"]),
            plain(expected, &theirs["parameters"]),
        );
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(item.get(key), Some(value), "{path} {key}");
        }
        assert_eq!(item, expected, "{path}");
    }
    let missing: Vec<_> = reference
        .keys()
        .filter(|path| served(path) && !own.contains_key(path))
        .collect();
    assert!(missing.is_empty(), "not there: {missing:?}");
    own.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_those_of_the_reference() {
    let server = Server::start().await;
    let v2 = get(&server, "/openapi/v2", &[]).await.json();
    let index = index(&server).await;
    let Some(theirs) = reference("swagger.json") else {
        return;
    };
    let places: Vec<_> = index.as_object().unwrap().keys().collect();
    let served = |path: &str| {
        let path = path.trim_matches('/');
        let at = path.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let at = if path.starts_with("api/") {
            "api/v1"
        } else {
            &at
        };
        places.iter().any(|place| **place == at)
    };
    assert!(compare_paths(&v2, &theirs, &served) > 350);
    for place in places {
        let file = format!("v3/{}_openapi.json", place.replace('/', "__"));
        let Some(theirs) = reference(&file) else {
            let is_ours = place.starts_with('.') || place.starts_with(OURS);
            assert!(is_ours, "{place} has no reference");
            continue;
        };
        let ours = get(&server, &url(&index, place), &[]).await.json();
        compare_paths(&ours, &theirs, &|_| true);
        for (name, schema) in ours["components"]["schemas"]
            .as_object()
            .into_iter()
            .flatten()
        {
            let expected = &theirs["components"]["schemas"][name];
            let kinds = "x-kubernetes-group-version-kind";
            if !name.ends_with("DeleteOptions") && !name.ends_with("WatchEvent") {
                assert_eq!(schema.get(kinds), expected.get(kinds), "{place} {name}");
            }
            assert!(expected.is_object(), "{place} {name} is ours alone");
        }
        // Only theirs has kinds that only gated fields use; every reference in ours must resolve.
        let text = ours.to_string();
        for part in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            let known = ours["components"]["schemas"].get(name).is_some();
            assert!(known, "{place} lacks {name}");
        }
    }
}
