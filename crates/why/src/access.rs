//! Whether and why a user may do something, and which Role would allow it.

use client::{Api, kube};
use k8s_openapi::{
    api::{
        authorization::v1::{
            NonResourceAttributes, ResourceAttributes, SubjectAccessReview,
            SubjectAccessReviewSpec, SubjectAccessReviewStatus,
        },
        rbac::v1::{ClusterRole, PolicyRule},
    },
    apimachinery::pkg::apis::meta::v1::APIResource,
};
use kube::{
    ResourceExt,
    api::{ListParams, PostParams},
};

use crate::{Answer, Error, Result};

/// Maximum number of listed roles.
const SHOWN: usize = 5;

/// The user and the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    user: String,
    groups: Vec<String>,
    verb: String,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Resource {
        group: String,
        resource: String,
        subresource: String,
        name: Option<String>,
        /// `None` for cluster-scoped resources.
        namespace: Option<String>,
    },
    Path(String),
}

impl Access {
    /// Parses `alice`, `system:serviceaccount:NS:NAME` or `sa/NS/NAME`; `pods`, `pods/log`,
    /// `deployments.apps` or `/healthz`.
    pub fn parse(
        user: &str,
        groups: &[String],
        verb: &str,
        resource: &str,
        name: Option<&str>,
        namespace: &str,
    ) -> Result<Self> {
        if resource.is_empty() || verb.is_empty() || user.is_empty() {
            return Err(Error::Question(
                "a user, a verb and a resource are needed".to_owned(),
            ));
        }
        let user = match user
            .strip_prefix("sa/")
            .and_then(|account| account.split_once('/'))
        {
            Some((namespace, name)) => format!("system:serviceaccount:{namespace}:{name}"),
            None => user.to_owned(),
        };
        let mut groups = groups.to_vec();
        groups.extend(account_groups(&user));
        let what = if resource.starts_with('/') {
            What::Path(resource.to_owned())
        } else {
            let (whole, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let (resource, group) = whole.split_once('.').unwrap_or((whole, ""));
            What::Resource {
                group: group.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                name: name.map(str::to_owned),
                namespace: Some(namespace.to_owned()),
            }
        };
        let verb = verb.to_owned();
        Ok(Self {
            user,
            groups,
            verb,
            what,
        })
    }

    /// The same with the group and plural of the resource, which may be a kind, a singular or a short
    /// name, and for the whole cluster, if the resource is cluster-scoped.
    fn resolved(mut self, known: &[GroupResource]) -> Self {
        let What::Resource {
            group,
            resource,
            namespace,
            ..
        } = &mut self.what
        else {
            return self;
        };
        let is_meant = |one: &&GroupResource| one.has_name(resource);
        if let Some(found) = known.iter().find(is_meant) {
            group.clone_from(&found.group);
            resource.clone_from(&found.resource.name);
            if !found.resource.namespaced {
                *namespace = None;
            }
        }
        self
    }

    /// Whether the server has no such resource, as far as discovery tells.
    fn is_unknown(&self, known: &[GroupResource]) -> bool {
        match &self.what {
            What::Path(_) => false,
            What::Resource { resource, .. } => {
                let has_it = known.iter().any(|one| one.has_name(resource));
                resource != "*" && !known.is_empty() && !has_it
            }
        }
    }

    fn review(&self) -> SubjectAccessReview {
        let mut spec = SubjectAccessReviewSpec {
            user: Some(self.user.clone()),
            groups: Some(self.groups.clone()),
            ..SubjectAccessReviewSpec::default()
        };
        match &self.what {
            What::Path(path) => {
                spec.non_resource_attributes = Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb: Some(self.verb.clone()),
                });
            }
            What::Resource {
                group,
                resource,
                subresource,
                name,
                namespace,
            } => {
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some(group.clone()),
                    resource: Some(resource.clone()),
                    subresource: Some(subresource.clone()),
                    name: name.clone(),
                    namespace: namespace.clone(),
                    verb: Some(self.verb.clone()),
                    ..ResourceAttributes::default()
                });
            }
        }
        SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        }
    }

    /// Whether one rule allows it.
    fn is_allowed_by(&self, rule: &PolicyRule) -> bool {
        let has = |list: &Option<Vec<String>>, wanted: &str| {
            list.iter()
                .flatten()
                .any(|item| item == "*" || item == wanted)
        };
        if !rule
            .verbs
            .iter()
            .any(|verb| verb == "*" || *verb == self.verb)
        {
            return false;
        }
        match &self.what {
            What::Path(path) => {
                rule.non_resource_urls
                    .iter()
                    .flatten()
                    .any(|url| match url.strip_suffix('*') {
                        Some(prefix) => path.starts_with(prefix),
                        None => url == path,
                    })
            }
            What::Resource {
                group,
                resource,
                subresource,
                name,
                ..
            } => {
                let names = rule.resource_names.as_deref().unwrap_or_default();
                let named =
                    names.is_empty() || name.as_ref().is_some_and(|name| names.contains(name));
                let full = match &subresource[..] {
                    "" => resource.clone(),
                    subresource => format!("{resource}/{subresource}"),
                };
                named && has(&rule.api_groups, group) && has(&rule.resources, &full)
            }
        }
    }

    fn sentence(&self) -> String {
        let Self {
            user, verb, what, ..
        } = self;
        match what {
            What::Path(path) => format!("{user} {{}} {verb} {path}"),
            What::Resource {
                name, namespace, ..
            } => {
                let name = name.as_ref().map(|name| format!(" {name}"));
                let (name, resource) = (name.unwrap_or_default(), what.full_resource());
                let place = namespace
                    .as_ref()
                    .map(|name| format!(" in namespace {name}"));
                let place = place.unwrap_or_default();
                format!("{user} {{}} {verb} {resource}{name}{place}")
            }
        }
    }

    /// The commands that would allow it.
    fn remedy(&self) -> Vec<String> {
        let subject = match self.user.strip_prefix("system:serviceaccount:") {
            Some(account) => format!("--serviceaccount={account}"),
            None => format!("--user={}", self.user),
        };
        let verb = &self.verb;
        match &self.what {
            What::Path(path) => vec![
                format!("kubectl create clusterrole NAME --verb={verb} --non-resource-url={path}"),
                format!("kubectl create clusterrolebinding NAME --clusterrole=NAME {subject}"),
            ],
            What::Resource {
                name, namespace, ..
            } => {
                let only = name.as_ref().map(|name| format!(" --resource-name={name}"));
                let (only, resource) = (only.unwrap_or_default(), self.what.full_resource());
                let rule = format!("--verb={verb} --resource={resource}{only}");
                match namespace {
                    Some(namespace) => vec![
                        format!("kubectl create role NAME -n {namespace} {rule}"),
                        format!(
                            "kubectl create rolebinding NAME -n {namespace} --role=NAME {subject}"
                        ),
                    ],
                    None => vec![
                        format!("kubectl create clusterrole NAME {rule}"),
                        format!(
                            "kubectl create clusterrolebinding NAME --clusterrole=NAME {subject}"
                        ),
                    ],
                }
            }
        }
    }
}

