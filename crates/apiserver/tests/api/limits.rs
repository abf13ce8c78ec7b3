//! Bounds: too many at once, and the figures that show it.

use apiserver::{Limits, User};
use serde_json::Value;

use crate::support::{Server, admin, send};

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_fit_are_told_to_come_back() {
    let server = Server::start_with(Limits {
        in_flight: 0,
        ..Limits::default()
    })
    .await;
    let user = User::new("system:kube-scheduler", [""; 0]);
    let busy = send(&server, user, "GET", "/api/v1/nodes", &[], "").await;
    assert_eq!(
        (busy.code, busy.headers["retry-after"].to_str().unwrap()),
        (429, "1")
    );
    let admin = admin(&server, "GET", "/api/v1/nodes", Value::Null).await;
    assert_eq!(
        admin.code, 200,
        "those who put things right are let through"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_count_requests_and_objects() {
    let server = Server::start().await;
    admin(&server, "GET", "/api/v1/namespaces", Value::Null).await;
    let figures = admin(&server, "GET", "/metrics", Value::Null).await;
    assert_eq!(figures.code, 200);
    let expected = r#"apiserver_request_total{verb="LIST",group="",version="v1",resource="namespaces",subresource="",scope="cluster",component="apiserver",dry_run="",code="200"} 1"#;
    assert!(figures.body.contains(expected), "{}", figures.body);
    assert!(
        figures
            .body
            .contains(r#"apiserver_storage_objects{group="",resource="namespaces"} 4"#)
    );
    assert!(
        figures
            .body
            .contains("apiserver_request_duration_seconds_bucket")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_and_their_events_are_counted() {
    let server = Server::start().await;
    let watch = "/api/v1/namespaces?watch=true&timeoutSeconds=1";
    let ended = admin(&server, "GET", watch, Value::Null).await;
    assert_eq!(ended.code, 200);
    let figures = admin(&server, "GET", "/metrics", Value::Null).await.body;
    for expected in [
        r#"apiserver_watch_events_total{group="",version="v1",resource="namespaces"} 4"#,
        r#"apiserver_resource_objects{group="",resource="namespaces"} 4"#,
        r#"apiserver_longrunning_requests{verb="WATCH",group="",version="v1",resource="namespaces",subresource="",scope="cluster",component="apiserver"} 0"#,
        r#"apiserver_current_inflight_requests{request_kind="readOnly"} 1"#,
    ] {
        assert!(figures.contains(expected), "{expected}\n{figures}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_says_which_check_failed_when_asked() {
    let server = Server::start().await;
    let get = |path: &'static str| {
        let server = &server;
        async move { admin(server, "GET", path, Value::Null).await }
    };
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = get(path).await;
        assert_eq!((answer.code, answer.body.as_str()), (200, "ok"), "{path}");
    }
    let verbose = get("/readyz?verbose").await;
    assert!(verbose.body.contains("[+]ping ok\n"), "{}", verbose.body);
    assert!(
        verbose.body.ends_with("readyz check passed\n"),
        "{}",
        verbose.body
    );
    let without = get("/livez?verbose&exclude=ping").await;
    assert!(
        without.body.contains("[+]ping excluded: ok\n"),
        "{}",
        without.body
    );
    assert_eq!(get("/livez/ping").await.code, 200);
    assert_eq!(get("/livez/nothing").await.code, 404);
}
