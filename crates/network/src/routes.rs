//! Routes to the pods of other nodes: direct if a node is on the same subnet, through a VXLAN
//! device otherwise. [`plan`] decides, [`NodeRoutes`] acts.
//!
//! Addresses of this node's own pod CIDR without a pod are unreachable: packets to a pod that is gone would otherwise
//! follow the default route and leave the cluster.
//!
//! The hardware address of a node's overlay device derives from the node's name, so that nodes need
//! not exchange it. The first address of a node's pod CIDR is its device's address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures::TryStreamExt;
use ipnet::IpNet;
use lifecycle::{Context, Outcome, Run, Service};
use parking_lot::Mutex;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType},
    },
};
use stdx::Backoff;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    Error, Result,
    check_timer::CheckTimer,
    links,
    names::{self, ROUTE_PROTOCOL, hardware_address},
    netns::{Netlink, answered_within},
    nft::Nft,
    notices::Notices,
    overlay::{LEAST_V6, Overlay, Tunnel},
    overlay_table::Table,
};

/// Some requests for each node; those that were answered need not be made again.
const SYNCED_WITHIN: Duration = Duration::from_secs(120);

/// Another node, as far as routes need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The Node's name.
    pub name: String,
    /// Its addresses, at most one per family.
    pub addresses: Vec<IpAddr>,
    /// Its pod CIDRs.
    pub pod_cidrs: Vec<IpNet>,
}

/// The next hop to the pods of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextHop {
    /// The node is on one of our subnets.
    Direct(IpAddr),
    /// Through the overlay, to this node's address and device.
    Overlay {
        /// The node's address.
        node: IpAddr,
        /// The hardware address of its overlay device.
        hardware: [u8; 6],
    },
    /// None: this node's own range. Routes to its pods are more specific.
    Unreachable,
}

/// The desired routes. `subnets` are those of this node's interfaces, and `node_ips` its addresses: the overlay sends
/// from the first one, so that it reaches only addresses of that family. A peer without a usable address is skipped.
pub fn plan(peers: &[Peer], subnets: &[IpNet], node_ips: &[IpAddr]) -> BTreeMap<IpNet, NextHop> {
    let mut routes = BTreeMap::new();
    for peer in peers {
        for cidr in &peer.pod_cidrs {
            let same_family = |ip: &&IpAddr| ip.is_ipv4() == cidr.addr().is_ipv4();
            let direct = peer
                .addresses
                .iter()
                .filter(same_family)
                .find(|ip| subnets.iter().any(|subnet| subnet.contains(*ip)));
            let mut others = peer.addresses.iter();
            let distant = others.find(|ip| {
                let mut own = node_ips.iter().take(1);
                own.all(|own| own.is_ipv4() == ip.is_ipv4())
            });
            let hop = match (direct, distant) {
                (Some(ip), _) => NextHop::Direct(*ip),
                (None, Some(ip)) => NextHop::Overlay {
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

/// Removes addresses to which no packet can be sent, and this node's own. A kubelet writes the addresses of its Node:
/// other nodes must keep their routes whatever it writes.
fn keep_host_addresses(peer: &mut Peer, node_ips: &[IpAddr], problems: &mut BTreeSet<String>) {
    let name = &peer.name;
    peer.addresses.retain(|ip| {
        let is_kept = is_host(*ip) && !node_ips.contains(ip);
        if !is_kept {
            let problem = format!("node {name}: {ip} is not an address of another host");
            problems.insert(problem);
        }
        is_kept
    });
}

fn is_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_broadcast)
}

/// The ranges of a node that no usable address leads to.
fn unreached<'a>(
    peer: &'a Peer,
    routes: &'a BTreeMap<IpNet, NextHop>,
) -> impl Iterator<Item = String> + 'a {
    let cidrs = peer.pod_cidrs.iter().map(IpNet::trunc);
    let missing = cidrs.filter(|cidr| !routes.contains_key(cidr));
    missing.map(|cidr| {
        let Peer {
            name, addresses, ..
        } = peer;
        format!("node {name}: no route to {cidr} by the addresses {addresses:?}")
    })
}

/// This node's own ranges, as far as they are inside the cluster CIDRs.
fn own_ranges(own: &[IpNet], cluster_cidrs: &[IpNet]) -> BTreeMap<IpNet, NextHop> {
    let is_inside = |cidr: &&IpNet| cluster_cidrs.iter().any(|all| all.contains(*cidr));
    let own = own.iter().filter(is_inside);
    own.map(|cidr| (cidr.trunc(), NextHop::Unreachable))
        .collect()
}

/// Removes ranges that are not inside the cluster CIDRs or that overlap this node's own: a Node must
/// not lead traffic of this node away.
fn keep_pod_ranges(
    peer: &mut Peer,
    cluster_cidrs: &[IpNet],
    own: &[IpNet],
    problems: &mut BTreeSet<String>,
) {
    let name = &peer.name;
    peer.pod_cidrs.retain(|cidr| {
        let is_inside = cluster_cidrs.iter().any(|all| all.contains(cidr));
        let overlaps = |own: &IpNet| own.contains(cidr) || cidr.contains(own);
        let is_kept = is_inside && !own.iter().any(overlaps);
        if !is_kept {
            let problem = format!(
                "node {name}: pod CIDR {cidr} is outside of the cluster CIDR, or this node's own"
            );
            problems.insert(problem);
        }
        is_kept
    });
}

pub(crate) fn overlay_hardware(node: &str) -> [u8; 6] {
    hardware_address(&format!("vxlan/{node}"))
}

/// The configuration of routes between nodes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// A name that all nodes of the cluster share; the VXLAN network identifier derives from it.
    pub cluster: String,
    /// This node's name.
    pub node_name: String,
    /// This node's own addresses.
    pub node_ips: Vec<IpAddr>,
    /// The cluster CIDRs.
    pub cluster_cidrs: Vec<IpNet>,
    /// The maximum MTU between nodes; less if the link of this node's address has less.
    pub mtu: u32,
}

