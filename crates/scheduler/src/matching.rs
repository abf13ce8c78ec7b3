//! Which pods a selector of another pod matches: namespaces and labels, and an index over many
//! selectors that finds those that can match a set of labels without checking each.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use reconcile::Selector;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The labels of namespaces, by name.
pub type Namespaces = BTreeMap<String, Labels>;

/// What other pods' selectors see of a pod. Pods of one workload share it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LabelSet {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's labels.
    pub labels: Labels,
    /// Whether the pod is being deleted: topology spreading ignores it.
    pub terminating: bool,
}

/// Selects pods by namespace and labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matcher {
    /// Namespaces by name.
    pub namespaces: Vec<String>,
    /// Namespaces by their labels, beside those by name.
    pub namespace_selector: Option<Selector>,
    /// The pods' labels.
    pub selector: Selector,
}

impl Matcher {
    /// Pods of one namespace.
    pub fn within(namespace: &str, selector: Selector) -> Self {
        Self {
            namespaces: vec![namespace.to_owned()],
            namespace_selector: None,
            selector,
        }
    }

    /// Whether it selects this namespace.
    pub fn covers(&self, namespace: &str, namespaces: &Namespaces) -> bool {
        let by_name = self.namespaces.iter().any(|name| name == namespace);
        by_name
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                selector.is_everything() || selector.matches(namespaces.get(namespace))
            })
    }

    /// Whether a pod with these labels is selected.
    pub fn matches(&self, pod: &LabelSet, namespaces: &Namespaces) -> bool {
        self.selector.matches(Some(&pod.labels)) && self.covers(&pod.namespace, namespaces)
    }
}

/// Items by a label that their selectors require.
#[derive(Debug)]
pub struct SelectorIndex<T> {
    by_label: HashMap<String, HashMap<Box<str>, Vec<T>>>,
    /// Items whose selectors require no specific label.
    rest: Vec<T>,
}

impl<T> Default for SelectorIndex<T> {
    fn default() -> Self {
        Self {
            by_label: HashMap::new(),
            rest: Vec::new(),
        }
    }
}

impl<T: PartialEq> SelectorIndex<T> {
    /// Adds an item.
    pub fn insert(&mut self, selector: &Selector, item: T) {
        match selector.required_label() {
            None => self.rest.push(item),
            Some((key, value)) => {
                let values = self.by_label.entry(key.to_owned()).or_default();
                let items = values.entry(value.into()).or_default();
                if items.is_empty() {
                    // Usually it stays the only one.
                    items.reserve_exact(1);
                }
                items.push(item);
            }
        }
    }

    /// Removes an item that was added with this selector.
    pub fn remove(&mut self, selector: &Selector, item: &T) {
        let Some((key, value)) = selector.required_label() else {
            return self.rest.retain(|other| other != item);
        };
        let Some(values) = self.by_label.get_mut(key) else {
            return;
        };
        if let Some(items) = values.get_mut(value) {
            items.retain(|other| other != item);
            if items.is_empty() {
                values.remove(value);
            }
        }
        if values.is_empty() {
            self.by_label.remove(key);
        }
    }

    /// Every item whose selector can match these labels, and possibly some more.
    pub fn candidates<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a T> {
        let indexed = labels
            .iter()
            .filter_map(|(key, value)| self.by_label.get(key)?.get(value.as_str()));
        indexed.flatten().chain(&self.rest)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn the_index_finds_whatever_can_match() {
        let exists = LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "app".into(),
                operator: "Exists".into(),
                values: None,
            }]),
            ..Default::default()
        };
        let mut index = SelectorIndex::default();
        let web = Selector::labels(&labels(&[("app", "web")]));
        index.insert(&web, 1);
        index.insert(&Selector::from_label_selector(Some(&exists)), 2);
        index.insert(&Selector::labels(&labels(&[("app", "db")])), 3);
        let found = |index: &SelectorIndex<i32>, pairs| {
            let labels = labels(pairs);
            index.candidates(&labels).copied().collect::<Vec<_>>()
        };
        assert_eq!(found(&index, &[("app", "web"), ("tier", "a")]), [1, 2]);
        assert_eq!(found(&index, &[("tier", "a")]), [2]);
        index.remove(&web, &1);
        assert_eq!(found(&index, &[("app", "web")]), [2]);
    }

    #[test]
    fn a_namespace_selector_adds_to_the_names() {
        let all = Selector::labels(&Labels::new());
        let team = Selector::labels(&labels(&[("team", "a")]));
        let matcher = Matcher {
            namespaces: vec!["named".into()],
            namespace_selector: Some(team),
            selector: all.clone(),
        };
        let namespaces = Namespaces::from([
            ("named".to_owned(), labels(&[])),
            ("selected".to_owned(), labels(&[("team", "a")])),
            ("other".to_owned(), labels(&[("team", "b")])),
        ]);
        let covers = |name| matcher.covers(name, &namespaces);
        assert!(covers("named") && covers("selected") && !covers("other") && !covers("unknown"));
        let everywhere = Matcher {
            namespaces: vec![],
            namespace_selector: Some(all.clone()),
            selector: all,
        };
        assert!(everywhere.covers("unknown", &namespaces));
    }
}
