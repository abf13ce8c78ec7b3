//! Pods on a real kernel: each test is a node in a network namespace of its own.

#![allow(clippy::unwrap_used)]

mod forged;
mod nodes;

use std::{
    collections::BTreeSet,
    net::{SocketAddr, UdpSocket},
    path::Path,
    sync::Arc,
};

use network::{
    AttachRequest, Config, PodNetwork, PortMapping, Protocol, RoutedNetwork,
    netns::Netlink,
    nft::{Batch, Nft},
};
use network_lab::{self as lab, NODE_IP, Namespace};
use nodes::{node_routes, peers};

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
        ..AttachRequest::default()
    }
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

#[test]
fn pods_reach_each_other_the_node_and_the_world() {
    lab::node(|outside| async move {
        let state = tempfile::tempdir().unwrap();
        lab::command("ip link set wire0 mtu 1400");
        let network = network(state.path()).await;
        let (a, b) = (Namespace::new(), Namespace::new());
        let first = network.attach(request("a", &a)).await.unwrap();
        assert!(a.command("ip link show eth0").await.contains("mtu 1400"));
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
        // Traffic that leaves the cluster has the node's source address.
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
        assert_eq!(lab::ask_here(at("127.0.0.1:8080")).unwrap(), "a 192.0.2.1");
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
fn host_ports_may_have_an_address_and_every_protocol() {
    lab::node(|outside| async move {
        let state = tempfile::tempdir().unwrap();
        lab::command("ip address add 192.0.2.77/24 dev wire0");
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
        let pod = Namespace::new();
        let mut with_ports = request("a", &pod);
        let port = |protocol, host_port, host_ip: Option<&str>| PortMapping {
            protocol,
            container_port: 80,
            host_port,
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        };
        with_ports.port_mappings = vec![
            port(Protocol::Tcp, 8080, Some("192.0.2.1")),
            port(Protocol::Tcp, 8081, Some("2001:db8::1")),
            port(Protocol::Udp, 8082, None),
            port(Protocol::Tcp, 8083, Some("0.0.0.0")),
            port(Protocol::Sctp, 8084, None),
            port(Protocol::Sctp, 8085, Some("192.0.2.1")),
        ];
        network.attach(with_ports).await.unwrap();
        pod.serve("a", 80).await;
        for (to, answers) in [
            ("192.0.2.1:8080", true),
            ("192.0.2.77:8080", false),
            ("[2001:db8::1]:8080", false),
            ("[2001:db8::1]:8081", true),
            ("192.0.2.1:8081", false),
            ("192.0.2.77:8083", true),
            ("192.0.2.1:8082", false),
            ("192.0.2.1:8084", false),
        ] {
            assert_eq!(outside.ask(at(to)).await.is_some(), answers, "{to}");
        }
        for to in ["192.0.2.77:8082", "[2001:db8::1]:8082"] {
            assert!(outside.ask_udp(at(to)).await.is_some(), "{to}");
        }
        pod.serve_sctp("a", 80).await;
        for (to, answers) in [
            ("192.0.2.77:8084", true),
            ("192.0.2.1:8085", true),
            ("192.0.2.77:8085", false),
        ] {
            assert_eq!(outside.ask_sctp(at(to)).await.is_some(), answers, "{to}");
        }
        let rules = lab::command("nft list table inet mainstay-0123abcd");
        for element in [
            "sctp . 8084 : 10.42.0.1 . 80",
            "192.0.2.1 . sctp . 8085 : 10.42.0.1 . 80",
        ] {
            assert!(rules.contains(element), "{rules}");
        }
        network.detach("a", None).await.unwrap();
        assert!(!lab::command("nft list ruleset").contains("sctp"));
    });
}

#[test]
fn a_host_port_that_a_process_of_the_node_listens_on_is_refused() {
    lab::node(|outside| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let own = UdpSocket::bind("0.0.0.0:5353").unwrap();
        let api = std::net::TcpListener::bind("0.0.0.0:6443").unwrap();
        let inside = std::net::TcpListener::bind("127.0.0.1:8080").unwrap();
        let pod = Namespace::new();
        let with_port = |protocol, host_port, host_ip| {
            let mut with_port = request("a", &pod);
            with_port.port_mappings = vec![PortMapping {
                protocol,
                container_port: 80,
                host_port,
                host_ip,
            }];
            with_port
        };
        // The last one is that of the overlay, which does not exist yet.
        for (protocol, port) in [
            (Protocol::Tcp, 6443),
            (Protocol::Udp, 5353),
            (Protocol::Udp, 8472),
        ] {
            for host_ip in [None, Some(NODE_IP), "0.0.0.0".parse().ok()] {
                let refused = network.attach(with_port(protocol, port, host_ip)).await;
                let why = refused.unwrap_err().to_string();
                assert!(why.contains("is in use by a process of the node"), "{why}");
                assert!(network.attachment("a").await.is_none());
            }
        }
        // A process that listens on the loopback only does not serve the node's address.
        let attached = with_port(Protocol::Tcp, 8080, None);
        network.attach(attached.clone()).await.unwrap();
        pod.serve("a", 80).await;
        let answer = outside.ask(at("192.0.2.1:8080")).await;
        assert_eq!(answer.unwrap(), "a 192.0.2.2");
        drop((own, api, inside));
        // An attached pod keeps its port, also if a process listens on it later.
        let later = std::net::TcpListener::bind("0.0.0.0:8080").unwrap();
        network.attach(attached).await.unwrap();
        drop(later);
    });
}

#[test]
fn changed_rules_of_the_pod_network_are_restored() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let pod = Namespace::new();
        let mut with_port = request("a", &pod);
        with_port.port_mappings = vec![network::PortMapping {
            protocol: Protocol::Tcp,
            container_port: 80,
            host_port: 8080,
            host_ip: None,
        }];
        network.attach(with_port).await.unwrap();
        let table = format!("inet mainstay-{ID}");
        let shown = || lab::command(&format!("nft -s list table {table}"));
        let before = shown();
        network.repair().await.unwrap();
        for change in [
            format!("flush table {table}"),
            format!("flush chain {table} sources"),
            format!("flush map {table} hostports4"),
            format!("add rule {table} loopback accept"),
        ] {
            lab::command(&format!("nft '{change}'"));
            assert_ne!(shown(), before, "{change}");
            network.repair().await.unwrap();
            assert_eq!(shown(), before, "{change}");
        }
    });
}

