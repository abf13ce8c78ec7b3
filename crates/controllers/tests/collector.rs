//! The garbage collector on a real API server: restarts, and owners in other namespaces.

#![allow(clippy::unwrap_used)]

mod faults;
mod world;

use std::{sync::Arc, time::Duration};

use faults::{Faults, Faulty};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};
use stdx::SystemClock;
use world::{Server, World};

fn owner_reference(owner: &ConfigMap) -> Value {
    json!([{
        "apiVersion": "v1", "kind": "ConfigMap",
        "name": owner.metadata.name, "uid": owner.metadata.uid,
    }])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_of_an_owner_that_orphans_them_survive_a_restart_with_slow_lists() {
    let server = Server::start().await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client.clone(), "kube-system");
    let secrets: Api<Secret> = Api::namespaced(server.client.clone(), "kube-system");
    let (create, orphan) = (PostParams::default(), PropagationPolicy::Orphan);
    let owner = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    let owner = maps.create(&create, &owner).await.unwrap();
    let meta = json!({"name": "dependent", "ownerReferences": owner_reference(&owner)});
    let dependent = serde_json::from_value(json!({"metadata": meta})).unwrap();
    secrets.create(&create, &dependent).await.unwrap();
    let params = DeleteParams {
        propagation_policy: Some(orphan),
        ..Default::default()
    };
    maps.delete("owner", &params).await.unwrap();
    let waiting = maps.get("owner").await.unwrap();
    assert_eq!(waiting.metadata.finalizers.unwrap(), ["orphan"]);

    let slow = Faults::slow_list(server.connector(), "/secrets", Duration::from_secs(2));
    server.run_controllers(
        &server.context,
        Arc::new(Faulty(slow)),
        Arc::new(SystemClock),
    );
    let gone = async {
        while maps.get_opt("owner").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(world::DEADLINE, gone)
        .await
        .expect("the owner stays");
    let left = secrets.get("dependent").await.unwrap();
    assert_eq!(left.metadata.owner_references, None);
    server.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_in_another_namespace_is_none() {
    let world = World::new().await;
    world.namespace("other").await;
    let owner: ConfigMap = world
        .create("default", json!({"metadata": {"name": "owner"}}))
        .await;
    let owned = |name: &str| json!({"name": name, "ownerReferences": owner_reference(&owner)});
    let _: Secret = world
        .create("default", json!({"metadata": owned("near")}))
        .await;
    let _: Secret = world
        .create("other", json!({"metadata": owned("far")}))
        .await;
    let far = world.api::<Secret>("other");
    world
        .until("the dependent in another namespace goes", || async {
            far.get_opt("far").await.map(|found| found.is_none())
        })
        .await;
    let events = world.api::<Event>("other");
    world
        .until("the reason is recorded", || async {
            let all = events.list(&ListParams::default()).await?;
            Ok::<_, kube::Error>(all.items.iter().any(|event| {
                event.reason.as_deref() == Some("OwnerRefInvalidNamespace")
                    && event.involved_object.name.as_deref() == Some("far")
            }))
        })
        .await;
    let near = world.api::<Secret>("default").get("near").await;
    near.expect("an owner in the same namespace holds its dependent");
    world.stop.cancel();
}
