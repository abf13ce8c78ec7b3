//! Network policies between pods of two machines in both address families: who reaches whom, by TCP and UDP, by the
//! addresses of pods, of their Service, of node ports and host ports, under one set of policies after the other.

use std::{collections::BTreeSet, thread};

use e2e::DualStack;
use serde_json::Value;
use testkit::{Cluster, Machine, eventually};

const NODES: [&str; 2] = ["one", "two"];

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NODE, namespace: NAMESPACE, labels: {app: web, on: NODE}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: mainstay.local/hello
    ports: [{name: http, containerPort: 8080, HOSTPORT18080}]
    readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
  - name: echo
    image: mainstay.local/hello
    args: [echo, udp, "7007"]
    ports: [{name: echo, containerPort: 7007, protocol: UDP, HOSTPORT17007}]
---
"#;

const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: a}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports:
  - {name: http, port: 8080, targetPort: http, nodePort: 30080}
  - {name: echo, protocol: UDP, port: 7007, targetPort: echo, nodePort: 30007}
"#;

/// Nothing reaches the pods of `a`, but `b/one` may connect to the named port of `a/two`.
const INGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: none, namespace: a}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: one, namespace: a}
spec:
  podSelector: {matchLabels: {on: two}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}
      podSelector: {matchLabels: {on: one}}
    ports: [{port: http}]
"#;

/// `b/one` may connect to a range of ports of the IPv6 addresses of pods, without one of them.
const EGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: block, namespace: b}
spec:
  podSelector: {matchLabels: {on: one}}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: "fd42::/56", except: ["EXCEPT/128"]}}]
    ports: [{port: 8000, endPort: 8100}]
"#;

/// Pods reach only those of their own namespace.
const ISOLATED: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own, namespace: NAMESPACE}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {}}]}]
  egress: [{to: [{podSelector: {}}]}]
---
"#;

#[derive(Clone)]
struct Target {
    /// A pod, or what leads to the pods of namespace `a`.
    name: String,
    ip: String,
    port: u16,
    is_udp: bool,
}

impl Target {
    fn is_v6(&self) -> bool {
        self.ip.contains(':')
    }

    fn is_pod(&self) -> bool {
        self.name.contains('/')
    }

    fn shown(&self) -> String {
        let protocol = if self.is_udp { "UDP" } else { "TCP" };
        format!("{} ({protocol} {} {})", self.name, self.ip, self.port)
    }

    /// A command that ends well if the target answers.
    fn probe(&self) -> String {
        let Self { ip, port, .. } = self;
        match self.is_udp {
            false => format!("exec 3<>/dev/tcp/{ip}/{port}"),
            true => format!(
                "exec 3<>/dev/udp/{ip}/{port}; echo x >&3; read -t 2 -n 1 r <&3 && [ \"$r\" = x ]"
            ),
        }
    }
}

struct Site {
    site: DualStack,
    targets: Vec<Target>,
}

fn apply(cluster: &Cluster, manifest: &str) {
    let apply = ["apply", "-f", "-"];
    cluster.kubectl_stdin(&apply, manifest).success();
}

fn texts<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let items = list.as_array().into_iter().flatten();
    let text = |item: &'a Value| item.as_str().or(item[field].as_str());
    items.filter_map(text).collect()
}

/// Both ports at all addresses.
fn targets(name: &str, ips: &[&str], (http, echo): (u16, u16)) -> Vec<Target> {
    let ports = [(http, false), (echo, true)];
    let all = ips.iter().flat_map(|ip| {
        ports.map(|(port, is_udp)| Target {
            name: name.to_owned(),
            ip: (*ip).to_owned(),
            port,
            is_udp,
        })
    });
    all.collect()
}

