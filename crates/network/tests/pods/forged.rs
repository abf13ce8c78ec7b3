//! Packets with senders of others: from pods, and of the overlay.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use network::{PodNetwork, netns, nft::Nft};
use network_lab::{self as lab, NODE_IP, Namespace};

use super::{
    at, config,
    nodes::{distant_nodes, node_routes, reach_the_second_node},
    request,
};

const SHORT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

/// A VXLAN packet with an inner datagram, as a node sends it.
fn packed(mac: &str, source: [u8; 4], to: [u8; 4], port: u16, text: &[u8]) -> Vec<u8> {
    let vni = network::names::vni(&node_routes().cluster) << 8;
    let mut bytes = [&[8, 0, 0, 0][..], &vni.to_be_bytes()].concat();
    bytes.extend(
        mac.split(':')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap()),
    );
    bytes.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    let datagram = u16::try_from(8 + text.len()).unwrap();
    let length = (20 + datagram).to_be_bytes();
    let mut header = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 17, 0, 0];
    header.extend([source, to].concat());
    let words = header.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&(!sum).to_be_bytes());
    bytes.extend(header);
    for word in [4000, port, datagram, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(text);
    bytes
}

#[test]
fn only_nodes_can_send_packets_of_the_overlay_to_a_node() {
    lab::node(|outside| async move {
        let nodes = distant_nodes(&outside).await;
        let pods = reach_the_second_node(outside.clone(), nodes, "far 10.42.0.0").await;
        let link = outside.command("ip -o link show m0123abcd-vx").await;
        let mac = link.split("link/ether ").nth(1).unwrap()[..17].to_owned();
        let receiver = network::netns::run(pods.far.path(), || {
            let socket = UdpSocket::bind("0.0.0.0:99").unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            socket
        });
        let receiver = receiver.await.unwrap();
        let from_victim = [10, 42, 0, 77];
        let forged = packed(&mac, from_victim, [10, 42, 1, 1], 99, b"forged");
        let send = move |from: &str| {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            // The kernel may report at once that it was dropped.
            let _ = socket.send_to(&forged, "203.0.113.2:8472");
        };
        let of_pod = send.clone();
        network::netns::run(pods.near.path(), move || of_pod("0.0.0.0"))
            .await
            .unwrap();
        // A machine that is not a node.
        send("192.0.2.1");
        let honest = || {
            UdpSocket::bind("0.0.0.0:0")
                .unwrap()
                .send_to(b"honest", "10.42.1.1:99")
        };
        network::netns::run(pods.near.path(), honest)
            .await
            .unwrap()
            .unwrap();
        let mut buffer = [0; 16];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"honest");
        // From a node it would have arrived.
        send("198.51.100.1");
        let (length, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"forged");
        assert_eq!(from.ip().to_string(), "10.42.0.77");
        // Not with the address of a pod of this node, which it cannot have received from there.
        let own = packed(&mac, [10, 42, 1, 1], [10, 42, 1, 1], 99, b"own");
        let other = packed(&mac, from_victim, [10, 42, 1, 1], 99, b"other");
        let socket = UdpSocket::bind("198.51.100.1:0").unwrap();
        for packet in [own, other] {
            socket.send_to(&packet, "203.0.113.2:8472").unwrap();
        }
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"other");
    });
}

/// The packets that the loopback link has received.
fn loopback_packets() -> u64 {
    let shown = lab::command("ip -s link show dev lo");
    let lines: Vec<&str> = shown.lines().collect();
    let place = lines.iter().position(|line| line.contains("RX:")).unwrap();
    let numbers = lines[place + 1].split_whitespace().nth(1);
    numbers.unwrap().parse().unwrap()
}

#[test]
fn a_packet_to_a_service_address_that_is_not_translated_does_not_circle() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let mut config = config(state.path());
        config.cluster_cidrs.push("fd00:42::/48".parse().unwrap());
        config.service_cidrs.push("fd00:43::/112".parse().unwrap());
        let network = config.build(Nft::new()).unwrap();
        let cidrs = ["10.42.0.0/24", "fd00:42::/64"].map(|cidr| cidr.parse().unwrap());
        network.set_pod_cidrs(cidrs.into()).await.unwrap();
        let pod = Namespace::new();
        network.attach(request("a", &pod)).await.unwrap();
        // Answers without a question.
        let replies = [
            ("10.43.0.9", vec![0, 0, 0xff, 0xff, 0, 0, 0, 0]),
            ("fd00:43::9", vec![129, 0, 0, 0, 0, 0, 0, 0]),
        ];
        let before = loopback_packets();
        for (to, reply) in replies {
            let to = to.parse().unwrap();
            let send = move || (0..10).for_each(|_| lab::send_icmp(to, &reply));
            netns::run(pod.path(), send).await.unwrap();
        }
        lab::serve_here("node", 9090);
        pod.ask(SocketAddr::new(NODE_IP, 9090)).await.unwrap();
        let circled = loopback_packets() - before;
        assert!(circled <= 20, "{circled}");
    });
}

/// Sends a datagram from an address of the pod's choice.
async fn send_from(pod: &Namespace, from: SocketAddr, to: SocketAddr) {
    let send = move || {
        let socket = UdpSocket::bind(from).unwrap();
        // The kernel may report at once that there is no answer.
        let _ = socket.send_to(b"x", to);
    };
    netns::run(pod.path(), send).await.unwrap();
}

