//! The reachability matrix of network policies with real containers on two machines, in both address families: after
//! every change, which of four pods reach which ports of which others, and that `mainstay why connection` says so.

use std::{collections::BTreeSet, thread};

use e2e::DualStack;
use serde_json::{Value, json};
use testkit::{Cluster, eventually};

/// Namespace, name and node of each pod.
const PODS: [(&str, &str, &str); 4] = [
    ("x", "a", "one"),
    ("x", "b", "two"),
    ("y", "c", "one"),
    ("y", "d", "two"),
];
const PORTS: [u16; 2] = [80, 81];
/// Clients and servers whose connections are explained, too.
const EXPLAINED: [(usize, usize); 4] = [(0, 1), (1, 0), (2, 1), (3, 0)];
const BUSYBOX: &str = "local.test/busybox:1";
/// Connects to all arguments at once, each an address and a port, and prints those that answer.
const PROBE: &str = r#"
for target in "$@"; do
  ( /bin/busybox nc -w 1 $target </dev/null >/dev/null 2>&1 && echo "$target" ) &
done
wait
"#;

/// `a>b:80/6`: client, server, port and family.
type Reached = BTreeSet<String>;

struct Site {
    nodes: DualStack,
    /// IPv4 and IPv6 of each pod, in the order of [`PODS`].
    addresses: Vec<[String; 2]>,
}

fn apply(cluster: &Cluster, object: &Value) {
    let apply = ["apply", "-f", "-"];
    cluster.kubectl_stdin(&apply, &object.to_string()).success();
}

fn pod((namespace, name, node): (&str, &str, &str)) -> Value {
    let server = |name: &str, port: u16| {
        json!({"name": name, "image": "mainstay.local/hello", "args": ["http", port.to_string()],
            "ports": [{"name": name, "containerPort": port}]})
    };
    let client = json!({"name": "client", "image": BUSYBOX, "imagePullPolicy": "Never",
        "command": ["/bin/busybox", "sleep", "100000"]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"pod": name}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [client, server("web", PORTS[0]), server("other", PORTS[1])]}})
}

fn policy(namespace: &str, spec: &Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "p", "namespace": namespace}, "spec": spec})
}

impl Site {
    fn start() -> Self {
        let nodes = DualStack::start();
        let cluster = &nodes.cluster;
        let two = (nodes.two.machine(), nodes.two.data_dir());
        for (machine, data) in [(cluster.machine(), cluster.data_dir()), two] {
            e2e::import_busybox(machine, &data);
        }
        for (namespace, team) in [("x", "one"), ("y", "two")] {
            let metadata = json!({"name": namespace, "labels": {"team": team}});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            apply(cluster, &namespace);
        }
        for of in PODS {
            apply(cluster, &pod(of));
        }
        let addresses = PODS.map(|(namespace, name, _)| {
            eventually(&format!("{name} to be ready with both addresses"), || {
                let pod = cluster.get(&["pod", name, "-n", namespace]);
                let ip = |index: usize| pod["status"]["podIPs"][index]["ip"].as_str();
                match (e2e::is_ready(&pod), ip(0), ip(1)) {
                    (true, Some(v4), Some(v6)) => Ok([v4.to_owned(), v6.to_owned()]),
                    _ => Err(pod["status"].to_string()),
                }
            })
        });
        Self {
            addresses: addresses.into(),
            nodes,
        }
    }

    /// Connects from a pod to all others.
    fn probe(&self, client: usize) -> Result<Reached, String> {
        let (namespace, name, _) = PODS[client];
        let mut targets = Vec::new();
        for (server, addresses) in self
            .addresses
            .iter()
            .enumerate()
            .filter(|(n, _)| *n != client)
        {
            for (address, family) in addresses.iter().zip([4, 6]) {
                for port in PORTS {
                    let of = format!("{name}>{}:{port}/{family}", PODS[server].1);
                    targets.push((format!("{address} {port}"), of));
                }
            }
        }
        let exec = [
            "exec",
            "-n",
            namespace,
            name,
            "-c",
            "client",
            "--",
            "/bin/busybox",
            "sh",
            "-c",
            PROBE,
            "probe",
        ];
        let all: Vec<&str> = targets.iter().map(|(target, _)| target.as_str()).collect();
        let ran = self.nodes.cluster.kubectl(&[&exec[..], &all].concat());
        if !ran.ok {
            // After a crash the kubelet lags behind the API server for a moment.
            return Err(ran.stderr);
        }
        let answered: Vec<&str> = ran.stdout.lines().collect();
        let reached = targets
            .into_iter()
            .filter(|(target, _)| answered.contains(&target.as_str()));
        Ok(reached.map(|(_, of)| of).collect())
    }

