//! A node that is lost for good: with the taint `node.kubernetes.io/out-of-service` the pod of a
//! StatefulSet is deleted by force, its volume is detached without waiting for the node, and the pod
//! runs on another node with its data. The test acts as the external attacher. And a control plane
//! that is cut off from its only node: it evicts nothing.

use std::path::Path;

use e2e::{attachments, name, patch_attachment, ready_pods};
use serde_json::{Value, json};
use testkit::{
    Agent, Cluster, Lan, Machine, ServedDriver, Server,
    csi_driver::{Driver, Options},
    eventually,
};

const DRIVER: &str = "disk.csi.example.com";
const FINALIZER: &str = "external-attacher/disk-csi-example-com";
const TAINT: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";

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
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: mainstay.local/hello
        args: [sleep, "360842"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: ""
      resources: {requests: {storage: 1Gi}}
"#;

/// A driver of the node, which is registered; all nodes share the volumes.
fn serve(
    machine: &Machine,
    kubelet_root: &Path,
    node: &str,
    volumes: &Path,
) -> (Driver, ServedDriver) {
    let options = Options {
        data: Some(volumes.to_owned()),
        node_id: node.to_owned(),
        ..Options::new(DRIVER)
    };
    ServedDriver::registered(machine, kubelet_root, options)
}

/// Attaches and detaches what is asked for, as a driver's attacher does; returns the attachments.
fn attach(cluster: &Cluster) -> Vec<Value> {
    let all = attachments(cluster);
    for one in &all {
        let is_deleted = one["metadata"]["deletionTimestamp"].is_string();
        let (body, status): (Value, &[&str]) = match (is_deleted, one["status"]["attached"] == true)
        {
            (true, _) => (json!({"metadata": {"finalizers": []}}), &[]),
            (false, true) => continue,
            (false, false) => {
                patch(
                    cluster,
                    one,
                    &json!({"metadata": {"finalizers": [FINALIZER]}}),
                    &[],
                );
                let attached = json!({"status": {"attached": true}});
                (attached, &["--subresource=status"])
            }
        };
        patch(cluster, one, &body, status);
    }
    all
}

/// The attachment may be gone meanwhile.
fn patch(cluster: &Cluster, attachment: &Value, body: &Value, more: &[&str]) {
    let ran = patch_attachment(cluster, &name(attachment), body, more);
    assert!(ran.ok || ran.stderr.contains("NotFound"), "{}", ran.stderr);
}

/// Waits until the pod runs on this node.
fn wait_for_pod_on(cluster: &Cluster, node: &str) -> Value {
    eventually(&format!("db-0 on {node}"), || {
        let attachments = attach(cluster);
        let pods = cluster.get(&["pods", "-l", "app=db"]);
        let all = pods["items"].as_array().into_iter().flatten();
        let mut here = all.filter(|pod| pod["spec"]["nodeName"] == node && e2e::is_ready(pod));
        let found = here.next().cloned();
        found.ok_or_else(|| format!("{attachments:?} {pods}"))
    })
}

fn hello(cluster: &Cluster, args: &[&str]) -> String {
    e2e::hello(cluster, "db-0", args).success()
}

fn ready(cluster: &Cluster, node: &str) -> Value {
    let node = cluster.get(&["node", node]);
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready.map_or(Value::Null, |ready| ready["status"].clone())
}

fn wait_for_ready(cluster: &Cluster, node: &str, status: &str) {
    eventually(&format!("Ready={status} of {node}"), || {
        match ready(cluster, node) {
            found if found == status => Ok(()),
            other => Err(other.to_string()),
        }
    });
}

#[test]
fn a_stateful_pod_of_a_node_out_of_service_moves_with_its_volume() {
    let lan = Lan::new();
    let cluster = Cluster::on_lan(&lan, &[]);
    let mut two = Agent::on_lan(&lan, 0, 3, "two");
    two.start(&cluster.join_flags());
    wait_for_ready(&cluster, "two", "True");
    let volumes = cluster.machine().dir().join("volumes");
    let root = cluster.data_dir().join("kubelet");
    let (_driver, _served) = serve(cluster.machine(), &root, "one", &volumes);
    let root = two.data_dir().join("kubelet");
    let (lost, _lost) = serve(two.machine(), &root, "two", &volumes);

    cluster.kubectl(&["cordon", "one"]).success();
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], OBJECTS)
        .success();
    let before = wait_for_pod_on(&cluster, "two");
    hello(&cluster, &["write", "/data/row", "first"]);
    cluster.kubectl(&["uncordon", "one"]).success();

    // The machine is gone. Nothing else happens by itself: it could still write to the volume.
    lan.cut(two.machine().address());
    two.kill();
    wait_for_ready(&cluster, "two", "Unknown");
    cluster.kubectl(&["taint", "node", "two", TAINT]).success();
    let after = wait_for_pod_on(&cluster, "one");
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(hello(&cluster, &["cat", "/data/row"]).trim(), "first");
    let attached = attach(&cluster);
    let nodes: Vec<&Value> = attached
        .iter()
        .map(|one| &one["spec"]["nodeName"])
        .collect();
    assert_eq!(nodes, ["one"]);
    // The lost node was not asked.
    assert!(
        !lost.order().contains(&"NodeUnpublishVolume"),
        "{:?}",
        lost.order()
    );

    // It returns: it stops its copy of the pod, and unmounts the volume.
    lan.mend(two.machine().address());
    two.start(&[]);
    wait_for_ready(&cluster, "two", "True");
    let untaint = format!("{TAINT}-");
    cluster
        .kubectl(&["taint", "node", "two", &untaint])
        .success();
    eventually("the volume to be unmounted there", || {
        match lost
            .order()
            .ends_with(&["NodeUnpublishVolume", "NodeUnstageVolume"])
        {
            true => Ok(()),
            false => Err(format!("{:?}", lost.order())),
        }
    });
    let still = ready_pods(&cluster, "app=db", 1);
    assert_eq!(still[0]["metadata"]["uid"], after["metadata"]["uid"]);
    assert!(lost.violations().is_empty(), "{:?}", lost.violations());
}

