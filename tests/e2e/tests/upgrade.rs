//! A cluster of two servers and a node is upgraded to the next minor version and back, one
//! component after the other, while pods run; a larger version skew is rejected with a clear
//! message.

use e2e::container_ids;
use serde_json::Value;
use testkit::{Agent, Etcd, Lan, Machine, Server, eventually, stamped};

const OLD: &str = "v1.35.7";
const NEW: &str = "v1.36.4";

fn running_pods(server: &Server) -> Vec<(String, Vec<String>)> {
    let listed = server.kubectl(&["get", "pods", "-o", "json"]).success();
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let pods = listed["items"].as_array().cloned().unwrap_or_default();
    let identity = |pod: &Value| (pod["metadata"]["uid"].to_string(), container_ids(pod));
    pods.iter().map(identity).collect()
}

fn wait_for_node(server: &Server, version: &str) {
    let path = "jsonpath={.status.nodeInfo.kubeletVersion} {.status.conditions[?(@.type==\"Ready\")].status}";
    eventually(&format!("a Ready node of {version}"), || {
        let ran = server.kubectl(&["get", "node", "node", "-o", path]);
        match ran.stdout.starts_with(version) && ran.stdout.ends_with("True") {
            true => Ok(()),
            false => Err(format!("{} {}", ran.stdout, ran.stderr)),
        }
    });
}

fn deploy(server: &Server, name: &str) {
    let image = "--image=mainstay.local/hello";
    let ran = server.kubectl(&["create", "deployment", name, image]);
    ran.success();
    eventually(&format!("{name} to be available"), || {
        let path = "jsonpath={.status.availableReplicas}";
        let ran = server.kubectl(&["get", "deployment", name, "-o", path]);
        match ran.stdout.as_str() {
            "1" => Ok(()),
            other => Err(format!("{other} {}", ran.stderr)),
        }
    });
}

#[test]
fn a_cluster_goes_one_minor_version_up_and_down_while_pods_run() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let files = tempfile::tempdir().expect("a directory");
    let [older, old, new, newer] =
        ["v1.34.2", OLD, NEW, "v1.37.0"].map(|version| stamped(files.path(), version));
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let mut names = ["s0", "s1"].into_iter();
    let mut servers =
        machines.map(|machine| Server::stopped(machine, names.next().expect("a name"), &flags));
    let mut agent = Agent::new(machine(9), "node");

    servers
        .iter_mut()
        .for_each(|server| server.set_binary(&old));
    servers[0].start();
    let token = servers[0].mainstay(&["token", "server"]).success();
    servers[1].set_flag("--server-token", token.trim());
    servers[1].start();
    let line = servers[0].mainstay(&["token", "create"]).success();
    let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
    let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
    agent.set_binary(&old);
    agent.start(&join);
    wait_for_node(&servers[0], OLD);
    deploy(&servers[0], "web");
    let pods = running_pods(&servers[0]);

    // Two minor versions newer: rejected for a server and an agent.
    servers[1].stop();
    servers[1].set_binary(&newer);
    let refused = servers[1].refused().stderr;
    assert!(refused.contains("one minor version"), "{refused}");
    let mut stranger = Agent::new(machine(10), "stranger");
    stranger.set_binary(&newer);
    let refused = stranger.refused(&join).stderr;
    assert!(
        refused.contains("v1.37.0") && refused.contains(OLD),
        "{refused}"
    );

    // Upgrade: server by server, then the node.
    servers[1].set_binary(&new);
    servers[1].start();
    let shown = servers[1].mainstay(&["version"]).success();
    assert!(shown.contains(&format!("Client: {NEW}")), "{shown}");
    servers[0].stop();
    servers[0].set_binary(&new);
    servers[0].start();
    agent.stop();
    agent.set_binary(&new);
    agent.start(&[]);
    wait_for_node(&servers[0], NEW);
    deploy(&servers[0], "upgraded");

    // Two minor versions older must be rejected.
    servers[1].stop();
    servers[1].set_binary(&older);
    let refused = servers[1].refused().stderr;
    assert!(refused.contains("one minor version"), "{refused}");

    // Downgrade: the node, then server by server.
    agent.stop();
    agent.set_binary(&old);
    agent.start(&[]);
    wait_for_node(&servers[0], OLD);
    servers[1].set_binary(&old);
    servers[1].start();
    servers[0].stop();
    servers[0].set_binary(&old);
    servers[0].start();
    deploy(&servers[0], "downgraded");
    let now = running_pods(&servers[0]);
    assert!(
        pods.iter().all(|pod| now.contains(pod)),
        "pods were touched"
    );
}
