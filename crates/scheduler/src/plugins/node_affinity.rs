//! Node selector and node affinity: required terms reject nodes, preferred ones add to the score. A
//! configuration can add terms for every pod of a profile.

use std::{any::Any, collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorTerm};
use reconcile::placement::{matches_any, matches_term};
use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::{
    cluster::{Cluster, NodeInfo, Slot},
    framework::{
        Plugin, Point, PreFilter,
        candidates::Candidates,
        event::{Event, EventKind},
        normalize,
    },
    pod::PodInfo,
};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeAffinity";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    added_affinity: Option<Affinity>,
}

/// The plugin.
#[derive(Debug, Default)]
pub(super) struct NodeAffinity {
    added_required: Option<Vec<NodeSelectorTerm>>,
    added_preferred: Vec<(i64, NodeSelectorTerm)>,
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let added = arguments::<Arguments>(value)?
        .added_affinity
        .unwrap_or_default();
    let required = added.required_during_scheduling_ignored_during_execution;
    let preferred = added.preferred_during_scheduling_ignored_during_execution;
    let preferred = preferred.into_iter().flatten();
    Ok(Arc::new(NodeAffinity {
        added_required: required.map(|required| required.node_selector_terms),
        added_preferred: preferred
            .map(|term| (term.weight.into(), term.preference))
            .collect(),
    }))
}

impl NodeAffinity {
    fn allows(&self, node: &NodeInfo) -> bool {
        let added = self.added_required.as_ref();
        added.is_none_or(|terms| matches_any(terms, &node.labels, &node.name))
    }
}

