//! Routes between nodes in network namespaces: entries of removed nodes are deleted, and removed
//! routes are restored.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use lifecycle::{Context, Service};
use network::{
    netns::Netlink,
    nft::Nft,
    routes::{self, Peer},
};
use network_lab::{self as lab, NODE_IP};
use tokio_util::sync::CancellationToken;

const ID: &str = "0123abcd";

fn config() -> routes::Config {
    routes::Config {
        id: ID.into(),
        cluster: "test".into(),
        node_name: "here".into(),
        node_ips: vec![NODE_IP],
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        mtu: 1500,
    }
}

fn peer(name: &str, address: &str, cidr: &str) -> Peer {
    Peer {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
        pod_cidrs: vec![cidr.parse().unwrap()],
    }
}

fn peers() -> Vec<Peer> {
    vec![
        peer("here", "192.0.2.1", "10.42.0.0/24"),
        peer("near", "192.0.2.2", "10.42.1.0/24"),
        peer("far", "198.51.100.9", "10.42.2.0/24"),
        peer("farther", "198.51.100.10", "10.42.3.0/24"),
    ]
}

/// Waits until a command's output is right.
async fn until(what: &str, command: &str, is_right: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let shown = lab::command(command);
        if is_right(&shown) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}:\n{shown}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn entries_of_the_overlay_go_with_their_node_and_follow_its_address() {
    lab::node(|_| async move {
        lab::command("ip route add default via 192.0.2.2");
        let (_, node_list) = tokio::sync::watch::channel(None);
        let routes = config().build(Nft::new(), node_list);
        let netlink = Netlink::here().unwrap();
        let mut nodes = peers();
        routes.sync(&netlink, &nodes).await.unwrap();
        let fdb = || lab::command("bridge fdb show dev m0123abcd-vx");
        let neighbours = || lab::command("ip neighbour show dev m0123abcd-vx");
        assert!(fdb().contains("dst 198.51.100.9 "), "{}", fdb());
        assert!(fdb().contains("dst 198.51.100.10 "), "{}", fdb());
        assert!(neighbours().contains("10.42.3.0 "), "{}", neighbours());
        let senders = || lab::command("nft list set inet mainstay-0123abcd-overlay ip_nodes");
        for node in ["192.0.2.2", "198.51.100.9", "198.51.100.10"] {
            assert!(senders().contains(node), "{}", senders());
        }
        assert!(!senders().contains("192.0.2.1,"), "{}", senders());

        nodes[2].addresses = vec!["198.51.100.77".parse().unwrap()];
        nodes.remove(3);
        routes.sync(&netlink, &nodes).await.unwrap();
        assert!(fdb().contains("dst 198.51.100.77 "), "{}", fdb());
        assert!(!fdb().contains("198.51.100.9 "), "{}", fdb());
        assert!(!fdb().contains("198.51.100.10 "), "{}", fdb());
        assert!(senders().contains("198.51.100.77"), "{}", senders());
        assert!(!senders().contains("198.51.100.10"), "{}", senders());
        assert!(neighbours().contains("10.42.2.0 "), "{}", neighbours());
        assert!(!neighbours().contains("10.42.3.0 "), "{}", neighbours());

        // A node that moves to our subnet needs no tunnel.
        nodes[2].addresses = vec!["192.0.2.77".parse().unwrap()];
        routes.sync(&netlink, &nodes).await.unwrap();
        assert!(!fdb().contains("dst"), "{}", fdb());
        let shown = lab::command("ip route");
        assert!(shown.contains("10.42.2.0/24 via 192.0.2.77"), "{shown}");
    });
}

#[test]
fn addresses_that_a_node_writes_do_not_keep_others_from_their_routes() {
    lab::node(|_| async move {
        lab::command("ip route add default via 192.0.2.2");
        let netlink = Netlink::here().unwrap();
        for written in [
            "192.0.2.1",
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.255",
            "2001:db8::9",
            "::",
            "ff02::1",
        ] {
            let mut nodes = peers();
            // Its name and range are the first of all that get a route.
            nodes.insert(0, peer("a", written, "10.42.0.128/25"));
            nodes[1].pod_cidrs = vec!["10.42.0.0/25".parse().unwrap()];
            let (_, node_list) = tokio::sync::watch::channel(None);
            let routes = config().build(Nft::new(), node_list);
            let _ = routes.sync(&netlink, &nodes).await;
            let shown = lab::command("ip route; bridge fdb show dev m0123abcd-vx");
            for expected in [
                "10.42.1.0/24 via 192.0.2.2",
                "10.42.2.0/24 via 10.42.2.0",
                "10.42.3.0/24 via 10.42.3.0",
                "dst 198.51.100.9 ",
                "dst 198.51.100.10 ",
            ] {
                assert!(shown.contains(expected), "{written}: {expected}: {shown}");
            }
            routes.sync(&netlink, &[]).await.unwrap();
        }
    });
}

