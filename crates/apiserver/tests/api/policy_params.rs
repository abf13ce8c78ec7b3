//! Parameters of policies that change while requests run, and tenants who must not reach policies or other extensions.

use machinery::json::{Value, json};

use crate::{
    security::{RBAC, apply, ask, user},
    support::{Raw, Server, admin, eventually},
};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn create(server: &Server, path: &str, object: Value) -> Raw {
    let made = admin(server, "POST", path, object).await;
    assert_eq!(made.code, 201, "{path} {}", made.body);
    made
}

/// A policy about Secrets with parameters of a kind, and a binding that needs the parameter `limit` of the request's
/// namespace.
async fn bind(server: &Server, kind: Value, missing: &str) {
    let policy = json!({"metadata": {"name": "limits"}, "spec": {
        "paramKind": kind,
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["secrets"]}]},
        "validations": [{"expression": "params == null || params.data.max != 'none'", "message": "none"}]}});
    create(
        server,
        &format!("{GROUP}/validatingadmissionpolicies"),
        policy,
    )
    .await;
    let binding = json!({"metadata": {"name": "limits"}, "spec": {"policyName": "limits",
        "validationActions": ["Deny"],
        "paramRef": {"name": "limit", "parameterNotFoundAction": missing}}});
    let bindings = format!("{GROUP}/validatingadmissionpolicybindings");
    create(server, &bindings, binding).await;
}

