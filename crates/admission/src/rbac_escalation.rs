//! Prevents privilege escalation through RBAC objects. Writing a role needs every permission in it or the verb
//! `escalate` on it; writing a binding needs every permission of its role or the verb `bind` on that role. Only
//! an update that touches nothing but finalizers and owner references (the garbage collector's) is exempt: a
//! label alone can make an aggregated ClusterRole take over all rules of the labelled one.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};
use crate::{
    authz::{self, Index, Rbac, Rule, uncovered},
    user,
};

pub(crate) const NAME: &str = "RBACEscalation";

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) struct RbacEscalation {
    rbac: Rbac,
}

impl RbacEscalation {
    pub(crate) fn new(rbac: Rbac) -> Self {
        Self { rbac }
    }
}

#[async_trait]
impl Plugin for RbacEscalation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        [
            "roles",
            "clusterroles",
            "rolebindings",
            "clusterrolebindings",
        ]
        .iter()
        .any(|resource| attributes.is_write_of(GROUP, resource))
            && !attributes.user.is_in(user::MASTERS)
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if attributes.old.is_some_and(|old| collects_only(object, old)) {
            return Ok(());
        }
        let index = self.rbac.index();
        match attributes.resource {
            "roles" | "clusterroles" => check_role(&index, attributes, object),
            _ => check_binding(&index, attributes, tree::get(object, "roleRef")),
        }
    }
}

/// Whether an update changes only what the garbage collector needs to delete the object.
fn collects_only(object: &Object, old: &Object) -> bool {
    let rest = |object: &Object| {
        let mut rest = object.clone();
        if let Some(metadata) = rest.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in [
                "ownerReferences",
                "finalizers",
                "managedFields",
                "selfLink",
                "resourceVersion",
            ] {
                metadata.shift_remove(field);
            }
        }
        Value::Object(rest)
    };
    tree::same(&rest(object), &rest(old))
}

fn check_role(index: &Index, attributes: &Attributes<'_>, role: &Object) -> Result<(), Status> {
    // On create the name is not authorized: a permission for one name does not cover it.
    let name = match attributes.operation {
        Operation::Create => "",
        _ => attributes.name,
    };
    let (resource, namespace) = (attributes.resource, attributes.namespace);
    if may(index, attributes, "escalate", resource, namespace, name) {
        return Ok(());
    }
    let wanted: Vec<Rule> = tree::list(tree::get(role, "rules"))
        .iter()
        .map(Rule::from_json)
        .collect();
    check_held(index, attributes, &wanted)?;
    // An aggregated role can obtain any rule, and a writer of one can prevent it from shrinking.
    let old = attributes.old.is_some_and(has_aggregation_rule);
    if (old || has_aggregation_rule(role)) && !lacks(index, attributes, &everything()).is_empty() {
        let why = "must have cluster-admin privileges to use the aggregationRule";
        return Err(attributes.forbidden(why));
    }
    Ok(())
}

fn has_aggregation_rule(role: &Object) -> bool {
    !tree::list(&tree::get(role, "aggregationRule")["clusterRoleSelectors"]).is_empty()
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule {
            verbs: all(),
            groups: all(),
            resources: all(),
            ..Rule::default()
        },
        Rule {
            verbs: all(),
            paths: all(),
            ..Rule::default()
        },
    ]
}

fn check_binding(index: &Index, attributes: &Attributes<'_>, role: &Value) -> Result<(), Status> {
    let name = tree::text(&role["name"]);
    let (resource, namespace) = match tree::text(&role["kind"]) {
        "Role" => ("roles", attributes.namespace),
        _ => ("clusterroles", ""),
    };
    let here = attributes.namespace;
    if may(index, attributes, "bind", resource, here, name) {
        return Ok(());
    }
    match index.role(namespace, name) {
        Some(wanted) => check_held(index, attributes, wanted),
        None => Err(Status::not_found(GROUP, resource, name)),
    }
}

fn may(
    index: &Index,
    attributes: &Attributes<'_>,
    verb: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> bool {
    index.allows(&authz::Attributes {
        user: attributes.user,
        verb,
        is_resource: true,
        group: GROUP,
        version: "v1",
        resource,
        subresource: "",
        namespace,
        name,
        path: "",
        field_selector: "",
        label_selector: "",
    })
}

/// The rules that the user does not hold.
fn lacks(index: &Index, attributes: &Attributes<'_>, wanted: &[Rule]) -> Vec<Rule> {
    let held = index.rules_for(attributes.user, attributes.namespace);
    uncovered(&held, wanted)
}

fn check_held(index: &Index, attributes: &Attributes<'_>, wanted: &[Rule]) -> Result<(), Status> {
    let missing = lacks(index, attributes, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let mut missing: Vec<String> = compact(missing).iter().map(ToString::to_string).collect();
    missing.sort();
    missing.dedup();
    let user = attributes.user;
    let groups: Vec<String> = user
        .groups
        .iter()
        .map(|group| format!("{group:?}"))
        .collect();
    let complaint = index.complaint(user, attributes.namespace);
    let unresolved = match complaint.strip_prefix("RBAC: ") {
        Some(roles) => format!("; resolution errors: [{roles}]"),
        None => String::new(),
    };
    let why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}{unresolved}",
        user.name,
        groups.join(" "),
        missing.join("\n")
    );
    Err(attributes.forbidden(&why))
}

