//! Flow control: classification, queuing, rejection, and the objects that configure it.

use std::{sync::Arc, time::Duration};

use apiserver::{Limits, User};
use bytes::Bytes;
use http_body_util::Full;
use machinery::json::{Value, json};
use stdx::{Clock, FakeClock};
use tower::Service as _;

use crate::support::{Raw, Server, admin, eventually, send};

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

async fn get(server: &Server, collection: &str, name: &str) -> Value {
    let found = admin(server, "GET", &format!("{collection}/{name}"), Value::Null).await;
    assert_eq!(found.code, 200, "{}", found.body);
    found.json()
}

/// The flow schema and priority level in the response's headers.
fn mark(answer: &Raw) -> (String, String) {
    let header = |name: &str| match answer.headers.get(name) {
        Some(value) => value.to_str().unwrap().to_owned(),
        None => String::new(),
    };
    (
        header("x-kubernetes-pf-flowschema-uid"),
        header("x-kubernetes-pf-prioritylevel-uid"),
    )
}

async fn uids(server: &Server, schema: &str, level: &str) -> (String, String) {
    let uid = |object: Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    (
        uid(get(server, SCHEMAS, schema).await),
        uid(get(server, LEVELS, level).await),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_say_where_their_requests_belonged() {
    let server = Server::start().await;
    let root = User::new("root", ["system:masters"]);
    let node = User::new("system:node:a", ["system:nodes"]);
    let eve = User::new("eve", [""; 0]);
    for (user, path, code, schema, level) in [
        (&root, "/api/v1/nodes", 200, "exempt", "exempt"),
        (&User::anonymous(), "/healthz", 200, "probes", "exempt"),
        (
            &node,
            "/api/v1/nodes/a",
            404,
            "system-node-high",
            "node-high",
        ),
        (&eve, "/version", 200, "global-default", "global-default"),
        (
            &eve,
            "/api/v1/secrets",
            403,
            "global-default",
            "global-default",
        ),
        (&eve, "/nothing", 403, "global-default", "global-default"),
    ] {
        let answer = send(&server, user.clone(), "GET", path, &[], "").await;
        assert_eq!(answer.code, code, "{path}");
        assert_eq!(mark(&answer), uids(&server, schema, level).await, "{path}");
    }
    // Long-running requests other than watches are exempt.
    let log = "/api/v1/namespaces/default/pods/x/log";
    let answer = send(&server, root.clone(), "GET", log, &[], "").await;
    assert_eq!(mark(&answer), Default::default());
    let watch = "/api/v1/nodes?watch=1&timeoutSeconds=1";
    let answer = send(&server, root, "GET", watch, &[], "").await;
    assert_eq!(mark(&answer), uids(&server, "exempt", "exempt").await);
}

/// A priority level, and a flow schema that assigns a user to it.
async fn add_level(server: &Server, name: &str, user: &str, response: Value) {
    let limited = json!({"nominalConcurrencyShares": 0, "limitResponse": response});
    let level =
        json!({"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}});
    let made = admin(server, "POST", LEVELS, level).await;
    assert_eq!(made.code, 201, "{}", made.body);
    add_schema(server, name, user).await;
}

async fn add_schema(server: &Server, name: &str, user: &str) {
    let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
        "namespaces": ["*"], "clusterScope": true});
    let schema = json!({"metadata": {"name": name}, "spec": {
        "matchingPrecedence": 1000,
        "priorityLevelConfiguration": {"name": name},
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "User", "user": {"name": user}}],
            "resourceRules": [everything],
        }],
    }});
    let made = admin(server, "POST", SCHEMAS, schema).await;
    assert_eq!(made.code, 201, "{}", made.body);
}