impl Config {
    /// A service that maintains routes to `nodes`; the list may contain this node itself, which
    /// gives the overlay device its address. `None` means that the list is not known yet: routes of
    /// an earlier run are kept until it is.
    pub fn build(self, nft: Nft, nodes: watch::Receiver<Option<Vec<Peer>>>) -> Arc<NodeRoutes> {
        Arc::new(NodeRoutes {
            table: Table::new(&self.id, nft),
            config: self,
            nodes,
            reported: Mutex::default(),
        })
    }
}

/// Maintains the node's routes to other nodes' pods.
pub struct NodeRoutes {
    config: Config,
    table: Table,
    nodes: watch::Receiver<Option<Vec<Peer>>>,
    /// Guards the problems of the last sync, which are logged once.
    reported: Mutex<BTreeSet<String>>,
}

impl NodeRoutes {
    /// Syncs the kernel's routes with a list of nodes. Changes only what differs; a second call
    /// changes nothing. An unreachable node does not delay others.
    pub async fn sync(&self, netlink: &Netlink, nodes: &[Peer]) -> Result<()> {
        let (own, mut peers): (Vec<Peer>, Vec<Peer>) = nodes
            .iter()
            .cloned()
            .partition(|node| node.name == self.config.node_name);
        let own: Vec<IpNet> = own.into_iter().flat_map(|node| node.pod_cidrs).collect();
        let mut problems = BTreeSet::new();
        for peer in &mut peers {
            keep_pod_ranges(peer, &self.config.cluster_cidrs, &own, &mut problems);
            keep_host_addresses(peer, &self.config.node_ips, &mut problems);
        }
        let mut routes = plan(&peers, &subnets(netlink).await?, &self.config.node_ips);
        let unreached = peers.iter().flat_map(|peer| unreached(peer, &routes));
        problems.extend(unreached);
        routes.extend(own_ranges(&own, &self.config.cluster_cidrs));
        let overlay = Overlay {
            config: &self.config,
            table: &self.table,
            netlink,
        };
        let tunnels: Vec<Tunnel> = routes.iter().filter_map(Tunnel::new).collect();
        if !tunnels.is_empty() && own.iter().any(|cidr| cidr.addr().is_ipv6()) {
            let mtu = overlay.mtu().await?;
            if mtu < LEAST_V6 {
                let problem = format!("the overlay's MTU of {mtu} is too small for IPv6");
                problems.insert(problem);
            }
        }
        self.report(problems);
        let senders = peers.iter().flat_map(|peer| &peer.addresses).copied();
        // Nodes of the same subnet do not need the overlay.
        let synced = overlay.sync(&tunnels, own, &senders.collect()).await;
        let (device, mut outcome) = match synced {
            Ok(None) => (None, Ok(())),
            Ok(Some(index)) => (Some(index), overlay.lead(index, &tunnels).await),
            Err(error) => (None, Err(error)),
        };
        let installed = tagged(netlink, &self.config.id).await?;
        let removed = self.remove_stale(netlink, &installed, &routes).await;
        outcome = outcome.and(removed);
        for (cidr, hop) in &routes {
            let is_there = |(there, route): &&(IpNet, RouteMessage)| {
                there == cidr && leads(route, *cidr, hop, device)
            };
            if installed.iter().any(|route| is_there(&route)) {
                continue;
            }
            let added = self.add(netlink, *cidr, hop, device).await;
            outcome = outcome.and(added);
        }
        outcome
    }

