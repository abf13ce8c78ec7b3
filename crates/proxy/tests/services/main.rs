//! Services on a real kernel: each test is a node in a network namespace of its own, with pods.

#![allow(clippy::unwrap_used)]

mod health;
mod node_ports;
mod pool;
mod tenants;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use lifecycle::Context;
use network::{
    AttachRequest, PodNetwork, RoutedNetwork,
    nft::{Batch, Nft},
};
use network_lab::{self as lab, NODE_IP, Namespace};
use proxy::{
    Config, DnsRedirect, Sources,
    endpoints::NodeTopology,
    rules::contribution,
    ruleset::{Datagrams, Ruleset},
    service::{Policy, views},
    table::Frame,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const ID: &str = "0123abcd";
const PATIENCE: Duration = Duration::from_secs(10);

/// A node with the pod network and the proxy, with fake informers.
struct Node {
    outside: Arc<Namespace>,
    network: Arc<RoutedNetwork>,
    sources: Sources,
    pods: Vec<Namespace>,
    _state: tempfile::TempDir,
}

fn unreachable_client() -> kube::Client {
    let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    kube::Client::new(unreachable, "default")
}

impl Node {
    async fn start(outside: Arc<Namespace>, dns: Option<DnsRedirect>) -> Self {
        Self::start_at(outside, dns, &[]).await
    }

    /// With node ports only at addresses of these ranges.
    async fn start_at(
        outside: Arc<Namespace>,
        dns: Option<DnsRedirect>,
        node_port_addresses: &[&str],
    ) -> Self {
        let state = tempfile::tempdir().unwrap();
        let nft = Nft::new();
        let network = network::Config {
            id: ID.into(),
            state_dir: state.path().into(),
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            node_ips: vec![NODE_IP],
            mtu: 1500,
        };
        let network = network.build(nft.clone()).unwrap();
        network
            .set_pod_cidrs(vec!["10.42.0.0/24".parse().unwrap()])
            .await
            .unwrap();
        let client = unreachable_client();
        let sources = Sources::offline(&client);
        let proxy = Config {
            id: ID.into(),
            client,
            node_name: "here".into(),
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
            dns,
            allow_external_ips: false,
            health: Some(at("0.0.0.0:10256")),
            metrics: Some(at("127.0.0.1:10249")),
            node_ips: vec![NODE_IP],
            node_port_addresses: node_port_addresses
                .iter()
                .map(|range| range.parse().unwrap())
                .collect(),
            clock: Arc::new(stdx::SystemClock),
        };
        let proxy = proxy.build(nft);
        let follow = sources.clone();
        tokio::spawn(async move {
            let context = Context::standalone("proxy", CancellationToken::new());
            proxy.follow(follow, &context).await.unwrap();
        });
        Self {
            outside,
            network,
            sources,
            pods: Vec::new(),
            _state: state,
        }
    }

    /// Starts pods that answer with their name: `pod-0` at 10.42.0.1, and so on.
    async fn run_pods(&mut self, count: usize) {
        for number in 0..count {
            let pod = Namespace::new();
            let name = format!("pod-{number}");
            let request = AttachRequest {
                sandbox_id: name.clone(),
                netns: pod.path().into(),
                namespace: "default".into(),
                name: name.clone(),
                uid: name.clone(),
                port_mappings: vec![],
                ..AttachRequest::default()
            };
            self.network.attach(request).await.unwrap();
            pod.serve(&name, 8080).await;
            self.pods.push(pod);
        }
    }

    fn service(&self, spec: Value) {
        self.sources.services.upsert(service("web", spec));
    }

    fn endpoints(&self, endpoints: Value) {
        self.sources.slices.upsert(slice("web", endpoints));
    }

    /// Waits until the table contains the text, or does not.
    async fn table_has(&self, text: &str, wanted: bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let rules = lab::command("nft list ruleset");
            if rules.contains(text) == wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{text:?} wanted: {wanted} in\n{rules}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn service(name: &str, spec: Value) -> k8s_openapi::api::core::v1::Service {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"],
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"},
                           {"name": "udp", "port": 80, "protocol": "UDP"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    if let Some(status) = object["spec"].as_object_mut().unwrap().remove("status") {
        object["status"] = status;
    }
    serde_json::from_value(object).unwrap()
}

fn slice(name: &str, endpoints: Value) -> k8s_openapi::api::discovery::v1::EndpointSlice {
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{name}-1"), "namespace": "default", "uid": name,
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"},
                  {"name": "udp", "port": 8080, "protocol": "UDP"}],
        "endpoints": endpoints,
    }))
    .unwrap()
}

