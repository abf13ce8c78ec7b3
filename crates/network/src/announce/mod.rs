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

use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    Error, Result, links,
    netns::{Netlink, answered},
};
use packets::{announcement, answer, question};
use socket::LinkSocket;

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
    let link = answered("look for the node's link", links::at(&netlink, node_ips)).await?;
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
