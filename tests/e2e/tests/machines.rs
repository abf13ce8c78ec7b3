//! A cluster of several machines: two join with a token, one on the same subnet and one behind a
//! router. Pods, Services, node ports and names are reachable between all of them; agents restart
//! after a crash without their token, and continue while the server is away.

use std::time::Duration;

use e2e::{name, ready_pods};
use serde_json::Value;
use testkit::{Agent, Cluster, Lan, eventually, until};

const DAEMONS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: mainstay.local/hello}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
"#;

/// A server that is a node, too, and two agents: "two" on its subnet, "three" on another.
struct Site {
    // Fields are dropped in this order: machines before their network.
    two: Agent,
    three: Agent,
    cluster: Cluster,
    lan: Lan,
}

impl Site {
    fn new() -> Self {
        Self::with(&[])
    }

    /// With additional flags for the server.
    fn with(flags: &[&str]) -> Self {
        let lan = Lan::new();
        let usual = ["--node-cidr-mask-size", "26"];
        Self {
            two: Agent::on_lan(&lan, 0, 3, "two"),
            three: Agent::on_lan(&lan, 1, 4, "three"),
            cluster: Cluster::on_lan(&lan, &[&usual, flags].concat()),
            lan,
        }
    }
}

/// Connects from inside a pod.
fn call(cluster: &Cluster, pod: &str, url: &str) -> String {
    eventually(&format!("{url} from {pod}"), || {
        let ran = cluster.kubectl(&["exec", pod, "--", "/mainstay", "hello", "get", url]);
        if ran.ok {
            Ok(ran.stdout)
        } else {
            Err(ran.stderr)
        }
    })
}

