//! The selectors of all autoscalers, to find those that select the same pods. An autoscaler is compared only with those of
//! its namespace whose selector requires a label of its pods, or none at all.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use machinery::labels::Selector;
use reconcile::Key;

use crate::shared::selected_key;

/// The selectors by autoscaler, and the autoscalers by one label that their selector requires.
#[derive(Default)]
pub(super) struct Selectors {
    by_autoscaler: HashMap<Key, Selector>,
    by_label: HashMap<String, HashSet<Key>>,
}

impl Selectors {
    /// Sets the selector of an autoscaler's target.
    pub(super) fn set(&mut self, key: &Key, selector: &Selector) {
        if self.by_autoscaler.get(key) == Some(selector) {
            return;
        }
        self.remove(key);
        let label = label_key(&key.namespace, selector);
        self.by_label.entry(label).or_default().insert(key.clone());
        self.by_autoscaler.insert(key.clone(), selector.clone());
    }

    /// Forgets a deleted autoscaler.
    pub(super) fn remove(&mut self, key: &Key) {
        let Some(selector) = self.by_autoscaler.remove(key) else {
            return;
        };
        let label = label_key(&key.namespace, &selector);
        if let Some(keys) = self.by_label.get_mut(&label) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_label.remove(&label);
            }
        }
    }

    /// Other autoscalers whose selector matches one of these pods, in order.
    pub(super) fn rivals(&self, key: &Key, pods: &[Arc<Pod>]) -> Vec<String> {
        let namespace = &key.namespace;
        // Most pods of a workload have the same labels.
        let sets: BTreeSet<Option<&BTreeMap<String, String>>> = pods
            .iter()
            .map(|pod| pod.metadata.labels.as_ref())
            .collect();
        let labels: BTreeSet<_> = sets
            .iter()
            .flat_map(|set| set.iter().copied().flatten())
            .collect();
        let labels = labels.into_iter();
        let labels = labels.map(|(label, value)| selected_key(namespace, label, value));
        let keys = labels.chain([any_label_key(namespace)]);
        let candidates = keys.flat_map(|label| self.by_label.get(&label).into_iter().flatten());
        let rivals = candidates.filter(|other| {
            let selector = self.by_autoscaler.get(*other).filter(|_| *other != key);
            selector.is_some_and(|selector| sets.iter().any(|set| selects(selector, *set)))
        });
        let mut rivals: Vec<String> = rivals.map(ToString::to_string).collect();
        rivals.sort();
        rivals
    }
}

/// The key of autoscalers whose selectors require no certain label.
fn any_label_key(namespace: &str) -> String {
    format!("{namespace} ")
}

fn label_key(namespace: &str, selector: &Selector) -> String {
    let mut required = selector.requirements().iter();
    let required = required.find_map(|one| Some((&one.key, selector.exact(&one.key)?)));
    match required {
        Some((label, value)) => selected_key(namespace, label, value),
        None => any_label_key(namespace),
    }
}

fn selects(selector: &Selector, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector.matches(|key| labels?.get(key).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods(labels: &[serde_json::Value]) -> Vec<Arc<Pod>> {
        let pod = |labels| serde_json::from_value(json!({"metadata": {"labels": labels}}));
        labels
            .iter()
            .map(|labels| Arc::new(pod(labels).unwrap()))
            .collect()
    }

    #[test]
    fn rivals_are_those_of_the_namespace_that_select_one_of_the_pods_whatever_their_form() {
        let mut selectors = Selectors::default();
        for (namespace, name, selector) in [
            ("a", "web", "app=web"),
            ("a", "same", "app=web"),
            ("a", "front", "app=web,tier=front"),
            ("a", "back", "app=web,tier=back"),
            ("a", "several", "app in (web,api)"),
            ("a", "not", "app!=web"),
            ("a", "moved", "app=web"),
            ("a", "gone", "app=web"),
            ("b", "web", "app=web"),
        ] {
            selectors.set(
                &Key::new(namespace, name),
                &Selector::parse(selector).unwrap(),
            );
        }
        selectors.set(&Key::new("a", "moved"), &Selector::parse("app=x").unwrap());
        selectors.remove(&Key::new("a", "gone"));
        let web = Key::new("a", "web");
        let found = |labels: &[serde_json::Value]| selectors.rivals(&web, &pods(labels));
        assert_eq!(found(&[json!({"app": "web"})]), ["a/same", "a/several"]);
        assert_eq!(
            found(&[
                json!({"app": "web"}),
                json!({"app": "web", "tier": "front"})
            ]),
            ["a/front", "a/same", "a/several"]
        );
        assert_eq!(found(&[json!({"app": "x"})]), ["a/moved", "a/not"]);
        assert_eq!(found(&[json!({})]), ["a/not"]);
        assert!(found(&[]).is_empty());
    }

    #[test]
    fn nothing_is_left_of_removed_autoscalers() {
        let mut selectors = Selectors::default();
        for selector in ["app=web", "app!=web", "app=other"] {
            selectors.set(&Key::new("a", "web"), &Selector::parse(selector).unwrap());
        }
        assert_eq!(
            (selectors.by_autoscaler.len(), selectors.by_label.len()),
            (1, 1)
        );
        selectors.remove(&Key::new("a", "web"));
        assert!(selectors.by_autoscaler.is_empty() && selectors.by_label.is_empty());
    }
}
