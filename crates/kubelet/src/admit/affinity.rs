//! nodeSelector and required node affinity against one node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, Pod};
use reconcile::placement;

use crate::pod::spec;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// Whether the pod may be on this node.
pub(super) fn matches(pod: &Pod, node: &Node) -> bool {
    let (labels, name) = identity(node);
    placement::matches_node(spec::spec(pod), labels, name)
}

/// Whether a selector selects this node.
pub(super) fn selects(selector: &NodeSelector, node: &Node) -> bool {
    let (labels, name) = identity(node);
    placement::matches_any(&selector.node_selector_terms, labels, name)
}

fn identity(node: &Node) -> (&BTreeMap<String, String>, &str) {
    let labels = node.metadata.labels.as_ref().unwrap_or(&NO_LABELS);
    (labels, node.metadata.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_term_must_match_with_all_of_its_requirements() {
        let node: Node = serde_json::from_value(serde_json::json!({"metadata": {"name": "n1",
            "labels": {"zone": "a", "size": "5"}}}))
        .unwrap();
        let fits = |terms: serde_json::Value| {
            let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}}}}))
            .unwrap();
            matches(&pod, &node)
        };
        let one = |key: &str, operator: &str, values: serde_json::Value| {
            fits(serde_json::json!([{"matchExpressions": [
                {"key": key, "operator": operator, "values": values}]}]))
        };
        let cases = [
            (one("zone", "In", serde_json::json!(["a", "b"])), true),
            (one("zone", "NotIn", serde_json::json!(["a"])), false),
            (one("other", "NotIn", serde_json::json!(["a"])), true),
            (one("zone", "Exists", serde_json::json!([])), true),
            (one("zone", "DoesNotExist", serde_json::json!([])), false),
            (one("size", "Gt", serde_json::json!(["4"])), true),
            (one("size", "Lt", serde_json::json!(["5"])), false),
            (one("zone", "Gt", serde_json::json!(["4"])), false),
            (fits(serde_json::json!([])), false),
            (fits(serde_json::json!([{}])), false),
            (
                fits(serde_json::json!([{}, {"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n1"]}]}])),
                true,
            ),
        ];
        for (index, (fits, expected)) in cases.into_iter().enumerate() {
            assert_eq!(fits, expected, "case {index}");
        }
    }
}
