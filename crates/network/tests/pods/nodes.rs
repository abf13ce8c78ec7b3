//! Pods of several nodes: routes, the overlay, both address families.

use std::{
    io::ErrorKind,
    net::UdpSocket,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use network::{
    PodNetwork,
    netns::Netlink,
    nft::Nft,
    routes::{self, Peer},
};
use network_lab::{self as lab, NODE_IP, Namespace};

use super::{ID, at, config, network, request};

pub(super) fn node_routes() -> routes::Config {
    routes::Config {
        id: ID.into(),
        cluster: "test".into(),
        node_name: "here".into(),
        node_ips: vec![NODE_IP],
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        mtu: 1500,
    }
}

pub(super) fn peers() -> Vec<Peer> {
    let peer = |name: &str, address: &str, cidr: &str| Peer {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
        pod_cidrs: vec![cidr.parse().unwrap()],
    };
    vec![
        peer("here", "192.0.2.1", "10.42.0.0/24"),
        peer("near", "192.0.2.2", "10.42.1.0/24"),
        peer("far", "198.51.100.9", "10.42.2.0/24"),
    ]
}

/// Another node at the other end of the veth pair, with one pod that serves on port 80.
async fn second_node(outside: &Namespace, state: &Path, pod: &Namespace, nodes: &[Peer]) {
    outside.block_on(async {
        let network = config(state).build(Nft::new()).unwrap();
        network
            .set_pod_cidrs(vec!["10.42.1.0/24".parse().unwrap()])
            .await
            .unwrap();
        network.attach(request("far", pod)).await.unwrap();
        let routes = routes::Config {
            node_name: "there".into(),
            ..node_routes()
        };
        let addresses = nodes[1].addresses.clone();
        let routes = routes::Config {
            node_ips: addresses,
            ..routes
        };
        let (_, node_list) = tokio::sync::watch::channel(None);
        let routes = routes.build(Nft::new(), node_list);
        routes.sync(&Netlink::here().unwrap(), nodes).await.unwrap();
    });
    pod.serve("far", 80).await;
}

fn two_nodes(here: &str, there: &str) -> Vec<Peer> {
    let peer = |name: &str, address: &str, cidr: &str| Peer {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
        pod_cidrs: vec![cidr.parse().unwrap()],
    };
    vec![
        peer("here", here, "10.42.0.0/24"),
        peer("there", there, "10.42.1.0/24"),
    ]
}

/// The pods of both nodes.
pub(super) struct TwoNodes {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
    _states: [tempfile::TempDir; 2],
}

pub(super) async fn reach_the_second_node(
    outside: Arc<Namespace>,
    nodes: Vec<Peer>,
    node_answer: &str,
) -> TwoNodes {
    let (near_state, far_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (near, far) = (Namespace::new(), Namespace::new());
    let network = network(near_state.path()).await;
    network.attach(request("near", &near)).await.unwrap();
    let (_, node_list) = tokio::sync::watch::channel(None);
    let routes = routes::Config {
        node_ips: nodes[0].addresses.clone(),
        ..node_routes()
    };
    let routes = routes.build(Nft::new(), node_list);
    routes
        .sync(&Netlink::here().unwrap(), &nodes)
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current().block_on(second_node(
            &outside,
            far_state.path(),
            &far,
            &nodes,
        ));
    });
    // Pod addresses are not translated between nodes.
    assert_eq!(near.ask(at("10.42.1.1:80")).await.unwrap(), "far 10.42.0.1");
    assert_eq!(
        near.ask_udp(at("10.42.1.1:80")).await.unwrap(),
        "far 10.42.0.1"
    );
    assert_eq!(lab::ask_here(at("10.42.1.1:80")).unwrap(), node_answer);
    TwoNodes {
        near,
        far,
        _states: [near_state, far_state],
    }
}

/// Nodes with addresses outside the link's subnet, so that they are not neighbours.
pub(super) async fn distant_nodes(outside: &Namespace) -> Vec<Peer> {
    lab::command("ip address add 198.51.100.1/32 dev lo");
    lab::command("ip route add 203.0.113.2 via 192.0.2.2 src 198.51.100.1");
    outside
        .command("ip address add 203.0.113.2/32 dev lo")
        .await;
    outside
        .command("ip route add 198.51.100.1 via 192.0.2.1 src 203.0.113.2")
        .await;
    two_nodes("198.51.100.1", "203.0.113.2")
}

#[test]
fn pods_of_neighbour_nodes_reach_each_other_directly() {
    lab::node(|outside| async move {
        let nodes = two_nodes("192.0.2.1", "192.0.2.2");
        reach_the_second_node(outside, nodes, "far 192.0.2.1").await;
        assert!(!lab::command("ip link").contains("m0123abcd-vx"));
    });
}

#[test]
fn pods_of_distant_nodes_reach_each_other_through_the_overlay() {
    lab::node(|outside| async move {
        let nodes = distant_nodes(&outside).await;
        let pods = reach_the_second_node(outside, nodes, "far 10.42.0.0").await;
        assert!(lab::command("ip link").contains("m0123abcd-vx"));
        // ICMP errors, too.
        let refused = network::netns::run(pods.near.path(), || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.42.1.1:81").unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            socket.send(b"?").unwrap();
            socket.recv(&mut [0; 16]).unwrap_err().kind()
        });
        assert_eq!(refused.await.unwrap(), ErrorKind::ConnectionRefused);
    });
}

