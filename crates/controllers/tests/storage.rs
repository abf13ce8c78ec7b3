//! Volumes with a real API server: claims are bound, provisioned and reclaimed, and CSI volumes are
//! attached and detached. The test acts as the scheduler, the kubelet and the CSI driver.

#![allow(clippy::unwrap_used)]

mod world;

use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use world::World;

fn claim(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

async fn create<K>(world: &World, object: Value) -> K
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(world.client.clone());
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

async fn claim_is(world: &World, name: &str, phase: &str) {
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let look = || async {
        let status = claims.get(name).await?.status.unwrap_or_default();
        Ok::<_, kube::Error>(status.phase.as_deref() == Some(phase))
    };
    world.until(&format!("{name} is {phase}"), look).await;
}

async fn volume_is(world: &World, name: &str, phase: Option<&str>) {
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let look = || async {
        let status = volumes.get_opt(name).await?.map(|volume| volume.status);
        let found = status.map(|status| status.unwrap_or_default().phase.unwrap_or_default());
        Ok::<_, kube::Error>(found.as_deref() == phase)
    };
    world.until(&format!("{name} is {phase:?}"), look).await;
}

async fn account_is_there(world: &World, namespace: &str) {
    let accounts: Api<ServiceAccount> = world.api(namespace);
    let look = || async {
        let account = accounts.get_opt("default").await?;
        Ok::<_, kube::Error>(account.is_some())
    };
    world.until("a service account", look).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_bound_released_and_retained() {
    let world = World::new().await;
    let volume = |name: &str, size: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/data"}}})
    };
    create::<PersistentVolume>(&world, volume("large", "5Gi")).await;
    create::<PersistentVolume>(&world, volume("small", "2Gi")).await;
    volume_is(&world, "small", Some("Available")).await;
    volume_is(&world, "large", Some("Available")).await;
    world
        .create::<PersistentVolumeClaim>("default", claim("data", ""))
        .await;
    claim_is(&world, "data", "Bound").await;
    volume_is(&world, "small", Some("Bound")).await;
    volume_is(&world, "large", Some("Available")).await;
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let bound = claims.get("data").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some("small"));
    claims
        .delete("data", &DeleteParams::default())
        .await
        .unwrap();
    volume_is(&world, "small", Some("Released")).await;
    world.stop.cancel();
}

/// The default class, and a node that has volumes of it. Returns the name of the node's cleanup pods.
async fn node_with_volumes(world: &World) -> String {
    account_is_there(world, "kube-system").await;
    let class = serde_json::to_value(controllers::localpath::class()).unwrap();
    create::<StorageClass>(world, class).await;
    let root = json!({"mainstay.dev/local-path-root": "/var/lib/volumes"});
    let labels = json!({"kubernetes.io/hostname": "n1"});
    let node = json!({"metadata": {"name": "n1", "annotations": root, "labels": labels}});
    let node: Node = create(world, node).await;
    format!("local-path-cleanup-{}", node.metadata.uid.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_class_provisions_and_deletes_a_directory_on_the_chosen_node() {
    let world = World::new().await;
    let cleaner = node_with_volumes(&world).await;
    let mut without_class = claim("data", "");
    without_class["spec"]["storageClassName"] = Value::Null;
    let made: PersistentVolumeClaim = world.create("default", without_class).await;
    let class = made.spec.as_ref().unwrap().storage_class_name.as_deref();
    assert_eq!(class, Some("local-path"));
    let chosen = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}});
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let params = PatchParams::default();
    claims
        .patch("data", &params, &Patch::Merge(&chosen))
        .await
        .unwrap();
    claim_is(&world, "data", "Bound").await;
    let name = format!("pvc-{}", made.metadata.uid.unwrap());
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let local = volumes.get(&name).await.unwrap().spec.unwrap().local;
    assert_eq!(local.unwrap().path, format!("/var/lib/volumes/{name}"));

    claims
        .delete("data", &DeleteParams::default())
        .await
        .unwrap();
    let pods: Api<Pod> = world.api("kube-system");
    let look = || async { Ok::<_, kube::Error>(pods.get_opt(&cleaner).await?.is_some()) };
    world.until("a cleaner", look).await;
    let kept = volumes.get(&name).await.unwrap();
    assert_eq!(kept.status.unwrap().phase.as_deref(), Some("Released"));
    let done = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status(&cleaner, &params, &Patch::Merge(&done))
        .await
        .unwrap();
    volume_is(&world, &name, None).await;
    let look = || async { Ok::<_, kube::Error>(pods.get_opt(&cleaner).await?.is_none()) };
    world.until("the cleaner goes with its volume", look).await;
    world.stop.cancel();
}

