//! Roles and bindings indexed by subject, so that a decision looks only at the bindings of the
//! user, its groups, and the namespace.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use kinds::tree;
use machinery::{Object, Value, labels::Selector};

use super::{Attributes, rules::Rule};
use request::User;

/// The objects of an index.
#[derive(Debug, Default)]
pub struct Objects {
    pub cluster_roles: Vec<Object>,
    pub roles: Vec<Object>,
    pub cluster_role_bindings: Vec<Object>,
    pub role_bindings: Vec<Object>,
}

impl Objects {
    /// Adds missing objects, by namespace and name.
    pub fn add_missing(&mut self, others: Self) {
        let add = |mine: &mut Vec<Object>, others: Vec<Object>| {
            let key = |object: &Object| role_key(tree::namespace(object), tree::name(object));
            let known: BTreeSet<String> = mine.iter().map(key).collect();
            mine.extend(
                others
                    .into_iter()
                    .filter(|other| !known.contains(&key(other))),
            );
        };
        add(&mut self.cluster_roles, others.cluster_roles);
        add(&mut self.roles, others.roles);
        add(
            &mut self.cluster_role_bindings,
            others.cluster_role_bindings,
        );
        add(&mut self.role_bindings, others.role_bindings);
    }
}

/// A role's rules; `None` if the bound role does not exist.
type Rules = Option<Arc<[Rule]>>;

/// One binding of a subject.
#[derive(Debug, Clone)]
struct Grant {
    rules: Rules,
    binding: Arc<Origin>,
}

/// The source of a grant, for reasons.
#[derive(Debug)]
struct Origin {
    binding: String,
    role: String,
}

/// The grants of one subject.
#[derive(Debug, Default)]
struct Grants {
    everywhere: Vec<Grant>,
    by_namespace: HashMap<String, Vec<Grant>>,
}

/// All bindings, by their subject.
#[derive(Debug, Default)]
pub struct Index {
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
    roles: HashMap<String, Arc<[Rule]>>,
}

/// `name` for ClusterRoles, `namespace/name` for Roles.
fn role_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

impl Index {
    /// Builds the index.
    pub fn new(objects: &Objects) -> Self {
        let mut index = Self {
            roles: roles(objects),
            ..Self::default()
        };
        for binding in &objects.cluster_role_bindings {
            index.bind("", "ClusterRoleBinding", binding);
        }
        for binding in &objects.role_bindings {
            index.bind(tree::namespace(binding), "RoleBinding", binding);
        }
        index
    }

    fn bind(&mut self, namespace: &str, kind: &str, binding: &Object) {
        let role = tree::get(binding, "roleRef");
        let (role_kind, role_name) = (tree::text(&role["kind"]), tree::text(&role["name"]));
        let place = if role_kind == "Role" { namespace } else { "" };
        let name = match namespace {
            "" => format!("{kind} {:?}", tree::name(binding)),
            _ => format!(
                "{kind} {:?}",
                format!("{}/{namespace}", tree::name(binding))
            ),
        };
        let grant = Grant {
            rules: self.roles.get(&role_key(place, role_name)).cloned(),
            binding: Arc::new(Origin {
                binding: name,
                role: format!("{role_kind} {role_name:?}"),
            }),
        };
        for subject in tree::list(tree::get(binding, "subjects")) {
            let name = tree::text(&subject["name"]);
            let grants = match tree::text(&subject["kind"]) {
                "User" => self.users.entry(name.to_owned()).or_default(),
                "Group" => self.groups.entry(name.to_owned()).or_default(),
                "ServiceAccount" => {
                    let home = match tree::text(&subject["namespace"]) {
                        "" => namespace,
                        home => home,
                    };
                    self.users
                        .entry(format!("system:serviceaccount:{home}:{name}"))
                        .or_default()
                }
                _ => continue,
            };
            if namespace.is_empty() {
                grants.everywhere.push(grant.clone());
            } else {
                grants
                    .by_namespace
                    .entry(namespace.to_owned())
                    .or_default()
                    .push(grant.clone());
            }
        }
    }

