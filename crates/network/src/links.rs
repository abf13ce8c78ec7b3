//! The link of one pod: a veth pair whose host side is routed, not bridged.
//!
//! Inside, the pod's default route leads to a link-local gateway that no interface owns; a
//! permanent neighbour entry has its hardware address. On the host one route per address leads
//! back, also with a permanent neighbour entry, so that ARP is never needed.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    path::Path,
    time::{Duration, Instant},
};

use futures::TryStreamExt;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_core::ErrorMessage,
    packet_route::{
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::{InfoData, InfoVeth, LinkAttribute, LinkMessage, State},
        route::{RouteMessage, RouteProtocol, RouteScope},
    },
};

use tracing::warn;

use crate::{
    Error, Result,
    loopback::raise_loopback,
    names::{ROUTE_PROTOCOL, hardware_address},
    netns::{self, Netlink},
    sysctl,
};

/// The name of the link inside a pod.
pub(crate) const POD_LINK: &str = "eth0";
const CARRIES_WITHIN: Duration = Duration::from_secs(2);
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The desired state of a pod's link.
#[derive(Debug, Clone)]
pub(crate) struct PodLink<'a> {
    pub host_link: &'a str,
    pub addresses: &'a [IpAddr],
    pub mtu: u32,
    /// The node's own addresses: the source of its traffic to pods.
    pub node_ips: &'a [IpAddr],
}

impl PodLink<'_> {
    fn host_hardware(&self) -> [u8; 6] {
        hardware_address(&format!("host/{}", self.host_link))
    }

    fn pod_hardware(&self) -> [u8; 6] {
        hardware_address(&format!("pod/{}", self.host_link))
    }

    fn has_v6(&self) -> bool {
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
        host_link,
        addresses: &[],
        mtu: 0,
        node_ips: &[],
    };
    let shown = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    (shown(link.host_hardware()), shown(link.pod_hardware()))
}

