//! Network policies and load balancers with real containers: which pods reach which, from a pod's
//! start, while policies change, and across a crash, with nothing left behind.

use serde_json::Value;
use testkit::{Cluster, Machine, eventually};

const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: web
    image: mainstay.local/hello
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: friend, labels: {app: friend}}
spec:
  containers: [{name: c, image: mainstay.local/hello}]
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, labels: {app: stranger}}
spec:
  containers: [{name: c, image: mainstay.local/hello}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
"#;

const ALLOW_FRIENDS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: friend}}}]
    ports: [{port: http}]
"#;

const BALANCER: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: outside}
spec:
  type: LoadBalancer
  selector: {app: web}
  externalTrafficPolicy: Local
  ports: [{port: 8088, targetPort: http}]
"#;

fn apply(cluster: &Cluster, manifest: &str) {
    let ran = cluster.kubectl_stdin(&["apply", "-f", "-"], manifest);
    assert!(!ran.stderr.contains("Warning"), "{}", ran.stderr);
    ran.success();
}

/// Whether a pod gets an answer within two seconds.
fn reaches(cluster: &Cluster, pod: &str, url: &str) -> bool {
    let args = ["exec", pod, "--", "/mainstay", "hello", "get", url, "2"];
    cluster.kubectl(&args).ok
}

fn wait_until(cluster: &Cluster, pod: &str, url: &str, wanted: bool) {
    eventually(&format!("{pod} to reach {url}: {wanted}"), || {
        match reaches(cluster, pod, url) == wanted {
            true => Ok(()),
            false => Err(cluster.machine().run("nft", &["list", "ruleset"]).stdout),
        }
    });
}

fn ready(cluster: &Cluster, pod: &str) -> Value {
    eventually(&format!("{pod} to be ready"), || {
        let object = cluster.get(&["pod", pod]);
        match e2e::is_ready(&object) {
            true => Ok(object),
            false => Err(object["status"].to_string()),
        }
    })
}

#[test]
fn policies_decide_which_pods_connect_and_load_balancers_reach_a_pod() {
    let mut cluster = Cluster::up();
    apply(&cluster, PODS);
    for pod in ["web", "friend", "stranger"] {
        ready(&cluster, pod);
    }
    let by_name = "http://web.default.svc.cluster.local/";
    wait_until(&cluster, "stranger", by_name, true);

    apply(&cluster, ALLOW_FRIENDS);
    wait_until(&cluster, "stranger", by_name, false);
    assert!(reaches(&cluster, "friend", by_name));
    for (client, expected) in [
        ("pod/friend", "allowed by rule 0 of policy default/web"),
        ("pod/stranger", "denied: no rule of default/web allows it"),
    ] {
        let why = ["why", "connection", client, "pod/web:8080"];
        let said = cluster.mainstay(&why).success();
        assert!(said.contains(expected), "{said}");
    }

    // A new pod under a policy is isolated from its start, and still probed by its node.
    let manifest = PODS.split("---").next().unwrap_or_default();
    apply(&cluster, &manifest.replace("name: web,", "name: second,"));
    let second = ready(&cluster, "second");
    let address = second["status"]["podIP"].as_str().unwrap_or_default();
    let direct = format!("http://{address}:8080/");
    assert!(!reaches(&cluster, "stranger", &direct));
    assert!(reaches(&cluster, "friend", &direct));

    // Rules survive the daemon, and changed labels take effect at once.
    cluster.kill();
    cluster.start();
    assert!(!reaches(&cluster, "stranger", &direct));
    let relabel = ["label", "pod", "stranger", "app=friend", "--overwrite"];
    cluster.kubectl(&relabel).success();
    wait_until(&cluster, "stranger", &direct, true);
    cluster
        .kubectl(&["delete", "networkpolicy", "web"])
        .success();

    // A load balancer is reachable at the node's own address.
    apply(&cluster, BALANCER);
    let ip = eventually("an address of the load balancer", || {
        let service = cluster.get(&["service", "outside"]);
        let ingress = &service["status"]["loadBalancer"]["ingress"][0];
        match (ingress["ip"].as_str(), ingress["ipMode"].as_str()) {
            (Some(ip), Some("VIP")) => Ok(ip.to_owned()),
            _ => Err(service.to_string()),
        }
    });
    assert_eq!(ip, cluster.machine().address());
    wait_until(&cluster, "friend", &format!("http://{ip}:8088/"), true);
    let service = cluster.get(&["service", "outside"]);
    let check = service["spec"]["healthCheckNodePort"].to_string();
    eventually("the health check to count two endpoints", || {
        let url = format!("http://{ip}:{check}/");
        let ran = cluster.machine().run("curl", &["-s", &url]);
        match ran.stdout.contains("\"localEndpoints\":2") {
            true => Ok(()),
            false => Err(ran.stdout),
        }
    });

    cluster
        .kubectl(&["delete", "pods,services", "--all"])
        .success();
    cluster.stop();
    let removed = cluster.reset().success();
    assert!(removed.contains("removed"), "{removed}");
    let rules = cluster.machine().run("nft", &["list", "ruleset"]).stdout;
    assert!(!rules.contains("mainstay-"), "{rules}");
}

