//! Persistent volumes: claims, local directories, and a CSI driver that registers itself. The test
//! acts as the controllers: it binds claims and attaches volumes.

use csi::{
    Capability,
    testing::{Driver, Fault, Options, Served},
};
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, CSINode, VolumeAttachment},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use pki::Leaf;
use serde_json::{Value, json};

use crate::support::TestNode;

const DRIVER: &str = "disk.csi.example.com";

/// Runs a test in a mount namespace of its own.
fn with_own_mounts<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    use rustix::{mount::MountPropagationFlags, thread::UnshareFlags};
    // SAFETY: this thread belongs to the test, which starts all of its other threads after this.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test());
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl TestNode {
    /// A claim and a volume that refer to each other; bound by [`TestNode::bind`].
    async fn claim(&self, name: &str, mut spec: Value) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), "default");
        let volume = format!("pv-{name}");
        let mode = spec["volumeMode"].clone();
        let mut wanted = json!({"storageClassName": "", "accessModes": ["ReadWriteOnce"],
            "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}});
        if !mode.is_null() {
            wanted["volumeMode"] = mode;
        }
        let claim = from(json!({"metadata": {"name": name}, "spec": wanted}));
        let claim = claims.create(&PostParams::default(), &claim).await.unwrap();
        spec["claimRef"] = json!({"namespace": "default", "name": name, "uid": claim.metadata.uid});
        spec["accessModes"] = json!(["ReadWriteOnce"]);
        spec["capacity"] = json!({"storage": "1Gi"});
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let object = from(json!({"metadata": {"name": volume}, "spec": spec}));
        volumes
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }

    async fn bind(&self, name: &str) {
        self.patch_claim(
            name,
            json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}),
        )
        .await;
    }

    async fn patch_claim(&self, name: &str, status: Value) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), "default");
        let patch = json!({"status": status});
        claims
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    async fn bound_claim(&self, name: &str, spec: Value) {
        self.claim(name, spec).await;
        self.bind(name).await;
    }

    /// A pod with one container that mounts one claim.
    async fn create_with_claim(&self, name: &str, claim: &str) {
        let spec = json!({
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            "containers": [{"name": name, "image": "here:1",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]});
        self.create(name, spec).await;
    }

    async fn restart_kubelet(&mut self) {
        self.stop_kubelet().await;
        self.start_kubelet();
    }

    fn mounted(&self, container: &str, path: &str) -> Option<std::path::PathBuf> {
        let container = self.runtime.container(container)?;
        let mut mounts = container.config.mounts.iter();
        let mount = mounts.find(|mount| mount.container_path == path)?;
        Some(mount.host_path.clone().into())
    }

    async fn delete(&self, name: &str) {
        self.pods()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    async fn is_gone(&self, name: &str) {
        self.wait("the pod to go", || async { self.get(name).await.is_none() })
            .await;
    }

    /// Waits for an event with this reason and this text in its message.
    async fn event(&self, reason: &str, part: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        self.wait(part, || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            all.iter().any(|event| {
                event.reason.as_deref() == Some(reason)
                    && event
                        .message
                        .as_deref()
                        .is_some_and(|text| text.contains(part))
            })
        })
        .await;
    }

    async fn node(&self) -> Node {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.get("node").await.unwrap()
    }

    /// Creates the CSIDriver object and registers the driver on the node.
    async fn start_driver(&self, options: Options, spec: Value) -> (Driver, Served) {
        let drivers: Api<CSIDriver> = Api::all(self.client.clone());
        let object = from(json!({"metadata": {"name": DRIVER}, "spec": spec}));
        drivers
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let driver = Driver::new(options);
        let served = driver.serve(&self.path("kubelet")).unwrap();
        self.wait("the driver to be registered", || async {
            driver.registered() == Some(true)
        })
        .await;
        (driver, served)
    }
}

fn csi_volume(handle: &str) -> Value {
    json!({"csi": {"driver": DRIVER, "volumeHandle": handle}})
}

