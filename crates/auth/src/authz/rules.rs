//! Rules of roles: what they allow, and whether one set covers another.

use std::fmt;

use machinery::{Value, text};

use super::Attributes;

/// One rule. Strings are compared exactly; `*` matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    /// Empty: every name.
    pub names: Vec<String>,
    /// Non-resource paths; a trailing `*` matches any continuation.
    pub paths: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter()
        .any(|item| item == "*" || text::same(item, wanted))
}

impl Rule {
    /// From a role's JSON.
    pub fn from_json(json: &Value) -> Self {
        let list = |field: &str| {
            let items = json[field].as_array().into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            paths: list("nonResourceURLs"),
        }
    }

    /// As a role's JSON.
    pub fn to_json(&self) -> Value {
        let mut json = machinery::json::Map::new();
        json.insert("verbs".to_owned(), self.verbs.clone().into());
        for (field, list) in [
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.paths),
        ] {
            if !list.is_empty() {
                json.insert(field.to_owned(), list.clone().into());
            }
        }
        Value::Object(json)
    }

    /// Whether this rule alone allows a request.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !attributes.is_resource {
            return self.allows_path(attributes.path);
        }
        has(&self.groups, attributes.group)
            && self.allows_resource(attributes.resource, attributes.subresource)
            && (self.names.is_empty() || self.names.iter().any(|name| name == attributes.name))
    }

    fn allows_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources
            .iter()
            .any(|rule| match rule.split_once('/') {
                _ if rule == "*" => true,
                Some((of, sub)) => {
                    !subresource.is_empty() && sub == subresource && (of == "*" || of == resource)
                }
                None => subresource.is_empty() && rule == resource,
            })
    }

    fn allows_path(&self, path: &str) -> bool {
        self.paths.iter().any(|rule| match rule.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => rule == path,
        })
    }

    /// The rule split into rules with one value per field.
    fn atoms(&self) -> Vec<Rule> {
        let mut atoms = Vec::new();
        let one = |text: &String| vec![text.clone()];
        for verb in &self.verbs {
            for path in &self.paths {
                atoms.push(Rule {
                    verbs: one(verb),
                    paths: one(path),
                    ..Rule::default()
                });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    let base = Rule {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Rule::default()
                    };
                    if self.names.is_empty() {
                        atoms.push(base);
                        continue;
                    }
                    let named = |name| Rule {
                        names: one(name),
                        ..base.clone()
                    };
                    atoms.extend(self.names.iter().map(named));
                }
            }
        }
        atoms
    }

    /// Whether this rule covers such a single rule.
    fn covers_atom(&self, atom: &Rule) -> bool {
        let verb = atom.verbs.iter().all(|verb| has(&self.verbs, verb));
        if let Some(path) = atom.paths.first() {
            let covered = |mine: &String| match mine.strip_suffix('*') {
                Some(start) => path.starts_with(start),
                None => mine == path,
            };
            return verb && self.paths.iter().any(covered);
        }
        let resource = |wanted: &String| {
            let sub = wanted.split_once('/').map(|(_, sub)| format!("*/{sub}"));
            self.resources.iter().any(|mine| {
                mine == "*" || mine == wanted || sub.as_ref().is_some_and(|sub| mine == sub)
            })
        };
        verb && atom.groups.iter().all(|group| has(&self.groups, group))
            && atom.resources.iter().all(resource)
            && (self.names.is_empty()
                || (!atom.names.is_empty() && atom.names.iter().all(|n| self.names.contains(n))))
    }
}

/// As in Kubernetes' messages.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let parts = parts.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts
            .map(|(name, list)| {
                let quoted: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
                format!("{name}:[{}]", quoted.join(" "))
            })
            .collect();
        write!(f, "{{{}}}", parts.join(", "))
    }
}

/// The rules in `wanted` that `owned` does not cover.
pub fn uncovered(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let atoms = wanted.iter().flat_map(Rule::atoms);
    atoms
        .filter(|atom| !owned.iter().any(|rule| rule.covers_atom(atom)))
        .collect()
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use request::User;

    fn rule(verbs: &str, resources: &str, groups: &str, names: &str) -> Rule {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Rule {
            verbs: words(verbs),
            groups: words(groups)
                .into_iter()
                .map(|g: String| g.replace("core", ""))
                .collect(),
            resources: words(resources),
            names: words(names),
            paths: Vec::new(),
        }
    }

    fn allows(rule: &Rule, verb: &str, resource: &str, subresource: &str, name: &str) -> bool {
        rule.allows(&Attributes {
            user: &User::anonymous(),
            verb,
            is_resource: true,
            group: "",
            version: "v1",
            resource,
            subresource,
            namespace: "",
            name,
            path: "",
            field_selector: "",
            label_selector: "",
        })
    }

    #[test]
    fn rules_match_as_kubernetes_matches_them() {
        let all = rule("*", "*", "*", "");
        assert!(allows(&all, "get", "pods", "", "") && allows(&all, "get", "pods", "exec", "x"));
        let pods = rule("get list", "pods pods/log", "core", "");
        assert!(allows(&pods, "list", "pods", "", "") && allows(&pods, "get", "pods", "log", "x"));
        assert!(!allows(&pods, "get", "pods", "exec", "x"));
        assert!(!allows(&pods, "delete", "pods", "", "x"));
        let scale = rule("update", "*/scale", "core", "");
        assert!(allows(&scale, "update", "anything", "scale", "x"));
        assert!(!allows(&scale, "update", "anything", "", "x"));
        let named = rule("get list", "secrets", "core", "mine");
        assert!(allows(&named, "get", "secrets", "", "mine"));
        assert!(!allows(&named, "get", "secrets", "", "theirs"));
        assert!(!allows(&named, "list", "secrets", "", ""));
        let other_group = rule("get", "pods", "apps", "");
        assert!(!allows(&other_group, "get", "pods", "", "x"));
    }

    #[test]
    fn a_rule_reads_and_writes_its_json() {
        let json = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"],
                          "resourceNames": ["x"]});
        assert_eq!(Rule::from_json(&json).to_json(), json);
        let path = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz"]});
        assert_eq!(Rule::from_json(&path).to_json(), path);
    }

    #[test]
    fn rules_cover_no_more_than_they_grant() {
        let owned = [
            rule("get list", "pods", "core", ""),
            rule("get", "secrets", "core", "mine"),
        ];
        for (wanted, covered) in [
            (rule("get", "pods", "core", ""), true),
            (rule("get", "pods", "core", "one"), true),
            (rule("get delete", "pods", "core", ""), false),
            (rule("*", "pods", "core", ""), false),
            (rule("get", "pods", "core apps", ""), false),
            (rule("get", "secrets", "core", "mine"), true),
            (rule("get", "secrets", "core", ""), false),
            (rule("get", "pods/log", "core", ""), false),
        ] {
            let missing = uncovered(&owned, std::slice::from_ref(&wanted));
            assert_eq!(missing.is_empty(), covered, "{wanted:?}");
        }
        let everything = [rule("*", "*", "*", "")];
        assert!(uncovered(&everything, &[rule("*", "*", "*", "")]).is_empty());
        let path = |text: &str| Rule {
            verbs: vec!["get".to_owned()],
            paths: vec![text.to_owned()],
            ..Rule::default()
        };
        assert!(uncovered(&[path("/a/*")], &[path("/a/b")]).is_empty());
        assert!(!uncovered(&[path("/a")], &[path("/a/*")]).is_empty());
        assert!(!uncovered(&everything, &[path("/a")]).is_empty());
    }
}
