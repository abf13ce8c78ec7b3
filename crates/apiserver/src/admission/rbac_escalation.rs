//! Nobody gives away what they do not have: whoever writes a role needs all of its rules or the verb
//! `escalate` on it, whoever binds a role needs all of its rules or the verb `bind` on it.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Plugin};
use crate::{
    authz::{self, Index, Rbac, Rule, uncovered},
    user,
};

pub const NAME: &str = "RBACEscalation";

const GROUP: &str = "rbac.authorization.k8s.io";

pub struct RbacEscalation {
    rbac: Rbac,
}

impl RbacEscalation {
    pub fn new(rbac: Rbac) -> Self {
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
        check(&self.rbac.index(), attributes, object).map_err(|why| attributes.forbidden(&why))
    }
}

fn check(index: &Index, attributes: &Attributes<'_>, object: &Object) -> Result<(), String> {
    let unchanged = |field: &str| {
        let old = attributes.old.map(|old| tree::get(old, field));
        old.is_some_and(|old| tree::same(old, tree::get(object, field)))
    };
    match attributes.resource {
        "roles" | "clusterroles" => {
            if unchanged("rules") && unchanged("aggregationRule") {
                return Ok(());
            }
            let name = tree::name(object);
            if may(
                index,
                attributes,
                "escalate",
                attributes.resource,
                attributes.namespace,
                name,
            ) {
                return Ok(());
            }
            let mut wanted = rules(tree::get(object, "rules"));
            if !tree::is_empty(tree::get(object, "aggregationRule")) {
                // Such a role can come to hold anything.
                wanted.push(everything());
                wanted.push(Rule {
                    verbs: vec!["*".to_owned()],
                    paths: vec!["*".to_owned()],
                    ..Rule::default()
                });
            }
            holds(index, attributes, &wanted)
        }
        _ => {
            if unchanged("subjects") && unchanged("roleRef") {
                return Ok(());
            }
            bind(index, attributes, tree::get(object, "roleRef"))
        }
    }
}

fn everything() -> Rule {
    let all = || vec!["*".to_owned()];
    Rule {
        verbs: all(),
        groups: all(),
        resources: all(),
        ..Rule::default()
    }
}

fn bind(index: &Index, attributes: &Attributes<'_>, role: &Value) -> Result<(), String> {
    let name = tree::text(&role["name"]);
    let (resource, namespace) = match tree::text(&role["kind"]) {
        "Role" => ("roles", attributes.namespace),
        _ => ("clusterroles", ""),
    };
    if may(
        index,
        attributes,
        "bind",
        resource,
        attributes.namespace,
        name,
    ) {
        return Ok(());
    }
    let Some(wanted) = index.role(namespace, name) else {
        let kind = resource.trim_end_matches('s');
        return Err(format!("{kind}.{GROUP} {name:?} not found"));
    };
    holds(index, attributes, wanted)
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

fn rules(json: &Value) -> Vec<Rule> {
    tree::list(json).iter().map(Rule::of).collect()
}

fn holds(index: &Index, attributes: &Attributes<'_>, wanted: &[Rule]) -> Result<(), String> {
    let owned = index.rules_for(attributes.user, attributes.namespace);
    let missing = uncovered(&owned, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let user = attributes.user;
    let missing: Vec<String> = missing
        .iter()
        .map(|rule| rule.to_json().to_string())
        .collect();
    Err(format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        user.groups,
        missing.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{
        admission::Operation,
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
    async fn a_role_can_be_bound_by_those_who_have_it_or_may_bind_it() {
        let case = Case::new(Operation::Create, GROUP, "rolebindings").named("team", "x");
        let binding = |role: &str| json!({"roleRef": {"kind": "ClusterRole", "name": role}});
        assert!(ask(&case, binding("reader")).await && ask(&case, binding("edit")).await);
        assert!(!ask(&case, binding("cluster-admin")).await && !ask(&case, binding("gone")).await);
    }
}
