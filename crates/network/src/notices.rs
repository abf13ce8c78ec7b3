//! Kernel notifications about links, addresses, routes and neighbours: a link that comes up again
//! has lost its routes, and any program may remove one.

use std::{net::IpAddr, time::Duration};

use futures::{StreamExt, channel::mpsc::UnboundedReceiver};
use ipnet::IpNet;
use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressMessage, AddressScope},
        link::{LinkAttribute, LinkMessage},
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage},
        route::{RouteAttribute, RouteProtocol},
    },
    sys::SocketAddr,
};
use tokio::task::JoinHandle;

use crate::{Error, Result, names};

/// Changes within this time are handled together.
const BATCH_WINDOW: Duration = Duration::from_millis(50);

const GROUPS: [MulticastGroup; 6] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Neigh,
];

/// Notifies when addresses of this machine or its default route change.
pub struct AddressNotices {
    messages: Messages,
    task: JoinHandle<()>,
}

type Messages = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

impl AddressNotices {
    /// Subscribes in the caller's network namespace.
    pub fn subscribe() -> Result<Self> {
        let groups = [
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
        ];
        let (connection, _, messages) =
            rtnetlink::new_multicast_connection(&groups).map_err(Error::Socket)?;
        Ok(Self {
            messages,
            task: tokio::spawn(connection),
        })
    }

    /// Resolves soon after a change.
    pub async fn changed(&mut self) -> Result<()> {
        next(&mut self.messages, |message| match message {
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                is_global(address)
            }
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                route.header.destination_prefix_length == 0
            }
            _ => false,
        })
        .await
    }
}

impl Drop for AddressNotices {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for a relevant message, and a moment longer for related ones.
async fn next(
    messages: &mut Messages,
    matters: impl Fn(&RouteNetlinkMessage) -> bool,
) -> Result<()> {
    loop {
        let Some((message, _)) = messages.next().await else {
            return Err(Error::Socket(std::io::ErrorKind::UnexpectedEof.into()));
        };
        match &message.payload {
            NetlinkPayload::InnerMessage(message) if matters(message) => break,
            // Messages were lost: check everything.
            NetlinkPayload::Overrun(_) => break,
            _ => {}
        }
    }
    let end = tokio::time::Instant::now() + BATCH_WINDOW;
    while let Ok(Some(_)) = tokio::time::timeout_at(end, messages.next()).await {}
    Ok(())
}

/// A subscription; ends when dropped.
pub(crate) struct Notices {
    messages: Messages,
    task: JoinHandle<()>,
    matters: RouteInputs,
}

/// What routes between nodes depend on.
struct RouteInputs {
    /// The prefix of pods' links, which are irrelevant for routes between nodes.
    pod_links: String,
    overlay: String,
    /// The metric of our routes between nodes.
    metric: u32,
    cluster_cidrs: Vec<IpNet>,
}

impl Notices {
    /// Subscribes in the caller's network namespace.
    pub(crate) fn subscribe(id: &str, cluster_cidrs: Vec<IpNet>) -> Result<Self> {
        let (connection, _, messages) =
            rtnetlink::new_multicast_connection(&GROUPS).map_err(Error::Socket)?;
        Ok(Self {
            messages,
            task: tokio::spawn(connection),
            matters: RouteInputs {
                pod_links: names::link_prefix(id),
                overlay: names::vxlan_link(id),
                metric: names::route_metric(id),
                cluster_cidrs,
            },
        })
    }

    /// Resolves soon after a change that routes between nodes depend on.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        let matters = &self.matters;
        next(&mut self.messages, |message| matters.include(message)).await
    }
}

impl RouteInputs {
    fn include(&self, message: &RouteNetlinkMessage) -> bool {
        match message {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                self.is_ours_or_a_wire(link)
            }
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                is_global(address)
            }
            RouteNetlinkMessage::DelRoute(route) => {
                let metric = RouteAttribute::Priority(self.metric);
                route.header.protocol == RouteProtocol::Other(names::ROUTE_PROTOCOL)
                    && route.attributes.contains(&metric)
            }
            // Entries of other networks expire all the time.
            RouteNetlinkMessage::DelNeighbour(entry) => {
                entry.header.family == AddressFamily::Bridge || self.is_inside(entry)
            }
            _ => false,
        }
    }

    /// Whether an entry is about a pod's address.
    fn is_inside(&self, entry: &NeighbourMessage) -> bool {
        let inside = |ip: IpAddr| self.cluster_cidrs.iter().any(|cidr| cidr.contains(&ip));
        entry.attributes.iter().any(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => inside((*ip).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => inside((*ip).into()),
            _ => false,
        })
    }

    fn is_ours_or_a_wire(&self, link: &LinkMessage) -> bool {
        let name = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.as_str()),
                _ => None,
            });
        name.is_none_or(|name| name == self.overlay || !name.starts_with(&self.pod_links))
    }
}

fn is_global(address: &AddressMessage) -> bool {
    address.header.scope == AddressScope::Universe
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.task.abort();
    }
}
