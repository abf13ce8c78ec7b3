//! Routes to the pods of other nodes: directly where a node is a neighbour, through a VXLAN device
//! where it is not. [`plan`] decides, [`NodeRoutes`] acts.
//!
//! The hardware address of a node's overlay device derives from the node's name, so nodes need not
//! tell each other. The first address of a node's pod CIDR is its device's address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use futures::TryStreamExt;
use ipnet::IpNet;
use lifecycle::{Context, Run, Service};
use rtnetlink::{
    LinkUnspec, LinkVxlan, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        neighbour::NeighbourFlags,
        route::{RouteAttribute, RouteMessage, RouteProtocol},
    },
};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    Error, Result, links,
    names::{self, ROUTE_PROTOCOL, hardware_address},
    netns::Netlink,
    nft::{Batch, Nft},
};

/// The UDP port that Linux uses for VXLAN by itself.
pub const VXLAN_PORT: u16 = 8472;
/// What VXLAN adds to a packet.
const VXLAN_OVERHEAD: u32 = 50;

/// Another node, as far as routes care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The Node's name.
    pub name: String,
    /// Its addresses, at most one per family.
    pub addresses: Vec<IpAddr>,
    /// The ranges of its pods.
    pub pod_cidrs: Vec<IpNet>,
}

/// How to reach the pods of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hop {
    /// The node is on a subnet of ours.
    Direct(IpAddr),
    /// Through the overlay, to this node's address and device.
    Overlay {
        /// The node's address.
        node: IpAddr,
        /// The hardware address of its overlay device.
        hardware: [u8; 6],
    },
}

/// The routes that should exist. `subnets` are those of this node's interfaces; a peer without an
/// address is left out.
pub fn plan(peers: &[Peer], subnets: &[IpNet]) -> BTreeMap<IpNet, Hop> {
    let mut routes = BTreeMap::new();
    for peer in peers {
        for cidr in &peer.pod_cidrs {
            let same_family = |ip: &&IpAddr| ip.is_ipv4() == cidr.addr().is_ipv4();
            let direct = peer
                .addresses
                .iter()
                .filter(same_family)
                .find(|ip| subnets.iter().any(|subnet| subnet.contains(*ip)));
            let hop = match (direct, peer.addresses.first()) {
                (Some(ip), _) => Hop::Direct(*ip),
                (None, Some(ip)) => Hop::Overlay {
                    node: *ip,
                    hardware: overlay_hardware(&peer.name),
                },
                (None, None) => continue,
            };
            routes.insert(cidr.trunc(), hop);
        }
    }
    routes
}

fn overlay_hardware(node: &str) -> [u8; 6] {
    hardware_address(&format!("vxlan/{node}"))
}

/// What routing between nodes must know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// A word that all nodes of the cluster share; the VXLAN network identifier derives from it.
    pub cluster: String,
    /// This node's name.
    pub node_name: String,
    /// This node's own addresses.
    pub node_ips: Vec<IpAddr>,
    /// The ranges of all pods.
    pub cluster_cidrs: Vec<IpNet>,
    /// The largest packet between nodes; less when the link of this node's address takes less.
    pub mtu: u32,
}

impl Config {
    /// A service that keeps routes as `nodes` says; the list may contain this node itself, which
    /// gives the overlay device its address.
    pub fn build(self, nft: Nft, nodes: watch::Receiver<Vec<Peer>>) -> Arc<NodeRoutes> {
        Arc::new(NodeRoutes {
            config: self,
            nft,
            nodes,
        })
    }
}

/// Keeps the node's routes to other nodes' pods.
pub struct NodeRoutes {
    config: Config,
    nft: Nft,
    nodes: watch::Receiver<Vec<Peer>>,
}

impl NodeRoutes {
    /// Brings the kernel's routes in line with a list of nodes.
    pub async fn sync(&self, netlink: &Netlink, nodes: &[Peer]) -> Result<()> {
        let (own, peers): (Vec<Peer>, Vec<Peer>) = nodes
            .iter()
            .cloned()
            .partition(|node| node.name == self.config.node_name);
        let routes = plan(&peers, &subnets(netlink).await?);
        let overlay = if routes
            .values()
            .any(|hop| matches!(hop, Hop::Overlay { .. }))
        {
            Some(self.overlay(netlink, &own).await?)
        } else {
            None
        };
        self.remove_stale(netlink, &routes).await?;
        for (cidr, hop) in &routes {
            self.add(netlink, *cidr, hop, overlay).await?;
        }
        Ok(())
    }

