//! The Node and the Lease of a simulated node.

use std::collections::BTreeMap;

use client::{Api, FromJson as _};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const LEASES: &str = "kube-node-lease";
/// The lease duration of a kubelet.
const LEASE_SECONDS: i32 = 40;

/// The properties of a node.
#[derive(Debug, Clone)]
pub struct Shape {
    /// CPUs, as a quantity.
    pub cpu: String,
    /// Memory, as a quantity.
    pub memory: String,
    /// The maximum number of pods.
    pub pods: u32,
    /// The number of zones; none if 0.
    pub zones: usize,
    /// Labels of all nodes.
    pub labels: BTreeMap<String, String>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            cpu: "32".to_owned(),
            memory: "256Gi".to_owned(),
            pods: 110,
            zones: 0,
            labels: BTreeMap::new(),
        }
    }
}

/// The conditions of a healthy node.
const CONDITIONS: [(&str, &str, &str); 4] = [
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
];

fn labels(name: &str, number: usize, shape: &Shape) -> BTreeMap<String, String> {
    let mut labels = shape.labels.clone();
    let mut set = |key: &str, value: String| labels.insert(key.to_owned(), value);
    set("kubernetes.io/hostname", name.to_owned());
    set("kubernetes.io/os", "linux".to_owned());
    set("kubernetes.io/arch", "amd64".to_owned());
    if shape.zones > 0 {
        let zone = format!("zone-{}", number % shape.zones);
        set("topology.kubernetes.io/zone", zone);
        set("topology.kubernetes.io/region", "simulated".to_owned());
    }
    labels
}

fn document(name: &str, number: usize, shape: &Shape, now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let capacity = json!({
        "cpu": shape.cpu, "memory": shape.memory, "pods": shape.pods.to_string(),
        "ephemeral-storage": "1Ti",
    });
    let condition = |(kind, status, reason): (&str, &str, &str)| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "simulated",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels(name, number, shape)},
        "status": {
            "capacity": capacity, "allocatable": capacity,
            "conditions": CONDITIONS.map(condition),
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "simulated",
                "kernelVersion": "simulated", "containerRuntimeVersion": "simulated://1",
                "kubeletVersion": "v1.36.4", "kubeProxyVersion": "", "machineID": "",
                "systemUUID": "", "bootID": "",
            },
        },
    })
}

/// Creates the Node, or revives one of this name.
pub(crate) async fn register(
    client: &kube::Client,
    name: &str,
    number: usize,
    shape: &Shape,
) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let document = document(name, number, shape, Timestamp::now());
    let node = Node::from_value(&document).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let status = json!({"status": document["status"]});
            let patch = Patch::Strategic(&status);
            api.patch_status(name, &PatchParams::default(), &patch)
                .await?;
        }
        Err(error) => return Err(error),
    }
    renew(client, name).await
}

/// Renews the Lease, or creates it.
pub(crate) async fn renew(client: &kube::Client, name: &str) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let now = Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string();
    let spec = json!({
        "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now,
    });
    let patch = json!({"spec": spec});
    let renewed = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match renewed {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => return other.map(drop),
    }
    let lease = json!({"metadata": {"name": name, "namespace": LEASES}, "spec": spec});
    let lease = Lease::from_value(&lease).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &lease).await.map(drop)
}

/// Deletes the Node and its Lease.
pub(crate) async fn remove(client: &kube::Client, name: &str) -> Result<(), kube::Error> {
    let (nodes, leases): (Api<Node>, Api<Lease>) = (
        Api::all(client.clone()),
        Api::namespaced(client.clone(), LEASES),
    );
    let params = DeleteParams::default();
    for outcome in [
        nodes.delete(name, &params).await,
        leases.delete(name, &params).await,
    ] {
        match outcome {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_node_is_ready_with_the_resources_and_zone_of_its_shape() {
        let shape = Shape {
            cpu: "4".to_owned(),
            zones: 3,
            ..Shape::default()
        };
        let node: Node =
            serde_json::from_value(document("n4", 4, &shape, Timestamp::UNIX_EPOCH)).unwrap();
        let status = node.status.unwrap();
        assert_eq!(status.allocatable.unwrap()["cpu"].0, "4");
        let mut conditions = status.conditions.iter().flatten();
        assert!(conditions.any(|one| one.type_ == "Ready" && one.status == "True"));
        let labels = node.metadata.labels.unwrap();
        assert_eq!(labels["topology.kubernetes.io/zone"], "zone-1");
        assert_eq!(labels["kubernetes.io/hostname"], "n4");
    }
}
