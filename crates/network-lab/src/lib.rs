//! Temporary nodes and pods made of network namespaces, for tests of everything that moves packets.
//!
//! A namespace here belongs to a thread and has no name: it is removed with all links, routes and
//! rules in it when the test ends, even if it fails. Needs root. Panics freely: only tests call it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod sctp;

use std::{
    fs::File,
    future::Future,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
    },
    unistd::gettid,
};
use tokio::sync::oneshot;

/// The lab node's address, on a veth pair to [`OUTSIDE_IP`].
pub const NODE_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
/// A host next to the lab node.
pub const OUTSIDE_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const PATIENCE: Duration = Duration::from_secs(2);

/// A network namespace that exists as long as this value.
pub struct Namespace {
    path: PathBuf,
    _release: mpsc::Sender<()>,
}

impl Namespace {
    /// A new, empty namespace.
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of the network need root");
            sender.send(gettid()).unwrap();
            let _ = held.recv();
        });
        let thread = receiver.recv().expect("tests of the network need root");
        let path = format!("/proc/{}/task/{thread}/ns/net", std::process::id()).into();
        Self {
            path,
            _release: release,
        }
    }

    /// The caller's own namespace, as long as the calling thread lives.
    pub fn here() -> Self {
        let (release, _) = mpsc::channel();
        let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), gettid()).into();
        Self {
            path,
            _release: release,
        }
    }

    /// The path by which it can be entered.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs work inside, on a thread of its own: entering changes only the calling thread.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let here = File::open(&self.path).unwrap();
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || {
            setns(here, CloneFlags::CLONE_NEWNET).unwrap();
            let _ = sender.send(work());
        });
        receiver.await.unwrap()
    }

    /// Serves TCP and UDP on a port: every connection and every datagram is answered with `name`
    /// and the client's address.
    pub async fn serve(&self, name: &str, port: u16) {
        let name = name.to_owned();
        self.run(move || serve_here(&name, port)).await;
    }

    /// Connects from inside and returns the answer; `None` without one.
    pub async fn ask(&self, to: SocketAddr) -> Option<String> {
        self.run(move || ask_here(to)).await
    }

    /// Whether a TCP connection from inside is refused, and not just ignored.
    pub async fn is_refused(&self, to: SocketAddr) -> bool {
        self.run(move || is_refused_here(to)).await
    }

    /// The same with one datagram.
    pub async fn ask_udp(&self, to: SocketAddr) -> Option<String> {
        self.run(move || ask_udp_here(to)).await
    }

    /// Answers SCTP on a port, as [`Namespace::serve`].
    pub async fn serve_sctp(&self, name: &str, port: u16) {
        let name = name.to_owned();
        self.run(move || sctp::serve_here(&name, port)).await;
    }

    /// Requests an SCTP association from inside and returns the answer; `None` without one.
    pub async fn ask_sctp(&self, to: SocketAddr) -> Option<String> {
        self.run(move || ask_sctp_here(to)).await
    }

    /// Runs a future inside, on a runtime of its own: its sockets, processes and sysctls are those
    /// of this namespace.
    pub fn block_on<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        let here = File::open(&self.path).unwrap();
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(here, CloneFlags::CLONE_NEWNET).unwrap();
                runtime().block_on(work)
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a command inside and returns its output.
    pub async fn command(&self, line: &str) -> String {
        let line = line.to_owned();
        self.run(move || command(&line)).await
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a test as a node: the runtime's threads and all of their child processes are in a new
/// namespace with [`NODE_IP`] on `wire0`. The test gets the host at the other end.
pub fn node<F: Future<Output = ()>>(test: impl FnOnce(Arc<Namespace>) -> F + Send) {
    thread::scope(|scope| {
        let node = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("tests of the network need root");
            runtime().block_on(async {
                let outside = Arc::new(Namespace::new());
                let other = gettid_of(&outside);
                command("ip link set lo up");
                command(&format!(
                    "ip link add wire0 type veth peer name wire1 netns {other}"
                ));
                command(&format!("ip address add {NODE_IP}/24 dev wire0"));
                command("ip link set wire0 up");
                outside.command("ip link set lo up").await;
                outside
                    .command(&format!("ip address add {OUTSIDE_IP}/24 dev wire1"))
                    .await;
                outside.command("ip link set wire1 up").await;
                while command("ip route").contains("linkdown") {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                test(outside.clone()).await;
                drop(outside);
            });
        });
        if let Err(panic) = node.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// iproute accepts a thread's id instead of a process in the namespace.
fn gettid_of(namespace: &Namespace) -> String {
    namespace
        .path
        .components()
        .nth(4)
        .unwrap()
        .as_os_str()
        .to_str()
        .unwrap()
        .to_owned()
}

/// Runs a command in the caller's namespace and returns its output.
pub fn command(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The output of `ip` and `nft` in the caller's namespace, for comparison.
pub fn inventory() -> String {
    // Link-local addresses and their routes appear by themselves, a moment after a link.
    let links = "ip -o link | cut -d' ' -f2; ip address | grep 'inet.* scope global'";
    let routes = "ip route; ip -6 route | grep -v fe80";
    command(&format!("{links}; {routes}; nft list ruleset"))
}

/// Starts serving in the caller's namespace, as [`Namespace::serve`].
pub fn serve_here(name: &str, port: u16) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    let socket = UdpSocket::bind(("::", port)).unwrap();
    let tcp_name = name.to_owned();
    let udp_name = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let from = stream.peer_addr().unwrap().ip().to_canonical();
            let _ = stream.write_all(format!("{tcp_name} {from}").as_bytes());
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(
                format!("{udp_name} {}", from.ip().to_canonical()).as_bytes(),
                from,
            );
        }
    });
}

