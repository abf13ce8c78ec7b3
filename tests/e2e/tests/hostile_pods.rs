//! A pod with raw sockets in a cluster of two machines and both address families: it can send neither with the
//! addresses of others, nor past policies in fragments, extension headers and tunnels, nor to the loopback of its node,
//! and its neighbour messages change nothing.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use e2e::DualStack;
use serde_json::{Value, json};
use testkit::{Cluster, Machine, eventually};

const LISTEN: &str = include_str!("hostile_pods/listen.py");
const FORGE: &str = include_str!("hostile_pods/forge.py");

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: NAMESPACE, labels: {app: NAME}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: mainstay.local/hello}
---
"#;

/// The attacker may send to one port only.
const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: some, namespace: a}
spec:
  podSelector: {}
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}}]
    ports: [{port: 7007, protocol: UDP}]
"#;

/// What arrives from an honest address in whatever shape, as long as no policy denies it.
const HONEST: [&str; 5] = ["plain4", "plain6", "fragments4", "fragments6", "options6"];
const PORT: &str = "9999";

fn addresses(cluster: &Cluster, namespace: &str, pod: &str) -> Vec<String> {
    let pod = cluster.get(&["pod", pod, "-n", namespace]);
    let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let ips: Vec<String> = ips
        .filter_map(|ip| ip["ip"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(ips.len(), 2, "{pod}");
    ips
}

/// The network namespace of the pod with an address.
fn namespace_of(machine: &Machine, ip: &str) -> String {
    let script = format!(
        "for n in /run/mainstay/*/s/*/net; do nsenter --net=$n ip -o address show dev eth0 | grep -qw {ip} && echo $n && exit; done; exit 1"
    );
    let found = machine.run("bash", &["-c", &script]).success();
    found.trim().to_owned()
}

/// The word after another in the output of `ip`.
fn word_after(text: &str, word: &str) -> String {
    let mut words = text.split_whitespace();
    words.find(|found| *found == word).expect("the word");
    words.next().expect("another word").to_owned()
}

fn make_pods(cluster: &Cluster) {
    let mut pods = String::new();
    for (name, namespace, node) in [
        ("victim-one", "a", "one"),
        ("victim-two", "a", "two"),
        ("friend", "a", "one"),
        ("attacker", "b", "one"),
    ] {
        let pod = POD.replace("NAMESPACE", namespace).replace("NAME", name);
        pods += &pod.replace("NODE", node);
    }
    for namespace in ["a", "b"] {
        let create = ["create", "namespace", namespace];
        cluster.kubectl(&create).success();
    }
    let apply = ["apply", "-f", "-"];
    cluster.kubectl_stdin(&apply, &pods).success();
    for namespace in ["a", "b"] {
        let ready = ["--for=condition=Ready", "--timeout=60s"];
        let wait = [&["wait", "pods", "--all", "-n", namespace][..], &ready].concat();
        cluster.kubectl(&wait).success();
    }
}

fn internal_ips(cluster: &Cluster, node: &str) -> Vec<String> {
    let node = cluster.get(&["node", node]);
    let all = node["status"]["addresses"].as_array().into_iter().flatten();
    let internal = all.filter(|address| address["type"] == "InternalIP");
    let ips = internal.filter_map(|address| address["address"].as_str());
    ips.map(str::to_owned).collect()
}

/// Writes what arrives at an address to a file, in a pod's namespace or on the machine.
fn listen(machine: &Machine, namespace: Option<String>, host: &str, log: &Path) {
    let script = machine.dir().join("listen.py");
    fs::write(&script, LISTEN).expect("a file");
    let enter = namespace.map(|path| format!("nsenter --net={path}"));
    let (enter, script) = (enter.unwrap_or_default(), script.display());
    let command = format!(
        "{enter} python3 {script} {host} {PORT} {} > /dev/null 2>&1 < /dev/null &",
        log.display()
    );
    machine.run("bash", &["-c", &command]).success();
    eventually("the listener", || {
        let text = fs::read_to_string(log).unwrap_or_default();
        text.contains("ready").then_some(()).ok_or(text)
    });
}

struct Site {
    site: DualStack,
    victims: [Vec<String>; 2],
    /// The namespaces of the friend and of the attacker, on node one.
    friend_at: String,
    attacker_at: String,
    /// The logs of victims, and of the addresses of node one.
    logs: Vec<PathBuf>,
    config: Value,
}

impl Site {
    fn start() -> Self {
        let site = DualStack::across();
        let cluster = &site.cluster;
        make_pods(cluster);
        let victims = ["victim-one", "victim-two"].map(|pod| addresses(cluster, "a", pod));
        let friend = addresses(cluster, "a", "friend");
        let attacker = addresses(cluster, "b", "attacker");
        let (one, two) = (cluster.machine(), site.two.machine());
        let friend_at = namespace_of(one, &friend[0]);
        let attacker_at = namespace_of(one, &attacker[0]);
        let nodes = ["one", "two"].map(|node| internal_ips(cluster, node));
        let inside = |words: &[&str]| {
            let enter = format!("--net={attacker_at}");
            let words = [&[enter.as_str(), "ip"], words].concat();
            one.run("nsenter", &words).success()
        };
        let link = inside(&["link", "show", "dev", "eth0"]);
        let gateway = inside(&["neigh", "show", "169.254.1.1"]);
        let overlay = ["-d", "link", "show", "type", "vxlan"];
        let overlay = one.run("ip", &overlay).success();
        let vni: u32 = word_after(&overlay, "id").parse().expect("a number");
        let config = json!({
            "victims": victims, "friend": friend, "attacker": attacker, "nodes": nodes, "vni": vni,
            "hardware": word_after(&link, "link/ether"), "gateway": word_after(&gateway, "lladdr"),
        });
        let listening = [
            (one, Some(namespace_of(one, &victims[0][0])), "::"),
            (two, Some(namespace_of(two, &victims[1][0])), "::"),
            (one, None, "127.0.0.1"),
            (one, None, "::1"),
            (one, None, nodes[0][0].as_str()),
        ];
        let logs = listening.into_iter().enumerate();
        let logs = logs.map(|(number, (machine, namespace, host))| {
            let log = machine.dir().join(format!("arrived-{number}"));
            listen(machine, namespace, host, &log);
            log
        });
        let logs = logs.collect();
        Self {
            victims,
            friend_at,
            attacker_at,
            logs,
            config,
            site,
        }
    }

    fn one(&self) -> &Machine {
        self.site.cluster.machine()
    }

    fn arrived(&self, log: usize) -> Vec<String> {
        let text = fs::read_to_string(&self.logs[log]).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn forge(&self, word: &str) {
        let script = self.one().dir().join("forge.py");
        fs::write(&script, FORGE).expect("a file");
        let enter = format!("--net={}", self.attacker_at);
        let (script, config) = (script.display().to_string(), self.config.to_string());
        let forge = [&enter, "python3", &script, word, &config];
        self.one().run("nsenter", &forge).success();
    }

    /// Sends datagrams of the friend, until they have arrived at all addresses of the victims.
    fn send_as_friend(&self, word: &str) {
        for (log, victim) in self.victims.iter().enumerate() {
            for (family, ip) in victim.iter().enumerate() {
                let line = format!("{word} {family}");
                let send = format!("printf '{line}' > /dev/udp/{ip}/{PORT}");
                let enter = format!("--net={}", self.friend_at);
                eventually(&format!("{line} at {ip}"), || {
                    self.one()
                        .run("nsenter", &[&enter, "bash", "-c", &send])
                        .success();
                    let arrived = self.arrived(log);
                    arrived
                        .contains(&line)
                        .then_some(())
                        .ok_or(arrived.join(", "))
                });
            }
        }
    }

    /// What arrived of the attacker's packets with a word, by the listener.
    fn arrived_with(&self, word: &str) -> Vec<BTreeSet<String>> {
        let of = |log| {
            let lines = self.arrived(log).into_iter();
            lines
                .filter_map(|line| line.strip_prefix(word).map(|rest| rest.trim().to_owned()))
                .collect()
        };
        (0..self.logs.len()).map(of).collect()
    }

    /// Routes, addresses and permanent neighbours of the node.
    fn state(&self) -> [String; 4] {
        let commands: [&[&str]; 4] = [
            &["route"],
            &["-6", "route"],
            &["neigh", "show", "nud", "permanent"],
            &["-6", "-o", "address", "show", "scope", "global"],
        ];
        commands.map(|words| self.one().run("ip", words).success())
    }
}

#[test]
fn a_pod_with_raw_sockets_gets_past_no_rule() {
    let mut site = Site::start();
    let before = site.state();
    // Without policies the packets arrive, so they are well-formed; those with the addresses of others do not.
    site.send_as_friend("first");
    let honest: BTreeSet<String> = HONEST.iter().map(|what| format!("honest {what}")).collect();
    eventually("honest packets in all shapes", || {
        site.forge("open");
        let arrived = site.arrived_with("open");
        let all = arrived[..2].iter().all(|lines| lines.is_superset(&honest));
        all.then_some(()).ok_or(format!("{arrived:#?}"))
    });
    site.send_as_friend("second");
    let to_node = BTreeSet::from(["honest to the node".to_owned()]);
    let nothing = BTreeSet::new();
    let expected = [&honest, &honest, &nothing, &nothing, &to_node];
    assert!(
        site.arrived_with("open").iter().eq(expected),
        "{:#?}",
        site.arrived_with("open")
    );

    let cluster = &site.site.cluster;
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], POLICY)
        .success();
    eventually("the policy", || {
        let allowed = site.victims.iter().flatten().find(|ip| {
            let connect = format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{ip}/8080'");
            let enter = format!("--net={}", site.attacker_at);
            site.one()
                .run("nsenter", &[&enter, "bash", "-c", &connect])
                .ok
        });
        allowed.map_or(Ok(()), |ip| Err(ip.clone()))
    });
    for _ in 0..3 {
        site.forge("denied");
    }
    site.send_as_friend("third");
    let expected = [&nothing, &nothing, &nothing, &nothing, &to_node];
    assert!(
        site.arrived_with("denied").iter().eq(expected),
        "{:#?}",
        site.arrived_with("denied")
    );
    assert_eq!(site.state(), before);
    site.site.reset();
}
