//! Webhooks compiled from their configurations, indexed by resource.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kinds::tree;
use machinery::{Object, Value};
use webhook::ClientConfig;

use super::super::matching::{MatchConditions, MatchPolicy, ResourceRules, Selectors, Variables};

/// One webhook of a configuration.
pub(super) struct Hook {
    pub(super) name: String,
    pub(super) configuration: String,
    /// Unique among all webhooks.
    pub(super) id: String,
    pub(super) client: ClientConfig,
    pub(super) rules: ResourceRules,
    pub(super) policy: MatchPolicy,
    pub(super) selectors: Selectors,
    pub(super) conditions: MatchConditions,
    /// Whether the failure policy is Ignore.
    pub(super) ignores_failures: bool,
    pub(super) timeout: Duration,
    /// Whether it may be called in a dry run; `None` if unknown.
    pub(super) is_pure_in_dry_run: Option<bool>,
    pub(super) is_reinvocable: bool,
    /// The first review version that both sides support.
    pub(super) review: Option<Version>,
}

/// Versions of AdmissionReview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1beta1,
}

impl Hook {
    fn read(configuration: &str, hook: &Value, repeated: usize) -> Self {
        let name = tree::text(&hook["name"]).to_owned();
        let versions = tree::list(&hook["admissionReviewVersions"]).iter();
        let mut versions = versions.filter_map(|version| match version.as_str() {
            Some("v1") => Some(Version::V1),
            Some("v1beta1") => Some(Version::V1beta1),
            _ => None,
        });
        let seconds = hook["timeoutSeconds"].as_u64().unwrap_or(10);
        let variables = Variables {
            params: false,
            authorizer: true,
        };
        Self {
            id: format!("{configuration}/{name}/{repeated}"),
            name,
            configuration: configuration.to_owned(),
            client: ClientConfig::read(&hook["clientConfig"]),
            rules: ResourceRules::read(&hook["rules"]),
            policy: MatchPolicy::read(&hook["matchPolicy"]),
            selectors: Selectors::read(hook),
            conditions: MatchConditions::read(&hook["matchConditions"], variables),
            ignores_failures: hook["failurePolicy"] == "Ignore",
            timeout: Duration::from_secs(seconds.clamp(1, 30)),
            is_pure_in_dry_run: hook["sideEffects"]
                .as_str()
                .map(|class| matches!(class, "None" | "NoneOnDryRun")),
            is_reinvocable: hook["reinvocationPolicy"] == "IfNeeded",
            review: versions.next(),
        }
    }

    /// All webhooks of a configuration.
    pub(super) fn read_all(configuration: &Object) -> Vec<Arc<Self>> {
        let owner = tree::name(configuration);
        let mut seen: HashMap<&str, usize> = HashMap::new();
        let all = tree::list(tree::get(configuration, "webhooks")).iter();
        all.map(|hook| {
            let count = seen.entry(tree::text(&hook["name"])).or_default();
            let read = Self::read(owner, hook, *count);
            *count += 1;
            Arc::new(read)
        })
        .collect()
    }
}

/// All webhooks of a kind in the order of invocation.
#[derive(Default)]
pub(super) struct Index {
    /// By the plural name of a resource in the rules, including those for every resource.
    by_resource: HashMap<String, Vec<Entry>>,
    /// Those for every resource.
    everywhere: Vec<Entry>,
}

/// A webhook and its position.
pub(super) type Entry = (usize, Arc<Hook>);

impl Index {
    /// `all` in their order.
    pub(super) fn new(all: Vec<Arc<Hook>>) -> Self {
        let mut index = Self::default();
        let named = all.iter().filter_map(|hook| hook.rules.resources());
        for resource in named.flatten() {
            index.by_resource.entry(resource.to_owned()).or_default();
        }
        for entry in all.iter().cloned().enumerate() {
            match entry.1.rules.resources() {
                None => {
                    let lists = index.by_resource.values_mut();
                    for list in lists.chain([&mut index.everywhere]) {
                        list.push(entry.clone());
                    }
                }
                Some(mut names) => {
                    names.sort_unstable();
                    names.dedup();
                    for name in names {
                        if let Some(list) = index.by_resource.get_mut(name) {
                            list.push(entry.clone());
                        }
                    }
                }
            }
        }
        index
    }

    /// Webhooks that may match a resource.
    pub(super) fn find(&self, resource: &str) -> &[Entry] {
        self.by_resource.get(resource).unwrap_or(&self.everywhere)
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    #[test]
    fn webhooks_are_found_by_resource_in_their_order() {
        let hook = |name: &str, resources: Value| {
            json!({"name": name, "clientConfig": {"url": "https://x"}, "rules": [{
                "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources}]})
        };
        let configuration = object(json!({"metadata": {"name": "c"}, "webhooks": [
            hook("a", json!(["pods", "pods/status"])), hook("b", json!(["*"])),
            hook("c", json!(["pods"])), hook("c", json!(["nodes"]))]}));
        let hooks = Hook::read_all(&configuration);
        assert_eq!(hooks[3].id, "c/c/1");
        let index = Index::new(hooks);
        let names = |resource: &str| {
            let found = index.find(resource).iter();
            let found = found.map(|(place, hook)| format!("{place}{}", hook.name));
            found.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("pods"), "0a 1b 2c");
        assert_eq!(names("nodes"), "1b 3c");
        assert_eq!(names("secrets"), "1b");
    }
}