impl What {
    /// As `deployments.apps/scale`.
    fn full_resource(&self) -> String {
        let Self::Resource {
            group,
            resource,
            subresource,
            ..
        } = self
        else {
            return String::new();
        };
        let mut text = resource.clone();
        for (separator, part) in [('.', group), ('/', subresource)] {
            if !part.is_empty() {
                text.push(separator);
                text.push_str(part);
            }
        }
        text
    }
}

/// The groups that the server adds.
fn account_groups(user: &str) -> Vec<String> {
    let authenticated = "system:authenticated".to_owned();
    match user
        .strip_prefix("system:serviceaccount:")
        .and_then(|account| account.split_once(':'))
    {
        Some((namespace, _)) => vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            authenticated,
        ],
        None if user == "system:anonymous" => vec!["system:unauthenticated".to_owned()],
        None => vec![authenticated],
    }
}

/// A resource and its group.
#[derive(Debug, Clone)]
struct GroupResource {
    group: String,
    resource: APIResource,
}

impl GroupResource {
    /// Whether the resource is called so: by plural, singular, kind or short name.
    fn has_name(&self, name: &str) -> bool {
        let resource = &self.resource;
        let name = name.to_lowercase();
        let is_short = |short: &String| *short == name;
        resource.name == name
            || resource.singular_name == name
            || resource.kind.to_lowercase() == name
            || resource.short_names.iter().flatten().any(is_short)
    }
}

