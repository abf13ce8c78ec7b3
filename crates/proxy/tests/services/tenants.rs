//! A tenant's Services that need more of the kernel's tables than a node has for all.

use network_lab as lab;
use serde_json::{Value, json};

use super::{Node, at, here, service, slice, vip};

const AFFINITY: &str = "ClientIP";

/// A Service of another tenant, with session affinity, and its endpoints.
fn put(node: &Node, ports: usize, endpoints: u8) {
    let port =
        |number: usize| json!({"name": format!("p{number}"), "port": number, "protocol": "TCP"});
    let ports: Vec<Value> = (1..=ports).map(port).collect();
    let mut service = service(
        "greedy",
        json!({"clusterIP": "10.43.0.10", "clusterIPs": ["10.43.0.10"], "ports": ports, "sessionAffinity": AFFINITY}),
    );
    let addresses: Vec<String> = (1..=endpoints)
        .map(|last| format!("10.42.7.{last}"))
        .collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let mut slice = slice("greedy", here(&addresses));
    slice.ports = serde_json::from_value(json!(ports)).unwrap();
    service.metadata.namespace = Some("tenant".into());
    slice.metadata.namespace = Some("tenant".into());
    node.sources.slices.upsert(slice);
    node.sources.services.upsert(service);
}

/// The sets of clients.
fn sets() -> usize {
    let listed = lab::command("nft -t list table inet mainstay-0123abcd-services");
    listed.matches("set clients-").count()
}

#[test]
fn services_that_need_too_many_sets_have_no_affinity_and_others_keep_theirs() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(2).await;
        node.service(json!({"sessionAffinity": AFFINITY}));
        node.endpoints(here(&["10.42.0.1"]));
        node.table_has("set clients-", true).await;
        let before = sets();
        // First a few, then too many, then a few.
        put(&node, 2, 20);
        node.table_has("10.43.0.10 . tcp . 2 : goto sticky-", true)
            .await;
        // Twenty endpoints on this node count for clients inside and outside.
        assert_eq!(sets(), before + 2 * 20);
        put(&node, 300, 20);
        node.table_has("10.43.0.10 . tcp . 300 : 10.42.7.1 . 300", true)
            .await;
        assert_eq!(sets(), before);
        let client = &node.pods[1];
        assert!(client.ask(vip()).await.unwrap().starts_with("pod-0"));
        assert!(client.ask(at("10.43.0.10:300")).await.is_none());
        put(&node, 1, 20);
        node.table_has("10.43.0.10 . tcp . 1 : goto sticky-", true)
            .await;
        assert_eq!(sets(), before + 20);
        node.sources.services.remove("tenant", "greedy");
        node.table_has("10.43.0.10", false).await;
        assert_eq!(sets(), before);
    });
}

#[test]
fn a_load_balancer_with_too_many_source_ranges_admits_no_source_and_others_keep_theirs() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        for ip in ["203.0.113.7", "203.0.113.8"] {
            let route = format!("ip route add {ip} via 192.0.2.1");
            node.outside.command(&route).await;
        }
        let balancer = |ip: &str, ranges: Vec<String>| {
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges,
                   "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})
        };
        let own = || vec!["192.0.2.0/24".to_owned()];
        let range = |number: u32| {
            let [_, high, middle, low] = (2 * number).to_be_bytes();
            format!("10.{high}.{middle}.{low}/32")
        };
        let put_greedy = |count: u32| {
            let ranges = (0..count).map(range).chain(own()).collect();
            let mut greedy = service("greedy", balancer("203.0.113.8", ranges));
            let spec = greedy.spec.as_mut().unwrap();
            spec.cluster_ip = Some("10.43.0.10".into());
            spec.cluster_ips = Some(vec!["10.43.0.10".into()]);
            greedy.metadata.namespace = Some("tenant".into());
            node.sources.services.upsert(greedy);
        };
        let mut endpoints = slice("greedy", here(&["10.42.0.1"]));
        endpoints.metadata.namespace = Some("tenant".into());
        node.sources.slices.upsert(endpoints);
        node.endpoints(here(&["10.42.0.1"]));
        put_greedy(10);
        node.table_has("10.0.0.18", true).await;
        let greedy = at("203.0.113.8:80");
        assert!(node.outside.ask(greedy).await.is_some());
        put_greedy(30_000);
        node.table_has("203.0.113.8 . tcp . 80 : drop", true).await;
        assert!(node.outside.ask(greedy).await.is_none());
        node.service(balancer("203.0.113.7", own()));
        node.table_has("203.0.113.7 . tcp . 80 : goto guard-", true)
            .await;
        assert!(node.outside.ask(at("203.0.113.7:80")).await.is_some());
        put_greedy(10);
        node.table_has("10.0.0.18", true).await;
        assert!(node.outside.ask(greedy).await.is_some());
        node.sources.services.remove("tenant", "greedy");
        node.sources.services.remove("default", "web");
        node.table_has("guard-", false).await;
        node.table_has("sources-", false).await;
    });
}
