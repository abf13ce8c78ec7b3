//! The default FlowSchemas and PriorityLevelConfigurations. Two of each are mandatory:
//! administrators are exempt, and catch-all matches everything else. The others are suggested.

use machinery::{
    Object, Value,
    json::{Map, json},
};

/// The annotation that says whether an object's spec follows the server's defaults.
pub(super) const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

pub(super) const EXEMPT: &str = "exempt";
pub(super) const CATCH_ALL: &str = "catch-all";

/// A default object.
pub(super) struct Default {
    pub(super) is_mandatory: bool,
    pub(super) object: Object,
}

fn default(kind: &str, name: &str, spec: Value) -> Default {
    let object = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}},
        "spec": spec,
    });
    Default {
        is_mandatory: [EXEMPT, CATCH_ALL].contains(&name),
        object: object.as_object().cloned().unwrap_or_else(Map::new),
    }
}

/// The priority levels.
pub(super) fn levels() -> Vec<Default> {
    let level = |name, spec| default("PriorityLevelConfiguration", name, spec);
    let limited = |name, shares: i64, lendable: i64, response: Value| {
        let limited = json!({
            "nominalConcurrencyShares": shares,
            "lendablePercent": lendable,
            "limitResponse": response,
        });
        level(name, json!({"type": "Limited", "limited": limited}))
    };
    let queue = |queues: i64, hand: i64| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        json!({"type": "Queue", "queuing": queuing})
    };
    let exempt = json!({"nominalConcurrencyShares": 0, "lendablePercent": 0});
    vec![
        level(EXEMPT, json!({"type": "Exempt", "exempt": exempt})),
        limited(CATCH_ALL, 5, 0, json!({"type": "Reject"})),
        limited("system", 30, 33, queue(64, 6)),
        limited("node-high", 40, 25, queue(64, 6)),
        limited("leader-election", 10, 0, queue(16, 4)),
        limited("workload-high", 40, 50, queue(128, 6)),
        limited("workload-low", 100, 90, queue(128, 6)),
        limited("global-default", 20, 50, queue(128, 6)),
    ]
}

fn groups(names: &[&str]) -> Vec<Value> {
    let group = |name: &&str| json!({"kind": "Group", "group": {"name": *name}});
    names.iter().map(group).collect()
}

fn users(names: &[&str]) -> Vec<Value> {
    let user = |name: &&str| json!({"kind": "User", "user": {"name": *name}});
    names.iter().map(user).collect()
}

fn kube_system() -> Vec<Value> {
    let account = json!({"namespace": "kube-system", "name": "*"});
    vec![json!({"kind": "ServiceAccount", "serviceAccount": account})]
}

/// A rule for a group's resources in every namespace.
fn resources(verbs: &[&str], group: &str, names: &[&str], cluster_scope: bool) -> Value {
    let mut rule = json!({
        "verbs": verbs, "apiGroups": [group], "resources": names, "namespaces": ["*"],
    });
    if cluster_scope {
        rule["clusterScope"] = true.into();
    }
    rule
}

/// Rules for everything by these subjects.
fn everything(subjects: Vec<Value>) -> Value {
    json!([{
        "subjects": subjects,
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }])
}

/// The flow schemas in the order of precedence.
pub(super) fn schemas() -> Vec<Default> {
    let schema = |name, level: &str, precedence: i64, by: &str, rules: Value| {
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level},
            "matchingPrecedence": precedence,
            "rules": rules,
        });
        if !by.is_empty() {
            spec["distinguisherMethod"] = json!({"type": by});
        }
        default("FlowSchema", name, spec)
    };
    let everybody = || groups(&["system:unauthenticated", "system:authenticated"]);
    let (manager, scheduler) = ("system:kube-controller-manager", "system:kube-scheduler");
    let elects = [users(&[manager, scheduler]), kube_system()].concat();
    let leases = |verbs: &[&str]| resources(verbs, "coordination.k8s.io", &["leases"], false);
    let nodes = || groups(&["system:nodes"]);
    let probes = json!([{
        "subjects": everybody(),
        "nonResourceRules": [
            {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]},
        ],
    }]);
    let election = json!([{
        "subjects": elects,
        "resourceRules": [leases(&["get", "create", "update"])],
    }]);
    let heartbeats = json!([{
        "subjects": nodes(),
        "resourceRules": [
            resources(&["*"], "", &["nodes", "nodes/status"], true),
            leases(&["*"]),
        ],
    }]);
    let (user, namespace) = ("ByUser", "ByNamespace");
    let high = "workload-high";
    vec![
        schema(
            EXEMPT,
            EXEMPT,
            1,
            "",
            everything(groups(&["system:masters"])),
        ),
        schema("probes", EXEMPT, 2, "", probes),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            user,
            election,
        ),
        schema("system-node-high", "node-high", 400, user, heartbeats),
        schema("system-nodes", "system", 500, user, everything(nodes())),
        schema(
            "kube-controller-manager",
            high,
            800,
            namespace,
            everything(users(&[manager])),
        ),
        schema(
            "kube-scheduler",
            high,
            800,
            namespace,
            everything(users(&[scheduler])),
        ),
        schema(
            "kube-system-service-accounts",
            high,
            900,
            namespace,
            everything(kube_system()),
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            user,
            everything(groups(&["system:serviceaccounts"])),
        ),
        schema(
            "global-default",
            "global-default",
            9900,
            user,
            everything(everybody()),
        ),
        schema(CATCH_ALL, CATCH_ALL, 10_000, user, everything(everybody())),
    ]
}