/// What is missing of a pod's link, if anything.
pub(crate) async fn missing(
    host: &Netlink,
    namespace: &Path,
    link: &PodLink<'_>,
) -> Result<Option<String>> {
    if index_of(host, link.host_link).await?.is_none() {
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

/// Creates or repairs the link of a pod, so that both sides are as described.
pub(crate) async fn connect(host: &Netlink, namespace: &Path, link: &PodLink<'_>) -> Result<()> {
    let inside = Netlink::at(namespace).await?;
    let (index, raised) = tokio::join!(
        ensure_pair(host, &inside, namespace, link),
        raise_loopback(&inside)
    );
    raised?;
    let index = index?;
    // Before the pod's side: the one that is up first gets its carrier in the background, and that is waited for below.
    raise_host(host, index, link).await?;
    // The rest beside each other: each step is a request to the kernel that waits for its answer.
    let (led, furnished) = tokio::join!(
        lead_to_addresses(host, index, link),
        furnish_pod(&inside, namespace, link)
    );
    led?;
    furnished?;
    carries(host, link.host_link).await
}

/// The index of the host's side of the pair, which is made unless it is whole.
async fn ensure_pair(
    host: &Netlink,
    inside: &Netlink,
    namespace: &Path,
    link: &PodLink<'_>,
) -> Result<u32> {
    // Nearly always there is neither side yet.
    let first = create_pair(host, namespace, link).await;
    let Err(error) = first else { return first };
    match (
        index_of(host, link.host_link).await?,
        index_of(inside, POD_LINK).await?,
    ) {
        (Some(index), Some(_)) => Ok(index),
        (Some(half), None) => {
            delete_index(host, half).await?;
            create_pair(host, namespace, link).await
        }
        (None, _) => Err(error),
    }
}

/// Sets the host's side up.
async fn raise_host(host: &Netlink, index: u32, link: &PodLink<'_>) -> Result<()> {
    // Makes node ports and host ports reachable at 127.0.0.1; the table drops packets from pods to
    // the node's loopback.
    sysctl::set_for_link("ipv4", link.host_link, "route_localnet", "1");
    // Also checks the senders of ARP requests: each new one would take an entry of the node's neighbour table.
    sysctl::set_for_link("ipv4", link.host_link, "rp_filter", "1");
    if !link.has_v6() {
        sysctl::set_for_link("ipv6", link.host_link, "disable_ipv6", "1");
    } else {
        sysctl::set_for_link("ipv6", link.host_link, "accept_ra", "0");
        sysctl::set_for_link("ipv6", link.host_link, "forwarding", "1");
    }
    set_up(host, index).await
}

async fn lead_to_addresses(host: &Netlink, index: u32, link: &PodLink<'_>) -> Result<()> {
    for address in link.addresses {
        lead_to_pod(host, index, *address, link).await?;
    }
    Ok(())
}

/// Waits until a link whose peer just came up has a carrier. The kernel sets it in the background
/// and drops earlier packets: a pod's first connection would lose a second.
async fn carries(netlink: &Netlink, name: &str) -> Result<()> {
    let deadline = Instant::now() + CARRIES_WITHIN;
    loop {
        let mut found = netlink
            .handle
            .link()
            .get()
            .match_name(name.to_owned())
            .execute();
        let message = found
            .try_next()
            .await
            .map_err(Error::netlink(format!("look at {name}")))?;
        let is_up = |attribute: &LinkAttribute| *attribute == LinkAttribute::OperState(State::Up);
        if message.is_some_and(|message| message.attributes.iter().any(is_up)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            warn!(link = name, "link is not up in time");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
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

async fn create_pair(host: &Netlink, namespace: &Path, link: &PodLink<'_>) -> Result<u32> {
    let pinned = File::open(namespace).map_err(|source| Error::Namespace {
        path: namespace.into(),
        source,
    })?;
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(POD_LINK)
        .mtu(link.mtu)
        .address(link.pod_hardware().to_vec())
        .setns_by_fd(pinned.as_raw_fd())
        .build();
    let pair = LinkVeth::new(link.host_link, POD_LINK)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .mtu(link.mtu)
        .address(link.host_hardware().to_vec())
        .build();
    let action = format!("create link {}", link.host_link);
    host.handle
        .link()
        .add(pair)
        .execute()
        .await
        .map_err(Error::netlink(&action))?;
    index_of(host, link.host_link)
        .await?
        .ok_or_else(|| Error::netlink(action)(no_such_link()))
}

fn no_such_link() -> rtnetlink::Error {
    rtnetlink::Error::RequestFailed
}

async fn set_up(netlink: &Netlink, index: u32) -> Result<()> {
    netlink
        .handle
        .link()
        .set(LinkUnspec::new_with_index(index).up().build())
        .execute()
        .await
        .map_err(Error::netlink("set link up"))
}

/// Configures addresses, gateway and default routes inside the pod.
async fn furnish_pod(inside: &Netlink, namespace: &Path, link: &PodLink<'_>) -> Result<()> {
    let index = index_of(inside, POD_LINK)
        .await?
        .ok_or_else(|| Error::netlink("look up the pod's link")(no_such_link()))?;
    let has_v6 = link.has_v6();
    netns::run(namespace, move || {
        if has_v6 {
            sysctl::set_for_link("ipv6", POD_LINK, "accept_dad", "0");
            sysctl::set_for_link("ipv6", POD_LINK, "accept_ra", "0");
        } else {
            sysctl::set_for_link("ipv6", POD_LINK, "disable_ipv6", "1");
        }
    })
    .await?;
    set_up(inside, index).await?;
    for address in link.addresses {
        add_address(inside, index, *address, full_length(*address)).await?;
        let gateway = gateway_for(*address);
        add_neighbour(inside, index, gateway, &link.host_hardware()).await?;
        if address.is_ipv4() {
            let to_gateway = route_to(gateway, 32, index).scope(RouteScope::Link).build();
            add_route(inside, to_gateway, "route to the gateway").await?;
        }
        add_route(inside, default_via(gateway, index), "default route").await?;
    }
    Ok(())
}

fn full_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn gateway_for(address: IpAddr) -> IpAddr {
    if address.is_ipv4() {
        GATEWAY_V4.into()
    } else {
        GATEWAY_V6.into()
    }
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

fn default_via(gateway: IpAddr, index: u32) -> RouteMessage {
    match gateway {
        IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new()
            .gateway(gateway)
            .output_interface(index)
            .onlink()
            .build(),
        IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new()
            .gateway(gateway)
            .output_interface(index)
            .build(),
    }
}

/// Adds the host's routes and neighbour entries for a pod whose link exists.
pub(crate) async fn lead_to_link(host: &Netlink, link: &PodLink<'_>) -> Result<()> {
    let Some(index) = index_of(host, link.host_link).await? else {
        return Ok(());
    };
    for address in link.addresses {
        lead_to_pod(host, index, *address, link).await?;
    }
    Ok(())
}

/// Adds the host's route and neighbour entry for one address of the pod.
async fn lead_to_pod(
    host: &Netlink,
    index: u32,
    address: IpAddr,
    link: &PodLink<'_>,
) -> Result<()> {
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