/// Connects from the caller's namespace, as [`Namespace::ask`].
pub fn ask_here(to: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Connects from the caller's namespace, as [`Namespace::is_refused`].
pub fn is_refused_here(to: SocketAddr) -> bool {
    let failed = TcpStream::connect_timeout(&to, PATIENCE).err();
    failed.is_some_and(|error| error.kind() != std::io::ErrorKind::TimedOut)
}

/// Sends from the caller's namespace, as [`Namespace::ask_udp`].
pub fn ask_udp_here(to: SocketAddr) -> Option<String> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(to).ok()?;
    socket.send(b"?").ok()?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Requests an association from the caller's namespace, as [`Namespace::ask_sctp`].
pub fn ask_sctp_here(to: SocketAddr) -> Option<String> {
    sctp::ask_here(to, PATIENCE)
}

/// Sends an ICMP message, as a container with the capability `NET_RAW` can.
pub fn send_icmp(to: IpAddr, message: &[u8]) {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let raw = socket(family, SockType::Raw, SockFlag::empty(), protocol).unwrap();
    let to = SockaddrStorage::from(SocketAddr::new(to, 0));
    sendto(raw.as_raw_fd(), message, &to, MsgFlags::empty()).unwrap();
}

/// The ICMP message "port unreachable" about a datagram from `client` to `server`, for [`send_icmp`].
pub fn port_unreachable(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let mut quoted = match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let head = [0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
            [&head[..], &from.octets(), &to.octets()].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let head = [0x60, 0, 0, 0, 0, 9, 17, 64];
            [&head[..], &from.octets(), &to.octets()].concat()
        }
        _ => panic!("two families"),
    };
    for word in [client.port(), server.port(), 9, 0] {
        quoted.extend(word.to_be_bytes());
    }
    let kind = if client.is_ipv4() { [3, 3] } else { [1, 4] };
    let mut message = [&kind[..], &[0; 6], &quoted].concat();
    if client.is_ipv4() {
        // The kernel computes only the checksum of ICMPv6.
        let words = message.chunks(2).map(|two| {
            let low = two.get(1).copied().unwrap_or_default();
            u32::from(u16::from_be_bytes([two[0], low]))
        });
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let sum = !u16::try_from(sum).unwrap();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}
