//! Removes pods' links. Each removal waits some 20 ms until no packet uses the link any more, in which the kernel changes
//! no other link; those of many links that are removed as a group wait only once. So requests that come while others are
//! under way are handled together.

use parking_lot::Mutex;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkMessage},
    },
};
use tokio::sync::{Semaphore, oneshot};

use crate::{
    Error, Result, links, netns,
    route_socket::{Change, RouteSocket},
};

/// The group of links that are about to be removed: no link stays in it.
const LEAVING: u32 = 0x6d73_6c76;

/// A link, and where the outcome goes.
struct Request {
    link: String,
    done: oneshot::Sender<Result<()>>,
}

/// The removals of a node.
pub(crate) struct Removals {
    /// Guards the requests that no thread handles yet; never held across an await.
    waiting: Mutex<Vec<Request>>,
    /// One thread at a time removes links.
    turn: Semaphore,
}

impl Default for Removals {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            turn: Semaphore::const_new(1),
        }
    }
}

impl Removals {
    /// Removes a link by name, and with it its peer, addresses and routes. A missing one is no error.
    pub(crate) async fn remove(&self, link: &str) -> Result<()> {
        let (done, outcome) = oneshot::channel();
        let link = link.to_owned();
        self.waiting.lock().push(Request { link, done });
        // Never closed.
        let turn = self.turn.acquire().await.ok();
        let batch = std::mem::take(&mut *self.waiting.lock());
        // Empty if the one before has handled this request, too.
        if !batch.is_empty() {
            netns::on_thread(move || answer(batch)).await?;
        }
        drop(turn);
        outcome.await.map_err(|_| Error::ThreadLost)?
    }
}

fn answer(batch: Vec<Request>) -> Result<()> {
    let mut socket = RouteSocket::open()?;
    if batch.len() > 1 {
        let names = batch.iter().map(|request| request.link.as_str());
        // Best effort: what is left is removed below, where an error is known to belong to one link.
        let _ = remove_together(&mut socket, names);
    }
    for request in batch {
        // A caller that does not wait any more needs no answer.
        let _ = request.done.send(remove(&mut socket, &request.link));
    }
    Ok(())
}

fn remove_together<'a>(
    socket: &mut RouteSocket,
    names: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let joined = names.map(|name| {
        let mut link = named(name);
        link.attributes.push(LinkAttribute::Group(LEAVING));
        Change::set(RouteNetlinkMessage::SetLink(link), "leave")
    });
    let mut changes: Vec<Change> = joined.collect();
    let mut group = LinkMessage::default();
    group.attributes.push(LinkAttribute::Group(LEAVING));
    let all = RouteNetlinkMessage::DelLink(group);
    changes.push(Change::set(all, "delete links"));
    socket.change(changes)
}

fn remove(socket: &mut RouteSocket, name: &str) -> Result<()> {
    let deleted = RouteNetlinkMessage::DelLink(named(name));
    match socket.change(vec![Change::set(deleted, format!("delete link {name}"))]) {
        Err(Error::Netlink {
            source: rtnetlink::Error::NetlinkError(error),
            ..
        }) if links::is(&error, libc::ENODEV) => Ok(()),
        other => other,
    }
}

fn named(name: &str) -> LinkMessage {
    LinkMessageBuilder::<LinkUnspec>::new()
        .name(name.to_owned())
        .build()
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use network_lab as lab;
    use rtnetlink::LinkVeth;

    use super::*;

    fn pair(number: usize) -> Change {
        let pair = LinkVeth::new(&format!("v{number}"), &format!("w{number}")).build();
        Change::add(RouteNetlinkMessage::NewLink(pair), "make a pair")
    }

    #[test]
    fn links_that_are_removed_at_once_are_gone_with_their_peers_and_no_others() {
        lab::node(|_| async {
            let mut socket = RouteSocket::open().unwrap();
            socket.change((0..20).map(pair).collect()).unwrap();
            let removals = Removals::default();
            // v5 is requested twice, and v99 does not exist.
            let names = (1..20).chain([5, 99]).map(|number| format!("v{number}"));
            let names: Vec<String> = names.collect();
            let outcomes = join_all(names.iter().map(|name| removals.remove(name))).await;
            for (name, outcome) in names.iter().zip(outcomes) {
                outcome.unwrap();
                assert_eq!(socket.link(name).unwrap(), None, "{name}");
                let peer = name.replace('v', "w");
                assert_eq!(socket.link(&peer).unwrap(), None, "{peer}");
            }
            for kept in ["v0", "w0", "lo"] {
                assert!(socket.link(kept).unwrap().is_some(), "{kept}");
            }
            assert!(removals.waiting.lock().is_empty());
            removals.remove("v0").await.unwrap();
            assert_eq!(socket.link("w0").unwrap(), None);
            assert!(removals.remove("lo").await.is_err(), "not a removable link");
        });
    }
}
