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
