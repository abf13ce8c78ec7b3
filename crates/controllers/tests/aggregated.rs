//! Aggregated API groups whose server does not answer: nothing is forgotten, and nothing is
//! deleted.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use world::World;

const NAME: &str = "v1.agg.example.com";

/// Registers a group whose server does not exist.
async fn register(world: &World) -> Api<APIService> {
    let services: Api<APIService> = Api::all(world.client.clone());
    let service = json!({"metadata": {"name": NAME}, "spec": {
        "group": "agg.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
        "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "backend"}}});
    let service = serde_json::from_value(service).unwrap();
    services
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    world
        .until("it is known to be away", || async {
            let status = services.get(NAME).await?.status.unwrap_or_default();
            let mut conditions = status.conditions.into_iter().flatten();
            let is_away = |reason: Option<String>| reason.as_deref() == Some("ServiceNotFound");
            Ok::<_, kube::Error>(conditions.any(|one| is_away(one.reason)))
        })
        .await;
    services
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_deletion_waits_for_unavailable_api_groups() {
    let world = World::new().await;
    let services = register(&world).await;
    world.namespace("shop").await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let params = DeleteParams::default();
    namespaces.delete("shop", &params).await.unwrap();
    let expected = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: agg.example.com/v1: stale GroupVersion discovery: agg.example.com/v1";
    world
        .until("the group holds it", || async {
            let status = namespaces.get("shop").await?.status.unwrap_or_default();
            let mut conditions = status.conditions.into_iter().flatten();
            Ok::<_, kube::Error>(conditions.any(|condition| {
                condition.type_ == "NamespaceDeletionDiscoveryFailure"
                    && condition.message.as_deref() == Some(expected)
            }))
        })
        .await;
    services.delete(NAME, &params).await.unwrap();
    world
        .until("the namespace is gone", || async {
            Ok::<_, kube::Error>(namespaces.get_opt("shop").await?.is_none())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_of_aggregated_objects_stay_while_their_server_is_unavailable() {
    let world = World::new().await;
    register(&world).await;
    let owned = |name: &str, api_version: &str, kind: &str| {
        json!({"metadata": {"name": name, "ownerReferences": [
            {"apiVersion": api_version, "kind": kind, "name": "gone", "uid": "1"}]}})
    };
    let theirs = owned("theirs", "agg.example.com/v1", "Thing");
    world.create::<ConfigMap>("default", theirs).await;
    let ours = owned("ours", "v1", "Secret");
    world.create::<ConfigMap>("default", ours).await;
    let maps: Api<ConfigMap> = world.api("default");
    world
        .until("the collector is at work", || async {
            Ok::<_, kube::Error>(maps.get_opt("ours").await?.is_none())
        })
        .await;
    let kept = maps.get("theirs").await.unwrap();
    assert!(kept.metadata.deletion_timestamp.is_none());
}