impl Site {
    fn start() -> Self {
        let site = DualStack::across();
        let cluster = &site.cluster;
        let mut pods = String::new();
        for (namespace, has_host_ports) in [("a", true), ("b", false)] {
            cluster
                .kubectl(&["create", "namespace", namespace])
                .success();
            for node in NODES {
                let pod = POD.replace("NODE", node).replace("NAMESPACE", namespace);
                pods += &match has_host_ports {
                    true => pod.replace("HOSTPORT", "hostPort: "),
                    false => pod
                        .replace(", HOSTPORT18080", "")
                        .replace(", HOSTPORT17007", ""),
                };
            }
        }
        apply(cluster, &(pods + SERVICE));
        let mut all = Vec::new();
        for namespace in ["a", "b"] {
            let ready = ["--for=condition=Ready", "pods", "--all", "--timeout=60s"];
            let wait = [&["wait", "-n", namespace][..], &ready].concat();
            cluster.kubectl(&wait).success();
            for node in NODES {
                let pod = cluster.get(&["pod", node, "-n", namespace]);
                let ips = texts(&pod["status"]["podIPs"], "ip");
                assert_eq!(ips.len(), 2);
                all.extend(targets(&format!("{namespace}/{node}"), &ips, (8080, 7007)));
            }
        }
        let service = cluster.get(&["service", "web", "-n", "a"]);
        let ips = texts(&service["spec"]["clusterIPs"], "");
        all.extend(targets("service", &ips, (8080, 7007)));
        for node in NODES {
            let object = cluster.get(&["node", node]);
            let ips = texts(&object["status"]["addresses"], "address");
            let ips: Vec<&str> = ips.into_iter().filter(|ip| *ip != node).collect();
            assert_eq!(ips.len(), 2, "{object}");
            all.extend(targets(
                &format!("node port of {node}"),
                &ips,
                (30080, 30007),
            ));
            all.extend(targets(
                &format!("host port of {node}"),
                &ips,
                (18080, 17007),
            ));
        }
        let targets = all;
        Self { site, targets }
    }

    fn machine(&self, node: &str) -> &Machine {
        match node {
            "one" => self.site.cluster.machine(),
            _ => self.site.two.machine(),
        }
    }

    /// What a client reaches: a pod, a node, or the router outside.
    fn reached(&self, client: &str) -> BTreeSet<String> {
        let probes = self.targets.iter().enumerate().map(|(number, target)| {
            let probe = target.probe();
            format!("(timeout 4 bash -c '{probe}' && echo {number}) 2>/dev/null &\n")
        });
        let script: String = probes.collect::<String>() + "wait";
        let ran = match client.split_once('/') {
            Some((_, node)) => {
                let mut of_client = self.targets.iter().filter(|target| target.name == client);
                let ip = &of_client.next().expect("an address").ip;
                let enter = format!(
                    "for n in /run/mainstay/*/s/*/net; do nsenter --net=$n ip -o address show dev eth0 | grep -qw {ip} \
                     && exec nsenter --net=$n bash -c \"$1\"; done; exit 1"
                );
                self.machine(node)
                    .run("bash", &["-c", &enter, "bash", &script])
            }
            None if client == "outside" => self.site.lan.run("bash", &["-c", &script]),
            None => self.machine(client).run("bash", &["-c", &script]),
        };
        let numbers = ran.success();
        let numbers = numbers.lines().map(|line| line.parse::<usize>());
        let reached = numbers.map(|number| &self.targets[number.expect("a number")]);
        reached
            .map(|target| format!("{client} -> {}", target.shown()))
            .collect()
    }

