//! One test over all kinds: properties that every kind has.

use apiserver::User;
use machinery::json::Value;

use crate::support::{Raw, Server, admin, send};

/// The collection path of a resource in discovery.
fn collection(group_version: &str, resource: &Value) -> String {
    let root = if group_version.contains('/') {
        "apis"
    } else {
        "api"
    };
    let name = resource["name"].as_str().unwrap();
    match resource["namespaced"].as_bool().unwrap() {
        true => format!("/{root}/{group_version}/namespaces/default/{name}"),
        false => format!("/{root}/{group_version}/{name}"),
    }
}

/// Every resource that can be listed, with its description.
pub(crate) async fn all(server: &Server) -> Vec<(String, Value)> {
    let groups = admin(server, "GET", "/apis", Value::Null).await.json();
    let mut versions = vec!["v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            versions.push(version["groupVersion"].as_str().unwrap().to_owned());
        }
    }
    let mut found = Vec::new();
    for version in versions {
        let root = if version.contains('/') { "apis" } else { "api" };
        let document = admin(server, "GET", &format!("/{root}/{version}"), Value::Null)
            .await
            .json();
        for resource in document["resources"].as_array().unwrap() {
            let listed = resource["verbs"]
                .as_array()
                .unwrap()
                .iter()
                .any(|verb| verb == "list");
            if listed && !resource["name"].as_str().unwrap().contains('/') {
                found.push((collection(&version, resource), resource.clone()));
            }
        }
    }
    found
}

async fn accept(server: &Server, path: &str, media: &str) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    send(server, user, "GET", path, &[("accept", media)], "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_is_listed_in_every_form_and_watched() {
    let server = Server::start().await;
    let all = all(&server).await;
    assert!(all.len() > 50, "{} kinds", all.len());
    for (path, resource) in all {
        let kind = resource["kind"].as_str().unwrap();
        let list = admin(&server, "GET", &path, Value::Null).await;
        assert_eq!(
            (list.code, list.json()["kind"].as_str()),
            (200, Some(format!("{kind}List").as_str())),
            "{path}"
        );
        let table = accept(
            &server,
            &path,
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        )
        .await
        .json();
        let columns = table["columnDefinitions"].as_array().unwrap();
        let name = columns
            .iter()
            .find(|column| column["name"] == "Name")
            .expect(&path);
        assert_eq!(name["format"], "name", "{path}");
        let columns = columns.len();
        for row in table["rows"].as_array().unwrap() {
            assert_eq!(row["cells"].as_array().unwrap().len(), columns, "{path}");
        }
        let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        assert_eq!(
            accept(&server, &path, partial).await.json()["kind"],
            "PartialObjectMetadataList"
        );
        let binary = accept(&server, &path, "application/vnd.kubernetes.protobuf").await;
        assert!(binary.body.starts_with("k8s\0"), "{path}");
        let missing = admin(&server, "GET", &format!("{path}/no-such-name"), Value::Null).await;
        assert_eq!(
            (missing.code, missing.json()["reason"].as_str()),
            (404, Some("NotFound")),
            "{path}"
        );
        let verbs = resource["verbs"].as_array().unwrap();
        if verbs.iter().any(|verb| verb == "watch") {
            let marked = format!(
                "{path}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=no-such-label"
            );
            let watch = tokio::spawn({
                let service = server
                    .server
                    .connect(User::new("kubernetes-admin", ["system:masters"]));
                async move { first_line(service, marked).await }
            });
            let mark: Value = machinery::json::from_str(&watch.await.unwrap()).unwrap();
            assert_eq!(
                (mark["type"].as_str(), mark["object"]["kind"].as_str()),
                (Some("BOOKMARK"), Some(kind)),
                "{path}"
            );
        }
        // A LimitRange requires no field, not even a name.
        if kind != "LimitRange" && verbs.iter().any(|verb| verb == "create") {
            let empty = admin(&server, "POST", &path, machinery::json::json!({})).await;
            assert!(
                (400..500).contains(&empty.code),
                "{path}: {} {}",
                empty.code,
                empty.body
            );
        }
    }
}

async fn first_line(mut service: apiserver::LocalService, path: String) -> String {
    use http_body_util::BodyExt;
    use tower::Service as _;
    let request = http::Request::get(path)
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    let mut body = service.call(request).await.unwrap().into_body();
    let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
    String::from_utf8_lossy(&data)
        .lines()
        .next()
        .unwrap()
        .to_owned()
}