/// Connects from inside an agent's pod without the API server: in its network namespace, with the
/// cluster's name server.
fn call_locally(agent: &Agent, url: &str) -> Result<String, String> {
    let binary = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    let script = format!(
        "echo nameserver 10.43.0.10 > {resolv} && mount --bind {resolv} /etc/resolv.conf \
         && namespace=$(ls -d /run/mainstay/*/s/*/net | head -1) \
         && exec nsenter --net=$namespace {binary} hello get {url}",
        resolv = agent.machine().dir().join("resolv.conf").display(),
    );
    let ran = agent
        .machine()
        .run("unshare", &["--mount", "sh", "-ec", &script]);
    if ran.ok {
        Ok(ran.stdout)
    } else {
        Err(ran.stderr)
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Deletes the ConfigMaps that joining machines need.
fn what_joining_machines_read_comes_back(cluster: &Cluster) {
    for (namespace, name) in [
        ("kube-public", "cluster-info"),
        ("kube-system", "mainstay-node"),
    ] {
        let map = ["configmap", name, "-n", namespace];
        let uid = text(&cluster.get(&map), "/metadata/uid").to_owned();
        let delete = ["delete", "configmap", name, "-n", namespace];
        cluster.kubectl(&delete).success();
        eventually(&format!("another {name}"), || {
            let ran = cluster.kubectl(&["get", "configmap", name, "-n", namespace, "-o", "json"]);
            let new: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            match text(&new, "/metadata/uid") {
                "" => Err(ran.stderr),
                old if old == uid => Err("the old one".to_owned()),
                _ => Ok(()),
            }
        });
    }
}

#[test]
fn two_machines_join_and_pods_reach_each_other_everywhere() {
    let mut site = Site::new();
    joins_are_checked(&site);
    let join = site.cluster.join_flags();
    what_joining_machines_read_comes_back(&site.cluster);
    site.two.start(&join);
    // Without the hash, the token's signature of cluster-info is enough.
    let hash = join.iter().position(|flag| flag == "--ca-hash");
    site.three.start(&join[..hash.expect("a hash")]);
    let nodes = site.cluster.ready_nodes(3);
    every_node_has_its_part_of_the_addresses(&nodes);
    every_kubelet_writes_under_its_own_name(&site);
    a_name_that_is_taken_is_refused(&site);
    let pods = deploy(&site);
    everything_reaches_everything(&site, &pods);
    routes_are_direct_next_door_and_an_overlay_across(&site);
    a_node_reads_with_two_identities(&site);
    policies_hold_between_nodes(&site, &pods);

    // From here on no agent has the token.
    let tokens = site.cluster.mainstay(&["token", "list"]).success();
    assert!(
        tokens.contains("system:bootstrappers:mainstay:nodes"),
        "{tokens}"
    );
    let id = tokens
        .lines()
        .nth(1)
        .expect("a token")
        .split(' ')
        .next()
        .expect("its id");
    site.cluster.mainstay(&["token", "delete", id]).success();
    let again = site.cluster.mainstay(&["token", "delete", id]);
    let expected = format!("there is no bootstrap token \"{id}\"");
    assert!(!again.ok && again.stderr.contains(&expected), "{again:?}");
    an_agent_comes_back_after_a_crash(&mut site, &join);
    agents_go_on_without_a_server(&mut site, &pods);
    removal_leaves_nothing(&mut site);
}

fn every_kubelet_writes_under_its_own_name(site: &Site) {
    for name in ["one", "two", "three"] {
        let shown = site
            .cluster
            .kubectl(&["get", "node", name, "-o", "json", "--show-managed-fields"])
            .success();
        let node: Value = serde_json::from_str(&shown).expect("JSON");
        let entries = node["metadata"]["managedFields"].as_array().cloned();
        let mut entries = entries.unwrap_or_default().into_iter();
        let is_kubelet = |entry: Value| text(&entry, "/manager") == "kubelet";
        assert!(entries.any(is_kubelet), "{shown}");
    }
}

fn joins_are_checked(site: &Site) {
    let mut join = site.cluster.join_flags();
    let at = join
        .iter()
        .position(|flag| flag == "--ca-hash")
        .expect("a hash")
        + 1;
    join[at] = format!("sha256:{}", "0".repeat(64));
    let ran = site.two.refused(&join);
    assert!(
        ran.stderr.contains("--ca-hash is sha256:000"),
        "{}",
        ran.stderr
    );
    let mut join = site.cluster.join_flags();
    let at = join
        .iter()
        .position(|flag| flag == "--token")
        .expect("a token")
        + 1;
    join[at] = "abcdef.0123456789abcdef".into();
    let ran = site.two.refused(&join);
    assert!(
        ran.stderr.contains("does not know the token abcdef"),
        "{}",
        ran.stderr
    );
    let ran = site.two.refused(&[]);
    assert!(ran.stderr.contains("--server"), "{}", ran.stderr);
}

fn every_node_has_its_part_of_the_addresses(nodes: &[Value]) {
    let mut cidrs: Vec<&str> = nodes
        .iter()
        .map(|node| text(node, "/spec/podCIDR"))
        .collect();
    cidrs.sort_unstable();
    cidrs.dedup();
    assert_eq!(cidrs.len(), 3, "{cidrs:?}");
    assert!(cidrs.iter().all(|cidr| cidr.ends_with("/26")), "{cidrs:?}");
}

fn a_name_that_is_taken_is_refused(site: &Site) {
    let other = Agent::on_lan(&site.lan, 0, 9, "two");
    let ran = other.refused(&site.cluster.join_flags());
    assert!(
        ran.stderr
            .contains("a Ready node \"two\" is already in the cluster"),
        "{}",
        ran.stderr
    );
}

fn deploy(site: &Site) -> Vec<Value> {
    let cluster = &site.cluster;
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], DAEMONS)
        .success();
    let pods = ready_pods(cluster, "app=web", 3);
    let mut nodes: Vec<&str> = pods.iter().map(|pod| text(pod, "/spec/nodeName")).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["one", "three", "two"]);
    pods
}

fn everything_reaches_everything(site: &Site, pods: &[Value]) {
    let addresses = [
        site.cluster.machine().address(),
        site.two.machine().address(),
        site.three.machine().address(),
    ];
    for from in pods {
        let caller = name(from);
        for to in pods {
            let answer = call(
                &site.cluster,
                &caller,
                &format!("http://{}:8080/", text(to, "/status/podIP")),
            );
            assert!(answer.contains(&name(to)), "{caller}: {answer}");
        }
        for node in addresses {
            call(&site.cluster, &caller, &format!("http://{node}:30080/"));
        }
        // By name, often enough to reach every endpoint.
        let mut left: Vec<String> = pods.iter().map(name).collect();
        eventually("every endpoint of the service", || {
            let answer = call(
                &site.cluster,
                &caller,
                "http://web.default.svc.cluster.local/",
            );
            left.retain(|name| !answer.contains(name.as_str()));
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?} did not answer"))
            }
        });
    }
}