fn here(addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| json!({"addresses": [address], "nodeName": "here"});
    addresses.iter().map(endpoint).collect()
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn vip() -> SocketAddr {
    at("10.43.0.9:80")
}

#[test]
fn a_cluster_address_is_served_by_all_endpoints_for_pods_and_the_node() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(4).await;
        node.service(json!({}));
        node.endpoints(here(&["10.42.0.1", "10.42.0.2", "10.42.0.3"]));
        node.table_has("pick-cluster4-3", true).await;
        let client = &node.pods[3];
        let mut answers = BTreeSet::new();
        for _ in 0..60 {
            answers.insert(client.ask(vip()).await.unwrap());
        }
        let expected = ["pod-0 10.42.0.4", "pod-1 10.42.0.4", "pod-2 10.42.0.4"];
        assert_eq!(answers, expected.map(str::to_owned).into());
        assert!(client.ask_udp(vip()).await.unwrap().starts_with("pod-"));
        assert!(lab::ask_here(vip()).unwrap().ends_with(" 192.0.2.1"));
        assert!(lab::ask_udp_here(vip()).unwrap().ends_with(" 192.0.2.1"));
        node.endpoints(here(&["10.42.0.2"]));
        node.table_has("goto pick-cluster4-1", true).await;
        for _ in 0..10 {
            assert_eq!(client.ask(vip()).await.unwrap(), "pod-1 10.42.0.4");
        }
    });
}

/// Many kernels have no SCTP sockets; raw ones send the first packets.
#[test]
fn sctp_services_are_served_for_pods_the_node_and_from_outside() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(2).await;
        node.pods[0].serve_sctp("pod-0", 8132).await;
        let port = json!([{"name": "signal", "port": 3868, "protocol": "SCTP", "nodePort": 30132}]);
        let mut slice = slice("web", here(&["10.42.0.1"]));
        let ports = json!([{"name": "signal", "port": 8132, "protocol": "SCTP"},
                           {"name": "signal", "port": 9, "protocol": "TCP"}]);
        slice.ports = serde_json::from_value(ports).unwrap();
        node.sources.slices.upsert(slice);
        node.service(json!({"type": "NodePort", "ports": port}));
        node.table_has("10.43.0.9 . sctp . 3868 : 10.42.0.1 . 8132", true)
            .await;
        node.table_has("sctp . 30132 : 10.42.0.1 . 8132", true)
            .await;
        let (cluster_ip, node_port) = (at("10.43.0.9:3868"), at("192.0.2.1:30132"));
        for affinity in ["None", "ClientIP"] {
            node.service(json!({"type": "NodePort", "ports": port, "sessionAffinity": affinity}));
            let is_sticky = affinity == "ClientIP";
            node.table_has("10.43.0.9 . sctp . 3868 : goto", is_sticky)
                .await;
            for to in [cluster_ip, node_port] {
                let from_pod = node.pods[1].ask_sctp(to).await;
                let masked = if to == cluster_ip {
                    "10.42.0.2"
                } else {
                    "192.0.2.1"
                };
                assert_eq!(from_pod, Some(format!("pod-0 {masked}")), "{to}");
                assert!(lab::ask_sctp_here(to).is_some(), "{to} from the node");
            }
            let from_itself = node.pods[0].ask_sctp(cluster_ip).await;
            assert!(from_itself.is_some(), "a pod reaches itself");
            let from_outside = node.outside.ask_sctp(node_port).await;
            assert_eq!(from_outside, Some("pod-0 192.0.2.1".into()));
        }
        node.table_has("10.42.0.1 . 9", false).await;
        node.service(json!({"type": "ClusterIP", "ports": []}));
        node.table_has("sctp", false).await;
    });
}

