//! Aggregated ClusterRoles: their rules are those of all ClusterRoles that their selectors match.

use std::{collections::HashSet, sync::Arc};

use client::Api;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use reconcile::{Action, Controller, Error, Key, Selector};
use serde_json::json;

use crate::shared::{AGGREGATE, Shared};

/// The name in [`crate::ALL`].
pub const NAME: &str = "clusterrole-aggregation";
const ACCOUNT: &str = "clusterrole-aggregation-controller";

struct Aggregator {
    client: kube::Client,
    roles: client::Informer<ClusterRole>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Aggregator {
        client: shared.client(ACCOUNT),
        roles: shared.informer(),
    });
    let lookup = controller.roles.clone();
    shared
        .controller(&controller)
        .watches_with(&controller.roles, move |event| {
            let aggregates = lookup.by_index(AGGREGATE, AGGREGATE).into_iter();
            let concerned = aggregates.filter(|aggregate| {
                let versions = event.old().into_iter().chain([event.object()]);
                versions.into_iter().any(|role| is_part(role, aggregate))
            });
            concerned.map(|role| Key::from_object(&*role)).collect()
        })
        .start();
}

impl Controller for Aggregator {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(role) = self.roles.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let Some(rules) = decide(&role, &self.parts(&role)) else {
            return Ok(Action::Done);
        };
        let api: Api<ClusterRole> = Api::all(self.client.clone());
        let patch = json!({
            "metadata": {"resourceVersion": role.metadata.resource_version},
            "rules": rules,
        });
        let written = api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        self.roles
            .reached(&written.metadata.resource_version.unwrap_or_default())
            .await;
        Ok(Action::Done)
    }
}

impl Aggregator {
    /// The ClusterRoles that the selectors of an aggregate match. Others are not decoded.
    fn parts(&self, aggregate: &ClusterRole) -> Vec<Arc<ClusterRole>> {
        let selectors: Vec<_> = selectors(aggregate).collect();
        self.roles.select_in("", |role| {
            let mut selectors = selectors.iter();
            selectors.any(|selector| selector.matches_with(|key| role.label(key)))
        })
    }
}

fn selectors(aggregate: &ClusterRole) -> impl Iterator<Item = Selector> {
    let rule = aggregate.aggregation_rule.iter();
    let selectors = rule.flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
    selectors.map(|selector| Selector::from_label_selector(Some(selector)))
}

/// Whether a change of a ClusterRole concerns an aggregate: it is the aggregate, or may be a part of it.
fn is_part(role: &ClusterRole, aggregate: &ClusterRole) -> bool {
    let labels = role.metadata.labels.as_ref();
    role.metadata.name == aggregate.metadata.name
        || selectors(aggregate).any(|selector| selector.matches(labels))
}

/// The rules that the ClusterRole should have; `None` if it has them.
fn decide(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    role.aggregation_rule.as_ref()?;
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut seen = HashSet::new();
    for selector in selectors(role) {
        let parts = all.iter().filter(|part| {
            part.metadata.name != role.metadata.name
                && selector.matches(part.metadata.labels.as_ref())
        });
        for rule in parts.flat_map(|part| part.rules.iter().flatten()) {
            if seen.insert(json!(rule).to_string()) {
                rules.push(rule.clone());
            }
        }
    }
    (role.rules.as_deref().unwrap_or_default() != rules).then_some(rules)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::rbac::v1::AggregationRule, apimachinery::pkg::apis::meta::v1::LabelSelector,
    };

    use super::*;

    fn role(name: &str, label: &str, verbs: &[&str]) -> ClusterRole {
        let rule = |verb: &&str| PolicyRule {
            verbs: vec![(*verb).into()],
            ..Default::default()
        };
        let mut role = ClusterRole {
            rules: Some(verbs.iter().map(rule).collect()),
            ..Default::default()
        };
        role.metadata.name = Some(name.into());
        role.metadata.labels = Some([(label.to_owned(), "true".to_owned())].into());
        role
    }

    #[test]
    fn an_aggregate_has_the_rules_of_its_parts_once_each() {
        let selector = LabelSelector {
            match_labels: Some([("to-view".to_owned(), "true".to_owned())].into()),
            ..Default::default()
        };
        let mut view = role("view", "other", &[]);
        view.aggregation_rule = Some(AggregationRule {
            cluster_role_selectors: Some(vec![selector]),
        });
        let parts = [
            role("a", "to-view", &["get", "list"]),
            role("b", "to-view", &["get"]),
            role("c", "to-edit", &["create"]),
        ];
        let rules = decide(&view, &parts.map(Arc::new)).unwrap();
        let verbs: Vec<_> = rules.iter().flat_map(|rule| rule.verbs.clone()).collect();
        assert_eq!(verbs, ["get", "list"]);
        view.rules = Some(rules);
        let parts = [
            role("a", "to-view", &["get", "list"]),
            role("b", "to-view", &["get"]),
        ];
        assert!(decide(&view, &parts.map(Arc::new)).is_none());
    }

    #[test]
    fn a_change_concerns_the_aggregate_itself_and_those_that_select_the_role() {
        let selector = |label: &str| LabelSelector {
            match_labels: Some([(label.to_owned(), "true".to_owned())].into()),
            ..Default::default()
        };
        let mut aggregate = role("view", "other", &[]);
        aggregate.aggregation_rule = Some(AggregationRule {
            cluster_role_selectors: Some(vec![selector("to-view"), selector("to-edit")]),
        });
        for (name, label, expected) in [
            ("view", "any", true),
            ("a", "to-view", true),
            ("a", "to-edit", true),
            ("a", "other", false),
        ] {
            let role = role(name, label, &["get"]);
            assert_eq!(is_part(&role, &aggregate), expected, "{name} {label}");
        }
    }
}