    /// Waits until exactly what is expected is reached. `None` means either.
    fn expect(&self, what: &str, expected: impl Fn(&str, &Target) -> Option<bool>) {
        let clients = ["a/one", "a/two", "b/one", "b/two", "one", "two", "outside"];
        let (mut wanted, mut counts) = (BTreeSet::new(), BTreeSet::new());
        for client in clients {
            for target in self.targets.iter().filter(|target| target.name != client) {
                let path = format!("{client} -> {}", target.shown());
                if let Some(is_reached) = expected(client, target) {
                    counts.insert(path.clone());
                    if is_reached {
                        wanted.insert(path);
                    }
                }
            }
        }
        eventually(&format!("the matrix of {what}"), || {
            let found: BTreeSet<String> = thread::scope(|scope| {
                let asked = clients.map(|client| scope.spawn(move || self.reached(client)));
                let found = asked.map(|asked| asked.join().expect("no panic"));
                found.into_iter().flatten().collect()
            });
            let found: BTreeSet<String> = found.intersection(&counts).cloned().collect();
            let missing: Vec<_> = wanted.difference(&found).collect();
            let forbidden: Vec<_> = found.difference(&wanted).collect();
            match found == wanted {
                true => Ok(()),
                false => Err(format!("missing: {missing:#?}, forbidden: {forbidden:#?}")),
            }
        });
    }

    fn remove_policies(&self) {
        for namespace in ["a", "b"] {
            let delete = ["delete", "networkpolicies", "--all", "-n", namespace];
            self.site.cluster.kubectl(&delete).success();
        }
    }
}

/// The node of a pod.
fn node(pod: &str) -> &str {
    pod.rsplit('/').next().unwrap_or_default()
}

/// The namespace of a pod.
fn namespace(pod: &str) -> Option<&str> {
    pod.split_once('/').map(|(namespace, _)| namespace)
}

/// Whether a client is the node of a pod: nothing isolates pods from their own node.
fn is_own_node(client: &str, target: &Target) -> bool {
    target.is_pod() && node(&target.name) == client
}

/// The router has no route to pods and Services.
fn is_unroutable(client: &str, target: &Target) -> bool {
    client == "outside" && (target.is_pod() || target.name == "service")
}

#[test]
fn policies_hold_between_pods_of_two_machines_in_both_families() {
    let mut site = Site::start();
    let cluster = &site.site.cluster;
    site.expect("no policy", |client, target| {
        Some(!is_unroutable(client, target))
    });

    apply(cluster, INGRESS);
    site.expect("policies for ingress", |client, target| {
        if !target.is_pod() {
            return None;
        }
        let is_allowed = match (client, target.name.as_str()) {
            _ if is_unroutable(client, target) => false,
            ("b/one", "a/two") => !target.is_udp,
            (_, pod) => namespace(pod) == Some("b") || is_own_node(client, target),
        };
        Some(is_allowed)
    });

    site.remove_policies();
    let mut excepted = site.targets.iter();
    let excepted = excepted.find(|target| target.name == "a/two" && target.is_v6());
    let excepted = &excepted.expect("an IPv6 address").ip;
    apply(cluster, &EGRESS.replace("EXCEPT", excepted));
    site.expect("a policy for egress", |client, target| {
        if client != "b/one" {
            return Some(!is_unroutable(client, target));
        }
        // Its endpoint may be any.
        if !target.is_pod() {
            return None;
        }
        Some(target.is_v6() && !target.is_udp && target.ip != *excepted)
    });

    site.remove_policies();
    let isolated = ["a", "b"].map(|namespace| ISOLATED.replace("NAMESPACE", namespace));
    apply(cluster, &isolated.concat());
    site.expect("isolated namespaces", |client, target| {
        let own = namespace(client);
        if target.is_pod() {
            let is_of_own = own.is_some() && own == namespace(&target.name);
            return Some(is_of_own || is_own_node(client, target));
        }
        match (own, target.name.as_str()) {
            // By no way to pods of the other namespace.
            (Some("b"), _) | (None, _) if client != "one" && client != "two" => Some(false),
            (Some(_), "service") => Some(true),
            // Under the address of its node, and the node reaches its own pods.
            _ => None,
        }
    });

    site.remove_policies();
    site.expect("removed policies", |client, target| {
        Some(!is_unroutable(client, target))
    });
    site.site.reset();
}
