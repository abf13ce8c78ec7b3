//! Taints new nodes as not ready; the node controller removes the taint.

use async_trait::async_trait;
use kinds::tree;
use machinery::json::json;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "TaintNodesByCondition";

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub(crate) struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is_write_of("", "nodes")
    }

    fn validates(&self) -> bool {
        false
    }

    async fn mutate(&self, _: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        let spec = tree::child_or_new(object, "spec");
        let slot = spec.entry("taints").or_insert(Value::Null);
        let present = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
        if !tree::list(slot).iter().any(present) {
            let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
            match slot {
                Value::Array(list) => list.push(taint),
                _ => *slot = Value::Array(vec![taint]),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, object};

    #[tokio::test]
    async fn a_new_node_is_tainted_once() {
        let case = Case::new(Operation::Create, "", "nodes");
        let mut node = object(json!({"metadata": {"name": "a"}}));
        for _ in 0..2 {
            TaintNodesByCondition
                .mutate(&case.attributes(), &mut node)
                .await
                .unwrap();
        }
        assert_eq!(
            node["spec"]["taints"],
            json!([{"key": NOT_READY, "effect": "NoSchedule"}])
        );
    }
}
