//! ValidatingAdmissionPolicy, seen by the clients whose requests it matches.

use apiserver::{User, audit};
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually, send};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A policy for writes of ConfigMaps; `change` is added to its spec.
fn policy(name: &str, change: Value) -> Value {
    let mut spec = json!({
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["configmaps"]}]},
    });
    if let (Value::Object(spec), Value::Object(change)) = (&mut spec, change) {
        spec.extend(change);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn binding(name: &str, change: Value) -> Value {
    let mut spec = json!({"policyName": name, "validationActions": ["Deny"]});
    if let (Value::Object(spec), Value::Object(change)) = (&mut spec, change) {
        spec.extend(change);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn create(server: &Server, path: &str, object: Value) {
    let made = admin(server, "POST", path, object).await;
    assert_eq!(made.code, 201, "{path} {}", made.body);
    let warned = made.headers.get("warning");
    assert!(warned.is_none(), "{warned:?}");
}

/// Creates a policy with a binding of the same name.
async fn bind(server: &Server, policy: Value, bound: Value) {
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    create(server, &policies, policy).await;
    create(
        server,
        &format!("{policies}/").replace("policies/", "policybindings"),
        bound,
    )
    .await;
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

async fn try_map(server: &Server, name: &str, data: Value) -> Raw {
    let path = format!("{MAPS}?dryRun=All");
    admin(server, "POST", &path, map(name, data)).await
}

/// The response to a ConfigMap once it is rejected.
async fn refused(server: &Server, data: Value) -> Value {
    eventually(|| async {
        let tried = try_map(server, "m", data.clone()).await;
        (tried.code >= 400).then(|| tried.json())
    })
    .await
}

/// Waits until a ConfigMap is accepted.
async fn accepted(server: &Server, data: Value) -> Raw {
    eventually(|| async {
        let tried = try_map(server, "m", data.clone()).await;
        (tried.code == 201).then_some(tried)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_refuses_with_its_message_and_reason() {
    let server = Server::start().await;
    let rules = json!({
        "variables": [{"name": "size", "expression": "int(object.data.size)"}],
        "validations": [
            {"expression": "variables.size <= 5", "reason": "RequestEntityTooLarge",
             "messageExpression": "'size is ' + string(variables.size) + ', not at most 5'"},
            {"expression": "object.data.size != '0'"}],
    });
    bind(&server, policy("sizes", rules), binding("sizes", json!({}))).await;
    let status = refused(&server, json!({"size": "7"})).await;
    let why = "ValidatingAdmissionPolicy 'sizes' with binding 'sizes' denied request: size is 7, not at most 5";
    assert_eq!(
        status["message"],
        format!("configmaps \"m\" is forbidden: {why}")
    );
    assert_eq!(status["reason"], "RequestEntityTooLarge");
    assert_eq!(status["code"], 413);
    assert_eq!(
        status["details"],
        json!({"name": "m", "kind": "configmaps", "causes": [{"message": why}]})
    );
    let status = try_map(&server, "m", json!({"size": "0"})).await.json();
    assert_eq!(status["reason"], "Invalid");
    assert_eq!(status["code"], 422);
    let message = status["message"].as_str().unwrap();
    assert!(
        message.ends_with("denied request: failed expression: object.data.size != '0'"),
        "{message}"
    );
    // An evaluation error rejects the request, too.
    let status = try_map(&server, "m", json!({"other": "x"})).await.json();
    let message = status["message"].as_str().unwrap();
    assert!(
        message.ends_with("denied request: expression 'variables.size <= 5' resulted in error: composited variable \"size\" fails to evaluate: no such key: size"),
        "{message}"
    );
    assert_eq!(try_map(&server, "m", json!({"size": "3"})).await.code, 201);
    // Other resources and the policy itself are not matched.
    let path = format!("{GROUP}/validatingadmissionpolicybindings/sizes");
    let removed = admin(&server, "DELETE", &path, Value::Null).await;
    assert_eq!(removed.code, 200, "{}", removed.body);
    accepted(&server, json!({"size": "7"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_warns_and_audits_in_place_of_refusing() {
    let server = Server::configured(|config, directory| {
        let rules = directory.join("policy.yaml");
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  resources: [{group: \"\", resources: [configmaps]}]\n  omitStages: [RequestReceived]\n";
        std::fs::write(&rules, text).unwrap();
        config.audit = Some(audit::Config {
            policy: rules,
            log: directory.join("audit.log"),
            max_size: 1,
            max_backups: 0,
            max_age: 0,
        });
    })
    .await;
    let rules = json!({
        "validations": [{"expression": "true"}, {"expression": "has(object.data)", "message": "no data"}],
        "auditAnnotations": [{"key": "keys", "valueExpression": "has(object.data) ? '' : 'none of ' + object.metadata.name"}],
    });
    let actions = json!({"validationActions": ["Warn", "Audit"]});
    bind(&server, policy("soft", rules), binding("soft", actions)).await;
    let warned = eventually(|| async {
        let made = try_map(&server, "m", Value::Null).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let warning = made.headers.get("warning")?;
        Some(warning.to_str().unwrap().to_owned())
    })
    .await;
    assert_eq!(
        warned,
        "299 - \"Validation failed for ValidatingAdmissionPolicy 'soft' with binding 'soft': no data\""
    );
    let annotations = eventually(|| async {
        let text = std::fs::read_to_string(server.directory().join("audit.log")).unwrap();
        let events = text
            .lines()
            .map(|line| machinery::json::from_str::<Value>(line).unwrap());
        let mut noted = events.map(|event| event["annotations"].clone());
        noted.find(|annotations| annotations["soft/keys"].is_string())
    })
    .await;
    assert_eq!(annotations["soft/keys"], "none of m");
    let failures = annotations["validation.policy.admission.k8s.io/validation_failure"].as_str();
    assert_eq!(
        failures,
        Some(
            r#"[{"message":"no data","policy":"soft","binding":"soft","expressionIndex":1,"validationActions":["Warn","Audit"]}]"#
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_named_or_selected_and_missing_ones_refuse_or_not() {
    let server = Server::start().await;
    let rules = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "params == null || int(object.data.size) <= int(params.data.max)",
                         "messageExpression": "'at most ' + params.data.max + ' says ' + params.metadata.name"}],
    });
    // Parameters themselves can be created while they are missing.
    let reference = json!({
        "paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"},
        "matchResources": {"objectSelector": {"matchExpressions": [{"key": "kind", "operator": "DoesNotExist"}]}}});
    bind(
        &server,
        policy("limits", rules),
        binding("limits", reference),
    )
    .await;
    let said = |status: Value| {
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        message
            .split_once("denied request: ")
            .map(|(_, why)| why.to_owned())
    };
    let why = said(refused(&server, json!({"size": "7"})).await).unwrap();
    assert_eq!(
        why,
        "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    );
    // Parameters are read from the namespace of the request.
    let limit = |name: &str, max: &str| json!({"metadata": {"name": name, "labels": {"kind": "limit"}}, "data": {"max": max}});
    for (name, max) in [("limit", "5"), ("other", "3")] {
        create(&server, MAPS, limit(name, max)).await;
    }
    let tried = try_map(&server, "m", json!({"size": "7"})).await.json();
    assert_eq!(said(tried).unwrap(), "at most 5 says limit");
    assert_eq!(try_map(&server, "m", json!({"size": "4"})).await.code, 201);
    let path = format!("{GROUP}/validatingadmissionpolicybindings/limits");
    let change = async |reference: Value| {
        let patch = json!({"spec": {"paramRef": reference}});
        let patched = admin(&server, "PATCH", &path, patch).await;
        assert_eq!(patched.code, 200, "{}", patched.body);
    };
    let selector = json!({"matchLabels": {"kind": "limit"}});
    change(json!({"name": null, "selector": selector})).await;
    let why = eventually(|| async {
        let tried = try_map(&server, "m", json!({"size": "4"})).await;
        (tried.code == 422).then(|| said(tried.json()).unwrap())
    })
    .await;
    assert_eq!(why, "at most 3 says other");
    let none = json!({"matchLabels": {"kind": "none"}});
    change(json!({"selector": none, "parameterNotFoundAction": "Allow"})).await;
    accepted(&server, json!({"size": "9"})).await;
    // An unserved paramKind is a configuration error, subject to the failure policy.
    let policies = format!("{GROUP}/validatingadmissionpolicies/limits");
    let kind = json!({"spec": {"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}}});
    admin(&server, "PATCH", &policies, kind).await;
    let why = refused(&server, json!({"size": "1"})).await;
    assert_eq!(
        why["message"],
        "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'limits' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit'"
    );
    let ignored = json!({"spec": {"failurePolicy": "Ignore"}});
    admin(&server, "PATCH", &policies, ignored).await;
    accepted(&server, json!({"size": "9"})).await;
}

/// Rules over the request, its namespace and the authorizer.
fn rules_about_the_request() -> Value {
    json!({
        "matchConstraints": {"resourceRules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"]}]},
        "matchConditions": [{"name": "marked", "expression":
            "(object == null ? oldObject : object).metadata.name.startsWith('seen')"}],
        "validations": [
            {"expression": "request.operation != 'DELETE' || oldObject.data.may == 'go'", "message": "it stays"},
            {"expression": "request.operation == 'DELETE' || request.userInfo.username != 'kubernetes-admin' || request.dryRun",
             "message": "not for good"},
            {"expression": "namespaceObject.metadata.name == request.namespace && namespaceObject.status.phase == 'Active'"},
            {"expression": "authorizer.group('').resource('configmaps').namespace('default').check('create').allowed()",
             "message": "only who may create everywhere"},
            {"expression": "authorizer.requestResource.check('escape').allowed() || !has(object.data.privileged)",
             "message": "privileged"}],
    })
}

/// A role for writing ConfigMaps and nothing else, bound to the user `eve`.
async fn let_eve_write_config_maps(server: &Server) {
    let role = json!({"metadata": {"name": "writer"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "delete"]}]});
    create(
        server,
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
        role,
    )
    .await;
    let bound = json!({"metadata": {"name": "writer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    create(
        server,
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        bound,
    )
    .await;
}

async fn request_as(
    server: &Server,
    user: User,
    method: &'static str,
    path: String,
    body: Value,
) -> Raw {
    let media = [("content-type", "application/json")];
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    send(server, user, method, &path, &media, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_see_the_request_its_namespace_and_the_authorizer() {
    let server = Server::start().await;
    let rules = rules_about_the_request();
    bind(&server, policy("seen", rules), binding("seen", json!({}))).await;
    let tried = |user, method, path, body| request_as(&server, user, method, path, body);
    let root = || User::new("kubernetes-admin", ["system:masters"]);
    let post = format!("{MAPS}?dryRun=All");
    let why = eventually(|| async {
        let made = tried(
            root(),
            "POST",
            MAPS.to_owned(),
            map("seen", json!({"may": "go"})),
        )
        .await;
        match made.code {
            201 => {
                admin(&server, "DELETE", &format!("{MAPS}/seen"), Value::Null).await;
                None
            }
            _ => Some(made.json()["message"].as_str().unwrap().to_owned()),
        }
    })
    .await;
    assert!(why.ends_with("not for good"), "{why}");
    let made = tried(
        root(),
        "POST",
        post.clone(),
        map("seen", json!({"privileged": "x"})),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    // A user who may write ConfigMaps, and nothing else.
    let_eve_write_config_maps(&server).await;
    let eve = || User::new("eve", [""; 0]);
    let made = eventually(|| async {
        let made = tried(
            eve(),
            "POST",
            MAPS.to_owned(),
            map("seen", json!({"may": "stay"})),
        )
        .await;
        (made.code != 403).then_some(made)
    })
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let made = tried(
        eve(),
        "POST",
        post,
        map("seen2", json!({"privileged": "x"})),
    )
    .await;
    assert!(
        made.json()["message"]
            .as_str()
            .unwrap()
            .ends_with(": privileged"),
        "{}",
        made.body
    );
    let gone = tried(eve(), "DELETE", format!("{MAPS}/seen"), Value::Null).await;
    assert_eq!(gone.code, 422);
    assert!(
        gone.json()["message"]
            .as_str()
            .unwrap()
            .ends_with(": it stays"),
        "{}",
        gone.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_selectors_say_what_a_policy_is_about() {
    let server = Server::start().await;
    let namespace = json!({"metadata": {"name": "strict", "labels": {"level": "strict"}}});
    create(&server, "/api/v1/namespaces", namespace).await;
    let rules = json!({
        "matchConstraints": {
            "resourceRules": [{"operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}],
            "excludeResourceRules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["configmaps"], "resourceNames": ["exempt"]},
                {"operations": ["*"], "apiGroups": ["", "events.k8s.io", "coordination.k8s.io"], "apiVersions": ["*"],
                 "resources": ["events", "leases"]}],
            "namespaceSelector": {"matchLabels": {"level": "strict"}},
            "objectSelector": {"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]}},
        "validations": [{"expression": "false", "message": "nothing is made here"}],
    });
    let only = json!({"matchResources": {"resourceRules": [{"operations": ["*"], "apiGroups": [""],
        "apiVersions": ["v1"], "resources": ["configmaps", "secrets"]}]}});
    bind(&server, policy("all", rules), binding("all", only)).await;
    let code = |namespace: &'static str, kind: &'static str, metadata: Value| {
        let server = &server;
        async move {
            let path = format!("/api/v1/namespaces/{namespace}/{kind}?dryRun=All");
            admin(server, "POST", &path, json!({"metadata": metadata}))
                .await
                .code
        }
    };
    eventually(|| async {
        (code("strict", "configmaps", json!({"name": "a"})).await == 422).then_some(())
    })
    .await;
    for (namespace, kind, metadata, wanted) in [
        ("strict", "secrets", json!({"name": "a"}), 422),
        ("strict", "configmaps", json!({"name": "exempt"}), 201),
        (
            "strict",
            "configmaps",
            json!({"name": "a", "labels": {"free": "yes"}}),
            201,
        ),
        ("strict", "serviceaccounts", json!({"name": "a"}), 201),
        ("default", "configmaps", json!({"name": "a"}), 201),
    ] {
        let found = code(namespace, kind, metadata.clone()).await;
        assert_eq!(found, wanted, "{namespace} {kind} {metadata}");
    }
    // No lockout: policies never match policies.
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let everything = json!({
        "matchConstraints": {"resourceRules": [{"operations": ["*"], "apiGroups": ["admissionregistration.k8s.io"],
            "apiVersions": ["*"], "resources": ["*"]}]},
        "validations": [{"expression": "false"}]});
    bind(
        &server,
        policy("locked", everything),
        binding("locked", json!({})),
    )
    .await;
    let hooks = format!("{GROUP}/validatingwebhookconfigurations?dryRun=All");
    eventually(|| async {
        let made = admin(&server, "POST", &hooks, json!({"metadata": {"name": "h"}})).await;
        (made.code == 422).then_some(())
    })
    .await;
    let removed = admin(
        &server,
        "DELETE",
        &format!("{policies}/locked"),
        Value::Null,
    )
    .await;
    assert_eq!(removed.code, 200, "{}", removed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_the_same_objects_matches_where_it_may() {
    let server = Server::start().await;
    let rules = |matching: &str| {
        json!({
            "matchConstraints": {"matchPolicy": matching, "resourceRules": [{"operations": ["CREATE"],
                "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "resources": ["horizontalpodautoscalers"]}]},
            "validations": [{"expression":
                "request.kind.version == 'v1' && request.requestKind.version == 'v2' && object.apiVersion == 'autoscaling/v1' && object.spec.targetCPUUtilizationPercentage < 50",
                "messageExpression": "'target is ' + string(object.spec.targetCPUUtilizationPercentage)"}]})
    };
    bind(
        &server,
        policy("targets", rules("Equivalent")),
        binding("targets", json!({})),
    )
    .await;
    let scaler = json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers?dryRun=All";
    let status = eventually(|| async {
        let tried = admin(&server, "POST", path, scaler.clone()).await;
        (tried.code != 201).then(|| tried.json())
    })
    .await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.ends_with("denied request: target is 70"),
        "{message}"
    );
    let policies = format!("{GROUP}/validatingadmissionpolicies/targets");
    let exact = json!({"spec": {"matchConstraints": {"matchPolicy": "Exact"}}});
    admin(&server, "PATCH", &policies, exact).await;
    eventually(|| async {
        let tried = admin(&server, "POST", path, scaler.clone()).await;
        (tried.code == 201).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_that_do_not_compile_are_refused_and_likely_mistakes_are_in_the_status() {
    let server = Server::start().await;
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let broken = json!({
        "matchConditions": [{"name": "c", "expression": "variables.a"}],
        "variables": [{"name": "a", "expression": "object.spec +"}],
        "validations": [{"expression": "object.data.size", "messageExpression": "1"}, {"expression": "nothing == 1"}],
        "auditAnnotations": [{"key": "k", "valueExpression": "[1]"}]});
    let refused = admin(&server, "POST", &policies, policy("broken", broken)).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let causes = refused.json()["details"]["causes"].clone();
    let causes: Vec<(&str, &str)> = causes
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| {
            (
                cause["field"].as_str().unwrap(),
                cause["message"].as_str().unwrap(),
            )
        })
        .collect();
    let fields: Vec<&str> = causes.iter().map(|(field, _)| *field).collect();
    assert_eq!(
        fields,
        [
            "spec.matchConditions[0].expression",
            "spec.variables[0].expression",
            "spec.validations[0].expression",
            "spec.validations[0].messageExpression",
            "spec.validations[1].expression",
            "spec.auditAnnotations[0].valueExpression",
        ]
    );
    assert!(
        causes[1]
            .1
            .contains("compilation failed: ERROR: <input>:1:"),
        "{}",
        causes[1].1
    );
    assert_eq!(
        causes[2].1,
        "Invalid value: \"object.data.size\": must evaluate to bool but got dyn"
    );
    assert!(
        causes[4]
            .1
            .contains("undeclared reference to 'nothing' (in container '')")
    );
    // A field that the kind does not have compiles, with a type checking warning.
    let rules = json!({"validations": [{"expression": "object.dataz.size() > 0"}]});
    create(&server, &policies, policy("typo", rules)).await;
    let path = format!("{policies}/typo");
    let status = eventually(|| async {
        let read = admin(&server, "GET", &path, Value::Null).await.json();
        (read["status"]["observedGeneration"] == 1).then(|| read["status"].clone())
    })
    .await;
    assert_eq!(
        status["typeChecking"]["expressionWarnings"],
        json!([{"fieldRef": "spec.validations[0].expression",
                "warning": "/v1, Kind=ConfigMap: ERROR: <input>:1:7: undefined field 'dataz'\n | object.dataz.size() > 0\n | ......^\n"}])
    );
    let mended = json!({"spec": {"validations": [{"expression": "object.data.size() > 0"}]}});
    assert_eq!(admin(&server, "PATCH", &path, mended).await.code, 200);
    let status = eventually(|| async {
        let read = admin(&server, "GET", &path, Value::Null).await.json();
        (read["status"]["observedGeneration"] == 2).then(|| read["status"].clone())
    })
    .await;
    assert_eq!(status["typeChecking"]["expressionWarnings"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_costs_too_much_is_stopped() {
    let server = Server::start().await;
    let list = "[0,1,2,3,4,5,6,7,8,9]";
    let mut endless = "true".to_owned();
    for level in 0..8 {
        endless = format!("{list}.all(x{level}, {endless})");
    }
    let rules = json!({"validations": [{"expression": endless}]});
    bind(
        &server,
        policy("endless", rules),
        binding("endless", json!({})),
    )
    .await;
    let status = refused(&server, json!({})).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.ends_with("resulted in error: operation cancelled: actual cost limit exceeded"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_a_policy_needs_permission_to_read_its_parameters() {
    let server = Server::start().await;
    let rules = json!([{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "author"}, "rules": rules});
    create(
        &server,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        role,
    )
    .await;
    let bound = json!({"metadata": {"name": "author"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "author"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    create(
        &server,
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        bound,
    )
    .await;
    let as_eve = |path: String, object: Value| {
        let server = &server;
        async move {
            let eve = User::new("eve", ["authors"]);
            let media = [("content-type", "application/json")];
            send(server, eve, "POST", &path, &media, object.to_string()).await
        }
    };
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"}, "validations": [{"expression": "params != null"}]});
    let refused = eventually(|| async {
        let made = as_eve(policies.clone(), policy("secrets", spec.clone())).await;
        (made.code != 403).then_some(made)
    })
    .await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let cause = refused.json()["details"]["causes"][0].clone();
    assert_eq!(cause["field"], "spec.paramKind");
    assert_eq!(cause["reason"], "FieldValueForbidden");
    assert_eq!(
        cause["message"],
        "Forbidden: user &{eve  [authors system:authenticated] map[]} must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)"
    );
    create(&server, &policies, policy("secrets", spec)).await;
    let bindings = format!("{GROUP}/validatingadmissionpolicybindings");
    let reference = json!({"paramRef": {"name": "s", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    let refused = as_eve(bindings.clone(), binding("secrets", reference.clone())).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let words = "Forbidden: user &{eve  [authors system:authenticated] map[]} does not have \"get\" permission on the object referenced by paramRef";
    let message = |answer: Raw| answer.json()["details"]["causes"][0]["message"].clone();
    assert_eq!(message(refused), words);
    // Nor may she change a binding whose parameters she may not read.
    create(&server, &bindings, binding("secrets", reference)).await;
    let eve = User::new("eve", ["authors"]);
    let media = [("content-type", "application/merge-patch+json")];
    let patch = json!({"spec": {"validationActions": ["Warn"]}}).to_string();
    let path = format!("{bindings}/secrets");
    let refused = send(&server, eve, "PATCH", &path, &media, patch).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert_eq!(message(refused), words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_with_many_parameters_ends_at_the_deadline_of_the_request() {
    let server = Server::start().await;
    for n in 0..200 {
        let params = json!({"metadata": {"name": format!("p{n}"), "labels": {"kind": "limit"}}});
        create(&server, MAPS, params).await;
    }
    let slow = "lists.range(300).all(x, lists.range(300).all(y, x + y >= 0))";
    let rules = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": slow}, {"expression": "object.data.size() == 1"}]});
    let selector = json!({"matchLabels": {"kind": "limit"}});
    let reference = json!({"paramRef": {"selector": selector, "parameterNotFoundAction": "Deny"}});
    bind(&server, policy("slow", rules), binding("slow", reference)).await;
    let path = format!("{MAPS}?dryRun=All&timeout=2s");
    let late = eventually(|| async {
        let tried = admin(&server, "POST", &path, map("m", json!({"a": "b"}))).await;
        // The policy is followed a moment after it was created.
        (tried.code != 201).then_some(tried)
    });
    // With all parameters it would have been refused by the second expression.
    let late = late.await;
    assert_eq!(late.code, 504, "{}", late.body);
}
