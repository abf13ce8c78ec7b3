//! Creates with admission policies, and creates of a custom resource whose definition has many
//! rules: the cost of expressions for a write.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{load, peer::Peer, report::Figures, scenario};

pub(crate) const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const POLICIES: usize = 10;
pub(crate) const RULES: usize = 50;
/// The number of webhooks of each kind.
const WEBHOOKS: usize = 50;
/// How long a server may take until a change takes effect.
const PATIENCE: Duration = Duration::from_secs(30);

/// A policy with five typical expressions: labels, strings, numbers, lists, a variable.
fn policy(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("bench-{number}")},
        "spec": {
            "matchConstraints": {"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""],
                "apiVersions": ["v1"], "resources": ["configmaps"]}]},
            "variables": [{"name": "text", "expression": "object.data.text"}],
            "validations": [
                {"expression": "object.metadata.name.size() <= 63 && !object.metadata.name.startsWith('kube-')"},
                {"expression": "variables.text.size() < 100000"},
                {"expression": format!("!has(object.metadata.labels) || !('forbidden-{number}' in object.metadata.labels)")},
                {"expression": "object.data.all(key, key.matches('^[a-z]+$') && object.data[key] != '')"},
                {"expression": format!("object.data.size() <= {}", number + 10),
                 "messageExpression": "'too many keys: ' + string(object.data.size())"},
            ],
        },
    })
}

/// The policies and their bindings, and one more that rejects a name: plurals and objects. Once
/// that one is in effect, all are.
pub(crate) fn policies() -> Vec<(&'static str, Value)> {
    let mut marker = policy(POLICIES);
    marker["spec"]["validations"] =
        json!([{"expression": "object.metadata.name != 'bench-marker'"}]);
    let all = (0..POLICIES).map(policy).chain([marker]);
    all.flat_map(|policy| {
        let binding = json!({"metadata": policy["metadata"], "spec": {
            "policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}});
        [
            ("validatingadmissionpolicies", policy),
            ("validatingadmissionpolicybindings", binding),
        ]
    })
    .collect()
}

/// A ConfigMap that the last policy rejects.
pub(crate) fn rejected() -> Value {
    json!({"metadata": {"name": "bench-marker"}, "data": {"text": "x"}})
}

fn prepare(peer: &Peer) -> anyhow::Result<()> {
    for (plural, object) in policies() {
        peer.ask("POST", &format!("{GROUP}/{plural}"), &object.to_string())?;
    }
    let path = format!("{}?dryRun=All", scenario::path("configmaps"));
    let body = rejected().to_string();
    until(|| peer.ask("POST", &path, &body).is_err())
}

fn clean(peer: &Peer) -> anyhow::Result<()> {
    for number in 0..=POLICIES {
        for plural in [
            "validatingadmissionpolicybindings",
            "validatingadmissionpolicies",
        ] {
            peer.ask("DELETE", &format!("{GROUP}/{plural}/bench-{number}"), "")?;
        }
    }
    Ok(())
}

pub(crate) fn until(is_so: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        anyhow::ensure!(std::time::Instant::now() < deadline, "it does not count");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Creates of ConfigMaps with ten policies of five expressions each.
pub(crate) fn create_maps(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    prepare(peer)?;
    let figures =
        scenario::create_maps_as(peer, "create ConfigMap, 10 policies", connections, lasts);
    clean(peer)?;
    figures
}

/// Creates of ConfigMaps with webhooks of both kinds for other resources.
pub(crate) fn create_unmatched(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    for (plural, configuration) in webhooks() {
        let path = format!("{GROUP}/{plural}");
        peer.ask("POST", &path, &configuration.to_string())?;
    }
    let what = format!("create ConfigMap, {} other webhooks", 2 * WEBHOOKS);
    let figures = scenario::create_maps_as(peer, &what, connections, lasts);
    for (plural, configuration) in webhooks() {
        let name = configuration["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        peer.ask("DELETE", &format!("{GROUP}/{plural}/{name}"), "")?;
    }
    figures
}

/// Webhook configurations that match no ConfigMap: their resources and bodies.
pub(crate) fn webhooks() -> impl Iterator<Item = (&'static str, Value)> {
    let each = |plural: &'static str| {
        (0..WEBHOOKS).map(move |number| {
            let name = format!("bench-{number}.example.com");
            let webhook = json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": "https://127.0.0.1:1/never"}, "failurePolicy": "Fail",
                "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["apps", ""], "apiVersions": ["*"],
                    "resources": ["deployments", "secrets"], "scope": "*"}]});
            (plural, json!({"metadata": {"name": name}, "webhooks": [webhook]}))
        })
    };
    let validating = each("validatingwebhookconfigurations");
    validating.chain(each("mutatingwebhookconfigurations"))
}

pub(crate) fn definition(group: &str) -> Value {
    let properties: serde_json::Map<String, Value> = (0..RULES)
        .map(|i| {
            (
                format!("field{i}"),
                json!({"type": "string", "maxLength": 64}),
            )
        })
        .collect();
    let rules: Vec<Value> = (0..RULES)
        .map(|i| json!({"rule": format!("!has(self.field{i}) || self.field{i}.startsWith('x')"), "message": "must start with x"}))
        .collect();
    json!({
        "metadata": {"name": format!("ruled.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "ruled", "singular": "rule", "kind": "Rule", "listKind": "RuleList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": properties,
                    "x-kubernetes-validations": rules}}}}}],
        },
    })
}

/// Creates of a custom resource whose definition has fifty rules.
pub(crate) fn create_ruled(
    peer: &Peer,
    connections: usize,
    lasts: Duration,
) -> anyhow::Result<Figures> {
    // A new group each time: deleting a definition with objects is slow.
    let group = format!("g{:x}.example.com", scenario::nanoseconds());
    peer.ask("POST", DEFINITIONS, &definition(&group).to_string())?;
    let path = scenario::path("ruled").replace("/api/v1/", &format!("/apis/{group}/v1/"));
    until(|| peer.ask("GET", &path, "").is_ok())?;
    let spec: serde_json::Map<String, Value> = (0..RULES)
        .map(|i| (format!("field{i}"), json!("x")))
        .collect();
    let body = json!({"apiVersion": format!("{group}/v1"), "kind": "Rule",
        "metadata": {"name": scenario::unique()}, "spec": spec});
    let requests = scenario::creates_at(peer, &path, &body.to_string());
    let what = "create custom, 50 rules";
    let figures = load::run(peer, what, connections, lasts, &requests);
    peer.ask("DELETE", &format!("{DEFINITIONS}/ruled.{group}"), "")?;
    figures
}
