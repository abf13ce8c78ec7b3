//! Adds tolerations of five minutes for nodes that are not ready or unreachable, unless the pod has
//! its own.

use async_trait::async_trait;
use kinds::tree;
use machinery::json::json;
use machinery::{Object, Status, Value};

use super::{Attributes, Plugin};

pub(crate) const NAME: &str = "DefaultTolerationSeconds";

const SECONDS: i64 = 300;
const KEYS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

pub(crate) struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("", "pods")
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, _: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        tolerate(tree::child_or_new(object, "spec"));
        Ok(())
    }
}

fn tolerate(spec: &mut Object) {
    let covers = |toleration: &Value, key: &str| {
        let (mine, effect) = (
            tree::text(&toleration["key"]),
            tree::text(&toleration["effect"]),
        );
        (mine == key || mine.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    };
    let present = tree::list(tree::get(spec, "tolerations"));
    let missing: Vec<Value> = KEYS
        .iter()
        .filter(|key| !present.iter().any(|toleration| covers(toleration, key)))
        .map(|key| {
            json!({"key": key, "operator": "Exists", "effect": "NoExecute",
                   "tolerationSeconds": SECONDS})
        })
        .collect();
    if missing.is_empty() {
        return;
    }
    let slot = spec.entry("tolerations").or_insert(Value::Null);
    match slot {
        Value::Array(list) => list.extend(missing),
        _ => *slot = Value::Array(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn keys(tolerations: Value) -> Vec<String> {
        let mut spec = object(json!({ "tolerations": tolerations }));
        tolerate(&mut spec);
        let list = tree::list(tree::get(&spec, "tolerations"));
        list.iter()
            .map(|t| format!("{}:{}", t["key"], t["tolerationSeconds"]))
            .collect()
    }

    #[test]
    fn default_tolerations_last_five_minutes() {
        assert_eq!(keys(Value::Null).len(), 2);
        let own = json!([{"key": KEYS[0], "effect": "NoExecute", "tolerationSeconds": 7}]);
        let both = [format!("\"{}\":7", KEYS[0]), format!("\"{}\":300", KEYS[1])];
        assert_eq!(keys(own), both);
        assert_eq!(keys(json!([{"operator": "Exists"}])).len(), 1);
        assert_eq!(
            keys(json!([{"key": KEYS[0], "effect": "NoSchedule"}])).len(),
            3
        );
    }
}
