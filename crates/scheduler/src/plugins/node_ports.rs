//! Two pods cannot have the same port of one node.

use super::{Change, Plugin};
use crate::{candidates::Candidates, cluster::Cluster, pod::PodInfo};

/// The rule.
pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        if pod.ports.is_empty() {
            return;
        }
        candidates.retain(self.name(), true, |slot| {
            let used = &cluster.ports[slot];
            let taken = pod
                .ports
                .iter()
                .any(|port| used.iter().any(|other| port.collides(other)));
            taken.then_some("node(s) didn't have free ports for the requested pod ports")
        });
    }

    fn helped_by(&self, change: Change) -> bool {
        matches!(change, Change::NodeAdded | Change::PodGone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pod::HostPort, samples};

    #[test]
    fn a_port_for_all_addresses_collides_with_one_for_a_single_address() {
        let port = |address: &str, number| HostPort {
            protocol: "TCP".into(),
            address: address.into(),
            number,
        };
        assert!(port("0.0.0.0", 80).collides(&port("10.0.0.1", 80)));
        assert!(!port("10.0.0.2", 80).collides(&port("10.0.0.1", 80)));
        assert!(!port("0.0.0.0", 81).collides(&port("0.0.0.0", 80)));
    }

    #[test]
    fn a_node_whose_port_is_taken_is_turned_away_until_the_pod_goes() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        let web =
            |name| samples::pod_with(name, |spec| spec.containers = samples::with_host_port(80));
        cluster.put_pod("n1", web("a"));
        let judge = |cluster: &Cluster| {
            let mut candidates = Candidates::all(cluster);
            NodePorts.filter(&web("b"), cluster, &mut candidates);
            candidates.slots().len()
        };
        assert_eq!(judge(&cluster), 0);
        cluster.remove_pod("uid-a");
        assert_eq!(judge(&cluster), 1);
    }
}
