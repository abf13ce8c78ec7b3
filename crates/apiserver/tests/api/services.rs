//! Services: addresses and ports are never allocated twice.

use std::collections::BTreeSet;

use crate::support::{Server, admin};
use machinery::json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, kind: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": kind, "selector": {"app": name},
        "ports": [{"port": 80}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn services_made_at_once_get_different_addresses_and_ports() {
    let server = Server::start().await;
    let all = (0..20).map(|n| {
        let server = &server;
        async move {
            admin(
                server,
                "POST",
                SERVICES,
                service(&format!("s{n}"), "NodePort"),
            )
            .await
        }
    });
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for made in futures::future::join_all(all).await {
        assert_eq!(made.code, 201, "{}", made.body);
        let made = made.json();
        assert_eq!(made["spec"]["clusterIPs"][0], made["spec"]["clusterIP"]);
        addresses.insert(made["spec"]["clusterIP"].as_str().unwrap().to_owned());
        ports.insert(made["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
    }
    assert_eq!((addresses.len(), ports.len()), (20, 20));
    assert!(
        addresses
            .iter()
            .all(|address| address.starts_with("10.43."))
    );
    assert!(ports.iter().all(|port| (30000..=32767).contains(port)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_and_its_address_are_one_transaction() {
    let server = Server::start().await;
    let service = json!({"metadata": {"name": "one"}, "spec": {"ports": [{"port": 80}]}});
    let made = admin(&server, "POST", SERVICES, service).await.json();
    let address = made["spec"]["clusterIP"].as_str().unwrap();
    let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
    let kept = admin(&server, "GET", &path, Value::Null).await.json();
    assert_eq!(
        kept["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
    admin(&server, "DELETE", &format!("{SERVICES}/one"), Value::Null).await;
    assert_eq!(admin(&server, "GET", &path, Value::Null).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_or_port_that_is_taken_is_refused_until_it_is_free() {
    let server = Server::start().await;
    let mut wanted = service("a", "NodePort");
    wanted["spec"]["clusterIP"] = "10.43.0.77".into();
    wanted["spec"]["ports"][0]["nodePort"] = 30077.into();
    assert_eq!(
        admin(&server, "POST", SERVICES, wanted.clone()).await.code,
        201
    );
    wanted["metadata"]["name"] = "b".into();
    let refused = admin(&server, "POST", SERVICES, wanted.clone()).await;
    assert_eq!(refused.code, 422);
    assert!(
        refused.body.contains("provided IP is already allocated"),
        "{}",
        refused.body
    );
    wanted["spec"]["clusterIP"] = Value::Null;
    let refused = admin(&server, "POST", SERVICES, wanted.clone()).await;
    assert!(
        refused.body.contains("provided port is already allocated"),
        "{}",
        refused.body
    );
    wanted["spec"]["clusterIP"] = "10.43.0.77".into();
    assert_eq!(
        admin(&server, "DELETE", &format!("{SERVICES}/a"), Value::Null)
            .await
            .code,
        200
    );
    let made = admin(&server, "POST", SERVICES, wanted).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let mut outside = service("c", "ClusterIP");
    outside["spec"]["clusterIP"] = "10.99.0.1".into();
    assert_eq!(admin(&server, "POST", SERVICES, outside).await.code, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_keeps_the_address_and_gives_ports_back() {
    let server = Server::start().await;
    let made = admin(&server, "POST", SERVICES, service("a", "NodePort"))
        .await
        .json();
    let changed = json!({"spec": {"type": "ClusterIP"}});
    let plain = admin(&server, "PATCH", &format!("{SERVICES}/a"), changed).await;
    assert_eq!(plain.code, 200, "{}", plain.body);
    let plain = plain.json();
    assert_eq!(plain["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
    let mut other = service("b", "NodePort");
    other["spec"]["ports"][0]["nodePort"] = made["spec"]["ports"][0]["nodePort"].clone();
    assert_eq!(admin(&server, "POST", SERVICES, other).await.code, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_names_a_port_twice_is_refused() {
    let server = Server::start().await;
    let made = admin(&server, "POST", SERVICES, service("a", "NodePort")).await;
    let mut changed = made.json();
    let port = changed["spec"]["ports"][0].clone();
    let number = port["nodePort"].clone();
    changed["spec"]["ports"] = json!([port, port]);
    let path = format!("{SERVICES}/a");
    let refused = admin(&server, "PUT", &path, changed).await;
    assert_eq!(refused.code, 500, "{}", refused.body);
    assert_eq!(
        refused.json()["message"],
        format!("duplicate nodePort: {{TCP {number}}}")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn headless_and_external_services_take_no_address() {
    let server = Server::start().await;
    let mut headless = service("h", "ClusterIP");
    headless["spec"]["clusterIP"] = "None".into();
    let made = admin(&server, "POST", SERVICES, headless).await.json();
    assert_eq!(made["spec"]["clusterIPs"], json!(["None"]));
    let external = json!({"metadata": {"name": "e"}, "spec": {"type": "ExternalName", "externalName": "example.com"}});
    let made = admin(&server, "POST", SERVICES, external).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert!(made.json()["spec"].get("clusterIP").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubernetes_service_leads_to_this_server() {
    let server = Server::start().await;
    let service = admin(
        &server,
        "GET",
        &format!("{SERVICES}/kubernetes"),
        Value::Null,
    )
    .await
    .json();
    assert_eq!(service["spec"]["clusterIP"], "10.43.0.1");
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = admin(&server, "GET", path, Value::Null).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    let port: u64 = server.url.rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(slice["ports"][0]["port"], port);
}