/// Waits for the Dangling condition of a flow schema.
async fn dangles(server: &Server, name: &str, status: &str) -> Value {
    eventually(async || {
        let schema = get(server, SCHEMAS, name).await;
        let condition = schema["status"]["conditions"][0].clone();
        (condition["status"] == status).then_some(condition)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_counts_when_its_status_says_that_its_level_exists() {
    let server = Server::start().await;
    let noxu = User::new("noxu", [""; 0]);
    let asks = async || send(&server, noxu.clone(), "GET", "/api/v1/nodes", &[], "").await;
    add_schema(&server, "mine", "noxu").await;
    let condition = dangles(&server, "mine", "True").await;
    let words = "This FlowSchema references the PriorityLevelConfiguration object named \"mine\" but there is no such object";
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("NotFound"), &json!(words))
    );
    let default = uids(&server, "global-default", "global-default").await;
    assert_eq!(mark(&asks().await), default);
    let limited = json!({"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}});
    let level =
        json!({"metadata": {"name": "mine"}, "spec": {"type": "Limited", "limited": limited}});
    assert_eq!(admin(&server, "POST", LEVELS, level).await.code, 201);
    dangles(&server, "mine", "False").await;
    assert_eq!(mark(&asks().await), uids(&server, "mine", "mine").await);
    let figures = admin(&server, "GET", "/metrics", Value::Null).await.body;
    for expected in [
        r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="mine"} 3"#,
        r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="workload-low"} 244"#,
        r#"apiserver_flowcontrol_dispatched_requests_total{flow_schema="mine",priority_level="mine"} 1"#,
        r#"apiserver_flowcontrol_current_executing_requests{flow_schema="mine",priority_level="mine"} 0"#,
        r#"apiserver_flowcontrol_request_wait_duration_seconds_count{execute="true",flow_schema="mine",priority_level="mine"} 1"#,
    ] {
        assert!(figures.contains(expected), "{expected}\n{figures}");
    }
    let level = format!("{LEVELS}/mine");
    assert_eq!(
        admin(&server, "DELETE", &level, Value::Null).await.code,
        200
    );
    dangles(&server, "mine", "True").await;
    assert_eq!(mark(&asks().await), default);
}

/// Grants users read access.
async fn let_read(server: &Server, users: &[&str]) {
    let subject = |name: &&str| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": *name});
    let subjects: Vec<Value> = users.iter().map(subject).collect();
    let binding = json!({"metadata": {"name": "readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": subjects});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(admin(server, "POST", bindings, binding).await.code, 201);
    for user in users {
        let user = User::new(*user, [""; 0]);
        eventually(async || {
            let answer = send(server, user.clone(), "GET", "/api/v1/namespaces", &[], "").await;
            (answer.code == 200).then_some(())
        })
        .await;
    }
}

/// A watch whose response is not read: it holds its seat for a while.
fn unread_watch(
    server: &Server,
    user: &User,
    timeout: &str,
) -> impl Future<Output = http::Response<apiserver::Body>> + use<> {
    let path = format!("/api/v1/namespaces?watch=1&timeout={timeout}");
    let request = http::Request::get(path).body(Full::new(Bytes::new()));
    let mut service = server.server.connect(user.clone());
    async move { service.call(request.unwrap()).await.unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_seat_gets_429_with_upstreams_message() {
    let server = Server::start().await;
    let eve = User::new("eve", [""; 0]);
    let_read(&server, &["eve"]).await;
    // Zero shares still give one seat.
    add_level(&server, "narrow", "eve", json!({"type": "Reject"})).await;
    dangles(&server, "narrow", "False").await;
    let held = unread_watch(&server, &eve, "1m").await;
    assert_eq!(held.status(), 200);
    let refused = send(&server, eve.clone(), "GET", "/api/v1/namespaces", &[], "").await;
    let words = "Too many requests, please try again later.\n";
    assert_eq!((refused.code, refused.body.as_str()), (429, words));
    let header = |name: &str| refused.headers[name].to_str().unwrap();
    assert_eq!(header("retry-after"), "1");
    assert_eq!(header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(mark(&refused), uids(&server, "narrow", "narrow").await);
    let figures = admin(&server, "GET", "/metrics", Value::Null).await.body;
    let expected = r#"apiserver_flowcontrol_rejected_requests_total{flow_schema="narrow",priority_level="narrow",reason="concurrency-limit"} 1"#;
    assert!(figures.contains(expected), "{figures}");
    drop(held);
    let served = send(&server, eve, "GET", "/api/v1/namespaces", &[], "").await;
    assert_eq!(served.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_request_gets_429_when_its_wait_ends() {
    let server = Server::start_with(Limits {
        in_flight: 0,
        ..Limits::default()
    })
    .await;
    let user = User::new("system:kube-scheduler", [""; 0]);
    let path = "/api/v1/nodes?timeout=40ms";
    let busy = send(&server, user, "GET", path, &[], "").await;
    assert_eq!(
        (busy.code, busy.headers["retry-after"].to_str().unwrap()),
        (429, "1")
    );
    let figures = admin(&server, "GET", "/metrics", Value::Null).await;
    assert_eq!(
        figures.code, 200,
        "those who put things right are let through"
    );
    let expected = r#"apiserver_flowcontrol_rejected_requests_total{flow_schema="kube-scheduler",priority_level="workload-high",reason="time-out"} 1"#;
    assert!(figures.body.contains(expected), "{}", figures.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_users_flood_leaves_the_others_and_the_system_their_seats() {
    let server = Server::start_with(Limits {
        in_flight: 60,
        ..Limits::default()
    })
    .await;
    let_read(&server, &["flood", "eve"]).await;
    let flooder = User::new("flood", [""; 0]);
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        flood.spawn(unread_watch(&server, &flooder, "8s"));
    }
    let (mut served, mut refused) = (Vec::new(), 0);
    while let Some(answer) = flood.join_next().await {
        let answer = answer.unwrap();
        if answer.status() == 200 {
            served.push(answer);
            continue;
        }
        assert_eq!(answer.status(), 429);
        assert!(answer.headers().contains_key("retry-after"));
        refused += 1;
        if refused > 1 {
            continue;
        }
        // The flood waits in its own queue; no other request is rejected.
        let node = User::new("system:node:a", ["system:nodes", "system:authenticated"]);
        let lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "a"}}).to_string();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let headers = [("content-type", "application/json")];
        let renewed = send(&server, node, "POST", leases, &headers, lease).await;
        assert_eq!(renewed.code, 201, "{}", renewed.body);
        let eve = User::new("eve", [""; 0]);
        let answer = send(&server, eve, "GET", "/api/v1/namespaces", &[], "").await;
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
    assert_eq!(served.len() + refused, 2000);
    assert!(refused > 1000, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_that_every_server_has_are_upstreams() {
    let server = Server::start().await;
    let names = async |collection: &str| {
        let list = admin(&server, "GET", collection, Value::Null).await.json();
        let items = list["items"].as_array().unwrap().iter();
        let names = items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<String>>()
    };
    assert_eq!(
        names(SCHEMAS).await,
        [
            "catch-all",
            "exempt",
            "global-default",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-system-service-accounts",
            "probes",
            "service-accounts",
            "system-leader-election",
            "system-node-high",
            "system-nodes"
        ]
    );
    assert_eq!(
        names(LEVELS).await,
        [
            "catch-all",
            "exempt",
            "global-default",
            "leader-election",
            "node-high",
            "system",
            "workload-high",
            "workload-low"
        ]
    );
    dangles(&server, "probes", "False").await;
    let schema = get(&server, SCHEMAS, "probes").await;
    let metadata = &schema["metadata"];
    assert_eq!(metadata["generation"], 1);
    assert_eq!(
        metadata["annotations"],
        json!({"apf.kubernetes.io/autoupdate-spec": "true"})
    );
    let entries = metadata["managedFields"].as_array().unwrap();
    let managers: Vec<[&Value; 3]> = entries
        .iter()
        .map(|entry| {
            [
                &entry["manager"],
                &entry["operation"],
                &entry["subresource"],
            ]
        })
        .collect();
    let (consumer, producer) = (
        json!("api-priority-and-fairness-config-consumer-v1"),
        json!("api-priority-and-fairness-config-producer-v1"),
    );
    assert_eq!(
        managers,
        [
            [&consumer, &json!("Apply"), &json!("status")],
            [&producer, &json!("Update"), &Value::Null]
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn mandatory_objects_are_restored_and_autoupdate_false_is_respected() {
    let clock = FakeClock::at(stdx::SystemClock.now());
    let server = Server::start_on(Limits::default(), Arc::new(clock.clone())).await;
    let precedence = |value: i64| json!({"spec": {"matchingPrecedence": value}});
    let shares = |value: i64| json!({"spec": {"limited": {"nominalConcurrencyShares": value}}});
    let patch = async |collection: &str, name: &str, body: Value| {
        let path = format!("{collection}/{name}");
        let patched = admin(&server, "PATCH", &path, body).await;
        assert_eq!(patched.code, 200, "{}", patched.body);
    };
    patch(SCHEMAS, "catch-all", precedence(9999)).await;
    patch(LEVELS, "workload-low", shares(50)).await;
    let mut chosen = shares(51);
    chosen["metadata"] = json!({"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}});
    patch(LEVELS, "workload-high", chosen).await;
    let gone = format!("{LEVELS}/system");
    assert_eq!(admin(&server, "DELETE", &gone, Value::Null).await.code, 200);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        clock.advance(Duration::from_secs(60));
        let back = admin(&server, "GET", &gone, Value::Null).await.code == 200;
        let schema = get(&server, SCHEMAS, "catch-all").await;
        let level = get(&server, LEVELS, "workload-low").await;
        if back
            && schema["spec"]["matchingPrecedence"] == 10_000
            && level["spec"]["limited"]["nominalConcurrencyShares"] == 100
        {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{schema}\n{level}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let level = get(&server, LEVELS, "workload-high").await;
    assert_eq!(level["spec"]["limited"]["nominalConcurrencyShares"], 51);
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_pages_show_levels_and_queues() {
    let server = Server::start().await;
    let page = async |name: &str| {
        let path = format!("/debug/api_priority_and_fairness/{name}");
        admin(&server, "GET", &path, Value::Null).await
    };
    let levels = page("dump_priority_levels").await;
    assert_eq!(levels.code, 200);
    let lines: Vec<&str> = levels.body.lines().collect();
    assert_eq!(lines.len(), 9, "{}", levels.body);
    assert!(lines[0].starts_with("PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, Waiting"));
    let expected = "system,            0,            true,   false,       0, ";
    assert!(lines[6].starts_with(expected), "{}", levels.body);
    let queues = page("dump_queues").await.body;
    assert_eq!(queues.lines().count(), 1 + 2 * 64 + 16 + 3 * 128);
    assert_eq!(page("nothing").await.code, 404);
}