fn dual_stack(here: [&str; 2], there: [&str; 2]) -> [Peer; 2] {
    let peer = |name: &str, addresses: [&str; 2], number: u8| Peer {
        name: name.into(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        pod_cidrs: [
            format!("10.42.{number}.0/24"),
            format!("fd00:42:0:{number}::/64"),
        ]
        .iter()
        .map(|cidr| cidr.parse().unwrap())
        .collect(),
    };
    [peer("here", here, 0), peer("there", there, 1)]
}

/// The caller's namespace becomes one of two nodes, with a pod that serves on port 80.
async fn dual_stack_node(own: &Peer, nodes: &[Peer], state: &Path, pod: &Namespace) {
    let mut config = config(state);
    config.cluster_cidrs.push("fd00:42::/48".parse().unwrap());
    config.node_ips = own.addresses.clone();
    let routes = routes::Config {
        node_name: own.name.clone(),
        node_ips: own.addresses.clone(),
        cluster_cidrs: config.cluster_cidrs.clone(),
        ..node_routes()
    };
    let network = config.build(Nft::new()).unwrap();
    network.set_pod_cidrs(own.pod_cidrs.clone()).await.unwrap();
    network.attach(request(&own.name, pod)).await.unwrap();
    let (_, node_list) = tokio::sync::watch::channel(None);
    let routes = routes.build(Nft::new(), node_list);
    routes.sync(&Netlink::here().unwrap(), nodes).await.unwrap();
    pod.serve(&own.name, 80).await;
}

async fn reach_in_both_families(outside: Arc<Namespace>, nodes: [Peer; 2]) {
    let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (near, far) = (Namespace::new(), Namespace::new());
    dual_stack_node(&nodes[0], &nodes, states[0].path(), &near).await;
    tokio::task::block_in_place(|| {
        outside.block_on(dual_stack_node(&nodes[1], &nodes, states[1].path(), &far));
    });
    for (from, to, expected) in [
        (&near, "10.42.1.1:80", "there 10.42.0.1"),
        (&near, "[fd00:42:0:1::1]:80", "there fd00:42::1"),
        (&far, "10.42.0.1:80", "here 10.42.1.1"),
        (&far, "[fd00:42::1]:80", "here fd00:42:0:1::1"),
    ] {
        assert_eq!(from.ask(at(to)).await.as_deref(), Some(expected), "{to}");
    }
}

/// Neighbour solicitations have link-local source addresses, which are unusable until duplicate address detection has
/// finished.
async fn wait_for_addresses(outside: &Namespace) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let tentative = "ip -6 address show tentative";
    while !(lab::command(tentative) + &outside.command(tentative).await).is_empty() {
        assert!(Instant::now() < deadline, "addresses stay tentative");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn pods_of_neighbour_nodes_reach_each_other_in_both_families() {
    lab::node(|outside| async move {
        lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
        let other = "ip address add 2001:db8::2/64 dev wire1 nodad";
        outside.command(other).await;
        wait_for_addresses(&outside).await;
        let nodes = dual_stack(["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]);
        reach_in_both_families(outside, nodes).await;
        assert!(!lab::command("ip link").contains("m0123abcd-vx"));
    });
}

/// The same as [`distant_nodes`] with addresses of both families.
async fn distant_dual_stack_nodes(outside: &Namespace) -> [Peer; 2] {
    distant_nodes(outside).await;
    lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
    lab::command("ip address add 2001:db8:1::1/128 dev lo nodad");
    lab::command("ip route add 2001:db8:2::2 via 2001:db8::2 src 2001:db8:1::1");
    for command in [
        "ip address add 2001:db8::2/64 dev wire1 nodad",
        "ip address add 2001:db8:2::2/128 dev lo nodad",
        "ip route add 2001:db8:1::1 via 2001:db8::1 src 2001:db8:2::2",
    ] {
        outside.command(command).await;
    }
    let here = ["198.51.100.1", "2001:db8:1::1"];
    dual_stack(here, ["203.0.113.2", "2001:db8:2::2"])
}

#[test]
fn pods_of_distant_nodes_reach_each_other_in_both_families() {
    lab::node(|outside| async move {
        let nodes = distant_dual_stack_nodes(&outside).await;
        reach_in_both_families(outside, nodes).await;
        assert!(lab::command("ip link").contains("m0123abcd-vx"));
    });
}

#[test]
fn the_overlay_is_over_ipv6_if_that_is_the_first_family_of_a_node() {
    lab::node(|outside| async move {
        let mut nodes = distant_dual_stack_nodes(&outside).await;
        wait_for_addresses(&outside).await;
        for node in &mut nodes {
            node.addresses.reverse();
        }
        reach_in_both_families(outside, nodes).await;
        let shown = lab::command("ip -d link show m0123abcd-vx");
        assert!(shown.contains("local 2001:db8:1::1 "), "{shown}");
    });
}