#[test]
fn half_closed_connections_are_tracked_for_an_hour() {
    lab::node(|outside| async move {
        let _node = Node::start(outside, None).await;
        let file = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
        let deadline = Instant::now() + PATIENCE;
        while std::fs::read_to_string(file).unwrap_or_default().trim() != "3600" {
            assert!(Instant::now() < deadline, "{file} is not set");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        node.service(json!({}));
        node.endpoints(here(&["10.42.0.1"]));
        node.table_has("pick-cluster4-1", true).await;
        assert_eq!(node.pods[0].ask(vip()).await.unwrap(), "pod-0 192.0.2.1");
        assert_eq!(
            node.pods[0].ask_udp(vip()).await.unwrap(),
            "pod-0 192.0.2.1"
        );
    });
}

#[test]
fn a_node_port_is_served_from_outside_from_pods_and_from_the_node() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(2).await;
        let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
        node.service(json!({"type": "NodePort", "ports": ports}));
        node.endpoints(here(&["10.42.0.1"]));
        node.table_has("pick-nodeport4-1", true).await;
        let to = at("192.0.2.1:30080");
        assert_eq!(node.outside.ask(to).await.unwrap(), "pod-0 192.0.2.1");
        assert_eq!(node.pods[1].ask(to).await.unwrap(), "pod-0 192.0.2.1");
        assert_eq!(lab::ask_here(to).unwrap(), "pod-0 192.0.2.1");
        assert_eq!(
            lab::ask_here(at("127.0.0.1:30080")).unwrap(),
            "pod-0 192.0.2.1"
        );
        // Policy Local keeps the client's address.
        node.service(json!({"type": "NodePort", "ports": ports, "externalTrafficPolicy": "Local"}));
        node.table_has("pick-outside-nodeport4-1", true).await;
        assert_eq!(node.outside.ask(to).await.unwrap(), "pod-0 192.0.2.2");
        // Without a local endpoint, clients outside get no answer; pods still do.
        node.endpoints(json!([{"addresses": ["10.42.0.1"], "nodeName": "there"}]));
        node.table_has("tcp . 30080 : drop", true).await;
        assert!(node.outside.ask(to).await.is_none());
        assert!(!node.outside.is_refused(to).await, "dropped, not rejected");
        assert!(node.pods[1].ask(to).await.unwrap().starts_with("pod-0"));
    });
}

#[test]
fn a_service_without_endpoints_is_refused_at_once() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
        node.service(json!({"type": "NodePort", "ports": ports}));
        node.table_has("tcp . 30080", true).await;
        assert!(node.pods[0].is_refused(vip()).await, "a pod");
        let no_port = at("10.43.7.7:1234");
        assert!(node.pods[0].is_refused(no_port).await, "a pod at no port");
        assert!(lab::is_refused_here(vip()), "the node");
        let node_port = at("192.0.2.1:30080");
        assert!(node.outside.is_refused(node_port).await, "a host outside");
    });
}

#[test]
fn a_client_with_affinity_keeps_its_endpoint() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(4).await;
        let affinity = |seconds: u32| {
            json!({"sessionAffinity": "ClientIP",
                   "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
        };
        node.service(affinity(600));
        node.endpoints(here(&["10.42.0.1", "10.42.0.2", "10.42.0.3"]));
        node.table_has("goto choose-", true).await;
        let first = node.pods[3].ask(vip()).await.unwrap();
        for _ in 0..20 {
            assert_eq!(node.pods[3].ask(vip()).await.unwrap(), first);
        }
        // Another timeout, other endpoints, and none: every change of chains and sets must be
        // valid.
        node.service(affinity(300));
        node.table_has("timeout 5m", true).await;
        node.endpoints(here(&["10.42.0.2"]));
        node.table_has("dnat ip to 10.42.0.1:8080", false).await;
        assert_eq!(node.pods[3].ask(vip()).await.unwrap(), "pod-1 10.42.0.4");
        node.sources.services.remove("default", "web");
        node.table_has("choose-", false).await;
        node.table_has("clients-", false).await;
    });
}

#[test]
fn load_balancer_addresses_are_served_to_admitted_sources() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        let spec = |range: &str| {
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [range],
                   "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}})
        };
        node.outside
            .command("ip route add 203.0.113.7 via 192.0.2.1")
            .await;
        node.service(spec("192.0.2.0/24"));
        node.endpoints(here(&["10.42.0.1"]));
        node.table_has("pick-external4-1", true).await;
        let to = at("203.0.113.7:80");
        assert_eq!(node.outside.ask(to).await.unwrap(), "pod-0 192.0.2.1");
        node.service(spec("198.51.100.0/24"));
        node.table_has("198.51.100.0/24", true).await;
        assert!(node.outside.ask(to).await.is_none());
    });
}

