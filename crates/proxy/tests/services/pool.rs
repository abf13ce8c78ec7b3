//! Load balancer addresses of a pool: which node announces them, and where they lead.

use super::*;

#[test]
fn an_address_of_the_pool_is_announced_by_one_node_and_leads_to_endpoints() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        let balancer = |announcer: &str| {
            let mut service = service(
                "web",
                json!({"type": "LoadBalancer",
                       "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.77", "ipMode": "VIP"}]}}}),
            );
            let annotation = (
                "mainstay.local/announced-by".to_owned(),
                announcer.to_owned(),
            );
            service.metadata.annotations = Some([annotation].into());
            service
        };
        node.endpoints(here(&["10.42.0.1"]));
        node.sources.services.upsert(balancer("there"));
        node.table_has("192.0.2.77", true).await;
        // The neighbour learns it by a gratuitous announcement, before it asks.
        let neighbours = || node.outside.command("ip neighbour show 192.0.2.77");
        assert_eq!(node.outside.ask(at("192.0.2.77:80")).await, None);
        node.outside.command("ip neighbour flush 192.0.2.77").await;
        node.outside
            .command("sysctl -q net.ipv4.conf.wire1.arp_accept=1")
            .await;
        node.sources.services.upsert(balancer("here"));
        let deadline = Instant::now() + PATIENCE;
        while !neighbours().await.contains("lladdr") {
            assert!(Instant::now() < deadline, "{}", neighbours().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(
            node.outside.ask(at("192.0.2.77:80")).await.unwrap(),
            "pod-0 192.0.2.1"
        );
        // A neighbour that forgot it gets an answer, too.
        node.outside.command("ip neighbour flush 192.0.2.77").await;
        assert!(node.outside.ask(at("192.0.2.77:80")).await.is_some());
        node.sources.services.upsert(balancer("there"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            node.outside.command("ip neighbour flush 192.0.2.77").await;
            if node.outside.ask(at("192.0.2.77:80")).await.is_none() {
                return;
            }
            assert!(Instant::now() < deadline, "it is still announced");
        }
    });
}

#[test]
fn a_node_that_claims_an_address_of_the_pool_stops_neither_its_announcement_nor_its_traffic() {
    lab::node(|outside| async move {
        let mut node = Node::start(outside, None).await;
        node.run_pods(1).await;
        let hostile = json!({"metadata": {"name": "there", "uid": "there"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.77"}]}});
        node.sources
            .nodes
            .upsert(serde_json::from_value(hostile).unwrap());
        node.endpoints(here(&["10.42.0.1"]));
        let condition = json!({"type": "mainstay.local/AddressFromPool", "status": "True",
            "reason": "Allocated", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut service = service(
            "web",
            json!({"type": "LoadBalancer", "status": {"conditions": [condition],
                   "loadBalancer": {"ingress": [{"ip": "192.0.2.77", "ipMode": "VIP"}]}}}),
        );
        let annotation = ("mainstay.local/announced-by".to_owned(), "here".to_owned());
        service.metadata.annotations = Some([annotation].into());
        node.sources.services.upsert(service);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = node.outside.ask(at("192.0.2.77:80")).await;
            if answer.as_deref() == Some("pod-0 192.0.2.1") {
                return;
            }
            assert!(Instant::now() < deadline, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn an_address_of_another_node_is_never_announced() {
    lab::node(|outside| async move {
        let node = Node::start(outside, None).await;
        let other = json!({"metadata": {"name": "there", "uid": "there"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.55"}]}});
        node.sources
            .nodes
            .upsert(serde_json::from_value(other).unwrap());
        node.outside
            .command("sysctl -q net.ipv4.conf.wire1.arp_accept=1")
            .await;
        node.endpoints(here(&["10.42.0.1"]));
        for (name, ip) in [("thief", "192.0.2.55"), ("web", "192.0.2.77")] {
            let ingress =
                json!([{"ip": "192.0.2.55", "ipMode": "VIP"}, {"ip": ip, "ipMode": "VIP"}]);
            let mut service = service(
                name,
                json!({"type": "LoadBalancer", "status": {"loadBalancer": {"ingress": ingress}}}),
            );
            let annotation = ("mainstay.local/announced-by".to_owned(), "here".to_owned());
            service.metadata.annotations = Some([annotation].into());
            node.sources.services.upsert(service);
        }
        let neighbours = || node.outside.command("ip neighbour");
        let deadline = Instant::now() + PATIENCE;
        while !neighbours().await.contains("192.0.2.77") {
            assert!(Instant::now() < deadline, "{}", neighbours().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let found = neighbours().await;
        assert!(!found.contains("192.0.2.55"), "{found}");
    });
}
