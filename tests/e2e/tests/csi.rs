//! A CSI driver whose volumes must be attached: the attachdetach controller, the driver's attacher
//! and the kubelet work in turn, and nothing is left after the pod. The test acts as the external
//! attacher.

use e2e::{attachments, hello, patch_attachment, ready_pods};
use serde_json::{Value, json};
use testkit::{Cluster, ServedDriver, csi_driver::Options, eventually};

const DRIVER: &str = "disk.csi.example.com";
const UNIQUE: &str = "kubernetes.io/csi/disk.csi.example.com^h1";
const FINALIZER: &str = "external-attacher/disk-csi-example-com";

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: disk.csi.example.com}
spec: {attachRequired: true}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  csi: {driver: disk.csi.example.com, volumeHandle: h1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: db, labels: {app: db}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: db
    image: mainstay.local/hello
    args: [sleep, "360842"]
    volumeMounts: [{name: data, mountPath: /data}]
"#;

/// The node's `volumesAttached` (by the controller) and `volumesInUse` (by the kubelet).
fn volumes(cluster: &Cluster) -> (Value, Value) {
    let status = cluster.get(&["node", "one"])["status"].clone();
    let names = status["volumesAttached"].as_array().into_iter().flatten();
    let attached = names.map(|volume| volume["name"].clone()).collect();
    (attached, status["volumesInUse"].clone())
}

/// The only attachment, once `has` returns true.
fn attachment(cluster: &Cluster, what: &str, has: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || {
        let all = attachments(cluster);
        let found = all.iter().find(|one| has(one));
        found.cloned().ok_or_else(|| format!("{all:?}"))
    })
}

fn patch(cluster: &Cluster, name: &str, patch: &Value, more: &[&str]) {
    patch_attachment(cluster, name, patch, more).success();
}

#[test]
fn a_volume_that_must_be_attached_is_attached_staged_published_and_detached_after_its_pod() {
    let cluster = Cluster::up();
    let options = Options {
        data: Some(cluster.machine().disk().join("volumes")),
        ..Options::new(DRIVER)
    };
    let kubelet = cluster.data_dir().join("kubelet");
    let (driver, _served) = ServedDriver::registered(cluster.machine(), &kubelet, options);
    let apply = ["apply", "-f", "-"];
    cluster.kubectl_stdin(&apply, OBJECTS).success();

    let asked = attachment(&cluster, "an attachment", |_| true);
    let spec = json!({"attacher": DRIVER, "nodeName": "one",
        "source": {"persistentVolumeName": "disk"}});
    assert_eq!(asked["spec"], spec);
    let name = e2e::name(&asked);
    eventually("the volume to be in use", || match volumes(&cluster) {
        (attached, used) if attached == json!([]) && used == json!([UNIQUE]) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // Nothing is mounted before the attacher is done.
    assert!(driver.order().is_empty(), "{:?}", driver.order());
    let metadata = json!({"metadata": {"finalizers": [FINALIZER]}});
    patch(&cluster, &name, &metadata, &[]);
    let done = json!({"status": {"attached": true, "attachmentMetadata": {"device": "xvdb"}}});
    patch(&cluster, &name, &done, &["--subresource=status"]);

    ready_pods(&cluster, "app=db", 1);
    let (attached, used) = volumes(&cluster);
    assert_eq!((attached, used), (json!([UNIQUE]), json!([UNIQUE])));
    assert_eq!(driver.order(), ["NodeStageVolume", "NodePublishVolume"]);
    let staged = &driver.calls_of("NodeStageVolume")[0];
    assert_eq!(staged.publish_context["device"], "xvdb");
    hello(&cluster, "db", &["write", "/data/row", "first"]).success();

    cluster.kubectl(&["delete", "pod", "db"]).success();
    attachment(&cluster, "the attachment to be deleted", |one| {
        one["metadata"]["deletionTimestamp"].is_string()
    });
    // The controller detaches only after the kubelet has unmounted the volume.
    let methods = ["NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(driver.order()[2..], methods);
    assert_eq!(volumes(&cluster), (json!([]), Value::Null));
    let released = json!({"metadata": {"finalizers": []}});
    patch(&cluster, &name, &released, &[]);
    eventually("no attachment", || match attachments(&cluster) {
        none if none.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    assert!(driver.violations().is_empty(), "{:?}", driver.violations());
    let row = cluster.machine().disk().join("volumes/h1/row");
    let row = row.display().to_string();
    assert_eq!(cluster.machine().run("cat", &[&row]).success(), "first\n");
}

/// A pod of a node driver that mounts for other pods below this directory.
fn mounting_pod(name: &str, directory: &std::path::Path) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1,
            "containers": [{"name": "driver", "image": "mainstay.local/hello",
                "args": ["sleep", "360843"], "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "shared", "mountPath": "/shared",
                    "mountPropagation": "Bidirectional"}]}],
            "volumes": [{"name": "shared", "hostPath": {"path": directory}}]}})
}

#[test]
fn what_a_driver_in_a_pod_mounts_is_on_the_node_and_a_private_mount_is_refused() {
    let cluster = Cluster::up();
    let plugins = cluster.data_dir().join("kubelet/plugins");
    // The machine has no shared mounts but the kubelet's.
    let disk = cluster.machine().disk();
    for (name, directory) in [("inside", &plugins), ("outside", &disk)] {
        let pod = mounting_pod(name, directory).to_string();
        cluster.kubectl_stdin(&["apply", "-f", "-"], &pod).success();
    }
    ready_pods(&cluster, "app=inside", 1);
    let table = hello(&cluster, "inside", &["cat", "/proc/self/mountinfo"]).success();
    let mut lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let line = lines
        .find(|words| words[4] == "/shared")
        .expect("the volume");
    let is_shared = line.iter().any(|word| word.starts_with("shared:"));
    assert!(is_shared, "{line:?}");
    let expected = format!("path {disk:?} is mounted on {disk:?} but it is not a shared mount");
    eventually("the refusal", || {
        let waiting =
            &cluster.get(&["pod", "outside"])["status"]["containerStatuses"][0]["state"]["waiting"];
        let said = waiting["message"].as_str().unwrap_or_default();
        let is_refused = waiting["reason"] == "CreateContainerError" && said.contains(&expected);
        is_refused.then_some(()).ok_or_else(|| waiting.to_string())
    });
}