#[test]
fn a_local_volume_waits_for_its_claim_and_keeps_its_data() {
    with_own_mounts(|| async {
        let mut node = TestNode::start().await;
        let annotations = node.node().await.metadata.annotations.unwrap();
        let root = node.path("local-path");
        assert_eq!(
            annotations["mainstay.dev/local-path-root"],
            root.to_string_lossy()
        );
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node"]}]}]}});
        let source = json!({"path": root.join("pvc-1")});
        node.claim("c", json!({"local": source, "nodeAffinity": affinity}))
            .await;
        node.create_with_claim("a", "c").await;
        node.event(
            "FailedMount",
            "failed to process volumes=[data]: error processing PVC default/c: PVC is not bound",
        )
        .await;
        node.bind("c").await;
        node.shows("a", "/phase", "Running").await;
        let path = node.mounted("a", "/data").unwrap();
        assert!(path.starts_with(node.path("kubelet/pods")), "{path:?}");
        std::fs::write(path.join("kept"), "x").unwrap();
        node.create_with_claim("b", "c").await;
        node.shows("b", "/phase", "Running").await;
        let made = node.runtime.made();
        node.restart_kubelet().await;
        node.delete("a").await;
        node.is_gone("a").await;
        assert!(node.mounted("b", "/data").unwrap().join("kept").exists());
        assert_eq!(node.runtime.made(), made);
        node.delete("b").await;
        node.is_gone("b").await;
        assert!(root.join("pvc-1/kept").exists());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains("local-volume"), "{mounts}");
    });
}

#[test]
fn sources_that_this_node_cannot_mount_are_named_in_an_event() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        node.bound_claim(
            "missing",
            json!({"local": {"path": "/no/such/dir"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/os", "operator": "Exists"}]}]}}}),
        )
        .await;
        node.bound_claim("fc", json!({"fc": {"targetWWNs": ["a"], "lun": 1}}))
            .await;
        node.create_with_claim("a", "missing").await;
        node.create_with_claim("b", "fc").await;
        node.event("FailedMount", "/no/such/dir").await;
        node.event(
            "FailedMount",
            "is of type fc, which this node does not support",
        )
        .await;
        assert!(node.runtime.container("a").is_none());
        for name in ["a", "b"] {
            node.delete(name).await;
            node.is_gone(name).await;
        }
    });
}

#[test]
fn a_driver_registers_and_shows_on_node_and_csi_node() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let mut options = Options::new(DRIVER);
        options.node_id = "host-7".into();
        options.max_volumes = 5;
        options.topology = [("topology.example.com/rack".to_owned(), "r1".to_owned())].into();
        let (driver, served) = node.start_driver(options, json!({})).await;
        let object = node.node().await;
        let ids = &object.metadata.annotations.unwrap()["csi.volume.kubernetes.io/nodeid"];
        assert_eq!(ids, "{\"disk.csi.example.com\":\"host-7\"}");
        assert_eq!(
            object.metadata.labels.unwrap()["topology.example.com/rack"],
            "r1"
        );
        let csi_nodes: Api<CSINode> = Api::all(node.client.clone());
        let shown = csi_nodes.get("node").await.unwrap();
        let shown = serde_json::to_value(&shown.spec.drivers[0]).unwrap();
        assert_eq!(
            shown,
            json!({"name": DRIVER, "nodeID": "host-7", "allocatable": {"count": 5},
                   "topologyKeys": ["topology.example.com/rack"]})
        );
        drop(served);
        node.wait("the driver to be forgotten", || async {
            let shown = csi_nodes.get("node").await.unwrap();
            shown.spec.drivers.is_empty()
        })
        .await;
        drop(driver);
    });
}

#[test]
fn nothing_of_a_driver_that_is_not_registered_stays_on_the_node() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let mut options = Options::new(DRIVER);
        // Longer than CSINode allows.
        options.node_id = "n".repeat(300);
        let driver = Driver::new(options);
        let _served = driver.serve(&node.path("kubelet")).unwrap();
        node.wait("the driver to be refused", || async {
            driver.registered() == Some(false)
        })
        .await;
        let why = driver.registration_error();
        assert!(why.contains("256"), "{why}");
        let annotations = node.node().await.metadata.annotations.unwrap_or_default();
        assert!(
            !annotations.contains_key("csi.volume.kubernetes.io/nodeid"),
            "{annotations:?}"
        );
    });
}

