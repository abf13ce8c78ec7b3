//! `matchLabelKeys` and `mismatchLabelKeys`: on create, the pod's own labels are merged into the
//! selectors that name their keys, so that readers of a selector need not know these fields.

use crate::tree::{child, each, get, is_set, list, text};
use machinery::json::json;
use machinery::{Object, Value};

/// Merges the pod's labels into its selectors.
pub(crate) fn merge(pod: &mut Object) {
    let labels = get(pod, "metadata")["labels"].clone();
    let Some(spec) = child(pod, "spec") else {
        return;
    };
    if let Some(affinity) = child(spec, "affinity") {
        for kind in ["podAffinity", "podAntiAffinity"] {
            let Some(kind) = child(affinity, kind) else {
                continue;
            };
            for term in each(kind, "preferredDuringSchedulingIgnoredDuringExecution") {
                if let Some(term) = child(term, "podAffinityTerm") {
                    merge_one(term, &labels);
                }
            }
            for term in each(kind, "requiredDuringSchedulingIgnoredDuringExecution") {
                merge_one(term, &labels);
            }
        }
    }
    for constraint in each(spec, "topologySpreadConstraints") {
        merge_one(constraint, &labels);
    }
}

fn merge_one(term: &mut Object, labels: &Value) {
    let mut more = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in list(get(term, field)) {
            let value = &labels[text(key)];
            if is_set(value) {
                more.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(selector) = child(term, "labelSelector").filter(|_| !more.is_empty()) else {
        return;
    };
    let expressions = selector
        .entry("matchExpressions")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(expressions) = expressions {
        expressions.append(&mut more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn labels_join_the_selectors_that_name_their_keys() {
        let mut pod = object(
            r#"{"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {}, "matchLabelKeys": ["a", "absent"], "mismatchLabelKeys": ["b"]},
                    {"matchLabelKeys": ["a"]}]}},
                "topologySpreadConstraints": [{"labelSelector": {"matchLabels": {"x": "y"}}, "matchLabelKeys": ["b"]}]}}"#,
        );
        merge(&mut pod);
        let spec = get(&pod, "spec");
        let terms =
            &spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            terms[0]["labelSelector"]["matchExpressions"],
            json!([
                {"key": "a", "operator": "In", "values": ["1"]},
                {"key": "b", "operator": "NotIn", "values": ["2"]}
            ])
        );
        assert_eq!(terms[1]["labelSelector"], Value::Null);
        assert_eq!(
            spec["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"],
            json!([{"key": "b", "operator": "In", "values": ["2"]}])
        );
    }
}
