//! The link of one pod: a veth pair whose host side is routed, not bridged.
//!
//! Inside, the pod's default route leads to a link-local gateway that no interface owns; a
//! permanent neighbour entry has its hardware address. On the host one route per address leads
//! back, also with a permanent neighbour entry, so that ARP is never needed.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use futures::TryStreamExt;
use rtnetlink::{
    RouteMessageBuilder,
    packet_core::ErrorMessage,
    packet_route::{
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::{LinkAttribute, LinkMessage},
        route::{RouteMessage, RouteProtocol, RouteScope},
    },
};

use crate::{
    Error, Result,
    names::{ROUTE_PROTOCOL, hardware_address},
    netns::Netlink,
};

/// The name of the link inside a pod.
pub(crate) const POD_LINK: &str = "eth0";
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The desired state of a pod's link.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodLink {
    pub host_link: String,
    pub addresses: Vec<IpAddr>,
    pub mtu: u32,
    /// The node's own addresses: the source of its traffic to pods.
    pub node_ips: Vec<IpAddr>,
}

impl PodLink {
    pub(crate) fn host_hardware(&self) -> [u8; 6] {
        hardware_address(&format!("host/{}", self.host_link))
    }

    pub(crate) fn pod_hardware(&self) -> [u8; 6] {
        hardware_address(&format!("pod/{}", self.host_link))
    }

    pub(crate) fn has_v6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }
}

/// The gateway of a pod with this address.
pub(crate) fn gateway(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => GATEWAY_V4.into(),
        IpAddr::V6(_) => GATEWAY_V6.into(),
    }
}

/// The hardware addresses of both sides of a pod's link, as text.
pub(crate) fn hardware_of(host_link: &str) -> (String, String) {
    let link = PodLink {
        host_link: host_link.to_owned(),
        ..PodLink::default()
    };
    let shown = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    (shown(link.host_hardware()), shown(link.pod_hardware()))
}

/// What is missing of a pod's link, if anything.
pub(crate) async fn missing(
    host: &Netlink,
    namespace: &Path,
    link: &PodLink,
) -> Result<Option<String>> {
    if index_of(host, &link.host_link).await?.is_none() {
        return Ok(Some(format!("link {}", link.host_link)));
    }
    let inside = Netlink::at(namespace).await?;
    let Some(index) = index_of(&inside, POD_LINK).await? else {
        return Ok(Some(format!("link {POD_LINK} of the pod")));
    };
    let there: Vec<AddressMessage> = inside
        .handle
        .address()
        .get()
        .set_link_index_filter(index)
        .execute()
        .try_collect()
        .await
        .map_err(Error::netlink("list addresses of a pod"))?;
    let attributes = there.iter().flat_map(|message| &message.attributes);
    let there: Vec<IpAddr> = attributes
        .filter_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
        .collect();
    let gone = link.addresses.iter().find(|ip| !there.contains(ip));
    Ok(gone.map(|ip| format!("address {ip} of the pod")))
}

/// Removes a link by name, and with it its peer, addresses and routes. A missing one is no error.
pub(crate) async fn disconnect(host: &Netlink, name: &str) -> Result<()> {
    match index_of(host, name).await? {
        Some(index) => delete_index(host, index).await,
        None => Ok(()),
    }
}

async fn delete_index(netlink: &Netlink, index: u32) -> Result<()> {
    match netlink.handle.link().del(index).execute().await {
        Err(rtnetlink::Error::NetlinkError(error)) if is(&error, libc::ENODEV) => Ok(()),
        other => other.map_err(Error::netlink(format!("delete link {index}"))),
    }
}

/// The index of a link, if it exists.
pub(crate) async fn index_of(netlink: &Netlink, name: &str) -> Result<Option<u32>> {
    let mut found = netlink
        .handle
        .link()
        .get()
        .match_name(name.to_owned())
        .execute();
    match found.try_next().await {
        Ok(message) => Ok(message.map(|message| message.header.index)),
        Err(rtnetlink::Error::NetlinkError(error)) if is(&error, libc::ENODEV) => Ok(None),
        Err(error) => Err(Error::netlink(format!("look up link {name}"))(error)),
    }
}

/// Names and indexes of all links with this prefix.
pub(crate) async fn with_prefix(netlink: &Netlink, prefix: &str) -> Result<Vec<(u32, String)>> {
    let links: Vec<LinkMessage> = netlink
        .handle
        .link()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(Error::netlink("list links"))?;
    let named = links.into_iter().filter_map(|link| {
        link.attributes
            .into_iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some((link.header.index, name)),
                _ => None,
            })
    });
    Ok(named.filter(|(_, name)| name.starts_with(prefix)).collect())
}

