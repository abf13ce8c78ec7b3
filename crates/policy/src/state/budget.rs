//! What the policies of a node may cost, and which of them are in the table. Pure.
//!
//! The rules of policies that select pods of this node are chosen before each commit: all that fit. The namespaces that need
//! most have no rules, so that their isolated pods have no traffic.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{InUse, State};
use crate::{
    policy::Key,
    rules::{Compiled, FAMILIES, Family, NamedSet},
};

/// What all policies of a node may cost (see [`Compiled::cost`]). A user who may write policies chooses how many peers
/// and ports they have, and every user of the node waits for the kernel to take them.
pub(super) const BUDGET: usize = 150_000;
/// How many pods in sets cost as much as one element of another set: many sets of honest policies have many.
const PODS_PER_COST: usize = 5;
/// With so many pods more, the rules are chosen again.
const FEW_PODS: usize = 100;
impl State {
    /// The namespaces whose policies are over the budget, first by their rules and selectors, then also by the pods that
    /// these select.
    fn over_budget(&self) -> BTreeSet<String> {
        let mut costs: BTreeMap<&str, usize> = BTreeMap::new();
        for ((_, key), in_use) in &self.in_use {
            *costs.entry(&key.0).or_default() += in_use.compiled.cost();
        }
        let mut refused = network::over_budget(&costs, self.budget);
        costs.retain(|namespace, _| !refused.contains(*namespace));
        let mut users: BTreeMap<&str, (usize, &NamedSet)> = BTreeMap::new();
        for ((_, key), in_use) in &self.in_use {
            if costs.contains_key(key.0.as_str()) {
                for (name, asked) in &in_use.compiled.asked {
                    users.entry(name).or_insert((0, asked)).0 += 1;
                }
            }
        }
        let share = |(name, (count, asked)): (&&str, &(usize, &NamedSet))| {
            let elements = self.count_elements(name, asked);
            ((*name).to_owned(), elements / PODS_PER_COST / count)
        };
        let shares: BTreeMap<String, usize> = users.iter().map(share).collect();
        for ((_, key), in_use) in &self.in_use {
            if let Some(cost) = costs.get_mut(key.0.as_str()) {
                let names = in_use.compiled.asked.keys();
                *cost += names.filter_map(|name| shares.get(name)).sum::<usize>();
            }
        }
        refused.extend(network::over_budget(&costs, self.budget));
        refused
    }

    /// The elements that pods have in a set, or would have.
    fn count_elements(&self, name: &str, asked: &NamedSet) -> usize {
        if self.asked.contains_key(name) {
            let families = FAMILIES.iter();
            let count = |family: &Family| self.table.count(&format!("{name}{}", family.digit));
            return families.map(count).sum();
        }
        let wanted = |key: &Key| self.wanted(key, name, asked).len();
        match (asked, asked.namespace()) {
            (NamedSet::Numbers(_) | NamedSet::Blocks(_), _) => 0,
            (_, Some(namespace)) => self.pods_in(namespace).iter().map(wanted).sum(),
            (_, None) => self.pods.keys().map(wanted).sum(),
        }
    }

    /// Writes the rules of all chains in use, except those of namespaces that cost too much. Their pods stay isolated.
    pub(super) fn fit(&mut self) {
        let are_many_more = self.pods.len() > 2 * self.fitted_pods + FEW_PODS;
        if !std::mem::take(&mut self.is_unfitted) && !are_many_more {
            return;
        }
        self.fitted_pods = self.pods.len();
        self.refused = self.over_budget();
        let wanted = |namespace: &str, in_use: &InUse| {
            let is_refused = self.refused.contains(namespace);
            (!is_refused).then(|| in_use.compiled.clone())
        };
        let as_pointer = |one: &Option<Arc<Compiled>>| one.as_ref().map(Arc::as_ptr);
        let changes = self.in_use.iter().filter_map(|(place, in_use)| {
            let wanted = wanted(&place.1.0, in_use);
            let is_changed = as_pointer(&wanted) != as_pointer(&in_use.written);
            is_changed.then(|| (place.clone(), wanted))
        });
        for (place, wanted) in changes.collect::<Vec<_>>() {
            let asked = wanted.iter().flat_map(|wanted| &wanted.asked);
            for (name, asked) in asked {
                self.ask(name, asked);
            }
            self.put_policy_chain(place.0, &place.1, wanted.as_deref());
            let Some(in_use) = self.in_use.get_mut(&place) else {
                continue;
            };
            let before = std::mem::replace(&mut in_use.written, wanted);
            for name in before.iter().flat_map(|before| before.asked.keys()) {
                self.stop_asking(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        policy::{Direction, Labels, Policy},
        rules::compile,
        state::Pod,
    };

    fn set_policy(state: &mut State, namespace: &str, name: &str, ingress: &Value) {
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": {
            "podSelector": {}, "ingress": ingress}});
        let policy = Policy::from_object(&serde_json::from_value(object).unwrap());
        state.set_policy(&(namespace.to_owned(), name.to_owned()), Some(policy));
    }

