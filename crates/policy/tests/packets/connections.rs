//! Open connections, forged packets, new pods, and traffic of the node itself.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use network::{PodNetwork, netns, nft::Nft};
use network_lab::{self as lab, NODE_IP, Namespace};
use policy::{
    policy::Policy,
    state::{Pod, State},
};
use serde_json::{Value, json};

use crate::lab_node::{LabNode, REMOTE, at};

const DENY: &str = r#"{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}"#;
const SHORT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(20);

fn deny() -> Value {
    serde_json::from_str(DENY).unwrap()
}

/// Answers every byte with itself.
async fn echo(pod: &Namespace, port: u16) {
    let listen = move || {
        let listener = TcpListener::bind(("::", port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() {
                        let _ = stream.write_all(&byte);
                    }
                });
            }
        });
    };
    netns::run(pod.path(), listen).await.unwrap();
}

async fn connect(pod: &Namespace, to: SocketAddr) -> TcpStream {
    let stream = netns::run(pod.path(), move || TcpStream::connect(to).unwrap()).await;
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(SHORT)).unwrap();
    stream
}

/// Sends a byte and waits a moment for its echo.
fn say(stream: &mut TcpStream, byte: u8) -> bool {
    stream.write_all(&[byte]).unwrap();
    heard(stream, byte)
}

fn heard(stream: &mut TcpStream, byte: u8) -> bool {
    let mut answer = [0];
    stream.read_exact(&mut answer).is_ok() && answer == [byte]
}

#[test]
fn an_open_connection_is_judged_again_when_policies_change() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.start_pod("x", "a", json!({"pod": "a"})).await;
        let b = node.start_pod("x", "b", json!({"pod": "b"})).await;
        echo(&node.pods["b"], 7).await;
        for ip in b {
            let mut stream = connect(&node.pods["a"], at(ip, 7)).await;
            assert!(say(&mut stream, 1));
            node.policy("x", "deny", deny());
            node.settle().await;
            assert!(!say(&mut stream, 2), "{ip}: an open connection went on");
            // The server's side is blocked as well: nothing that it sends arrives.
            node.policy(
                "x",
                "deny",
                json!({"podSelector": {"matchLabels": {"pod": "b"}},
                       "ingress": [{"ports": [{"port": 7}]}]}),
            );
            node.settle().await;
            let deadline = Instant::now() + PATIENCE;
            while !heard(&mut stream, 2) {
                assert!(Instant::now() < deadline, "{ip}: it did not go on");
            }
            assert!(say(&mut stream, 3));
            node.no_policies();
            node.settle().await;
            assert!(say(&mut stream, 4));
        }
    });
}

#[test]
fn the_node_reaches_its_pods_and_they_the_node_whatever_policies_say() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        let ips = node.start_pod("x", "a", json!({})).await;
        node.policy("x", "deny", deny());
        node.settle().await;
        lab::serve_here("node", 90);
        for ip in ips {
            assert!(lab::ask_here(at(ip, 80)).is_some());
            assert!(lab::ask_udp_here(at(ip, 80)).is_some());
            assert_eq!(node.outside.ask(at(ip, 80)).await, None);
        }
        let pod = &node.pods["a"];
        assert!(pod.ask(at(NODE_IP, 90)).await.is_some());
        assert!(pod.ask(at("fd00::1".parse().unwrap(), 90)).await.is_some());
        assert_eq!(pod.ask(at(REMOTE[0].parse().unwrap(), 80)).await, None);
    });
}

