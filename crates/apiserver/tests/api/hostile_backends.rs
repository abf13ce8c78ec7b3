//! Misbehaving aggregated API servers: what their clients get, and that other requests are served
//! meanwhile. Also users who try to reach more of a backend than they may.

use std::{sync::LazyLock, time::Duration};

use apiserver::User;
use futures::StreamExt;
use http_body_util::{BodyStream, Full};
use machinery::json::{Value, json};

use crate::{
    backend_server::{Backend, GROUP, Mode, SERVICES, condition},
    support::{Server, admin, eventually, over_socket, send},
};

const THINGS: &str = "/apis/agg.example.com/v1/namespaces/default/things";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn with_backend() -> (Server, Backend) {
    let server = Server::start().await;
    let backend = Backend::start(&server, Mode::Modern).await;
    backend.install(&server).await;
    (server, backend)
}

fn get(path: &str, headers: &[(&str, &str)]) -> http::Request<Full<bytes::Bytes>> {
    let mut request = http::Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(bytes::Bytes::new())).unwrap()
}

const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_no_http_are_a_service_that_cannot_be_reached() {
    let (server, backend) = with_backend().await;
    for (what, first, again) in [
        ("it hangs up", "", None),
        ("no status line", "hello there\r\n\r\n", None),
        (
            "endless headers",
            "HTTP/1.1 200 OK\r\n",
            Some("x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
        ),
        (
            "an endless header",
            "HTTP/1.1 200 OK\r\nx-a: ",
            Some("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ),
        (
            "no length",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            None,
        ),
    ] {
        backend.set(Mode::Raw(first, again));
        let answer = tokio::time::timeout(
            Duration::from_secs(20),
            admin(&server, "GET", THINGS, Value::Null),
        );
        let answer = answer.await.unwrap_or_else(|_| panic!("{what}: no answer"));
        assert_eq!(answer.code, 503, "{what}: {}", answer.body);
        let words = "error trying to reach service: ";
        assert!(answer.body.starts_with(words), "{what}: {}", answer.body);
        assert!(backend.written() < 4 << 20, "{what}: {}", backend.written());
    }
    assert_eq!(admin(&server, "GET", MAPS, Value::Null).await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_status_of_a_probe_is_waited_for() {
    let server = Server::start().await;
    let backend = Backend::start(&server, Mode::Modern).await;
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    backend.set(Mode::Raw(head, Some("8\r\naaaaaaaa\r\n")));
    backend.make_service(&server).await;
    let made = admin(&server, "POST", SERVICES, backend.api_service("v1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    eventually(|| async { (condition(&server).await["reason"] == "Passed").then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn informational_answers_without_end_are_ended_by_the_deadline_of_the_request() {
    let (server, backend) = with_backend().await;
    for (what, answer) in [
        ("continue", "HTTP/1.1 100 Continue\r\n\r\n"),
        (
            "early hints",
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
        ),
    ] {
        backend.set(Mode::Raw(answer, Some(answer)));
        let path = format!("{THINGS}?timeout=2s");
        let mut asked = std::pin::pin!(admin(&server, "GET", &path, Value::Null));
        let answer = loop {
            tokio::select! {
                answer = &mut asked => break answer,
                listed = admin(&server, "GET", MAPS, Value::Null) => assert_eq!(listed.code, 200, "{what}"),
            }
        };
        assert!([503, 504].contains(&answer.code), "{what}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_and_openapi_of_a_hostile_backend_leave_those_of_others_intact() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let (server, backend) = with_backend().await;
    let closed = |body: String| -> &'static str {
        let length = body.len();
        String::leak(format!("{HEAD}content-length: {length}\r\n\r\n{body}"))
    };
    let chunked = String::leak(format!("{HEAD}transfer-encoding: chunked\r\n\r\n"));
    let items = r#"{"metadata":{"name":"apps"},"versions":[{"version":"v1","resources":[]}]},"#;
    for (what, first, again) in [
        ("deep lists", closed("[".repeat(1 << 20)), None),
        ("deep objects", closed("{\"paths\":".repeat(1 << 17)), None),
        ("no JSON", closed("\u{0}".repeat(4096)), None),
        ("no object", closed("\"text\"".to_owned()), None),
        (
            "others' groups",
            closed(format!(
                "{{\"kind\":\"APIGroupDiscoveryList\",\"items\":[{}null]}}",
                items.repeat(20_000)
            )),
            None,
        ),
        ("no end", &*chunked, Some("8\r\n        \r\n")),
        ("no answer", "", None),
    ] {
        backend.set(Mode::Raw(first, again));
        let before = backend.written();
        backend
            .move_endpoint(&server, &what.replace([' ', '\''], "-").to_lowercase())
            .await;
        eventually(|| async { (first.is_empty() || backend.written() > before).then_some(()) })
            .await;
        let newer = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        for (path, accept) in [
            ("/apis", newer),
            ("/apis", "application/json"),
            ("/apis/apps/v1", "application/json"),
            ("/openapi/v2", "application/json"),
            ("/openapi/v3", "application/json"),
            (MAPS, "application/json"),
        ] {
            let root = User::new("root", ["system:masters"]);
            let answer = send(&server, root, "GET", path, &[("accept", accept)], "").await;
            assert_eq!(answer.code, 200, "{what}: {path} {}", answer.body);
            assert!(
                path == MAPS || answer.body.contains("apps"),
                "{what}: {path}"
            );
        }
        let found = admin(&server, "GET", "/apis/apps/v1", Value::Null).await;
        assert!(
            found.body.contains("\"deployments\""),
            "{what}: {}",
            found.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_response_of_a_backend_is_an_error() {
    let (server, backend) = with_backend().await;
    backend.set(Mode::Raw(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"items\":[",
        None,
    ));
    let answer = eventually(|| async {
        let answer = over_socket(&server, get(THINGS, &[])).await;
        (answer.status() == 200).then_some(answer)
    })
    .await;
    let mut body = BodyStream::new(answer.into_body());
    let mut is_broken = false;
    while let Some(frame) = body.next().await {
        is_broken |= frame.is_err();
    }
    assert!(is_broken, "half a list must not look like a whole one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_read_no_faster_than_its_client_reads() {
    static CHUNK: LazyLock<String> =
        LazyLock::new(|| format!("10000\r\n{}\r\n", "x".repeat(0x10000)));
    let (server, backend) = with_backend().await;
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    backend.set(Mode::Raw(head, Some(CHUNK.as_str())));
    let mut unread = Vec::new();
    for _ in 0..4 {
        let answer = eventually(|| async {
            let answer = over_socket(&server, get(THINGS, &[])).await;
            (answer.status() == 200).then_some(answer)
        });
        unread.push(answer.await);
    }
    // While the client reads nothing, the backend's written bytes stop growing.
    let written = eventually(|| async {
        let before = backend.written();
        for _ in 0..20 {
            assert_eq!(admin(&server, "GET", MAPS, Value::Null).await.code, 200);
        }
        let now = backend.written();
        (now == before).then_some(now)
    })
    .await;
    drop(unread);
    // Most of it is in the kernel: each of eight sockets may buffer some ten megabytes both ways.
    assert!(
        written < 256 << 20,
        "{written} bytes are held for four clients"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_are_what_was_asked_for_or_nothing() {
    let (server, backend) = with_backend().await;
    let path = format!("{THINGS}/x/exec?command=ls");
    for (what, first, again, code) in [
        (
            "another protocol",
            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: telnet\r\n\r\n",
            None,
            502,
        ),
        (
            "no upgrade",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            None,
            502,
        ),
        (
            "an endless refusal",
            "HTTP/1.1 403 Forbidden\r\n\r\n",
            Some("no, no, no, no, no, no, no, "),
            502,
        ),
        (
            "a redirect",
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: https://192.0.2.1/\r\ncontent-length: 0\r\n\r\n",
            None,
            502,
        ),
        (
            "a refusal",
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno",
            None,
            403,
        ),
        ("it hangs up", "", None, 503),
    ] {
        backend.set(Mode::Raw(first, again));
        let asked = over_socket(&server, get(&path, &UPGRADE));
        let answer = tokio::time::timeout(Duration::from_secs(20), asked).await;
        let answer = answer.unwrap_or_else(|_| panic!("{what}: no answer"));
        assert_eq!(answer.status(), code, "{what}");
        assert!(answer.headers().get("location").is_none(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_and_watches_that_wait_are_bounded_like_other_requests() {
    let (server, backend) = with_backend().await;
    backend.set(Mode::Hangs);
    for headers in [&UPGRADE[..], &[]] {
        let path = match headers {
            [] => format!("{THINGS}?watch=true"),
            _ => format!("{THINGS}/x/exec"),
        };
        let waiting = (0..450).map(|_| {
            let root = User::new("root", ["system:masters"]);
            send(&server, root, "GET", &path, headers, "")
        });
        let mut all = futures::stream::FuturesUnordered::from_iter(waiting);
        for _ in 0..50 {
            let answer = tokio::time::timeout(Duration::from_secs(20), all.next()).await;
            assert_eq!(answer.unwrap().unwrap().code, 429, "{path}");
        }
        assert_eq!(admin(&server, "GET", MAPS, Value::Null).await.code, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_carries_the_callers_own_identity_alone() {
    let (server, backend) = with_backend().await;
    let headers = [
        ("connection", "Upgrade, X-Remote-User, X-Remote-Group"),
        ("upgrade", "SPDY/3.1"),
        ("x-remote-user", "root"),
        ("x-remote-uid", "0"),
        ("x-remote-group", "system:nodes"),
        ("x-remote-extra-scopes", "all"),
    ];
    let path = format!("{THINGS}/x/exec");
    let answer = over_socket(&server, get(&path, &headers)).await;
    assert_eq!(answer.status(), 101);
    let asked = backend.asked(THINGS).pop().unwrap();
    let all = |name: &str| {
        let values = asked.headers.get_all(name).iter();
        let values = values.map(|value| value.to_str().unwrap().to_owned());
        values.collect::<Vec<_>>()
    };
    assert_eq!(all("x-remote-user"), ["kubernetes-admin"]);
    assert_eq!(
        all("x-remote-group"),
        ["system:masters", "system:authenticated"]
    );
    assert_eq!(all("connection"), ["Upgrade"]);
    assert!(all("x-remote-uid").is_empty() && all("x-remote-extra-scopes").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_and_subresource_of_a_backend_is_authorized_by_itself() {
    let (server, backend) = with_backend().await;
    let rules = json!([{"apiGroups": [GROUP], "resources": ["things"], "verbs": ["get"], "resourceNames": ["one"]}]);
    let role = json!({"metadata": {"name": "getter"}, "rules": rules});
    let roles = "/apis/rbac.authorization.k8s.io/v1";
    let made = admin(&server, "POST", &format!("{roles}/clusterroles"), role).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let binding = json!({"metadata": {"name": "getter"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "getter"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    let path = format!("{roles}/clusterrolebindings");
    let made = admin(&server, "POST", &path, binding).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let nobodys: [&str; 0] = [];
    let ask = |method: &'static str, path: String| {
        let jane = User::new("jane", nobodys);
        let server = &server;
        async move { send(server, jane, method, &path, &[], "").await }
    };
    eventually(|| async {
        let answer = ask("GET", format!("{THINGS}/one")).await;
        (answer.code == 200).then_some(())
    })
    .await;
    let before = backend.asked(THINGS).len();
    for (method, path) in [
        ("GET", THINGS.to_owned()),
        ("GET", format!("{THINGS}?watch=true")),
        (
            "GET",
            format!("{THINGS}?fieldSelector=metadata.name%3Done&watch=1"),
        ),
        ("GET", format!("{THINGS}/two")),
        ("GET", format!("{THINGS}/one/status")),
        ("GET", format!("{THINGS}/one/proxy/x")),
        ("POST", THINGS.to_owned()),
        ("POST", format!("{THINGS}/one/exec")),
        ("PUT", format!("{THINGS}/one")),
        ("PATCH", format!("{THINGS}/one")),
        ("DELETE", format!("{THINGS}/one")),
        ("DELETE", THINGS.to_owned()),
        ("GET", format!("/apis/{GROUP}/v1/things")),
        (
            "GET",
            format!("/apis/{GROUP}/v1/watch/namespaces/default/things/one"),
        ),
        (
            "GET",
            format!("/apis/{GROUP}/v1/proxy/namespaces/default/things/one"),
        ),
    ] {
        let answer = ask(method, path.clone()).await;
        assert_eq!(answer.code, 403, "{method} {path}: {}", answer.body);
    }
    // A backend decodes paths once more: what it would understand must be what is authorized.
    let here = format!("/apis/{GROUP}/v1/namespaces/default");
    for path in [
        format!("{THINGS}/one%2Fstatus"),
        format!("{THINGS}/one%2fstatus%2f"),
        format!("{here}/things%2Fone%2Fstatus"),
        format!("{here}%2Fthings"),
        format!("{THINGS}/one/../two"),
        format!("{THINGS}/one/%2E%2e/two"),
        format!("{THINGS}/one%2f..%2ftwo"),
        format!("{THINGS}/one/..%2f..%2fthings"),
        format!("{THINGS}//one"),
        format!("{here}//things/one"),
        format!("/apis/{GROUP}/v1/namespaces/other/..%2fdefault/things/one"),
        format!("/apis/{GROUP}%2Fv1/namespaces/default/things"),
    ] {
        let answer = ask("GET", path.clone()).await;
        let refused = [403, 404].contains(&answer.code);
        assert!(refused, "{path}: {} {}", answer.code, answer.body);
    }
    let asked = backend.asked(&format!("/apis/{GROUP}/v1/"));
    let strange = |path: &str| path.contains('%') || path.contains("..") || path.contains("//");
    assert!(asked.iter().all(|one| !strange(&one.path)), "{asked:?}");
    assert_eq!(backend.asked(THINGS).len(), before);
}
