//! Rejects cordoned nodes, unless the pod tolerates that.

use std::{any::Any, sync::Arc};

use k8s_openapi::api::core::v1::Taint;
use reconcile::placement::tolerates;
use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::Cluster,
    framework::{
        Plugin, Point, PreFilter,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeUnschedulable";

/// The plugin.
pub(super) struct NodeUnschedulable;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(NodeUnschedulable))
}

fn tolerates_cordon(pod: &PodInfo) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Default::default()
    };
    let tolerations = &pod.template.tolerations;
    tolerations
        .iter()
        .any(|toleration| tolerates(toleration, &taint))
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter {
        if tolerates_cordon(pod) {
            PreFilter::Skip
        } else {
            PreFilter::Continue(Box::new(()))
        }
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, _: &dyn Any, candidates: &mut Candidates) {
        candidates.retain(NAME, false, |slot| {
            let cordoned = cluster.node(slot).is_some_and(|node| node.unschedulable);
            cordoned.then_some("node(s) were unschedulable")
        });
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
            Event::NodeAdded(node) => !node.unschedulable || tolerates_cordon(pod),
            Event::NodeUpdated { old, new } => old.unschedulable && !new.unschedulable,
            Event::OwnUpdate { old, new } => !tolerates_cordon(old) && tolerates_cordon(new),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Toleration;

    use super::*;
    use crate::samples::{self, filtered};

    #[test]
    fn a_cordoned_node_takes_only_pods_that_tolerate_it() {
        let mut cluster = samples::cluster(&[("open", "1", "1Gi")]);
        cluster.put_node(samples::cordoned("closed"));
        let plain = samples::pod("a", "0", "0");
        assert_eq!(filtered(&NodeUnschedulable, &plain, &mut cluster), [0]);
        let toleration = Toleration {
            key: Some("node.kubernetes.io/unschedulable".into()),
            operator: Some("Exists".into()),
            ..Default::default()
        };
        let tolerant = samples::pod_with("b", |spec| spec.tolerations = Some(vec![toleration]));
        assert_eq!(
            filtered(&NodeUnschedulable, &tolerant, &mut cluster),
            [0, 1]
        );
    }
}
