//! Which requests are logged, and how much of each: the policy file of `audit.k8s.io/v1`. The first
//! matching rule decides; requests without a matching rule are not logged.

use std::path::Path;

use request::{RequestInfo, ResourceRequest, User};
use serde::Deserialize;

/// How much of a request is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
pub enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

/// A stage of a request at which an event is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

/// The policy as its file states it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Policy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: Option<machinery::json::Value>,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// The policy's decision for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) level: Level,
    pub(crate) omit_stages: Vec<Stage>,
    pub(crate) omit_managed_fields: bool,
}

impl Policy {
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let because = |why: String| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| because(error.to_string()))?;
        Self::parse(&text).map_err(because)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut policy: Self = machinery::yaml::from_str(text)?;
        if policy.api_version != "audit.k8s.io/v1" || policy.kind != "Policy" {
            return Err("expected apiVersion audit.k8s.io/v1 and kind Policy".to_owned());
        }
        if policy.rules.is_empty() {
            return Err("loaded illegal policy with 0 rules".to_owned());
        }
        for (index, rule) in policy.rules.iter_mut().enumerate() {
            rule.check()
                .map_err(|why| format!("rules[{index}].{why}"))?;
            rule.omit_stages.extend(&policy.omit_stages);
        }
        Ok(policy)
    }

    /// Decides what is logged of a request; `user` is `None` if authentication failed.
    pub(crate) fn evaluate(&self, user: Option<&User>, info: &RequestInfo) -> Verdict {
        match self.rules.iter().find(|rule| rule.matches(user, info)) {
            Some(rule) => Verdict {
                level: rule.level,
                omit_stages: rule.omit_stages.clone(),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Verdict {
                level: Level::None,
                omit_stages: Vec::new(),
                omit_managed_fields: false,
            },
        }
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == wanted)
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        for (index, url) in self.non_resource_urls.iter().enumerate() {
            let wrong = |why| {
                Err(format!(
                    "nonResourceURLs[{index}]: Invalid value: {url:?}: {why}"
                ))
            };
            if url != "*" && !url.starts_with('/') {
                return wrong("non-resource URL rules must begin with a '/' character");
            }
            if url.strip_suffix('*').unwrap_or(url).contains('*') {
                return wrong(
                    "non-resource URL wildcards '*' must be the final character of the rule",
                );
            }
        }
        for resources in &self.resources {
            let group = &resources.group;
            if group.contains('/') || group.bytes().any(|b| b.is_ascii_uppercase()) {
                return Err(format!(
                    "resources.group: Invalid value: {group:?}: a lowercase RFC 1123 subdomain is wanted"
                ));
            }
            if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                return Err(
                    "resources.resourceNames: using resourceNames requires at least one resource"
                        .to_owned(),
                );
            }
        }
        let both = !self.resources.is_empty() || !self.namespaces.is_empty();
        if !self.non_resource_urls.is_empty() && both {
            return Err("nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs".to_owned());
        }
        Ok(())
    }

    fn matches(&self, user: Option<&User>, info: &RequestInfo) -> bool {
        let named = |user: &User| has(&self.users, &user.name);
        let grouped = |user: &User| {
            user.groups
                .iter()
                .any(|group| has(&self.user_groups, group))
        };
        if !self.users.is_empty() && !user.is_some_and(named)
            || !self.user_groups.is_empty() && !user.is_some_and(grouped)
            || !self.verbs.is_empty() && !has(&self.verbs, info.verb)
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.resource.as_ref().is_some_and(|r| self.covers(r));
        }
        self.non_resource_urls.is_empty()
            || info.resource.is_none()
                && self.non_resource_urls.iter().any(|url| {
                    let start = url.strip_suffix('*');
                    *url == info.path || start.is_some_and(|start| info.path.starts_with(start))
                })
    }

    fn covers(&self, request: &ResourceRequest) -> bool {
        if !self.namespaces.is_empty() && !has(&self.namespaces, &request.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|group| group.matches(request))
    }
}

