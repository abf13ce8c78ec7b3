//! The nodes that load balancers send traffic to, as keys of an index of the Nodes' informer: so no Node is decoded for
//! a Service.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Node;
use reconcile::placement;

pub(super) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
pub(super) const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

/// A node that accepts traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub name: String,
    /// Its external addresses of a family, or its internal ones if it has none.
    pub addresses: Vec<IpAddr>,
}

/// A node's keys: none if it accepts no traffic, otherwise its name, and its name with each of its addresses.
pub(crate) fn traffic(node: &Node) -> Vec<String> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    if !takes_traffic(node) {
        return Vec::new();
    }
    let addresses = [true, false].map(|v4| addresses(node, v4));
    let addresses = addresses.iter().flatten().map(|ip| format!("{name} {ip}"));
    [name.to_owned()].into_iter().chain(addresses).collect()
}

/// The nodes of all keys, by name.
pub(super) fn targets(keys: &[String]) -> Vec<Target> {
    let mut nodes: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
    for key in keys {
        let (name, address) = key.split_once(' ').unwrap_or((key, ""));
        nodes
            .entry(name)
            .or_default()
            .extend(address.parse::<IpAddr>());
    }
    let nodes = nodes.into_iter().map(|(name, addresses)| Target {
        name: name.to_owned(),
        addresses,
    });
    nodes.collect()
}

fn takes_traffic(node: &Node) -> bool {
    let is_ready = placement::is_ready(node);
    let labels = node.metadata.labels.as_ref();
    let is_excluded = labels.is_some_and(|labels| labels.contains_key(EXCLUDED));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_leaving = taints
        .into_iter()
        .flatten()
        .any(|taint| taint.key == LEAVING);
    is_ready && !is_excluded && !is_leaving && node.metadata.deletion_timestamp.is_none()
}

fn addresses(node: &Node, v4: bool) -> Vec<IpAddr> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_ref());
    let of_type = |wanted: &str| -> Vec<IpAddr> {
        let all = all.into_iter().flatten();
        let all = all.filter(|address| address.type_ == wanted);
        let parsed = all.filter_map(|address| address.address.parse().ok());
        parsed.filter(|ip: &IpAddr| ip.is_ipv4() == v4).collect()
    };
    let external = of_type("ExternalIP");
    match external.is_empty() {
        true => of_type("InternalIP"),
        false => external,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_have_what_a_load_balancer_needs_of_a_node() {
        let node = |name: &str, ready: &str, addresses: &[(&str, &str)]| -> Node {
            let addresses = addresses.iter();
            let addresses: Vec<_> = addresses
                .map(|(kind, ip)| json!({"type": kind, "address": ip}))
                .collect();
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let node = json!({"metadata": {"name": name},
                              "status": {"conditions": conditions, "addresses": addresses}});
            serde_json::from_value(node).unwrap()
        };
        let nodes = [
            node(
                "b",
                "True",
                &[
                    ("InternalIP", "192.0.2.1"),
                    ("ExternalIP", "198.51.100.1"),
                    ("InternalIP", "2001:db8::1"),
                    ("Hostname", "b"),
                ],
            ),
            node("a", "True", &[]),
            node("c", "False", &[("InternalIP", "192.0.2.3")]),
        ];
        let keys: Vec<String> = nodes.iter().flat_map(traffic).collect();
        assert_eq!(keys, ["b", "b 198.51.100.1", "b 2001:db8::1", "a"]);
        let target = |name: &str, addresses: &[&str]| Target {
            name: name.into(),
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        let expected = [
            target("a", &[]),
            target("b", &["198.51.100.1", "2001:db8::1"]),
        ];
        assert_eq!(targets(&keys), expected);
    }
}
