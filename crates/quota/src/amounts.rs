//! Amounts of resources by name, and the total of a pod.

use std::collections::BTreeMap;

use machinery::{Object, Value, quantity::Quantity};

use crate::tree;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// The amounts in a JSON map; invalid quantities are ignored.
pub fn from_json(json: &Value) -> Amounts {
    let amounts = tree::entries(json)
        .filter_map(|(name, value)| Some((name.to_string(), value.as_str()?.parse().ok()?)));
    amounts.collect()
}

/// Amounts as JSON.
pub fn to_json(amounts: &Amounts) -> Value {
    let map = amounts
        .iter()
        .map(|(name, amount)| (name.clone(), amount.to_string().into()));
    Value::Object(map.collect::<Object>())
}

/// Adds amounts to others.
pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = to.entry(name.clone()).or_insert(Quantity::ZERO);
        *slot = slot.plus(*amount);
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let slot = to.entry(name.clone()).or_insert(*amount);
        *slot = (*slot).max(*amount);
    }
}

/// The maximum of a pod's `requests` or `limits` at any moment: init containers run one after the
/// other beside the sidecars started before them, then all containers run together.
pub fn of_pod(spec: &Value, which: &str) -> Amounts {
    let container = |container: &Value| from_json(&container["resources"][which]);
    let mut total = Amounts::new();
    for each in tree::list(&spec["containers"]) {
        add(&mut total, &container(each));
    }
    let (mut sidecars, mut highest) = (Amounts::new(), Amounts::new());
    for each in tree::list(&spec["initContainers"]) {
        let mut now = sidecars.clone();
        add(&mut now, &container(each));
        if each["restartPolicy"] == "Always" {
            sidecars.clone_from(&now);
        }
        raise(&mut highest, &now);
    }
    add(&mut total, &sidecars);
    raise(&mut total, &highest);
    // Pod-level resources take precedence.
    total.extend(from_json(&spec["resources"][which]));
    for (name, amount) in from_json(&spec["overhead"]) {
        match total.get_mut(&name) {
            Some(slot) => *slot = slot.plus(amount),
            None if which == "requests" => drop(total.insert(name, amount)),
            None => {}
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn the_usage_of_a_pod_is_the_maximum_over_its_phases() {
        let needs = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}});
        let cpu = |spec: Value| of_pod(&spec, "requests")["cpu"].to_string();
        assert_eq!(
            cpu(json!({"containers": [needs("1"), needs("500m")]})),
            "1500m"
        );
        assert_eq!(
            cpu(json!({"containers": [needs("1")], "initContainers": [needs("3")]})),
            "3"
        );
        let both = json!({"containers": [needs("1")], "initContainers": [sidecar, needs("3")]});
        assert_eq!(cpu(both), "4");
        let after = json!({"containers": [needs("1")], "initContainers": [needs("3"), sidecar]});
        assert_eq!(cpu(after), "3");
        let over = json!({"containers": [needs("1")], "overhead": {"cpu": "100m"}});
        assert_eq!(cpu(over), "1100m");
        let whole = json!({"containers": [needs("1")], "resources": {"requests": {"cpu": "5"}}});
        assert_eq!(cpu(whole), "5");
    }
}