/// The resources that the question may be about: of its group, or else of all groups, core first.
/// None if discovery fails.
async fn resources(client: &kube::Client, asked: &Access) -> Vec<GroupResource> {
    let wanted = match &asked.what {
        What::Path(_) => return Vec::new(),
        What::Resource { group, .. } => group,
    };
    let of_group = |group: &str, resources: Vec<APIResource>| {
        let is_whole = |resource: &APIResource| !resource.name.contains('/');
        let found = |resource| GroupResource {
            group: group.to_owned(),
            resource,
        };
        let whole = resources.into_iter().filter(is_whole);
        whole.map(found).collect::<Vec<_>>()
    };
    let mut known = Vec::new();
    if wanted.is_empty()
        && let Ok(core) = client.list_core_api_resources("v1").await
    {
        known.extend(of_group("", core.resources));
        if !asked.is_unknown(&known) {
            return known;
        }
    }
    let groups = client.list_api_groups().await.unwrap_or_default().groups;
    let is_wanted = |name: &str| wanted.is_empty() || name == wanted;
    for group in groups.into_iter().filter(|group| is_wanted(&group.name)) {
        for version in &group.versions {
            let version = &version.group_version;
            if let Ok(list) = client.list_api_group_resources(version).await {
                known.extend(of_group(&group.name, list.resources));
            }
        }
    }
    known
}

pub(crate) async fn answer(client: &kube::Client, asked: &Access) -> Result<Answer> {
    let known = resources(client, asked).await;
    let asked = &asked.clone().resolved(&known);
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &asked.review())
        .await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let roles = roles.list(&ListParams::default()).await?;
    let status = review.status.unwrap_or_default();
    Ok(explain(asked, &status, &roles, asked.is_unknown(&known)))
}

