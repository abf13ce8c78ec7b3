//! The default roles and bindings of every cluster, parsed from `policy.txt`.

use std::sync::LazyLock;

use machinery::json::json;
use machinery::{Object, Value};

use super::rules::Rule;

const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const BOOTSTRAPPING: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");

/// A default role.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Empty for a ClusterRole.
    pub namespace: String,
    pub name: String,
    pub labels: Vec<String>,
    /// Labels of the roles that it aggregates.
    pub gathers: Vec<String>,
    pub rules: Vec<Rule>,
}

/// A default binding.
#[derive(Debug, PartialEq, Eq)]
pub struct Binding {
    /// Empty for a ClusterRoleBinding.
    pub namespace: String,
    pub name: String,
    pub role: String,
    pub subjects: Vec<Subject>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Subject {
    User(String),
    Group(String),
    Account { namespace: String, name: String },
}

/// All defaults.
#[derive(Debug, Default)]
pub struct Policy {
    pub roles: Vec<Role>,
    pub bindings: Vec<Binding>,
}

/// The defaults of every cluster.
pub static DEFAULTS: LazyLock<Policy> = LazyLock::new(|| parse(include_str!("policy.txt")));

/// Roles and bindings that exist only where an optional resource, by group and plural, is served.
pub static OPTIONAL: LazyLock<[(&str, &str, Policy); 1]> = LazyLock::new(|| {
    [(
        "storagemigration.k8s.io",
        "storageversionmigrations",
        parse(STORAGE_VERSION_MIGRATOR),
    )]
});

/// Applying a deleted object is a request to create it, which its uid as a precondition rejects.
const STORAGE_VERSION_MIGRATOR: &str = "\
controller storage-version-migrator-controller
  list create patch on * in *
  get on customresourcedefinitions in apiextensions.k8s.io
  patch on customresourcedefinitions/status in apiextensions.k8s.io
  update on storageversionmigrations/status in storagemigration.k8s.io
";

/// A default ClusterRole.
pub fn cluster_role(name: &str) -> Option<&'static Role> {
    DEFAULTS
        .roles
        .iter()
        .find(|role| role.namespace.is_empty() && role.name == name)
}

/// Lines with their continuations and without comments; the flag says whether a line is indented.
fn lines(text: &str) -> Vec<(bool, String)> {
    let mut lines: Vec<(bool, String)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        match (line.starts_with("    "), lines.last_mut()) {
            (true, Some((_, last))) => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => lines.push((line.starts_with(' '), line.trim().to_owned())),
        }
    }
    lines
}

fn split_list(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// An optional namespace and a name.
fn namespace_and_name(text: &str) -> (String, String) {
    let (namespace, name) = text.split_once('/').unwrap_or(("", text));
    (namespace.to_owned(), name.to_owned())
}

fn parse(text: &str) -> Policy {
    let mut policy = Policy::default();
    for (indented, line) in lines(text) {
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match (indented, first, policy.roles.last_mut()) {
            (false, "role", _) => {
                let (namespace, name) = namespace_and_name(rest);
                policy.roles.push(Role {
                    namespace,
                    name,
                    ..Role::default()
                });
            }
            (false, "controller", _) => {
                let name = format!("system:controller:{rest}");
                policy.bindings.push(Binding {
                    namespace: String::new(),
                    role: name.clone(),
                    name: name.clone(),
                    subjects: vec![Subject::Account {
                        namespace: "kube-system".to_owned(),
                        name: rest.to_owned(),
                    }],
                });
                policy.roles.push(Role {
                    name,
                    ..Role::default()
                });
            }
            (false, "bind", _) => policy.bindings.push(binding(rest)),
            (true, "label", Some(role)) => role.labels.push(rest.to_owned()),
            (true, "gather", Some(role)) => role.gathers.push(rest.to_owned()),
            (true, _, Some(role)) => role.rules.push(rule(&line)),
            // The file is part of the program, and a test parses it.
            _ => debug_assert!(false, "policy.txt: {line}"),
        }
    }
    policy
}

fn binding(text: &str) -> Binding {
    let (head, subjects) = text.split_once(" to").unwrap_or((text, ""));
    let (name, role) = head.split_once(" as ").unwrap_or((head, head));
    let (namespace, name) = namespace_and_name(name);
    let subject = |text: String| match text.split_once(':') {
        Some(("group", name)) => Subject::Group(name.to_owned()),
        Some(("account", name)) => {
            let (namespace, name) = namespace_and_name(name);
            Subject::Account { namespace, name }
        }
        Some((_, name)) => Subject::User(name.to_owned()),
        None => Subject::User(text),
    };
    let subjects = split_list(subjects).into_iter().map(subject).collect();
    Binding {
        namespace,
        name,
        role: role.to_owned(),
        subjects,
    }
}

fn rule(text: &str) -> Rule {
    if let Some((verbs, paths)) = text.split_once(" at ") {
        return Rule {
            verbs: split_list(verbs),
            paths: split_list(paths),
            ..Rule::default()
        };
    }
    let (verbs, rest) = text.split_once(" on ").unwrap_or((text, ""));
    let (resources, rest) = rest.split_once(" in ").unwrap_or((rest, ""));
    let (groups, names) = rest.split_once(" named ").unwrap_or((rest, ""));
    let core = |group: String| {
        if group == "core" {
            String::new()
        } else {
            group
        }
    };
    Rule {
        verbs: split_list(verbs),
        groups: split_list(groups).into_iter().map(core).collect(),
        resources: split_list(resources),
        names: split_list(names),
        paths: Vec::new(),
    }
}

fn metadata(namespace: &str, name: &str, labels: &[String]) -> Value {
    let mut all = Object::new();
    all.insert(BOOTSTRAPPING.0.to_owned(), BOOTSTRAPPING.1.into());
    all.extend(labels.iter().map(|label| (label.clone(), "true".into())));
    let mut metadata = Object::new();
    metadata.insert("name".to_owned(), name.into());
    if !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    metadata.insert("labels".to_owned(), all.into());
    metadata.insert("annotations".to_owned(), json!({AUTOUPDATE: "true"}));
    metadata.into()
}

impl Role {
    /// The plural name of its kind.
    pub fn resource(&self) -> &'static str {
        if self.namespace.is_empty() {
            "clusterroles"
        } else {
            "roles"
        }
    }

    /// As an API object.
    pub fn to_object(&self) -> Object {
        let kind = if self.namespace.is_empty() {
            "ClusterRole"
        } else {
            "Role"
        };
        let mut object = Object::new();
        object.insert("apiVersion".to_owned(), format!("{GROUP}/v1").into());
        object.insert("kind".to_owned(), kind.into());
        object.insert(
            "metadata".to_owned(),
            metadata(&self.namespace, &self.name, &self.labels),
        );
        if self.gathers.is_empty() {
            let rules: Vec<Value> = self.rules.iter().map(Rule::to_json).collect();
            object.insert("rules".to_owned(), rules.into());
        } else {
            let selectors = self
                .gathers
                .iter()
                .map(|key| json!({"matchLabels": {key: "true"}}));
            let selectors: Vec<Value> = selectors.collect();
            object.insert(
                "aggregationRule".to_owned(),
                json!({"clusterRoleSelectors": selectors}),
            );
        }
        object
    }
}