    async fn add(
        &self,
        netlink: &Netlink,
        cidr: IpNet,
        hop: &NextHop,
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
            (NextHop::Direct(gateway), _) => builder.gateway(*gateway).map_err(unfit)?,
            (NextHop::Overlay { .. }, Some(index)) => builder
                .gateway(cidr.network())
                .map_err(unfit)?
                .output_interface(index)
                .onlink(),
            (NextHop::Overlay { .. }, None) => return Ok(()),
            (NextHop::Unreachable, _) => builder.kind(RouteType::Unreachable),
        };
        links::add_route(netlink, builder.build(), &format!("route to {cidr}")).await
    }

    async fn remove_stale(
        &self,
        netlink: &Netlink,
        installed: &[(IpNet, RouteMessage)],
        wanted: &BTreeMap<IpNet, NextHop>,
    ) -> Result<()> {
        let inside = |cidr: &IpNet| {
            self.config
                .cluster_cidrs
                .iter()
                .any(|all| all.contains(cidr))
        };
        let mut outcome = Ok(());
        for (cidr, route) in installed {
            if inside(cidr) && !wanted.contains_key(cidr) {
                info!(%cidr, "removing the route of a removed node");
                let removed = netlink.handle.route().del(route.clone()).execute().await;
                let removed = match removed {
                    // It is gone already, for example with its link.
                    Err(rtnetlink::Error::NetlinkError(error))
                        if links::is(&error, libc::ESRCH) =>
                    {
                        Ok(())
                    }
                    other => other.map_err(Error::netlink(format!("remove route {cidr}"))),
                };
                outcome = outcome.and(removed);
            }
        }
        outcome
    }

    /// Logs problems that the last sync did not have.
    fn report(&self, problems: BTreeSet<String>) {
        let mut reported = self.reported.lock();
        for problem in problems.difference(&reported) {
            warn!(problem, "routes to other nodes are incomplete");
        }
        *reported = problems;
    }

    /// The same with a connection of its own, so that a lost answer concerns only this time.
    async fn sync_anew(&self, nodes: &[Peer]) -> Result<()> {
        let netlink = Netlink::here()?;
        let synced = self.sync(&netlink, nodes);
        answered_within(SYNCED_WITHIN, "sync the routes to other nodes", synced).await
    }

    /// Follows the list of nodes and kernel notifications about links, addresses and routes.
    async fn follow(&self, context: &Context) -> Outcome {
        let mut notices = Notices::subscribe(&self.config.id, self.config.cluster_cidrs.clone())?;
        let mut nodes = self.nodes.clone();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut check = CheckTimer::start();
        context.ready();
        loop {
            let now = nodes.borrow_and_update().clone();
            let synced = match now {
                Some(now) => self.sync_anew(&now).await,
                None => Ok(()),
            };
            let retry = match synced {
                Ok(()) => {
                    backoff.reset();
                    None
                }
                Err(error) => {
                    // A link that is down accepts no routes; a notification follows when it comes
                    // up.
                    warn!(%error, "routes to other nodes are incomplete");
                    Some(backoff.step())
                }
            };
            let retry = async {
                match retry {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = nodes.changed() => if changed.is_err() {
                    return Err("the informer of nodes ended".into());
                },
                noticed = notices.changed() => noticed?,
                () = check.due() => if let Err(error) = self.table.repair().await {
                    warn!(%error, "cannot repair the rules of the overlay");
                },
                () = retry => {}
                () = context.shutdown() => return Ok(()),
            }
        }
    }
}

