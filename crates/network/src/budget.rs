//! What the objects of users may cost a node. The kernel and nft search the sets of a table one by one, and the users of a
//! node wait for each other's changes: one user must not make the tables so large that others wait long. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The namespaces, most expensive first, without which the others cost no more than a budget.
pub fn over_budget(costs: &BTreeMap<&str, usize>, budget: usize) -> BTreeSet<String> {
    let mut total: usize = costs.values().sum();
    let mut ordered: Vec<(&str, usize)> = costs.iter().map(|(name, cost)| (*name, *cost)).collect();
    ordered.sort_by_key(|(name, cost)| (Reverse(*cost), *name));
    let mut over = BTreeSet::new();
    for (name, cost) in ordered {
        if total <= budget {
            break;
        }
        total -= cost;
        over.insert(name.to_owned());
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_expensive_namespaces_are_over_until_the_others_fit() {
        for (costs, budget, expected) in [
            (&[("a", 3), ("b", 5)][..], 8, &[][..]),
            (&[("a", 3), ("b", 5)], 7, &["b"]),
            (&[("a", 5), ("b", 5), ("c", 1)], 6, &["a"]),
            (&[("a", 5), ("b", 5), ("c", 1)], 5, &["a", "b"]),
            (&[("a", 9)], 8, &["a"]),
        ] {
            let found = over_budget(&costs.iter().copied().collect(), budget);
            assert!(found.iter().eq(expected), "{costs:?}: {found:?}");
        }
    }
}
