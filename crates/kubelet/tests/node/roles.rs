//! Who may request what of the kubelet's server: each path and method, with the roles that allow it.

use k8s_openapi::api::{
    authorization::v1::SubjectAccessReview,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::support::TestNode;

/// A user per role: its name is its token, and the role is one verb on one subresource of nodes.
const ROLES: &[(&str, &str, &str)] = &[
    ("metrics", "get", "metrics"),
    ("stats", "get", "stats"),
    ("log", "get", "log"),
    ("pods", "get", "pods"),
    ("healthz", "get", "healthz"),
    ("configz", "get", "configz"),
    ("statusz", "get", "statusz"),
    ("proxy", "get", "proxy"),
    ("run", "create", "proxy"),
    ("checkpoint", "create", "checkpoint"),
    ("admin", "*", "*"),
];

/// A user without a role.
const STRANGER: &str = "stranger";

/// The method and path of a request, its status if it is allowed, and the users that are allowed besides `admin`.
const REQUESTS: &[(&str, &str, u16, &[&str])] = &[
    ("GET", "/metrics", 200, &["metrics"]),
    ("GET", "/metrics/resource", 200, &["metrics"]),
    ("GET", "/metrics/cadvisor", 200, &["metrics"]),
    ("GET", "/metrics/probes", 200, &["metrics"]),
    ("GET", "/metrics/slis", 200, &["metrics"]),
    ("GET", "/metricsx", 404, &["proxy"]),
    ("GET", "/stats/summary", 200, &["stats"]),
    ("GET", "/logs/", 200, &["log"]),
    ("GET", "/statusz", 200, &["statusz"]),
    ("GET", "/flagz", 200, &["configz"]),
    ("GET", "/configz", 200, &["configz", "proxy"]),
    ("GET", "/healthz", 200, &["healthz", "proxy"]),
    ("GET", "/healthz/ping", 200, &["healthz", "proxy"]),
    ("GET", "/pods", 200, &["pods", "proxy"]),
    ("GET", "/runningpods/", 200, &["pods", "proxy"]),
    ("GET", "/containerLogs/default/web/web", 200, &["proxy"]),
    ("GET", "/", 404, &["proxy"]),
    ("GET", "/nothing", 404, &["proxy"]),
    // Commands need the verb `create`, also those of WebSocket clients, whose requests are GET.
    ("GET", "/exec/default/web/no?command=id", 404, &["run"]),
    ("POST", "/exec/default/web/no?command=id", 404, &["run"]),
    ("GET", "/attach/default/web/no", 404, &["run"]),
    ("POST", "/attach/default/web/no", 404, &["run"]),
    ("GET", "/portForward/default/no", 404, &["run"]),
    ("POST", "/portForward/default/no", 404, &["run"]),
    ("POST", "/run/default/web/web?cmd=id", 200, &["run"]),
    ("POST", "/run/default/web/uid/web?cmd=id", 200, &["run"]),
    ("POST", "/run/default/no/web?cmd=id", 404, &["run"]),
    ("POST", "/run/default/web/no?cmd=id", 500, &["run"]),
    ("GET", "/run/default/web/web?cmd=id", 405, &["run"]),
    ("POST", "/run/default", 404, &["run"]),
    ("POST", "/checkpoint/default/no/web", 404, &["checkpoint"]),
    ("GET", "/checkpoint/default/web/web", 405, &[]),
    // No user but `admin` has a verb for these.
    ("POST", "/metrics", 405, &[]),
    ("POST", "/stats/summary", 405, &[]),
    ("POST", "/logs/", 405, &[]),
    ("POST", "/statusz", 405, &[]),
    ("POST", "/pods", 405, &["run"]),
    ("POST", "/configz", 405, &["run"]),
    ("PUT", "/pods", 405, &[]),
    ("PUT", "/exec/default/web/web", 405, &[]),
    ("PATCH", "/configz", 405, &[]),
    ("DELETE", "/pods", 405, &[]),
    ("DELETE", "/run/default/web/web", 405, &[]),
    ("OPTIONS", "/metrics", 405, &[]),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_path_and_method_needs_its_own_role() {
    let node = TestNode::start().await;
    node.create(
        "web",
        json!({"containers": [{"name": "web", "image": "here:1"}]}),
    )
    .await;
    node.shows("web", "/phase", "Running").await;
    for (user, verb, subresource) in ROLES {
        grant(&node, user, verb, subresource).await;
    }
    let users = ROLES.iter().map(|(user, ..)| Some(*user));
    let users = users.chain([Some(STRANGER), Some("invalid"), None]);
    let mut wrong = Vec::new();
    for user in users {
        let mut session = node.session(user).await;
        for (method, path, served, allowed) in REQUESTS {
            let expected = match user {
                None | Some("invalid") => 401,
                Some("admin") => *served,
                Some(user) if allowed.contains(&user) => *served,
                Some(_) => 403,
            };
            let status = session.request(method, path).await;
            if status != expected {
                let request = format!("{user:?} {method} {path}");
                wrong.push(format!("{request}: {status}, expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let ran = node.runtime.state.lock().executed.clone();
    // Twice by each of the two that may.
    assert_eq!(ran, vec![vec!["id".to_owned()]; 4]);
}

/// Gives a user a role, and waits until the API server knows it: the kubelet caches denials.
async fn grant(node: &TestNode, user: &str, verb: &str, subresource: &str) {
    let name = format!("kubelet-{user}");
    let resource = match subresource {
        "*" => "*".to_owned(),
        subresource => format!("nodes/{subresource}"),
    };
    let role = json!({"metadata": {"name": name}, "rules": [
        {"apiGroups": [""], "resources": [resource], "verbs": [verb]}]});
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    let params = PostParams::default();
    let roles: Api<ClusterRole> = Api::all(node.client.clone());
    roles.create(&params, &role).await.unwrap();
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(node.client.clone());
    bindings.create(&params, &binding).await.unwrap();
    let review = json!({"spec": {"user": user, "resourceAttributes":
        {"verb": verb, "resource": "nodes", "subresource": subresource, "name": "node"}}});
    let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(node.client.clone());
    node.wait("the role to count", || async {
        let answer = reviews.create(&PostParams::default(), &review).await;
        answer.unwrap().status.is_some_and(|status| status.allowed)
    })
    .await;
}