/// A pod that would be evicted a second after its node got a taint with NoExecute.
const IMPATIENT: &str = r#"{"spec": {"terminationGracePeriodSeconds": 1, "tolerations": [
    {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]}}"#;

fn from_server(server: &Server, args: &[&str]) -> Value {
    eventually(&format!("{args:?}"), || {
        let ran = server.kubectl(&[&["get"], args, &["-o", "json"]].concat());
        serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)
    })
}

/// Waits for a status of the node's condition Ready.
fn wait_for_status(server: &Server, status: &str) -> Value {
    eventually(&format!("Ready={status}"), || {
        let node = from_server(server, &["node", "two"]);
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_ready = |one: &&Value| one["type"] == "Ready" && one["status"] == status;
        match conditions.any(|one| is_ready(&one)) {
            true => Ok(node.clone()),
            false => Err(node["status"].to_string()),
        }
    })
}

/// Effects of the node's taints.
fn effects(node: &Value) -> Vec<&str> {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints
        .filter_map(|taint| taint["effect"].as_str())
        .collect()
}

#[test]
fn a_control_plane_that_is_cut_off_from_all_nodes_evicts_nothing() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let mut server = Server::stopped(machine(2), "s0", &[]);
    server.start();
    let line = server.mainstay(&["token", "create"]).success();
    let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
    let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut two = Agent::new(machine(3), "two");
    two.start(&join);
    wait_for_status(&server, "True");
    let overrides = format!("--overrides={IMPATIENT}");
    let run = ["run", "web", "--image=mainstay.local/hello", &overrides];
    server.kubectl(&run).success();
    let before = eventually("the pod to be ready", || {
        let pod = from_server(&server, &["pod", "web"]);
        match e2e::is_ready(&pod) {
            true => Ok(pod),
            false => Err(pod["status"].to_string()),
        }
    });

    lan.cut(server.machine().address());
    wait_for_status(&server, "Unknown");
    // Pods are marked at the end of the check that would have tainted the node for eviction.
    let during = eventually("the pod to be marked as not ready", || {
        match from_server(&server, &["pod", "web"]) {
            pod if testkit::is_ready(&pod) => Err(pod["status"].to_string()),
            pod => Ok(pod),
        }
    });
    assert!(
        during["metadata"]["deletionTimestamp"].is_null(),
        "{during}"
    );
    let node = eventually("the node's taint", || {
        match from_server(&server, &["node", "two"]) {
            node if effects(&node).is_empty() => Err(node["spec"].to_string()),
            node => Ok(node),
        }
    });
    assert_eq!(effects(&node), ["NoSchedule"], "{node}");

    lan.mend(server.machine().address());
    let node = wait_for_status(&server, "True");
    assert!(!effects(&node).contains(&"NoExecute"), "{node}");
    let after = from_server(&server, &["pod", "web"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(e2e::container_ids(&after), e2e::container_ids(&before));
}
