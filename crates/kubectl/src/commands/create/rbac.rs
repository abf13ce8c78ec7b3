//! `kubectl create role|clusterrole|rolebinding|clusterrolebinding`

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::{error, session::Session};

use super::{Common, Generated, pairs};

const VERBS: &[&str] = &[
    "*",
    "get",
    "delete",
    "list",
    "create",
    "update",
    "patch",
    "watch",
    "proxy",
    "deletecollection",
    "use",
    "bind",
    "escalate",
    "impersonate",
];

/// The flags that define a rule.
#[derive(Debug, Args)]
struct Rule {
    /// Verb that applies to the resources contained in the rule
    #[arg(long, value_delimiter = ',')]
    verb: Vec<String>,
    /// Resource that the rule applies to, as RESOURCE[.GROUP][/SUBRESOURCE]
    #[arg(long, value_delimiter = ',')]
    resource: Vec<String>,
    /// Name of an object that the rule applies to; may be repeated
    #[arg(long)]
    resource_name: Vec<String>,
}

impl Rule {
    fn verbs(&self) -> Vec<&str> {
        if self.verb.iter().any(|verb| verb == "*") {
            return vec!["*"];
        }
        without_duplicates(&self.verb)
    }

    /// One rule for each API group.
    async fn rules(&self, session: &Session, nothing: &str) -> Result<Vec<Value>> {
        let verbs = self.verbs();
        if verbs.is_empty() {
            bail!("at least one verb must be specified");
        }
        for verb in verbs.iter().filter(|verb| !VERBS.contains(verb)) {
            eprintln!("Warning: '{verb}' is not a standard resource verb");
        }
        if self.resource.is_empty() {
            bail!("{nothing}");
        }
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for word in &self.resource {
            let (resource, subresource) = match word.split_once('/') {
                Some((resource, subresource)) => (resource, Some(subresource)),
                None => (word.as_str(), None),
            };
            let (group, mut plural) = match resource {
                "" => bail!("resource must be specified if apiGroup/subresource specified"),
                "*" => (String::new(), "*".to_owned()),
                "*.*" => ("*".to_owned(), "*".to_owned()),
                resource => {
                    let Ok(found) = session.discovery.resolve(resource).await else {
                        return Err(error::Plain(unknown(resource)).into());
                    };
                    (found.group, found.plural)
                }
            };
            refuse_special_verbs(&verbs, &group, &plural)?;
            if let Some(subresource) = subresource {
                plural = format!("{plural}/{subresource}");
            }
            let resources = groups.entry(group).or_default();
            if !resources.contains(&plural) {
                resources.push(plural);
            }
        }
        let names = without_duplicates(&self.resource_name);
        let rule = |(group, resources): (String, Vec<String>)| {
            let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources});
            if !names.is_empty() {
                rule["resourceNames"] = json!(names);
            }
            rule
        };
        Ok(groups.into_iter().map(rule).collect())
    }
}

/// The message for a resource type that the server does not have.
fn unknown(word: &str) -> String {
    match word.split_once('.') {
        Some((name, group)) => {
            format!("the server doesn't have a resource type {name:?} in group {group:?}")
        }
        None => format!("the server doesn't have a resource type {word:?}"),
    }
}

/// Some verbs are valid for a few resources only.
fn refuse_special_verbs(verbs: &[&str], group: &str, plural: &str) -> Result<()> {
    const SPECIAL: &[(&str, &[(&str, &str)])] = &[
        (
            "use",
            &[
                ("policy", "podsecuritypolicies"),
                ("extensions", "podsecuritypolicies"),
            ],
        ),
        (
            "bind",
            &[
                ("rbac.authorization.k8s.io", "roles"),
                ("rbac.authorization.k8s.io", "clusterroles"),
            ],
        ),
        (
            "escalate",
            &[
                ("rbac.authorization.k8s.io", "roles"),
                ("rbac.authorization.k8s.io", "clusterroles"),
            ],
        ),
        (
            "impersonate",
            &[
                ("", "users"),
                ("", "serviceaccounts"),
                ("", "groups"),
                ("authentication.k8s.io", "userextras"),
            ],
        ),
    ];
    for (verb, allowed) in SPECIAL {
        if verbs.contains(verb) && group != "*" && !allowed.contains(&(group, plural)) {
            bail!("can not perform '{verb}' on '{plural}' in group '{group}'");
        }
    }
    Ok(())
}

fn without_duplicates(words: &[String]) -> Vec<&str> {
    let mut out: Vec<&str> = Vec::new();
    for word in words {
        if !out.contains(&word.as_str()) {
            out.push(word);
        }
    }
    out
}

/// Flags of `create role`.
#[derive(Debug, Args)]
pub(super) struct Role {
    name: String,
    #[command(flatten)]
    rule: Rule,
    #[command(flatten)]
    pub common: Common,
}

impl Role {
    pub(super) async fn generate(&self, session: &Session) -> Result<Generated> {
        let nothing = "at least one resource must be specified";
        let rules = self.rule.rules(session, nothing).await?;
        let object = json!({
            "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": self.name},
            "rules": rules});
        Ok(Generated::new(object, ""))
    }
}

