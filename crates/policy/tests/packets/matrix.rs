//! Which pods reach which under which policies, for IPv4 and IPv6, TCP, UDP and SCTP; and that `mainstay why connection` says
//! so.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::ResourceExt;
use network::Protocol;
use network_lab::{self as lab, Namespace};
use policy::{
    explain::{Connection, End, explain},
    policy::{Direction, Policy},
    state::Pod,
};
use serde_json::{Value, json};

use crate::lab_node::{LabNode, PORTS, REMOTE, at};

/// Pods `a` and `b` of namespace `x`, `c` of namespace `y`, and `r` of `y` on the neighbour.
struct Site {
    node: LabNode,
    addresses: Vec<Named>,
}

/// A pod's name and addresses, IPv4 first.
type Named = (&'static str, Vec<IpAddr>);

const PATIENCE: Duration = Duration::from_secs(30);

const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// `a>b:80/tcp`.
type Reached = BTreeSet<String>;

impl Site {
    async fn new(outside: Arc<Namespace>) -> Self {
        let mut node = LabNode::start(outside).await;
        node.namespace(
            "x",
            json!({"kubernetes.io/metadata.name": "x", "team": "one"}),
        );
        node.namespace(
            "y",
            json!({"kubernetes.io/metadata.name": "y", "team": "two"}),
        );
        let mut addresses = Vec::new();
        for (namespace, name) in [("x", "a"), ("x", "b"), ("y", "c")] {
            let ips = node.start_pod(namespace, name, json!({"pod": name})).await;
            addresses.push((name, ips));
        }
        let remote: Vec<IpAddr> = REMOTE.iter().map(|ip| ip.parse().unwrap()).collect();
        for port in PORTS {
            node.outside.serve("r", port).await;
            node.outside.serve_sctp("r", port).await;
        }
        node.show("y", "r", json!({"pod": "r"}), "there", &remote);
        addresses.push(("r", remote));
        node.pods.insert("r".into(), node.outside.clone());
        let site = Self { node, addresses };
        site.warm_up().await;
        site
    }

    /// The first datagrams on a new IPv6 link can be lost: waits until every path works.
    async fn warm_up(&self) {
        let all = self.node.pods.len() * (self.addresses.len() - 1) * PORTS.len() * 6;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reached = self.ask_everybody().await.len();
            if reached == all {
                return;
            }
            assert!(Instant::now() < deadline, "{reached} of {all} paths work");
        }
    }

    async fn reached(&self) -> Reached {
        self.node.settle().await;
        both_families(&self.ask_everybody().await)
    }

    /// Connects from every pod to every other at once; names end with the family.
    async fn ask_everybody(&self) -> Reached {
        let mut asking = tokio::task::JoinSet::new();
        for (client, namespace) in &self.node.pods {
            for (server, ips) in self.addresses.iter().filter(|(name, _)| name != client) {
                for (ip, port) in ips.iter().flat_map(|ip| PORTS.map(|port| (*ip, port))) {
                    let family = if ip.is_ipv4() { 4 } else { 6 };
                    let name = format!("{client}>{server}:{port}");
                    for protocol in PROTOCOLS {
                        let name = format!("{name}/{protocol}{family}");
                        let (client, to) = (namespace.clone(), at(ip, port));
                        asking.spawn(async move {
                            let answer = match protocol {
                                "tcp" => client.ask(to).await,
                                "udp" => client.ask_udp(to).await,
                                _ => client.ask_sctp(to).await,
                            };
                            (name, answer)
                        });
                    }
                }
            }
        }
        let answers = asking.join_all().await;
        let reached = answers.into_iter().filter(|(_, answer)| answer.is_some());
        reached.map(|(name, _)| name).collect()
    }

    /// What `mainstay why connection` finds, for every path.
    fn explained(&self) -> Reached {
        let sources = &self.node.sources;
        let policies = sources.policies.list();
        let policies = policies.iter().map(|policy| {
            let key = (policy.namespace().unwrap(), policy.name_any());
            (key, Policy::from_object(policy))
        });
        let policies: BTreeMap<_, _> = policies.collect();
        let mut reached = Reached::new();
        for (client, server) in self.pairs() {
            for (from, to) in client.1.iter().zip(&server.1) {
                let (family, connection) = (if to.is_ipv4() { 4 } else { 6 }, |protocol, port| {
                    let (client, server) = (self.end(client.0, *from), self.end(server.0, *to));
                    Connection {
                        client,
                        server,
                        protocol,
                        port,
                    }
                });
                for (port, protocol) in PORTS.into_iter().flat_map(|port| {
                    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| (port, protocol))
                }) {
                    let connection = connection(protocol, port);
                    let passes = |direction| explain(direction, &connection, &policies).passes();
                    if Direction::ALL.into_iter().all(passes) {
                        let name = protocol.as_str();
                        reached.insert(format!("{}>{}:{port}/{name}{family}", client.0, server.0));
                    }
                }
            }
        }
        reached
    }

    /// All clients with all servers.
    fn pairs(&self) -> impl Iterator<Item = (&Named, &Named)> {
        let all = || self.addresses.iter();
        let pairs = all().flat_map(move |client| all().map(move |server| (client, server)));
        pairs.filter(|(client, server)| client.0 != server.0)
    }

    fn end(&self, name: &str, address: IpAddr) -> End {
        let sources = &self.node.sources;
        let mut pods = sources.pods.list().into_iter();
        let object = pods.find(|pod| pod.name_any() == name).unwrap();
        let namespace = object.namespace().unwrap();
        let labels = sources.namespaces.get("", &namespace).unwrap();
        let labels = labels.metadata.labels.clone().unwrap_or_default();
        let pod = Pod::from_object(&object, "here").unwrap();
        End {
            addresses: vec![address],
            pod: Some(((namespace, name.to_owned()), pod, labels)),
            node: Vec::new(),
        }
    }

    async fn expect(&self, case: &str, expected: &[&str]) {
        let expected: Reached = expected
            .iter()
            .flat_map(|pattern| expand(pattern))
            .collect();
        let found = self.reached().await;
        let explained = both_families(&self.explained());
        assert_eq!(
            explained, found,
            "{case}: the explanation is not what happens"
        );
        let missing: Vec<_> = expected.difference(&found).collect();
        let surplus: Vec<_> = found.difference(&expected).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "{case}: missing {missing:?}, too many {surplus:?}\n{}",
            lab::command("nft list ruleset")
        );
    }
}