#[test]
fn policies_see_the_endpoint_and_not_the_service() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.start_pod("x", "a", json!({"pod": "a"})).await;
        let b = node.start_pod("x", "b", json!({"pod": "b"})).await;
        lab::command(&format!(
            "nft 'add table ip t; add chain ip t p {{ type nat hook prerouting priority -100; }}; \
             add rule ip t p ip daddr 10.43.0.9 tcp dport 8080 dnat to {}:80; \
             add chain ip t q {{ type nat hook postrouting priority 100; }}; \
             add rule ip t q ct status dnat ip saddr {} masquerade'",
            b[0], b[0]
        ));
        let service: SocketAddr = "10.43.0.9:8080".parse().unwrap();
        let to_port = |port: u16| {
            json!({"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Egress"],
                   "egress": [{"to": [{"podSelector": {"matchLabels": {"pod": "b"}}}],
                               "ports": [{"port": port}]}]})
        };
        node.policy("x", "to-endpoint", to_port(80));
        node.settle().await;
        assert!(node.pods["a"].ask(service).await.is_some());
        node.policy("x", "to-endpoint", to_port(8080));
        node.settle().await;
        assert_eq!(node.pods["a"].ask(service).await, None);
        // A pod reaches itself, also through a Service, whatever the policies.
        node.policy("x", "deny", deny());
        node.settle().await;
        assert!(node.pods["b"].ask(service).await.is_some());
    });
}

#[test]
fn a_pod_is_isolated_before_the_api_knows_its_address_and_even_before_its_labels() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.policy(
            "x",
            "deny-b",
            json!({"podSelector": {"matchLabels": {"pod": "b"}}}),
        );
        // Its labels are known, but not its address.
        node.show("x", "b", json!({"pod": "b"}), "here", &[]);
        node.show("x", "a", json!({"pod": "a"}), "here", &[]);
        let a = node.attach("x", "a").await;
        let b = node.attach("x", "b").await;
        assert!(node.outside.ask(at(a[0], 80)).await.is_some());
        assert_eq!(node.outside.ask(at(b[0], 80)).await, None);
        // Unknown: nothing is allowed while the namespace has policies.
        let c = node.attach("x", "c").await;
        assert_eq!(node.outside.ask(at(c[0], 80)).await, None);
        node.show("x", "c", json!({"pod": "c"}), "here", &c);
        node.settle().await;
        assert!(node.outside.ask(at(c[0], 80)).await.is_some());
        let d = node.attach("free", "d").await;
        assert!(node.outside.ask(at(d[0], 80)).await.is_some());
    });
}

#[test]
fn an_address_that_changes_hands_is_judged_as_its_new_pod() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.policy(
            "x",
            "deny-old",
            json!({"podSelector": {"matchLabels": {"pod": "old"}}}),
        );
        let ips = node.start_pod("x", "old", json!({"pod": "old"})).await;
        node.settle().await;
        assert_eq!(node.outside.ask(at(ips[0], 80)).await, None);
        node.network.detach("old", None).await.unwrap();
        // The API still shows the old pod; its address now belongs to another one.
        node.show("x", "new", json!({"pod": "new"}), "here", &ips);
        let key = ("x".to_owned(), "new".to_owned());
        node.enforcer.admit("new", key, &ips).await.unwrap();
        let table = node.table();
        assert!(!table.contains(&format!("{} : goto", ips[0])), "{table}");
    });
}

#[test]
fn a_late_release_of_an_address_does_not_free_its_next_pod_of_its_policies() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        node.policy("x", "deny", json!({"podSelector": {}}));
        let ips = node.attach("x", "new").await;
        let table = node.table();
        let is_isolated = |node: &LabNode| node.table().contains(&format!("{} : drop", ips[0]));
        assert!(is_isolated(&node), "{table}");
        // The sandbox that had the address before, and one that garbage collection did not report.
        let key = |name: &str| ("x".to_owned(), name.to_owned());
        node.enforcer.note_attached("old", key("old"), &ips);
        node.enforcer.note_attached("lost", key("another"), &ips);
        node.enforcer.admit("new", key("new"), &ips).await.unwrap();
        node.network.detach("old", None).await.unwrap();
        node.settle().await;
        assert!(is_isolated(&node));
        node.stop();
        node.run();
        node.settle().await;
        assert!(is_isolated(&node));
        // Only its own release frees it; other sandboxes are kept.
        let alive = ["lost".to_owned()].into();
        node.network.retain(&alive).await.unwrap();
        node.settle().await;
        assert!(!is_isolated(&node));
    });
}

