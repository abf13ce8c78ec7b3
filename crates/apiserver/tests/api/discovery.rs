//! Discovery: legacy and aggregated documents, compared with upstream's.

use std::collections::BTreeMap;

use apiserver::User;
use machinery::json::Value;

use crate::support::{Raw, Server, admin, send};

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Raw {
    send(
        server,
        User::new("kubernetes-admin", ["system:masters"]),
        "GET",
        path,
        headers,
        "",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_legacy_documents_list_groups_versions_and_resources() {
    let server = Server::start().await;
    let groups = admin(&server, "GET", "/apis", Value::Null).await.json();
    let names: Vec<_> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"apps"), "{names:?}");
    let group = admin(&server, "GET", "/apis/apps", Value::Null)
        .await
        .json();
    assert_eq!(group["preferredVersion"]["groupVersion"], "apps/v1");
    let core = admin(&server, "GET", "/api/v1", Value::Null).await.json();
    let pods = core["resources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["name"] == "pods")
        .unwrap();
    assert_eq!(
        (pods["kind"].as_str(), pods["namespaced"].as_bool()),
        (Some("Pod"), Some(true))
    );
    assert_eq!(pods["shortNames"], machinery::json::json!(["po"]));
    for path in ["/apis/nothing", "/apis/apps/v9", "/api/v2"] {
        assert_eq!(
            admin(&server, "GET", path, Value::Null).await.code,
            404,
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_aggregated_document_is_sent_once() {
    let server = Server::start().await;
    let first = get(&server, "/apis", &[("accept", AGGREGATED)]).await;
    assert_eq!(first.json()["kind"], "APIGroupDiscoveryList");
    assert_eq!(
        first.headers["content-type"],
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let etag = first.headers["etag"].to_str().unwrap().to_owned();
    let again = get(
        &server,
        "/apis",
        &[("accept", AGGREGATED), ("if-none-match", &etag)],
    )
    .await;
    assert_eq!((again.code, again.body.as_str()), (304, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_stored_in_one_form_share_its_hash() {
    let server = Server::start().await;
    let hash = async |path: &str, name: &str| {
        let list = get(&server, path, &[]).await.json();
        let resource = by_name_whole(&list).remove(name).unwrap();
        resource["storageVersionHash"].as_str().map(str::to_owned)
    };
    let core = hash("/api/v1", "events").await;
    assert_eq!(core.as_deref(), Some("r2yiGXH7wu8="), "of /v1/Event");
    assert_eq!(hash("/apis/events.k8s.io/v1", "events").await, core);
    let newest = hash("/apis/autoscaling/v2", "horizontalpodautoscalers").await;
    assert_eq!(newest.as_deref(), Some("qwQve8ut294="), "of autoscaling/v2");
    let older = hash("/apis/autoscaling/v1", "horizontalpodautoscalers").await;
    assert_eq!(older, newest);
    assert_eq!(
        hash("/api/v1", "componentstatuses").await,
        None,
        "stored nowhere"
    );
}

fn by_name_whole(document: &Value) -> BTreeMap<String, Value> {
    let resources = document["resources"].as_array().unwrap().iter();
    resources
        .map(|resource| {
            (
                resource["name"].as_str().unwrap().to_owned(),
                resource.clone(),
            )
        })
        .collect()
}

fn by_name(document: &Value) -> BTreeMap<String, Value> {
    let mut resources = by_name_whole(document);
    for resource in resources.values_mut() {
        resource
            .as_object_mut()
            .unwrap()
            .shift_remove("storageVersionHash");
    }
    resources
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_served_is_described_as_kubernetes_describes_it() {
    let Some(reference) = reference::find("discovery") else {
        return;
    };
    let server = Server::start().await;
    let mut differences = Vec::new();
    for file in std::fs::read_dir(reference).unwrap() {
        let file = file.unwrap().path();
        let expected: Value = machinery::json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        if expected["kind"] != "APIResourceList" {
            continue;
        }
        let name = file
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .replace("__", "/");
        let served = admin(&server, "GET", &format!("/{name}"), Value::Null).await;
        if served.code == 404 {
            continue;
        }
        let expected = by_name(&expected);
        for (resource, document) in by_name(&served.json()) {
            if expected.get(&resource) != Some(&document) {
                differences.push(format!(
                    "{name}: {document}\n  not {:?}",
                    expected.get(&resource).map(Value::to_string)
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
