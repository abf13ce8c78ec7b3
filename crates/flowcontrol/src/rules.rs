//! Rules of a FlowSchema, parsed once so that matching is cheap: every request is matched against
//! several.

use kinds::tree;
use machinery::Value;

use request::{RequestInfo, ResourceRequest, User};

/// All rules of a FlowSchema; one of them has to match.
#[derive(Debug, Default)]
pub(super) struct Rules(Box<[Rule]>);

#[derive(Debug)]
struct Rule {
    subjects: Box<[Subject]>,
    resources: Box<[ResourceRule]>,
    paths: Box<[PathRule]>,
}

#[derive(Debug)]
enum Subject {
    Anybody,
    /// A user by name; a service account is one.
    User(String),
    /// Service accounts of a namespace, by the prefix of their names.
    AccountsOf(String),
    Group(String),
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Names,
    groups: Names,
    resources: Names,
    namespaces: Names,
    cluster_scope: bool,
}

#[derive(Debug)]
struct PathRule {
    verbs: Names,
    paths: Names,
}

/// Names, or `*` alone for all of them.
#[derive(Debug)]
enum Names {
    All,
    These(Box<[String]>),
}

impl Rules {
    pub(super) fn new(rules: &Value) -> Self {
        Self(tree::list(rules).iter().map(Rule::new).collect())
    }

    /// Whether a rule matches this request.
    pub(super) fn match_request(&self, user: &User, info: &RequestInfo) -> bool {
        self.0.iter().any(|rule| rule.matches(user, info))
    }
}

impl Rule {
    fn new(rule: &Value) -> Self {
        let list = |name: &str| tree::list(&rule[name]).iter();
        Self {
            subjects: list("subjects").filter_map(Subject::new).collect(),
            resources: list("resourceRules").map(ResourceRule::new).collect(),
            paths: list("nonResourceRules").map(PathRule::new).collect(),
        }
    }

    fn matches(&self, user: &User, info: &RequestInfo) -> bool {
        // Rules without resource or path rules are skipped before the subjects are compared.
        match &info.resource {
            Some(_) if self.resources.is_empty() => false,
            None if self.paths.is_empty() => false,
            _ if !self.subjects.iter().any(|one| one.includes(user)) => false,
            Some(what) => self
                .resources
                .iter()
                .any(|rule| rule.matches(info.verb, what)),
            None => self
                .paths
                .iter()
                .any(|rule| rule.matches(info.verb, &info.path)),
        }
    }
}

impl Subject {
    fn new(subject: &Value) -> Option<Self> {
        let name = |field: &str| tree::text(&subject[field]["name"]).to_owned();
        Some(match tree::text(&subject["kind"]) {
            "User" => match name("user") {
                all if all == "*" => Self::Anybody,
                name => Self::User(name),
            },
            "Group" => match name("group") {
                all if all == "*" => Self::Anybody,
                name => Self::Group(name),
            },
            "ServiceAccount" => {
                let namespace = tree::text(&subject["serviceAccount"]["namespace"]);
                let prefix = format!("system:serviceaccount:{namespace}:");
                match name("serviceAccount") {
                    all if all == "*" => Self::AccountsOf(prefix),
                    name => Self::User(prefix + &name),
                }
            }
            _ => return None,
        })
    }

    fn includes(&self, user: &User) -> bool {
        match self {
            Self::Anybody => true,
            Self::User(name) => user.name == *name,
            Self::AccountsOf(prefix) => user.name.starts_with(prefix),
            Self::Group(name) => user.is_in(name),
        }
    }
}

impl ResourceRule {
    fn new(rule: &Value) -> Self {
        Self {
            verbs: Names::new(&rule["verbs"]),
            groups: Names::new(&rule["apiGroups"]),
            resources: Names::new(&rule["resources"]),
            namespaces: Names::new(&rule["namespaces"]),
            cluster_scope: tree::truth(&rule["clusterScope"]),
        }
    }

    fn matches(&self, verb: &str, what: &ResourceRequest) -> bool {
        let (resource, subresource) = (&what.resource, &what.subresource);
        let here = match what.namespace.as_str() {
            "" => self.cluster_scope,
            namespace => self.namespaces.have(namespace),
        };
        here && self.verbs.have(verb)
            && self
                .resources
                .any(|name| is_resource(name, resource, subresource))
            && self.groups.have(&what.group)
    }
}

/// Whether `name` is this resource, as `pods` or `pods/log`.
fn is_resource(name: &str, resource: &str, subresource: &str) -> bool {
    let rest = name.strip_prefix(resource);
    rest.is_some_and(|rest| match rest.strip_prefix('/') {
        Some(below) => !subresource.is_empty() && below == subresource,
        None => rest.is_empty() && subresource.is_empty(),
    })
}

impl PathRule {
    fn new(rule: &Value) -> Self {
        Self {
            verbs: Names::new(&rule["verbs"]),
            paths: Names::new(&rule["nonResourceURLs"]),
        }
    }

    fn matches(&self, verb: &str, path: &str) -> bool {
        self.verbs.have(verb) && self.paths.any(|rule| is_at_or_below(path, rule))
    }
}

/// Whether a path equals a rule's path or is below it; `/x/*` matches paths below `/x/`.
fn is_at_or_below(path: &str, rule: &str) -> bool {
    let prefix = rule.strip_suffix('*').unwrap_or(rule);
    let below = path.strip_prefix(prefix);
    path == rule || below.is_some_and(|below| prefix.ends_with('/') || below.starts_with('/'))
}

