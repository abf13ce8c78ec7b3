//! Bounds: too many at once, and the figures that show it.

use apiserver::{Limits, User};
use bytes::Bytes;
use http_body_util::Full;
use machinery::json::{Value, json};
use tower::Service as _;

use crate::support::{Server, admin, eventually, send};

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

/// A list whose answer nobody reads: it keeps its place in flight.
fn list(
    server: &Server,
    user: &User,
) -> impl Future<Output = http::Response<apiserver::Body>> + use<> {
    let request = http::Request::get("/api/v1/namespaces").body(Full::new(Bytes::new()));
    let mut service = server.server.connect(user.clone());
    async move { service.call(request.unwrap()).await.unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_users_flood_leaves_the_others_and_the_system_their_places() {
    let server = Server::start().await;
    let subject =
        |name: &str| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
    let binding = json!({"metadata": {"name": "readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [subject("flood"), subject("eve")]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(admin(&server, "POST", bindings, binding).await.code, 201);
    let flooder = User::new("flood", [""; 0]);
    eventually(async || (list(&server, &flooder).await.status() == 200).then_some(())).await;
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        flood.spawn(list(&server, &flooder));
    }
    let (mut served, mut refused) = (Vec::new(), 0);
    while let Some(answer) = flood.join_next().await {
        let answer = answer.unwrap();
        if answer.status() == 200 {
            served.push(answer);
            continue;
        }
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["retry-after"], "1");
        refused += 1;
        if refused > 1 {
            continue;
        }
        // The flood stands there; nobody else notices.
        assert_eq!(
            list(&server, &User::new("eve", [""; 0])).await.status(),
            200
        );
        let node = User::new("system:node:a", ["system:nodes", "system:authenticated"]);
        let lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "a"}}).to_string();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let headers = [("content-type", "application/json")];
        let renewed = send(&server, node, "POST", leases, &headers, lease).await;
        assert_eq!(renewed.code, 201, "{}", renewed.body);
    }
    // A sixteenth of the places for reading; whoever stood in line was told to come back, too.
    assert_eq!((served.len(), refused), (25, 1975));
    drop(served);
    assert_eq!(list(&server, &flooder).await.status(), 200);
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

/// Who is refused before the body was read still gets the answer, and the connection stays.
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
