//! Aggregated API groups: namespace deletion, garbage collection and quotas include their objects.
//! While their server does not answer, nothing is forgotten, and nothing is deleted.

#![allow(clippy::unwrap_used)]

mod backend;
#[path = "../world/mod.rs"]
mod world;

use std::sync::Arc;

use backend::{Backend, GROUP};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, ResourceQuota},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use stdx::SystemClock;
use world::{Server, World};

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

/// A cluster with an aggregated API server, both with the namespace `shop`.
async fn with_backend() -> (World, Backend) {
    let server = Server::start().await;
    let backend = Backend::install(&server).await;
    let config = controllers::Config::default();
    let world = World::of(server, config, Arc::new(SystemClock)).await;
    world.namespace("shop").await;
    backend.namespace("shop").await;
    (world, backend)
}

fn owned(name: &str, api_version: &str, kind: &str, owner: &ObjectMeta) -> Value {
    json!({"name": name, "ownerReferences": [
        {"apiVersion": api_version, "kind": kind, "name": owner.name, "uid": owner.uid}]})
}

/// A condition of the namespace `shop`, with its status.
async fn has_condition(world: &World, kind: &str, reason: &str) -> Result<bool, kube::Error> {
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let status = namespaces.get("shop").await?.status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    Ok(conditions.any(|one| one.type_ == kind && one.reason.as_deref() == Some(reason)))
}

async fn delete_shop(world: &World) -> Api<Namespace> {
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let deleted = namespaces.delete("shop", &DeleteParams::default()).await;
    deleted.unwrap();
    namespaces
}

async fn until_shop_is_gone(world: &World, namespaces: &Api<Namespace>) {
    world
        .until("the namespace is gone", || async {
            Ok::<_, kube::Error>(namespaces.get_opt("shop").await?.is_none())
        })
        .await;
}

