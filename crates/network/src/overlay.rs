//! The VXLAN device to nodes on other subnets: the device itself, a forwarding entry for each node,
//! and a neighbour entry for each node's device. Entries of removed nodes are deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{
    LinkUnspec, LinkVxlan,
    packet_route::{
        AddressFamily,
        address::AddressAttribute,
        link::{InfoData, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage},
        neighbour::{
            NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
        },
    },
};
use tracing::{debug, info};

use crate::{
    Error, Result, links, names,
    netns::Netlink,
    overlay_table::Table,
    routes::{Config, NextHop, overlay_hardware},
};

/// Linux' default UDP port for VXLAN.
pub const VXLAN_PORT: u16 = 8472;
/// The bytes that VXLAN adds to a packet, by the family of the nodes' addresses.
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;
/// The smallest MTU with which the kernel lets a link have IPv6 addresses.
pub(crate) const LEAST_V6: u32 = 1280;

/// One node behind the overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tunnel {
    /// The address of its overlay device: the first of its pod CIDR.
    pub inner: IpAddr,
    /// The node's own address.
    pub node: IpAddr,
    /// The hardware address of its overlay device.
    pub hardware: [u8; 6],
}

impl Tunnel {
    /// The tunnel of a route, if it needs one.
    pub(crate) fn new((cidr, hop): (&IpNet, &NextHop)) -> Option<Self> {
        match hop {
            NextHop::Direct(_) | NextHop::Unreachable => None,
            NextHop::Overlay { node, hardware } => Some(Self {
                inner: cidr.network(),
                node: *node,
                hardware: *hardware,
            }),
        }
    }
}

/// The overlay of one node.
pub(crate) struct Overlay<'a> {
    pub config: &'a Config,
    pub table: &'a Table,
    pub netlink: &'a Netlink,
}