    fn grants<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let groups = user
            .groups
            .iter()
            .filter_map(|group| self.groups.get(group));
        self.users
            .get(&user.name)
            .into_iter()
            .chain(groups)
            .flat_map(move |grants| {
                let here = grants
                    .by_namespace
                    .get(namespace)
                    .filter(|_| !namespace.is_empty());
                grants.everywhere.iter().chain(here.into_iter().flatten())
            })
    }

    /// Whether a rule bound to the user allows the request.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        self.grants(attributes.user, attributes.namespace)
            .filter_map(|grant| grant.rules.as_ref())
            .any(|rules| rules.iter().any(|rule| rule.allows(attributes)))
    }

    /// The reason for allowing the request, in Kubernetes' words.
    pub fn reason(&self, attributes: &Attributes<'_>) -> Option<String> {
        let allows = |grant: &&Grant| {
            let mut rules = grant.rules.iter().flat_map(|rules| rules.iter());
            rules.any(|rule| rule.allows(attributes))
        };
        let namespace = attributes.namespace;
        let granted = |grants: &'_ Grants| {
            let here = grants
                .by_namespace
                .get(namespace)
                .filter(|_| !namespace.is_empty());
            let mut all = grants.everywhere.iter().chain(here.into_iter().flatten());
            let Origin { binding, role } = &*all.find(allows)?.binding;
            Some(format!("RBAC: allowed by {binding} of {role}"))
        };
        let user = attributes.user;
        if let Some(why) = self.users.get(&user.name).and_then(granted) {
            let account = user.name.strip_prefix("system:serviceaccount:");
            return Some(match account.and_then(|name| name.split_once(':')) {
                Some((home, name)) => {
                    format!("{why} to ServiceAccount {:?}", format!("{name}/{home}"))
                }
                None => format!("{why} to User {:?}", user.name),
            });
        }
        user.groups.iter().find_map(|group| {
            let why = self.groups.get(group).and_then(granted)?;
            Some(format!("{why} to Group {group:?}"))
        })
    }

    /// The user's bindings whose roles do not exist, in Kubernetes' words.
    pub fn complaint(&self, user: &User, namespace: &str) -> String {
        let missing = self
            .grants(user, namespace)
            .filter(|grant| grant.rules.is_none());
        let roles: BTreeSet<&str> = missing.map(|grant| grant.binding.role.as_str()).collect();
        let said = roles.iter().filter_map(|role| {
            let (kind, name) = role.split_once(' ')?;
            Some(format!(
                "{}.rbac.authorization.k8s.io {name} not found",
                kind.to_lowercase()
            ))
        });
        let said: Vec<String> = said.collect();
        match said.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            several => format!("RBAC: [{}]", several.join(", ")),
        }
    }

    /// Every rule of the user in a namespace (empty: cluster-wide).
    pub fn rules_for(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let granted = self
            .grants(user, namespace)
            .filter_map(|grant| grant.rules.as_ref());
        granted.flat_map(|rules| rules.iter().cloned()).collect()
    }

    /// The rules of a role; ClusterRoles have no namespace.
    pub fn role(&self, namespace: &str, name: &str) -> Option<&[Rule]> {
        self.roles
            .get(&role_key(namespace, name))
            .map(|rules| &**rules)
    }
}

fn own_rules(role: &Object) -> Vec<Rule> {
    tree::list(tree::get(role, "rules"))
        .iter()
        .map(Rule::from_json)
        .collect()
}

fn roles(objects: &Objects) -> HashMap<String, Arc<[Rule]>> {
    let mut roles: HashMap<String, Arc<[Rule]>> = HashMap::new();
    for role in &objects.roles {
        let key = role_key(tree::namespace(role), tree::name(role));
        roles.insert(key, own_rules(role).into());
    }
    for role in &objects.cluster_roles {
        let rules = match tree::get(role, "aggregationRule") {
            Value::Null => own_rules(role),
            _ => gathered(role, &objects.cluster_roles),
        };
        roles.insert(tree::name(role).to_owned(), rules.into());
    }
    roles
}

