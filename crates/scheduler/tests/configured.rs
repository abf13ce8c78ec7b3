//! Configured schedulers with a real API server: extenders, several profiles, and leader election.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::{sync::Arc, time::Duration};

use fixture::{Fixture, http::serve, is_on, node, pod_with, until, waits};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use scheduler::{Config, alone, configuration::LeaderElection};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn configured(client: kube::Client, fields: Value) -> Config {
    let mut document = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    });
    let fields = fields.as_object().unwrap().clone();
    document.as_object_mut().unwrap().extend(fields);
    Config::configured(client, &document).unwrap()
}

/// Keeps the nodes of whole objects whose name ends with a letter.
fn keep(body: &Value, letter: char) -> Value {
    let items = body["Nodes"]["items"].as_array().unwrap().clone();
    let (kept, failed): (Vec<Value>, Vec<Value>) = items
        .into_iter()
        .partition(|node| node["metadata"]["name"].as_str().unwrap().ends_with(letter));
    let failed = failed.iter().map(|node| {
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        (name, json!("not by the extender"))
    });
    let failed: serde_json::Map<String, Value> = failed.collect();
    json!({"Nodes": {"items": kept}, "FailedNodes": failed})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extender_filters_nodes_with_a_reason() {
    let url = serve(|_, body| {
        // The extender gets objects as the API has them.
        assert_eq!(body["Pod"]["spec"]["containers"][0]["image"], "i");
        let letter = body["Pod"]["metadata"]["labels"]["app"].as_str().unwrap();
        (200, keep(body, letter.chars().last().unwrap()))
    })
    .await;
    let extenders = json!({"extenders": [{"urlPrefix": url, "filterVerb": "filter"}]});
    let fixture = Fixture::with(|client| configured(client, extenders)).await;
    let (pods, nodes) = (&fixture.pods, &fixture.nodes);
    node(nodes, "node-a", "4").await;
    node(nodes, "node-b", "4").await;
    pod_with(pods, "wants-b", "1", json!({})).await;
    until("the extender's node", pods, "wants-b", |pod| {
        is_on(pod, "node-b")
    })
    .await;
    pod_with(pods, "wants-z", "1", json!({})).await;
    let text = "0/2 nodes are available: 2 not by the extender.";
    until("the extender's reason", pods, "wants-z", |pod| {
        waits(pod).is_some_and(|why| why.starts_with(text))
    })
    .await;
    // Any event may change an extender's response.
    node(nodes, "node-z", "4").await;
    until("the new node", pods, "wants-z", |pod| is_on(pod, "node-z")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_extender_is_reported_on_the_pod() {
    let extenders = json!({"extenders": [{"urlPrefix": "http://127.0.0.1:1", "filterVerb": "f"}]});
    let fixture = Fixture::with(|client| configured(client, extenders)).await;
    node(&fixture.nodes, "n", "4").await;
    pod_with(&fixture.pods, "p", "1", json!({})).await;
    until("the error", &fixture.pods, "p", |pod| {
        waits(pod).is_some_and(|why| why.contains("http://127.0.0.1:1"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_of_one_process_place_pods_by_their_own_rules() {
    let pack = json!([{"name": "NodeResourcesFit", "args": {"scoringStrategy": {
        "type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}}}]);
    let profiles = json!({"profiles": [
        {"schedulerName": "default-scheduler"},
        {"schedulerName": "packing", "pluginConfig": pack},
    ]});
    let fixture = Fixture::with(|client| configured(client, profiles)).await;
    let (pods, nodes) = (&fixture.pods, &fixture.nodes);
    node(nodes, "a", "4").await;
    pod_with(pods, "first", "2", json!({})).await;
    until("on the only node", pods, "first", |pod| is_on(pod, "a")).await;
    node(nodes, "b", "4").await;
    // The new node is known once a pod runs there that fits nowhere else.
    pod_with(pods, "probe", "3", json!({})).await;
    until("on the new node", pods, "probe", |pod| is_on(pod, "b")).await;
    let packed = json!({"schedulerName": "packing"});
    pod_with(pods, "packed", "1", packed).await;
    until("on the fuller node", pods, "packed", |pod| is_on(pod, "b")).await;
    let other = json!({"schedulerName": "another-scheduler"});
    pod_with(pods, "not-ours", "1", other).await;
    pod_with(pods, "spread", "1", json!({})).await;
    until("on the emptier node", pods, "spread", |pod| is_on(pod, "a")).await;
    let not_ours = pods.get("not-ours").await.unwrap();
    assert!(waits(&not_ours).is_none() && not_ours.spec.unwrap().node_name.is_none());
}

/// A process of its own, as `mainstay scheduler` runs it.
fn process(
    fixture: &Fixture,
    identity: &'static str,
) -> (
    CancellationToken,
    tokio::task::JoinHandle<Result<(), String>>,
) {
    let election = LeaderElection {
        lease_duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        retry_period: Duration::from_millis(100),
        ..LeaderElection::default()
    };
    let (client, stop) = (fixture.own.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let config = |client| Ok(Config::new(client));
    let running =
        async move { alone::run(client, Some(&election), identity, config, &stopped).await };
    (stop, tokio::spawn(running))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_one_schedules_and_the_other_takes_over() {
    let fixture = Fixture::without_scheduler().await;
    let fixture = Arc::new(fixture);
    let (pods, nodes) = (&fixture.pods, &fixture.nodes);
    node(nodes, "n", "4").await;
    let (stop, first) = process(&fixture, "first");
    pod_with(pods, "one", "1", json!({})).await;
    until("the first process", pods, "one", |pod| is_on(pod, "n")).await;
    let (other_stop, second) = process(&fixture, "second");
    let leases: Api<Lease> = Api::namespaced(fixture.admin.clone(), "kube-system");
    let holder = async || {
        let lease = leases.get("kube-scheduler").await.unwrap();
        lease.spec.unwrap().holder_identity
    };
    assert_eq!(holder().await.as_deref(), Some("first"));
    stop.cancel();
    assert_eq!(first.await.unwrap(), Ok(()));
    pod_with(pods, "two", "1", json!({})).await;
    until("the second process", pods, "two", |pod| is_on(pod, "n")).await;
    assert_eq!(holder().await.as_deref(), Some("second"));
    other_stop.cancel();
    assert_eq!(second.await.unwrap(), Ok(()));
}
