//! No privilege escalation by writing roles and bindings.

use apiserver::User;
use machinery::json::{Value, json};

use super::{RBAC, ask, grant, user};
use crate::support::{Server, admin};

const VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";

/// A user who may write all RBAC objects and read config maps.
async fn keeper(server: &Server) -> User {
    let rules = json!([
        {"verbs": ["create", "update", "patch", "get", "list", "delete"],
         "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]);
    grant(server, "eve", rules).await;
    user("eve")
}

async fn role(server: &Server, name: &str, labels: Value, rules: Value) {
    let role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
    let made = admin(server, "POST", &format!("{RBAC}/clusterroles"), role).await;
    assert_eq!(made.code, 201, "{}", made.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_feeds_no_aggregate_with_rules_that_its_writer_lacks() {
    let server = Server::start().await;
    let eve = keeper(&server).await;
    let secrets = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]);
    let maps = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]);
    role(&server, "secrets", json!({}), secrets).await;
    role(&server, "maps", json!({}), maps).await;
    let label = json!({"metadata": {"labels": {VIEW: "true"}}});
    for (name, code) in [
        ("cluster-admin", 403),
        ("secrets", 403),
        ("view", 403),
        ("maps", 200),
    ] {
        let path = format!("{RBAC}/clusterroles/{name}");
        let answer = ask(&server, &eve, "PATCH", &path, label.clone()).await;
        assert_eq!(answer.code, code, "{name}: {}", answer.body);
        if code == 403 {
            // A PUT of the whole object is rejected as well.
            let mut object = admin(&server, "GET", &path, Value::Null).await.json();
            object["metadata"]["labels"][VIEW] = "true".into();
            let answer = ask(&server, &eve, "PUT", &path, object).await;
            assert_eq!(answer.code, 403, "{name}: {}", answer.body);
        }
    }
    // An annotation counts as a change; the garbage collector's writes do not.
    let path = format!("{RBAC}/clusterroles/secrets");
    let note = json!({"metadata": {"annotations": {"a": "b"}}});
    assert_eq!(ask(&server, &eve, "PATCH", &path, note).await.code, 403);
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    assert_eq!(ask(&server, &eve, "PATCH", &path, held).await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregation_rule_is_for_those_who_may_do_everything() {
    let server = Server::start().await;
    let eve = keeper(&server).await;
    let rule = json!({"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]});
    let roles = format!("{RBAC}/clusterroles");
    let made = json!({"metadata": {"name": "all"}, "aggregationRule": rule, "rules": []});
    let refused = ask(&server, &eve, "POST", &roles, made.clone()).await;
    assert_eq!(refused.code, 403);
    assert!(
        refused
            .body
            .contains("must have cluster-admin privileges to use the aggregationRule"),
        "{}",
        refused.body
    );
    assert_eq!(admin(&server, "POST", &roles, made).await.code, 201);
    for patch in [
        json!({"aggregationRule": null}),
        json!({"metadata": {"labels": {VIEW: "true"}}}),
    ] {
        let path = format!("{roles}/all");
        let refused = ask(&server, &eve, "PATCH", &path, patch).await;
        assert_eq!(refused.code, 403, "{}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_a_binding_needs_its_role() {
    let server = Server::start().await;
    let eve = keeper(&server).await;
    let reference = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let binding =
        |name: &str, role: &str| json!({"metadata": {"name": name}, "roleRef": reference(role)});
    for collection in [
        format!("{RBAC}/clusterrolebindings"),
        format!("{RBAC}/namespaces/default/rolebindings"),
    ] {
        let refused = ask(
            &server,
            &eve,
            "POST",
            &collection,
            binding("root", "cluster-admin"),
        )
        .await;
        assert_eq!(refused.code, 403, "{}", refused.body);
        assert!(
            refused
                .body
                .contains("is attempting to grant RBAC permissions not currently held"),
            "{}",
            refused.body
        );
        let unknown = ask(
            &server,
            &eve,
            "POST",
            &collection,
            binding("none", "no-such-role"),
        )
        .await;
        assert_eq!(unknown.code, 404, "{}", unknown.body);
        let made = admin(
            &server,
            "POST",
            &collection,
            binding("empty", "cluster-admin"),
        )
        .await;
        assert_eq!(made.code, 201, "{}", made.body);
        let path = format!("{collection}/empty");
        let me = json!({"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
        for patch in [me, json!({"metadata": {"labels": {"a": "b"}}})] {
            let refused = ask(&server, &eve, "PATCH", &path, patch).await;
            assert_eq!(refused.code, 403, "{}", refused.body);
        }
        let held = json!({"metadata": {"finalizers": null}});
        assert_eq!(ask(&server, &eve, "PATCH", &path, held).await.code, 200);
    }
}