#[test]
fn pod_traffic_passes_docker_and_removed_rules_are_restored() {
    lab::node(|outside| async move {
        let docker = "nft 'add table ip filter; \
            add chain ip filter DOCKER-USER; \
            add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }; \
            add rule ip filter FORWARD jump DOCKER-USER'";
        lab::command(docker);
        let before = lab::inventory();
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let pod = Namespace::new();
        network.attach(request("a", &pod)).await.unwrap();
        outside.serve("outside", 80).await;
        assert_eq!(
            pod.ask(at("192.0.2.2:80")).await.unwrap(),
            "outside 192.0.2.1"
        );
        lab::command("nft flush ruleset");
        lab::command(docker);
        network.repair().await.unwrap();
        network.repair().await.unwrap();
        assert_eq!(
            lab::command("nft list chain ip filter DOCKER-USER")
                .matches("accept")
                .count(),
            2
        );
        assert_eq!(
            pod.ask(at("192.0.2.2:80")).await.unwrap(),
            "outside 192.0.2.1"
        );
        network::cleanup(ID).await.unwrap();
        assert_eq!(lab::inventory(), before);
    });
}

/// The effect of firewalld's default zone: everything unknown is rejected.
const FIREWALLD: &str = "nft 'add table inet firewalld; \
    add chain inet firewalld filter_INPUT { type filter hook input priority filter + 10; }; \
    add rule inet firewalld filter_INPUT ct state { established, related } accept; \
    add rule inet firewalld filter_INPUT iifname \"lo\" accept; \
    add rule inet firewalld filter_INPUT reject with icmpx admin-prohibited; \
    add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10; }; \
    add rule inet firewalld filter_FORWARD ct state { established, related } accept; \
    add rule inet firewalld filter_FORWARD ct status dnat accept; \
    add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited'";

/// The effect of `ufw enable`.
const UFW: &str = "nft 'add table ip filter; \
    add chain ip filter ufw-user-input; add chain ip filter ufw-user-forward; \
    add chain ip filter INPUT { type filter hook input priority filter; policy drop; }; \
    add rule ip filter INPUT iifname \"lo\" accept; \
    add rule ip filter INPUT ct state { established, related } accept; \
    add rule ip filter INPUT jump ufw-user-input; \
    add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }; \
    add rule ip filter FORWARD ct state { established, related } accept; \
    add rule ip filter FORWARD jump ufw-user-forward'";

