//! Node ports at some of the node's addresses.

use std::time::{Duration, Instant};

use network_lab as lab;
use serde_json::json;

use crate::{Node, PATIENCE, at, here};

#[test]
fn node_ports_are_served_only_at_the_chosen_addresses() {
    lab::node(|outside| async move {
        lab::command("ip address add 198.51.100.1/24 dev wire0");
        outside
            .command("ip route add 198.51.100.0/24 via 192.0.2.1")
            .await;
        let mut node = Node::start_at(outside, None, &["198.51.100.0/24"]).await;
        node.run_pods(2).await;
        let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
        let (chosen, other) = (at("198.51.100.1:30080"), at("192.0.2.1:30080"));
        // Also the rules of policy Local, which are others.
        for (policy, chain) in [
            ("Cluster", "pick-nodeport4-1"),
            ("Local", "pick-outside-nodeport4-1"),
        ] {
            node.service(
                json!({"type": "NodePort", "ports": ports, "externalTrafficPolicy": policy}),
            );
            node.endpoints(here(&["10.42.0.1"]));
            node.table_has(chain, true).await;
            for (to, is_served) in [(chosen, true), (other, false)] {
                let from_outside = node.outside.ask(to).await;
                assert_eq!(
                    from_outside.is_some(),
                    is_served,
                    "{policy}: {to} from outside"
                );
                let from_pod = node.pods[1].ask(to).await;
                assert_eq!(from_pod.is_some(), is_served, "{policy}: {to} from a pod");
                let from_node = lab::ask_here(to);
                assert_eq!(
                    from_node.is_some(),
                    is_served,
                    "{policy}: {to} from the node"
                );
            }
            assert!(lab::ask_here(at("127.0.0.1:30080")).is_none());
        }
    });
}

#[test]
fn health_checks_are_answered_only_at_the_chosen_addresses() {
    lab::node(|outside| async move {
        lab::command("ip address add 198.51.100.1/24 dev wire0");
        outside
            .command("ip route add 198.51.100.0/24 via 192.0.2.1")
            .await;
        let node = Node::start_at(outside, None, &["198.51.100.0/24"]).await;
        node.service(
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31999}),
        );
        node.endpoints(here(&["10.42.0.1"]));
        let get = |host: &str| format!("curl -s -m 5 http://{host}:31999/ || true");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = node.outside.command(&get("198.51.100.1")).await;
            if answer.contains("\"localEndpoints\":1") {
                break;
            }
            assert!(Instant::now() < deadline, "{answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(node.outside.command(&get("192.0.2.1")).await, "");
    });
}