    /// The overlay device's index; made when it is missing.
    async fn overlay(&self, netlink: &Netlink, own: &[Peer]) -> Result<u32> {
        let name = names::vxlan_link(&self.config.id);
        let index = match links::index_of(netlink, &name).await? {
            Some(index) => index,
            None => self.create_overlay(netlink, &name).await?,
        };
        for cidr in own.iter().flat_map(|node| &node.pod_cidrs) {
            let length = if cidr.addr().is_ipv4() { 32 } else { 128 };
            links::add_address(netlink, index, cidr.network(), length).await?;
        }
        let up = LinkUnspec::new_with_index(index).up().build();
        let raised = netlink.handle.link().set(up).execute().await;
        raised.map_err(Error::netlink("set the overlay device up"))?;
        Ok(index)
    }

    async fn create_overlay(&self, netlink: &Netlink, name: &str) -> Result<u32> {
        let wire = links::mtu_at(netlink, &self.config.node_ips).await?;
        let mtu = self.config.mtu.min(wire.unwrap_or(self.config.mtu));
        let mut device = LinkVxlan::new(name, names::vni(&self.config.cluster))
            .port(VXLAN_PORT)
            .learning(false)
            .mtu(mtu.saturating_sub(VXLAN_OVERHEAD))
            .address(overlay_hardware(&self.config.node_name).to_vec());
        device = match self.config.node_ips.first() {
            Some(IpAddr::V4(ip)) => device.local(*ip),
            Some(IpAddr::V6(ip)) => device.local6(*ip),
            None => device,
        };
        let made = netlink.handle.link().add(device.build()).execute().await;
        made.map_err(Error::netlink(format!("create {name}")))?;
        self.masquerade_into_overlay(name).await?;
        info!(device = name, "overlay device made");
        links::index_of(netlink, name).await?.ok_or_else(|| {
            Error::netlink("create the overlay device")(rtnetlink::Error::RequestFailed)
        })
    }

    /// What this node itself sends into the overlay must come from the device's address, or the
    /// answer would take another way back.
    async fn masquerade_into_overlay(&self, device: &str) -> Result<()> {
        let table = names::table_of(&self.config.id, "overlay");
        let mut batch = Batch::new();
        batch.replace_table("inet", &table);
        batch.push(format!(
            "add chain inet {table} postrouting {{ type nat hook postrouting priority 101; }}"
        ));
        for cidr in &self.config.cluster_cidrs {
            let family = if cidr.addr().is_ipv4() { "ip" } else { "ip6" };
            batch.push(format!(
                "add rule inet {table} postrouting oifname \"{device}\" {family} saddr != {cidr} \
                 masquerade fully-random"
            ));
        }
        self.nft.apply(&batch).await
    }

    async fn add(
        &self,
        netlink: &Netlink,
        cidr: IpNet,
        hop: &Hop,
        overlay: Option<u32>,
    ) -> Result<()> {
        let builder = RouteMessageBuilder::<IpAddr>::new()
            .protocol(RouteProtocol::Other(ROUTE_PROTOCOL))
            .priority(names::route_metric(&self.config.id));
        let unfit = |_| Error::netlink(format!("route to {cidr}"))(rtnetlink::Error::RequestFailed);
        let builder = builder
            .destination_prefix(cidr.network(), cidr.prefix_len())
            .map_err(unfit)?;
        let builder = match (hop, overlay) {
            (Hop::Direct(gateway), _) => builder.gateway(*gateway).map_err(unfit)?,
            (Hop::Overlay { node, hardware }, Some(index)) => {
                links::add_neighbour(netlink, index, cidr.network(), hardware).await?;
                forward_to(netlink, index, hardware, *node).await?;
                builder
                    .gateway(cidr.network())
                    .map_err(unfit)?
                    .output_interface(index)
                    .onlink()
            }
            (Hop::Overlay { .. }, None) => return Ok(()),
        };
        links::add_route(netlink, builder.build(), &format!("route to {cidr}")).await
    }

