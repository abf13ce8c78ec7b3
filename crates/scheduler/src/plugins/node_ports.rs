//! Rejects nodes on which a host port of the pod is in use.

use std::{any::Any, sync::Arc};

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
pub(crate) const NAME: &str = "NodePorts";

/// The plugin.
pub(super) struct NodePorts;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(NodePorts))
}

impl Plugin for NodePorts {
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
        if pod.template.ports.is_empty() {
            PreFilter::Skip
        } else {
            PreFilter::Continue(Box::new(()))
        }
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, _: &dyn Any, candidates: &mut Candidates) {
        candidates.retain(NAME, true, |slot| {
            let used = &cluster.ports[slot];
            let mut wanted = pod.template.ports.iter();
            let taken = wanted.any(|port| used.iter().any(|other| port.collides(other)));
            taken.then_some("node(s) didn't have free ports for the requested pod ports")
        });
    }

    fn events(&self) -> &'static [EventKind] {
        &[EventKind::NodeAdded, EventKind::PodDeleted]
    }

    fn hints_by_template(&self) -> bool {
        true
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::NodeAdded(_) => true,
            Event::PodDeleted(other, _) => {
                let freed = &other.template.ports;
                let mut wanted = pod.template.ports.iter();
                wanted.any(|port| freed.iter().any(|other| port.collides(other)))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        samples::{self, filtered},
        template::HostPort,
    };

    #[test]
    fn a_port_for_all_addresses_collides_with_one_for_a_single_address() {
        let port = |protocol: &str, address: &str, number| HostPort {
            protocol: protocol.into(),
            address: address.into(),
            number,
        };
        let taken = port("TCP", "10.0.0.1", 80);
        for (wanted, collides) in [
            (port("TCP", "0.0.0.0", 80), true),
            (port("TCP", "10.0.0.1", 80), true),
            (port("TCP", "10.0.0.2", 80), false),
            (port("UDP", "0.0.0.0", 80), false),
            (port("TCP", "0.0.0.0", 81), false),
        ] {
            assert_eq!(wanted.collides(&taken), collides, "{wanted:?}");
        }
    }

    #[test]
    fn a_node_whose_port_is_taken_is_turned_away_until_the_pod_goes() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        let web =
            |name| samples::pod_with(name, |spec| spec.containers = samples::with_host_port(80));
        let taken = web("a");
        cluster.put_pod("n1", taken.clone());
        assert!(filtered(&NodePorts, &web("b"), &mut cluster).is_empty());
        cluster.remove_pod("uid-a");
        assert_eq!(filtered(&NodePorts, &web("b"), &mut cluster), [0]);
        let helped = |other: &PodInfo| {
            NodePorts.is_helped_by(&web("b"), &Event::PodDeleted(other, None), &cluster)
        };
        assert!(helped(&taken));
        assert!(!helped(&samples::pod("c", "1", "1")), "it had no port");
    }
}
