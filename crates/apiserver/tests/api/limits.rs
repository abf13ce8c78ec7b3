//! The server's metrics, and limits on single requests.

use machinery::json::Value;

use crate::support::{Server, admin, eventually};

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
            .contains(r#"apiserver_storage_objects{resource="namespaces"} 4"#)
    );
    assert!(
        figures
            .body
            .contains("apiserver_request_duration_seconds_bucket")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_of_answers_and_old_apis_are_counted() {
    let server = Server::start().await;
    let list = admin(&server, "GET", "/api/v1/namespaces", Value::Null).await;
    admin(&server, "GET", "/api/v1/endpoints", Value::Null).await;
    let figures = admin(&server, "GET", "/metrics", Value::Null).await.body;
    let about = r#"verb="LIST",group="",version="v1",resource="namespaces",subresource="",scope="cluster",component="apiserver""#;
    for expected in [
        format!("apiserver_response_sizes_sum{{{about}}} {}.0", list.body.len()),
        format!("apiserver_response_sizes_count{{{about}}} 1"),
        r#"apiserver_requested_deprecated_apis{group="",version="v1",resource="endpoints",subresource="",removed_release=""} 1"#.to_owned(),
    ] {
        assert!(figures.contains(&expected), "{expected}\n{figures}");
    }
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
        let ready = || async { Some(get(path).await).filter(|answer| answer.code == 200) };
        assert_eq!(eventually(ready).await.body, "ok", "{path}");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_read_as_go_reads_it() {
    let server = Server::start().await;
    let get = async |timeout: &str| {
        let path = format!("/api/v1/namespaces?timeout={timeout}");
        let answer = admin(&server, "GET", &path, Value::Null).await;
        (answer.code, answer.json()["message"].clone())
    };
    assert_eq!(get("30s").await.0, 200);
    assert_eq!(get("0").await.0, 200);
    let refused =
        "invalid timeout specified in the request URL - time: missing unit in duration \"3\"";
    assert_eq!(get("3").await, (400, refused.into()));
}

/// A request rejected before its body was read gets the response, and the connection stays open.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_body_was_read_arrives_and_the_connection_stays() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::start().await;
    let mut tls = crate::support::dial(&server).await;
    let body = vec![b'x'; 1 << 20];
    for _ in 0..3 {
        let head = format!(
            "POST /api/v1/nopes HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        tls.write_all(head.as_bytes()).await.unwrap();
        tls.write_all(&body).await.unwrap();
        let mut got = Vec::new();
        let mut piece = [0; 4096];
        let end = loop {
            let count = tls.read(&mut piece).await.unwrap();
            assert_ne!(count, 0, "the connection stays");
            got.extend_from_slice(&piece[..count]);
            let text = String::from_utf8_lossy(&got);
            if text.trim_end().ends_with('}') {
                break text.into_owned();
            }
        };
        assert!(end.starts_with("HTTP/1.1 404"), "{end}");
    }
}
