//! Rules: operations on resources, by group, version, name and scope, with wildcards.

use kinds::tree;
use machinery::Value;

use super::{Attributes, GroupVersionResource, Matched};
use crate::Operation;

/// Whether other versions of the same objects match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatchPolicy {
    Exact,
    #[default]
    Equivalent,
}

impl MatchPolicy {
    pub fn read(value: &Value) -> Self {
        match value.as_str() {
            Some("Exact") => Self::Exact,
            _ => Self::Equivalent,
        }
    }
}

/// The rules of a webhook or a policy; a request must match one of them.
#[derive(Debug, Default)]
pub struct ResourceRules {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    operations: Words,
    groups: Words,
    versions: Words,
    /// Resources with their subresources; without one, the object itself.
    resources: Vec<(Word, Word)>,
    scope: Scope,
    /// Names of objects; empty for all.
    names: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
enum Scope {
    Any,
    Namespaced,
    Cluster,
}

#[derive(Debug)]
enum Word {
    Any,
    One(String),
}

impl Word {
    fn read(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            text => Self::One(text.to_owned()),
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::One(own) => machinery::text::same(own, text),
        }
    }
}

#[derive(Debug)]
struct Words(Vec<Word>);

impl Words {
    fn read(list: &Value) -> Self {
        Self(texts(list).map(Word::read).collect())
    }

    fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|word| word.matches(text))
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    tree::list(list).iter().filter_map(Value::as_str)
}

impl Rule {
    fn read(rule: &Value) -> Self {
        let resources = texts(&rule["resources"]).map(|text| {
            let (resource, sub) = text.split_once('/').unwrap_or((text, ""));
            (Word::read(resource), Word::read(sub))
        });
        Self {
            operations: Words::read(&rule["operations"]),
            groups: Words::read(&rule["apiGroups"]),
            versions: Words::read(&rule["apiVersions"]),
            resources: resources.collect(),
            scope: match rule["scope"].as_str() {
                Some("Namespaced") => Scope::Namespaced,
                Some("Cluster") => Scope::Cluster,
                _ => Scope::Any,
            },
            names: texts(&rule["resourceNames"]).map(str::to_owned).collect(),
        }
    }

    fn matches(&self, attributes: &Attributes<'_>, resource: &GroupVersionResource<'_>) -> bool {
        self.matches_scope(attributes.namespace, resource)
            && self.operations.matches(attributes.operation.name())
            && self.groups.matches(resource.group)
            && self.versions.matches(resource.version)
            && self.resources.iter().any(|(own, sub)| {
                own.matches(resource.resource) && sub.matches(attributes.subresource)
            })
            && (self.names.is_empty() || self.names.iter().any(|name| name == attributes.name))
    }

    fn matches_scope(&self, namespace: &str, resource: &GroupVersionResource<'_>) -> bool {
        let is_namespace = resource.group.is_empty()
            && resource.version == "v1"
            && resource.resource == "namespaces";
        let is_cluster_scoped = is_namespace || namespace.is_empty();
        match self.scope {
            Scope::Any => true,
            Scope::Namespaced => !is_cluster_scoped,
            Scope::Cluster => is_cluster_scoped,
        }
    }
}

impl ResourceRules {
    /// From `rules` of a webhook or `resourceRules` of a policy.
    pub fn read(rules: &Value) -> Self {
        Self {
            rules: tree::list(rules).iter().map(Rule::read).collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a rule matches the request's own version.
    pub fn matches(&self, attributes: &Attributes<'_>) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.matches(attributes, &attributes.resource))
    }

    /// The version of the request that a rule matches: its own first, then another one, by the
    /// first rule that has one.
    pub fn find<'a>(
        &self,
        attributes: &Attributes<'a>,
        policy: MatchPolicy,
        equivalents: impl FnOnce() -> Vec<Matched<'a>>,
    ) -> Option<Matched<'a>> {
        if self.matches(attributes) {
            return Some(attributes.own());
        }
        if policy == MatchPolicy::Exact || self.rules.is_empty() {
            return None;
        }
        let equivalents = equivalents();
        let mut others = self.rules.iter().flat_map(|rule| {
            let others = equivalents.iter();
            others.filter(move |other| {
                other.resource != attributes.resource && rule.matches(attributes, &other.resource)
            })
        });
        others.next().copied()
    }

    /// The resources that the rules name, or `None` if a rule matches every resource.
    pub fn resources(&self) -> Option<Vec<&str>> {
        let all = self.rules.iter().flat_map(|rule| &rule.resources);
        all.map(|(resource, _)| match resource {
            Word::Any => None,
            Word::One(name) => Some(name.as_str()),
        })
        .collect()
    }

