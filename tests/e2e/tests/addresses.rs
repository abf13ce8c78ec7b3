//! Machines whose addresses change while the cluster runs: first a node's, then the server's.
//! Nothing is restarted; Nodes, endpoints, kubeconfigs, certificates and routes follow.

use std::fs;

use e2e::{container_ids, name, ready_pods};
use serde_json::Value;
use testkit::{Agent, Cluster, Lan, Machine, eventually};

const DAEMONS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: mainstay.local/hello}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#;

/// A server, and an agent that uses the server's name.
struct Site {
    // Fields are dropped in this order: machines before their network.
    two: Agent,
    cluster: Cluster,
    lan: Lan,
}

impl Site {
    fn new() -> Self {
        let lan = Lan::new();
        let server = lan.address(0, 2);
        let mut cluster = Cluster::stopped_on(Machine::on(&lan, &server), &[]);
        cluster.start();
        let mut two = Agent::on_lan(&lan, 0, 3, "two");
        two.follow_address();
        let site = Self { two, cluster, lan };
        let hosts = site.hosts().display().to_string();
        site.name_server(&server);
        let mount = ["--bind", hosts.as_str(), "/etc/hosts"];
        site.two.machine().run("mount", &mount).success();
        site
    }

    fn hosts(&self) -> std::path::PathBuf {
        self.two.machine().dir().join("hosts")
    }

    /// Updates the name's address, as in DNS, when the server moves.
    fn name_server(&self, address: &str) {
        let text = format!("127.0.0.1 localhost\n{address} one\n");
        fs::write(self.hosts(), text).expect("a file");
    }

    fn join(&mut self) {
        let mut flags = self.cluster.join_flags();
        let at = flags.iter().position(|flag| flag == "--server");
        flags[at.expect("a server") + 1] = "https://one:6443".into();
        self.two.start(&flags);
    }

    /// Replaces a machine's address.
    fn move_machine(&self, machine: &Machine, from: &str, to: &str) {
        let gateway = self.lan.address(0, 1);
        let script = format!(
            "ip address del {from}/24 dev eth0 && ip address add {to}/24 dev eth0 \
             && ip route replace default via {gateway}"
        );
        machine.run("sh", &["-ec", &script]).success();
    }

    fn wait_for_address(&self, node: &str, address: &str) {
        eventually(&format!("{node} to be Ready at {address}"), || {
            let node = self.cluster.get(&["node", node]);
            let addresses = node["status"]["addresses"].as_array();
            let internal = |one: &&Value| one["type"] == "InternalIP";
            let found = addresses.into_iter().flatten().find(internal);
            let is_there = found.is_some_and(|found| found["address"] == address);
            match is_there && testkit::is_ready(&node) {
                true => Ok(()),
                false => Err(node["status"].to_string()),
            }
        });
    }

    /// Checks that pods reach each other and the Service by its name, and that every kubelet
    /// answers the API server.
    fn everything_works(&self, pods: &[Value]) {
        let ip = |pod: &Value| {
            pod["status"]["podIP"]
                .as_str()
                .expect("an address")
                .to_owned()
        };
        for from in pods {
            let mut urls: Vec<String> = pods
                .iter()
                .map(|to| format!("http://{}:8080/", ip(to)))
                .collect();
            urls.push("http://web.default.svc.cluster.local/".to_owned());
            for url in urls {
                eventually(&format!("{url} from {}", name(from)), || {
                    let command = ["exec", &name(from), "--", "/mainstay", "hello", "get", &url];
                    let ran = self.cluster.kubectl(&command);
                    if ran.ok { Ok(()) } else { Err(ran.stderr) }
                });
            }
        }
    }
}

#[test]
fn nodes_and_servers_follow_the_addresses_of_their_machines() {
    let mut site = Site::new();
    site.join();
    let apply = ["apply", "-f", "-"];
    site.cluster.kubectl_stdin(&apply, DAEMONS).success();
    let pods = ready_pods(&site.cluster, "app=web", 2);
    site.everything_works(&pods);
    let processes = (site.cluster.pid(), site.two.pid());
    let containers: Vec<_> = pods.iter().map(container_ids).collect();

    let (before, after) = (site.lan.address(0, 3), site.lan.address(0, 33));
    site.move_machine(site.two.machine(), &before, &after);
    site.wait_for_address("two", &after);
    eventually("the route to the node", || {
        let routes = site.cluster.machine().run("ip", &["route"]).success();
        match routes.contains(&format!("via {after}")) {
            true if !routes.contains(&format!("via {before} ")) => Ok(()),
            _ => Err(routes),
        }
    });
    site.everything_works(&pods);

    let (before, after) = (site.lan.address(0, 2), site.lan.address(0, 22));
    site.move_machine(site.cluster.machine(), &before, &after);
    site.name_server(&after);
    site.wait_for_address("one", &after);
    let kubeconfig = site.cluster.kubeconfig().display().to_string();
    let text = site.cluster.machine().run("cat", &[&kubeconfig]).success();
    assert!(text.contains(&format!("https://{after}:6443")), "{text}");
    eventually("the endpoint of the API server", || {
        let slice = site.cluster.get(&["endpointslice", "kubernetes"]);
        match slice["endpoints"][0]["addresses"][0] == after.as_str() {
            true => Ok(()),
            false => Err(slice.to_string()),
        }
    });
    eventually("cluster-info", || {
        let info = site
            .cluster
            .get(&["configmap", "cluster-info", "-n", "kube-public"]);
        match info["data"]["kubeconfig"].as_str() {
            Some(text) if text.contains(&after) => Ok(()),
            _ => Err(info.to_string()),
        }
    });
    site.wait_for_address("two", &site.lan.address(0, 33));
    site.everything_works(&pods);
    let pods = ready_pods(&site.cluster, "app=web", 2);
    let now: Vec<_> = pods.iter().map(container_ids).collect();
    assert_eq!(now, containers, "containers were touched");
    assert_eq!((site.cluster.pid(), site.two.pid()), processes);
}