impl Overlay<'_> {
    /// Syncs the device and its rules with `tunnels`; returns the device's index. The
    /// device is created with the first tunnel, and stays. It receives only from `senders`.
    pub(crate) async fn sync(
        &self,
        tunnels: &[Tunnel],
        own: Vec<IpNet>,
        senders: &BTreeSet<IpAddr>,
    ) -> Result<Option<u32>> {
        let name = names::vxlan_link(&self.config.id);
        let mut index = links::index_of(self.netlink, &name).await?;
        if let Some(old) = index
            && self.sends_from(old).await? != self.config.node_ips.first().copied()
        {
            // Its routes are removed with it; they are created again together with all others.
            info!(
                device = name,
                "node address changed, recreating the overlay device"
            );
            links::disconnect(self.netlink, &name).await?;
            index = None;
        }
        let index = match index {
            Some(index) => index,
            None if tunnels.is_empty() => return Ok(None),
            None => self.create(&name).await?,
        };
        self.table.sync(self.config, &name, senders).await?;
        if !tunnels.is_empty() {
            let there = self.addresses(index).await?;
            let mtu = self.mtu().await?;
            let fits = |cidr: &&IpNet| mtu >= LEAST_V6 || cidr.addr().is_ipv4();
            let missing = |cidr: &&IpNet| !there.contains(&cidr.network());
            for cidr in own.iter().filter(fits).filter(missing) {
                let length = if cidr.addr().is_ipv4() { 32 } else { 128 };
                links::add_address(self.netlink, index, cidr.network(), length).await?;
            }
            // The MTU of the node's link may have changed since the device was created.
            let up = LinkUnspec::new_with_index(index).mtu(mtu).up().build();
            let raised = self.netlink.handle.link().set(up).execute().await;
            raised.map_err(Error::netlink("set the overlay device up"))?;
        }
        Ok(Some(index))
    }

    /// Syncs the entries of the device. One that the kernel refuses does not keep others from theirs.
    pub(crate) async fn lead(&self, index: u32, tunnels: &[Tunnel]) -> Result<()> {
        let forwarded = self.forward(index, tunnels).await;
        forwarded.and(self.resolve(index, tunnels).await)
    }

    /// The source address of the device's packets.
    async fn sends_from(&self, index: u32) -> Result<Option<IpAddr>> {
        let request = self.netlink.handle.link().get().match_index(index);
        let messages: Vec<LinkMessage> = request
            .execute()
            .try_collect()
            .await
            .map_err(Error::netlink("look at the overlay device"))?;
        let attributes = messages.iter().flat_map(|message| &message.attributes);
        let information = attributes.filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(information) => Some(information),
            _ => None,
        });
        let data = information.flatten().filter_map(|piece| match piece {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
            _ => None,
        });
        Ok(data.flatten().find_map(|piece| match piece {
            InfoVxlan::Local(ip) => Some(IpAddr::V4(*ip)),
            InfoVxlan::Local6(ip) => Some(IpAddr::V6(*ip)),
            _ => None,
        }))
    }

    /// The addresses that the device has.
    async fn addresses(&self, index: u32) -> Result<Vec<IpAddr>> {
        let request = self.netlink.handle.address().get();
        let messages: Vec<_> = request
            .set_link_index_filter(index)
            .execute()
            .try_collect()
            .await
            .map_err(Error::netlink("list addresses"))?;
        let attributes = messages.iter().flat_map(|message| &message.attributes);
        Ok(attributes
            .filter_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            })
            .collect())
    }

    /// The MTU of the device: that of the link of this node's address, less what VXLAN adds.
    pub(crate) async fn mtu(&self) -> Result<u32> {
        let mtu = links::mtu(self.netlink, &self.config.node_ips, self.config.mtu).await?;
        let overhead = match self.config.node_ips.first() {
            Some(IpAddr::V6(_)) => OVERHEAD_V6,
            _ => OVERHEAD_V4,
        };
        Ok(mtu.saturating_sub(overhead))
    }

    async fn create(&self, name: &str) -> Result<u32> {
        let mut device = LinkVxlan::new(name, names::vni(&self.config.cluster))
            .port(VXLAN_PORT)
            .learning(false)
            .mtu(self.mtu().await?)
            .address(overlay_hardware(&self.config.node_name).to_vec());
        device = match self.config.node_ips.first() {
            Some(IpAddr::V4(ip)) => device.local(*ip),
            Some(IpAddr::V6(ip)) => device.local6(*ip),
            None => device,
        };
        let made = self.netlink.handle.link().add(device.build()).execute();
        made.await
            .map_err(Error::netlink(format!("create {name}")))?;
        info!(device = name, "overlay device created");
        links::index_of(self.netlink, name).await?.ok_or_else(|| {
            Error::netlink("create the overlay device")(rtnetlink::Error::RequestFailed)
        })
    }

    /// Syncs forwarding entries: the node of each hardware address.
    async fn forward(&self, index: u32, tunnels: &[Tunnel]) -> Result<()> {
        let mut missing: BTreeMap<[u8; 6], IpAddr> = tunnels
            .iter()
            .map(|tunnel| (tunnel.hardware, tunnel.node))
            .collect();
        for entry in self.entries(index, AddressFamily::Bridge).await? {
            let Some(hardware) = hardware(&entry) else {
                continue;
            };
            match (missing.get(&hardware), destination(&entry)) {
                (Some(wanted), Some(node)) if *wanted == node => {
                    missing.remove(&hardware);
                }
                // It is replaced below.
                (Some(_), _) => {}
                (None, _) => self.remove(entry).await?,
            }
        }
        let mut outcome = Ok(());
        for (hardware, node) in missing {
            let add = self
                .netlink
                .handle
                .neighbours()
                .add_bridge(index, &hardware);
            let added = add
                .destination(node)
                .flags(NeighbourFlags::Own)
                .replace()
                .execute()
                .await
                .map_err(Error::netlink(format!("forward overlay frames to {node}")));
            outcome = outcome.and(added);
        }
        outcome
    }

    /// Syncs neighbour entries: the hardware address of each node's device.
    async fn resolve(&self, index: u32, tunnels: &[Tunnel]) -> Result<()> {
        let mut missing: BTreeMap<IpAddr, [u8; 6]> = tunnels
            .iter()
            .map(|tunnel| (tunnel.inner, tunnel.hardware))
            .collect();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            for entry in self.entries(index, family).await? {
                let Some(address) = destination(&entry) else {
                    continue;
                };
                if missing.get(&address).copied() == hardware(&entry) {
                    missing.remove(&address);
                } else if !missing.contains_key(&address) {
                    self.remove(entry).await?;
                }
            }
        }
        let mut outcome = Ok(());
        for (address, hardware) in missing {
            let added = links::add_neighbour(self.netlink, index, address, &hardware).await;
            outcome = outcome.and(added);
        }
        outcome
    }

    /// The permanent entries of the device; the kernel makes others as needed.
    async fn entries(&self, index: u32, family: AddressFamily) -> Result<Vec<NeighbourMessage>> {
        let request = self.netlink.handle.neighbours().get();
        let all: Vec<NeighbourMessage> = request
            .set_address_family(family)
            .execute()
            .try_collect()
            .await
            .map_err(Error::netlink("list neighbours"))?;
        let ours = |entry: &NeighbourMessage| {
            entry.header.ifindex == index && entry.header.state == NeighbourState::Permanent
        };
        Ok(all.into_iter().filter(ours).collect())
    }

    async fn remove(&self, entry: NeighbourMessage) -> Result<()> {
        debug!(?entry, "removing the overlay entry of a removed node");
        let removed = self.netlink.handle.neighbours().del(entry).execute().await;
        match removed {
            Err(rtnetlink::Error::NetlinkError(error)) if links::is(&error, libc::ENOENT) => Ok(()),
            other => other.map_err(Error::netlink("remove a neighbour")),
        }
    }
}

fn hardware(entry: &NeighbourMessage) -> Option<[u8; 6]> {
    entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
            _ => None,
        })
}

fn destination(entry: &NeighbourMessage) -> Option<IpAddr> {
    entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
            // Forwarding entries are of the bridge family, whatever their addresses.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => address(bytes),
            _ => None,
        })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}