    /// Whether a rule has this operation.
    pub fn handles(&self, operation: Operation) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.operations.matches(operation.name()))
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::{matching::GroupVersionKind, testing::Case};

    fn rule(groups: &str, versions: &str, resources: &str, scope: &str) -> Value {
        json!([{"operations": ["CREATE", "CONNECT"], "apiGroups": [groups], "apiVersions": [versions],
            "resources": [resources], "scope": scope}])
    }

    #[test]
    fn rules_match_by_group_version_resource_operation_and_scope() {
        for (rules, resource, subresource, namespace, expected) in [
            (
                rule("apps", "v1", "deployments", "*"),
                "deployments",
                "",
                "a",
                true,
            ),
            (rule("*", "*", "*", "*"), "deployments", "", "a", true),
            (rule("*", "*", "*", "*"), "deployments", "scale", "a", false),
            (
                rule("*", "*", "*/*", "*"),
                "deployments",
                "scale",
                "a",
                true,
            ),
            (rule("*", "*", "*/*", "*"), "deployments", "", "a", true),
            (
                rule("*", "*", "*/scale", "*"),
                "deployments",
                "scale",
                "a",
                true,
            ),
            (
                rule("*", "*", "deployments/*", "*"),
                "deployments",
                "",
                "a",
                true,
            ),
            (rule("", "*", "*", "*"), "deployments", "", "a", false),
            (rule("apps", "v2", "*", "*"), "deployments", "", "a", false),
            (
                rule("*", "*", "*", "Cluster"),
                "deployments",
                "",
                "a",
                false,
            ),
            (rule("*", "*", "*", "Cluster"), "deployments", "", "", true),
            (
                rule("*", "*", "*", "Namespaced"),
                "deployments",
                "",
                "a",
                true,
            ),
            (
                rule("*", "*", "*", "Namespaced"),
                "deployments",
                "",
                "",
                false,
            ),
        ] {
            let mut case = Case::new(Operation::Create, "apps", resource).named(namespace, "web");
            case.subresource = subresource;
            let given = case.attributes();
            let found = ResourceRules::read(&rules).matches(&Attributes::new(&given, None));
            assert_eq!(
                found, expected,
                "{rules} {resource}/{subresource} {namespace:?}"
            );
        }
        let case = Case::new(Operation::Update, "apps", "deployments").named("a", "web");
        let given = case.attributes();
        let rules = ResourceRules::read(&rule("*", "*", "*", "*"));
        assert!(!rules.matches(&Attributes::new(&given, None)));
    }

    #[test]
    fn a_namespace_is_cluster_scoped_although_it_is_in_itself() {
        let case = Case::new(Operation::Create, "", "namespaces").named("", "here");
        let given = case.attributes();
        for (scope, expected) in [("Cluster", true), ("Namespaced", false), ("*", true)] {
            let rules = ResourceRules::read(&rule("*", "*", "*", scope));
            let found = rules.matches(&Attributes::new(&given, None));
            assert_eq!(found, expected, "{scope}");
        }
    }

    #[test]
    fn another_version_matches_only_where_equivalent_ones_do() {
        let case = Case::new(Operation::Create, "apps", "deployments").named("a", "web");
        let given = case.attributes();
        let attributes = Attributes::new(&given, None);
        let other = Matched {
            resource: GroupVersionResource {
                group: "extensions",
                version: "v1beta1",
                resource: "deployments",
            },
            kind: GroupVersionKind::new("extensions/v1beta1", "Deployment"),
        };
        let rules = ResourceRules::read(&rule("extensions", "*", "deployments", "*"));
        let both = || vec![attributes.own(), other];
        let found = rules.find(&attributes, MatchPolicy::Equivalent, both);
        assert_eq!(found, Some(other));
        assert_eq!(rules.find(&attributes, MatchPolicy::Exact, both), None);
        let own = ResourceRules::read(&rule("apps", "v1", "deployments", "*"));
        let found = own.find(&attributes, MatchPolicy::Equivalent, both);
        assert_eq!(found, Some(attributes.own()));
    }

    #[test]
    fn names_narrow_a_rule() {
        let case = Case::new(Operation::Create, "apps", "deployments").named("a", "web");
        let given = case.attributes();
        for (names, expected) in [(json!(["web"]), true), (json!(["other"]), false)] {
            let mut rules = rule("*", "*", "*", "*");
            rules[0]["resourceNames"] = names;
            let found = ResourceRules::read(&rules).matches(&Attributes::new(&given, None));
            assert_eq!(found, expected, "{rules}");
        }
    }
}