async fn try_secret(server: &Server) -> Raw {
    let path = "/api/v1/namespaces/default/secrets?dryRun=All";
    admin(server, "POST", path, json!({"metadata": {"name": "s"}})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_come_and_go_deny_or_allow_and_never_break_a_request() {
    const MISSING: &str = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    let server = Server::start().await;
    bind(
        &server,
        json!({"apiVersion": "v1", "kind": "ConfigMap"}),
        "Deny",
    )
    .await;
    eventually(|| async { (try_secret(&server).await.code == 422).then_some(()) }).await;
    let limit = json!({"metadata": {"name": "limit"}, "data": {"max": "none"}});
    let path = format!("{MAPS}/limit");
    let changes = async {
        for _ in 0..20 {
            create(&server, MAPS, limit.clone()).await;
            let removed = admin(&server, "DELETE", &path, Value::Null).await;
            assert_eq!(removed.code, 200, "{}", removed.body);
        }
    };
    let requests = async {
        let mut said = Vec::new();
        for _ in 0..20 {
            let tries = futures::future::join_all((0..10).map(|_| try_secret(&server))).await;
            said.extend(tries);
        }
        said
    };
    let ((), said) = tokio::join!(changes, requests);
    for answer in said {
        assert_eq!(answer.code, 422, "{}", answer.body);
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        let is_known = message.ends_with(MISSING) || message.ends_with("denied request: none");
        assert!(is_known, "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_parameters_that_is_deleted_denies_and_works_again_once_it_is_back() {
    let server = Server::start().await;
    let definition = json!({"metadata": {"name": "limits.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "limits", "singular": "limit", "kind": "Limit", "listKind": "LimitList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let limits = "/apis/example.com/v1/namespaces/default/limits";
    let limit = json!({"apiVersion": "example.com/v1", "kind": "Limit",
        "metadata": {"name": "limit"}, "data": {"max": "5"}});
    let define = async || {
        create(&server, DEFINITIONS, definition.clone()).await;
        eventually(|| async {
            let made = admin(&server, "POST", limits, limit.clone()).await;
            (made.code == 201).then_some(())
        })
        .await;
    };
    define().await;
    bind(
        &server,
        json!({"apiVersion": "example.com/v1", "kind": "Limit"}),
        "Deny",
    )
    .await;
    eventually(|| async { (try_secret(&server).await.code == 201).then_some(()) }).await;
    let path = format!("{DEFINITIONS}/limits.example.com");
    admin(&server, "DELETE", &path, Value::Null).await;
    let refused = eventually(|| async {
        let tried = try_secret(&server).await;
        (tried.code == 422 && tried.body.contains("failed to find resource")).then_some(tried)
    });
    refused.await;
    eventually(|| async {
        let found = admin(&server, "GET", &path, Value::Null).await;
        (found.code == 404).then_some(())
    })
    .await;
    define().await;
    eventually(|| async { (try_secret(&server).await.code == 201).then_some(()) }).await;
}

/// Objects that extend the whole cluster: their resources, and one of each.
fn extensions() -> Vec<(String, Value)> {
    let named = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let rules = json!({"resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
        "resources": ["*"]}]});
    let validations = json!([{"expression": "false"}]);
    let policy = json!({"matchConstraints": rules, "validations": validations});
    let bound = json!({"policyName": "p", "validationActions": ["Deny"]});
    let service = json!({"group": "x.example.com", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
        "insecureSkipTLSVerify": true, "service": {"namespace": "team", "name": "mine"}});
    let definition = json!({"group": "x.example.com", "scope": "Namespaced",
        "names": {"plural": "xs", "singular": "x", "kind": "X", "listKind": "XList"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]});
    let hooks = json!({"metadata": {"name": "h"}, "webhooks": []});
    vec![
        (
            format!("{GROUP}/validatingadmissionpolicies"),
            named("p", policy),
        ),
        (
            format!("{GROUP}/validatingadmissionpolicybindings"),
            named("p", bound),
        ),
        (
            format!("{GROUP}/mutatingadmissionpolicies"),
            named("p", json!({})),
        ),
        (
            format!("{GROUP}/mutatingadmissionpolicybindings"),
            named("p", json!({})),
        ),
        (
            format!("{GROUP}/validatingwebhookconfigurations"),
            hooks.clone(),
        ),
        (format!("{GROUP}/mutatingwebhookconfigurations"), hooks),
        (
            DEFINITIONS.to_owned(),
            named("xs.x.example.com", definition),
        ),
        (
            "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
            named("v1.x.example.com", service),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrator_of_a_namespace_extends_no_cluster() {
    let server = Server::start().await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "team"}}),
    )
    .await;
    let binding = json!({"metadata": {"name": "admin"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    create(
        &server,
        &format!("{RBAC}/namespaces/team/rolebindings"),
        binding,
    )
    .await;
    let eve = user("eve");
    let maps = "/api/v1/namespaces/team/configmaps";
    eventually(|| async {
        let object = json!({"metadata": {"generateName": "m-"}});
        let made = ask(&server, &eve, "POST", maps, object).await;
        (made.code == 201).then_some(())
    })
    .await;
    for (path, object) in extensions() {
        let one = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        let status = format!("{one}/status");
        for (method, path) in [
            ("POST", &path),
            ("GET", &path),
            ("DELETE", &path),
            ("GET", &one),
            ("PUT", &one),
            ("PATCH", &one),
            ("DELETE", &one),
            ("PUT", &status),
            ("PATCH", &status),
        ] {
            let refused = ask(&server, &eve, method, path, object.clone()).await;
            assert_eq!(refused.code, 403, "{method} {path}: {}", refused.body);
        }
        let refused = apply(&server, &eve, &one, &object).await;
        assert_eq!(refused.code, 403, "apply {one}: {}", refused.body);
        // Nor does a role of the namespace give what its administrator does not have.
        let resource = path.rsplit('/').next().unwrap();
        let rules = json!([{"apiGroups": ["*"], "resources": [resource], "verbs": ["*"]}]);
        let role = json!({"metadata": {"name": "more"}, "rules": rules});
        let roles = format!("{RBAC}/namespaces/team/roles");
        let refused = ask(&server, &eve, "POST", &roles, role).await;
        assert_eq!(refused.code, 403, "{resource}: {}", refused.body);
    }
}
