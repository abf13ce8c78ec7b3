//! Network policies and load balancers with real containers: who reaches whom, from the first moment
//! of a pod, while policies come and go, across a crash, and nothing left behind.

use serde_json::Value;
use testkit::{Cluster, eventually};

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
fn policies_decide_who_reaches_a_pod_and_load_balancers_lead_to_it() {
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

    // A new pod under a policy is isolated from its first moment, and still probed by its node.
    let manifest = PODS.split("---").next().unwrap_or_default();
    apply(&cluster, &manifest.replace("name: web,", "name: second,"));
    let second = ready(&cluster, "second");
    let address = second["status"]["podIP"].as_str().unwrap_or_default();
    let direct = format!("http://{address}:8080/");
    assert!(!reaches(&cluster, "stranger", &direct));
    assert!(reaches(&cluster, "friend", &direct));

    // Rules outlive the daemon, and labels count as soon as they change.
    cluster.kill();
    cluster.start();
    assert!(!reaches(&cluster, "stranger", &direct));
    let relabel = ["label", "pod", "stranger", "app=friend", "--overwrite"];
    cluster.kubectl(&relabel).success();
    wait_until(&cluster, "stranger", &direct, true);
    cluster
        .kubectl(&["delete", "networkpolicy", "web"])
        .success();

    // A load balancer is reached at the node's own address.
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
