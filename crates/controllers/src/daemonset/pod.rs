//! The pods of a DaemonSet, and which node a pod is for. Pure.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{
        Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodSpec, Toleration,
    },
};

use crate::{history, podcontrol};

/// The annotation in which the API server counts template changes. The deprecated label of pods has
/// the same number.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

fn template_generation(set: &DaemonSet) -> Option<&str> {
    let annotations = set.metadata.annotations.as_ref()?;
    let text = annotations.get(TEMPLATE_GENERATION)?;
    text.parse::<i64>().is_ok().then_some(text)
}

/// Whether a pod with these labels is of the newest template.
pub(super) fn is_current<'a>(
    set: &DaemonSet,
    newest: &str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> bool {
    let is_of_generation = || {
        let generation = template_generation(set);
        generation.is_some() && label(GENERATION_LABEL) == generation
    };
    label(history::HASH) == Some(newest) || is_of_generation()
}

/// The node of a pod: bound to it, or selected by its affinity.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return Some(node);
    }
    let terms = reconcile::placement::required_terms(spec)?;
    let fields = terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let mut names = fields.filter(|field| field.key == "metadata.name");
    names.next()?.values.as_ref()?.first().map(String::as_str)
}

/// The pod spec with the tolerations that every daemon pod gets, whatever the node's condition.
pub(super) fn spec(set: &DaemonSet) -> PodSpec {
    let template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.clone());
    let mut spec = template.unwrap_or_default();
    let mut taints = vec![
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    let host_network = spec.host_network == Some(true);
    taints.extend(host_network.then_some(("network-unavailable", "NoSchedule")));
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in taints {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Default::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    spec
}

/// A pod with affinity to a single node.
pub(super) fn daemon(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let mut pod = podcontrol::from_template(set, template);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(history::HASH.to_owned(), hash.to_owned());
    if let Some(generation) = template_generation(set) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_owned());
    }
    let mut spec = spec(set);
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required = &mut affinity.required_during_scheduling_ignored_during_execution;
    let terms = match required.take() {
        Some(required) if !required.node_selector_terms.is_empty() => required.node_selector_terms,
        _ => vec![NodeSelectorTerm::default()],
    };
    let field = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let pinned = terms.into_iter().map(|term| NodeSelectorTerm {
        match_fields: Some(vec![field.clone()]),
        ..term
    });
    *required = Some(NodeSelector {
        node_selector_terms: pinned.collect(),
    });
    pod.spec = Some(spec);
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_daemon_pod_has_node_affinity_and_tolerates_node_condition_taints() {
        let set: DaemonSet = serde_json::from_value(json!({
            "metadata": {"name": "d", "annotations": {(TEMPLATE_GENERATION): "7"}},
            "spec": {"selector": {}, "template": {"spec": {"containers": [], "hostNetwork": true}}},
        }))
        .unwrap();
        let pod = daemon(&set, "n1", "abc");
        assert_eq!(target(&pod), Some("n1"));
        let labels = pod.metadata.labels.as_ref().unwrap();
        assert_eq!(labels[history::HASH], "abc");
        assert_eq!(labels[GENERATION_LABEL], "7");
        let keys: Vec<_> = pod.spec.unwrap().tolerations.unwrap();
        assert!(
            keys.iter()
                .any(|t| t.key.as_deref() == Some("node.kubernetes.io/network-unavailable"))
        );
    }

    #[test]
    fn a_pod_is_current_by_its_hash_or_by_the_generation_of_the_template() {
        let mut set = DaemonSet::default();
        let is_current = |set: &DaemonSet, hash: &'static str, generation: &'static str| {
            is_current(set, "new", |key| match key {
                history::HASH => Some(hash),
                GENERATION_LABEL => Some(generation),
                _ => None,
            })
        };
        assert!(is_current(&set, "new", "1"));
        assert!(!is_current(&set, "old", "1"));
        set.metadata.annotations = Some([(TEMPLATE_GENERATION.into(), "1".into())].into());
        assert!(is_current(&set, "old", "1"));
        assert!(!is_current(&set, "old", "2"));
    }
}