#[test]
fn a_load_balancer_at_the_nodes_address_leaves_ports_to_processes_that_listen() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        let listener = tokio::net::TcpListener::bind("0.0.0.0:80").await.unwrap();
        let balancer = json!({"type": "LoadBalancer",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"},
                      {"name": "other", "port": 81, "protocol": "TCP"}],
            "status": {"loadBalancer": {"ingress": [{"ip": NODE_IP.to_string()}]}}});
        node.endpoints(here(&["10.42.0.1"]));
        node.service(balancer.clone());
        node.table_has(&format!("{NODE_IP} . tcp . 81"), true).await;
        node.table_has(&format!("{NODE_IP} . tcp . 80"), false)
            .await;
        drop(listener);
        node.service(balancer);
        node.table_has(&format!("{NODE_IP} . tcp . 80"), true).await;
    });
}

#[test]
fn datagrams_follow_the_endpoints() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(4).await;
        node.service(json!({}));
        node.endpoints(here(&["10.42.0.1"]));
        node.table_has("pick-cluster4-1", true).await;
        let bind = || async {
            let any = || std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            let socket = network::netns::run(node.pods[3].path(), any).await.unwrap();
            let patience = Some(Duration::from_millis(100));
            socket.set_read_timeout(patience).unwrap();
            socket
        };
        let ask_once = |socket: &std::net::UdpSocket| {
            let mut buffer = [0; 64];
            socket.send_to(b"?", vip()).unwrap();
            let length = socket.recv(&mut buffer).unwrap_or(0);
            String::from_utf8_lossy(&buffer[..length])
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        };
        let ask = |socket: &std::net::UdpSocket, wanted: &str| {
            let deadline = Instant::now() + PATIENCE;
            while ask_once(socket) != wanted {
                assert!(Instant::now() < deadline, "no answer from {wanted}");
            }
        };
        let first = bind().await;
        ask(&first, "pod-0");
        // A conversation stays with an endpoint that still serves, as a connection does. That of another client shows when
        // entries have been deleted.
        let with_leaving = |ready: &str| {
            let mut endpoints = here(&[ready]);
            let leaving = json!({"addresses": ["10.42.0.1"], "nodeName": "here",
                "conditions": {"ready": false, "serving": true, "terminating": true}});
            endpoints.as_array_mut().unwrap().push(leaving);
            endpoints
        };
        let second = bind().await;
        node.endpoints(with_leaving("10.42.0.2"));
        node.table_has("10.42.0.2 . 8080", true).await;
        ask(&second, "pod-1");
        node.endpoints(with_leaving("10.42.0.3"));
        ask(&second, "pod-2");
        let deadline = Instant::now() + PATIENCE;
        let answer = loop {
            let answer = ask_once(&first);
            if !answer.is_empty() {
                break answer;
            }
            assert!(Instant::now() < deadline, "the conversation got no answer");
        };
        assert_eq!(answer, "pod-0");
        // The same client port: without deleting the conntrack entry, the kernel would keep pod-0.
        node.endpoints(here(&["10.42.0.2"]));
        ask(&first, "pod-1");
    });
}

#[test]
fn the_cluster_dns_address_leads_to_the_nodes_listener() {
    lab::node(|outside| async move {
        let dns_ip: IpAddr = "10.43.0.10".parse().unwrap();
        let dns = DnsRedirect {
            cluster_dns: vec![dns_ip],
            listeners: vec![at("192.0.2.1:10053")],
        };
        let mut node = Node::start(outside, Some(dns)).await;
        node.run_pods(1).await;
        lab::serve_here("dns", 10053);
        node.table_has("10.43.0.10", true).await;
        let to = SocketAddr::new(dns_ip, 53);
        assert_eq!(node.pods[0].ask_udp(to).await.unwrap(), "dns 10.42.0.1");
        assert_eq!(node.pods[0].ask(to).await.unwrap(), "dns 10.42.0.1");
        assert_eq!(lab::ask_udp_here(to).unwrap(), "dns 192.0.2.1");
        assert_eq!(lab::ask_here(to).unwrap(), "dns 192.0.2.1");
        // Hosts outside are not served, neither at the node's address nor at the cluster's.
        node.outside
            .command("ip route add 10.43.0.0/16 via 192.0.2.1")
            .await;
        assert_eq!(node.outside.ask(to).await, None);
        assert_eq!(node.outside.ask(at("192.0.2.1:10053")).await, None);
    });
}