/// Merges rules that differ only in their verbs.
fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut compact: Vec<Rule> = Vec::new();
    for rule in rules {
        let alike = |known: &&mut Rule| {
            known.paths.is_empty()
                && (&known.groups, &known.resources, &known.names)
                    == (&rule.groups, &rule.resources, &rule.names)
        };
        match compact.iter_mut().find(alike) {
            Some(known) if rule.paths.is_empty() => known.verbs.extend(rule.verbs),
            _ => compact.push(rule),
        }
    }
    compact
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        Operation,
        testing::{Case, object},
    };

    async fn ask(case: &Case, json: Value) -> bool {
        for (plural, json) in [
            (
                "clusterroles",
                json!({"metadata": {"name": "reader"}, "rules": [
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
            ),
            (
                "clusterroles",
                json!({"metadata": {"name": "binder"}, "rules": [
                {"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"],
                 "resourceNames": ["edit"]}]}),
            ),
            (
                "clusterrolebindings",
                json!({"metadata": {"name": "one"},
                "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "User", "name": "eve"}]}),
            ),
            (
                "clusterrolebindings",
                json!({"metadata": {"name": "two"},
                "roleRef": {"kind": "ClusterRole", "name": "binder"},
                "subjects": [{"kind": "User", "name": "eve"}]}),
            ),
        ] {
            case.world.put(GROUP, plural, json).await;
        }
        let rbac = Rbac::new(case.world.reader.clone());
        rbac.refresh().await.unwrap();
        let plugin = RbacEscalation::new(rbac);
        let object = object(json);
        let attributes = case.attributes();
        assert!(plugin.handles(&attributes));
        plugin.validate(&attributes, Some(&object)).await.is_ok()
    }

    #[tokio::test]
    async fn a_role_can_be_written_with_rules_that_its_writer_has() {
        let case = Case::new(Operation::Create, GROUP, "roles").named("team", "x");
        let role = |verb: &str| json!({"rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}]});
        assert!(ask(&case, role("get")).await);
        assert!(!ask(&case, role("delete")).await && !ask(&case, role("*")).await);
        let cluster = Case::new(Operation::Create, GROUP, "clusterroles").named("", "x");
        let gathering = json!({"aggregationRule": {"clusterRoleSelectors": [{}]}});
        assert!(!ask(&cluster, gathering).await);
    }

    #[tokio::test]
    async fn any_change_of_a_role_needs_its_rules_but_not_one_of_the_garbage_collector() {
        let old = json!({"metadata": {"name": "x", "uid": "1"}, "rules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
        let mut case = Case::new(Operation::Update, GROUP, "clusterroles").named("", "x");
        case.old = Some(object(old.clone()));
        let with = |field: &str, value: Value| {
            let mut new = old.clone();
            new["metadata"][field] = value;
            new
        };
        for (new, allowed) in [
            (with("finalizers", json!(["a/b"])), true),
            (with("ownerReferences", json!([{"uid": "2"}])), true),
            (with("labels", json!({"to-view": "true"})), false),
            (with("annotations", json!({"a": "b"})), false),
        ] {
            assert_eq!(ask(&case, new.clone()).await, allowed, "{new}");
        }
        let aggregated = json!({"metadata": {"name": "x"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
        case.old = Some(object(aggregated));
        assert!(
            !ask(&case, json!({"metadata": {"name": "x"}})).await,
            "who drops the rule keeps the aggregate from shrinking"
        );
    }

    #[test]
    fn missing_permissions_are_reported_in_compact_rules() {
        let rule = |verb: &str, resource: &str| Rule {
            verbs: vec![verb.to_owned()],
            groups: vec![String::new()],
            resources: vec![resource.to_owned()],
            ..Rule::default()
        };
        let rules = [
            rule("get", "pods"),
            rule("get", "nodes"),
            rule("list", "pods"),
        ];
        let missing: Vec<String> = compact(rules.into()).iter().map(Rule::to_string).collect();
        assert_eq!(
            missing,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#,
                r#"{APIGroups:[""], Resources:["nodes"], Verbs:["get"]}"#,
            ]
        );
    }

    #[tokio::test]
    async fn a_role_can_be_bound_by_users_with_its_permissions_or_the_bind_verb() {
        let case = Case::new(Operation::Create, GROUP, "rolebindings").named("team", "x");
        let binding = |role: &str| json!({"roleRef": {"kind": "ClusterRole", "name": role}});
        assert!(ask(&case, binding("reader")).await && ask(&case, binding("edit")).await);
        assert!(!ask(&case, binding("cluster-admin")).await && !ask(&case, binding("gone")).await);
    }
}