/// Whether an existing route is correct.
fn leads(route: &RouteMessage, cidr: IpNet, hop: &NextHop, overlay: Option<u32>) -> bool {
    let gateway = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
            _ => None,
        });
    let link = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
    match hop {
        NextHop::Direct(to) => gateway == Some(*to) && link != overlay,
        NextHop::Overlay { .. } => gateway == Some(cidr.network()) && link == overlay,
        NextHop::Unreachable => route.header.kind == RouteType::Unreachable,
    }
}

/// The routes with this cluster's metric.
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

pub(crate) fn destination(route: &RouteMessage) -> Option<IpNet> {
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

/// The subnets of this node's interfaces.
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
        Box::pin(async move { self.follow(&context).await })
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
        let routes = plan(
            &peers,
            &["192.0.2.0/24".parse().unwrap()],
            &["192.0.2.1".parse().unwrap()],
        );
        assert_eq!(
            routes[&"10.42.1.0/24".parse().unwrap()],
            NextHop::Direct("192.0.2.2".parse().unwrap())
        );
        assert_eq!(
            routes[&"10.42.2.0/24".parse().unwrap()],
            NextHop::Overlay {
                node: "198.51.100.3".parse().unwrap(),
                hardware: overlay_hardware("c")
            }
        );
    }

    #[test]
    fn a_node_gets_only_traffic_to_pod_ranges_that_are_not_this_nodes_own() {
        let cluster = ["10.42.0.0/16", "fd42::/56"].map(|cidr| cidr.parse().unwrap());
        let own = ["10.42.1.0/24".parse().unwrap()];
        for (cidr, expected) in [
            ("10.42.2.0/24", true),
            ("fd42:0:0:2::/64", true),
            ("0.0.0.0/0", false),
            ("8.8.8.0/24", false),
            ("10.43.0.0/16", false),
            ("10.0.0.0/8", false),
            ("10.42.0.0/16", false),
            ("10.42.1.0/24", false),
            ("10.42.1.128/25", false),
        ] {
            let mut peer = peer("b", "192.0.2.2", cidr);
            let mut problems = BTreeSet::new();
            keep_pod_ranges(&mut peer, &cluster, &own, &mut problems);
            assert_eq!(problems.is_empty(), expected);
            assert_eq!(!peer.pod_cidrs.is_empty(), expected, "{cidr}");
        }
    }

    #[test]
    fn own_ranges_are_unreachable_inside_the_cluster_cidrs_only() {
        let cluster = ["10.42.0.0/16", "fd42::/56"].map(|cidr| cidr.parse().unwrap());
        let own =
            ["10.42.1.0/24", "fd42:0:0:1::/64", "0.0.0.0/0"].map(|cidr| cidr.parse().unwrap());
        let ranges: Vec<IpNet> = own_ranges(&own, &cluster).into_keys().collect();
        assert_eq!(ranges, own[..2]);
    }

    #[test]
    fn a_node_without_address_has_no_route() {
        let mut peer = peer("b", "192.0.2.2", "10.42.1.0/24");
        peer.addresses.clear();
        assert!(plan(&[peer], &[], &[]).is_empty());
    }

    #[test]
    fn the_overlay_uses_the_address_of_its_own_family() {
        let mut both = peer("b", "2001:db8:2::3", "10.42.1.0/24");
        both.addresses.push("198.51.100.3".parse().unwrap());
        let other = peer("c", "2001:db8:2::4", "10.42.2.0/24");
        for (own, expected) in [
            ("192.0.2.1", vec!["198.51.100.3"]),
            ("2001:db8::1", vec!["2001:db8:2::3", "2001:db8:2::4"]),
        ] {
            let routes = plan(&[both.clone(), other.clone()], &[], &[own.parse().unwrap()]);
            let nodes: Vec<String> = routes
                .into_values()
                .map(|hop| match hop {
                    NextHop::Overlay { node, .. } => node.to_string(),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(nodes, expected, "{own}");
        }
    }

    #[test]
    fn addresses_of_no_host_and_this_nodes_own_are_not_used() {
        let mut peer = peer("b", "192.0.2.1", "10.42.1.0/24");
        let more = [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
            "192.0.2.2",
            "2001:db8::2",
        ];
        peer.addresses
            .extend(more.map(|ip| ip.parse::<IpAddr>().unwrap()));
        let mut problems = BTreeSet::new();
        let own = ["192.0.2.1".parse().unwrap()];
        keep_host_addresses(&mut peer, &own, &mut problems);
        assert_eq!(problems.len(), 8);
        let left: Vec<String> = peer.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["192.0.2.2", "2001:db8::2"]);
    }
}
