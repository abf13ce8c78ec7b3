//! Announces addresses that no interface has: answers ARP requests and neighbour solicitations for
//! them on the link of the node's own address, and sends gratuitous ones when an address moved
//! here. Traffic to them then reaches this node, where services translate it; nothing else of the
//! node can be reached this way.
//!
//! Nothing is left in the kernel: when the process ends, the answers end, and another node takes
//! over.

mod packets;
mod socket;

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use futures::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{Error, IpNet, Result, links, netns::Netlink};
use packets::{announcement, answer, question};
use socket::LinkSocket;

/// The link of the node's own addresses, which it shares with other nodes.
#[derive(Debug, Clone)]
pub struct SharedLink {
    /// Its name.
    pub name: String,
    /// The networks that are reached over it without a router.
    pub networks: Vec<IpNet>,
}

impl SharedLink {
    /// The link of these addresses, if there is one.
    pub async fn find(node_ips: &[IpAddr]) -> Result<Option<Self>> {
        let netlink = Netlink::here()?;
        let Some(link) = links::at(&netlink, node_ips).await? else {
            return Ok(None);
        };
        Ok(Some(Self {
            networks: networks(&netlink, link.index).await?,
            name: link.name,
        }))
    }

    /// Whether an address is reached without a router.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&ip))
    }
}

/// The networks of a link's addresses.
async fn networks(netlink: &Netlink, index: u32) -> Result<Vec<IpNet>> {
    let addresses = netlink.handle.address().get();
    let addresses = addresses.set_link_index_filter(index).execute();
    let addresses: Vec<AddressMessage> = addresses
        .try_collect()
        .await
        .map_err(Error::netlink("list addresses of the node's link"))?;
    let network = |message: AddressMessage| {
        let length = message.header.prefix_len;
        message.attributes.into_iter().find_map(|attribute| {
            let AddressAttribute::Address(ip) = attribute else {
                return None;
            };
            IpNet::new(ip, length).ok()
        })
    };
    Ok(addresses.into_iter().filter_map(network).collect())
}

/// When an announcement is repeated: neighbours may miss one, and switches forget.
const REPEAT: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(60),
];

/// Announces the current set of addresses until its sender is dropped. `node_ips` determine the
/// link.
pub async fn run(
    node_ips: &[IpAddr],
    mut addresses: watch::Receiver<BTreeSet<IpAddr>>,
) -> Result<()> {
    // No socket while there is nothing to announce, as in most clusters.
    if addresses.wait_for(|all| !all.is_empty()).await.is_err() {
        return Ok(());
    }
    let netlink = Netlink::here()?;
    let link = links::at(&netlink, node_ips).await?;
    let link = link.ok_or_else(|| Error::NoLink(format!("{node_ips:?}")))?;
    let socket = LinkSocket::open(&link).map_err(Error::Socket)?;
    let mut known = BTreeSet::new();
    let mut repeats = REPEAT.iter().copied();
    loop {
        let wanted = addresses.borrow_and_update().clone();
        if wanted != known {
            for ip in wanted.difference(&known) {
                info!(%ip, link = link.name, "announcing");
                socket.listen_for(*ip);
            }
            announce(&socket, wanted.difference(&known)).await;
            known = wanted;
            repeats = REPEAT.iter().copied();
        }
        let again = repeats.next().unwrap_or(REPEAT[REPEAT.len() - 1]);
        let pause = tokio::time::sleep(again);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                frame = socket.receive() => {
                    let frame = frame.map_err(Error::Socket)?;
                    let asked = question(&frame).filter(|asked| known.contains(&asked.about));
                    if let Some(asked) = asked {
                        socket.send(&answer(&asked, link.mac)).await.unwrap_or_else(lost);
                    }
                }
                changed = addresses.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return Ok(()),
                },
                () = &mut pause => {
                    announce(&socket, known.iter()).await;
                    break;
                }
            }
        }
    }
}

async fn announce(socket: &LinkSocket, addresses: impl Iterator<Item = &IpAddr>) {
    for ip in addresses {
        let sent = socket.send(&announcement(*ip, socket.mac())).await;
        sent.unwrap_or_else(lost);
    }
}

fn lost(error: std::io::Error) {
    warn!(%error, "cannot send announcement");
}
