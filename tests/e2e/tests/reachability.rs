//! Who reaches whom in a cluster of two machines, in both address families: pods, nodes and a host outside, by the
//! addresses of pods, the Service's own, node ports, and names. Once with both machines on one subnet, and once with a
//! router between them.

use std::thread;

use e2e::{DualStack, hello, name, ready_pods};
use serde_json::Value;
use testkit::{Cluster, Ran, eventually};

const WEB: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: mainstay.local/hello}
      - {name: udp, image: mainstay.local/hello, args: [echo, udp, "7007"]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
  - {name: udp, protocol: UDP, port: 7, targetPort: 7007, nodePort: 30007}
"#;

/// Texts of a list: the items themselves, or one of their fields.
fn texts<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let items = list.as_array().into_iter().flatten();
    let text = |item: &'a Value| item.as_str().or(item[field].as_str());
    items.filter_map(text).collect()
}

/// URLs of addresses.
fn urls(addresses: &[&str], port: u16) -> Vec<String> {
    let url = |address: &&str| match address.contains(':') {
        true => format!("http://[{address}]:{port}/"),
        false => format!("http://{address}:{port}/"),
    };
    addresses.iter().map(url).collect()
}

fn internal_ips(node: &Value) -> Vec<&str> {
    let addresses = node["status"]["addresses"].as_array();
    let addresses = addresses.into_iter().flatten();
    let internal = addresses.filter(|address| address["type"] == "InternalIP");
    internal
        .filter_map(|address| address["address"].as_str())
        .collect()
}

struct Targets {
    /// A pod's name, and the URLs of its addresses.
    pods: Vec<(String, Vec<String>)>,
    services: Vec<String>,
    node_ports: Vec<String>,
}

impl Targets {
    fn new(cluster: &Cluster) -> Self {
        cluster.kubectl_stdin(&["apply", "-f", "-"], WEB).success();
        let pods = ready_pods(cluster, "app=web", 2);
        let pods = pods.iter().map(|pod| {
            let ips = texts(&pod["status"]["podIPs"], "ip");
            (name(pod), urls(&ips, 8080))
        });
        let service = cluster.get(&["service", "web"]);
        let nodes = cluster.ready_nodes(2);
        let nodes: Vec<&str> = nodes.iter().flat_map(internal_ips).collect();
        let all = Self {
            pods: pods.collect(),
            services: urls(&texts(&service["spec"]["clusterIPs"], ""), 80),
            node_ports: urls(&nodes, 30080),
        };
        let counts = all.pods.iter().map(|(_, urls)| urls.len());
        let counts: Vec<usize> = counts.chain([all.services.len()]).collect();
        assert_eq!((counts, all.node_ports.len()), (vec![2, 2, 2], 4));
        all
    }

    /// Every pod by its addresses, and some pod by the others.
    fn reach(&self, client: &str, others: &[&[String]], get: impl Fn(&str) -> Ran) {
        let call = |url: &str| {
            eventually(&format!("{url} from {client}"), || {
                let ran = get(url);
                if ran.ok {
                    Ok(ran.stdout)
                } else {
                    Err(ran.stderr)
                }
            })
        };
        for (pod, urls) in &self.pods {
            for url in urls {
                let answer = call(url);
                assert!(answer.contains(pod.as_str()), "{client}: {url}: {answer}");
            }
        }
        self.reach_some(client, others, call);
    }

    fn reach_some(&self, client: &str, urls: &[&[String]], call: impl Fn(&str) -> String) {
        for url in urls.iter().copied().flatten() {
            let answer = call(url);
            let mut pods = self.pods.iter();
            let is_known = pods.any(|(pod, _)| answer.contains(pod.as_str()));
            assert!(is_known, "{client}: {url}: {answer}");
        }
    }

    /// Echoes over UDP between all pods and machines: by the addresses of pods, of the Service and node ports.
    fn echo(&self, site: &DualStack) {
        let host = |url: &String| {
            let url = url.trim_start_matches("http://").trim_end_matches('/');
            let (host, _) = url.rsplit_once(':').expect("a port");
            host.trim_matches(['[', ']']).to_owned()
        };
        let with_port = |urls: &[String], port: u16| -> Vec<(String, u16)> {
            urls.iter().map(|url| (host(url), port)).collect()
        };
        let mut targets = with_port(&self.services, 7);
        targets.extend(with_port(&self.node_ports, 30007));
        for (_, urls) in &self.pods {
            targets.extend(with_port(urls, 7007));
        }
        // The shell's own datagrams, of which it reads one byte; several from different ports, so that the Service
        // chooses both endpoints.
        let script: String = targets
            .iter()
            .map(|(ip, port)| {
                format!(
                    "for n in 1 2 3 4; do exec 3<>/dev/udp/{ip}/{port}; echo $n >&3; read -t 5 -n 1 x <&3 && [ $x = $n ] \
                     || {{ echo \"{ip} {port}: $x\"; exit 1; }}; exec 3>&-; done\n"
                )
            })
            .collect();
        for machine in [site.cluster.machine(), site.two.machine()] {
            let of_pod = format!(
                "exec nsenter --net=$(ls -d /run/mainstay/*/s/*/net | head -1) bash -c '{script}'"
            );
            for script in [&script, &of_pod] {
                eventually(&format!("UDP from {}", machine.address()), || {
                    let ran = machine.run("bash", &["-c", script]);
                    match ran.ok {
                        true => Ok(()),
                        false => Err(format!("{}{}", ran.stdout, ran.stderr)),
                    }
                });
            }
        }
    }

