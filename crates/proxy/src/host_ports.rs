//! Load balancers at the nodes' own addresses do not take ports that processes of a node listen on.
//! Every node decides about its own addresses, and does not redirect traffic to those of others:
//! otherwise every user who may write Services could take a port of a machine from its process.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::core::v1::Node;
use network::Protocol;

use crate::service::PortView;

/// The addresses that nodes report.
#[derive(Debug, Default)]
pub struct NodeAddresses {
    pub own: BTreeSet<IpAddr>,
    pub others: BTreeSet<IpAddr>,
}

impl NodeAddresses {
    /// Reads them from the Nodes; `own` are known addresses of this node.
    pub fn new<'a>(nodes: impl Iterator<Item = &'a Node>, this: &str, own: &[IpAddr]) -> Self {
        let mut all = Self {
            own: own.iter().copied().collect(),
            others: BTreeSet::new(),
        };
        for node in nodes {
            let status = node.status.as_ref();
            let listed = status.and_then(|status| status.addresses.as_ref());
            let listed = listed.into_iter().flatten();
            let parsed = listed.filter_map(|address| address.address.parse::<IpAddr>().ok());
            match node.metadata.name.as_deref() == Some(this) {
                true => all.own.extend(parsed),
                false => all.others.extend(parsed),
            }
        }
        // Another node's claim of this node's addresses has no effect here.
        all.others.retain(|ip| !all.own.contains(ip));
        all
    }

    /// Without what other nodes report: any node can claim any address.
    pub fn only_own(&self) -> Self {
        Self {
            own: self.own.clone(),
            others: BTreeSet::new(),
        }
    }
}

/// A port that a process of this node keeps.
pub type ListeningPort = (SocketAddr, Protocol);

/// Removes load balancer addresses from the views that this node must not redirect: addresses of
/// other nodes, and its own whose port is in use. Returns the latter.
pub fn keep_host_ports(
    views: &mut [PortView],
    nodes: &NodeAddresses,
    is_free: impl Fn(ListeningPort) -> bool,
) -> Vec<ListeningPort> {
    let mut kept = Vec::new();
    for view in views {
        let mut removed = BTreeSet::new();
        for ip in &view.load_balancer_ips {
            let port = (SocketAddr::new(*ip, view.port), view.protocol);
            if nodes.others.contains(ip) {
                removed.insert(*ip);
            } else if nodes.own.contains(ip) && !is_free(port) {
                removed.insert(*ip);
                kept.push(port);
            }
        }
        view.load_balancer_ips.retain(|ip| !removed.contains(ip));
        view.external_ips.retain(|ip| !removed.contains(ip));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(ips: &[&str], protocol: Protocol) -> PortView {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        PortView {
            name: "d/web:".into(),
            protocol,
            port: 80,
            cluster_ip: "10.43.0.9".parse().unwrap(),
            external_ips: ips.clone(),
            load_balancer_ips: ips,
            source_ranges: None,
            node_port: None,
            affinity_seconds: None,
            internal_local: false,
            external_local: false,
            endpoints: Default::default(),
        }
    }

    #[test]
    fn ports_of_processes_and_addresses_of_other_nodes_are_not_intercepted() {
        let node = |name: &str, ips: &[&str]| -> Node {
            let addresses: Vec<_> = ips
                .iter()
                .map(|ip| serde_json::json!({"type": "InternalIP", "address": ip}))
                .collect();
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": name}, "status": {"addresses": addresses}}))
            .unwrap()
        };
        // The other node claims an address of this one, too.
        let nodes = [
            node("here", &["192.0.2.1", "192.0.2.11", "here.example"]),
            node("there", &["192.0.2.2", "192.0.2.1"]),
        ];
        let nodes = NodeAddresses::new(nodes.iter(), "here", &["192.0.2.12".parse().unwrap()]);
        let all = [
            "192.0.2.1",
            "192.0.2.11",
            "192.0.2.12",
            "192.0.2.2",
            "203.0.113.1",
        ];
        let mut views = [view(&all, Protocol::Tcp), view(&all, Protocol::Udp)];
        let busy = ("192.0.2.11:80".parse().unwrap(), Protocol::Tcp);
        let kept = keep_host_ports(&mut views, &nodes, |port| port != busy);
        assert_eq!(kept, [busy]);
        let [tcp, udp] = views.map(|view| {
            assert_eq!(view.external_ips, view.load_balancer_ips);
            view.external_ips
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        });
        assert_eq!(tcp, ["192.0.2.1", "192.0.2.12", "203.0.113.1"]);
        assert_eq!(
            udp,
            ["192.0.2.1", "192.0.2.11", "192.0.2.12", "203.0.113.1"]
        );
    }
}