async fn is_gone(things: &Api<DynamicObject>, name: &str) -> Result<bool, kube::Error> {
    Ok(things.get_opt(name).await?.is_none())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_deletion_deletes_aggregated_objects() {
    let (world, backend) = with_backend().await;
    backend.make_thing("shop", json!({"name": "theirs"})).await;
    backend
        .make_thing("default", json!({"name": "other"}))
        .await;
    let namespaces = delete_shop(&world).await;
    until_shop_is_gone(&world, &namespaces).await;
    assert!(
        is_gone(&backend.stored_things("shop"), "theirs")
            .await
            .unwrap()
    );
    let other = backend.stored_things("default").get("other").await;
    other.expect("other namespaces are not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_waits_for_the_finalizers_of_aggregated_objects() {
    let (world, backend) = with_backend().await;
    let meta = json!({"name": "theirs", "finalizers": ["example.com/hold"]});
    backend.make_thing("shop", meta).await;
    let namespaces = delete_shop(&world).await;
    let remaining = "Some resources are remaining: things.agg.example.com has 1 resource instances";
    world
        .until("the object holds it", || async {
            let status = namespaces.get("shop").await?.status.unwrap_or_default();
            let mut messages = status
                .conditions
                .into_iter()
                .flatten()
                .map(|one| one.message);
            Ok::<_, kube::Error>(messages.any(|text| text.as_deref() == Some(remaining)))
        })
        .await;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let things = backend.things("shop");
    let released = things
        .patch("theirs", &PatchParams::default(), &patch)
        .await;
    released.unwrap();
    until_shop_is_gone(&world, &namespaces).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_stays_terminating_while_a_server_of_its_objects_is_away() {
    let (world, backend) = with_backend().await;
    backend.make_thing("shop", json!({"name": "theirs"})).await;
    world
        .create::<ConfigMap>("shop", json!({"metadata": {"name": "ours"}}))
        .await;
    backend.cut();
    let namespaces = delete_shop(&world).await;
    // Discovery may or may not have noticed it.
    let failed = || async {
        let listing = "NamespaceDeletionContentFailure";
        let listing = has_condition(&world, listing, "ContentDeletionFailed").await?;
        let discovery = "NamespaceDeletionDiscoveryFailure";
        Ok::<_, kube::Error>(listing || has_condition(&world, discovery, "DiscoveryFailed").await?)
    };
    world.until("a failure is shown", failed).await;
    backend.leave().await;
    let kind = "NamespaceDeletionDiscoveryFailure";
    world
        .until("discovery fails", || {
            has_condition(&world, kind, "DiscoveryFailed")
        })
        .await;
    let maps = world.api::<ConfigMap>("shop");
    world
        .until("other objects are deleted", || async {
            maps.get_opt("ours").await.map(|found| found.is_none())
        })
        .await;
    backend.stored_things("shop").get("theirs").await.unwrap();
    backend.come_back().await;
    until_shop_is_gone(&world, &namespaces).await;
    assert!(
        is_gone(&backend.stored_things("shop"), "theirs")
            .await
            .unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_and_dependents_may_be_aggregated_objects() {
    let (world, backend) = with_backend().await;
    let group_version = format!("{GROUP}/v1");
    let owner = backend.make_thing("shop", json!({"name": "owner"})).await;
    let near = owned("near", &group_version, "Thing", &owner.metadata);
    world
        .create::<ConfigMap>("shop", json!({"metadata": near}))
        .await;
    let local = json!({"metadata": {"name": "owner"}});
    let local: ConfigMap = world.create("shop", local).await;
    let far = owned("far", "v1", "ConfigMap", &local.metadata);
    backend.make_thing("shop", far).await;

    let maps = world.api::<ConfigMap>("shop");
    let (things, params) = (backend.things("shop"), DeleteParams::default());
    things.delete("owner", &params).await.unwrap();
    world
        .until(
            "the dependent of an aggregated owner is deleted",
            || async { maps.get_opt("near").await.map(|found| found.is_none()) },
        )
        .await;
    assert!(!is_gone(&things, "far").await.unwrap());
    maps.delete("owner", &params).await.unwrap();
    let stored = backend.stored_things("shop");
    world
        .until("the aggregated dependent is deleted", || {
            is_gone(&stored, "far")
        })
        .await;
}

/// Creates an object whose owner does not exist, and waits until it is deleted.
async fn until_collecting(world: &World, name: &str) {
    let gone = ObjectMeta {
        name: Some("gone".to_owned()),
        uid: Some("1".to_owned()),
        ..ObjectMeta::default()
    };
    let dangling = owned(name, "v1", "Secret", &gone);
    let dangling: ConfigMap = world.create("shop", json!({"metadata": dangling})).await;
    let maps = world.api::<ConfigMap>("shop");
    let name = dangling.metadata.name.unwrap();
    world
        .until("the collector is at work", || async {
            maps.get_opt(&name).await.map(|found| found.is_none())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_outlive_an_owner_whose_server_is_away_until_it_comes_back() {
    let (world, backend) = with_backend().await;
    let group_version = format!("{GROUP}/v1");
    let owner = backend.make_thing("shop", json!({"name": "owner"})).await;
    let near = owned("near", &group_version, "Thing", &owner.metadata);
    world
        .create::<ConfigMap>("shop", json!({"metadata": near}))
        .await;
    // It starts when it has listed all kinds.
    until_collecting(&world, "first").await;
    backend.leave().await;
    // Unknown to other clients while the backend is away.
    let (stored, params) = (backend.stored_things("shop"), DeleteParams::default());
    stored.delete("owner", &params).await.unwrap();

    let maps = world.api::<ConfigMap>("shop");
    let late = owned("late", &group_version, "Thing", &owner.metadata);
    world
        .create::<ConfigMap>("shop", json!({"metadata": late}))
        .await;
    until_collecting(&world, "second").await;
    for name in ["near", "late"] {
        let kept = maps.get(name).await.unwrap();
        assert!(kept.metadata.deletion_timestamp.is_none(), "{name}");
    }
    backend.come_back().await;
    for name in ["near", "late"] {
        world
            .until(
                "dependents go when the owner is known to be gone",
                || async { maps.get_opt(name).await.map(|found| found.is_none()) },
            )
            .await;
    }
}

/// Waits for the usage of the quota `counts` in `shop`.
async fn until_used(world: &World, name: &str, amount: Option<&str>) {
    let quotas = world.api::<ResourceQuota>("shop");
    world
        .until(&format!("{name} is {amount:?}"), || async {
            let status = quotas.get("counts").await?.status.unwrap_or_default();
            let used = status.used.unwrap_or_default();
            let is_counted = used.contains_key("count/configmaps");
            let found = used.get(name).map(|found| found.0.as_str());
            Ok::<_, kube::Error>(is_counted && found == amount)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_count_aggregated_objects_and_keep_the_count_while_their_server_is_away() {
    const THINGS: &str = "count/things.agg.example.com";
    let (world, backend) = with_backend().await;
    let hard = |maps: &str| json!({"spec": {"hard": {THINGS: "1", "count/configmaps": maps}}});
    let mut quota = hard("9");
    quota["metadata"] = json!({"name": "counts"});
    // Admission of this server does not see the request, so the limit does not reject it.
    for name in ["a", "b"] {
        backend.make_thing("shop", json!({"name": name})).await;
    }
    world.create::<ResourceQuota>("shop", quota.clone()).await;
    until_used(&world, THINGS, Some("2")).await;
    let things = backend.things("shop");
    things.delete("a", &DeleteParams::default()).await.unwrap();
    until_used(&world, THINGS, Some("1")).await;

    backend.leave().await;
    let stored = backend.stored_things("shop");
    stored.delete("b", &DeleteParams::default()).await.unwrap();
    world
        .create::<ConfigMap>("shop", json!({"metadata": {"name": "ours"}}))
        .await;
    let quotas = world.api::<ResourceQuota>("shop");
    let (params, delete) = (PatchParams::default(), DeleteParams::default());
    quotas
        .patch("counts", &params, &Patch::Merge(hard("8")))
        .await
        .unwrap();
    let maps = world.api::<ConfigMap>("shop");
    let before = quotas
        .get("counts")
        .await
        .unwrap()
        .status
        .unwrap()
        .used
        .unwrap();
    let count: u32 = before["count/configmaps"].0.parse().unwrap();
    maps.delete("ours", &delete).await.unwrap();
    until_used(&world, "count/configmaps", Some(&(count - 1).to_string())).await;
    until_used(&world, THINGS, Some("1")).await;

    // The count of a new quota is unknown while the server is away, and not zero.
    quotas.delete("counts", &delete).await.unwrap();
    world.create::<ResourceQuota>("shop", quota).await;
    until_used(&world, THINGS, None).await;
    backend.come_back().await;
    until_used(&world, THINGS, Some("0")).await;
}