impl Binding {
    /// The plural name of its kind.
    pub fn resource(&self) -> &'static str {
        if self.namespace.is_empty() {
            "clusterrolebindings"
        } else {
            "rolebindings"
        }
    }

    /// As an API object.
    pub fn to_object(&self) -> Object {
        let (kind, role) = match self.namespace.as_str() {
            "" => ("ClusterRoleBinding", "ClusterRole"),
            _ => ("RoleBinding", "Role"),
        };
        let mut object = Object::new();
        object.insert("apiVersion".to_owned(), format!("{GROUP}/v1").into());
        object.insert("kind".to_owned(), kind.into());
        object.insert(
            "metadata".to_owned(),
            metadata(&self.namespace, &self.name, &[]),
        );
        if !self.subjects.is_empty() {
            let subjects: Vec<Value> = self.subjects.iter().map(Subject::to_json).collect();
            object.insert("subjects".to_owned(), subjects.into());
        }
        let role = json!({"apiGroup": GROUP, "kind": role, "name": self.role});
        object.insert("roleRef".to_owned(), role);
        object
    }
}

impl Subject {
    fn to_json(&self) -> Value {
        match self {
            Self::User(name) => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
            Self::Group(name) => json!({"kind": "Group", "apiGroup": GROUP, "name": name}),
            Self::Account { namespace, name } => {
                json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_default_rule_has_verbs_and_resources_or_paths() {
        let policy = &*DEFAULTS;
        for role in &policy.roles {
            for rule in &role.rules {
                let resources = !rule.resources.is_empty() && !rule.groups.is_empty();
                assert!(
                    !rule.verbs.is_empty() && resources == rule.paths.is_empty(),
                    "{rule:?}"
                );
            }
            assert!(
                !role.rules.is_empty() || !role.gathers.is_empty(),
                "{}",
                role.name
            );
        }
        for binding in &policy.bindings {
            let role = policy
                .roles
                .iter()
                .find(|role| role.name == binding.role && role.namespace == binding.namespace);
            assert!(role.is_some(), "{} binds {}", binding.name, binding.role);
        }
        let basic = cluster_role("system:basic-user").unwrap();
        assert_eq!(basic.rules[0].verbs, ["create"]);
    }

    /// A comparable form: by kind, namespace and name, with sorted lists.
    fn normal(object: &Value) -> (String, Value) {
        let mut object = object.clone();
        let metadata = &object["metadata"];
        let key = format!(
            "{} {}/{}",
            object["kind"], metadata["namespace"], metadata["name"]
        );
        if object["rules"].is_null() && object["kind"] == "ClusterRole" {
            object["rules"] = json!([]);
        }
        if object["subjects"].is_null() {
            object.as_object_mut().unwrap().shift_remove("subjects");
        }
        (key, object)
    }

    #[test]
    fn the_defaults_are_those_of_kubernetes() {
        let Some(root) = reference::find("rbac") else {
            return;
        };
        let mut theirs = BTreeMap::new();
        for file in [
            "cluster-roles",
            "cluster-role-bindings",
            "controller-roles",
            "controller-role-bindings",
            "namespace-roles",
            "namespace-role-bindings",
        ] {
            let text = std::fs::read_to_string(root.join(format!("{file}.yaml"))).unwrap();
            let list: Value = machinery::yaml::from_str(&text).unwrap();
            theirs.extend(list["items"].as_array().unwrap().iter().map(normal));
        }
        let roles = DEFAULTS.roles.iter().map(Role::to_object);
        let all = roles.chain(DEFAULTS.bindings.iter().map(Binding::to_object));
        let ours: BTreeMap<_, _> = all.map(|object| normal(&object.into())).collect();
        for (key, object) in &theirs {
            assert_eq!(ours.get(key), Some(object), "{key}");
        }
        let beyond: Vec<_> = ours
            .keys()
            .filter(|key| !theirs.contains_key(*key))
            .collect();
        // Beyond our own roles, there are those of metrics-server.
        let is_known = |key: &str| {
            key.contains("system:mainstay:") || key.contains("system:aggregated-metrics-reader")
        };
        assert!(beyond.iter().all(|key| is_known(key)), "{beyond:?}");
    }
}
