//! A node of a cloud: until the cloud controller manager, which is the test here, has initialised
//! it, it gets no pods; afterwards it keeps the addresses that the cloud controller set.

use e2e::{name, ready_pods};
use serde_json::{Value, json};
use testkit::{Agent, Cluster, Lan, eventually};

const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: two}
      containers: [{name: web, image: mainstay.local/hello}]
"#;

fn two(cluster: &Cluster) -> Value {
    cluster.get(&["node", "two"])
}

fn taints(node: &Value) -> Vec<&Value> {
    let taints = node["spec"]["taints"].as_array();
    taints
        .into_iter()
        .flatten()
        .map(|taint| &taint["key"])
        .collect()
}

fn ready(node: &Value) -> Option<&Value> {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.find(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Waits until the kubelet has written its status after this heartbeat.
fn next_heartbeat(cluster: &Cluster, before: &Value) -> Value {
    eventually("another status of the kubelet", || {
        let node = two(cluster);
        match ready(&node).map(|ready| &ready["lastHeartbeatTime"]) {
            Some(now) if now != before => Ok(node),
            other => Err(format!("{other:?}")),
        }
    })
}

#[test]
fn a_node_of_a_cloud_waits_for_its_cloud_controller_and_keeps_its_addresses() {
    let lan = Lan::new();
    let cluster = Cluster::on_lan(&lan, &[]);
    let mut agent = Agent::on_lan(&lan, 0, 3, "two");
    let cloud = [
        "--cloud-provider",
        "external",
        "--provider-id",
        "test://rack/two",
    ];
    let cloud = cloud.map(str::to_owned);
    agent.start(&[&cluster.join_flags()[..], &cloud].concat());
    let node = eventually("the node to be Ready", || {
        let ran = cluster.kubectl(&["get", "node", "two", "-o", "json"]);
        let node: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)?;
        match ready(&node) {
            Some(_) => Ok(node.clone()),
            None => Err(node["status"]["conditions"].to_string()),
        }
    });
    let own = agent.machine().address().to_owned();
    assert_eq!(taints(&node), [TAINT]);
    assert_eq!(node["spec"]["providerID"], "test://rack/two");
    let annotation = &node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"];
    assert_eq!(*annotation, own.as_str());

    cluster.kubectl_stdin(&["apply", "-f", "-"], WEB).success();
    eventually("the pod to be unschedulable", || {
        let pods = cluster.get(&["pods", "-l", "app=web"]);
        match pods["items"][0]["status"]["conditions"][0]["message"].as_str() {
            Some(message) if message.contains("untolerated taint") => Ok(()),
            _ => Err(pods.to_string()),
        }
    });

    // The cloud controller manager: addresses, then the taint.
    let addresses = json!([
        {"type": "InternalIP", "address": own},
        {"type": "ExternalIP", "address": "203.0.113.9"},
        {"type": "Hostname", "address": "two.rack.example"},
    ]);
    let status = json!({"status": {"addresses": addresses}}).to_string();
    let patch = [
        "patch",
        "node",
        "two",
        "--type=merge",
        "--subresource=status",
        "-p",
        &status,
    ];
    cluster.kubectl(&patch).success();
    cluster
        .kubectl(&["taint", "node", "two", &format!("{TAINT}-")])
        .success();
    let pod = &ready_pods(&cluster, "app=web", 1)[0];
    assert_eq!(pod["status"]["hostIP"], own.as_str());

    // The kubelet's status after a restart keeps what the cloud controller wrote.
    let heartbeat = ready(&two(&cluster)).expect("Ready")["lastHeartbeatTime"].clone();
    agent.stop();
    agent.start(&cloud);
    let after = next_heartbeat(&cluster, &heartbeat);
    assert_eq!(after["status"]["addresses"], addresses);
    assert_eq!(taints(&after), [] as [&str; 0]);
    assert_eq!(after["spec"]["providerID"], "test://rack/two");
    let logs = cluster.kubectl(&["logs", &name(pod)]);
    assert!(logs.ok, "{}", logs.stderr);
}