#[test]
fn services_of_both_families_are_served() {
    lab::node(|outside| async move {
        lab::command("ip address add 2001:db8::1/64 dev wire0 nodad");
        outside
            .command("ip address add 2001:db8::2/64 dev wire1 nodad")
            .await;
        let node = Node::start(outside, None).await;
        let ips = json!(["10.43.0.9", "fd00:43::9"]);
        let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
        node.service(json!({"type": "NodePort", "clusterIPs": ips, "ports": ports}));
        let mut v6 = slice(
            "web",
            json!([{"addresses": ["2001:db8::2"], "nodeName": "there"}]),
        );
        v6.address_type = "IPv6".into();
        node.sources.slices.upsert(v6);
        node.outside.serve("outside", 8080).await;
        node.table_has("goto pick-nodeport6-1", true).await;
        lab::command("ip route add fd00:43::/112 dev lo src 2001:db8::1");
        assert_eq!(
            lab::ask_here(at("[fd00:43::9]:80")).unwrap(),
            "outside 2001:db8::1"
        );
        assert_eq!(
            lab::ask_here(at("[2001:db8::1]:30080")).unwrap(),
            "outside 2001:db8::1"
        );
    });
}

#[test]
fn cleaning_up_removes_the_services_too() {
    lab::node(|outside| async move {
        let before = lab::inventory();
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        node.service(json!({"sessionAffinity": "ClientIP"}));
        node.endpoints(here(&["10.42.0.1"]));
        node.table_has("goto choose-", true).await;
        network::cleanup(ID).await.unwrap();
        assert_eq!(lab::inventory(), before);
    });
}

fn frame() -> Frame {
    Frame {
        id: ID.into(),
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
        dns: None,
        node_port_addresses: Vec::new(),
    }
}

#[test]
fn a_change_among_five_thousand_services_is_as_small_as_among_two() {
    lab::node(|_| async move {
        let mut changes = Vec::new();
        for others in [2, 5000] {
            let (nft, mut ruleset) = (Nft::new(), Ruleset::new(frame()));
            for number in 0..others {
                let ip = format!("10.43.{}.{}", 100 + number / 250, number % 250 + 1);
                let endpoint = format!("10.42.{}.{}", number / 250, number % 250 + 1);
                change(&mut ruleset, number, &ip, &[&endpoint, "10.42.0.1"]);
            }
            nft.apply(&ruleset.full()).await.unwrap();
            let mut statements = Vec::new();
            for endpoints in [&["10.42.0.1", "10.42.0.2"][..], &["10.42.0.2"], &[]] {
                let batch = change(&mut ruleset, 5000, "10.43.0.9", endpoints);
                nft.apply(&batch).await.unwrap();
                statements.extend(batch.statements().to_vec());
            }
            changes.push(statements);
        }
        assert_eq!(changes[0], changes[1]);
    });
}

#[test]
fn a_service_that_had_a_thousand_endpoints_leaves_nothing_of_them() {
    lab::node(|_| async move {
        let (nft, mut ruleset) = (Nft::new(), Ruleset::new(frame()));
        let many: Vec<String> = (0..1000)
            .map(|number| format!("10.42.{}.{}", number / 250, number % 250 + 1))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        change(&mut ruleset, 1, "10.43.0.9", &many[..1]);
        change(&mut ruleset, 2, "10.43.0.10", &many[..3]);
        nft.apply(&ruleset.full()).await.unwrap();
        let before = lab::inventory();
        for endpoints in [&many[..], &many[..500], &many[..1]] {
            let batch = change(&mut ruleset, 1, "10.43.0.9", endpoints);
            nft.apply(&batch).await.unwrap();
            assert_eq!(
                lab::inventory().matches("chain to-endpoints4-").count(),
                endpoints.len().max(3)
            );
        }
        // The order of equal lines is the kernel's.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&lab::inventory()), sorted(&before));
    });
}

