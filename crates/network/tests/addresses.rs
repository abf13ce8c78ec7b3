//! A node whose address is removed, added again or changed, in network namespaces.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use lifecycle::{Context, Service};
use network::{
    AddressNotices, AttachRequest, Config, PodNetwork,
    netns::Netlink,
    nft::Nft,
    routes::{self, Peer},
};
use network_lab::{self as lab, NODE_IP, Namespace};
use tokio_util::sync::CancellationToken;

const ID: &str = "0123abcd";

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
fn routes_to_pods_and_services_survive_that_the_nodes_address_goes() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let config = Config {
            id: ID.into(),
            state_dir: state.path().into(),
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            node_ips: vec![NODE_IP],
            mtu: 1500,
        };
        let network = config.build(Nft::new()).unwrap();
        let cidrs = vec!["10.42.0.0/24".parse().unwrap()];
        network.set_pod_cidrs(cidrs).await.unwrap();
        let shutdown = CancellationToken::new();
        let context = Context::standalone("network", shutdown.clone());
        let running = tokio::spawn(network.clone().run(context));
        let pod = Namespace::new();
        let request = AttachRequest {
            sandbox_id: "a".into(),
            netns: pod.path().into(),
            namespace: "default".into(),
            name: "a".into(),
            uid: "a".into(),
            ..AttachRequest::default()
        };
        network.attach(request).await.unwrap();
        pod.serve("pod", 8080).await;
        let ask = || lab::ask_here("10.42.0.1:8080".parse().unwrap());
        assert_eq!(ask().unwrap(), "pod 192.0.2.1");

        // The kernel drops routes with the removed source address.
        lab::command("ip address del 192.0.2.1/24 dev wire0");
        lab::command("ip address add 192.0.2.1/24 dev wire0");
        let from = |ip: &'static str| {
            move |shown: &str| {
                let of = |to: &str| {
                    let mut lines = shown.lines();
                    lines.any(|line| line.starts_with(to) && line.contains(&format!("src {ip} ")))
                };
                of("10.42.0.1 ") && of("10.43.0.0/16 ")
            }
        };
        until("a flap is repaired", "ip route", from("192.0.2.1")).await;
        assert_eq!(ask().unwrap(), "pod 192.0.2.1");

        lab::command("ip address del 192.0.2.1/24 dev wire0");
        lab::command("ip address add 192.0.2.7/24 dev wire0");
        let new: IpAddr = "192.0.2.7".parse().unwrap();
        network.set_node_ips(vec![new]).await.unwrap();
        until(
            "another address is the source",
            "ip route",
            from("192.0.2.7"),
        )
        .await;
        assert_eq!(ask().unwrap(), "pod 192.0.2.7");
        shutdown.cancel();
        running.await.unwrap().unwrap();
    });
}

#[test]
fn the_overlay_sends_from_the_nodes_address_of_now() {
    lab::node(|_| async move {
        lab::command("ip route add default via 192.0.2.2");
        lab::command("ip address add 192.0.2.7/24 dev wire0");
        let peer = |name: &str, address: &str, cidr: &str| Peer {
            name: name.into(),
            addresses: vec![address.parse().unwrap()],
            pod_cidrs: vec![cidr.parse().unwrap()],
        };
        let nodes = [
            peer("here", "192.0.2.1", "10.42.0.0/24"),
            peer("far", "198.51.100.9", "10.42.2.0/24"),
        ];
        let netlink = Netlink::here().unwrap();
        for address in ["192.0.2.1", "192.0.2.7"] {
            let config = routes::Config {
                id: ID.into(),
                cluster: "test".into(),
                node_name: "here".into(),
                node_ips: vec![address.parse().unwrap()],
                cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
                mtu: 1500,
            };
            let (_, node_list) = tokio::sync::watch::channel(None);
            let routes = config.build(Nft::new(), node_list);
            routes.sync(&netlink, &nodes).await.unwrap();
            let shown = lab::command("ip -d link show m0123abcd-vx");
            assert!(shown.contains(&format!("local {address} ")), "{shown}");
            let shown = lab::command("ip route; bridge fdb show dev m0123abcd-vx");
            assert!(shown.contains("10.42.2.0/24 via 10.42.2.0"), "{shown}");
            assert!(shown.contains("dst 198.51.100.9 "), "{shown}");
            // A second sync changes nothing.
            let before = lab::command("ip -o link show m0123abcd-vx");
            routes.sync(&netlink, &nodes).await.unwrap();
            assert_eq!(lab::command("ip -o link show m0123abcd-vx"), before);
        }
    });
}

#[test]
fn changes_of_addresses_and_of_the_default_route_are_noticed() {
    lab::node(|_| async move {
        let mut notices = AddressNotices::subscribe().unwrap();
        for change in [
            "ip address add 192.0.2.7/24 dev wire0",
            "ip route add default via 192.0.2.2",
            "ip address del 192.0.2.7/24 dev wire0",
        ] {
            lab::command(change);
            let noticed = tokio::time::timeout(Duration::from_secs(10), notices.changed()).await;
            noticed.expect(change).unwrap();
        }
    });
}

#[test]
fn the_overlay_leaves_room_for_its_headers_in_packets_of_the_nodes_link() {
    lab::node(|_| async move {
        lab::command("ip route add default via 192.0.2.2");
        lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
        lab::command("ip -6 route add default via 2001:db8::2");
        lab::command("ip link set wire0 mtu 1400");
        let netlink = Netlink::here().unwrap();
        for (own, far, link, expected) in [
            ("192.0.2.1", "198.51.100.9", 1400, 1350),
            // The link changed while the device is there.
            ("192.0.2.1", "198.51.100.9", 1380, 1330),
            // The outer header is longer.
            ("2001:db8::1", "2001:db8:2::9", 1380, 1310),
        ] {
            lab::command(&format!("ip link set wire0 mtu {link}"));
            let config = routes::Config {
                id: ID.into(),
                cluster: "test".into(),
                node_name: "here".into(),
                node_ips: vec![own.parse().unwrap()],
                cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
                mtu: 1500,
            };
            let peer = |name: &str, address: &str, cidr: &str| Peer {
                name: name.into(),
                addresses: vec![address.parse().unwrap()],
                pod_cidrs: vec![cidr.parse().unwrap()],
            };
            let nodes = [
                peer("here", own, "10.42.0.0/24"),
                peer("far", far, "10.42.2.0/24"),
            ];
            let (_, node_list) = tokio::sync::watch::channel(None);
            let routes = config.build(Nft::new(), node_list);
            routes.sync(&netlink, &nodes).await.unwrap();
            let shown = lab::command("ip link show m0123abcd-vx");
            assert!(
                shown.contains(&format!("mtu {expected} ")),
                "{own}: {shown}"
            );
        }
    });
}