    fn probe_all(&self) -> Result<Reached, String> {
        thread::scope(|scope| {
            let probing = [0, 1, 2, 3].map(|client| scope.spawn(move || self.probe(client)));
            let joined = probing.into_iter().map(|one| one.join().expect("it ends"));
            let found: Result<Vec<Reached>, String> = joined.collect();
            Ok(found?.into_iter().flatten().collect())
        })
    }

    fn expect(&self, case: &str, expected: &[&str]) {
        let expected: Reached = expected
            .iter()
            .flat_map(|pattern| expand(pattern))
            .collect();
        eventually(case, || match self.probe_all()? {
            found if found == expected => Ok(()),
            found => {
                let missing: Vec<_> = expected.difference(&found).collect();
                let surplus: Vec<_> = found.difference(&expected).collect();
                Err(format!("missing {missing:?}, too many {surplus:?}"))
            }
        });
        self.explains(case, &expected);
    }

    /// Compares the explanation of some connections to the second port.
    fn explains(&self, case: &str, reached: &Reached) {
        let port = PORTS[1];
        for (client, server) in EXPLAINED {
            let ((of, client, _), (to, server, _)) = (PODS[client], PODS[server]);
            let from = format!("pod/{of}/{client}");
            let to = format!("pod/{to}/{server}:{port}");
            let why = ["why", "connection", &from, &to];
            let said = self.nodes.cluster.mainstay(&why).success();
            let passes =
                |family: u8| reached.contains(&format!("{client}>{server}:{port}/{family}"));
            let verdict = match (passes(4), passes(6)) {
                (true, true) => "allowed\n",
                (false, false) => "denied\n",
                _ => "allowed to 1 of 2",
            };
            assert!(
                said.starts_with(verdict),
                "{case}: {from} to {to}: {verdict:?}, and {said}"
            );
        }
    }

    /// Checks what is reached under one policy.
    fn with(&self, case: &str, namespace: &str, spec: Value, expected: &[&str]) {
        let cluster = &self.nodes.cluster;
        apply(cluster, &policy(namespace, &spec));
        self.expect(case, expected);
        cluster
            .kubectl(&["delete", "networkpolicy", "p", "-n", namespace])
            .success();
    }
}

