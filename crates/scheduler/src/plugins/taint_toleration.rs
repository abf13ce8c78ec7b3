//! Rejects nodes with taints that the pod does not tolerate; PreferNoSchedule taints lower the
//! score.

use std::{any::Any, sync::Arc};

use k8s_openapi::api::core::v1::Toleration;
use reconcile::placement::{tolerates, untolerated};
use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::{Cluster, NodeInfo, Slot},
    framework::{
        Plugin, Point,
        candidates::Candidates,
        event::{Event, EventKind},
        normalize,
    },
    pod::PodInfo,
};

/// The plugin's name.
pub(crate) const NAME: &str = "TaintToleration";

/// The effects that reject a node.
pub(super) const HARD: [&str; 2] = ["NoSchedule", "NoExecute"];

/// The plugin.
pub(super) struct TaintToleration;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(TaintToleration))
}

fn is_tolerated(pod: &PodInfo, node: &NodeInfo) -> bool {
    untolerated(&node.taints, &pod.template.tolerations, &HARD).is_none()
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter, Point::PreScore, Point::Score]
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, _: &dyn Any, candidates: &mut Candidates) {
        candidates.retain(NAME, false, |slot| {
            let refused = cluster
                .node(slot)
                .is_some_and(|node| !is_tolerated(pod, node));
            refused.then_some("node(s) had untolerated taint(s)")
        });
    }

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        // Only tolerations that can match PreferNoSchedule matter.
        let speaks = |toleration: &&Toleration| {
            let effect = toleration.effect.as_deref().unwrap_or_default();
            effect.is_empty() || effect == "PreferNoSchedule"
        };
        let tolerations = pod.template.tolerations.iter().filter(speaks);
        Some(Box::new(tolerations.cloned().collect::<Vec<_>>()))
    }

    fn score(
        &self,
        _: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let none = Vec::new();
        let tolerations = state.downcast_ref::<Vec<Toleration>>().unwrap_or(&none);
        for (slot, score) in nodes.iter().zip(scores) {
            let taints = cluster.node(*slot).map_or(&[][..], |node| &node.taints);
            let soft = taints
                .iter()
                .filter(|taint| taint.effect == "PreferNoSchedule");
            let minded = soft.filter(|taint| !tolerations.iter().any(|t| tolerates(t, taint)));
            *score = minded.count() as i64;
        }
    }

    fn normalize(&self, _: &dyn Any, scores: &mut [i64]) {
        normalize(scores, true);
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
        match event {
            Event::NodeAdded(node) => is_tolerated(pod, node),
            Event::NodeUpdated { old, new } => !is_tolerated(pod, old) && is_tolerated(pod, new),
            Event::OwnUpdate { old, new } => old.template.tolerations != new.template.tolerations,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Taint;

    use super::*;
    use crate::samples::{self, filtered, scored};

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        for (name, effects) in [
            ("hard", &["NoSchedule"][..]),
            ("evicts", &["NoExecute"]),
            ("soft", &["PreferNoSchedule"]),
            ("softer", &["PreferNoSchedule", "PreferNoSchedule"]),
            ("free", &[]),
        ] {
            let mut node = samples::node(name, "1", "1Gi");
            let taint = |(number, effect): (usize, &&str)| Taint {
                key: format!("k{number}"),
                effect: (*effect).into(),
                ..Default::default()
            };
            node.taints = effects.iter().enumerate().map(taint).collect();
            cluster.put_node(node);
        }
        cluster
    }

    #[test]
    fn no_schedule_filters_and_prefer_no_schedule_scores() {
        let (mut cluster, pod) = (cluster(), samples::pod("a", "0", "0"));
        assert_eq!(filtered(&TaintToleration, &pod, &mut cluster), [2, 3, 4]);
        let scores = scored(&TaintToleration, &pod, &mut cluster, &[2, 3, 4]);
        assert_eq!(scores.unwrap(), [50, 0, 100]);
    }

    #[test]
    fn a_toleration_of_one_effect_says_nothing_of_another() {
        let mut cluster = cluster();
        let toleration = Toleration {
            operator: Some("Exists".into()),
            effect: Some("NoSchedule".into()),
            ..Default::default()
        };
        let pod = samples::pod_with("a", |spec| spec.tolerations = Some(vec![toleration]));
        assert_eq!(filtered(&TaintToleration, &pod, &mut cluster), [0, 2, 3, 4]);
        let scores = scored(&TaintToleration, &pod, &mut cluster, &[0, 2, 4]);
        assert_eq!(scores.unwrap(), [100, 0, 100]);
    }
}