/// The link that has one of the node's addresses.
pub(crate) struct LinkAt {
    pub index: u32,
    pub name: String,
    pub mac: [u8; 6],
    /// The MTU.
    pub mtu: u32,
}

/// The MTU of the link with the node's address; `otherwise` if it is not a physical link.
pub(crate) async fn mtu(netlink: &Netlink, ips: &[IpAddr], otherwise: u32) -> Result<u32> {
    let wire = at(netlink, ips).await?;
    let wire = wire.filter(|link| link.name != "lo");
    Ok(wire.map_or(otherwise, |link| link.mtu))
}

/// Finds the link that has one of these addresses.
pub(crate) async fn at(netlink: &Netlink, ips: &[IpAddr]) -> Result<Option<LinkAt>> {
    let addresses: Vec<AddressMessage> = netlink
        .handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(Error::netlink("list addresses"))?;
    let has = |message: &&AddressMessage| {
        message
            .attributes
            .iter()
            .any(|attribute| matches!(attribute, AddressAttribute::Address(ip) if ips.contains(ip)))
    };
    let Some(index) = addresses
        .iter()
        .find(has)
        .map(|message| message.header.index)
    else {
        return Ok(None);
    };
    let mut found = netlink.handle.link().get().match_index(index).execute();
    let link = found
        .try_next()
        .await
        .map_err(Error::netlink("look at the node's link"))?;
    Ok(link.map(|link| {
        let mut found = LinkAt {
            index,
            name: String::new(),
            mac: [0; 6],
            mtu: u32::MAX,
        };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => found.name = name,
                LinkAttribute::Mtu(mtu) => found.mtu = mtu,
                LinkAttribute::Address(mac) => {
                    found.mac = mac.try_into().unwrap_or_default();
                }
                _ => {}
            }
        }
        found
    }))
}

pub(crate) fn is(error: &ErrorMessage, errno: i32) -> bool {
    error.raw_code() == -errno
}

pub(crate) fn full_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

pub(crate) fn route_to(to: IpAddr, length: u8, index: u32) -> RouteMessageBuilder<IpAddr> {
    let builder = RouteMessageBuilder::<IpAddr>::new()
        .output_interface(index)
        .protocol(RouteProtocol::Other(ROUTE_PROTOCOL));
    // Fails only for a prefix length beyond the family's, and callers pass lengths of parsed
    // ranges.
    builder
        .destination_prefix(to, length)
        .unwrap_or_else(|_| RouteMessageBuilder::<IpAddr>::new().output_interface(index))
}

/// Adds the host's routes and neighbour entries for a pod whose link exists.
pub(crate) async fn lead_to_link(host: &Netlink, link: &PodLink) -> Result<()> {
    let Some(index) = index_of(host, &link.host_link).await? else {
        return Ok(());
    };
    for address in &link.addresses {
        lead_to_pod(host, index, *address, link).await?;
    }
    Ok(())
}

/// Adds the host's route and neighbour entry for one address of the pod.
async fn lead_to_pod(host: &Netlink, index: u32, address: IpAddr, link: &PodLink) -> Result<()> {
    add_neighbour(host, index, address, &link.pod_hardware()).await?;
    let source = link
        .node_ips
        .iter()
        .find(|ip| ip.is_ipv4() == address.is_ipv4());
    let route = || route_to(address, full_length(address), index).scope(RouteScope::Link);
    if let Some(preferred) = source
        && let Ok(builder) = route().pref_source(*preferred)
        && add_route(host, builder.build(), "route to a pod")
            .await
            .is_ok()
    {
        return Ok(());
    }
    // The node's address may not be on this machine (yet): let the kernel choose the source.
    add_route(host, route().build(), &format!("route to {address}")).await
}

pub(crate) async fn add_address(
    netlink: &Netlink,
    index: u32,
    address: IpAddr,
    length: u8,
) -> Result<()> {
    let mut request = netlink
        .handle
        .address()
        .add(index, address, length)
        .replace();
    if address.is_ipv6() {
        // Duplicate address detection would only delay the pod: the address is ours.
        request
            .message_mut()
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request
        .execute()
        .await
        .map_err(Error::netlink(format!("add address {address}")))
}

pub(crate) async fn add_neighbour(
    netlink: &Netlink,
    index: u32,
    address: IpAddr,
    hardware: &[u8; 6],
) -> Result<()> {
    netlink
        .handle
        .neighbours()
        .add(index, address)
        .link_layer_address(hardware)
        .replace()
        .execute()
        .await
        .map_err(Error::netlink(format!("add neighbour {address}")))
}

pub(crate) async fn add_route(netlink: &Netlink, route: RouteMessage, what: &str) -> Result<()> {
    netlink
        .handle
        .route()
        .add(route)
        .replace()
        .execute()
        .await
        .map_err(Error::netlink(format!("add {what}")))
}