/// Addresses of both families in an object's list.
fn both_families(list: &Value, field: &str) -> (String, String) {
    let all: Vec<&str> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry[field].as_str().or(entry.as_str()))
        .collect();
    match all.as_slice() {
        [first, second] if !first.contains(':') && second.contains(':') => {
            ((*first).to_owned(), (*second).to_owned())
        }
        other => panic!("expected one address of each family: {other:?}"),
    }
}

fn look_up(cluster: &Cluster, name: &str, kind: &str) -> String {
    let args = [
        "exec",
        "friend",
        "--",
        "/mainstay",
        "hello",
        "lookup",
        name,
        kind,
    ];
    cluster.kubectl(&args).stdout
}

#[test]
fn a_cluster_of_two_address_families_answers_on_both_and_its_dns_has_settings() {
    let machine = Machine::new();
    let v6 = ["address", "add", "fd77::2/64", "dev", "eth0", "nodad"];
    machine.run("ip", &v6).success();
    let flags = [
        "--cluster-cidr",
        "10.42.0.0/16,fd42::/56",
        "--service-cidr",
        "10.43.0.0/16,fd43::/112",
    ];
    let mut cluster = Cluster::stopped_on(machine, &flags);
    cluster.start();
    let node = cluster.get(&["node", "one"]);
    both_families(&node["spec"]["podCIDRs"], "");
    let dual = "spec:\n  selector: {app: web}\n  ipFamilyPolicy: RequireDualStack";
    apply(
        &cluster,
        &PODS.replace("spec:\n  selector: {app: web}", dual),
    );
    let web = ready(&cluster, "web");
    ready(&cluster, "friend");
    ready(&cluster, "stranger");
    let (pod_v4, pod_v6) = both_families(&web["status"]["podIPs"], "ip");
    both_families(&web["status"]["hostIPs"], "ip");
    let service = cluster.get(&["service", "web"]);
    let (service_v4, service_v6) = both_families(&service["spec"]["clusterIPs"], "");
    let urls = [
        format!("http://{pod_v4}:8080/"),
        format!("http://[{pod_v6}]:8080/"),
        format!("http://{service_v4}/"),
        format!("http://[{service_v6}]/"),
    ];
    for url in &urls {
        wait_until(&cluster, "friend", url, true);
        wait_until(&cluster, "stranger", url, true);
    }
    let name = "web.default.svc.cluster.local";
    assert!(look_up(&cluster, name, "A").contains(&service_v4));
    assert!(look_up(&cluster, name, "AAAA").contains(&service_v6));
    apply(&cluster, ALLOW_FRIENDS);
    for url in &urls {
        wait_until(&cluster, "stranger", url, false);
        assert!(reaches(&cluster, "friend", url), "{url}");
    }
    settings_of_dns_are_followed(&cluster);
    ipv6_address_is_followed(&cluster);
    for url in &urls {
        wait_until(&cluster, "friend", url, true);
    }
    cluster.reset().success();
}

/// The machine gets a new IPv6 address and keeps its IPv4 address.
fn ipv6_address_is_followed(cluster: &Cluster) {
    let script = "ip address add fd77::22/64 dev eth0 nodad && ip address del fd77::2/64 dev eth0";
    cluster.machine().run("sh", &["-ec", script]).success();
    eventually("the node to have the new address", || {
        let node = cluster.get(&["node", "one"]);
        let addresses = node["status"]["addresses"].to_string();
        match addresses.contains("\"fd77::22\"") && !addresses.contains("\"fd77::2\"") {
            true => Ok(()),
            false => Err(addresses),
        }
    });
}

fn settings_of_dns_are_followed(cluster: &Cluster) {
    let corefile = ". {\n hosts {\n 192.0.2.9 static.example\n fallthrough\n }\n autopath @kubernetes\n\
                    kubernetes cluster.local\n forward . /etc/resolv.conf\n}\n";
    let patch = serde_json::json!({"data": {"Corefile": corefile}}).to_string();
    let args = [
        "-n",
        "kube-system",
        "patch",
        "configmap",
        "coredns",
        "-p",
        &patch,
    ];
    cluster.kubectl(&args).success();
    eventually("the Corefile to be in force", || {
        let found = look_up(cluster, "static.example", "A");
        found.contains("192.0.2.9").then_some(()).ok_or(found)
    });
    eventually("an event about the directive that has no effect", || {
        let events = cluster
            .kubectl(&["-n", "kube-system", "get", "events"])
            .stdout;
        let found = events.contains("CorefileDirectiveIgnored") && events.contains("autopath");
        found.then_some(()).ok_or(events)
    });
}
