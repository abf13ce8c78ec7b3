//! Security regressions: requests that must be rejected, one file for each attack vector.

mod create_on_update;
mod escalation;
mod nodes;
mod proxies;
pub(crate) mod regressions;
mod tokens;
mod unauthenticated;

use apiserver::User;
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually, send};

pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const APPLY: &str = "application/apply-patch+yaml";

/// A user without groups.
pub(crate) fn user(name: &str) -> User {
    User::new(name, [""; 0])
}

/// Creates a ClusterRole with these rules and binds it to a user; returns once it is effective.
pub(crate) async fn grant(server: &Server, user: &str, rules: Value) {
    let name = format!("granted-to-{}", user.replace(':', "-"));
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let made = admin(server, "POST", &format!("{RBAC}/clusterroles"), role).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    let bindings = format!("{RBAC}/clusterrolebindings");
    let made = admin(server, "POST", &bindings, binding).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let first = &rules[0];
    let part = |field: &str| first[field][0].clone();
    let review = json!({"spec": {"user": user, "resourceAttributes": {
        "verb": part("verbs"), "group": part("apiGroups"), "resource": part("resources"),
        "name": part("resourceNames")}}});
    eventually(|| async {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = admin(server, "POST", path, review.clone()).await;
        (answer.json()["status"]["allowed"] == true).then_some(())
    })
    .await;
}

/// Sends JSON as a user.
pub(crate) async fn ask(
    server: &Server,
    user: &User,
    method: &str,
    path: &str,
    body: Value,
) -> Raw {
    let media = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let headers = [("content-type", media)];
    send(server, user.clone(), method, path, &headers, body).await
}

/// Applies an object as a user.
pub(crate) async fn apply(server: &Server, user: &User, path: &str, object: &Value) -> Raw {
    let path = format!("{path}?fieldManager=test&force=true");
    let headers = [("content-type", APPLY)];
    let body = object.to_string();
    send(server, user.clone(), "PATCH", &path, &headers, body).await
}