/// Policies are the same for both families here: the results must be equal.
fn both_families(names: &Reached) -> Reached {
    let strip = |family: char| -> Reached {
        let of_family = names.iter().filter_map(|name| name.strip_suffix(family));
        of_family.map(ToOwned::to_owned).collect()
    };
    let (four, six) = (strip('4'), strip('6'));
    assert_eq!(four, six, "IPv4 and IPv6 differ");
    four
}

/// `*>b:80` stands for all clients and protocols; a missing part stands for all.
fn expand(pattern: &str) -> Vec<String> {
    let (client, server) = pattern.split_once('>').unwrap();
    let (server, protocol) = server.split_once('/').unwrap_or((server, "*"));
    let (server, port) = server.split_once(':').unwrap_or((server, "*"));
    let choose = |given: &str, all: &[&str]| -> Vec<String> {
        let all = all
            .iter()
            .filter(|one| given == "*" || given.contains(**one));
        all.map(|one| (*one).to_owned()).collect()
    };
    let mut names = Vec::new();
    for client in choose(client, &["a", "b", "c", "r"]) {
        for server in choose(server, &["a", "b", "c", "r"]) {
            for port in choose(port, &["80", "81"]) {
                for protocol in choose(protocol, &PROTOCOLS) {
                    if client != server {
                        names.push(format!("{client}>{server}:{port}/{protocol}"));
                    }
                }
            }
        }
    }
    names
}

fn on(pod: &str) -> Value {
    json!({"matchLabels": {"pod": pod}})
}

fn run(cases: Vec<(&'static str, Value, Vec<&'static str>)>) {
    lab::node(|outside| async move {
        let site = Site::new(outside).await;
        for (case, policies, expected) in cases {
            for (index, policy) in policies.as_array().unwrap().iter().enumerate() {
                let namespace = policy["namespace"].as_str().unwrap_or("x");
                let name = format!("p{index}");
                site.node.policy(namespace, &name, policy["spec"].clone());
            }
            site.expect(case, &expected).await;
            site.node.no_policies();
        }
        site.expect("without policies", &["*>*"]).await;
    });
}