    /// Checks all of the site's clients at once.
    fn check(&self, site: &DualStack, outside: &[String]) {
        let cluster = &site.cluster;
        let names = ["http://web.default.svc.cluster.local/".to_owned()];
        let curl = ["-s", "-m", "2"];
        thread::scope(|scope| {
            for (pod, _) in &self.pods {
                let others = [&self.services[..], &self.node_ports, &names];
                scope.spawn(move || {
                    self.reach(pod, &others, |url| hello(cluster, pod, &["get", url, "2"]));
                    for (kind, url) in ["A", "AAAA"].iter().zip(&self.services) {
                        let name = "web.default.svc.cluster.local";
                        let found = hello(cluster, pod, &["lookup", name, kind]).success();
                        let is_right = url.contains(found.trim()) && !found.trim().is_empty();
                        assert!(is_right, "{pod}: {kind} {found} of {url}");
                    }
                });
            }
            for machine in [cluster.machine(), site.two.machine()] {
                let others = [&self.services[..], &self.node_ports];
                scope.spawn(move || {
                    let get = |url: &str| machine.run("curl", &[&curl[..], &["-g", url]].concat());
                    self.reach(machine.address(), &others, get);
                });
            }
            scope.spawn(move || {
                self.reach_some("outside", &[outside], |url| {
                    eventually(&format!("{url} from outside"), || {
                        let ran = site.lan.run("curl", &[&curl[..], &["-g", url]].concat());
                        if ran.ok {
                            Ok(ran.stdout)
                        } else {
                            Err(ran.stderr)
                        }
                    })
                });
            });
        });
    }
}

/// A chain of every table of the first machine.
const CHAINS: [(&str, &str); 4] = [
    ("", "sources"),
    ("-services", "prerouting"),
    ("-policy", "forward-ingress"),
    ("-overlay", "input"),
];

/// Another program removes rules; the tables and all else in them stay.
fn removed_rules_come_back(site: &DualStack) {
    let cluster = &site.cluster;
    let nft = |verb: &str, (suffix, chain): (&str, &str)| {
        let table = format!("mainstay-{}{suffix}", cluster.id());
        let words = ["-s", verb, "chain", "inet", &table, chain];
        cluster.machine().run("nft", &words).success()
    };
    let before = CHAINS.map(|chain| nft("list", chain));
    for (chain, before) in CHAINS.iter().zip(&before) {
        nft("flush", *chain);
        assert_ne!(nft("list", *chain), *before, "{chain:?} had no rules");
    }
    eventually("the removed rules", || {
        let now = CHAINS.map(|chain| nft("list", chain));
        if now == before {
            Ok(())
        } else {
            Err(now.concat())
        }
    });
}

/// Whether packets between the nodes are in the overlay.
fn has_overlay(site: &DualStack) -> bool {
    let routes = site.cluster.machine().run("ip", &["route"]).success();
    routes.contains("-vx")
}

#[test]
fn neighbours_reach_everything_in_both_families() {
    let mut site = DualStack::start();
    let targets = Targets::new(&site.cluster);
    assert!(!has_overlay(&site));
    // The host outside has no IPv6 address there.
    let is_v4 = |url: &&String| !url.contains('[');
    let outside: Vec<String> = targets.node_ports.iter().filter(is_v4).cloned().collect();
    targets.check(&site, &outside);
    targets.echo(&site);
    site.reset();
}

#[test]
fn machines_with_a_router_between_them_reach_everything_in_both_families() {
    let mut site = DualStack::across();
    let targets = Targets::new(&site.cluster);
    assert!(has_overlay(&site));
    targets.check(&site, &targets.node_ports);
    targets.echo(&site);
    removed_rules_come_back(&site);
    targets.check(&site, &targets.node_ports);
    site.reset();
}
