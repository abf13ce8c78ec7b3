//! All controllers with a real API server: from a Deployment to endpoints, and back to nothing.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ConfigMap, Endpoints, Namespace, Pod, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use world::World;

fn deployment(replicas: i32, image: &str) -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    })
}

async fn pods(world: &World, namespace: &str) -> Vec<Pod> {
    world
        .api::<Pod>(namespace)
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
}

/// Waits until the Deployment has this many pods, all updated and available.
async fn until_available(world: &World, count: i32) {
    let deployments: Api<Deployment> = world.api("default");
    world
        .until(&format!("{count} available pods"), || async {
            let status = deployments.get("web").await?.status.unwrap_or_default();
            Ok::<_, kube::Error>(
                status.available_replicas == Some(count)
                    && status.updated_replicas == Some(count)
                    && status.replicas == Some(count),
            )
        })
        .await;
}

/// Waits until the Service has this many ready endpoints.
async fn until_ready_endpoints(world: &World, count: usize) {
    let slices: Api<EndpointSlice> = world.api("default");
    world
        .until(&format!("{count} ready endpoints"), || async {
            let own = ListParams::default().labels("kubernetes.io/service-name=web");
            let all = slices.list(&own).await?;
            let endpoints = all
                .items
                .iter()
                .flat_map(|slice| slice.endpoints.iter().flatten());
            let ready = endpoints.filter(|e| e.conditions.as_ref().unwrap().ready == Some(true));
            Ok::<_, kube::Error>(ready.count() == count)
        })
        .await;
}

async fn until_addresses(world: &World, count: usize) {
    let endpoints: Api<Endpoints> = world.api("default");
    world
        .until(&format!("Endpoints with {count} addresses"), || async {
            let subsets = endpoints.get("web").await?.subsets.unwrap_or_default();
            let addresses = subsets
                .iter()
                .flat_map(|subset| subset.addresses.iter().flatten());
            Ok::<_, kube::Error>(addresses.count() == count)
        })
        .await;
}

