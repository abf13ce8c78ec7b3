//! Behaviour under failure: disconnects, slow clients, panics, overload, evictions, tokens, and
//! expired pages.

use std::time::Duration;

use apiserver::{Limits, Registry, User};
use kinds::{Column, Kind, Names, Scope};
use machinery::json::json;
use machinery::{Object, Value, field};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::Service as _;

use crate::support::{Server, admin, dial, eventually, over_socket, send, text};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A kind whose validation panics.
struct Landmine(Names);

impl Kind for Landmine {
    fn names(&self) -> &Names {
        &self.0
    }

    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn schema(&self) -> Option<&'static str> {
        None
    }

    fn validate_create(&self, _: &Object) -> field::Errors {
        panic!("somebody stepped on it")
    }

    fn columns(&self) -> &'static [Column] {
        &[]
    }

    fn row(&self, _: &Object, _: i64) -> Vec<Value> {
        Vec::new()
    }
}

/// Every built-in kind, and one that panics.
pub(crate) fn mined() -> std::sync::Arc<Registry> {
    let landmine: &'static dyn Kind = Box::leak(Box::new(Landmine(Names {
        group: "test.local".to_owned(),
        version: "v1".to_owned(),
        kind: "Landmine".to_owned(),
        list_kind: "LandmineList".to_owned(),
        plural: "landmines".to_owned(),
        singular: "landmine".to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
    })));
    Registry::with(kinds::all().iter().copied().chain([landmine]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_handler_is_a_500_and_no_more() {
    let server = Server::start_with_kinds(mined()).await;
    let path = "/apis/test.local/v1/landmines";
    let stepped = admin(&server, "POST", path, json!({"metadata": {"name": "x"}})).await;
    assert_eq!(stepped.code, 500, "{}", stepped.body);
    let status = stepped.json();
    assert_eq!(status["reason"], "InternalError");
    assert!(
        !stepped.body.contains("somebody stepped on it"),
        "details stay in the log"
    );
    let after = admin(&server, "GET", "/api/v1/namespaces/default", Value::Null).await;
    assert_eq!(after.code, 200);
    let figures = admin(&server, "GET", "/metrics", Value::Null).await.body;
    assert!(figures.contains("apiserver_request_total"), "{figures}");
}

fn create(name: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let body = json!({"metadata": {"name": name}}).to_string();
    http::Request::post(MAPS)
        .header("content-type", "application/json")
        .body(http_body_util::Full::new(bytes::Bytes::from(body)))
        .unwrap()
}

fn administrator() -> User {
    User::new("kubernetes-admin", ["system:masters"])
}

/// Drops a write after a number of polls; returns whether it had been answered by then.
async fn hang_up_after(server: &Server, name: &str, polls: usize) -> bool {
    let mut service = server.server.connect(administrator());
    let mut call = Box::pin(service.call(create(name)));
    for _ in 0..polls {
        if futures::poll!(&mut call).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// Writes without end, so that commits are contended: an uncontended write may finish at its first
/// poll.
fn keep_writing(server: &Server, prefix: &'static str) -> tokio::task::JoinHandle<()> {
    let mut service = server.server.connect(administrator());
    tokio::spawn(async move {
        for n in 0.. {
            let _ = service.call(create(&format!("{prefix}{n}"))).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_goes_on_when_its_client_hangs_up() {
    let server = Server::start().await;
    let writers = ["a", "b", "c"].map(|prefix| keep_writing(&server, prefix));
    let mut dropped = Vec::new();
    for n in 0..2000 {
        if !hang_up_after(&server, &format!("m{n}"), 1 + n % 3).await {
            dropped.push(format!("{MAPS}/m{n}"));
        }
        if dropped.len() == 20 {
            break;
        }
    }
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(!dropped.is_empty(), "none was gone before its answer");
    let (server, dropped) = (&server, &dropped);
    eventually(|| async move {
        for path in dropped {
            if admin(server, "GET", path, Value::Null).await.code == 200 {
                return Some(());
            }
        }
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut() {
    let server = Server::start_with(Limits {
        deadline: Duration::from_millis(300),
        idle: Duration::from_millis(300),
        ..Limits::default()
    })
    .await;
    let patience = Duration::from_secs(20);
    let mut head = dial(&server).await;
    head.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let cut = tokio::time::timeout(patience, head.read_to_end(&mut rest)).await;
    assert!(cut.is_ok(), "a head that does not end");
    assert!(!text(&rest).starts_with("HTTP/1.1 200"), "{}", text(&rest));

    let mut body = dial(&server).await;
    let request = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{\"met"
    );
    body.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(patience, body.read(&mut answer)).await;
    let read = read.expect("a body that does not end").unwrap();
    assert!(
        text(&answer[..read]).starts_with("HTTP/1.1 504"),
        "{}",
        text(&answer[..read])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_urls_have_a_limit() {
    let server = Server::start().await;
    for (request, code) in [
        (
            format!(
                "GET /version?{} HTTP/1.1\r\nHost: x\r\n\r\n",
                "x".repeat(70_000)
            ),
            "414",
        ),
        (
            format!(
                "GET /version HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n",
                "x".repeat(2 << 20)
            ),
            "431",
        ),
    ] {
        let mut connection = dial(&server).await;
        // The server may have responded and closed the connection before all of it was sent.
        let _ = connection.write_all(request.as_bytes()).await;
        let mut answer = vec![0; 1024];
        let read = connection.read(&mut answer).await.unwrap_or(0);
        let answer = text(&answer[..read]);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")),
            "{code}: {answer}"
        );
    }
    let fine = admin(&server, "GET", "/version", Value::Null).await;
    assert_eq!(fine.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_needs_a_disruption_of_its_budget() {
    let server = Server::start().await;
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}})
    };
    for name in ["a", "b"] {
        assert_eq!(admin(&server, "POST", PODS, pod(name)).await.code, 201);
        let ready = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        admin(&server, "PATCH", &format!("{PODS}/{name}/status"), ready).await;
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "web"}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    assert_eq!(admin(&server, "POST", budgets, budget).await.code, 201);
    let allow = |count: u64| {
        let server = &server;
        async move {
            let status = json!({"status": {"disruptionsAllowed": count, "currentHealthy": 2,
                "desiredHealthy": 1, "expectedPods": 2, "observedGeneration": 1}});
            let patched = admin(server, "PATCH", &format!("{budgets}/web/status"), status).await;
            assert_eq!(patched.code, 200, "{}", patched.body);
        }
    };
    let evict = |name: &'static str, query: &'static str| {
        let server = &server;
        async move {
            let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": name, "namespace": "default"}});
            admin(
                server,
                "POST",
                &format!("{PODS}/{name}/eviction{query}"),
                eviction,
            )
            .await
        }
    };
    allow(0).await;
    let refused = evict("a", "").await;
    assert_eq!(refused.code, 429, "{}", refused.body);
    let status = refused.json();
    assert_eq!(
        status["message"],
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");
    allow(1).await;
    assert_eq!(
        evict("a", "?dryRun=All").await.code,
        201,
        "a dry run takes nothing"
    );
    assert_eq!(evict("a", "").await.code, 201);
    let gone = admin(&server, "GET", &format!("{PODS}/a"), Value::Null)
        .await
        .json();
    assert!(gone["metadata"]["deletionTimestamp"].is_string(), "{gone}");
    let conditions = gone["status"]["conditions"].as_array().unwrap();
    let target = conditions
        .iter()
        .find(|c| c["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(target["reason"], "EvictionByEvictionAPI");
    let left = admin(&server, "GET", &format!("{budgets}/web"), Value::Null)
        .await
        .json();
    assert_eq!(left["status"]["disruptionsAllowed"], 0);
    assert!(left["status"]["disruptedPods"]["a"].is_string(), "{left}");
    assert_eq!(evict("b", "").await.code, 429);
    assert_eq!(evict("none", "").await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_too_old_comes_with_a_way_to_go_on() {
    let server = Server::start().await;
    for n in 0..5 {
        let made = admin(
            &server,
            "POST",
            MAPS,
            json!({"metadata": {"name": format!("m{n}")}}),
        )
        .await;
        assert_eq!(made.code, 201);
    }
    let first = admin(&server, "GET", &format!("{MAPS}?limit=2"), Value::Null)
        .await
        .json();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    admin(&server, "DELETE", &format!("{MAPS}/m3"), Value::Null).await;
    let now = server.store.revision().await.unwrap();
    server.store.compact(now).await.unwrap();
    let expired = admin(
        &server,
        "GET",
        &format!("{MAPS}?limit=2&continue={token}"),
        Value::Null,
    )
    .await;
    assert_eq!(expired.code, 410, "{}", expired.body);
    let expired = expired.json();
    assert_eq!(expired["reason"], "Expired");
    let fresh = expired["metadata"]["continue"]
        .as_str()
        .expect("a fresh token")
        .to_owned();
    let rest = admin(
        &server,
        "GET",
        &format!("{MAPS}?continue={fresh}"),
        Value::Null,
    )
    .await
    .json();
    let names: Vec<&str> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["m2", "m4"], "what follows, as it is now: {first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_gets_tokens_that_work() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let ask = |seconds: i64| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds}})
    };
    let made = admin(&server, "POST", path, ask(3600)).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let made = made.json();
    assert!(made["status"]["expirationTimestamp"].is_string());
    let owned = &made["metadata"]["managedFields"][0];
    assert_eq!(owned["subresource"], "token", "{made}");
    assert_eq!(
        owned["fieldsV1"],
        json!({"f:spec": {"f:expirationSeconds": {}}})
    );
    let token = made["status"]["token"].as_str().unwrap().to_owned();
    let who = over_socket(
        &server,
        http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .body(http_body_util::Full::from("{}"))
            .unwrap(),
    )
    .await;
    // The client certificate takes precedence, as upstream.
    assert_eq!(who.status(), 201);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token}});
    let path_of_reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = admin(&server, "POST", path_of_reviews, review).await.json();
    assert_eq!(review["status"]["authenticated"], true, "{review}");
    assert_eq!(
        review["status"]["user"]["username"],
        "system:serviceaccount:default:default"
    );
    // A review's metadata are prepared like those of any created object: system fields are reset.
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "metadata": {"uid": "u", "labels": {"a": "b"}}, "spec": {"token": "nobody's"},
        "status": {"audiences": ["sent"]}});
    let review = admin(&server, "POST", path_of_reviews, asked).await.json();
    assert_eq!(review["metadata"].get("uid"), None, "{review}");
    assert_eq!(
        review["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"],
        json!({"f:token": {}})
    );
    assert_eq!(review["status"]["audiences"], json!(["sent"]), "{review}");
    let asked = json!({"metadata": {"uid": "u"}, "spec": {"user": "u",
        "nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(admin(&server, "POST", reviews, asked).await.code, 201);
    let bindings = "/api/v1/namespaces/default/bindings";
    let nowhere = admin(&server, "POST", bindings, json!({"target": {}})).await;
    assert_eq!(nowhere.code, 500, "{}", nowhere.body);
    assert_eq!(nowhere.json()["message"], "target.name: Required value");
    let short = admin(&server, "POST", path, ask(60)).await;
    assert_eq!(short.code, 422, "{}", short.body);
    let stranger = User::new("nobody", [""; 0]);
    let media = [("content-type", "application/json")];
    let refused = send(
        &server,
        stranger,
        "POST",
        path,
        &media,
        ask(3600).to_string(),
    )
    .await;
    assert_eq!(refused.code, 403);
    let none = "/api/v1/namespaces/default/serviceaccounts/none/token";
    assert_eq!(admin(&server, "POST", none, ask(3600)).await.code, 404);

    let openid = admin(
        &server,
        "GET",
        "/.well-known/openid-configuration",
        Value::Null,
    )
    .await
    .json();
    assert!(
        openid["jwks_uri"]
            .as_str()
            .unwrap()
            .ends_with("/openid/v1/jwks"),
        "{openid}"
    );
    let keys = admin(&server, "GET", "/openid/v1/jwks", Value::Null).await;
    assert_eq!(keys.headers["content-type"], "application/jwk-set+json");
    assert!(!keys.json()["keys"].as_array().unwrap().is_empty());
}
