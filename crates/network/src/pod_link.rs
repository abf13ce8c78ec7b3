//! Makes or repairs the link of one pod, in a thread of its own that asks the kernel directly: the some fifteen requests
//! take the kernel less time than a task switch of the async runtime for each of them would.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rtnetlink::{
    AddressMessageBuilder, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags},
        link::{InfoData, InfoVeth},
        neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
        route::{RouteMessage, RouteScope, RouteType},
    },
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tracing::warn;

use crate::{
    Error, Result,
    links::{POD_LINK, PodLink, full_length, gateway, route_to},
    netns::{self, ANSWERS_WITHIN},
    route_socket::{Change, Link, RouteSocket},
    sysctl,
};

/// The loopback link's index in every namespace.
const LOOPBACK_INDEX: u32 = 1;
const CARRIES_WITHIN: Duration = Duration::from_secs(2);

/// The kernel changes one link at a time. Changes that wait for others in the kernel would cost more: sysctls of links are
/// tried again and again until nothing else is changed.
static CHANGING: Semaphore = Semaphore::const_new(1);

/// The maximum number of threads, among them those that the kernel keeps: a further pod fails.
static THREADS: Semaphore = Semaphore::const_new(256);

/// The turn to change links. It ends when one of the two holders drops it: the thread that made its changes, or the task
/// that does not wait for it any more.
#[derive(Clone)]
struct Turn(Arc<Mutex<Option<SemaphorePermit<'static>>>>);

impl Turn {
    async fn acquire() -> Self {
        // Never closed.
        let permit = CHANGING.acquire().await.ok();
        Self(Arc::new(Mutex::new(permit)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.0.lock().take());
    }
}

/// Creates or repairs the link of a pod, so that both sides are as described. A pod whose changes the kernel does not
/// make in time fails, and others go on; its thread removes what it has made when the kernel lets it go.
pub(crate) async fn connect(namespace: &Path, link: PodLink) -> Result<()> {
    connect_within(namespace, link, ANSWERS_WITHIN).await
}

async fn connect_within(namespace: &Path, link: PodLink, within: Duration) -> Result<()> {
    let late = format!("connect link {}", link.host_link);
    let late = || Error::NoAnswer(late.clone());
    let mut turn = Turn::acquire().await;
    let thread = match THREADS.try_acquire() {
        Ok(thread) => thread,
        // Others go on while this one waits.
        Err(_) => {
            drop(turn);
            let thread = timeout(within, THREADS.acquire()).await;
            // The semaphore is never closed.
            let thread = thread.ok().and_then(Result::ok).ok_or_else(late)?;
            turn = Turn::acquire().await;
            thread
        }
    };
    let namespace = namespace.to_path_buf();
    let changing = turn.clone();
    let connected = netns::on_watching_thread(move |waiting| {
        let _thread = thread;
        let made = make(&namespace, &link, || waiting.is_closed());
        drop(changing);
        carries(&mut made?, &link.host_link)
    });
    timeout(within, connected).await.map_err(|_| late())?
}

/// Returns a socket in the node's namespace.
fn make(namespace: &Path, link: &PodLink, is_given_up: impl Fn() -> bool) -> Result<RouteSocket> {
    let mut host = RouteSocket::open()?;
    let pod = netns::open(namespace)?;
    if is_given_up() {
        return Err(Error::NoAnswer("open the pod's namespace".into()));
    }
    let pair = ensure_pair(&mut host, namespace, &pod, link)?;
    let mut furnish = || {
        if is_given_up() {
            return Err(Error::NoAnswer("make a link".into()));
        }
        // Before the pod's side: the one that is up first gets its carrier in the background, and that is waited for later.
        raise_host(&mut host, pair.index, link)?;
        netns::enter(namespace, &pod)?;
        // This socket is in the pod's namespace, the first one stays in the node's.
        furnish_pod(&mut RouteSocket::open()?, link)
    };
    let furnished = furnish();
    if is_given_up() && pair.is_new {
        // The address may soon be assigned to another pod.
        delete(&mut host, pair.index, &link.host_link)?;
    }
    furnished.map(|()| host)
}

/// The host's side of a pair.
#[derive(Clone, Copy)]
struct Pair {
    index: u32,
    is_new: bool,
}

/// The host's side of the pair, which is made unless it is whole.
fn ensure_pair(
    host: &mut RouteSocket,
    namespace: &Path,
    pod: &File,
    link: &PodLink,
) -> Result<Pair> {
    // Nearly always there is neither side yet.
    let first = create_pair(host, pod, link);
    let Err(error) = first else { return first };
    match (host.link(&link.host_link)?, link_inside(namespace)?) {
        (Some(found), Some(_)) => Ok(Pair {
            index: found.index,
            is_new: false,
        }),
        (Some(half), None) => {
            delete(host, half.index, &link.host_link)?;
            create_pair(host, pod, link)
        }
        (None, _) => Err(error),
    }
}

fn delete(host: &mut RouteSocket, index: u32, name: &str) -> Result<()> {
    let link = LinkUnspec::new_with_index(index).build();
    let deleted = RouteNetlinkMessage::DelLink(link);
    host.change(vec![Change::set(deleted, format!("delete link {name}"))])
}

/// The pod's side, asked for by another thread: this one still makes changes on the node's side.
fn link_inside(namespace: &Path) -> Result<Option<Link>> {
    thread::scope(|scope| {
        let look = || {
            netns::enter(namespace, &netns::open(namespace)?)?;
            RouteSocket::open()?.link(POD_LINK)
        };
        let looking = thread::Builder::new().spawn_scoped(scope, look);
        let looking = looking.map_err(|_| Error::ThreadLost)?;
        looking.join().map_err(|_| Error::ThreadLost)?
    })
}

fn create_pair(host: &mut RouteSocket, pod: &File, link: &PodLink) -> Result<Pair> {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(POD_LINK)
        .mtu(link.mtu)
        .address(link.pod_hardware().to_vec())
        .setns_by_fd(pod.as_raw_fd())
        .build();
    let pair = LinkVeth::new(&link.host_link, POD_LINK)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .mtu(link.mtu)
        .address(link.host_hardware().to_vec())
        .build();
    let action = format!("create link {}", link.host_link);
    let made = Change::add(RouteNetlinkMessage::NewLink(pair), &action);
    host.change(vec![made])?;
    let index = index_of(host, &link.host_link, action)?;
    Ok(Pair {
        index,
        is_new: true,
    })
}

fn index_of(socket: &mut RouteSocket, name: &str, action: String) -> Result<u32> {
    let found = socket.link(name)?.map(|link| link.index);
    found.ok_or_else(|| Error::netlink(action)(rtnetlink::Error::RequestFailed))
}

/// Sets the host's side up and leads to the pod's addresses.
fn raise_host(host: &mut RouteSocket, index: u32, link: &PodLink) -> Result<()> {
    // Makes node ports and host ports reachable at 127.0.0.1; the table drops packets from pods to
    // the node's loopback.
    sysctl::set_for_link("ipv4", &link.host_link, "route_localnet", "1");
    // Also checks the senders of ARP requests: each new one would take an entry of the node's neighbour table.
    sysctl::set_for_link("ipv4", &link.host_link, "rp_filter", "1");
    if !link.has_v6() {
        sysctl::set_for_link("ipv6", &link.host_link, "disable_ipv6", "1");
    } else {
        sysctl::set_for_link("ipv6", &link.host_link, "accept_ra", "0");
        sysctl::set_for_link("ipv6", &link.host_link, "forwarding", "1");
    }
    let mut changes = vec![up(index)];
    for address in &link.addresses {
        changes.push(neighbour(index, *address, &link.pod_hardware()));
    }
    host.change(changes)?;
    for address in &link.addresses {
        lead_to_pod(host, index, *address, &link.node_ips)?;
    }
    Ok(())
}

fn lead_to_pod(
    host: &mut RouteSocket,
    index: u32,
    address: IpAddr,
    node_ips: &[IpAddr],
) -> Result<()> {
    let mut sources = node_ips.iter();
    let source = sources.find(|ip| ip.is_ipv4() == address.is_ipv4());
    let to_pod = || route_to(address, full_length(address), index).scope(RouteScope::Link);
    if let Some(preferred) = source
        && let Ok(builder) = to_pod().pref_source(*preferred)
        && host
            .change(vec![route(builder.build(), "add route to a pod")])
            .is_ok()
    {
        return Ok(());
    }
    // The node's address may not be on this machine (yet): let the kernel choose the source.
    let action = format!("add route to {address}");
    host.change(vec![route(to_pod().build(), action)])
}

/// Configures addresses, gateway and default routes. The thread is in the pod's namespace.
fn furnish_pod(inside: &mut RouteSocket, link: &PodLink) -> Result<()> {
    let index = index_of(inside, POD_LINK, "look up the pod's link".into())?;
    if link.has_v6() {
        sysctl::set_for_link("ipv6", POD_LINK, "accept_dad", "0");
        sysctl::set_for_link("ipv6", POD_LINK, "accept_ra", "0");
    } else {
        sysctl::set_for_link("ipv6", POD_LINK, "disable_ipv6", "1");
    }
    let mut changes = vec![up(LOOPBACK_INDEX), up(index)];
    for ip in &link.addresses {
        let gateway = gateway(*ip);
        changes.push(address(index, *ip));
        changes.push(neighbour(index, gateway, &link.host_hardware()));
        if ip.is_ipv4() {
            let to_gateway = route_to(gateway, 32, index).scope(RouteScope::Link).build();
            changes.push(route(to_gateway, "add route to the gateway"));
        }
        changes.push(route(default_via(gateway, index), "add default route"));
    }
    inside.change(changes)
}

/// Waits until a link whose peer just came up has a carrier. The kernel sets it in the background
/// and drops earlier packets: a pod's first connection would lose a second.
fn carries(host: &mut RouteSocket, name: &str) -> Result<()> {
    let deadline = Instant::now() + CARRIES_WITHIN;
    while !host.link(name)?.is_some_and(|link| link.is_up) {
        if Instant::now() > deadline {
            warn!(link = name, "link is not up in time");
            break;
        }
        thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

fn up(index: u32) -> Change {
    let link = LinkUnspec::new_with_index(index).up().build();
    Change::set(RouteNetlinkMessage::SetLink(link), "set link up")
}

fn address(index: u32, ip: IpAddr) -> Change {
    let length = full_length(ip);
    let message = match ip {
        IpAddr::V4(ip) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(ip, length)
            .build(),
        IpAddr::V6(ip) => {
            let builder = AddressMessageBuilder::<Ipv6Addr>::new().index(index);
            let mut message = builder.address(ip, length).build();
            // Duplicate address detection would only delay the pod: the address is ours.
            let flags = AddressAttribute::Flags(AddressFlags::Nodad);
            message.attributes.push(flags);
            message
        }
    };
    let action = format!("add address {ip}");
    Change::replace(RouteNetlinkMessage::NewAddress(message), action)
}

fn neighbour(index: u32, ip: IpAddr, hardware: &[u8; 6]) -> Change {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unspec;
    let destination = match ip {
        IpAddr::V4(ip) => {
            message.header.family = AddressFamily::Inet;
            NeighbourAddress::Inet(ip)
        }
        IpAddr::V6(ip) => {
            message.header.family = AddressFamily::Inet6;
            NeighbourAddress::Inet6(ip)
        }
    };
    message.attributes = vec![
        NeighbourAttribute::Destination(destination),
        NeighbourAttribute::LinkLayerAddress(hardware.to_vec()),
    ];
    let action = format!("add neighbour {ip}");
    Change::replace(RouteNetlinkMessage::NewNeighbour(message), action)
}

fn route(message: RouteMessage, action: impl Into<String>) -> Change {
    Change::replace(RouteNetlinkMessage::NewRoute(message), action)
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

#[cfg(test)]
mod tests {
    use network_lab::{self as lab, Namespace};
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    fn link(name: &str) -> PodLink {
        PodLink {
            host_link: name.into(),
            addresses: vec!["10.42.0.1".parse().unwrap()],
            mtu: 1500,
            node_ips: Vec::new(),
        }
    }

    #[test]
    fn a_pod_whose_changes_do_not_end_delays_no_other() {
        lab::node(|_| async {
            let files = tempfile::tempdir().unwrap();
            // Opening it blocks the thread, as a request that the kernel does not answer.
            let stuck = files.path().join("stuck");
            mkfifo(&stuck, Mode::S_IRWXU).unwrap();
            let short = Duration::from_millis(20);
            let error = connect_within(&stuck, link("t0"), short).await.unwrap_err();
            assert!(matches!(error, Error::NoAnswer(_)), "{error}");
            // Its thread still holds the namespace.
            let pod = Namespace::new();
            connect(pod.path(), link("t1")).await.unwrap();
            assert!(pod.command("ip addr show eth0").await.contains("10.42.0.1"));
            // A task that ends early ends its turn, too.
            let dropped = connect(&stuck, link("t2"));
            assert!(timeout(short, dropped).await.is_err());
            connect(Namespace::new().path(), link("t3")).await.unwrap();
            // Let the threads go.
            drop(File::options().write(true).open(&stuck).unwrap());
        });
    }

    #[test]
    fn a_link_that_is_made_too_late_is_removed() {
        lab::node(|_| async {
            let pod = Namespace::new();
            let given_up = std::cell::Cell::new(0);
            // After the link is made.
            let is_given_up = || given_up.replace(given_up.get() + 1) > 0;
            assert!(make(pod.path(), &link("t0"), is_given_up).is_err());
            assert!(given_up.get() > 1);
            assert!(!lab::command("ip link").contains("t0"));
            assert!(!lab::command("ip route").contains("10.42.0.1"));
        });
    }
}
