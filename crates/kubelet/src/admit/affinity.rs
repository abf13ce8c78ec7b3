//! nodeSelector and required node affinity against one node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
};

use crate::pod::spec;

/// Whether the pod may be on this node.
pub(super) fn matches(pod: &Pod, node: &Node) -> bool {
    let spec = spec::spec(pod);
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let mut selector = spec.node_selector.iter().flatten();
    if !selector.all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    required.is_none_or(|required| selects(required, node))
}

/// Whether a selector selects this node.
pub(super) fn selects(selector: &NodeSelector, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| term_matches(term, labels, node))
}

/// A term without any requirement matches nothing.
fn term_matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = node.metadata.name.clone().unwrap_or_default();
    let own = BTreeMap::from([("metadata.name".to_owned(), name)]);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|one| requirement(one, labels))
        && fields.iter().all(|one| requirement(one, &own))
}

fn requirement(one: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = one.values.as_deref().unwrap_or_default();
    let label = labels.get(&one.key);
    let compared = || -> Option<std::cmp::Ordering> {
        let [bound] = values else { return None };
        let (label, bound): (i64, i64) = (label?.parse().ok()?, bound.parse().ok()?);
        Some(label.cmp(&bound))
    };
    match one.operator.as_str() {
        "In" => label.is_some_and(|label| values.contains(label)),
        "NotIn" => label.is_none_or(|label| !values.contains(label)),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
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
