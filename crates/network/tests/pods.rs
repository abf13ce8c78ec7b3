//! Pods on a real kernel: each test is a node in a network namespace of its own.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, net::SocketAddr, path::Path, sync::Arc};

use network::{
    AttachRequest, Config, PodNetwork, PortMapping, Protocol, RoutedNetwork,
    lab::{self, NODE_IP, Namespace},
    netns::Netlink,
    nft::{Batch, Nft},
    routes::{self, Peer},
};

const ID: &str = "0123abcd";

fn config(state: &Path) -> Config {
    Config {
        id: ID.into(),
        state_dir: state.into(),
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
        node_ips: vec![NODE_IP],
        mtu: 1500,
    }
}

async fn network(state: &Path) -> Arc<RoutedNetwork> {
    let network = config(state).build(Nft::new()).unwrap();
    network
        .set_pod_cidrs(vec!["10.42.0.0/24".parse().unwrap()])
        .await
        .unwrap();
    network
}

fn request(sandbox: &str, pod: &Namespace) -> AttachRequest {
    AttachRequest {
        sandbox_id: sandbox.into(),
        netns: pod.path().into(),
        namespace: "default".into(),
        name: sandbox.into(),
        uid: sandbox.into(),
        port_mappings: vec![],
    }
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

#[test]
fn pods_reach_each_other_the_node_and_the_world() {
    lab::node(|outside| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let (a, b) = (Namespace::new(), Namespace::new());
        let first = network.attach(request("a", &a)).await.unwrap();
        let second = network.attach(request("b", &b)).await.unwrap();
        assert_eq!(
            first.addresses,
            ["10.42.0.1".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_eq!(second.interface, "eth0");
        b.serve("b", 8080).await;
        outside.serve("outside", 8080).await;
        lab::serve_here("node", 9090);
        assert_eq!(a.ask(at("10.42.0.2:8080")).await.unwrap(), "b 10.42.0.1");
        assert_eq!(
            a.ask_udp(at("10.42.0.2:8080")).await.unwrap(),
            "b 10.42.0.1"
        );
        assert_eq!(a.ask(at("192.0.2.1:9090")).await.unwrap(), "node 10.42.0.1");
        assert_eq!(lab::ask_here(at("10.42.0.2:8080")).unwrap(), "b 192.0.2.1");
        // What leaves the cluster comes from the node.
        assert_eq!(
            a.ask(at("192.0.2.2:8080")).await.unwrap(),
            "outside 192.0.2.1"
        );
        b.serve("loop", 81).await;
        assert_eq!(b.ask(at("127.0.0.1:81")).await.unwrap(), "loop 127.0.0.1");
    });
}

#[test]
fn host_ports_lead_to_the_pod_from_everywhere() {
    lab::node(|outside| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let (a, b) = (Namespace::new(), Namespace::new());
        let mut with_port = request("a", &a);
        with_port.port_mappings = vec![PortMapping {
            protocol: Protocol::Tcp,
            container_port: 80,
            host_port: 8080,
            host_ip: None,
        }];
        network.attach(with_port).await.unwrap();
        network.attach(request("b", &b)).await.unwrap();
        a.serve("a", 80).await;
        assert_eq!(
            outside.ask(at("192.0.2.1:8080")).await.unwrap(),
            "a 192.0.2.2"
        );
        assert_eq!(b.ask(at("192.0.2.1:8080")).await.unwrap(), "a 10.42.0.2");
        assert_eq!(lab::ask_here(at("192.0.2.1:8080")).unwrap(), "a 192.0.2.1");
        assert_eq!(
            a.ask(at("192.0.2.1:8080")).await.unwrap(),
            "a 192.0.2.1",
            "hairpin"
        );
        network.detach("a", None).await.unwrap();
        assert!(outside.ask(at("192.0.2.1:8080")).await.is_none());
    });
}

#[test]
fn attachments_survive_a_restart_and_are_repaired() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let first = network(state.path()).await;
        let (a, b) = (Namespace::new(), Namespace::new());
        let before = first.attach(request("a", &a)).await.unwrap();
        first.attach(request("b", &b)).await.unwrap();
        drop(first);
        lab::command("nft flush ruleset");
        a.command("ip link set eth0 down && ip route flush all || true")
            .await;
        let second = network(state.path()).await;
        assert_eq!(second.attachment("a").await, Some(before.clone()));
        assert_eq!(second.attach(request("a", &a)).await.unwrap(), before);
        a.serve("a", 80).await;
        assert_eq!(b.ask(at("10.42.0.1:80")).await.unwrap(), "a 10.42.0.2");
        second
            .retain(&BTreeSet::from(["a".to_owned()]))
            .await
            .unwrap();
        assert!(second.attachment("b").await.is_none());
        let routed = lab::command("ip route");
        assert!(routed.contains("10.42.0.1 "), "{routed}");
        assert!(!routed.contains("10.42.0.2 "), "{routed}");
    });
}