    async fn remove_stale(&self, netlink: &Netlink, wanted: &BTreeMap<IpNet, Hop>) -> Result<()> {
        let wanted: BTreeSet<IpNet> = wanted.keys().copied().collect();
        let inside = |cidr: &IpNet| {
            self.config
                .cluster_cidrs
                .iter()
                .any(|all| all.contains(cidr))
        };
        for (cidr, route) in tagged(netlink, &self.config.id).await? {
            if inside(&cidr) && !wanted.contains(&cidr) {
                info!(%cidr, "removing the route of a node that is gone");
                let removed = netlink.handle.route().del(route).execute().await;
                removed.map_err(Error::netlink(format!("remove route {cidr}")))?;
            }
        }
        Ok(())
    }
}

/// Where the overlay device sends frames for a hardware address.
async fn forward_to(netlink: &Netlink, index: u32, hardware: &[u8; 6], node: IpAddr) -> Result<()> {
    netlink
        .handle
        .neighbours()
        .add_bridge(index, hardware)
        .destination(node)
        .flags(NeighbourFlags::Own)
        .replace()
        .execute()
        .await
        .map_err(Error::netlink(format!("forward overlay frames to {node}")))
}

/// The routes that carry this cluster's mark.
pub(crate) async fn tagged(netlink: &Netlink, id: &str) -> Result<Vec<(IpNet, RouteMessage)>> {
    let metric = names::route_metric(id);
    let mut found = Vec::new();
    for query in [
        RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
        RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
    ] {
        let routes: Vec<RouteMessage> = netlink
            .handle
            .route()
            .get(query)
            .execute()
            .try_collect()
            .await
            .map_err(Error::netlink("list routes"))?;
        found.extend(routes.into_iter().filter_map(|route| {
            let ours = route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL)
                && route.attributes.contains(&RouteAttribute::Priority(metric));
            ours.then(|| destination(&route).map(|cidr| (cidr, route.clone())))
                .flatten()
        }));
    }
    Ok(found)
}

fn destination(route: &RouteMessage) -> Option<IpNet> {
    use rtnetlink::packet_route::route::RouteAddress;
    let address: IpAddr = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some((*ip).into()),
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some((*ip).into()),
            _ => None,
        })?;
    IpNet::new(address, route.header.destination_prefix_length).ok()
}

/// The subnets that this node's interfaces are part of.
async fn subnets(netlink: &Netlink) -> Result<Vec<IpNet>> {
    let messages: Vec<_> = netlink
        .handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(Error::netlink("list addresses"))?;
    Ok(messages
        .iter()
        .filter_map(|message| {
            let length = message.header.prefix_len;
            message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    AddressAttribute::Address(ip) => IpNet::new(*ip, length).ok(),
                    _ => None,
                })
        })
        .filter(|subnet| {
            !subnet.addr().is_loopback() && subnet.prefix_len() < subnet.max_prefix_len()
        })
        .collect())
}

impl Service for NodeRoutes {
    fn name(&self) -> &'static str {
        "routes"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let netlink = Netlink::here()?;
            let mut nodes = self.nodes.clone();
            context.ready();
            loop {
                let now = nodes.borrow_and_update().clone();
                if let Err(error) = self.sync(&netlink, &now).await {
                    warn!(%error, "routes to other nodes are incomplete");
                    return Err(error.into());
                }
                tokio::select! {
                    changed = nodes.changed() => if changed.is_err() {
                        // Nobody will tell of nodes any more; what is there stays.
                        context.shutdown().await;
                        return Ok(());
                    },
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, address: &str, cidr: &str) -> Peer {
        Peer {
            name: name.into(),
            addresses: vec![address.parse().unwrap()],
            pod_cidrs: vec![cidr.parse().unwrap()],
        }
    }

    #[test]
    fn neighbours_are_routed_directly_and_others_through_the_overlay() {
        let peers = [
            peer("b", "192.0.2.2", "10.42.1.0/24"),
            peer("c", "198.51.100.3", "10.42.2.0/24"),
        ];
        let routes = plan(&peers, &["192.0.2.0/24".parse().unwrap()]);
        assert_eq!(
            routes[&"10.42.1.0/24".parse().unwrap()],
            Hop::Direct("192.0.2.2".parse().unwrap())
        );
        assert_eq!(
            routes[&"10.42.2.0/24".parse().unwrap()],
            Hop::Overlay {
                node: "198.51.100.3".parse().unwrap(),
                hardware: overlay_hardware("c")
            }
        );
    }

    #[test]
    fn a_node_without_address_has_no_route() {
        let mut peer = peer("b", "192.0.2.2", "10.42.1.0/24");
        peer.addresses.clear();
        assert!(plan(&[peer], &[]).is_empty());
    }
}
