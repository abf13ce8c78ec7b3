//! The nodes as peers of the network: their addresses and pod ranges. The network crate has only
//! plain data; this reads the Nodes.

use std::{net::IpAddr, sync::Arc};

use client::{Informer, kube};
use k8s_openapi::api::core::v1::Node;
use lifecycle::{Context, Run, Service};
use network::routes::Peer;
use tokio::sync::watch;

/// Keeps the list of peers up to date with the Nodes.
pub(crate) struct Peers {
    /// May list and watch nodes.
    pub client: kube::Client,
    /// Read by [`network::routes`]. `None` until the Nodes have been listed: routes of an earlier
    /// run are kept until then.
    pub peers: watch::Sender<Option<Vec<Peer>>>,
}

impl Service for Peers {
    fn name(&self) -> &'static str {
        "peers"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let nodes = Informer::<Node>::builder(self.client.clone()).start(&context);
            let mut events = nodes.subscribe();
            nodes.synced().await;
            context.ready();
            loop {
                while events.try_next().is_some() {}
                let now: Vec<Peer> = nodes.list().iter().map(|node| peer(node)).collect();
                self.peers.send_if_modified(|known| {
                    let changed = known.as_ref() != Some(&now);
                    *known = Some(now);
                    changed
                });
                tokio::select! {
                    event = events.next() => if event.is_none() {
                        return Err("the informer of nodes ended".into());
                    },
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}

/// A node as a peer of the network.
fn peer(node: &Node) -> Peer {
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

/// The first of each IP family. A node writes them itself, and each may send into the overlay of all others.
fn internal_ips(node: &Node) -> Vec<IpAddr> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let internal = addresses
        .into_iter()
        .flatten()
        .filter(|address| address.type_ == "InternalIP");
    let mut first: Vec<IpAddr> = Vec::new();
    for ip in internal.filter_map(|address| address.address.parse::<IpAddr>().ok()) {
        if first.iter().all(|known| known.is_ipv4() != ip.is_ipv4()) {
            first.push(ip);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_a_peer_with_its_internal_address_and_pod_ranges() {
        let node: Node = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "b"},
            "spec": {"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "b"}, {"type": "InternalIP", "address": "192.0.2.2"},
                {"type": "InternalIP", "address": "192.0.2.3"}, {"type": "InternalIP", "address": "fd00::2"},
                {"type": "InternalIP", "address": "fd00::3"}, {"type": "ExternalIP", "address": "203.0.113.2"}]},
        }))
        .unwrap();
        let peer = peer(&node);
        let expected = ["192.0.2.2", "fd00::2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(peer.addresses, expected);
        assert_eq!(peer.pod_cidrs, ["10.42.1.0/24".parse().unwrap()]);
    }
}
