//! Clients that send a request every 20 milliseconds through a Service: none fails by a rollout, by policies that do not
//! concern them, or by a crash of a daemon; on one machine, and on two with both address families.

use std::path::PathBuf;

use e2e::DualStack;
use serde_json::Value;
use testkit::{Cluster, Machine, eventually};

const SERVER: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: steady}
spec:
  selector: {matchLabels: {app: steady}}
  updateStrategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: steady}}
    spec:
      containers:
      - name: web
        image: mainstay.local/hello
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 2}}}
---
apiVersion: v1
kind: Service
metadata: {name: steady}
spec:
  ipFamilyPolicy: PreferDualStack
  clusterIP: 10.43.77.7
  selector: {app: steady}
  ports: [{port: 80, targetPort: http}]
"#;

const CLIENT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: client}}
spec:
  nodeName: NODE
  containers:
  - name: c
    image: local.test/busybox:1
    imagePullPolicy: Never
    command:
    - /bin/busybox
    - sh
    - -c
    - |
      get() {
        /bin/busybox printf 'GET / HTTP/1.0\r\nConnection: close\r\n\r\n' |
          /bin/busybox nc -w 5 ADDRESS 80 | /bin/busybox grep -q '^HTTP/1.* 200 '
      }
      until get; do :; done
      while :; do
        if get; then echo answered; else echo failed; fi
        /bin/busybox usleep 20000
      done
"#;

/// A policy that allows what the clients do, and something else.
const UNRELATED: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: unrelated}
spec:
  podSelector: {matchLabels: {app: steady}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}, {ipBlock: {cidr: 192.0.2.0/24}}]
"#;

fn apply(cluster: &Cluster, manifest: &str) {
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], manifest)
        .success();
}

/// Starts a server on each node; returns the addresses of their Service.
fn start_servers(cluster: &Cluster, nodes: usize) -> Vec<String> {
    apply(cluster, SERVER);
    e2e::ready_pods(cluster, "app=steady", nodes);
    let service = cluster.get(&["service", "steady"]);
    let addresses = service["spec"]["clusterIPs"]
        .as_array()
        .into_iter()
        .flatten();
    let addresses = addresses.filter_map(|address| address.as_str());
    addresses.map(ToOwned::to_owned).collect()
}

/// A client on a node for each address.
fn start_clients(
    cluster: &Cluster,
    (machine, data_dir): (&Machine, PathBuf),
    node: &str,
    addresses: &[String],
) -> Vec<String> {
    e2e::import_busybox(machine, &data_dir);
    let mut names = Vec::new();
    for (number, address) in addresses.iter().enumerate() {
        let name = format!("client-{node}-{number}");
        let manifest = CLIENT.replace("NAME", &name).replace("NODE", node);
        apply(cluster, &manifest.replace("ADDRESS", address));
        names.push(name);
    }
    names
}

/// Waits until every client got fifty further answers, and checks that none was missing.
fn stay_served(cluster: &Cluster, clients: &[String], after: &str) {
    let count = |client: &String| {
        // After a crash the kubelet lags behind the API server for a moment.
        let log = eventually("the client's log", || {
            let ran = cluster.kubectl(&["logs", client]);
            if ran.ok {
                Ok(ran.stdout)
            } else {
                Err(ran.stderr)
            }
        });
        let failed = log.matches("failed").count();
        assert_eq!(
            failed, 0,
            "{failed} requests of {client} failed {after}: {log}"
        );
        log.matches("answered").count()
    };
    let before: Vec<usize> = clients.iter().map(count).collect();
    for (client, before) in clients.iter().zip(before) {
        eventually(
            &format!("fifty more answers for {client} {after}"),
            || match count(client) {
                now if now >= before + 50 => Ok(()),
                now => Err(format!("{now}, before {before}")),
            },
        );
    }
}

/// A rollout, and policies that come, change and go.
fn change_everything(cluster: &Cluster, clients: &[String]) {
    stay_served(cluster, clients, "at first");
    let restart = ["rollout", "restart", "daemonset/steady"];
    cluster.kubectl(&restart).success();
    let status = ["rollout", "status", "daemonset/steady", "--timeout=120s"];
    cluster.kubectl(&status).success();
    stay_served(cluster, clients, "by a rollout");
    apply(cluster, UNRELATED);
    stay_served(cluster, clients, "by a new policy");
    let changed = UNRELATED.replace("192.0.2.0/24", "198.51.100.0/24");
    apply(cluster, &changed);
    stay_served(cluster, clients, "by a changed policy");
    let delete = ["delete", "networkpolicy", "unrelated"];
    cluster.kubectl(&delete).success();
    stay_served(cluster, clients, "by a policy that went");
}

#[test]
fn a_steady_client_loses_no_request_by_a_rollout_a_policy_or_a_crash() {
    let mut cluster = Cluster::up();
    let addresses = start_servers(&cluster, 1);
    let on_one = (cluster.machine(), cluster.data_dir());
    let clients = start_clients(&cluster, on_one, "one", &addresses);
    change_everything(&cluster, &clients);
    cluster.kill();
    cluster.start();
    stay_served(&cluster, &clients, "by a crash");
}

#[test]
fn clients_of_two_machines_and_families_lose_no_request() {
    let mut site = DualStack::start();
    for node in site.cluster.ready_nodes(2) {
        let cidrs = node["spec"]["podCIDRs"].as_array().cloned();
        let cidrs: Vec<String> = cidrs.iter().flatten().map(Value::to_string).collect();
        let sizes = [r#"/25""#, r#"/60""#];
        let is_right = |(cidr, size): (&String, &str)| cidr.ends_with(size);
        assert!(
            cidrs.len() == 2 && cidrs.iter().zip(sizes).all(is_right),
            "{cidrs:?}"
        );
    }
    let addresses = start_servers(&site.cluster, 2);
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    let on_one = (site.cluster.machine(), site.cluster.data_dir());
    let mut clients = start_clients(&site.cluster, on_one, "one", &addresses);
    let on_two = (site.two.machine(), site.two.data_dir());
    clients.extend(start_clients(&site.cluster, on_two, "two", &addresses));
    change_everything(&site.cluster, &clients);
    site.two.kill();
    site.two.start(&[]);
    site.cluster.kill();
    site.cluster.start();
    stay_served(&site.cluster, &clients, "by crashes");
    site.reset();
}