#[test]
fn rules_stay_without_the_enforcer_and_the_next_run_writes_the_same() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        node.namespace("x", json!({}));
        let ips = node.start_pod("x", "a", json!({})).await;
        node.policy("x", "deny", deny());
        node.settle().await;
        let before = node.table();
        node.stop();
        assert_eq!(node.outside.ask(at(ips[0], 80)).await, None);
        lab::command("nft flush ruleset");
        node.run();
        node.settle().await;
        assert_eq!(node.table(), before);
    });
}

/// Sends a datagram with a forged source address.
fn send_from(source: IpAddr, to: SocketAddr, text: &'static str) {
    let socket = UdpSocket::bind(SocketAddr::new(source, 0)).unwrap();
    // The kernel may report at once that there is no route.
    let _ = socket.send_to(text.as_bytes(), to);
}

#[test]
fn a_pod_cannot_send_from_an_address_that_is_not_its_own() {
    lab::node(|outside| async move {
        let mut node = LabNode::start(outside).await;
        let a = node.start_pod("x", "a", json!({})).await;
        let victim = node.start_pod("x", "victim", json!({})).await;
        let target = node.start_pod("x", "target", json!({})).await;
        for index in [0, 1] {
            let length = ["32 dev lo", "128 dev lo nodad"][index];
            let to = at(target[index], 99);
            let receiver = netns::run(node.pods["target"].path(), move || {
                let socket = UdpSocket::bind(("::", 99)).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                socket
            });
            let receiver = Arc::new(receiver.await.unwrap());
            let pod = &node.pods["a"];
            let others = [victim[index], "192.0.2.99".parse().unwrap()];
            for source in others.into_iter().filter(|ip| ip.is_ipv4() == (index == 0)) {
                pod.command(&format!("ip address add {source}/{length}"))
                    .await;
                let forge = move || send_from(source, to, "forged");
                netns::run(pod.path(), forge).await.unwrap();
            }
            // The neighbour cannot do so either.
            let victim = victim[index];
            node.outside
                .command(&format!("ip address add {victim}/{length}"))
                .await;
            let forge = move || send_from(victim, to, "forged outside");
            netns::run(node.outside.path(), forge).await.unwrap();
            let own = a[index];
            let honest = move || send_from(own, to, "honest");
            netns::run(pod.path(), honest).await.unwrap();
            let mut buffer = [0; 64];
            let (length, from) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"honest");
            assert_eq!(from.ip().to_canonical(), own);
        }
    });
}

#[test]
fn a_table_that_another_program_changed_is_noticed() {
    lab::node(|_outside| async move {
        let mut state = State::new("t".into());
        let pod = |index: u8| {
            let object = json!({
                "metadata": {"labels": {"pod": "a"}},
                "spec": {"nodeName": "here", "containers": [{"name": "c", "ports": [
                    {"name": "web", "containerPort": 80}]}]},
                "status": {"podIPs": [{"ip": format!("10.42.0.{index}")}, {"ip": format!("fd42::{index}")}]},
            });
            Pod::from_object(&serde_json::from_value(object).unwrap(), "here")
        };
        for index in 1..120 {
            state.set_pod(&("x".into(), format!("a{index}")), pod(index));
        }
        let policy = json!({"metadata": {"name": "p", "namespace": "x"}, "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "web"}, {"port": 90, "endPort": 95}]}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.3.0.0/16"]}}]}]}});
        let policy = Policy::from_object(&serde_json::from_value(policy).unwrap());
        state.set_policy(&("x".into(), "p".into()), Some(policy));
        let nft = Nft::new();
        nft.apply(&state.full()).await.unwrap();
        assert!(!network::has_drifted("t", &state.full()).await.unwrap());
        for command in [
            "delete element inet t ingress4 { 10.42.0.7 }",
            "add chain inet t more",
            "flush chain inet t forward-ingress",
        ] {
            lab::command(&format!("nft '{command}'"));
            assert!(
                network::has_drifted("t", &state.full()).await.unwrap(),
                "{command}"
            );
            nft.apply(&state.full()).await.unwrap();
        }
    });
}