fn routes_are_direct_next_door_and_an_overlay_across(site: &Site) {
    let routes = site.two.machine().run("ip", &["route"]).success();
    let server = site.cluster.machine().address();
    assert!(
        routes.contains(&format!("/26 via {server} dev eth0")),
        "{routes}"
    );
    assert!(routes.contains("-vx"), "{routes}");
    let routes = site.three.machine().run("ip", &["route"]).success();
    assert!(!routes.contains("/26 via 192"), "{routes}");
}

/// What a node's proxy may read, and what it may not.
fn a_node_reads_with_two_identities(site: &Site) {
    let may = |user: &str, group: &str, verb: &str, resource: &str| {
        let (resource, api_group) = resource.split_once('.').unwrap_or((resource, ""));
        let review = serde_json::json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": [group, "system:authenticated"], "resourceAttributes":
                {"verb": verb, "resource": resource, "group": api_group}},
        });
        let ran = site
            .cluster
            .kubectl_stdin(&["create", "-f", "-", "-o", "json"], &review.to_string());
        let answer: Value = serde_json::from_str(&ran.success()).expect("an answer");
        answer["status"]["allowed"] == true
    };
    let proxy = ("system:node-proxy:two", "system:node-proxies");
    for resource in [
        "services",
        "nodes",
        "namespaces",
        "pods",
        "endpointslices.discovery.k8s.io",
        "networkpolicies.networking.k8s.io",
    ] {
        assert!(may(proxy.0, proxy.1, "watch", resource), "{resource}");
        assert!(!may(proxy.0, proxy.1, "update", resource), "{resource}");
    }
    assert!(!may(proxy.0, proxy.1, "list", "secrets"));
    assert!(!may(proxy.0, proxy.1, "get", "secrets"));
    assert!(!may("system:node:two", "system:nodes", "list", "secrets"));
}

/// Policies of the server's pod are enforced on the client's node (egress) and on its own
/// (ingress).
fn policies_hold_between_nodes(site: &Site, pods: &[Value]) {
    let on = |node: &str| {
        let pod = pods.iter().find(|pod| text(pod, "/spec/nodeName") == node);
        pod.expect("a pod of the node")
    };
    let reaches = |from: &str, to: &str| {
        let url = format!("http://{}:8080/", text(on(to), "/status/podIP"));
        let (pod, url) = (name(on(from)), url.as_str());
        let args = ["exec", &pod, "--", "/mainstay", "hello", "get", url, "2"];
        site.cluster.kubectl(&args).ok
    };
    let label = |node: &str, role: &str| {
        let (pod, role) = (name(on(node)), format!("role={role}"));
        let args = ["label", "pod", &pod, &role, "--overwrite"];
        site.cluster.kubectl(&args).success();
    };
    label("two", "client");
    label("three", "stranger");
    for (direction, selected, peers) in [
        (
            "Ingress",
            "one",
            "ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]",
        ),
        (
            "Egress",
            "three",
            "egress: [{to: [{podSelector: {matchLabels: {role: client}}}]}]",
        ),
    ] {
        label("one", "server");
        let role = if selected == "one" {
            "server"
        } else {
            "stranger"
        };
        let policy = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p}}\n\
             spec: {{podSelector: {{matchLabels: {{role: {role}}}}}, policyTypes: [{direction}], {peers}}}\n"
        );
        let apply = ["apply", "-f", "-"];
        site.cluster.kubectl_stdin(&apply, &policy).success();
        // In both directions "two" is reachable for the selected pod, and "three" cannot reach
        // "one".
        eventually(
            &format!("{direction}: three does not reach one"),
            || match reaches("three", "one") {
                true => Err("it does".to_owned()),
                false => Ok(()),
            },
        );
        assert!(reaches("two", "one"), "{direction}");
        assert!(reaches("three", "two"), "{direction}");
        let why = ["why", "connection"];
        let (from, to) = (name(on("three")), name(on("one")));
        let (from, to) = (format!("pod/{from}"), format!("pod/{to}:8080"));
        let said = site
            .cluster
            .mainstay(&[why[0], why[1], &from, &to])
            .success();
        assert!(
            said.contains("default/p") && said.starts_with("denied\n"),
            "{said}"
        );
        let delete = ["delete", "networkpolicy", "p"];
        site.cluster.kubectl(&delete).success();
    }
}

