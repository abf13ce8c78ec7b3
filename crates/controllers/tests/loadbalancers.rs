//! Services of type LoadBalancer with a real API server and the controller's real permissions.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use world::World;

async fn node(world: &World, name: &str, address: &str) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &object).await.unwrap();
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": address}],
    }});
    patch_node(world, name, status).await;
}

async fn patch_node(world: &World, name: &str, patch: Value) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let patch = Patch::Merge(&patch);
    let parameters = PatchParams::default();
    nodes.patch_status(name, &parameters, &patch).await.unwrap();
}

async fn balancer(world: &World, name: &str) {
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": name}});
    let object = json!({"metadata": {"name": name}, "spec": spec});
    world.create::<Service>("default", object).await;
}

async fn service(world: &World, name: &str) -> Service {
    world.api::<Service>("default").get(name).await.unwrap()
}

fn shown(service: &Service) -> Vec<String> {
    let status = service.status.clone().unwrap_or_default();
    let ingress = status.load_balancer.unwrap_or_default().ingress;
    let shown = ingress.into_iter().flatten().map(|one| {
        let mode = one.ip_mode.unwrap_or_default();
        format!("{} {mode}", one.ip.unwrap_or_default())
    });
    shown.collect()
}

fn condition(service: &Service, type_: &str) -> String {
    let status = service.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    let found = conditions.find(|one| one.type_ == type_);
    found.map_or(String::new(), |one| {
        format!("{} {}", one.status, one.message)
    })
}

async fn wait_for(world: &World, name: &str, expected: &[&str]) {
    let what = format!("{name} at {expected:?}");
    world
        .until(&what, || async {
            let service = service(world, name).await;
            Ok::<_, ()>(shown(&service) == expected)
        })
        .await;
}

#[tokio::test]
async fn services_get_the_addresses_of_nodes_and_a_port_has_one_service() {
    let world = World::new().await;
    node(&world, "one", "192.0.2.1").await;
    balancer(&world, "a").await;
    wait_for(&world, "a", &["192.0.2.1 VIP"]).await;
    node(&world, "two", "192.0.2.2").await;
    wait_for(&world, "a", &["192.0.2.1 VIP", "192.0.2.2 VIP"]).await;
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    patch_node(&world, "one", not_ready).await;
    wait_for(&world, "a", &["192.0.2.2 VIP"]).await;

    // The second waits for the port, and an event says so.
    balancer(&world, "b").await;
    let events: Api<k8s_openapi::api::core::v1::Event> = world.api("default");
    world
        .until("an event about the port", || async {
            let events = events.list(&Default::default()).await?;
            let is_it = |event: &k8s_openapi::api::core::v1::Event| {
                event.reason.as_deref() == Some("SyncLoadBalancerFailed")
                    && event
                        .message
                        .as_deref()
                        .unwrap_or_default()
                        .contains("default/a")
            };
            Ok::<_, kube::Error>(events.iter().any(is_it))
        })
        .await;
    assert!(shown(&service(&world, "b").await).is_empty());
    let ports_error = |service: &Service| condition(service, "LoadBalancerPortsError");
    world
        .until("a condition about the port", || async {
            let shown = ports_error(&service(&world, "b").await);
            Ok::<_, ()>(shown.starts_with("True port 80/TCP of the nodes"))
        })
        .await;
    let api = world.api::<Service>("default");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    wait_for(&world, "b", &["192.0.2.2 VIP"]).await;
    assert_eq!(ports_error(&service(&world, "b").await), "False ");

    // A Service is deleted after its addresses are free.
    let finalizers = |service: &Service| service.metadata.finalizers.clone().unwrap_or_default();
    let cleanup = "service.kubernetes.io/load-balancer-cleanup";
    assert_eq!(finalizers(&service(&world, "b").await), [cleanup]);
    world
        .until("the deleted Service to be gone", || async {
            Ok::<_, kube::Error>(api.get_opt("a").await?.is_none())
        })
        .await;

    // A Service of another type has no addresses and no finalizer.
    let patch = json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": null}]}});
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
    api.patch("b", &parameters, &patch).await.unwrap();
    wait_for(&world, "b", &[]).await;
    world
        .until("the finalizer to be removed", || async {
            Ok::<_, ()>(finalizers(&service(&world, "b").await).is_empty())
        })
        .await;
}

#[tokio::test]
async fn addresses_of_a_pool_are_announced_by_a_node_that_is_ready() {
    let load_balancer = controllers::loadbalancer::Settings {
        pool: "198.51.100.1-198.51.100.2".parse().unwrap(),
        reserved_ports: Default::default(),
    };
    let config = controllers::Config {
        load_balancer,
        ..controllers::Config::default()
    };
    let world = World::configured(config).await;
    node(&world, "one", "192.0.2.1").await;
    balancer(&world, "a").await;
    balancer(&world, "b").await;
    wait_for(&world, "a", &["198.51.100.1 VIP"]).await;
    wait_for(&world, "b", &["198.51.100.2 VIP"]).await;
    let announcer = |service: &Service| {
        let annotations = service.metadata.annotations.clone().unwrap_or_default();
        annotations
            .get(controllers::loadbalancer::ANNOUNCER)
            .cloned()
    };
    assert_eq!(
        announcer(&service(&world, "a").await).as_deref(),
        Some("one")
    );
    let pooled = condition(
        &service(&world, "a").await,
        controllers::loadbalancer::FROM_POOL,
    );
    assert_eq!(pooled, "True ");
    node(&world, "two", "192.0.2.2").await;
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    patch_node(&world, "one", lost).await;
    for name in ["a", "b"] {
        world
            .until("the other node to announce it", || async {
                let service = service(&world, name).await;
                Ok::<_, ()>(announcer(&service).as_deref() == Some("two"))
            })
            .await;
    }
    wait_for(&world, "a", &["198.51.100.1 VIP"]).await;
}