#[test]
fn the_limit_of_a_driver_is_updated_as_its_csi_driver_says() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let mut options = Options::new(DRIVER);
        options.max_volumes = 5;
        let spec = json!({"nodeAllocatableUpdatePeriodSeconds": 10});
        let (driver, _served) = node.start_driver(options, spec).await;
        driver.set_max_volumes(7);
        let csi_nodes: Api<CSINode> = Api::all(node.client.clone());
        node.wait("the new limit", || async {
            let shown = csi_nodes.get("node").await.unwrap();
            let limit = shown.spec.drivers.first();
            let limit = limit.and_then(|driver| driver.allocatable.as_ref()?.count);
            limit == Some(7)
        })
        .await;
    });
}

#[test]
fn a_volume_that_its_driver_calls_abnormal_shows_in_an_event_and_a_metric() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let mut options = Options::new(DRIVER);
        options.capabilities.push(Capability::VolumeCondition);
        let (driver, _served) = node
            .start_driver(options, json!({"attachRequired": false}))
            .await;
        driver.set_abnormal("the disk is on fire");
        node.bound_claim("c", csi_volume("h1")).await;
        node.create_with_claim("a", "c").await;
        node.shows("a", "/phase", "Running").await;
        let line = "kubelet_volume_stats_health_status_abnormal{namespace=\"default\",persistentvolumeclaim=\"c\"} 1";
        node.wait("the volume to be measured", || async {
            let (status, page) = node.ask(Leaf::Admin, "/metrics").await;
            status == 200 && page.contains(line)
        })
        .await;
        node.event(
            "VolumeConditionAbnormal",
            "Volume data: the disk is on fire",
        )
        .await;
        let (_, summary) = node.ask(Leaf::Admin, "/stats/summary").await;
        let summary: Value = serde_json::from_str(&summary).unwrap();
        let volume = &summary["pods"][0]["volume"][0];
        assert_eq!(volume["volumeHealthStats"], json!({"abnormal": true}));
    });
}

#[test]
fn a_pod_gets_a_volume_of_a_driver_keeps_it_over_a_restart_and_leaves_nothing() {
    with_own_mounts(|| async {
        let mut node = TestNode::start().await;
        let mut options = Options::new(DRIVER);
        options.data = Some(node.path("disks"));
        let (driver, _served) = node
            .start_driver(options, json!({"attachRequired": false}))
            .await;
        node.bound_claim("c", csi_volume("h1")).await;
        node.create_with_claim("a", "c").await;
        node.shows("a", "/phase", "Running").await;
        let path = node.mounted("a", "/data").unwrap();
        std::fs::write(path.join("kept"), "x").unwrap();
        let line = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"c\"} 300";
        let is_measured = || async {
            let (status, page) = node.ask(Leaf::Admin, "/metrics").await;
            status == 200 && page.contains(line)
        };
        node.wait("the volume to be measured", is_measured).await;
        let (_, summary) = node.ask(Leaf::Admin, "/stats/summary").await;
        let summary: Value = serde_json::from_str(&summary).unwrap();
        let volume = &summary["pods"][0]["volume"][0];
        assert_eq!(
            volume["pvcRef"],
            json!({"name": "c", "namespace": "default"})
        );
        assert_eq!(
            (&volume["capacityBytes"], &volume["inodesUsed"]),
            (&json!(1000), &json!(7))
        );

        let made = node.runtime.made();
        node.restart_kubelet().await;
        // After the restart the volume is published once more, and the container keeps running.
        node.wait("the volume to be known", || async {
            driver.calls_of("NodePublishVolume").len() >= 2
        })
        .await;
        assert_eq!(node.runtime.made(), made);
        assert!(path.join("kept").exists());

        // The driver cannot unpublish it: the pod's object stays.
        driver.break_method("NodeUnpublishVolume", Fault::Refuse(tonic::Code::Internal));
        node.delete("a").await;
        node.event(
            "FailedUnmount",
            "UnmountVolume.TearDown failed for volume \"pv-c\"",
        )
        .await;
        assert!(node.get("a").await.is_some());
        driver.heal("NodeUnpublishVolume");
        node.is_gone("a").await;
        node.wait("the volume to leave the node", || async {
            driver.staged().is_empty() && driver.published().is_empty()
        })
        .await;
        assert!(driver.violations().is_empty());
        assert!(node.path("disks/h1/kept").exists());
    });
}

