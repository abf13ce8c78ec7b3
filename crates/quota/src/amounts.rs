//! Amounts of resources by name.

use std::collections::BTreeMap;

use machinery::{Object, Value, pod_resources::ResourceList, quantity::Quantity};

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

/// The amounts of a pod's resources.
pub fn from_list(list: &ResourceList<'_>) -> Amounts {
    let amounts = list.iter();
    amounts
        .map(|(name, amount)| ((*name).to_owned(), *amount))
        .collect()
}
