//! Validation rules of custom resources over the API: every kind of write is judged, and what a rule refuses is not
//! stored.

use apiserver::User;
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually, send};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GATES: &str = "/apis/example.com/v1/namespaces/default/gates";

/// The definition; `rules` are those of `spec`.
fn definition(rules: Value) -> Value {
    let list = json!({"type": "array", "maxItems": 2000, "items": {"type": "integer"}});
    let status = json!({"type": "object", "properties": {"open": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.open >= 0", "message": "cannot be less than closed"}]});
    let spec = json!({"type": "object", "x-kubernetes-validations": rules, "properties": {
        "low": {"type": "integer"}, "high": {"type": "integer"}, "list": list,
        "name": {"type": "string", "maxLength": 20, "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "is immutable", "reason": "FieldValueForbidden"}]}}});
    json!({
        "metadata": {"name": "gates.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gates", "kind": "Gate"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}}]},
    })
}

fn order() -> Value {
    json!([{"rule": "self.low <= self.high",
        "messageExpression": "'low of ' + self.name + ' is above high'"}])
}

async fn defined(rules: Value) -> Server {
    let server = Server::start().await;
    let made = admin(&server, "POST", DEFINITIONS, definition(rules)).await;
    assert_eq!(made.code, 201, "{}", made.body);
    eventually(|| async {
        let listed = admin(&server, "GET", GATES, Value::Null).await;
        (listed.code == 200).then_some(())
    })
    .await;
    server
}

fn gate(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Gate", "metadata": {"name": name}, "spec": spec})
}

async fn stored(server: &Server, name: &str) -> Raw {
    admin(server, "GET", &format!("{GATES}/{name}"), Value::Null).await
}

/// Whether the client is warned of an unchanged value that violates a rule, once.
fn is_warned(answer: &Raw) -> bool {
    let warnings = answer.headers.get_all("warning").iter();
    let texts = warnings.map(|warning| warning.to_str().unwrap());
    let found: Vec<&str> = texts.collect();
    found.len() == 1 && found[0].contains("spec: Invalid value: ")
}

/// The causes of an invalid object, as `field: message`.
#[track_caller]
fn causes(refused: &Raw) -> Vec<String> {
    assert_eq!(refused.code, 422, "{}", refused.body);
    let status = refused.json();
    let causes = status["details"]["causes"].as_array().cloned();
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
    let causes = causes.unwrap_or_default();
    let shown = causes
        .iter()
        .map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message")));
    shown.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_is_judged_by_the_rules_of_the_definition() {
    let server = defined(order()).await;
    let refused = admin(
        &server,
        "POST",
        GATES,
        gate("bad", json!({"low": 2, "high": 1, "name": "b"})),
    )
    .await;
    let found = causes(&refused);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("spec: Invalid value: "), "{found:?}");
    assert!(found[0].ends_with("low of b is above high"), "{found:?}");
    assert_eq!(stored(&server, "bad").await.code, 404);

    let good = gate("good", json!({"low": 1, "high": 2, "name": "a"}));
    let made = admin(&server, "POST", GATES, good.clone()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let version = made.json()["metadata"]["resourceVersion"].clone();
    let path = format!("{GATES}/good");

    let mut worse = made.json();
    worse["spec"]["low"] = 3.into();
    let replaced = admin(&server, "PUT", &path, worse).await;
    assert_eq!(causes(&replaced).len(), 1);
    let patched = admin(&server, "PATCH", &path, json!({"spec": {"high": 0}})).await;
    assert_eq!(causes(&patched).len(), 1);
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let applied = send(
        &server,
        user,
        "PATCH",
        &format!("{path}?fieldManager=other&force=true"),
        &[("content-type", "application/apply-patch+yaml")],
        gate("good", json!({"low": 5})).to_string(),
    )
    .await;
    assert_eq!(causes(&applied).len(), 1);
    // A transition.
    let renamed = admin(&server, "PATCH", &path, json!({"spec": {"name": "b"}})).await;
    assert_eq!(causes(&renamed), ["spec.name: Forbidden: is immutable"]);
    assert_eq!(
        renamed.json()["details"]["causes"][0]["reason"],
        "FieldValueForbidden"
    );
    // The status by itself.
    let status = json!({"status": {"open": -1}});
    let refused = admin(&server, "PATCH", &format!("{path}/status"), status).await;
    let found = causes(&refused);
    assert!(
        found.len() == 1 && found[0].ends_with("cannot be less than closed"),
        "{found:?}"
    );

    let read = stored(&server, "good").await.json();
    assert_eq!(read["spec"], good["spec"]);
    assert_eq!(
        read["metadata"]["resourceVersion"], version,
        "nothing was written"
    );
    let allowed = admin(&server, "PATCH", &path, json!({"spec": {"low": 2}})).await;
    assert_eq!(allowed.code, 200, "{}", allowed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_value_may_violate_a_rule_that_was_added_later() {
    let server = defined(json!([])).await;
    let made = admin(
        &server,
        "POST",
        GATES,
        gate("old", json!({"low": 2, "high": 1})),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let path = format!("{DEFINITIONS}/gates.example.com");
    // The server writes the status meanwhile.
    eventually(|| async {
        let mut current = admin(&server, "GET", &path, Value::Null).await.json();
        current["spec"]["versions"] = definition(order())["spec"]["versions"].clone();
        let changed = admin(&server, "PUT", &path, current).await;
        (changed.code == 200).then_some(())
    })
    .await;
    let probe = gate("probe", json!({"low": 2, "high": 1}));
    eventually(|| async {
        let refused = admin(
            &server,
            "POST",
            &format!("{GATES}?dryRun=All"),
            probe.clone(),
        )
        .await;
        (refused.code == 422).then_some(())
    })
    .await;
    let path = format!("{GATES}/old");
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let kept = admin(&server, "PATCH", &path, labelled).await;
    assert_eq!(kept.code, 200, "{}", kept.body);
    assert!(is_warned(&kept), "{:?}", kept.headers);
    // Also if something else of the update is invalid.
    let invalid = json!({"metadata": {"labels": {"not a label": "b"}}});
    let refused = admin(&server, "PATCH", &path, invalid).await;
    assert!(!causes(&refused).is_empty());
    assert!(is_warned(&refused), "{:?}", refused.headers);
    let touched = admin(&server, "PATCH", &path, json!({"spec": {"low": 3}})).await;
    assert_eq!(causes(&touched).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_does_not_compile_or_costs_too_much_makes_no_definition() {
    let server = Server::start().await;
    for (rule, words) in [
        (
            "self.low <",
            "compilation failed: ERROR: <input>:1:11: Syntax error: ",
        ),
        ("self.none == 1", "undefined field 'none'"),
        ("self.low", "cel expression must evaluate to a bool"),
        (
            "self.list.all(a, self.list.all(b, self.list.all(c, a + b != c)))",
            "estimated rule cost exceeds budget by factor of",
        ),
    ] {
        let definition = definition(json!([{"rule": rule}]));
        let refused = admin(&server, "POST", DEFINITIONS, definition).await;
        let found = causes(&refused);
        assert!(
            found.iter().any(|cause| cause.contains(words)),
            "{rule}: {found:?}"
        );
        let path = format!("{DEFINITIONS}/gates.example.com");
        assert_eq!(
            admin(&server, "GET", &path, Value::Null).await.code,
            404,
            "{rule}"
        );
    }
}
