//! Workloads other than Deployments, with a real API server.

#![allow(clippy::unwrap_used)]

mod world;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{Event, Node, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use stdx::FakeClock;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stateful_set_with_on_delete_gives_a_deleted_pod_the_new_template() {
    let world = World::new().await;
    world.pretend_node();
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2,
            "serviceName": "db",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {"app": "db"}},
            "template": template(json!({"app": "db"})),
        },
    });
    world.create::<StatefulSet>("default", set).await;
    let sets: Api<StatefulSet> = world.api("default");
    let status =
        || async { Ok::<_, kube::Error>(sets.get("db").await?.status.unwrap_or_default()) };
    world
        .until("two pods", || async {
            Ok::<_, kube::Error>(status().await?.ready_replicas == Some(2))
        })
        .await;
    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}});
    let params = PatchParams::default();
    sets.patch("db", &params, &Patch::Merge(&image))
        .await
        .unwrap();
    world
        .until("a new revision", || async {
            let status = status().await?;
            Ok::<_, kube::Error>(status.update_revision != status.current_revision)
        })
        .await;
    let pods: Api<Pod> = world.api("default");
    pods.delete("db-0", &Default::default()).await.unwrap();
    let images = || async {
        let pods = pods.list(&ListParams::default()).await?.items;
        let image = |pod: &Pod| pod.spec.as_ref()?.containers[0].image.clone();
        let images = pods.iter().filter_map(image).collect::<Vec<_>>();
        Ok::<_, kube::Error>((images, status().await?.ready_replicas))
    };
    world
        .until("the deleted pod is new, the other is not", || async {
            let (images, ready) = images().await?;
            Ok::<_, kube::Error>(images == ["two", "one"] && ready == Some(2))
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_go_with_the_pod_that_is_scaled_away_and_with_the_set() {
    let world = World::new().await;
    world.pretend_node();
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 2,
            "serviceName": "db",
            "podManagementPolicy": "Parallel",
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
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
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    // The claims, each with the kind of its owner.
    let owned = || async {
        let claims = claims.list(&ListParams::default()).await?.items;
        let text = claims.into_iter().map(|claim| {
            let owners = claim.metadata.owner_references.unwrap_or_default();
            let kinds: Vec<_> = owners.into_iter().map(|owner| owner.kind).collect();
            format!("{} {}", claim.metadata.name.unwrap(), kinds.join(" "))
        });
        Ok::<_, kube::Error>(text.collect::<Vec<_>>())
    };
    let both = ["data-db-0 StatefulSet", "data-db-1 StatefulSet"];
    world
        .until("the set owns both claims", || async {
            Ok::<_, kube::Error>(owned().await? == both)
        })
        .await;
    let sets: Api<StatefulSet> = world.api("default");
    let scale = |replicas: i32| json!({"spec": {"replicas": replicas}});
    let params = PatchParams::default();
    sets.patch("db", &params, &Patch::Merge(&scale(1)))
        .await
        .unwrap();
    world
        .until("the claim goes with its pod", || async {
            Ok::<_, kube::Error>(owned().await? == both[..1])
        })
        .await;
    sets.patch("db", &params, &Patch::Merge(&scale(2)))
        .await
        .unwrap();
    world
        .until("a new claim for a new pod", || async {
            Ok::<_, kube::Error>(owned().await? == both)
        })
        .await;
    sets.delete("db", &Default::default()).await.unwrap();
    world
        .until("all claims go with the set", || async {
            Ok::<_, kube::Error>(owned().await?.is_empty())
        })
        .await;
    world.stop.cancel();
}

/// With all keys sorted, as Go writes maps.
fn in_order(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            let entries = entries
                .into_iter()
                .map(|(key, value)| (key, in_order(value)));
            Value::Object(entries.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(in_order).collect()),
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_holds_the_patch_that_clients_compute_and_the_cause_of_the_change() {
    let world = World::new().await;
    let set = json!({
        "metadata": {"name": "agent", "annotations": {"kubernetes.io/change-cause": "first"}},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {
                    "containers": [{"name": "c", "image": "one", "ports": [{"containerPort": 80}]}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            },
        },
    });
    world.create::<DaemonSet>("default", set).await;
    let get = |path: &str| {
        let request = http::Request::get(format!("/apis/apps/v1/namespaces/default/{path}"));
        world
            .client
            .request::<Value>(request.body(Vec::new()).unwrap())
    };
    world
        .until("a revision", || async {
            let list = get("controllerrevisions").await?;
            Ok::<_, kube::Error>(
                list["items"]
                    .as_array()
                    .is_some_and(|items| items.len() == 1),
            )
        })
        .await;
    let mut template = get("daemonsets/agent").await.unwrap()["spec"]["template"].clone();
    template["$patch"] = json!("replace");
    let patch = in_order(json!({"spec": {"template": template}}));
    let revision = get("controllerrevisions").await.unwrap()["items"][0].clone();
    assert_eq!(revision["data"].to_string(), patch.to_string());
    let annotations = &revision["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/change-cause"], "first");
    assert_eq!(revision["metadata"]["labels"]["app"], "agent");

    let set = json!({
        "metadata": {"name": "db", "annotations": {"kubernetes.io/change-cause": "second"}},
        "spec": {
            "serviceName": "db", "replicas": 0,
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"containers": [{"name": "c", "image": "one"}]},
            },
        },
    });
    world.create::<StatefulSet>("default", set).await;
    let of_set = async || {
        let list = get("controllerrevisions").await?;
        let mut items = list["items"].as_array().into_iter().flatten();
        let owner = |one: &Value| one["metadata"]["ownerReferences"][0]["kind"].clone();
        let found = items.find(|one| owner(one) == "StatefulSet").cloned();
        Ok::<_, kube::Error>(found)
    };
    world
        .until("a revision of the StatefulSet", || async {
            of_set().await.map(|found| found.is_some())
        })
        .await;
    let revision = of_set().await.unwrap().unwrap();
    let mut template = get("statefulsets/db").await.unwrap()["spec"]["template"].clone();
    template["$patch"] = json!("replace");
    let patch = in_order(json!({"spec": {"template": template}}));
    assert_eq!(revision["data"].to_string(), patch.to_string());
    let annotations = &revision["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/change-cause"], "second");
    world.stop.cancel();
}