#[test]
fn pods_pass_firewalld_and_ufw_and_others_do_not() {
    for firewall in [FIREWALLD, UFW] {
        lab::node(|outside| async move {
            lab::command(firewall);
            let before = lab::inventory();
            let state = tempfile::tempdir().unwrap();
            let network = network(state.path()).await;
            let (a, b) = (Namespace::new(), Namespace::new());
            network.attach(request("a", &a)).await.unwrap();
            network.attach(request("b", &b)).await.unwrap();
            outside.serve("outside", 80).await;
            lab::serve_here("node", 9090);
            b.serve("b", 80).await;
            let answer = a.ask(at("192.0.2.2:80")).await;
            assert_eq!(answer.as_deref(), Some("outside 192.0.2.1"), "{firewall}");
            assert_eq!(a.ask(at("10.42.0.2:80")).await.unwrap(), "b 10.42.0.1");
            assert_eq!(a.ask(at("192.0.2.1:9090")).await.unwrap(), "node 10.42.0.1");
            // Other traffic is still blocked by the firewall.
            assert_eq!(outside.ask(at("192.0.2.1:9090")).await, None);
            network.detach("a", None).await.unwrap();
            network.detach("b", None).await.unwrap();
            network::cleanup(ID).await.unwrap();
            assert_eq!(lab::inventory(), before);
        });
    }
}

#[test]
fn a_pod_cannot_reach_the_nodes_loopback() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let pod = Namespace::new();
        network.attach(request("a", &pod)).await.unwrap();
        lab::serve_here("node", 9090);
        // A pod that is root in its namespace can route its loopback to the node.
        pod.command("ip address flush dev lo && ip route flush table local dev lo")
            .await;
        pod.command("ip route add 127.0.0.1 via 169.254.1.1 dev eth0 src 10.42.0.1")
            .await;
        assert_eq!(pod.ask(at("127.0.0.1:9090")).await, None);
        let dropped = lab::command("nft list chain inet mainstay-0123abcd loopback");
        assert!(dropped.contains("counter packets"), "{dropped}");
        assert!(
            !dropped.contains("counter packets 0"),
            "it was sent: {dropped}"
        );
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
        assert!(!lab::command("ip link").contains("m0123abcdzzzzzz"));
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
        let records = std::fs::read_dir(state.path().join("addresses")).unwrap();
        let names = records.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["ranges"]);
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
        let (_, nodes) = tokio::sync::watch::channel(None);
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
fn the_nft_session_restarts_after_its_process_was_killed() {
    lab::node(|_| async move {
        let nft = Nft::new();
        let mut batch = Batch::new();
        batch.push("add table inet one");
        nft.apply(&batch).await.unwrap();
        let process = nft.process_id().await.unwrap();
        lab::command(&format!("kill -9 {process}"));
        // The first may hit the dead session and fail; then there is a new one.
        let _ = nft.apply(&batch).await;
        nft.apply(&batch).await.unwrap();
        assert_eq!(lab::command("nft list tables"), "table inet one\n");
    });
}

#[test]
fn pods_have_addresses_of_both_families() {
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
        let (a, b) = (Namespace::new(), Namespace::new());
        network.attach(request("a", &a)).await.unwrap();
        let attached = network.attach(request("b", &b)).await.unwrap();
        assert_eq!(attached.addresses[1].to_string(), "fd00:42::2");
        b.serve("b", 80).await;
        outside.serve("outside", 80).await;
        assert_eq!(a.ask(at("[fd00:42::2]:80")).await.unwrap(), "b fd00:42::1");
        assert_eq!(a.ask(at("10.42.0.2:80")).await.unwrap(), "b 10.42.0.1");
        assert_eq!(
            lab::ask_here(at("[fd00:42::2]:80")).unwrap(),
            "b 2001:db8::1"
        );
        assert_eq!(
            a.ask(at("[2001:db8::2]:80")).await.unwrap(),
            "outside 2001:db8::1"
        );
    });
}

#[test]
fn no_packet_is_lost_after_attaching() {
    lab::node(|_| async move {
        let state = tempfile::tempdir().unwrap();
        let network = network(state.path()).await;
        let pods: Vec<Namespace> = (0..20).map(|_| Namespace::new()).collect();
        lab::serve_here("node", 9090);
        for (number, pod) in pods.iter().enumerate() {
            network
                .attach(request(&format!("pod-{number}"), pod))
                .await
                .unwrap();
            assert!(
                pod.ask_udp(at("192.0.2.1:9090")).await.is_some(),
                "the first datagram is lost"
            );
        }
    });
}