/// Changes the image of the Deployment and waits until all pods have it.
async fn roll_out(world: &World, image: &str) {
    let deployments: Api<Deployment> = world.api("default");
    let patch =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    deployments
        .patch("web", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    world
        .until("all pods of the new image", || async {
            let pods = pods(world, "default").await;
            let new = pods.iter().filter(|pod| {
                pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image)
            });
            let status = deployments.get("web").await?.status.unwrap_or_default();
            Ok::<_, kube::Error>(
                new.count() == 3 && pods.len() == 3 && status.available_replicas == Some(3),
            )
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_becomes_pods_behind_a_service_rolls_scales_and_leaves_nothing_behind() {
    let world = World::new().await;
    world.pretend_node();
    world
        .create::<Deployment>("default", deployment(3, "one"))
        .await;
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    world.create::<Service>("default", service).await;
    until_available(&world, 3).await;
    until_ready_endpoints(&world, 3).await;
    until_addresses(&world, 3).await;

    roll_out(&world, "two").await;
    let deployments: Api<Deployment> = world.api("default");
    let web = deployments.get("web").await.unwrap();
    assert_eq!(
        web.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"],
        "2"
    );

    let scale = json!({"spec": {"replicas": 1}});
    deployments
        .patch("web", &PatchParams::default(), &Patch::Merge(&scale))
        .await
        .unwrap();
    until_available(&world, 1).await;
    until_ready_endpoints(&world, 1).await;

    deployments
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    let sets: Api<ReplicaSet> = world.api("default");
    world
        .until("no ReplicaSet and no pod left", || async {
            let sets = sets.list(&ListParams::default()).await?.items;
            Ok::<_, kube::Error>(sets.is_empty() && pods(&world, "default").await.is_empty())
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_a_new_service_have_the_time_of_its_creation() {
    let world = World::new().await;
    let service = json!({"metadata": {"name": "empty"},
        "spec": {"selector": {"app": "none"}, "ports": [{"port": 80}]}});
    let service = world.create::<Service>("default", service).await;
    let created = service.metadata.creation_timestamp.unwrap().0.to_string();
    let slices: Api<EndpointSlice> = world.api("default");
    world
        .until("a slice with the time", || async {
            let own = ListParams::default().labels("kubernetes.io/service-name=empty");
            let all = slices.list(&own).await?.items;
            let annotations = all
                .first()
                .and_then(|one| one.metadata.annotations.as_ref());
            let time = annotations
                .and_then(|all| all.get("endpoints.kubernetes.io/last-change-trigger-time"));
            Ok::<_, kube::Error>(time == Some(&created))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_begins_with_its_account_and_authority_and_ends_with_everything_in_it() {
    let world = World::new().await;
    world.pretend_node();
    world.namespace("shop").await;
    let accounts: Api<ServiceAccount> = world.api("shop");
    let maps: Api<ConfigMap> = world.api("shop");
    world
        .until("the default account and the authority", || async {
            let account = accounts.get_opt("default").await?;
            let map = maps.get_opt("kube-root-ca.crt").await?;
            let authority = map.and_then(|map| map.data?.remove("ca.crt"));
            Ok::<_, kube::Error>(account.is_some() && authority.as_deref() == Some("CA"))
        })
        .await;
    world
        .create::<Deployment>("shop", deployment(2, "one"))
        .await;
    world
        .until("two pods", || async {
            Ok::<_, kube::Error>(pods(&world, "shop").await.len() == 2)
        })
        .await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces
        .delete("shop", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the namespace is gone", || async {
            Ok::<_, kube::Error>(namespaces.get_opt("shop").await?.is_none())
        })
        .await;
    assert!(pods(&world, "shop").await.is_empty());
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_loses_its_pods_before_anything_else() {
    let world = World::new().await;
    world.namespace("shop").await;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]},
        "spec": {"containers": [{"name": "c", "image": "one"}]}});
    world.create::<Pod>("shop", held).await;
    let map = json!({"metadata": {"name": "map", "finalizers": ["example.com/map"]}});
    world.create::<ConfigMap>("shop", map).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let params = DeleteParams::default();
    namespaces.delete("shop", &params).await.unwrap();
    let says = |part: &'static str| {
        let namespaces = namespaces.clone();
        move || {
            let namespaces = namespaces.clone();
            async move {
                let status = namespaces.get("shop").await?.status.unwrap_or_default();
                let mut conditions = status.conditions.into_iter().flatten();
                let said = |text: Option<String>| text.is_some_and(|text| text.contains(part));
                Ok::<_, kube::Error>(conditions.any(|condition| said(condition.message)))
            }
        }
    };
    world
        .until("the pod holds it", says("pods. has 1 resource instances"))
        .await;
    let maps: Api<ConfigMap> = world.api("shop");
    let deleted = |map: ConfigMap| map.metadata.deletion_timestamp.is_some();
    assert!(!deleted(maps.get("map").await.unwrap()), "pods go first");
    assert!(
        pods(&world, "shop").await[0]
            .metadata
            .deletion_timestamp
            .is_some()
    );
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let patch = PatchParams::default();
    let api: Api<Pod> = world.api("shop");
    api.patch("held", &patch, &release).await.unwrap();
    world
        .until(
            "the map holds it",
            says("configmaps. has 1 resource instances"),
        )
        .await;
    assert!(deleted(maps.get("map").await.unwrap()));
    maps.patch("map", &patch, &release).await.unwrap();
    world
        .until("the namespace is gone", || async {
            Ok::<_, kube::Error>(namespaces.get_opt("shop").await?.is_none())
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_deleted_in_the_foreground_goes_last_and_orphans_stay() {
    let world = World::new().await;
    world.pretend_node();
    world
        .create::<Deployment>("default", deployment(1, "one"))
        .await;
    let deployments: Api<Deployment> = world.api("default");
    let sets: Api<ReplicaSet> = world.api("default");
    let none = || async { Ok::<_, kube::Error>(pods(&world, "default").await.is_empty()) };
    world
        .until("a pod", || async { none().await.map(|none| !none) })
        .await;
    deployments
        .delete("web", &DeleteParams::foreground())
        .await
        .unwrap();
    world
        .until("the deployment is gone", || async {
            Ok::<_, kube::Error>(deployments.get_opt("web").await?.is_none())
        })
        .await;
    assert!(
        sets.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty(),
        "it went first"
    );

    world
        .create::<Deployment>("default", deployment(1, "one"))
        .await;
    world
        .until("a pod again", || async { none().await.map(|none| !none) })
        .await;
    deployments
        .delete("web", &DeleteParams::orphan())
        .await
        .unwrap();
    world
        .until("the deployment is gone again", || async {
            Ok::<_, kube::Error>(deployments.get_opt("web").await?.is_none())
        })
        .await;
    let left = sets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(left.len(), 1);
    assert!(
        left[0]
            .metadata
            .owner_references
            .as_deref()
            .unwrap_or_default()
            .is_empty()
    );
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_in_a_circle_do_not_wait_for_each_other_forever() {
    let world = World::new().await;
    let maps: Api<ConfigMap> = world.api("default");
    let names = ["one", "two", "three"];
    let mut uids = Vec::new();
    for name in names {
        let made = world
            .create::<ConfigMap>("default", json!({"metadata": {"name": name}}))
            .await;
        uids.push(made.metadata.uid.unwrap());
    }
    for (place, name) in names.iter().enumerate() {
        let owner = (place + 2) % 3;
        let patch = json!({"metadata": {"ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": names[owner], "uid": uids[owner],
            "controller": true, "blockOwnerDeletion": true,
        }]}});
        maps.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }
    maps.delete("one", &DeleteParams::foreground())
        .await
        .unwrap();
    world
        .until("all are gone", || async {
            let left = maps.list(&ListParams::default()).await?.items;
            let ours = |map: &ConfigMap| names.contains(&map.metadata.name.as_deref().unwrap());
            Ok::<_, kube::Error>(!left.iter().any(ours))
        })
        .await;
    world.stop.cancel();
}
