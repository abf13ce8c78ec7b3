//! What the network must know of Nodes: where their pods are. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use network::routes::Peer;

/// The well-known label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The node as a peer in the network.
pub fn peer(node: &Node) -> Peer {
    let spec = node.spec.clone().unwrap_or_default();
    let mut cidrs = spec.pod_cidrs.unwrap_or_default();
    if cidrs.is_empty() {
        cidrs.extend(spec.pod_cidr);
    }
    Peer {
        name: node.metadata.name.clone().unwrap_or_default(),
        addresses: internal_ips(node),
        pod_cidrs: cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
    }
}

/// The zone that a node says it is in.
pub fn zone(node: &Node) -> Option<String> {
    node.metadata.labels.as_ref()?.get(ZONE).cloned()
}

fn internal_ips(node: &Node) -> Vec<IpAddr> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let internal = addresses
        .into_iter()
        .flatten()
        .filter(|address| address.type_ == "InternalIP");
    internal
        .filter_map(|address| address.address.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_a_peer_with_its_internal_address_and_pod_ranges() {
        let node: Node = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "b", "labels": {"topology.kubernetes.io/zone": "z1"}},
            "spec": {"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "b"}, {"type": "InternalIP", "address": "192.0.2.2"}]},
        }))
        .unwrap();
        let peer = peer(&node);
        assert_eq!(peer.addresses, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(peer.pod_cidrs, ["10.42.1.0/24".parse().unwrap()]);
        assert_eq!(zone(&node).as_deref(), Some("z1"));
    }
}