#[test]
fn isolation_by_ingress_and_egress() {
    let deny = |types: Value| json!({"spec": {"podSelector": {}, "policyTypes": types}});
    let all_but_x = vec!["abcr>cr"];
    run(vec![
        ("deny ingress", json!([deny(json!(["Ingress"]))]), all_but_x),
        (
            "deny egress",
            json!([deny(json!(["Egress"]))]),
            vec!["cr>*"],
        ),
        (
            "deny all",
            json!([deny(json!(["Ingress", "Egress"]))]),
            vec!["cr>cr"],
        ),
        (
            "of two policies each adds what it allows",
            json!([
                deny(json!(["Ingress"])),
                {"spec": {"podSelector": on("a"), "ingress": [{"from": [{"podSelector": on("b")}]}]}},
                {"spec": {"podSelector": on("a"), "ingress": [{"from": [{"namespaceSelector": on("none")}]}]}},
            ]),
            vec!["abcr>cr", "b>a"],
        ),
        (
            "allow all beats deny all",
            json!([deny(json!(["Ingress", "Egress"])),
                {"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}}]),
            vec!["*>*"],
        ),
        (
            "the client's side denies what the server's allows",
            json!([
                {"spec": {"podSelector": on("b"), "ingress": [{}]}},
                {"spec": {"podSelector": on("a"), "policyTypes": ["Egress"],
                          "egress": [{"to": [{"namespaceSelector": {"matchLabels": {"team": "two"}}}]}]}},
            ]),
            vec!["bcr>*", "a>cr"],
        ),
    ]);
}

#[test]
fn peers_by_selectors() {
    let from =
        |peers: Value| json!([{"spec": {"podSelector": on("b"), "ingress": [{"from": peers}]}}]);
    let with = |clients: &'static str| vec!["*>acr", clients];
    run(vec![
        (
            "own namespace",
            from(json!([{"podSelector": {}}])),
            with("a>b"),
        ),
        (
            "a pod of the own namespace",
            from(json!([{"podSelector": on("c")}])),
            with("_>b"),
        ),
        (
            "a namespace by its name",
            from(
                json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "y"}}}]),
            ),
            with("cr>b"),
        ),
        (
            "a pod in a namespace",
            from(json!([{"namespaceSelector": {"matchExpressions": [
                {"key": "team", "operator": "In", "values": ["two"]}]},
                "podSelector": {"matchExpressions": [{"key": "pod", "operator": "NotIn", "values": ["c"]}]}}])),
            with("r>b"),
        ),
        (
            "one or the other",
            from(
                json!([{"podSelector": on("a")}, {"namespaceSelector": {}, "podSelector": on("r")}]),
            ),
            with("ar>b"),
        ),
        (
            "every namespace",
            from(json!([{"namespaceSelector": {}}])),
            with("acr>b"),
        ),
        (
            "to a remote pod only",
            json!([{"spec": {"podSelector": on("a"), "policyTypes": ["Egress"], "egress": [
                {"to": [{"namespaceSelector": {}, "podSelector": on("r")}]}]}}]),
            vec!["bcr>*", "a>r"],
        ),
    ]);
}