/// A pod on a node that tolerates every taint.
async fn pod_on(world: &World, name: &str, node: &str) {
    let object = json!({"metadata": {"name": name}, "spec": {
        "nodeName": node, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "one"}]}});
    let object: Pod = serde_json::from_value(object).unwrap();
    let pods = world.api::<Pod>("default");
    // The namespace's default ServiceAccount is created a moment later.
    world
        .until("the pod", || async {
            let made = pods.create(&PostParams::default(), &object).await;
            made.map(|_| true)
        })
        .await;
    set_ready(world, name).await;
}

async fn set_ready(world: &World, name: &str) {
    let ready = json!({"status": {"phase": "Running",
                                  "conditions": [{"type": "Ready", "status": "True"}]}});
    let (params, patch) = (PatchParams::default(), Patch::Strategic(&ready));
    let pods = world.api::<Pod>("default");
    pods.patch_status(name, &params, &patch).await.unwrap();
}

async fn readiness(world: &World, name: &str) -> Option<String> {
    let pod = world.api::<Pod>("default").get(name).await.unwrap();
    let mut conditions = pod.status?.conditions?.into_iter();
    let ready = conditions.find(|one| one.type_ == "Ready");
    ready.map(|ready| ready.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_lost_node_are_marked_when_it_is_lost_and_not_at_every_later_look() {
    let clock = FakeClock::at(jiff::Timestamp::now());
    let config = controllers::Config::default();
    let world = World::timed(config, Arc::new(clock.clone())).await;
    world.namespace("kube-node-lease").await;
    node(&world, "lost").await;
    pod_on(&world, "a", "lost").await;
    world
        .until("the node to be silent for long enough", || async {
            clock.advance(Duration::from_secs(2));
            Ok::<_, ()>(readiness(&world, "a").await.as_deref() == Some("False"))
        })
        .await;
    // The pod becomes ready again, as when its kubelet returns. The renewed Lease is the node's
    // heartbeat.
    set_ready(&world, "a").await;
    let leases = world.api::<Lease>("kube-node-lease");
    let renew = async || {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "lost"},
            "spec": {"holderIdentity": "lost", "renewTime": format!("{:.6}", jiff::Timestamp::now())}});
        let params = PatchParams::apply("test").force();
        let renewed = leases.patch("lost", &params, &Patch::Apply(&lease)).await;
        renewed.unwrap();
    };
    node(&world, "later").await;
    pod_on(&world, "b", "later").await;
    world
        .until("many looks at all nodes", || async {
            renew().await;
            clock.advance(Duration::from_secs(2));
            Ok::<_, ()>(readiness(&world, "b").await.as_deref() == Some("False"))
        })
        .await;
    assert_eq!(readiness(&world, "a").await.as_deref(), Some("True"));
}

/// A custom kind with a scale subresource.
async fn define_farms(world: &World) -> Api<DynamicObject> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema, "status": schema}}},
        "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
    });
    let definition = json!({
        "metadata": {"name": "farms.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "versions": [version],
            "names": {"plural": "farms", "kind": "Farm"},
        },
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let definition = serde_json::from_value(definition).unwrap();
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Farm"));
    let farms: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), "default", &kind);
    world
        .until("the custom kind", || async {
            farms.list(&ListParams::default()).await.map(|_| true)
        })
        .await;
    farms
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_counts_the_replicas_of_custom_controllers_and_events_name_unmanaged_pods() {
    let world = World::new().await;
    let farms = define_farms(&world).await;
    let farm = json!({
        "apiVersion": "example.com/v1", "kind": "Farm",
        "metadata": {"name": "farm"}, "spec": {"replicas": 7},
    });
    let farm = serde_json::from_value(farm).unwrap();
    let farm = farms.create(&PostParams::default(), &farm).await.unwrap();
    let owner = json!([{
        "apiVersion": "example.com/v1", "kind": "Farm", "name": "farm",
        "uid": farm.metadata.uid, "controller": true,
    }]);
    for (name, owners) in [("owned", owner), ("alone", json!([]))] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "a"}, "ownerReferences": owners},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        world.create::<Pod>("default", pod).await;
    }
    let budget = json!({
        "metadata": {"name": "b"},
        "spec": {"maxUnavailable": "50%", "selector": {"matchLabels": {"app": "a"}}},
    });
    world.create::<PodDisruptionBudget>("default", budget).await;
    let budgets: Api<PodDisruptionBudget> = world.api("default");
    world
        .until("the replicas of the custom controller", || async {
            let status = budgets.get("b").await?.status.unwrap_or_default();
            let seen = (status.expected_pods, status.desired_healthy);
            Ok::<_, kube::Error>(seen == (Some(7), Some(3)))
        })
        .await;
    let events: Api<Event> = world.api("default");
    world
        .until("the event about the other pod", || async {
            let all = events.list(&ListParams::default()).await?.items;
            let mut reasons = all.iter().map(|event| event.reason.as_deref());
            Ok::<_, kube::Error>(reasons.any(|reason| reason == Some("UnmanagedPods")))
        })
        .await;
}