#[test]
fn removed_routes_are_restored() {
    lab::node(|_| async move {
        lab::command("ip route add default via 192.0.2.2");
        let (set_node_list, node_list) = tokio::sync::watch::channel(Some(peers()));
        let routes = config().build(Nft::new(), node_list);
        let shutdown = CancellationToken::new();
        let context = Context::standalone("routes", shutdown.clone());
        let running = tokio::spawn(routes.run(context));
        let near = |shown: &str| shown.contains("10.42.1.0/24 via 192.0.2.2");
        let far = |shown: &str| shown.contains("10.42.2.0/24 via 10.42.2.0");
        until("routes are made", "ip route", |shown| {
            near(shown) && far(shown)
        })
        .await;

        lab::command("ip route del 10.42.1.0/24");
        until("a route is repaired", "ip route", near).await;
        // The kernel drops all routes of a link that goes down, and notifies only about the link.
        lab::command("ip link set wire0 down");
        lab::command("ip link set wire0 up");
        until("a flap is repaired", "ip route", near).await;
        lab::command("ip neighbour flush dev m0123abcd-vx nud permanent");
        let neighbours = "ip neighbour show dev m0123abcd-vx";
        until("neighbours are repaired", neighbours, |shown| {
            shown.contains("10.42.2.0 ")
        })
        .await;
        lab::command("ip link del m0123abcd-vx");
        until("the overlay is repaired", "ip route", far).await;
        let fdb = "bridge fdb show dev m0123abcd-vx";
        until("its entries, too", fdb, |shown| {
            shown.contains("dst 198.51.100.9 ")
        })
        .await;

        shutdown.cancel();
        running.await.unwrap().unwrap();
        drop(set_node_list);
    });
}

#[test]
fn packets_to_a_pod_that_is_gone_do_not_leave_by_the_default_route() {
    lab::node(|_| async move {
        lab::command("ip route add default via 192.0.2.2");
        lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
        lab::command("ip -6 route add default via 2001:db8::2");
        let mut config = config();
        config.cluster_cidrs.push("fd42::/56".parse().unwrap());
        let own = Peer {
            name: config.node_name.clone(),
            addresses: config.node_ips.clone(),
            pod_cidrs: ["10.42.0.0/24", "fd42::/64"]
                .map(|cidr| cidr.parse().unwrap())
                .into(),
        };
        let (_, node_list) = tokio::sync::watch::channel(None);
        let routes = config.build(Nft::new(), node_list);
        let netlink = Netlink::here().unwrap();
        for _ in 0..2 {
            routes
                .sync(&netlink, std::slice::from_ref(&own))
                .await
                .unwrap();
            for gone in ["10.42.0.77:80", "[fd42::77]:80"] {
                let error = std::net::TcpStream::connect(gone).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{gone}");
            }
        }
        let before = lab::command("ip route; ip -6 route");
        assert!(before.contains("unreachable 10.42.0.0/24"), "{before}");
        // The range of a node that was registered again.
        routes.sync(&netlink, &[]).await.unwrap();
        let after = lab::command("ip route; ip -6 route");
        assert!(!after.contains("unreachable"), "{after}");
    });
}

#[test]
fn ranges_in_use_are_found_and_our_own_are_not_meant() {
    lab::node(|_| async move {
        let pods = "10.42.0.0/16".parse().unwrap();
        let services = "10.43.0.0/16".parse().unwrap();
        let conflicts = network::conflicts;
        assert!(conflicts(ID, pods).await.unwrap().is_empty());
        // Our own routes, from an earlier start.
        let (_, node_list) = tokio::sync::watch::channel(None);
        let routes = config().build(Nft::new(), node_list);
        let netlink = Netlink::here().unwrap();
        lab::command("ip route add default via 192.0.2.2");
        routes.sync(&netlink, &peers()).await.unwrap();
        assert_eq!(conflicts(ID, pods).await.unwrap(), [""; 0]);
        // The same as seen by another cluster.
        let found = conflicts("76543210", pods).await.unwrap().join("\n");
        assert!(
            found.contains("route to 10.42.1.0/24 on link wire0"),
            "{found}"
        );
        assert!(found.contains("m0123abcd-vx"), "{found}");
        assert!(conflicts("76543210", services).await.unwrap().is_empty());
        lab::command("ip link add office type veth peer name home");
        lab::command("ip address add 10.0.0.7/8 dev office");
        let found = conflicts(ID, services).await.unwrap();
        assert_eq!(found, ["address 10.0.0.7/8 of link office"]);
    });
}
