//! The audit log, as an operator reads it: what is logged of requests, and what never is.

use std::{path::Path, sync::Arc};

use apiserver::{Registry, User, audit};
use machinery::json::{Value, json};

use crate::support::{Server, admin, send};

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: None
  users: ["system:apiserver"]
- level: Metadata
  resources: [{group: "", resources: ["secrets"]}]
- level: RequestResponse
  resources: [{group: "", resources: ["configmaps"]}]
  omitStages: ["RequestReceived"]
- level: Request
  resources: [{group: "", resources: ["pods", "namespaces"]}]
  omitStages: ["RequestReceived"]
- level: Metadata
  resources: [{group: "test.local"}]
- level: Metadata
  nonResourceURLs: ["/version"]
"#;

async fn audited() -> Server {
    audited_with(Registry::builtin()).await
}

async fn audited_with(registry: Arc<Registry>) -> Server {
    Server::with_kinds(registry, |config, directory| {
        let policy = directory.join("policy.yaml");
        std::fs::write(&policy, POLICY).unwrap();
        config.audit = Some(audit::Config {
            policy,
            log: directory.join("audit.log"),
            max_size: 1,
            max_backups: 0,
            max_age: 0,
        });
    })
    .await
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path.join("audit.log")).unwrap()
}

/// The events that match the filter, once there are `count` of them.
async fn events(server: &Server, count: usize, keep: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut seen = Vec::new();
    for _ in 0..500 {
        let all = text(server.directory());
        let lines = all
            .lines()
            .map(|line| machinery::json::from_str(line).unwrap());
        seen = lines.filter(|event| keep(event)).collect();
        if seen.len() >= count {
            assert_eq!(seen.len(), count, "{seen:#?}");
            return seen;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{count} events wanted: {seen:#?}")
}

fn about(resource: &str) -> impl Fn(&Value) -> bool {
    move |event: &Value| event["objectRef"]["resource"] == resource
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rule_says_is_written_and_nothing_more() {
    let server = audited().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "v"}});
    let made = send(
        &server,
        User::new("ops", ["system:masters"]),
        "POST",
        maps,
        &[
            ("content-type", "application/json"),
            ("audit-id", "my-id"),
            ("user-agent", "tester/1"),
            ("x-forwarded-for", "192.0.2.7, 192.0.2.8"),
        ],
        map.to_string(),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.headers["audit-id"], "my-id");
    let event = events(&server, 1, about("configmaps")).await.remove(0);
    let expected = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse",
        "auditID": "my-id", "stage": "ResponseComplete", "requestURI": maps, "verb": "create",
        "user": {"username": "ops", "groups": ["system:masters", "system:authenticated"]},
        "sourceIPs": ["192.0.2.7", "192.0.2.8"], "userAgent": "tester/1",
        "objectRef": {"resource": "configmaps", "namespace": "default", "name": "m", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""},
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&event[key], value, "{key}");
    }
    assert_eq!(event["requestObject"]["data"], json!({"k": "v"}));
    assert_eq!(event["responseObject"]["data"], json!({"k": "v"}));
    let metadata = &event["responseObject"]["metadata"];
    assert!(metadata["uid"].is_string() && metadata["managedFields"].is_null());
    let stamp = event["stageTimestamp"].as_str().unwrap();
    assert_eq!(stamp.len(), "2026-01-02T03:04:05.678901Z".len(), "{stamp}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_never_written_at_metadata() {
    let server = audited().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let planted = "cGxhbnRlZC1zZWNyZXQ=";
    let secret = json!({"metadata": {"name": "s"}, "data": {"k": planted}});
    assert_eq!(admin(&server, "POST", secrets, secret).await.code, 201);
    let one = format!("{secrets}/s");
    assert_eq!(admin(&server, "GET", &one, Value::Null).await.code, 200);
    assert_eq!(admin(&server, "GET", secrets, Value::Null).await.code, 200);
    let patch = json!({"data": {"other": planted}});
    assert_eq!(admin(&server, "PATCH", &one, patch).await.code, 200);
    assert_eq!(admin(&server, "DELETE", &one, Value::Null).await.code, 200);
    // Two events for each request: received and completed.
    let events = events(&server, 10, about("secrets")).await;
    assert_eq!(events[0]["stage"], "RequestReceived");
    assert!(events.iter().all(|event| event["requestObject"].is_null()));
    assert!(events.iter().all(|event| event["responseObject"].is_null()));
    assert!(!text(server.directory()).contains(planted));
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_and_impersonated_requests_are_audited_with_their_reasons() {
    let server = audited().await;
    let eve = User::new("eve", [""; 0]);
    let pods = "/api/v1/namespaces/default/pods";
    let refused = send(&server, eve, "GET", pods, &[], "").await;
    assert_eq!(refused.code, 403);
    let ops = User::new("ops", ["system:masters"]);
    let headers = [("impersonate-user", "bob"), ("impersonate-group", "dev")];
    send(&server, ops, "GET", pods, &headers, "").await;
    let scheduler = User::new("system:kube-scheduler", [""; 0]);
    send(&server, scheduler, "GET", "/api/v1/pods", &[], "").await;
    let events = events(&server, 3, about("pods")).await;
    assert_eq!(events[0]["responseStatus"]["code"], 403);
    assert_eq!(events[0]["responseStatus"]["reason"], "Forbidden");
    let decision = "authorization.k8s.io/decision";
    assert_eq!(events[0]["annotations"][decision], "forbid");
    assert_eq!(events[1]["user"]["username"], "ops");
    let other = json!({"username": "bob", "groups": ["dev", "system:authenticated"]});
    assert_eq!(events[1]["impersonatedUser"], other);
    let how = json!({"impersonationConstraint": "impersonate:user-info"});
    assert_eq!(events[1]["authenticationMetadata"], how);
    assert_eq!(events[0].get("authenticationMetadata"), None);
    assert_eq!(events[2]["annotations"][decision], "allow");
    assert_eq!(
        events[2]["annotations"]["authorization.k8s.io/reason"],
        "RBAC: allowed by ClusterRoleBinding \"system:kube-scheduler\" of ClusterRole \
         \"system:kube-scheduler\" to User \"system:kube-scheduler\""
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_written_when_it_begins_and_when_it_ends() {
    let server = audited().await;
    let path = "/api/v1/namespaces?watch=true&timeoutSeconds=1";
    assert_eq!(admin(&server, "GET", path, Value::Null).await.code, 200);
    let watches = |event: &Value| event["verb"] == "watch" && about("namespaces")(event);
    let events = events(&server, 2, watches).await;
    let stages: Vec<&Value> = events.iter().map(|event| &event["stage"]).collect();
    assert_eq!(stages, ["ResponseStarted", "ResponseComplete"]);
    assert_eq!(events[0]["auditID"], events[1]["auditID"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_security_adds_audit_annotations() {
    let server = audited().await;
    let labels = json!({"pod-security.kubernetes.io/enforce": "privileged",
                        "pod-security.kubernetes.io/audit": "baseline"});
    let label = json!({"metadata": {"labels": labels}});
    let path = "/api/v1/namespaces/default";
    assert_eq!(admin(&server, "PATCH", path, label).await.code, 200);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true,
        "containers": [{"name": "a", "image": "i"}]}});
    let made = admin(&server, "POST", "/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let event = events(&server, 1, about("pods")).await.remove(0);
    let annotations = &event["annotations"];
    assert_eq!(
        annotations["pod-security.kubernetes.io/enforce-policy"],
        "privileged:latest"
    );
    assert_eq!(
        annotations["pod-security.kubernetes.io/audit-violations"],
        "would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    assert!(event["responseObject"].is_null());
    assert_eq!(event["requestObject"]["spec"]["hostNetwork"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_is_written_as_such_and_the_server_lives() {
    let server = audited_with(crate::misbehaving_clients::mined()).await;
    let mines = "/apis/test.local/v1/landmines";
    let stepped = admin(&server, "POST", mines, json!({"metadata": {"name": "x"}})).await;
    assert_eq!(stepped.code, 500, "{}", stepped.body);
    let seen = events(&server, 2, about("landmines")).await;
    assert_eq!(seen[0]["stage"], "RequestReceived");
    let panic = &seen[1];
    assert_eq!(
        (&panic["stage"], &panic["level"]),
        (&json!("Panic"), &json!("Metadata"))
    );
    assert_eq!(panic["auditID"], seen[0]["auditID"]);
    assert_eq!(panic["responseStatus"]["code"], 500);
    assert_eq!(panic["responseStatus"]["reason"], "InternalError");
    let listed = admin(&server, "GET", mines, Value::Null).await;
    assert_eq!(listed.code, 200, "{}", listed.body);
    let seen = events(&server, 4, about("landmines")).await;
    assert_eq!(seen[3]["stage"], "ResponseComplete");
}