impl GroupResources {
    fn matches(&self, request: &ResourceRequest) -> bool {
        if self.group != "*" && self.group != request.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !has(&self.resource_names, &request.name) {
            return false;
        }
        let (resource, below) = (request.resource.as_str(), request.subresource.as_str());
        self.resources
            .iter()
            .any(|rule| match rule.split_once('/') {
                _ if rule == "*" => true,
                None => below.is_empty() && rule == resource,
                Some(("*", "*")) => true,
                Some(("*", sub)) => sub == below && !below.is_empty(),
                Some((of, "*")) => of == resource,
                Some((of, sub)) => of == resource && sub == below,
            })
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use request::Query;

    use super::*;

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: ["watch"]
  resources: [{group: "", resources: ["endpoints", "services"]}]
- level: None
  nonResourceURLs: ["/api*", "/version"]
- level: Request
  resources: [{group: "", resources: ["configmaps"], resourceNames: ["leader"]}]
  namespaces: ["kube-system"]
  omitManagedFields: false
- level: Metadata
  resources: [{group: "", resources: ["secrets", "pods/log", "*/status"]}]
  omitStages: [ResponseStarted]
- level: RequestResponse
  userGroups: ["ops"]
  resources: [{group: "apps"}, {group: "batch", resources: ["jobs/*"]}]
"#;

    fn level(policy: &Policy, user: &User, method: Method, uri: &str) -> Level {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let info = RequestInfo::new(&method, path, &Query::parse(query));
        policy.evaluate(Some(user), &info).level
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Policy::parse(POLICY).unwrap();
        let (eve, ops) = (User::new("eve", [""; 0]), User::new("bob", ["ops"]));
        let proxy = User::new("system:kube-proxy", [""; 0]);
        let cases = [
            (&proxy, "/api/v1/services?watch=1", Level::None),
            (&eve, "/apis", Level::None),
            (&eve, "/version", Level::None),
            (&eve, "/versions", Level::None),
            (
                &eve,
                "/api/v1/namespaces/kube-system/configmaps/leader",
                Level::Request,
            ),
            (
                &eve,
                "/api/v1/namespaces/kube-system/configmaps/other",
                Level::None,
            ),
            (
                &eve,
                "/api/v1/namespaces/default/configmaps/leader",
                Level::None,
            ),
            (&eve, "/api/v1/secrets", Level::Metadata),
            (&eve, "/api/v1/namespaces/a/pods/b/log", Level::Metadata),
            (&eve, "/api/v1/namespaces/a/pods/b", Level::None),
            (&eve, "/api/v1/namespaces/a/pods/b/status", Level::Metadata),
            (&eve, "/apis/apps/v1/deployments", Level::None),
            (&ops, "/apis/apps/v1/deployments", Level::RequestResponse),
            (
                &ops,
                "/apis/batch/v1/namespaces/a/jobs/b/status",
                Level::RequestResponse,
            ),
        ];
        for (user, uri, expected) in cases {
            assert_eq!(level(&policy, user, Method::GET, uri), expected, "{uri}");
        }
    }

    #[test]
    fn stages_of_the_policy_and_of_the_rule_are_omitted_together() {
        let policy = Policy::parse(POLICY).unwrap();
        let ask = |path: &str| {
            let info = RequestInfo::new(&Method::GET, path, &Query::parse(""));
            policy.evaluate(None, &info)
        };
        let secrets = ask("/api/v1/secrets");
        assert_eq!(
            secrets.omit_stages,
            [Stage::ResponseStarted, Stage::RequestReceived]
        );
        assert!(secrets.omit_managed_fields);
        let leader = ask("/api/v1/namespaces/kube-system/configmaps/leader");
        assert!(!leader.omit_managed_fields);
    }

    #[test]
    fn empty_and_invalid_audit_policies_are_refused() {
        let head = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n";
        let refused = |rules: &str| Policy::parse(&format!("{head}{rules}")).err().unwrap();
        assert!(Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: []").is_err());
        assert!(Policy::parse("apiVersion: v1\nkind: Policy\nrules: [{level: None}]").is_err());
        refused("- level: Everything");
        refused("- level: None\n  reources: []");
        assert!(refused("- level: None\n  nonResourceURLs: [\"a\"]").contains("begin with a '/'"));
        assert!(
            refused("- level: None\n  nonResourceURLs: [\"/a*b\"]").contains("final character")
        );
        let both = "- level: None\n  nonResourceURLs: [\"/a\"]\n  namespaces: [\"x\"]";
        assert!(refused(both).contains("cannot apply to both"));
        let names = "- level: None\n  resources: [{group: \"\", resourceNames: [\"x\"]}]";
        assert!(refused(names).contains("requires at least one resource"));
    }
}