/// The nodes that all required terms name in `matchFields`; `None` if a term names none.
fn named_nodes(pod: &PodInfo) -> Option<BTreeSet<String>> {
    let terms = pod.template.node.required.as_ref()?;
    if terms.is_empty() {
        return None;
    }
    let mut names = BTreeSet::new();
    for term in terms {
        let fields = term.match_fields.iter().flatten();
        let by_name = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
        let sets = by_name.map(|field| field.values.iter().flatten().cloned());
        let sets = sets.map(BTreeSet::from_iter);
        names.extend(sets.reduce(|one: BTreeSet<String>, other| &one & &other)?);
    }
    Some(names)
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreFilter,
            Point::Filter,
            Point::PreScore,
            Point::Score,
        ]
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) {
        // Each pod of a DaemonSet names its own node: which others meet its requirements is never asked.
        if named_nodes(pod).is_none() {
            cluster.prepare_requirements(&pod.template.node);
        }
    }

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter {
        if pod.template.node.is_empty() && self.added_required.is_none() {
            return PreFilter::Skip;
        }
        match named_nodes(pod) {
            Some(names) if names.is_empty() => {
                PreFilter::Reject("pod affinity terms conflict".into(), false)
            }
            Some(names) => PreFilter::Only(names, Box::new(())),
            None => PreFilter::Continue(Box::new(())),
        }
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, _: &dyn Any, candidates: &mut Candidates) {
        if self.added_required.is_some() {
            candidates.retain(NAME, false, |slot| {
                let refused = cluster.node(slot).is_some_and(|node| !self.allows(node));
                refused.then_some("node(s) didn't match scheduler-enforced node affinity")
            });
        }
        candidates.retain(NAME, false, |slot| {
            let meets = cluster.meets(&pod.template.node, slot);
            (!meets).then_some("node(s) didn't match Pod's node affinity/selector")
        });
    }

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        let none = pod.template.node.preferred.is_empty() && self.added_preferred.is_empty();
        (!none).then(|| Box::new(()) as Box<dyn Any>)
    }

    fn score(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        _: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        for (slot, score) in nodes.iter().zip(scores) {
            let Some(node) = cluster.node(*slot) else {
                continue;
            };
            let preferred = pod.template.node.preferred.iter();
            let all = preferred.chain(&self.added_preferred);
            let liked = all.filter(|(_, term)| matches_term(term, &node.labels, &node.name));
            *score = liked.map(|(weight, _)| weight).sum();
        }
    }

    fn normalize(&self, _: &dyn Any, scores: &mut [i64]) {
        normalize(scores, false);
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::OwnUpdate,
        ]
    }

    fn hints_by_template(&self) -> bool {
        true
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        let meets = |node: &NodeInfo| {
            self.allows(node) && pod.template.node.matches(&node.labels, &node.name)
        };
        match event {
            Event::NodeAdded(node) => meets(node),
            Event::NodeUpdated { old, new } => meets(new) && !meets(old),
            Event::OwnUpdate { old, new } => old.template.node != new.template.node,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, filtered, scored};

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        cluster.put_node(samples::labelled("n1", &[("disk", "hdd"), ("cores", "4")]));
        cluster.put_node(samples::labelled("n2", &[("disk", "ssd"), ("cores", "16")]));
        cluster.put_node(samples::labelled("n3", &[]));
        cluster
    }

    fn pod(affinity: Value) -> Arc<PodInfo> {
        let affinity = serde_json::from_value(json!({"nodeAffinity": affinity})).unwrap();
        samples::pod_with("a", |spec| spec.affinity = Some(affinity))
    }

    fn required(terms: Value) -> Value {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})
    }

    fn left(terms: Value) -> Vec<Slot> {
        filtered(
            &NodeAffinity::default(),
            &pod(required(terms)),
            &mut cluster(),
        )
    }

    #[test]
    fn not_all_nodes_are_compared_with_a_pod_that_names_its_node() {
        let named = json!({"key": "metadata.name", "operator": "In", "values": ["n2"]});
        let labelled = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        for (term, is_prepared) in [
            (json!({"matchExpressions": [labelled]}), true),
            (json!({"matchFields": [named]}), false),
        ] {
            let (mut cluster, pod) = (cluster(), pod(required(json!([term]))));
            let found = filtered(&NodeAffinity::default(), &pod, &mut cluster);
            assert_eq!(found, [1], "{term}");
            let mask = cluster.requirement_mask(&pod.template.node);
            assert_eq!(mask.is_some(), is_prepared, "{term}");
        }
    }

    #[test]
    fn required_terms_are_alternatives_and_their_requirements_all_hold() {
        let disk = |operator: &str, values: &[&str]| json!({"key": "disk", "operator": operator, "values": values});
        let cores = json!({"key": "cores", "operator": "Gt", "values": ["8"]});
        let one = |expressions: Value| json!([{"matchExpressions": expressions}]);
        assert_eq!(left(one(json!([disk("In", &["ssd"])]))), [1]);
        assert_eq!(left(one(json!([disk("NotIn", &["ssd"])]))), [0, 2]);
        assert_eq!(left(one(json!([disk("Exists", &[])]))), [0, 1]);
        assert_eq!(left(one(json!([disk("DoesNotExist", &[])]))), [2]);
        assert_eq!(left(one(json!([cores.clone()]))), [1]);
        assert_eq!(
            left(one(json!([disk("In", &["hdd"]), cores]))),
            [] as [Slot; 0]
        );
        let either = json!([{"matchExpressions": [disk("In", &["hdd"])]},
            {"matchExpressions": [disk("DoesNotExist", &[])]}]);
        assert_eq!(left(either), [0, 2]);
        assert_eq!(
            left(json!([{}])),
            [] as [Slot; 0],
            "an empty term matches nothing"
        );
    }

    #[test]
    fn terms_that_name_nodes_are_looked_at_alone() {
        let named = |values: &[&str]| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": values});
            json!({"matchFields": [field]})
        };
        let names = |terms: Value| named_nodes(&pod(required(terms)));
        let set = |names: &[&str]| {
            names
                .iter()
                .map(ToString::to_string)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(
            names(json!([named(&["n1"]), named(&["n2"])])),
            Some(set(&["n1", "n2"]))
        );
        let other = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
        assert_eq!(names(json!([named(&["n1"]), other])), None);
        let field =
            |value: &str| json!({"key": "metadata.name", "operator": "In", "values": [value]});
        let conflict = json!([{"matchFields": [field("n1"), field("n2")]}]);
        assert_eq!(names(conflict.clone()), Some(BTreeSet::new()));
        let outcome = NodeAffinity::default().pre_filter(&pod(required(conflict)), &cluster());
        assert!(matches!(outcome, PreFilter::Reject(_, false)));
    }

    #[test]
    fn preferred_terms_add_up() {
        let term = |weight: i32, value: &str| {
            let expression = json!({"key": "disk", "operator": "In", "values": [value]});
            json!({"weight": weight, "preference": {"matchExpressions": [expression]}})
        };
        let preferred = json!([term(5, "ssd"), term(20, "hdd"), term(5, "hdd")]);
        let pod = pod(json!({"preferredDuringSchedulingIgnoredDuringExecution": preferred}));
        let scores = scored(&NodeAffinity::default(), &pod, &mut cluster(), &[0, 1, 2]);
        assert_eq!(scores.unwrap(), [100, 20, 0]);
    }

    #[test]
    fn a_profile_can_require_more_of_every_pod() {
        let expression = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let terms = json!([{"matchExpressions": [expression]}]);
        let plugin = new(&json!({"addedAffinity": required(terms)})).unwrap();
        let pod = samples::pod("a", "0", "0");
        assert_eq!(filtered(&*plugin, &pod, &mut cluster()), [1]);
        assert!(
            new(&json!({"addedAfinity": {}})).is_err(),
            "unknown fields are refused"
        );
    }
}