fn explain(
    asked: &Access,
    status: &SubjectAccessReviewStatus,
    roles: &[ClusterRole],
    is_unknown: bool,
) -> Answer {
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
    let absent = is_unknown.then(|| "the server has no resource of this name".to_owned());
    if status.allowed {
        let answer = Answer::new(asked.sentence().replace("{}", "may"));
        return answer
            .because_all(reason.map(str::to_owned))
            .because_all(absent);
    }
    let mut answer = Answer::new(asked.sentence().replace("{}", "may not"));
    if let Some(absent) = absent {
        return answer
            .because(absent)
            .next("kubectl api-resources lists the resources of the server");
    }
    answer = match reason {
        Some(reason) => answer.because(reason),
        None => answer.because("no Role or ClusterRole that is bound to this user or one of its groups has such a rule"),
    };
    let enough: Vec<String> = roles
        .iter()
        .filter(|role| {
            role.rules
                .iter()
                .flatten()
                .any(|rule| asked.is_allowed_by(rule))
        })
        .map(ResourceExt::name_any)
        .filter(|name| !name.starts_with("system:"))
        .take(SHOWN)
        .collect();
    if !enough.is_empty() {
        answer = answer.because(format!(
            "these ClusterRoles have one: {}",
            enough.join(", ")
        ));
    }
    asked.remedy().into_iter().fold(answer, Answer::next)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(user: &str, verb: &str, resource: &str, name: Option<&str>) -> Access {
        Access::parse(user, &[], verb, resource, name, "shop").unwrap()
    }

    #[test]
    fn rules_are_read_as_rbac_reads_them() {
        let rule = |value| serde_json::from_value::<PolicyRule>(value).unwrap();
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let logs = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["pods/log"]});
        let one = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["web"]});
        let urls = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz/*"]});
        let cases = [
            (asked("a", "get", "pods", None), &pods, true),
            (asked("a", "list", "pods", None), &pods, false),
            (asked("a", "get", "pods/log", None), &pods, false),
            (asked("a", "get", "pods/log", None), &logs, true),
            (asked("a", "get", "pods.apps", None), &pods, false),
            (asked("a", "get", "pods", None), &one, false),
            (asked("a", "get", "pods", Some("web")), &one, true),
            (asked("a", "get", "/healthz/ping", None), &urls, true),
            (asked("a", "get", "/metrics", None), &urls, false),
        ];
        for (asked, value, allowed) in cases {
            assert_eq!(
                asked.is_allowed_by(&rule(value.clone())),
                allowed,
                "{asked:?} {value}"
            );
        }
    }

    #[test]
    fn no_role_is_proposed_for_a_resource_that_the_server_does_not_have() {
        let asked = asked("alice", "get", "nope", None);
        let text = explain(&asked, &SubjectAccessReviewStatus::default(), &[], true).to_string();
        assert!(text.contains("no resource of this name"), "{text}");
        assert!(!text.contains("create role"), "{text}");
    }

    #[test]
    fn a_refusal_names_the_role_that_would_help() {
        let roles = json!([{"metadata": {"name": "view"}, "rules": [
            {"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments"]}]}]);
        let roles: Vec<ClusterRole> = serde_json::from_value(roles).unwrap();
        let asked = asked("sa/shop/cart", "get", "deployments.apps", None);
        let text =
            explain(&asked, &SubjectAccessReviewStatus::default(), &roles, false).to_string();
        for part in [
            "system:serviceaccount:shop:cart may not get deployments.apps in namespace shop",
            "these ClusterRoles have one: view",
            "-> kubectl create role NAME -n shop --verb=get --resource=deployments.apps",
            "-> kubectl create rolebinding NAME -n shop --role=NAME --serviceaccount=shop:cart",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_cluster_scoped_resource_needs_a_cluster_role() {
        let known = json!([
            {"name": "pods", "singularName": "pod", "kind": "Pod", "namespaced": true, "verbs": []},
            {"name": "nodes", "singularName": "node", "kind": "Node", "namespaced": false, "verbs": []}]);
        let known = of_core(known);
        let nodes = asked("alice", "delete", "nodes", None).resolved(&known);
        let attributes = nodes.review().spec.resource_attributes.unwrap();
        assert_eq!(attributes.namespace, None);
        let text = explain(&nodes, &SubjectAccessReviewStatus::default(), &[], false).to_string();
        for part in [
            "alice may not delete nodes\n",
            "-> kubectl create clusterrole NAME --verb=delete --resource=nodes\n",
            "-> kubectl create clusterrolebinding NAME --clusterrole=NAME --user=alice\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        let pods = asked("alice", "delete", "pods", None);
        assert_eq!(pods.clone().resolved(&known), pods);
    }

    fn of_core(resources: serde_json::Value) -> Vec<GroupResource> {
        let resources: Vec<APIResource> = serde_json::from_value(resources).unwrap();
        let found = |resource| GroupResource {
            group: String::new(),
            resource,
        };
        resources.into_iter().map(found).collect()
    }

    #[test]
    fn a_resource_is_found_by_its_short_name_in_another_group() {
        let deployments = json!({"name": "deployments", "singularName": "deployment", "kind": "Deployment",
            "shortNames": ["deploy"], "namespaced": true, "verbs": []});
        let mut known = of_core(json!([deployments]));
        known[0].group = "apps".to_owned();
        for name in ["deploy", "deployments", "deployment", "Deployment"] {
            let resolved = asked("alice", "get", name, None).resolved(&known);
            assert_eq!(resolved, asked("alice", "get", "deployments.apps", None));
            assert!(!resolved.is_unknown(&known));
        }
        assert!(asked("alice", "get", "deploys", None).is_unknown(&known));
        assert!(!asked("alice", "get", "*", None).is_unknown(&known));
        assert!(!asked("alice", "get", "/healthz", None).is_unknown(&known));
    }

    #[test]
    fn service_accounts_are_in_their_groups() {
        let review = asked("sa/shop/cart", "get", "pods", None).review();
        let expected = [
            "system:serviceaccounts",
            "system:serviceaccounts:shop",
            "system:authenticated",
        ];
        assert_eq!(review.spec.groups.unwrap(), expected);
    }
}
