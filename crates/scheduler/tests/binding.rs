//! The scheduler with a real API server: pods get nodes, are pending with a reason, and are
//! requeued by events.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::time::Duration;

use fixture::{Fixture, important, is_on, node, pod, pod_with, until, waits};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_bound_or_wait_with_a_reason_until_an_event_helps() {
    let fixture = Fixture::start().await;
    let (pods, nodes, diagnoses) = (&fixture.pods, &fixture.nodes, &fixture.diagnoses);

    pod(pods, "early", "1").await;
    let early = until("a reason without nodes", pods, "early", |pod| {
        waits(pod).is_some()
    })
    .await;
    assert_eq!(
        waits(&early).unwrap(),
        "no nodes available to schedule pods"
    );

    node(nodes, "n1", "2").await;
    until("the first pod on the first node", pods, "early", |pod| {
        is_on(pod, "n1")
    })
    .await;

    pod(pods, "large", "3").await;
    let text = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
                0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let large = until("a reason", pods, "large", |pod| {
        waits(pod).as_deref() == Some(text)
    })
    .await;
    let diagnosis = diagnoses.get(large.metadata.uid.as_deref().unwrap()).await;
    let diagnosis = diagnosis.unwrap();
    let first = &diagnosis.nodes[0];
    assert_eq!((&*first.name, &*first.plugin), ("n1", "NodeResourcesFit"));
    assert_eq!(
        first.reasons,
        ["Insufficient cpu (requests 3, 1 of 2 is free)"]
    );
    assert!(diagnosis.attempts > 0 && diagnosis.queue != "active");
    let placed = early.metadata.uid.as_deref().unwrap();
    assert_eq!(diagnoses.get(placed).await, None, "it has its node");

    pod(pods, "second", "1").await;
    until("the node is full", pods, "second", |pod| is_on(pod, "n1")).await;
    pod(pods, "third", "1").await;
    until("no room", pods, "third", |pod| waits(pod).is_some()).await;
    pods.delete("early", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    until("room was made", pods, "third", |pod| is_on(pod, "n1")).await;

    node(nodes, "n2", "8").await;
    until("a larger node", pods, "large", |pod| is_on(pod, "n2")).await;
    fixture.check_invariants().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_that_is_freed_goes_to_the_pod_that_it_was_freed_for() {
    let fixture = Fixture::start().await;
    let pods = &fixture.pods;
    important(&fixture, "high", 1000).await;
    node(&fixture.nodes, "n1", "2").await;
    // A grace period keeps the victim's resources in use; only the test ends it.
    let slow = json!({"terminationGracePeriodSeconds": 600});
    pod_with(pods, "victim", "2", slow).await;
    until("the victim runs", pods, "victim", |pod| is_on(pod, "n1")).await;

    let priority = json!({"priorityClassName": "high"});
    pod_with(pods, "high", "2", priority).await;
    let nominated = until("a nomination", pods, "high", |pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.nominated_node_name.as_deref()) == Some("n1")
    })
    .await;
    assert_eq!(
        waits(&nominated).unwrap(),
        "0/1 nodes are available: 1 Insufficient cpu."
    );
    let victim = until("the victim is deleted", pods, "victim", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    let conditions = victim.status.unwrap().conditions.unwrap();
    let reason = |kind: &str| {
        let mut all = conditions.iter();
        let found = all.find(|condition| condition.type_ == kind);
        found.and_then(|condition| condition.reason.clone())
    };
    assert_eq!(
        reason("DisruptionTarget").as_deref(),
        Some("PreemptionByScheduler")
    );

    // A pod of lower priority that would fit does not get the freed resources.
    pod(pods, "late", "1").await;
    until("no room for it", pods, "late", |pod| waits(pod).is_some()).await;
    let now = DeleteParams::default().grace_period(0);
    pods.delete("victim", &now).await.unwrap();
    until("the important pod", pods, "high", |pod| is_on(pod, "n1")).await;
    let late = pods.get("late").await.unwrap();
    assert!(!is_on(&late, "n1"), "the room was kept");
    fixture.check_invariants().await;
}

/// A claim of a class with WaitForFirstConsumer.
async fn waiting_claim(fixture: &Fixture, provisioner: &str) -> Api<PersistentVolumeClaim> {
    let classes: Api<StorageClass> = Api::all(fixture.admin.clone());
    let class = json!({"metadata": {"name": "later"}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer"});
    let class = serde_json::from_value(class).unwrap();
    let params = PostParams::default();
    classes.create(&params, &class).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(fixture.admin.clone(), "default");
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "later", "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = serde_json::from_value(claim).unwrap();
    claims.create(&params, &claim).await.unwrap();
    claims
}

/// What the volume controller does at the end of a binding.
async fn complete_binding(claims: &Api<PersistentVolumeClaim>, volume: &str) {
    let completed = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let patch = json!({"metadata": {"annotations": completed}, "spec": {"volumeName": volume}});
    let params = PatchParams::default();
    let patch = Patch::Merge(&patch);
    claims.patch("data", &params, &patch).await.unwrap();
}

fn with_claim() -> Value {
    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_has_a_volume_provisioned_on_its_node_and_is_bound_after_it() {
    let fixture = Fixture::start().await;
    node(&fixture.nodes, "n1", "2").await;
    let claims = waiting_claim(&fixture, "example.com/made").await;
    pod_with(&fixture.pods, "db", "1", with_claim()).await;
    let chosen = async {
        loop {
            let claim = claims.get("data").await.unwrap();
            let annotations = claim.metadata.annotations.unwrap_or_default();
            if let Some(node) = annotations.get("volume.kubernetes.io/selected-node") {
                return node.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let chosen = tokio::time::timeout(Duration::from_secs(30), chosen).await;
    assert_eq!(chosen.unwrap(), "n1");
    assert!(!is_on(&fixture.pods.get("db").await.unwrap(), "n1"));
    let volumes: Api<PersistentVolume> = Api::all(fixture.admin.clone());
    let volume = json!({"metadata": {"name": "made"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "storageClassName": "later",
        "csi": {"driver": "example.com", "volumeHandle": "1"}}});
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    complete_binding(&claims, "made").await;
    until("a node", &fixture.pods, "db", |pod| is_on(pod, "n1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_goes_to_the_node_of_a_volume_that_suits_its_claim() {
    let fixture = Fixture::start().await;
    for name in ["n1", "n2"] {
        node(&fixture.nodes, name, "2").await;
        let labels = json!({"metadata": {"labels": {"kubernetes.io/hostname": name}}});
        let patch = Patch::Merge(&labels);
        let params = PatchParams::default();
        fixture.nodes.patch(name, &params, &patch).await.unwrap();
    }
    let claims = waiting_claim(&fixture, "kubernetes.io/no-provisioner").await;
    pod_with(&fixture.pods, "db", "1", with_claim()).await;
    let none =
        "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.";
    until("no volume", &fixture.pods, "db", |pod| {
        waits(pod).is_some_and(|why| why.starts_with(none))
    })
    .await;
    let on_n2 = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]});
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [on_n2]}]}});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "storageClassName": "later",
        "local": {"path": "/data"}, "nodeAffinity": affinity}});
    let volume = serde_json::from_value(volume).unwrap();
    let volumes: Api<PersistentVolume> = Api::all(fixture.admin.clone());
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    let (params, available) = (
        PatchParams::default(),
        json!({"status": {"phase": "Available"}}),
    );
    let patch = Patch::Merge(&available);
    volumes.patch_status("pv", &params, &patch).await.unwrap();
    let reserved = async {
        loop {
            let spec = volumes.get("pv").await.unwrap().spec.unwrap();
            if let Some(claim) = spec.claim_ref {
                return claim.name;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reserved = tokio::time::timeout(Duration::from_secs(30), reserved).await;
    assert_eq!(reserved.unwrap().as_deref(), Some("data"));
    complete_binding(&claims, "pv").await;
    until("a node", &fixture.pods, "db", |pod| is_on(pod, "n2")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_for_its_claim_and_a_deleted_pod_is_no_longer_tried() {
    let fixture = Fixture::start().await;
    let pods = &fixture.pods;
    node(&fixture.nodes, "n1", "2").await;
    let volumes =
        json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    pod_with(pods, "claims", "1", volumes).await;
    let rest = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let missing = "0/1 nodes are available: persistentvolumeclaim \"data\" not found.";
    until("a missing claim", pods, "claims", |pod| {
        waits(pod).as_deref() == Some(&format!("{missing} {rest}"))
    })
    .await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(fixture.admin.clone(), "default");
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = serde_json::from_value(claim).unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    until("an unbound claim", pods, "claims", |pod| {
        waits(pod).as_deref() == Some(&format!("{unbound} {rest}"))
    })
    .await;

    // A finalizer keeps the deleted pod; free resources must not bind it.
    pod(pods, "leaving", "3").await;
    until("no room", pods, "leaving", |pod| waits(pod).is_some()).await;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/test"]}});
    let patch = Patch::Merge(&finalizer);
    pods.patch("leaving", &PatchParams::default(), &patch)
        .await
        .unwrap();
    pods.delete("leaving", &DeleteParams::default())
        .await
        .unwrap();
    node(&fixture.nodes, "n2", "8").await;
    pod(pods, "witness", "4").await;
    until("the new node is used", pods, "witness", |pod| {
        is_on(pod, "n2")
    })
    .await;
    let leaving = pods.get("leaving").await.unwrap();
    assert!(!is_on(&leaving, "n2"));
}