/// The command that joined is run again: once while the agent runs, and after a crash.
fn an_agent_comes_back_after_a_crash(site: &mut Site, join: &[String]) {
    let before = pod_on(site, "two");
    let node = site.cluster.get(&["node", "two"]);
    let refused = site.two.refused(join).stderr;
    assert!(refused.contains("already running"), "{refused}");
    site.two.kill();
    // Its pods keep running.
    let service = text(&site.cluster.get(&["service", "web"]), "/spec/clusterIP").to_owned();
    call_locally(&site.two, &format!("http://{service}/")).expect("the service answers");
    site.two.start(join);
    site.cluster.ready_nodes(3);
    let again = site.cluster.get(&["node", "two"]);
    assert_eq!(node["metadata"]["uid"], again["metadata"]["uid"]);
    let after = pod_on(site, "two");
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(
        before["status"]["containerStatuses"][0]["containerID"],
        after["status"]["containerStatuses"][0]["containerID"]
    );
    eventually("the agent answers the API server", || {
        let ran = site.cluster.kubectl(&["logs", &name(&after)]);
        if ran.ok { Ok(()) } else { Err(ran.stderr) }
    });
}

fn pod_on(site: &Site, node: &str) -> Value {
    let pods = ready_pods(&site.cluster, "app=web", 3);
    let mut pods = pods.into_iter();
    pods.find(|pod| text(pod, "/spec/nodeName") == node)
        .expect("a pod")
}

fn agents_go_on_without_a_server(site: &mut Site, pods: &[Value]) {
    site.cluster.kill();
    // Also an agent that is started while there is no server.
    site.two.stop();
    let earlier = std::fs::read_to_string(site.two.log())
        .expect("a log")
        .len();
    site.two.start(&[]);
    let name_of = |node: &str| {
        let pod = pods.iter().find(|pod| text(pod, "/spec/nodeName") == node);
        name(pod.expect("a pod"))
    };
    let other = name_of("three");
    for agent in [&site.two, &site.three] {
        eventually("services between nodes without a server", || {
            let service = site_service(pods);
            let answer = call_locally(agent, &service)?;
            if answer.contains(&other) {
                Ok(())
            } else {
                Err(answer)
            }
        });
    }
    // The restarted agent has the names of its last run.
    let by_name = "http://web.default.svc.cluster.local/";
    for agent in [&site.two, &site.three] {
        eventually("names without a server", || call_locally(agent, by_name));
    }
    a_container_that_ends_is_restarted(&site.three, &site_service(pods));
    site.cluster.start();
    site.cluster.ready_nodes(3);
    // A service manager waits for this.
    eventually("the agent to be ready after the outage", || {
        let log = std::fs::read_to_string(site.two.log()).expect("a log");
        match log[earlier..].contains("This node has joined") {
            true => Ok(()),
            false => Err(log[earlier..].to_owned()),
        }
    });
    // A failure is logged once, not at each attempt.
    let log = std::fs::read_to_string(site.two.log()).expect("a log");
    let warnings: Vec<&str> = log[earlier..]
        .lines()
        .filter_map(|line| line.split_once(" WARN ").map(|(_, said)| said))
        .filter(|said| said.contains("cannot register the node"))
        .collect();
    let is_repeated = warnings.windows(2).any(|pair| pair[0] == pair[1]);
    assert!(!is_repeated, "{warnings:#?}");
}

/// Kills the container of the agent's only pod.
fn a_container_that_ends_is_restarted(agent: &Agent, url: &str) {
    // The processes in the network namespace of the pod.
    let list = "pod=$(stat -Lc %i $(ls -d /run/mainstay/*/s/*/net | head -1)); \
                for process in /proc/[0-9]*; do \
                [ \"$(stat -Lc %i $process/ns/net 2>/dev/null)\" != $pod ] || echo ${process#/proc/}; done";
    let processes = || -> Vec<String> {
        let listed = agent.machine().run("sh", &["-c", list]).success();
        listed.lines().map(str::to_owned).collect()
    };
    let before = processes();
    assert!(!before.is_empty(), "no container runs");
    for process in &before {
        agent.machine().run("kill", &["-KILL", process]).success();
    }
    eventually("the container to run again", || {
        let now = processes();
        match now.is_empty() || now.iter().any(|process| before.contains(process)) {
            true => Err(format!("{now:?}, before {before:?}")),
            false => call_locally(agent, url),
        }
    });
}

/// A pod of another node, by its address.
fn site_service(pods: &[Value]) -> String {
    let pod = pods
        .iter()
        .find(|pod| text(pod, "/spec/nodeName") == "three");
    format!(
        "http://{}:8080/",
        text(pod.expect("a pod"), "/status/podIP")
    )
}

