//! Restricts a pod that needs a feature of the kubelet to nodes that declare it.

use std::{any::Any, sync::Arc};

use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::{Cluster, NodeInfo},
    framework::{
        Plugin, Point, PreFilter,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeDeclaredFeatures";

/// The plugin.
pub(super) struct NodeDeclaredFeatures;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(NodeDeclaredFeatures))
}

fn declares(node: &NodeInfo, pod: &PodInfo) -> bool {
    let mut needed = pod.template.features.iter();
    needed.all(|feature| node.features.iter().any(|declared| declared == feature))
}

impl Plugin for NodeDeclaredFeatures {
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
        if pod.template.features.is_empty() {
            PreFilter::Skip
        } else {
            PreFilter::Continue(Box::new(()))
        }
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, _: &dyn Any, candidates: &mut Candidates) {
        candidates.retain(NAME, false, |slot| {
            let lacks = cluster.node(slot).is_some_and(|node| !declares(node, pod));
            lacks.then_some("node(s) didn't match Pod's required features")
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
            Event::NodeAdded(_) => true,
            Event::NodeUpdated { old, new } => old.features != new.features,
            Event::OwnUpdate { .. } => pod.template.features.is_empty(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{self, filtered};

    #[test]
    fn host_network_with_user_namespaces_needs_a_kubelet_that_can() {
        let mut cluster = samples::cluster(&[("old", "1", "1Gi")]);
        let mut able = samples::node("able", "1", "1Gi");
        able.features = vec!["UserNamespacesHostNetworkSupport".into()];
        cluster.put_node(able);
        let pod = samples::pod_with("a", |spec| {
            spec.host_network = Some(true);
            spec.host_users = Some(false);
        });
        assert_eq!(filtered(&NodeDeclaredFeatures, &pod, &mut cluster), [1]);
        let plain = samples::pod("b", "0", "0");
        assert_eq!(
            filtered(&NodeDeclaredFeatures, &plain, &mut cluster),
            [0, 1]
        );
    }
}