#[test]
fn detaching_twice_and_without_a_namespace_is_fine() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let pod = Namespace::new();
        network.attach(request("a", &pod)).await.unwrap();
        drop(pod);
        network
            .detach("a", Some(Path::new("/nowhere")))
            .await
            .unwrap();
        network.detach("a", None).await.unwrap();
        assert!(
            network
                .attach(request("b", &Namespace::new()))
                .await
                .is_ok()
        );
    });
}

#[test]
fn a_failed_attachment_leaves_nothing() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let mut request = request("a", &Namespace::new());
        request.netns = "/nowhere".into();
        assert!(network.attach(request).await.is_err());
        assert!(network.attachment("a").await.is_none());
        assert_eq!(
            std::fs::read_dir(state.path().join("addresses"))
                .unwrap()
                .count(),
            0
        );
    });
}

#[test]
fn cleaning_up_leaves_the_machine_as_it_was() {
    lab::node(|_| async move {
        lab::command("nft add table inet somebody-else");
        let before = lab::inventory();
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let pod = Namespace::new();
        network.attach(request("a", &pod)).await.unwrap();
        let (_, nodes) = tokio::sync::watch::channel(vec![]);
        let routes = node_routes().build(Nft::new(), nodes);
        routes
            .sync(&Netlink::here().unwrap(), &peers())
            .await
            .unwrap();
        let routed = lab::command("ip route");
        assert!(
            routed.contains("10.42.1.0/24 via 192.0.2.2 dev wire0"),
            "{routed}"
        );
        assert!(
            routed.contains("10.42.2.0/24 via 10.42.2.0 dev m0123abcd-vx"),
            "{routed}"
        );
        routes
            .sync(&Netlink::here().unwrap(), &peers()[..2])
            .await
            .unwrap();
        assert!(!lab::command("ip route").contains("10.42.2.0"));
        assert!(lab::command("ip route").contains("10.43.0.0/16 dev lo"));
        assert_ne!(lab::inventory(), before);
        network::cleanup(ID).await.unwrap();
        assert_eq!(lab::inventory(), before);
        network::cleanup(ID).await.unwrap();
    });
}

fn node_routes() -> routes::Config {
    routes::Config {
        id: ID.into(),
        cluster: "test".into(),
        node_name: "here".into(),
        node_ips: vec![NODE_IP],
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        mtu: 1500,
    }
}

fn peers() -> Vec<Peer> {
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

#[test]
fn a_refused_batch_changes_nothing_and_says_why() {
    lab::node(|_| async move {
        let nft = Nft::new();
        let mut batch = Batch::new();
        batch.push("add table inet kept");
        nft.apply(&batch).await.unwrap();
        let mut batch = Batch::new();
        batch.push("add table inet lost");
        batch.push("add rule inet lost nochain accept");
        let error = nft.apply(&batch).await.unwrap_err().to_string();
        assert!(error.contains("nochain"), "{error}");
        assert_eq!(lab::command("nft list tables"), "table inet kept\n");
    });
}

#[test]
fn the_session_lives_on_after_its_process_was_killed() {
    lab::node(|_| async move {
        let nft = Nft::new();
        let mut batch = Batch::new();
        batch.push("add table inet one");
        nft.apply(&batch).await.unwrap();
        let process = nft.process_id().await.unwrap();
        lab::command(&format!("kill -9 {process}"));
        // The first may meet the dead session and must say so; then a new one is there.
        let _ = nft.apply(&batch).await;
        nft.apply(&batch).await.unwrap();
        assert_eq!(lab::command("nft list tables"), "table inet one\n");
    });
}