#[test]
fn a_pod_cannot_fill_the_nodes_neighbour_table() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
        let mut config = config(state.path());
        config.cluster_cidrs.push("fd00:42::/48".parse().unwrap());
        config.node_ips.push("2001:db8::1".parse().unwrap());
        let network = config.build(Nft::new()).unwrap();
        let cidrs = ["10.42.0.0/24", "fd00:42::/64"].map(|cidr| cidr.parse().unwrap());
        network.set_pod_cidrs(cidrs.into()).await.unwrap();
        let pod = Namespace::new();
        network.attach(request("a", &pod)).await.unwrap();
        // ARP requests and neighbour solicitations have the source of the packet that needs them.
        for line in [
            "ip address add 10.99.0.7/32 dev lo".to_owned(),
            "ip address add fe80::bad/64 dev eth0 nodad".to_owned(),
            format!("ip route add {NODE_IP} dev eth0"),
        ] {
            pod.command(&line).await;
        }
        let route = lab::command("ip -o route get 10.42.0.1");
        let link = route.split(' ').skip_while(|word| *word != "dev").nth(1);
        let link = link.unwrap().to_owned();
        let shown = lab::command(&format!("ip -6 -o address show dev {link} scope link"));
        let node_side = shown
            .split([' ', '/'])
            .find(|word| word.starts_with("fe80"));
        let node_side = format!("[{}%2]:9", node_side.unwrap());
        // Not from /sys, which shows the links of the namespace that mounted it.
        let shown = pod.command("ip -o link show dev eth0").await;
        let index = shown.split(':').next().unwrap();
        let scoped = |address: &str| at(&address.replace("%2", &format!("%{index}")));
        send_from(&pod, at("10.99.0.7:0"), SocketAddr::new(NODE_IP, 9)).await;
        send_from(&pod, scoped("[fe80::bad%2]:0"), scoped(&node_side)).await;
        lab::serve_here("node", 9090);
        pod.ask(at("[2001:db8::1]:9090")).await.unwrap();
        let known = lab::command(&format!("ip neigh show dev {link}"));
        assert!(!known.contains("10.99.0.7"), "{known}");
        assert!(!known.contains("fe80::bad"), "{known}");
        // With its own address the pod may ask.
        pod.command(&format!("ip neigh flush to {NODE_IP} dev eth0"))
            .await;
        let answer = pod.ask(SocketAddr::new(NODE_IP, 9090)).await;
        assert_eq!(answer.unwrap(), "node 10.42.0.1");
    });
}

/// Whether a datagram that was answered before is refused now, after a pod has sent an error about it.
async fn is_refused(client: &Namespace, server: SocketAddr, forger: &Namespace) -> bool {
    let any = if server.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let connect = move || {
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send(b"?").unwrap();
        socket.recv(&mut [0; 64]).unwrap();
        socket
    };
    let socket = netns::run(client.path(), connect).await.unwrap();
    let own = socket.local_addr().unwrap();
    let message = lab::port_unreachable(own, server);
    let forge = move || lab::send_icmp(own.ip(), &message);
    netns::run(forger.path(), forge).await.unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    socket.recv(&mut [0; 64]).unwrap_err().kind() == ErrorKind::ConnectionRefused
}

#[test]
fn a_pod_sends_errors_only_about_its_own_connections() {
    lab::node(|outside| async move {
        let state = tempfile::tempdir().unwrap();
        lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
        outside
            .command("ip address add 2001:db8::2/64 dev wire1 nodad")
            .await;
        let mut config = config(state.path());
        config.cluster_cidrs.push("fd00:42::/48".parse().unwrap());
        config.node_ips.push("2001:db8::1".parse().unwrap());
        let network = config.build(Nft::new()).unwrap();
        let cidrs = ["10.42.0.0/24", "fd00:42::/64"].map(|cidr| cidr.parse().unwrap());
        network.set_pod_cidrs(cidrs.into()).await.unwrap();
        let [client, server, forger] = [Namespace::new(), Namespace::new(), Namespace::new()];
        for (name, pod) in [
            ("client", &client),
            ("server", &server),
            ("forger", &forger),
        ] {
            network.attach(request(name, pod)).await.unwrap();
        }
        server.serve("server", 80).await;
        outside.serve("outside", 80).await;
        let node = Namespace::here();
        for (of_pod, of_outside) in [
            ("10.42.0.2:80", "192.0.2.2:80"),
            ("[fd00:42::2]:80", "[2001:db8::2]:80"),
        ] {
            assert!(!is_refused(&client, at(of_pod), &forger).await, "{of_pod}");
            // Also those of the node, such as the packets of the overlay.
            assert!(
                !is_refused(&node, at(of_outside), &forger).await,
                "{of_outside}"
            );
            // A pod refuses its own, at either end.
            assert!(is_refused(&client, at(of_pod), &server).await, "{of_pod}");
            let closed = at(&of_pod.replace(":80", ":81"));
            let ask = move || {
                let socket = UdpSocket::bind(if closed.is_ipv4() {
                    "0.0.0.0:0"
                } else {
                    "[::]:0"
                });
                let socket = socket.unwrap();
                socket.connect(closed).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket.send(b"?").unwrap();
                socket.recv(&mut [0; 64]).unwrap_err().kind()
            };
            let refused = netns::run(client.path(), ask).await.unwrap();
            assert_eq!(refused, ErrorKind::ConnectionRefused, "{closed}");
        }
        // Without the rule, the kernel believes the forger.
        lab::command("nft flush chain inet mainstay-0123abcd errors");
        assert!(is_refused(&client, at("10.42.0.2:80"), &forger).await);
        assert!(is_refused(&node, at("[2001:db8::2]:80"), &forger).await);
        // Nothing is left of a pod that is gone.
        for name in ["client", "server", "forger"] {
            network.detach(name, None).await.unwrap();
        }
        let set = lab::command("nft list set inet mainstay-0123abcd itself6");
        assert!(!set.contains("fd00:42::"), "{set}");
    });
}
