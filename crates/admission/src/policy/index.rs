//! All policies with their bindings, indexed by resource: a write of any other resource costs one
//! lookup.

use std::{collections::HashMap, sync::Arc};

use kinds::tree;
use machinery::{Object, Value};

use super::spec::{Binding, Policy, State};

/// A policy with at least one binding.
#[derive(Debug)]
pub(super) struct Bound<P> {
    pub(super) policy: Arc<Policy<P>>,
    pub(super) bindings: Vec<Binding>,
}

/// Policies sorted by name.
#[derive(Debug)]
pub(super) struct Index<P> {
    bound: Vec<Bound<P>>,
    /// By resource, including those for every resource.
    by_resource: HashMap<String, Vec<usize>>,
    /// Those for every resource.
    everywhere: Vec<usize>,
}

impl<P> Default for Index<P> {
    fn default() -> Self {
        Self {
            bound: Vec::new(),
            by_resource: HashMap::new(),
            everywhere: Vec::new(),
        }
    }
}

impl<P> Index<P> {
    /// Builds the index. Policies unchanged since `earlier` are not compiled again.
    pub(super) fn read(
        policies: &[Object],
        bindings: &[Object],
        earlier: &Self,
        compile: impl Fn(&Value) -> P,
    ) -> Self {
        let mut by_policy: HashMap<String, Vec<Binding>> = HashMap::new();
        for binding in bindings.iter().map(Binding::read) {
            let own = by_policy.entry(binding.policy.clone()).or_default();
            own.push(binding);
        }
        let known: HashMap<&str, &Arc<Policy<P>>> = earlier
            .bound
            .iter()
            .map(|bound| (bound.policy.name.as_str(), &bound.policy))
            .collect();
        let mut bound: Vec<Bound<P>> = policies
            .iter()
            .filter_map(|object| {
                let mut bindings = by_policy.remove(tree::name(object))?;
                bindings.sort_by(|a, b| a.name.cmp(&b.name));
                let same = known.get(tree::name(object)).copied();
                let same = same.filter(|policy| policy.state == State::from_object(object));
                let policy = match same {
                    Some(policy) => policy.clone(),
                    None => Arc::new(Policy::read(object, &compile)),
                };
                Some(Bound { policy, bindings })
            })
            .collect();
        bound.sort_by(|a, b| a.policy.name.cmp(&b.policy.name));
        Self::from_bindings(bound)
    }

    fn from_bindings(bound: Vec<Bound<P>>) -> Self {
        let mut index = Self {
            bound,
            ..Self::default()
        };
        let named: Vec<Option<Vec<String>>> = index
            .bound
            .iter()
            .map(|bound| {
                let names = bound.policy.constraints.rules.resources()?;
                Some(names.into_iter().map(str::to_owned).collect())
            })
            .collect();
        for name in named.iter().flatten().flatten() {
            index.by_resource.entry(name.clone()).or_default();
        }
        for (at, names) in named.into_iter().enumerate() {
            let Some(names) = names else {
                let lists = index.by_resource.values_mut();
                lists
                    .chain([&mut index.everywhere])
                    .for_each(|list| list.push(at));
                continue;
            };
            for name in names {
                // A policy may name a resource several times.
                if let Some(list) = index.by_resource.get_mut(&name)
                    && list.last() != Some(&at)
                {
                    list.push(at);
                }
            }
        }
        index
    }

    /// Whether a policy may match a resource.
    #[inline]
    pub(super) fn concerns(&self, resource: &str) -> bool {
        !self.bound.is_empty() && !self.places(resource).is_empty()
    }

    fn places(&self, resource: &str) -> &[usize] {
        self.by_resource.get(resource).unwrap_or(&self.everywhere)
    }

    /// The policies that may match a resource.
    pub(super) fn about(&self, resource: &str) -> impl Iterator<Item = &Bound<P>> {
        self.places(resource).iter().map(|at| &self.bound[*at])
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use machinery::json::json;

    use super::*;
    use crate::testing::object;

    fn policy(name: &str, version: &str, resource: &str) -> Object {
        object(json!({
            "metadata": {"name": name, "uid": "u", "resourceVersion": version},
            "spec": {"matchConstraints": {"resourceRules": [
                {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource]}]}},
        }))
    }

    fn binding(name: &str, policy: &str) -> Object {
        object(json!({"metadata": {"name": name}, "spec": {"policyName": policy}}))
    }

    fn names(index: &Index<()>, resource: &str) -> Vec<String> {
        let all = index.about(resource);
        all.map(|bound| bound.policy.name.clone()).collect()
    }

    #[test]
    fn only_bound_policies_about_a_resource_are_looked_at() {
        let policies = [
            policy("c", "1", "*"),
            policy("b", "1", "pods/*"),
            policy("a", "1", "nodes"),
            policy("unbound", "1", "pods"),
            object(json!({
                "metadata": {"name": "d"},
                "spec": {"matchConstraints": {"resourceRules": [{"operations": ["*"], "apiGroups": ["*"],
                    "apiVersions": ["*"], "resources": ["nodes", "pods", "nodes/status", "pods/status"]}]}},
            })),
        ];
        let bindings = [
            binding("z", "b"),
            binding("y", "b"),
            binding("x", "a"),
            binding("w", "c"),
            binding("v", "gone"),
            binding("u", "d"),
        ];
        let index = Index::read(&policies, &bindings, &Index::default(), |_| ());
        assert_eq!(names(&index, "pods"), ["b", "c", "d"]);
        assert_eq!(names(&index, "nodes"), ["a", "c", "d"]);
        assert_eq!(names(&index, "secrets"), ["c"]);
        let bound = index.about("pods").next().unwrap();
        let bindings: Vec<&str> = bound.bindings.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(bindings, ["y", "z"]);
        let none = Index::read(&policies[1..3], &[], &index, |_| ());
        assert!(!none.concerns("pods"));
    }

    #[test]
    fn unchanged_policies_are_not_compiled_again() {
        let compiled = Cell::new(0);
        let compile = |_: &Value| compiled.set(compiled.get() + 1);
        let bindings = [binding("x", "a"), binding("y", "b")];
        let first = [policy("a", "1", "pods"), policy("b", "1", "pods")];
        let index = Index::read(&first, &bindings, &Index::default(), compile);
        assert_eq!(compiled.get(), 2);
        let second = [policy("a", "2", "pods"), policy("b", "1", "pods")];
        Index::read(&second, &bindings, &index, compile);
        assert_eq!(compiled.get(), 3);
    }
}
