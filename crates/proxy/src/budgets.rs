//! What the Services of all namespaces may need of something that is scarce on a node. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use crate::ruleset::ServiceKey;

/// A limit for all Services, what each of them needs, and the namespaces that need too much.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// Services that need something.
    costs: BTreeMap<ServiceKey, usize>,
    over: BTreeSet<String>,
}

impl Budget {
    /// Nothing is needed yet.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            costs: BTreeMap::new(),
            over: BTreeSet::new(),
        }
    }

    /// Sets what a Service needs.
    pub(crate) fn set(&mut self, key: &ServiceKey, cost: usize) {
        match cost {
            0 => self.costs.remove(key),
            cost => self.costs.insert(key.clone(), cost),
        };
    }

    /// Decides again which namespaces need too much. Returns those where that changed.
    pub(crate) fn decide(&mut self) -> BTreeSet<String> {
        let mut costs: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, cost) in &self.costs {
            *costs.entry(&key.0).or_default() += cost;
        }
        let before = mem::replace(&mut self.over, network::over_budget(&costs, self.limit));
        before.symmetric_difference(&self.over).cloned().collect()
    }

    /// The namespaces that need too much.
    pub(crate) fn over(&self) -> &BTreeSet<String> {
        &self.over
    }

    /// Whether the Services of a Service's namespace get nothing.
    pub(crate) fn is_over(&self, key: &ServiceKey) -> bool {
        self.over.contains(&key.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_over_the_budget_until_it_needs_less() {
        let mut budget = Budget::new(10);
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        for (namespace, name, cost, changed) in [
            ("a", "one", 4, &[][..]),
            ("b", "one", 5, &[]),
            ("b", "two", 3, &["b"]),
            ("b", "two", 4, &[]),
            ("b", "one", 0, &["b"]),
            ("a", "one", 7, &["a"]),
        ] {
            budget.set(&key(namespace, name), cost);
            assert!(
                budget.decide().iter().eq(changed),
                "{namespace}/{name} {cost}"
            );
        }
        assert!(budget.is_over(&key("a", "other")) && !budget.is_over(&key("b", "two")));
    }
}