/// Flags of `create clusterrole`.
#[derive(Debug, Args)]
pub(super) struct ClusterRole {
    name: String,
    #[command(flatten)]
    rule: Rule,
    /// A partial URL that the user should have access to
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    non_resource_url: Vec<String>,
    /// An aggregation label selector for combining ClusterRoles, as KEY=VALUE,…
    #[arg(long, value_name = "KEY=VALUE,…")]
    aggregation_rule: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

impl ClusterRole {
    pub(super) async fn generate(&self, session: &Session) -> Result<Generated> {
        let mut object = json!({
            "kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": self.name}});
        if let Some(labels) = &self.aggregation_rule {
            let is_alone = self.rule.verb.is_empty()
                && self.rule.resource.is_empty()
                && self.non_resource_url.is_empty();
            if !is_alone {
                bail!(
                    "aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames"
                );
            }
            if labels.split(',').any(|pair| !pair.contains('=')) {
                bail!(
                    "invalid argument {labels:?} for \"--aggregation-rule\" flag: malformed pair, expect string=string\n\
                     See 'kubectl create clusterrole --help' for usage."
                );
            }
            object["rules"] = Value::Null;
            object["aggregationRule"] =
                json!({"clusterRoleSelectors": [{"matchLabels": pairs(labels)?}]});
            return Ok(Generated::new(object, ""));
        }
        let mut rules = match self.rule.resource.is_empty() && !self.non_resource_url.is_empty() {
            true if self.rule.verbs().is_empty() => bail!("at least one verb must be specified"),
            true => Vec::new(),
            false => {
                let nothing = "one of resource or nonResourceURL must be specified";
                self.rule.rules(session, nothing).await?
            }
        };
        if !self.non_resource_url.is_empty() {
            for verb in self.rule.verbs() {
                if ![
                    "*", "get", "post", "put", "delete", "patch", "head", "options",
                ]
                .contains(&verb)
                {
                    bail!("invalid verb: '{verb}' for nonResourceURL");
                }
            }
            for url in &self.non_resource_url {
                if !url.starts_with('/') && url != "*" {
                    bail!("nonResourceURL should start with /");
                }
                if url.strip_suffix('*').unwrap_or(url).contains('*') {
                    bail!("nonResourceURL only supports wildcard matches when '*' is at the end");
                }
            }
            rules.push(
                json!({"verbs": self.rule.verbs(), "nonResourceURLs": self.non_resource_url}),
            );
        }
        object["rules"] = json!(rules);
        Ok(Generated::new(object, ""))
    }
}

/// Who is bound.
#[derive(Debug, Args)]
struct Subjects {
    /// Usernames to bind to the role; may be repeated
    #[arg(long = "subject-user", value_name = "USER")]
    subject_user: Vec<String>,
    /// Groups to bind to the role; may be repeated
    #[arg(long)]
    group: Vec<String>,
    /// Service accounts to bind to the role, as NAMESPACE:NAME; may be repeated
    #[arg(long, value_name = "NAMESPACE:NAME")]
    serviceaccount: Vec<String>,
}

impl Subjects {
    fn list(&self) -> Result<Vec<Value>> {
        const GROUP: &str = "rbac.authorization.k8s.io";
        let named =
            |kind: &str, name: &String| json!({"kind": kind, "apiGroup": GROUP, "name": name});
        let mut subjects: Vec<Value> = self
            .subject_user
            .iter()
            .map(|name| named("User", name))
            .collect();
        subjects.extend(self.group.iter().map(|name| named("Group", name)));
        for account in &self.serviceaccount {
            match account.split_once(':') {
                Some((namespace, name))
                    if !namespace.is_empty() && !name.is_empty() && !name.contains(':') =>
                {
                    subjects.push(
                        json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}),
                    );
                }
                _ => bail!("serviceaccount must be <namespace>:<name>"),
            }
        }
        Ok(subjects)
    }
}

/// Flags of `create rolebinding`.
#[derive(Debug, Args)]
pub(super) struct RoleBinding {
    name: String,
    /// Role this RoleBinding should reference
    #[arg(long)]
    role: Option<String>,
    /// ClusterRole this RoleBinding should reference
    #[arg(long)]
    clusterrole: Option<String>,
    #[command(flatten)]
    subjects: Subjects,
    #[command(flatten)]
    pub common: Common,
}

impl RoleBinding {
    pub(super) fn generate(&self) -> Result<Generated> {
        let (kind, role) = match (&self.role, &self.clusterrole) {
            (Some(role), None) => ("Role", role),
            (None, Some(role)) => ("ClusterRole", role),
            _ => bail!("exactly one of clusterrole or role must be specified"),
        };
        let object = binding(
            "RoleBinding",
            &self.name,
            &self.subjects.list()?,
            kind,
            role,
        );
        Ok(Generated::new(object, "rolebinding:"))
    }
}

/// Flags of `create clusterrolebinding`.
#[derive(Debug, Args)]
pub(super) struct ClusterRoleBinding {
    name: String,
    /// ClusterRole this ClusterRoleBinding should reference
    #[arg(long)]
    clusterrole: Option<String>,
    #[command(flatten)]
    subjects: Subjects,
    #[command(flatten)]
    pub common: Common,
}

impl ClusterRoleBinding {
    pub(super) fn generate(&self) -> Result<Generated> {
        let Some(role) = &self.clusterrole else {
            bail!("required flag(s) \"clusterrole\" not set");
        };
        let object = binding(
            "ClusterRoleBinding",
            &self.name,
            &self.subjects.list()?,
            "ClusterRole",
            role,
        );
        Ok(Generated::new(object, "clusterrolebinding:"))
    }
}

fn binding(kind: &str, name: &str, subjects: &[Value], role_kind: &str, role: &str) -> Value {
    let mut object = json!({
        "kind": kind, "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}});
    if !subjects.is_empty() {
        object["subjects"] = json!(subjects);
    }
    object["roleRef"] =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role});
    object
}