    #[test]
    fn a_tenant_with_too_many_rules_loses_its_own_and_no_others() {
        let mut state = State::new("t".into());
        for (namespace, ip) in [("honest", "10.42.0.1"), ("greedy", "10.42.0.2")] {
            let object = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "here", "containers": []},
                "status": {"podIPs": [{"ip": ip}]}});
            let pod = Pod::from_object(&serde_json::from_value(object).unwrap(), "here");
            state.set_pod(&(namespace.to_owned(), "web".to_owned()), pod);
        }
        let web = json!([{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 80}]}]);
        set_policy(&mut state, "honest", "web", &web);
        set_policy(&mut state, "greedy", "web", &web);
        state.commit();
        let before = state.full();
        let rule = |number: usize| json!({"from": [{"podSelector": {"matchLabels": {"app": number.to_string()}}}], "ports": [{"port": number}]});
        let many: Vec<Value> = (1..3000).map(rule).collect();
        set_policy(&mut state, "greedy", "many", &json!(many));
        let change = state.commit();
        assert!(state.refused().iter().eq(["greedy"]));
        // Its chains are empty, and its pods stay isolated; nothing of the others is touched.
        let accepts = change
            .statements()
            .iter()
            .filter(|line| line.contains("accept"));
        assert_eq!(accepts.count(), 0, "{:#?}", change.statements());
        let verdicts = state.full();
        let verdicts = verdicts.statements().iter();
        let isolated =
            verdicts.filter(|line| line.contains("ingress4") && line.contains("10.42.0.2"));
        assert_eq!(isolated.count(), 1);
        state.set_policy(&("greedy".to_owned(), "many".to_owned()), None);
        state.commit();
        assert!(state.refused().is_empty());
        assert_eq!(state.full(), before);
    }

    #[test]
    fn selectors_cost_the_pods_that_they_select() {
        let rule = |number: usize| {
            let all_but_one = json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [number.to_string()]}]});
            json!({"from": [{"namespaceSelector": {}, "podSelector": all_but_one}], "ports": [{"port": number}]})
        };
        let many: Vec<Value> = (1..=50).map(rule).collect();
        let mut state = State::new("t".into());
        state.budget = 6000;
        state.set_namespace("greedy", Some(Labels::new()));
        let put = |state: &mut State, number: u16| {
            let [high, low] = number.to_be_bytes();
            let node = if number == 0 { "here" } else { "there" };
            let object = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": node, "containers": []},
                "status": {"podIPs": [{"ip": format!("10.42.{high}.{low}")}]}});
            let pod = Pod::from_object(&serde_json::from_value(object).unwrap(), "here");
            state.set_pod(&("greedy".to_owned(), format!("web-{number}")), pod);
        };
        (0..100).for_each(|number| put(&mut state, number));
        set_policy(&mut state, "greedy", "many", &json!(many));
        state.commit();
        assert!(state.refused().is_empty());
        (100..500).for_each(|number| put(&mut state, number));
        state.commit();
        assert!(state.refused().iter().eq(["greedy"]));
        let full = state.full();
        assert!(full.statements().len() < 100, "{}", full.statements().len());
    }

    #[test]
    fn policies_of_ten_thousand_objects_fit() {
        let rule = json!([{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}, {"namespaceSelector": {}}],
            "ports": [{"port": 80}, {"port": 443}]}]);
        let object = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}, "ingress": rule}});
        let policy = Policy::from_object(&serde_json::from_value(object).unwrap());
        let cost = compile(Direction::Ingress, policy.ingress.as_deref().unwrap()).cost();
        // A node has a hundred pods, which ten thousand policies of a large cluster rarely select more than a few of.
        assert!(BUDGET / cost > 400, "{cost}");
    }
}
