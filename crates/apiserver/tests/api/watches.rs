//! Watches: where they start, what they send, how they end.

use std::{sync::Arc, time::Duration};

use crate::support::{Server, admin};
use apiserver::User;
use bytes::Bytes;
use http_body_util::BodyExt;
use machinery::json::{Value, json};
use tower::Service as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A watch that is read line by line.
struct Watching {
    body: apiserver::Body,
    buffer: String,
}

async fn watch(server: &Server, query: &str) -> Watching {
    watch_as(server, query, "application/json").await
}

async fn watch_as(server: &Server, query: &str, accept: &str) -> Watching {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let uri = format!("{MAPS}?watch=true&{query}");
    let request = http::Request::get(uri)
        .header("accept", accept)
        .body(http_body_util::Empty::<Bytes>::new())
        .unwrap();
    let response = server.server.connect(user).call(request).await.unwrap();
    assert_eq!(response.status(), 200);
    Watching {
        body: response.into_body(),
        buffer: String::new(),
    }
}

impl Watching {
    /// The next event; `None` when the watch has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.buffer.split_once('\n') {
                let event = machinery::json::from_str(line).unwrap();
                self.buffer = rest.to_owned();
                return Some(event);
            }
            let frame = tokio::time::timeout(Duration::from_secs(20), self.body.frame());
            let frame = frame.await.expect("an event in time")?;
            self.buffer += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
        }
    }

    /// Type, name and revision of the next event.
    async fn short(&mut self) -> (String, String) {
        let event = self.next().await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"]),
        )
    }
}

async fn make(server: &Server, name: &str, labels: Value) -> Value {
    let body = json!({"metadata": {"name": name, "labels": labels}});
    let created = admin(server, "POST", MAPS, body).await;
    assert_eq!(created.code, 201, "{}", created.body);
    created.json()
}

fn pair(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_without_a_revision_begins_with_existing_objects() {
    let server = Server::start().await;
    make(&server, "a", json!({"w": "1"})).await;
    let mut watch = watch(&server, "labelSelector=w").await;
    assert_eq!(watch.short().await, pair("ADDED", "a"));
    make(&server, "b", json!({"w": "1"})).await;
    assert_eq!(watch.short().await, pair("ADDED", "b"));
    admin(&server, "DELETE", &format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(watch.short().await, pair("DELETED", "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_revision_shows_exactly_what_came_after() {
    let server = Server::start().await;
    let first = make(&server, "a", json!({})).await;
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    make(&server, "b", json!({})).await;
    admin(
        &server,
        "PATCH",
        &format!("{MAPS}/a"),
        json!({"data": {"x": "y"}}),
    )
    .await;
    let mut watch = watch(&server, &format!("resourceVersion={revision}")).await;
    assert_eq!(watch.short().await, pair("ADDED", "b"));
    assert_eq!(watch.short().await, pair("MODIFIED", "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_enter_and_leave_a_selection() {
    let server = Server::start().await;
    let first = make(&server, "a", json!({"app": "x"})).await;
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = watch(
        &server,
        &format!("resourceVersion={revision}&labelSelector=app%3Dy"),
    )
    .await;
    let label = |value: &str| json!({"metadata": {"labels": {"app": value}}});
    let entered = admin(&server, "PATCH", &format!("{MAPS}/a"), label("y"))
        .await
        .json();
    let event = watch.next().await.unwrap();
    assert_eq!(
        (event["type"].as_str(), &event["object"]),
        (Some("ADDED"), &entered)
    );
    let left = admin(&server, "PATCH", &format!("{MAPS}/a"), label("z"))
        .await
        .json();
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(
        event["object"]["metadata"]["labels"]["app"], "y",
        "the last state that was seen"
    );
    assert_eq!(
        event["object"]["metadata"]["resourceVersion"],
        left["metadata"]["resourceVersion"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn initial_events_end_with_a_marked_bookmark() {
    let server = Server::start().await;
    make(&server, "a", json!({"w": "1"})).await;
    let query = "labelSelector=w&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = watch(&server, query).await;
    assert_eq!(watch.short().await, pair("ADDED", "a"));
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(
        mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(
        (
            mark["object"]["kind"].as_str(),
            mark["object"]["apiVersion"].as_str()
        ),
        (Some("ConfigMap"), Some("v1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bookmark_of_a_watched_table_is_a_row() {
    let server = Server::start().await;
    let query = "labelSelector=none&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut watch = watch_as(&server, query, accept).await;
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    let table = &mark["object"];
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        rows[0]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ages_in_a_watched_table_are_those_of_the_moment() {
    let clock = stdx::FakeClock::at(stdx::Clock::now(&stdx::SystemClock));
    let server = Server::start_on(apiserver::Limits::default(), Arc::new(clock.clone())).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut watch = watch_as(&server, "resourceVersion=0&labelSelector=watched", accept).await;
    for name in ["a", "b"] {
        clock.advance(Duration::from_secs(45));
        make(&server, name, json!({"watched": "yes"})).await;
        let row = watch.next().await.unwrap()["object"]["rows"][0].clone();
        let cells = row["cells"].as_array().expect("cells").clone();
        assert_eq!((&cells[0], &cells[2]), (&json!(name), &json!("0s")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_time_is_over_and_tells_how_far_it_came() {
    let server = Server::start().await;
    let first = make(&server, "a", json!({})).await;
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let query = format!("resourceVersion={revision}&timeoutSeconds=1");
    let mut watch = watch(&server, &query).await;
    assert!(watch.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_is_not_kept_is_an_error_event() {
    let server = Server::start().await;
    let mut watch = watch(&server, "resourceVersion=99999999").await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["kind"], "Status");
    assert!(watch.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_contradict_each_other_are_refused() {
    let server = Server::start().await;
    for query in [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
    ] {
        let answer = admin(
            &server,
            "GET",
            &format!("{MAPS}?watch=1&{query}"),
            Value::Null,
        )
        .await;
        assert_eq!(answer.code, 422, "{query}: {}", answer.body);
    }
}
