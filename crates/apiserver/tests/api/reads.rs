//! Get and list: freshness, pages, selectors.

use crate::support::{Server, admin};
use machinery::json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make(server: &Server, name: &str, labels: Value) -> Value {
    let body = json!({"metadata": {"name": name, "labels": labels}, "data": {"k": name}});
    let created = admin(server, "POST", MAPS, body).await;
    assert_eq!(created.code, 201, "{}", created.body);
    created.json()
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_returns_what_was_stored_with_its_revision() {
    let server = Server::start().await;
    let created = make(&server, "a", json!({})).await;
    let read = admin(&server, "GET", &format!("{MAPS}/a"), Value::Null).await;
    assert_eq!((read.code, read.json()), (200, created.clone()));
    assert_eq!(created["apiVersion"], "v1");
    assert!(
        !created["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .is_empty()
    );
    let missing = admin(&server, "GET", &format!("{MAPS}/b"), Value::Null).await;
    assert_eq!(
        (missing.code, missing.json()["message"].as_str().unwrap()),
        (404, "configmaps \"b\" not found")
    );
    let future = admin(
        &server,
        "GET",
        &format!("{MAPS}/a?resourceVersion=99999999"),
        Value::Null,
    )
    .await;
    assert_eq!(future.code, 504, "{}", future.body);
    assert_eq!(
        future.json()["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_a_list_leave_out_version_and_kind() {
    let server = Server::start().await;
    make(&server, "a", json!({})).await;
    let list = admin(&server, "GET", MAPS, Value::Null).await.json();
    assert_eq!(
        (list["kind"].as_str(), list["apiVersion"].as_str()),
        (Some("ConfigMapList"), Some("v1"))
    );
    let item = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|i| i["metadata"]["name"] == "a")
        .unwrap();
    assert!(item.get("kind").is_none() && item.get("apiVersion").is_none());
    assert_eq!(item["data"]["k"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_choose_by_labels_and_fields() {
    let server = Server::start().await;
    make(&server, "a", json!({"app": "x", "tier": "front"})).await;
    make(&server, "b", json!({"app": "x"})).await;
    make(&server, "c", json!({"app": "y"})).await;
    let cases = [
        ("labelSelector=app%3Dx", vec!["a", "b"]),
        ("labelSelector=app%20in%20(x,y),!tier", vec!["b", "c"]),
        ("labelSelector=app!%3Dx,app", vec!["c"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        (
            "fieldSelector=metadata.name!%3Db&labelSelector=app",
            vec!["a", "c"],
        ),
    ];
    for (query, expected) in cases {
        let list = admin(&server, "GET", &format!("{MAPS}?{query}"), Value::Null)
            .await
            .json();
        assert_eq!(names(&list), expected, "{query}");
    }
    let bad = admin(
        &server,
        "GET",
        &format!("{MAPS}?fieldSelector=spec.x%3Db"),
        Value::Null,
    )
    .await;
    assert_eq!(
        (bad.code, bad.json()["message"].as_str().unwrap()),
        (
            400,
            "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    );
    let bad = admin(
        &server,
        "GET",
        &format!("{MAPS}?labelSelector=a%20b"),
        Value::Null,
    )
    .await;
    assert_eq!(bad.code, 400, "{}", bad.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_one_moment() {
    let server = Server::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        make(&server, name, json!({"page": "yes"})).await;
    }
    let first = admin(&server, "GET", &format!("{MAPS}?limit=2"), Value::Null)
        .await
        .json();
    assert_eq!(names(&first), ["a", "b"]);
    assert!(first["metadata"]["remainingItemCount"].as_u64().unwrap() >= 3);
    admin(&server, "DELETE", &format!("{MAPS}/c"), Value::Null).await;
    make(&server, "bb", json!({"page": "yes"})).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = format!("{MAPS}?limit=2&continue={token}");
    let second = admin(&server, "GET", &second, Value::Null).await.json();
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let selected = format!("{MAPS}?limit=2&labelSelector=page");
    let selected = admin(&server, "GET", &selected, Value::Null).await.json();
    assert_eq!(names(&selected), ["a", "b"]);
    assert!(selected["metadata"].get("remainingItemCount").is_none());
    assert!(selected["metadata"]["continue"].is_string());
    let bad = admin(
        &server,
        "GET",
        &format!("{MAPS}?continue=rubbish"),
        Value::Null,
    )
    .await;
    assert_eq!(bad.code, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn freshness_follows_the_documented_table() {
    let server = Server::start().await;
    let old = make(&server, "a", json!({})).await["metadata"]["resourceVersion"].clone();
    let old = old.as_str().unwrap().to_owned();
    make(&server, "b", json!({})).await;
    let list = |query: String| {
        let server = &server;
        async move { admin(server, "GET", &format!("{MAPS}?{query}"), Value::Null).await }
    };
    let exact = list(format!("resourceVersion={old}&resourceVersionMatch=Exact"))
        .await
        .json();
    assert_eq!(
        (names(&exact), &exact["metadata"]["resourceVersion"]),
        (vec!["a".to_owned()], &json!(old))
    );
    for query in [
        "".to_owned(),
        "resourceVersion=0".to_owned(),
        format!("resourceVersion={old}"),
        format!("resourceVersion={old}&resourceVersionMatch=NotOlderThan"),
    ] {
        assert_eq!(
            names(&list(query.clone()).await.json()),
            ["a", "b"],
            "{query}"
        );
    }
    let paged = list(format!("resourceVersion={old}&limit=5")).await.json();
    assert_eq!(names(&paged), ["a"]);
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Maybe",
        "sendInitialEvents=true",
    ] {
        assert_eq!(list(query.to_owned()).await.code, 422, "{query}");
    }
    assert_eq!(list("resourceVersion=x".to_owned()).await.code, 400);
    assert_eq!(list("resourceVersion=99999999".to_owned()).await.code, 504);
}