/// A claim of the default class with its volume, whose name is returned.
async fn provisioned(world: &World, name: &str) -> String {
    let mut wanted = claim(name, "local-path");
    wanted["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n1"});
    let made: PersistentVolumeClaim = world.create("default", wanted).await;
    claim_is(world, name, "Bound").await;
    format!("pvc-{}", made.metadata.uid.unwrap())
}

/// Waits for a cleanup pod that removes the data of exactly one volume.
async fn cleaner_of(world: &World, cleaner: &str, volume: &str) {
    let pods: Api<Pod> = world.api("kube-system");
    let look = || async {
        let pod = pods.get_opt(cleaner).await?;
        let owners = pod.and_then(|pod| pod.metadata.owner_references);
        let owners = owners.unwrap_or_default();
        Ok::<_, kube::Error>(matches!(&owners[..], [only] if only.name == volume))
    };
    world.until(&format!("a cleaner of {volume}"), look).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_retained_in_time_keeps_its_data_and_one_that_stays_delays_no_other() {
    let world = World::new().await;
    let cleaner = node_with_volumes(&world).await;
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let pods: Api<Pod> = world.api("kube-system");
    let delete = |name: &'static str| {
        let claims = claims.clone();
        async move { claims.delete(name, &DeleteParams::default()).await.unwrap() }
    };
    let params = PatchParams::default();
    let (a, b, c) = (
        provisioned(&world, "a").await,
        provisioned(&world, "b").await,
        provisioned(&world, "c").await,
    );

    // The node is away, and its pods do not start.
    delete("a").await;
    cleaner_of(&world, &cleaner, &a).await;
    let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    volumes
        .patch(&a, &params, &Patch::Merge(&retain))
        .await
        .unwrap();
    let look = || async {
        let pod = pods.get_opt(&cleaner).await?;
        Ok::<_, kube::Error>(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
    };
    world.until("the cleaner to be deleted", look).await;
    let now = DeleteParams::default().grace_period(0);
    let _ = pods.delete(&cleaner, &now).await;

    // A backup has not ended yet.
    let finalizers = volumes.get(&b).await.unwrap().metadata.finalizers;
    let mut finalizers = finalizers.unwrap_or_default();
    finalizers.push("example.com/backup".to_owned());
    let hold = json!({"metadata": {"finalizers": finalizers}});
    volumes
        .patch(&b, &params, &Patch::Merge(&hold))
        .await
        .unwrap();
    delete("b").await;
    cleaner_of(&world, &cleaner, &b).await;
    let done = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status(&cleaner, &params, &Patch::Merge(&done))
        .await
        .unwrap();
    let look = || async {
        let leaving = volumes.get(&b).await?.metadata.deletion_timestamp;
        Ok::<_, kube::Error>(leaving.is_some())
    };
    world.until("the second volume to be deleted", look).await;

    delete("c").await;
    cleaner_of(&world, &cleaner, &c).await;
    let kept = volumes.get(&a).await.unwrap();
    let finalizers = kept.metadata.finalizers.unwrap_or_default();
    assert!(
        !finalizers.iter().any(|it| it.contains("external")),
        "{finalizers:?}"
    );
    assert_eq!(kept.status.unwrap().phase.as_deref(), Some("Released"));
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recycled_volume_is_emptied_by_a_pod_and_available_again() {
    let world = World::new().await;
    account_is_there(&world, "default").await;
    let volume = json!({"metadata": {"name": "pv"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": "/data"}}});
    create::<PersistentVolume>(&world, volume).await;
    world
        .create::<PersistentVolumeClaim>("default", claim("data", ""))
        .await;
    volume_is(&world, "pv", Some("Bound")).await;
    // Another pod of that name does not count, even if it succeeds.
    let (pods, params): (Api<Pod>, _) = (world.api("default"), PatchParams::default());
    let name = "recycler-for-pv";
    let forged = json!({"metadata": {"name": name}, "spec": {
        "containers": [{"name": "c", "image": "i"}]}});
    let forged: Pod = world.create("default", forged).await;
    let done = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status(name, &params, &Patch::Merge(&done))
        .await
        .unwrap();
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let delete = DeleteParams::default();
    claims.delete("data", &delete).await.unwrap();
    volume_is(&world, "pv", Some("Failed")).await;
    let look = || async {
        let found = pods.get_opt(name).await?;
        let uid = found.and_then(|pod| pod.metadata.uid);
        Ok::<_, kube::Error>(uid.is_some() && uid != forged.metadata.uid)
    };
    world.until("the recycler", look).await;
    pods.patch_status(name, &params, &Patch::Merge(&done))
        .await
        .unwrap();
    volume_is(&world, "pv", Some("Available")).await;
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let spec = volumes.get("pv").await.unwrap().spec.unwrap();
    assert_eq!(spec.claim_ref, None);
    let look = || async { Ok::<_, kube::Error>(pods.get_opt(name).await?.is_none()) };
    world.until("the recycler is deleted", look).await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recycler_that_has_not_started_goes_when_its_volume_is_to_be_retained() {
    let world = World::new().await;
    account_is_there(&world, "default").await;
    let volume = json!({"metadata": {"name": "pv"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": "/data"}}});
    create::<PersistentVolume>(&world, volume).await;
    world
        .create::<PersistentVolumeClaim>("default", claim("data", ""))
        .await;
    volume_is(&world, "pv", Some("Bound")).await;
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let delete = DeleteParams::default();
    claims.delete("data", &delete).await.unwrap();
    let pods: Api<Pod> = world.api("default");
    let is_there = || async {
        pods.get_opt("recycler-for-pv")
            .await
            .map(|pod| pod.is_some())
    };
    world.until("the recycler", is_there).await;
    let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    volumes
        .patch("pv", &PatchParams::default(), &Patch::Merge(&retain))
        .await
        .unwrap();
    let is_gone = || async { is_there().await.map(|is_there| !is_there) };
    world.until("no recycler", is_gone).await;
    volume_is(&world, "pv", Some("Released")).await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_host_path_volume_takes_its_directory_with_it() {
    let world = World::new().await;
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("tmp/data");
    std::fs::create_dir_all(path.join("inner")).unwrap();
    let volume = json!({"metadata": {"name": "pv"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": path}}});
    create::<PersistentVolume>(&world, volume).await;
    world
        .create::<PersistentVolumeClaim>("default", claim("data", ""))
        .await;
    volume_is(&world, "pv", Some("Bound")).await;
    assert!(path.exists());
    let claims: Api<PersistentVolumeClaim> = world.api("default");
    let delete = DeleteParams::default();
    claims.delete("data", &delete).await.unwrap();
    volume_is(&world, "pv", None).await;
    assert!(!path.exists());
    world.stop.cancel();
}

/// A node managed by the attachdetach controller, and a pod on it with a bound CSI volume.
async fn attached_world() -> World {
    let world = World::new().await;
    account_is_there(&world, "default").await;
    let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    create::<Node>(
        &world,
        json!({"metadata": {"name": "n1", "annotations": managed}}),
    )
    .await;
    let csi = json!({"driver": "x.io", "volumeHandle": "v1"});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "csi": csi}});
    create::<PersistentVolume>(&world, volume).await;
    world
        .create::<PersistentVolumeClaim>("default", claim("data", ""))
        .await;
    claim_is(&world, "data", "Bound").await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let pod = json!({"metadata": {"name": "db"}, "spec": {"nodeName": "n1", "volumes": volumes,
        "containers": [{"name": "c", "image": "i"}]}});
    world.create::<Pod>("default", pod).await;
    world
}

async fn set_status(world: &World, status: Value) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let status = json!({"status": status});
    let params = PatchParams::default();
    let patch = Patch::Merge(&status);
    nodes.patch_status("n1", &params, &patch).await.unwrap();
}

async fn reported(world: &World) -> Result<Vec<String>, kube::Error> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let status = nodes.get("n1").await?.status.unwrap_or_default();
    let attached = status.volumes_attached.unwrap_or_default().into_iter();
    Ok(attached.map(|volume| volume.name).collect())
}

/// Two PersistentVolumes with one handle are one volume, which `attachment` has for its node.
async fn a_second_volume_with_its_handle_waits_on_another_node(world: &World, attachment: &str) {
    let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    create::<Node>(
        world,
        json!({"metadata": {"name": "n2", "annotations": managed}}),
    )
    .await;
    let csi = json!({"driver": "x.io", "volumeHandle": "v1"});
    let volume = json!({"metadata": {"name": "pv2"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "csi": csi}});
    create::<PersistentVolume>(world, volume).await;
    world
        .create::<PersistentVolumeClaim>("default", claim("data2", ""))
        .await;
    claim_is(world, "data2", "Bound").await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data2"}}]);
    let pod = json!({"metadata": {"name": "db2"}, "spec": {"nodeName": "n2", "volumes": volumes,
        "containers": [{"name": "c", "image": "i"}]}});
    world.create::<Pod>("default", pod).await;
    let events: Api<Event> = world.api("default");
    let waits = || async {
        let all = events.list(&ListParams::default()).await?;
        Ok::<_, kube::Error>(all.items.iter().any(|event| {
            event.involved_object.name.as_deref() == Some("db2")
                && event.reason.as_deref() == Some("FailedAttachVolume")
                && event
                    .message
                    .as_deref()
                    .is_some_and(|it| it.ends_with("by pod(s) db"))
        }))
    };
    world.until("an event of the second pod", waits).await;
    let attachments: Api<VolumeAttachment> = Api::all(world.client.clone());
    let all = attachments.list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = all
        .items
        .iter()
        .filter_map(|it| it.metadata.name.as_deref())
        .collect();
    assert_eq!(names, [attachment]);
    let pods: Api<Pod> = world.api("default");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("db2", &now).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_csi_volume_is_attached_for_a_pod_and_detached_when_its_node_is_done_with_it() {
    let world = attached_world().await;
    let attachments: Api<VolumeAttachment> = Api::all(world.client.clone());
    let list = || async { attachments.list(&ListParams::default()).await };
    let one = || async { Ok::<_, kube::Error>(list().await?.items.len() == 1) };
    world.until("an attachment", one).await;
    assert_eq!(
        reported(&world).await.unwrap(),
        [""; 0],
        "the driver has not done it yet"
    );
    let attachment = list().await.unwrap().items.remove(0);
    assert_eq!(attachment.spec.attacher, "x.io");
    let name = attachment.metadata.name.unwrap();
    let (params, done) = (
        PatchParams::default(),
        json!({"status": {"attached": true}}),
    );
    attachments
        .patch_status(&name, &params, &Patch::Merge(&done))
        .await
        .unwrap();
    let unique = "kubernetes.io/csi/x.io^v1";
    let is_reported = || async { Ok::<_, kube::Error>(reported(&world).await? == [unique]) };
    world
        .until("the volume in the status of the node", is_reported)
        .await;

    // Without the condition nothing would be detached for minutes.
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let status = json!({"volumesInUse": [unique], "conditions": ready});
    set_status(&world, status).await;
    a_second_volume_with_its_handle_waits_on_another_node(&world, &name).await;
    // Also without the PersistentVolume that names the handle.
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    volumes
        .delete("pv", &DeleteParams::default())
        .await
        .unwrap();
    let no_finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes.patch("pv", &params, &no_finalizers).await.unwrap();
    let is_gone = || async { Ok::<_, kube::Error>(volumes.get_opt("pv").await?.is_none()) };
    world.until("no PersistentVolume", is_gone).await;
    claim_is(&world, "data", "Lost").await;
    let pods: Api<Pod> = world.api("default");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("db", &now).await.unwrap();
    assert_eq!(
        list().await.unwrap().items.len(),
        1,
        "the node uses it still"
    );
    set_status(&world, json!({"volumesInUse": []})).await;
    let none = || async { Ok::<_, kube::Error>(list().await?.items.is_empty()) };
    world.until("no attachment", none).await;
    assert_eq!(reported(&world).await.unwrap(), [""; 0]);
    world.stop.cancel();
}
