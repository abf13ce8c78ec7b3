//! Finds other users of an address range on this machine: links with addresses in it, networks
//! around it, routes into it. Two clusters, or a cluster and an office network, with the same
//! addresses silently lose packets, so that the start checks first.

use std::{collections::HashMap, net::IpAddr};

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::{
        address::{AddressAttribute, AddressMessage},
        link::LinkAttribute,
        route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol},
    },
};

use crate::{
    Error, Result,
    names::{self, ROUTE_PROTOCOL},
    netns::{Netlink, answered},
    routes::destination,
};

/// Everything in the caller's network namespace that overlaps `range` and does not belong to
/// cluster `id`, as text. A route to a wider network through a gateway does not count: ours are
/// more specific.
pub async fn conflicts(id: &str, range: IpNet) -> Result<Vec<String>> {
    answered("look for other networks", find(id, range)).await
}

async fn find(id: &str, range: IpNet) -> Result<Vec<String>> {
    let netlink = Netlink::here()?;
    let links = links(&netlink).await?;
    let view = View {
        prefix: names::link_prefix(id),
        metric: names::route_metric(id),
        links: &links,
        range,
    };
    let addresses: Vec<AddressMessage> = netlink
        .handle
        .address()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(Error::netlink("list addresses"))?;
    let mut found: Vec<String> = addresses
        .iter()
        .filter_map(|address| view.address(address))
        .collect();
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
        found.extend(routes.iter().filter_map(|route| view.route(route)));
    }
    Ok(found)
}

async fn links(netlink: &Netlink) -> Result<HashMap<u32, String>> {
    let messages: Vec<_> = netlink
        .handle
        .link()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(Error::netlink("list links"))?;
    let named = messages.iter().filter_map(|link| {
        let name = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            })?;
        Some((link.header.index, name))
    });
    Ok(named.collect())
}

/// A range, and what belongs to the cluster.
struct View<'a> {
    prefix: String,
    metric: u32,
    links: &'a HashMap<u32, String>,
    range: IpNet,
}

impl View<'_> {
    fn link(&self, index: Option<u32>) -> &str {
        let name = index.and_then(|index| self.links.get(&index));
        name.map_or("?", String::as_str)
    }

    fn address(&self, message: &AddressMessage) -> Option<String> {
        let link = self.link(Some(message.header.index));
        let ip = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            })?;
        if link.starts_with(&self.prefix) {
            return None;
        }
        overlap(self.range, ip, message.header.prefix_len)
            .then(|| format!("address {ip}/{} of link {link}", message.header.prefix_len))
    }

    fn route(&self, route: &RouteMessage) -> Option<String> {
        let to = destination(route)?;
        let link = route
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            });
        let link = self.link(link);
        let ours = route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL)
            && route
                .attributes
                .contains(&RouteAttribute::Priority(self.metric));
        // Routes made by the kernel belong to addresses, which are checked themselves.
        let by_kernel = route.header.protocol == RouteProtocol::Kernel
            || route.header.table != RouteHeader::RT_TABLE_MAIN;
        let into = self.range.contains(&to);
        (into && !ours && !by_kernel && !link.starts_with(&self.prefix))
            .then(|| format!("route to {to} on link {link}"))
    }
}

/// Whether an address is in the range, or the range in the address' network.
fn overlap(range: IpNet, ip: IpAddr, length: u8) -> bool {
    range.contains(&ip) || IpNet::new(ip, length).is_ok_and(|net| net.contains(&range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_inside_and_a_network_around_overlap() {
        let range = "10.42.0.0/16".parse().unwrap();
        let ip = |text: &str| text.parse().unwrap();
        assert!(overlap(range, ip("10.42.3.1"), 24));
        assert!(overlap(range, ip("10.1.2.3"), 8));
        assert!(!overlap(range, ip("10.43.0.1"), 16));
        assert!(!overlap(range, ip("fd00::1"), 8));
    }
}