impl Names {
    fn new(names: &Value) -> Self {
        match tree::list(names) {
            [all] if all == "*" => Self::All,
            these => Self::These(these.iter().map(|one| tree::text(one).to_owned()).collect()),
        }
    }

    fn have(&self, name: &str) -> bool {
        self.any(|one| machinery::text::same(one, name))
    }

    fn any(&self, fits: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.iter().any(|name| fits(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use machinery::json::json;

    use super::*;
    use request::Query;

    fn asks(user: &User, request: &str, rules: &Value) -> bool {
        let (method, uri) = request.split_once(' ').unwrap();
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let method: Method = method.parse().unwrap();
        let info = RequestInfo::new(&method, path, &Query::parse(query));
        Rules::new(rules).match_request(user, &info)
    }

    #[test]
    fn subjects_are_users_groups_and_service_accounts() {
        let everything = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
        let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
        let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
        let account = |namespace: &str, name: &str| {
            json!({"kind": "ServiceAccount",
                   "serviceAccount": {"namespace": namespace, "name": name}})
        };
        let eve = User::new("eve", ["team"]);
        let robot = User::service_account("prod", "robot");
        for (who, subject, matches) in [
            (&eve, user("eve"), true),
            (&eve, user("ev"), false),
            (&eve, user("*"), true),
            (&eve, group("team"), true),
            (&eve, group("system:authenticated"), true),
            (&eve, group("other"), false),
            (&eve, group("*"), true),
            (&robot, account("prod", "robot"), true),
            (&robot, account("prod", "*"), true),
            (&robot, account("prod", "rob"), false),
            (&robot, account("pro", "*"), false),
            (&robot, user("system:serviceaccount:prod:robot"), true),
            (&robot, group("system:serviceaccounts:prod"), true),
            (&eve, account("prod", "*"), false),
            (&eve, json!({"kind": "User"}), false),
        ] {
            let rules = json!([{"subjects": [subject], "nonResourceRules": everything}]);
            assert_eq!(asks(who, "GET /version", &rules), matches, "{rules}");
        }
    }

    #[test]
    fn resource_rules_match_verb_group_resource_and_namespace() {
        let rule = |verbs: Value, group: &str, resources: Value, namespaces: Value, scope: bool| {
            json!([{"verbs": verbs, "apiGroups": [group], "resources": resources,
                    "namespaces": namespaces, "clusterScope": scope}])
        };
        let all = || json!(["*"]);
        let none = || Value::Null;
        let pods = "GET /api/v1/namespaces/a/pods/x";
        let log = "GET /api/v1/namespaces/a/pods/x/log";
        let nodes = "GET /api/v1/nodes";
        let leases = "PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/x";
        for (request, rules, matches) in [
            (pods, rule(all(), "*", all(), all(), false), true),
            (pods, rule(all(), "*", all(), none(), true), false),
            (
                pods,
                rule(all(), "", json!(["pods"]), json!(["a"]), false),
                true,
            ),
            (
                pods,
                rule(all(), "", json!(["pods"]), json!(["b"]), true),
                false,
            ),
            (
                pods,
                rule(all(), "", json!(["pods/log"]), all(), true),
                false,
            ),
            (log, rule(all(), "", json!(["pods"]), all(), true), false),
            (log, rule(all(), "", json!(["pods/log"]), all(), true), true),
            (log, rule(all(), "", all(), all(), true), true),
            (pods, rule(json!(["get"]), "", all(), all(), true), true),
            (
                pods,
                rule(json!(["list", "watch"]), "", all(), all(), true),
                false,
            ),
            (pods, rule(all(), "apps", all(), all(), true), false),
            (
                nodes,
                rule(json!(["list"]), "", json!(["nodes"]), all(), true),
                true,
            ),
            (
                nodes,
                rule(json!(["list"]), "", json!(["nodes"]), all(), false),
                false,
            ),
            (
                leases,
                rule(
                    json!(["update"]),
                    "coordination.k8s.io",
                    json!(["leases"]),
                    all(),
                    false,
                ),
                true,
            ),
            ("GET /version", rule(all(), "*", all(), all(), true), false),
        ] {
            let subjects = json!([{"kind": "User", "user": {"name": "eve"}}]);
            let rules = json!([{"subjects": subjects, "resourceRules": rules}]);
            let eve = User::new("eve", [""; 0]);
            assert_eq!(asks(&eve, request, &rules), matches, "{request} {rules}");
        }
    }

    #[test]
    fn non_resource_urls_match_paths_below_them() {
        for (path, rule, matches) in [
            ("/healthz", "/healthz", true),
            ("/healthz/ping", "/healthz", true),
            ("/healthzz", "/healthz", false),
            ("/readyz", "/healthz", false),
            ("/x/y", "/x/*", true),
            ("/x", "/x/*", false),
            ("/x/", "/x/*", true),
            ("/anything", "*", true),
        ] {
            let rules = json!([{
                "subjects": [{"kind": "Group", "group": {"name": "system:unauthenticated"}}],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": [rule]}],
            }]);
            let request = format!("GET {path}");
            let anonymous = User::anonymous();
            assert_eq!(asks(&anonymous, &request, &rules), matches, "{path} {rule}");
            let post = format!("POST {path}");
            assert!(!asks(&anonymous, &post, &rules), "only reading");
        }
    }
}
