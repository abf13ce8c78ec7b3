//! Which nodes a pod may be on: node selector, required node affinity, tolerations, readiness. Shared by
//! the scheduler, the controllers and the kubelet, so that they agree. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

type Labels = BTreeMap<String, String>;

/// Whether the node's condition Ready is True.
pub fn is_ready(node: &Node) -> bool {
    let status = node.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a toleration tolerates a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if filled(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    if filled(&toleration.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    let (wanted, value) = (filled(&toleration.value), filled(&taint.value));
    match toleration
        .operator
        .as_deref()
        .filter(|operator| !operator.is_empty())
    {
        None | Some("Equal") => wanted == value && filled(&toleration.key).is_some(),
        Some("Exists") => true,
        Some(operator @ ("Lt" | "Gt")) => {
            let number = |text: Option<String>| text.and_then(|text| text.parse::<i64>().ok());
            number(value)
                .zip(number(wanted))
                .is_some_and(|(value, wanted)| match operator {
                    "Lt" => value < wanted,
                    _ => value > wanted,
                })
        }
        Some(_) => false,
    }
}

/// The first untolerated taint with one of these effects.
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'a Taint> {
    taints.iter().find(|taint| {
        effects.contains(&taint.effect.as_str())
            && !tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
    })
}

/// Whether the node's labels and name meet the pod's requirements.
pub fn matches_node(spec: &PodSpec, labels: &Labels, name: &str) -> bool {
    let selected = spec.node_selector.iter().flatten();
    let selected = selected
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    selected && required_terms(spec).is_none_or(|terms| matches_any(terms, labels, name))
}

/// The terms of required node affinity, one of which must match.
pub fn required_terms(spec: &PodSpec) -> Option<&Vec<NodeSelectorTerm>> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    Some(&required.node_selector_terms)
}

/// Whether one of the terms matches; false without terms.
pub fn matches_any(terms: &[NodeSelectorTerm], labels: &Labels, name: &str) -> bool {
    terms.iter().any(|term| matches_term(term, labels, name))
}

/// Whether all of a term's requirements match; an empty term matches nothing.
pub fn matches_term(term: &NodeSelectorTerm, labels: &Labels, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |requirement: &NodeSelectorRequirement| {
        holds(
            requirement,
            labels.get(&requirement.key).map(String::as_str),
        )
    };
    let field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && holds(requirement, Some(name))
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(label)
        && fields.iter().all(field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|listed| listed == value);
    let numbers = || {
        let limit = values.first()?.parse::<i64>().ok()?;
        Some((value?.parse::<i64>().ok()?, limit))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
        "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        let (key, value, effect) = (key.into(), Some(value.into()), effect.into());
        Taint {
            key,
            value,
            effect,
            time_added: None,
        }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: some(key),
            operator: some(operator),
            value: some(value),
            effect: some(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn a_node_is_ready_by_its_condition() {
        let node = |conditions| {
            let node = serde_json::json!({"metadata": {}, "status": {"conditions": conditions}});
            serde_json::from_value::<Node>(node).unwrap()
        };
        let ready = |status| serde_json::json!([{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]);
        assert!(is_ready(&node(ready("True"))));
        assert!(!is_ready(&node(ready("Unknown"))));
        assert!(!is_ready(&node(serde_json::json!([]))));
        assert!(!is_ready(&Node::default()));
    }

    #[test]
    fn a_toleration_covers_the_taints_it_names() {
        let gpu = taint("gpu", "yes", "NoSchedule");
        for (toleration, covers) in [
            (toleration("gpu", "", "yes", "NoSchedule"), true),
            (toleration("gpu", "Equal", "no", "NoSchedule"), false),
            (toleration("gpu", "Exists", "", ""), true),
            (toleration("", "Exists", "", ""), true),
            (toleration("gpu", "Exists", "", "NoExecute"), false),
            (toleration("disk", "Exists", "", ""), false),
        ] {
            assert_eq!(tolerates(&toleration, &gpu), covers, "{toleration:?}");
        }
    }

    #[test]
    fn a_term_needs_all_its_requirements_and_an_empty_one_matches_nothing() {
        let labels: Labels = [("zone".into(), "a".into()), ("cores".into(), "8".into())].into();
        let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|value| (*value).into()).collect()),
        };
        let term = |expressions, fields| NodeSelectorTerm {
            match_expressions: Some(expressions),
            match_fields: Some(fields),
        };
        let zone = requirement("zone", "In", &["a", "b"]);
        let cores = requirement("cores", "Gt", &["16"]);
        let name = requirement("metadata.name", "In", &["n1"]);
        assert!(matches_term(
            &term(vec![zone.clone()], vec![]),
            &labels,
            "n1"
        ));
        assert!(!matches_term(
            &term(vec![zone.clone(), cores], vec![]),
            &labels,
            "n1"
        ));
        assert!(matches_term(
            &term(vec![zone.clone()], vec![name.clone()]),
            &labels,
            "n1"
        ));
        assert!(!matches_term(&term(vec![zone], vec![name]), &labels, "n2"));
        assert!(!matches_term(&term(vec![], vec![]), &labels, "n1"));
    }
}