/// A deleted node is no longer a peer: its routes are removed everywhere.
fn removal_leaves_nothing(site: &mut Site) {
    let across = |site: &Site| {
        let [routes, entries, neighbours] = [
            &["ip", "route"][..],
            &["bridge", "fdb"],
            &["ip", "neighbour", "show", "nud", "permanent"],
        ]
        .map(|command| site.two.machine().run(command[0], &command[1..]).success());
        let lines = [routes, entries, neighbours].concat();
        let ours = lines.lines().filter(|line| line.contains("-vx"));
        ours.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(across(site).len() >= 3, "{:?}", across(site));
    let delete = ["delete", "daemonset,service", "web"];
    site.cluster.kubectl(&delete).success();
    site.cluster.kubectl(&["delete", "node", "three"]).success();
    let removed = site.three.reset().success();
    assert!(removed.contains("removed"), "{removed}");
    let gone = site.three.data_dir().display().to_string();
    assert!(!site.three.machine().run("test", &["-e", &gone]).ok);
    let patience = Duration::from_secs(20);
    until(
        "the way to the deleted node to go",
        patience,
        || match across(site) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:#?}")),
        },
    );
}

#[test]
fn without_the_proxy_pods_of_different_nodes_still_reach_each_other() {
    let disable = ["--disable", "proxy"];
    let mut site = Site::with(&disable);
    let mut join = site.cluster.join_flags();
    join.extend(disable.map(str::to_owned));
    site.two.start(&join);
    site.three.start(&join);
    site.cluster.ready_nodes(3);
    let pods = deploy(&site);
    for from in &pods {
        for to in &pods {
            let url = format!("http://{}:8080/", text(to, "/status/podIP"));
            let answer = call(&site.cluster, &name(from), &url);
            assert!(answer.contains(&name(to)), "{answer}");
        }
    }
    routes_are_direct_next_door_and_an_overlay_across(&site);
    // Only the proxy is missing.
    let tables = site.two.machine().run("nft", &["list", "tables"]).success();
    assert!(!tables.contains("proxy"), "{tables}");
}

/// A pod that is evicted soon after its node is lost.
const MOVABLE: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: movable}
spec:
  selector: {matchLabels: {app: movable}}
  template:
    metadata: {labels: {app: movable}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: mainstay.local/hello}]
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
"#;

/// The network namespaces of the pods of an agent.
fn sandboxes(agent: &Agent) -> usize {
    let list = "ls -d /run/mainstay/*/s/*/net 2>/dev/null || true";
    let listed = agent.machine().run("sh", &["-c", list]).success();
    listed.lines().count()
}

#[test]
fn a_reconnected_machine_removes_pods_that_were_moved() {
    let mut site = Site::new();
    site.two.start(&site.cluster.join_flags());
    site.cluster.ready_nodes(2);
    site.cluster.kubectl(&["cordon", "one"]).success();
    let apply = ["apply", "-f", "-"];
    site.cluster.kubectl_stdin(&apply, MOVABLE).success();
    let before = ready_pods(&site.cluster, "app=movable", 1);
    assert_eq!(text(&before[0], "/spec/nodeName"), "two");
    site.cluster.kubectl(&["uncordon", "one"]).success();

    site.lan.cut(site.two.machine().address());
    let is_moved = |pod: &Value| text(pod, "/spec/nodeName") == "one" && e2e::is_ready(pod);
    let patience = Duration::from_secs(180);
    until("the pod to move to the other node", patience, || {
        let list = site.cluster.get(&["pods", "-l", "app=movable"]);
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        match pods.iter().any(is_moved) {
            true => Ok(()),
            false => Err(list.to_string()),
        }
    });
    // The disconnected node does not know of it.
    assert_eq!(sandboxes(&site.two), 1);
    site.lan.mend(site.two.machine().address());
    site.cluster.ready_nodes(2);
    let after = ready_pods(&site.cluster, "app=movable", 1);
    assert_eq!(text(&after[0], "/spec/nodeName"), "one");
    eventually("the pod that was moved to end", || {
        match sandboxes(&site.two) {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        }
    });

    // Back again, when its node is drained.
    let drain = ["drain", "one", "--ignore-daemonsets"];
    let drained = site.cluster.kubectl(&drain).success();
    assert!(drained.contains("node/one drained"), "{drained}");
    let back = ready_pods(&site.cluster, "app=movable", 1);
    assert_eq!(text(&back[0], "/spec/nodeName"), "two");
    let node = site.cluster.get(&["node", "one"]);
    assert_eq!(node["spec"]["unschedulable"], true);
}