/// `*>b:80` stands for all clients and both families; a missing part stands for all.
fn expand(pattern: &str) -> Vec<String> {
    let (clients, server) = pattern.split_once('>').expect("a pattern");
    let (server, family) = server.split_once('/').unwrap_or((server, "46"));
    let (servers, port) = server.split_once(':').unwrap_or((server, "80 81"));
    let names = |of: &str| {
        PODS.map(|(_, name, _)| name)
            .into_iter()
            .filter(|name| of == "*" || of.contains(name))
            .collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for client in names(clients) {
        for server in names(servers)
            .into_iter()
            .filter(|server| *server != client)
        {
            for port in PORTS
                .into_iter()
                .filter(|number| port.contains(&number.to_string()))
            {
                let families = family.chars();
                all.extend(families.map(|family| format!("{client}>{server}:{port}/{family}")));
            }
        }
    }
    all
}

fn on(pod: &str) -> Value {
    json!({"matchLabels": {"pod": pod}})
}

#[test]
fn policies_hold_between_machines_in_both_families() {
    let mut site = Site::start();
    site.expect("without policies", &["*>*"]);
    isolation(&site);
    peers(&site);
    ports(&site);
    blocks(&site);
    changes(&mut site);
    site.nodes.reset();
    for machine in [site.nodes.cluster.machine(), site.nodes.two.machine()] {
        let rules = machine.run("nft", &["list", "ruleset"]).success();
        assert!(!rules.contains("mainstay-"), "{rules}");
    }
}

fn isolation(site: &Site) {
    let deny = |types: &[&str]| json!({"podSelector": {}, "policyTypes": types});
    site.with("deny ingress", "x", deny(&["Ingress"]), &["*>cd"]);
    site.with("deny egress", "x", deny(&["Egress"]), &["cd>*"]);
    site.with("deny all", "x", deny(&["Ingress", "Egress"]), &["cd>cd"]);
}

fn peers(site: &Site) {
    let from =
        |pod: &str, peer: Value| json!({"podSelector": on(pod), "ingress": [{"from": [peer]}]});
    let to = |pod: &str, peer: Value| json!({"podSelector": on(pod), "policyTypes": ["Egress"], "egress": [{"to": [peer]}]});
    let own = json!({"podSelector": on("a")});
    let team = json!({"namespaceSelector": {"matchLabels": {"team": "two"}}});
    let both =
        json!({"namespaceSelector": {"matchLabels": {"team": "two"}}, "podSelector": on("d")});
    site.with(
        "from a pod on the other machine",
        "x",
        from("b", own.clone()),
        &["*>acd", "a>b"],
    );
    site.with(
        "from a namespace",
        "x",
        from("b", team.clone()),
        &["*>acd", "cd>b"],
    );
    site.with(
        "from a pod of a namespace",
        "x",
        from("a", both.clone()),
        &["*>bcd", "d>a"],
    );
    site.with(
        "to a pod on the other machine",
        "x",
        to("b", own),
        &["acd>*", "b>a"],
    );
    site.with("to a namespace", "x", to("a", team), &["bcd>*", "a>cd"]);
    site.with(
        "to a pod of a namespace",
        "x",
        to("a", both),
        &["bcd>*", "a>d"],
    );
}

fn ports(site: &Site) {
    let only = |port: Value| json!({"podSelector": on("b"), "ingress": [{"ports": [port]}]});
    site.with(
        "a port",
        "x",
        only(json!({"port": 81})),
        &["*>acd", "acd>b:81"],
    );
    site.with(
        "a named port",
        "x",
        only(json!({"port": "web"})),
        &["*>acd", "acd>b:80"],
    );
    site.with(
        "a range",
        "x",
        only(json!({"port": 81, "endPort": 90})),
        &["*>acd", "acd>b:81"],
    );
    for protocol in ["UDP", "SCTP"] {
        site.with(
            "another protocol",
            "x",
            only(json!({"protocol": protocol})),
            &["*>acd"],
        );
    }
    let egress = json!({"podSelector": on("a"), "policyTypes": ["Egress"], "egress": [{"ports": [{"port": "other"}]}]});
    site.with(
        "a named port of the others",
        "x",
        egress,
        &["bcd>*", "a>bcd:81"],
    );
}

fn blocks(site: &Site) {
    let [_, _, c, d] = &site.addresses[..] else {
        panic!("four pods");
    };
    // Addresses of the other family are in no block.
    let block =
        |cidr: &str, except: &[String]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let all_but_c = block("fd42::/56", &[format!("{}/128", c[1])]);
    let only_d = block(&format!("{}/32", d[0]), &[]);
    let from = json!({"podSelector": on("a"), "ingress": [{"from": [all_but_c, only_d]}]});
    site.with("from blocks", "x", from, &["*>bcd", "bd>a/6", "d>a/4"]);
    let all_but_d = block("10.42.0.0/16", &[format!("{}/32", d[0])]);
    let only_c = block(&format!("{}/128", c[1]), &[]);
    let to = json!({"podSelector": on("b"), "policyTypes": ["Egress"], "egress": [{"to": [all_but_d, only_c]}]});
    site.with("to blocks", "x", to, &["acd>*", "b>ac/4", "b>c/6"]);
}

/// Labels change, daemons crash, and a pod's successor has other addresses, all under one policy.
fn changes(site: &mut Site) {
    let spec = json!({"podSelector": on("b"), "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}]});
    apply(&site.nodes.cluster, &policy("x", &spec));
    site.expect("no pod has the label", &["*>acd"]);
    let label = ["label", "pod", "a", "-n", "x", "role=client"];
    site.nodes.cluster.kubectl(&label).success();
    site.expect("a has the label", &["*>acd", "a>b"]);
    site.nodes.two.kill();
    site.nodes.cluster.kill();
    // The rules are in the kernels.
    site.nodes.cluster.start();
    site.nodes.two.start(&[]);
    site.nodes.cluster.ready_nodes(2);
    site.expect("after crashes", &["*>acd", "a>b"]);
    let delete = ["delete", "networkpolicy", "p", "-n", "x"];
    site.nodes.cluster.kubectl(&delete).success();
    site.expect("without policies again", &["*>*"]);
}
