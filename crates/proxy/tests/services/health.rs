//! The proxy's own ports: load balancers ask at one of them whether the node takes traffic.

use std::time::{Duration, Instant};

use network_lab::{self as lab, NODE_IP};
use serde_json::{Value, json};

use crate::{Node, PATIENCE};

fn object(spec: &Value) -> k8s_openapi::api::core::v1::Node {
    let node = json!({"metadata": {"name": "here"}, "spec": spec});
    serde_json::from_value(node).unwrap()
}

/// A request that prints the body and the code.
fn get(url: &str) -> String {
    format!("curl -s -m 5 -w ' %{{http_code}}' {url} || true")
}

#[test]
fn the_health_port_follows_the_node_and_metrics_stay_on_the_machine() {
    lab::node(|outside| async move {
        let node = Node::start(outside, None).await;
        let health = |path: &str| get(&format!("http://{NODE_IP}:10256/{path}"));
        for (spec, expected) in [
            (json!({}), [" 200", "\"nodeEligible\":true"]),
            (
                json!({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}),
                [" 503", "\"nodeEligible\":false"],
            ),
        ] {
            node.sources.nodes.upsert(object(&spec));
            let deadline = Instant::now() + PATIENCE;
            loop {
                let answer = node.outside.command(&health("healthz")).await;
                if expected.iter().all(|text| answer.contains(text)) {
                    break;
                }
                assert!(Instant::now() < deadline, "{expected:?} in {answer}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let alive = node.outside.command(&health("livez")).await;
            assert!(alive.ends_with(" 200"), "{alive}");
        }
        let page = |host: &str| get(&format!("http://{host}:10249/metrics"));
        let shown = tokio::task::spawn_blocking(move || lab::command(&page("127.0.0.1")));
        let shown = shown.await.unwrap();
        assert!(shown.contains("kubeproxy_proxy_healthz_total"), "{shown}");
        let outside = node.outside.command(&page(&NODE_IP.to_string())).await;
        assert!(outside.ends_with(" 000"), "{outside}");
    });
}