#[test]
fn the_controller_managed_attach_annotation_is_set_also_on_existing_nodes() {
    with_own_mounts(|| async {
        let key = "volumes.kubernetes.io/controller-managed-attach-detach";
        let mut node = TestNode::start().await;
        let says = |object: Node| object.metadata.annotations.unwrap_or_default();
        assert_eq!(says(node.node().await)[key], "true");
        node.stop_kubelet().await;
        let nodes: Api<Node> = Api::all(node.client.clone());
        let patch = json!({"metadata": {"annotations": {key: null}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let patched = nodes.patch("node", &params, &patch).await.unwrap();
        assert!(!says(patched).contains_key(key));
        node.start_kubelet();
        node.wait("the annotation", || async {
            says(node.node().await).get(key).map(String::as_str) == Some("true")
        })
        .await;
    });
}

#[test]
fn an_attachable_volume_is_in_use_before_it_is_mounted_and_free_after() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let (driver, _served) = node
            .start_driver(Options::new(DRIVER), json!({"attachRequired": true}))
            .await;
        node.bound_claim("c", csi_volume("h1")).await;
        node.create_with_claim("a", "c").await;
        let name = format!("kubernetes.io/csi/{DRIVER}^h1");
        let in_use = || async {
            let status = node.node().await.status.unwrap();
            status.volumes_in_use.unwrap_or_default()
        };
        node.wait("the volume to be in use", || async {
            in_use().await == [name.clone()]
        })
        .await;
        assert!(driver.order().is_empty());
        attach(&node, &name, "h1").await;
        node.shows("a", "/phase", "Running").await;
        let stage = &driver.calls_of("NodeStageVolume")[0];
        assert_eq!(stage.publish_context["device"], "xvdb");
        node.delete("a").await;
        node.is_gone("a").await;
        node.wait("the volume to be free", || async {
            in_use().await.is_empty()
        })
        .await;
        assert!(driver.staged().is_empty());
        // Still attached: the controller detaches.
        let status = node.node().await.status.unwrap();
        assert_eq!(status.volumes_attached.unwrap().len(), 1);
    });
}

