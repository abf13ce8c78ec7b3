//! Resource usage on a new cluster: `kubectl top`, and autoscalers that follow a load.

use std::time::Duration;

use e2e::{busybox_archive, name, ready_pods};
use serde_json::{Value, json};
use testkit::{Cluster, eventually, until};

const IMAGE: &str = "local.test/busybox:1";

/// Uses CPU while the file `/busy` exists.
const SCRIPT: &str = "while true; do if [ -e /busy ]; then \
    i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; \
    else /bin/busybox sleep 0.2; fi; done";

fn deployment() -> Value {
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "8Mi"}, "limits": {"cpu": "400m"}});
    let container = json!({
        "name": "web", "image": IMAGE, "imagePullPolicy": "Never", "resources": resources,
        "command": ["/bin/busybox", "sh", "-c", SCRIPT],
    });
    let labels = json!({"app": "web"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    })
}

/// Between one and three pods, at half of their requests, without stabilization when scaling down.
fn autoscaler() -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
            }}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    })
}

fn create(cluster: &Cluster, object: &Value) {
    let created = cluster.kubectl_stdin(&["create", "-f", "-"], &object.to_string());
    created.success();
}

/// A condition of the autoscaler: status, reason and message.
fn condition(autoscaler: &Value, type_: &str) -> (String, String, String) {
    let conditions = autoscaler["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_);
    let text = |key: &str| {
        let text = found.and_then(|found| found[key].as_str());
        text.unwrap_or_default().to_owned()
    };
    (text("status"), text("reason"), text("message"))
}

/// Waits until the Deployment has this many pods.
fn has_replicas(cluster: &Cluster, count: i64) {
    until(
        &format!("{count} replicas"),
        Duration::from_secs(60),
        || {
            let found = cluster.get(&["deployment", "web"]);
            match found["spec"]["replicas"].as_i64() {
                Some(replicas) if replicas == count => Ok(()),
                replicas => Err(format!(
                    "{replicas:?}: {}",
                    cluster.get(&["hpa", "web"])["status"]
                )),
            }
        },
    );
}

/// The columns of each line below the header.
fn rows(table: &str) -> Vec<Vec<String>> {
    let lines = table.lines().skip(1);
    lines
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect()
}

fn millicores(cell: &str) -> i64 {
    let number = cell.strip_suffix('m').unwrap_or_default();
    number.parse().unwrap_or(-1)
}

/// Our `kubectl top`, and upstream's if there is one, in the same format.
fn top_shows_usage(cluster: &Cluster, pod: &str) {
    let run = |args: &[&str]| {
        let ours = cluster.kubectl(args).success();
        if let Some(theirs) = cluster.upstream_kubectl(args) {
            let theirs = theirs.success();
            assert_eq!(theirs.lines().next(), ours.lines().next(), "{args:?}");
            assert_eq!(rows(&theirs).len(), rows(&ours).len(), "{args:?}");
        }
        ours
    };
    let nodes = rows(&run(&["top", "node"]));
    assert!(
        millicores(&nodes[0][1]) > 0 && nodes[0][2].ends_with('%'),
        "{nodes:?}"
    );
    let pods = rows(&run(&["top", "pod"]));
    let ours = pods.iter().find(|row| row[0] == pod).expect("the pod");
    assert!(
        millicores(&ours[1]) > 100 && ours[2].ends_with("Mi"),
        "{pods:?}"
    );
    let containers = rows(&run(&["top", "pod", pod, "--containers"]));
    assert_eq!(containers[0][..2], [pod, "web"]);
    let sorted = rows(&run(&["top", "pod", "-A", "--sort-by", "cpu"]));
    assert!(sorted.iter().any(|row| row[1] == pod), "{sorted:?}");
    let summed = run(&["top", "pod", "-l", "app=web", "--sum"]);
    assert!(summed.contains("________"), "{summed}");
    let none = cluster.kubectl(&["top", "pod", "-l", "app=no"]);
    assert!(
        none.stderr.contains("No resources found"),
        "{}",
        none.stderr
    );
}

#[test]
fn a_load_makes_a_deployment_grow_and_its_end_makes_it_shrink() {
    let mut cluster = Cluster::up();
    cluster.set_upstream_kubectl(e2e::kubectl(env!("CARGO_TARGET_TMPDIR").as_ref()));
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    create(&cluster, &deployment());
    let pod = name(&ready_pods(&cluster, "app=web", 1)[0]);
    let exec = |words: &[&str]| {
        let args = [&["exec", &pod, "--", "/bin/busybox"], words].concat();
        cluster.kubectl(&args).success();
    };
    exec(&["touch", "/busy"]);
    // The autoscaler's first evaluation must find samples.
    eventually("usage of the pod", || {
        let shown = cluster.kubectl(&["top", "pod", &pod]);
        match shown.code {
            Some(0) => Ok(()),
            _ => Err(shown.stderr),
        }
    });
    create(&cluster, &autoscaler());
    has_replicas(&cluster, 3);
    top_shows_usage(&cluster, &pod);
    ready_pods(&cluster, "app=web", 3);
    let grown = cluster.get(&["hpa", "web"]);
    let (active, reason, _) = condition(&grown, "ScalingActive");
    assert_eq!(
        (&*active, &*reason),
        ("True", "ValidMetricFound"),
        "{grown}"
    );
    let (limited, reason, message) = condition(&grown, "ScalingLimited");
    let expected = "the desired replica count is more than the maximum replica count";
    assert_eq!(
        (&*limited, &*reason, &*message),
        ("True", "TooManyReplicas", expected)
    );
    exec(&["rm", "/busy"]);
    has_replicas(&cluster, 1);
    ready_pods(&cluster, "app=web", 1);
    let events = cluster.get(&["events"]).to_string();
    let grew = "New size: 3; reason: cpu resource utilization (percentage of request) above target";
    let shrank = "New size: 1; reason: All metrics below target";
    for message in [grew, shrank] {
        assert!(events.contains(message), "{message}: {events}");
    }
    assert!(cluster.get(&["hpa", "web"])["status"]["lastScaleTime"].is_string());
}