/// The rules of an aggregated role: those of every selected role, recursively. The rules stored in
/// it may be outdated.
pub(super) fn gathered(role: &Object, all: &[Object]) -> Vec<Rule> {
    let mut seen = BTreeSet::from([tree::name(role)]);
    let mut waiting = vec![role];
    let mut rules = Vec::new();
    while let Some(role) = waiting.pop() {
        let selectors = tree::list(&tree::get(role, "aggregationRule")["clusterRoleSelectors"]);
        if tree::get(role, "aggregationRule").is_null() {
            for rule in own_rules(role) {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        let selectors = selectors
            .iter()
            .filter_map(|s| Selector::from_label_selector(Some(s)).ok());
        for selector in selectors {
            let chosen = all.iter().filter(|other| {
                selector.matches_map(tree::get(other, "metadata")["labels"].as_object())
            });
            let mut chosen: Vec<&Object> = chosen
                .filter(|other| seen.insert(tree::name(other)))
                .collect();
            chosen.sort_by_key(|other| std::cmp::Reverse(tree::name(other)));
            waiting.extend(chosen);
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::authz::policy;
    use registry_testing::object;

    fn defaults() -> Objects {
        let mut objects = Objects::default();
        for role in &policy::DEFAULTS.roles {
            match role.namespace.as_str() {
                "" => objects.cluster_roles.push(role.to_object()),
                _ => objects.roles.push(role.to_object()),
            }
        }
        for binding in &policy::DEFAULTS.bindings {
            match binding.namespace.as_str() {
                "" => objects.cluster_role_bindings.push(binding.to_object()),
                _ => objects.role_bindings.push(binding.to_object()),
            }
        }
        objects
    }

    struct Ask<'a>(&'a Index, User);

    impl Ask<'_> {
        fn attributes<'a>(&'a self, request: &'a str) -> Attributes<'a> {
            let mut words = request.split(' ');
            let mut next = || words.next().unwrap_or_default();
            let (verb, target, namespace) = (next(), next(), next());
            let (group, resource) = target.split_once(':').unwrap_or(("", target));
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            Attributes {
                user: &self.1,
                verb,
                is_resource: !target.starts_with('/'),
                group,
                version: "v1",
                resource,
                subresource,
                namespace,
                name: "x",
                path: target,
                field_selector: "",
                label_selector: "",
            }
        }

        fn may(&self, request: &str) -> bool {
            self.0.allows(&self.attributes(request))
        }
    }

    #[test]
    fn the_components_may_do_their_work_and_no_more() {
        let index = Index::new(&defaults());
        let scheduler = Ask(&index, User::new("system:kube-scheduler", [""; 0]));
        assert!(scheduler.may("create pods/binding default") && scheduler.may("watch nodes"));
        assert!(
            !scheduler.may("update deployments default") && !scheduler.may("get secrets default")
        );
        let manager = Ask(&index, User::new("system:kube-controller-manager", [""; 0]));
        assert!(
            manager.may("watch apps:deployments") && manager.may("create serviceaccounts/token a")
        );
        assert!(!manager.may("delete pods default"));
        let account = User::service_account("kube-system", "replicaset-controller");
        let replicas = Ask(&index, account);
        assert!(replicas.may("create pods default") && !replicas.may("create secrets default"));
        let account = User::service_account("kube-system", "deployment-controller");
        let deployments = Ask(&index, account);
        assert!(deployments.may("update apps:deployments default"));
        assert!(!deployments.may("patch apps:deployments default"));
        let dns = Ask(&index, User::new("system:mainstay:dns", [""; 0]));
        assert!(dns.may("watch discovery.k8s.io:endpointslices") && !dns.may("watch secrets"));
        let proxy = Ask(&index, User::new("system:kube-proxy", [""; 0]));
        assert!(proxy.may("watch services") && !proxy.may("get secrets default"));
        let kubelet_client = Ask(&index, User::new("kube-apiserver-kubelet-client", [""; 0]));
        assert!(kubelet_client.may("create nodes/proxy") && !kubelet_client.may("get secrets a"));
        let admin = Ask(&index, User::new("kubernetes-admin", ["system:masters"]));
        assert!(admin.may("delete secrets a") && admin.may("get /metrics"));
    }

    #[test]
    fn anonymous_users_see_health_and_version_and_authenticated_ones_discovery() {
        let index = Index::new(&defaults());
        let anonymous = Ask(&index, User::anonymous());
        for path in ["/healthz", "/livez", "/readyz", "/version"] {
            assert!(anonymous.may(&format!("get {path}")), "{path}");
        }
        for path in ["/api", "/apis", "/openapi/v3", "/metrics"] {
            assert!(!anonymous.may(&format!("get {path}")), "{path}");
        }
        let eve = Ask(&index, User::new("eve", [""; 0]));
        assert!(eve.may("get /api") && eve.may("get /apis/apps/v1"));
        assert!(eve.may("create authorization.k8s.io:selfsubjectaccessreviews"));
        assert!(!eve.may("get pods default") && !eve.may("get /metrics"));
    }

    #[test]
    fn a_binding_in_a_namespace_holds_there_alone() {
        let mut objects = defaults();
        objects.role_bindings.push(object(json!({
            "metadata": {"name": "editors", "namespace": "team"},
            "roleRef": {"kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "User", "name": "eve"}, {"kind": "ServiceAccount", "name": "bot"}],
        })));
        objects.role_bindings.push(object(json!({
            "metadata": {"name": "broken", "namespace": "team"},
            "roleRef": {"kind": "Role", "name": "gone"},
            "subjects": [{"kind": "User", "name": "eve"}],
        })));
        let index = Index::new(&objects);
        let eve = Ask(&index, User::new("eve", [""; 0]));
        assert!(eve.may("create pods team") && eve.may("get configmaps team"));
        assert!(!eve.may("create pods other") && !eve.may("create pods"));
        assert!(!eve.may("create rbac.authorization.k8s.io:roles team"));
        let bot = Ask(&index, User::service_account("team", "bot"));
        assert!(
            bot.may("create pods team"),
            "edit takes the rules of view and its own"
        );
        let reason = index.reason(&eve.attributes("create pods team")).unwrap();
        assert_eq!(
            reason,
            "RBAC: allowed by RoleBinding \"editors/team\" of ClusterRole \"edit\" to User \"eve\""
        );
        let complaint = index.complaint(&eve.1, "team");
        assert_eq!(
            complaint,
            "RBAC: role.rbac.authorization.k8s.io \"gone\" not found"
        );
        assert_eq!(index.complaint(&eve.1, "other"), "");
    }

    #[test]
    fn aggregated_roles_take_the_rules_of_those_they_select_and_a_circle_ends() {
        let index = Index::new(&defaults());
        let admin = index.role("", "admin").unwrap();
        let view = index.role("", "view").unwrap();
        assert!(
            view.iter().all(|rule| admin.contains(rule)),
            "admin > edit > view"
        );
        let role = |name: &str| {
            object(json!({"metadata": {"name": name, "labels": {"a": "1"}},
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "1"}}]}}))
        };
        let all = [role("one"), role("two")];
        assert!(gathered(&all[0], &all).is_empty());
    }

    #[test]
    fn among_a_thousand_bindings_only_ones_own_count() {
        let mut objects = defaults();
        for number in 0..1000 {
            objects.role_bindings.push(object(json!({
                "metadata": {"name": format!("b{number}"), "namespace": format!("n{}", number % 50)},
                "roleRef": {"kind": "ClusterRole", "name": "edit"},
                "subjects": [{"kind": "User", "name": format!("user{}", number % 100)}],
            })));
        }
        let index = Index::new(&objects);
        let user = Ask(&index, User::new("user7", ["team"]));
        let attributes = user.attributes("create apps:deployments n7");
        assert!(index.allows(&attributes));
        assert!(!index.allows(&user.attributes("create apps:deployments n8")));
    }
}