/// Acts as the attach controller and the driver's attacher.
async fn attach(node: &TestNode, name: &str, handle: &str) {
    let object = format!("csi-{}", sha256(&format!("{handle}{DRIVER}node")));
    let attachments: Api<VolumeAttachment> = Api::all(node.client.clone());
    let attachment = json!({"metadata": {"name": object}, "spec": {"attacher": DRIVER,
        "nodeName": "node", "source": {"persistentVolumeName": "pv-c"}}});
    attachments
        .create(&PostParams::default(), &from(attachment))
        .await
        .unwrap();
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"device": "xvdb"}}});
    attachments
        .patch_status(&object, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(node.client.clone());
    let status = json!({"status": {"volumesAttached": [{"name": name, "devicePath": ""}]}});
    nodes
        .patch_status("node", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
}

fn sha256(text: &str) -> String {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

#[test]
fn a_grown_claim_is_expanded_before_the_pod_starts_and_a_raw_one_is_a_device() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let (driver, _served) = node
            .start_driver(Options::new(DRIVER), json!({"attachRequired": false}))
            .await;
        node.bound_claim("c", csi_volume("h1")).await;
        let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
        let grown = json!({"spec": {"capacity": {"storage": "2Gi"}}});
        volumes
            .patch("pv-c", &PatchParams::default(), &Patch::Merge(&grown))
            .await
            .unwrap();
        node.patch_claim(
            "c",
            json!({"allocatedResources": {"storage": "2Gi"},
                   "allocatedResourceStatuses": {"storage": "NodeResizePending"},
                   "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}),
        )
        .await;
        node.create_with_claim("a", "c").await;
        node.shows("a", "/phase", "Running").await;
        assert_eq!(driver.calls_of("NodeExpandVolume")[0].bytes, 2 << 30);
        node.event("FileSystemResizeSuccessful", "NodeExpandVolume succeeded")
            .await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), "default");
        let status = claims.get("c").await.unwrap().status.unwrap();
        assert_eq!(status.capacity.unwrap()["storage"].0, "2Gi");
        assert!(
            status
                .allocated_resource_statuses
                .unwrap_or_default()
                .is_empty()
        );
        assert!(status.conditions.unwrap_or_default().is_empty());

        let mut raw = csi_volume("h2");
        raw["volumeMode"] = "Block".into();
        node.bound_claim("raw", raw).await;
        let spec = json!({
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "raw", "readOnly": true}}],
            "containers": [{"name": "b", "image": "here:1",
                "volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}]}]});
        node.create("b", spec).await;
        node.shows("b", "/phase", "Running").await;
        let config = node.runtime.container("b").unwrap().config;
        let device = &config.devices[0];
        assert_eq!(
            (device.container_path.as_str(), device.permissions.as_str()),
            ("/dev/xvda", "mr")
        );
        assert!(device.host_path.contains("volumeDevices/publish/pv-raw/"));
        node.create_with_claim("wrong", "raw").await;
        node.event(
            "FailedMount",
            "volume data has volumeMode Block, but is specified in volumeMounts",
        )
        .await;
    });
}

#[test]
fn inline_and_ephemeral_volumes_belong_to_their_pod() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        let (driver, _served) = node
            .start_driver(
                Options::new(DRIVER),
                json!({"attachRequired": false, "podInfoOnMount": true,
                       "volumeLifecycleModes": ["Persistent", "Ephemeral"]}),
            )
            .await;
        let spec = json!({
            "volumes": [{"name": "scratch", "csi": {"driver": DRIVER}}],
            "containers": [{"name": "a", "image": "here:1",
                "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]}]});
        node.create("a", spec).await;
        node.shows("a", "/phase", "Running").await;
        let publish = &driver.calls_of("NodePublishVolume")[0];
        assert_eq!(publish.context["csi.storage.k8s.io/pod.name"], "a");
        node.delete("a").await;
        node.is_gone("a").await;
        assert!(driver.published().is_empty());

        // A claim of the right name that the pod does not own is not used.
        node.bound_claim("e-data", csi_volume("h9")).await;
        let template = json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        let spec = json!({
            "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}],
            "containers": [{"name": "e", "image": "here:1",
                "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]});
        node.create("e", spec).await;
        node.event(
            "FailedMount",
            "was not created for pod default/e (pod is not owner)",
        )
        .await;
        let pod = node.get("e").await.unwrap();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), "default");
        let owner = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
            "name": "e", "uid": pod.metadata.uid, "controller": true}]}});
        claims
            .patch("e-data", &PatchParams::default(), &Patch::Merge(&owner))
            .await
            .unwrap();
        node.shows("e", "/phase", "Running").await;
    });
}

#[test]
fn an_ephemeral_container_gets_a_volume_that_no_other_container_uses() {
    with_own_mounts(|| async {
        let node = TestNode::start().await;
        node.create(
            "a",
            json!({"volumes": [{"name": "extra", "emptyDir": {}}],
                   "containers": [{"name": "a", "image": "here:1"}]}),
        )
        .await;
        node.shows("a", "/phase", "Running").await;
        let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "here:1",
            "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]}]}});
        node.pods()
            .patch_ephemeral_containers("a", &PatchParams::default(), &Patch::Strategic(debugger))
            .await
            .unwrap();
        node.wait("the ephemeral container", || async {
            node.mounted("debug", "/extra").is_some()
        })
        .await;
        let path = node.mounted("debug", "/extra").unwrap();
        assert!(path.ends_with("kubernetes.io~empty-dir/extra"), "{path:?}");
    });
}
