//! Workloads other than Deployments, on a real API server.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::Job,
    core::v1::{Node, PersistentVolumeClaim, Pod},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use world::World;

async fn names(world: &World) -> Vec<String> {
    let pods = world
        .api::<Pod>("default")
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let mut names: Vec<String> = pods
        .into_iter()
        .map(|pod| pod.metadata.name.unwrap())
        .collect();
    names.sort();
    names
}

fn template(labels: Value) -> Value {
    json!({
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "one"}]},
    })
}

async fn node(world: &World, name: &str) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let now = jiff::Timestamp::now().to_string();
    let ready = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now},
    ]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&ready))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_set_has_a_pod_on_every_node_and_nodes_get_their_addresses() {
    let world = World::new().await;
    node(&world, "n1").await;
    node(&world, "n2").await;
    let set = json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": template(json!({"app": "agent"})),
        },
    });
    world.create::<DaemonSet>("default", set).await;
    world.pretend_node();
    let sets: Api<DaemonSet> = world.api("default");
    world
        .until("a pod for both nodes", || async {
            let status = sets.get("agent").await?.status.unwrap_or_default();
            Ok::<_, kube::Error>(
                status.desired_number_scheduled == 2 && names(&world).await.len() == 2,
            )
        })
        .await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    world
        .until("addresses and no taint", || async {
            let all = nodes.list(&ListParams::default()).await?.items;
            let mut cidrs: Vec<_> = all
                .iter()
                .filter_map(|node| node.spec.as_ref()?.pod_cidr.clone())
                .collect();
            cidrs.sort();
            let tainted = all.iter().any(|node| {
                node.spec
                    .as_ref()
                    .is_some_and(|spec| spec.taints.as_ref().is_some_and(|t| !t.is_empty()))
            });
            Ok::<_, kube::Error>(cidrs == ["10.42.0.0/24", "10.42.1.0/24"] && !tainted)
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stateful_set_grows_in_order_with_storage_and_replaces_from_the_top() {
    let world = World::new().await;
    world.pretend_node();
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": template(json!({"app": "db"})),
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    });
    world.create::<StatefulSet>("default", set).await;
    let sets: Api<StatefulSet> = world.api("default");
    let settled = || async {
        let set = sets.get("db").await?;
        let status = set.status.unwrap_or_default();
        Ok::<_, kube::Error>(
            status.ready_replicas == Some(2)
                && status.current_revision == status.update_revision
                && status.observed_generation == set.metadata.generation,
        )
    };
    world.until("two pods", settled).await;
    assert_eq!(names(&world).await, ["db-0", "db-1"]);
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let mut made: Vec<_> = claims
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .map(|claim| claim.metadata.name.unwrap())
        .collect();
    made.sort();
    assert_eq!(made, ["data-db-0", "data-db-1"]);
    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}});
    sets.patch("db", &PatchParams::default(), &Patch::Merge(&image))
        .await
        .unwrap();
    world
        .until("both pods of the new image", || async {
            let pods = world
                .api::<Pod>("default")
                .list(&ListParams::default())
                .await?
                .items;
            let new = pods.iter().filter(|pod| {
                pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two")
            });
            Ok::<_, kube::Error>(new.count() == 2 && settled().await?)
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_its_pods_to_the_end_and_counts_each_once() {
    let world = World::new().await;
    world.pretend_node();
    let mut template = template(json!({"finishes": "yes"}));
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({
        "metadata": {"name": "work"},
        "spec": {"completions": 3, "parallelism": 2, "template": template},
    });
    world.create::<Job>("default", job).await;
    let jobs: Api<Job> = world.api("default");
    world
        .until("the job is complete", || async {
            let status = jobs.get("work").await?.status.unwrap_or_default();
            let complete = status
                .conditions
                .iter()
                .flatten()
                .any(|c| c.type_ == "Complete");
            Ok::<_, kube::Error>(complete && status.succeeded == Some(3))
        })
        .await;
    let pods = world
        .api::<Pod>("default")
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    assert_eq!(pods.len(), 3);
    let held = pods.iter().any(|pod| {
        pod.metadata
            .finalizers
            .as_ref()
            .is_some_and(|f| !f.is_empty())
    });
    assert!(!held, "counted pods may go");
    world.stop.cancel();
}