#[test]
fn ports_and_blocks() {
    let to_b = |rule: Value| json!([{"spec": {"podSelector": on("b"), "ingress": [rule]}}]);
    let with = |found: &'static str| vec!["*>acr", found];
    let blocks = |remote: Value, all: Value| {
        json!([{"spec": {"podSelector": on("b"), "ingress": [{"from": [
            {"ipBlock": {"cidr": "10.42.0.0/16", "except": remote}},
            {"ipBlock": {"cidr": "fd42::/48", "except": all}}]}]}}])
    };
    run(vec![
        (
            "a number",
            to_b(json!({"ports": [{"port": 80}]})),
            with("acr>b:80/tcp"),
        ),
        (
            "a whole protocol",
            to_b(json!({"ports": [{"protocol": "UDP"}]})),
            with("acr>b/udp"),
        ),
        (
            "SCTP is not TCP",
            to_b(json!({"ports": [{"protocol": "SCTP", "port": 80}]})),
            with("acr>b:80/sctp"),
        ),
        (
            "all of SCTP",
            to_b(json!({"ports": [{"protocol": "SCTP"}]})),
            with("acr>b/sctp"),
        ),
        (
            "names",
            to_b(
                json!({"ports": [{"port": "first"}, {"port": "second-udp", "protocol": "UDP"},
                    {"port": "second-sctp", "protocol": "SCTP"}, {"port": "none"}]}),
            ),
            vec!["*>acr", "acr>b:80/tcp", "acr>b:81/udp", "acr>b:81/sctp"],
        ),
        (
            "a range",
            to_b(
                json!({"ports": [{"port": 70, "endPort": 80}, {"port": 81, "endPort": 90, "protocol": "UDP"}]}),
            ),
            vec!["*>acr", "acr>b:80/tcp", "acr>b:81/udp"],
        ),
        (
            "a peer and a port",
            to_b(json!({"from": [{"podSelector": {}}], "ports": [{"port": 81}]})),
            with("a>b:81/tcp"),
        ),
        (
            "a name at the other side of egress",
            json!([{"spec": {"podSelector": on("a"), "policyTypes": ["Egress"], "egress": [
                {"to": [{"namespaceSelector": {}}], "ports": [{"port": "first"}]}]}}]),
            vec!["bcr>*", "a>bcr:80/tcp"],
        ),
        ("a block", blocks(json!([]), json!([])), with("acr>b")),
        (
            "many pods, ports and blocks, each in one set",
            json!([{"spec": {"podSelector": on("b"), "ingress": [
                {"from": (0..9).map(|number| json!({"podSelector": on(["a", "none", "c"][number % 3])})).collect::<Vec<_>>(),
                 "ports": (40..45).map(|number| json!({"port": 2 * number})).collect::<Vec<_>>()},
                {"from": (0..9).flat_map(|number| [
                    json!({"ipBlock": {"cidr": format!("10.42.{number}.0/24"), "except": ["10.42.0.0/24"]}}),
                    json!({"ipBlock": {"cidr": format!("fd42:0:0:{number}::/64"), "except": ["fd42::/64"]}}),
                 ]).collect::<Vec<_>>(), "ports": [{"port": 81, "protocol": "UDP"}]}]}}]),
            vec!["*>acr", "a>b:80/tcp", "r>b:81/udp"],
        ),
        (
            "a block without the neighbour",
            blocks(json!(["10.42.1.0/24"]), json!(["fd42:0:0:1::/64"])),
            with("ac>b"),
        ),
    ]);
}

#[test]
fn pods_namespaces_and_policies_change_under_a_policy() {
    lab::node(|outside| async move {
        let site = Site::new(outside).await;
        let node = &site.node;
        let ips = |name: &str| {
            let found = site.addresses.iter().find(|(pod, _)| *pod == name);
            found.unwrap().1.clone()
        };
        node.settle().await;
        let before = node.table();
        let spec = |label: &str| {
            json!({"podSelector": on("b"), "ingress": [{"from": [
                {"namespaceSelector": {"matchLabels": {"team": "two"}}, "podSelector": on(label)}]}]})
        };
        node.policy("x", "p", spec("c"));
        site.expect("c by its label", &["*>acr", "c>b"]).await;
        node.show("y", "c", json!({"pod": "other"}), "here", &ips("c"));
        site.expect("c without the label", &["*>acr"]).await;
        node.show("y", "c", json!({"pod": "c"}), "here", &ips("c"));
        node.namespace("y", json!({"team": "none"}));
        site.expect("y without the label", &["*>acr"]).await;
        node.namespace("y", json!({"team": "two"}));
        node.policy("x", "p", spec("r"));
        site.expect("another rule", &["*>acr", "r>b"]).await;
        node.show("x", "b", json!({"pod": "free"}), "here", &ips("b"));
        site.expect("b is not selected any more", &["*>*"]).await;
        node.show("x", "b", json!({"pod": "b"}), "here", &ips("b"));
        site.expect("b is again", &["*>acr", "r>b"]).await;
        node.no_policies();
        node.settle().await;
        assert_eq!(node.table(), before, "the policy left something behind");
    });
}