fn change(ruleset: &mut Ruleset, number: u32, ip: &str, endpoints: &[&str]) -> Batch {
    let name = format!("web-{number}");
    let service = service(&name, json!({"clusterIP": ip, "clusterIPs": [ip]}));
    let place = NodeTopology {
        node: "here".into(),
        zone: None,
    };
    let wanted = views(
        &service,
        &[&slice(&name, here(endpoints))],
        &place,
        Policy::default(),
    );
    let mut batch = Batch::new();
    let key = ("default".to_owned(), name);
    ruleset.set(
        &key,
        contribution(&wanted),
        &mut batch,
        &mut Datagrams::new(),
    );
    batch
}

/// Queries a health check and returns its status line and body.
async fn check(from: &Namespace, port: u16) -> Option<String> {
    from.command(&format!(
        "curl -s -m 5 -w ' %{{http_code}}' http://{NODE_IP}:{port}/ || true"
    ))
    .await
    .into()
}

#[test]
fn a_health_check_says_whether_the_node_has_endpoints() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        let object: k8s_openapi::api::core::v1::Node =
            serde_json::from_value(json!({"metadata": {"name": "here"}})).unwrap();
        node.sources.nodes.upsert(object);
        let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                          "healthCheckNodePort": 31999});
        node.service(spec.clone());
        node.endpoints(json!([{"addresses": ["10.42.1.9"], "nodeName": "there"}]));
        let outside = node.outside.clone();
        let wait_for = |expected: &'static str| {
            let outside = outside.clone();
            async move {
                let deadline = Instant::now() + PATIENCE;
                loop {
                    let answer = check(&outside, 31999).await.unwrap_or_default();
                    if answer.contains(expected) {
                        return;
                    }
                    assert!(Instant::now() < deadline, "{expected} in {answer}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        wait_for("503").await;
        node.endpoints(here(&["10.42.0.1"]));
        wait_for("\"localEndpoints\":1").await;
        wait_for("200").await;
        // The port closes with the Service.
        node.service(json!({}));
        wait_for(" 000").await;
    });
}

#[test]
fn under_policy_local_pods_keep_their_address() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(2).await;
        let ports = json!([{"name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP"}]);
        let spec = |policy: &str| json!({"type": "NodePort", "ports": ports, "externalTrafficPolicy": policy});
        node.endpoints(here(&["10.42.0.1"]));
        node.service(spec("Cluster"));
        node.table_has("pick-nodeport4-1", true).await;
        let node_port = at("192.0.2.1:30080");
        let answer = node.pods[1].ask(node_port).await.unwrap();
        assert!(!answer.ends_with(" 10.42.0.2"), "{answer}");
        node.service(spec("Local"));
        node.table_has("pick-nodeport-inside4-1", true).await;
        assert_eq!(
            node.pods[1].ask(node_port).await.unwrap(),
            "pod-0 10.42.0.2"
        );
        assert_eq!(
            node.outside.ask(node_port).await.unwrap(),
            "pod-0 192.0.2.2"
        );
    });
}

#[test]
fn a_table_that_another_program_changed_is_noticed() {
    lab::node(|_outside| async move {
        let mut ruleset = Ruleset::new(Frame {
            node_port_addresses: vec!["192.0.2.0/24".parse().unwrap()],
            ..frame()
        });
        for number in 1..200 {
            let ip = format!("10.43.0.{number}");
            let endpoints = ["10.42.0.1", "10.42.0.2", "10.42.0.3"];
            change(
                &mut ruleset,
                number,
                &ip,
                &endpoints[..1 + number as usize % 3],
            );
        }
        let (nft, table) = (Nft::new(), ruleset.table());
        nft.apply(&ruleset.full()).await.unwrap();
        assert!(!network::has_drifted(&table, &ruleset.full()).await.unwrap());
        for command in [
            "flush chain inet {} services",
            "delete element inet {} endpoints4-0 { 10.43.0.7 . tcp . 80 }",
            "add rule inet {} prerouting drop",
            // As many rules as before.
            "flush chain inet {} to-endpoints4-0; add rule inet {} to-endpoints4-0 accept",
            "delete table inet {}",
        ] {
            lab::command(&format!("nft '{}'", command.replace("{}", &table)));
            assert!(
                network::has_drifted(&table, &ruleset.full()).await.unwrap(),
                "{command}"
            );
            nft.apply(&ruleset.full()).await.unwrap();
        }
    });
}
