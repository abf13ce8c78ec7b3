//! Autoscalers by custom and external metrics: an aggregated API server serves the values.

use std::{fs, path::PathBuf, time::Duration};

use e2e::{Background, busybox_archive, name, ready_pods};
use serde_json::{Map, Value, json};
use testkit::{Cluster, eventually, until};

const PORT: &str = "9443";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";

/// The adapter, and the file with its responses.
struct Adapter {
    _process: Background,
    file: PathBuf,
    answers: Map<String, Value>,
}

impl Adapter {
    fn start(cluster: &Cluster) -> Self {
        let machine = cluster.machine();
        let dir = machine.dir();
        let (file, key, certificate) = (
            dir.join("answers.json"),
            dir.join("adapter.key"),
            dir.join("adapter.crt"),
        );
        let text = |path: &PathBuf| path.display().to_string();
        let request = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=adapter",
            "-keyout",
            &text(&key),
            "-out",
            &text(&certificate),
        ];
        machine.run("openssl", &request).success();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/metrics_adapter.py");
        let mut command = machine.command("python3");
        command.args([script, machine.address(), PORT]);
        command.args([&certificate, &key, &file]);
        let mut adapter = Self {
            _process: Background(
                command
                    .spawn()
                    .expect("python3 is installed (make test does it)"),
            ),
            file,
            answers: Map::new(),
        };
        let resource = |name: &str, kind: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]});
        adapter.answer(CUSTOM, json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "custom.metrics.k8s.io/v1beta2",
            "resources": [resource("pods/requests", "MetricValueList"), resource("services/waiting", "MetricValueList")],
        }));
        adapter.answer(EXTERNAL, json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1",
            "resources": [resource("queue", "ExternalMetricValueList")],
        }));
        adapter
    }

    fn answer(&mut self, path: &str, value: Value) {
        self.answers.insert(path.to_owned(), value);
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, Value::Object(self.answers.clone()).to_string()).expect("a file");
        fs::rename(&fresh, &self.file).expect("a file");
    }

    /// Sets the metrics of each pod, the Service and the queue.
    fn load(&mut self, cluster: &Cluster, of_pods: &str, of_service: &str, of_queue: &str) {
        let pods = cluster.get(&["pods", "-l", "app=web"]);
        let now = "2026-01-01T00:00:00Z";
        let value = |kind: &str, object: &str, metric: &str, value: &str| {
            json!({
                "describedObject": {"kind": kind, "namespace": "default", "name": object, "apiVersion": "v1"},
                "metric": {"name": metric}, "timestamp": now, "value": value,
            })
        };
        let list = |items: Vec<Value>| json!({"kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "metadata": {}, "items": items});
        let pods = pods["items"].as_array().into_iter().flatten();
        let items = pods.map(|pod| value("Pod", &name(pod), "requests", of_pods));
        let items = list(items.collect());
        self.answer(
            &format!("{CUSTOM}/namespaces/default/pods/*/requests"),
            items,
        );
        let items = list(vec![value("Service", "web", "waiting", of_service)]);
        self.answer(
            &format!("{CUSTOM}/namespaces/default/services/web/waiting"),
            items,
        );
        let items = json!({
            "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
            "items": [{"metricName": "queue", "metricLabels": {}, "timestamp": now, "value": of_queue}],
        });
        self.answer(&format!("{EXTERNAL}/namespaces/default/queue"), items);
    }
}

fn create(cluster: &Cluster, object: &Value) {
    let created = cluster.kubectl_stdin(&["create", "-f", "-"], &object.to_string());
    created.success();
}

/// Creates the APIServices, and the Service of the adapter.
fn register(cluster: &Cluster) {
    let address = cluster.machine().address();
    let port: u16 = PORT.parse().expect("a port");
    create(
        cluster,
        &json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter"},
            "spec": {"ports": [{"port": 443, "targetPort": port}]},
        }),
    );
    create(
        cluster,
        &json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "adapter", "labels": {"kubernetes.io/service-name": "adapter"}},
            "ports": [{"name": "", "port": port}], "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        }),
    );
    for (group, version) in [
        ("custom.metrics.k8s.io", "v1beta2"),
        ("external.metrics.k8s.io", "v1beta1"),
    ] {
        create(
            cluster,
            &json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": format!("{version}.{group}")},
                "spec": {
                    "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                    "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "adapter"},
                },
            }),
        );
        eventually(&format!("{group} to be available"), || {
            let service = cluster.get(&["apiservice", &format!("{version}.{group}")]);
            let conditions = service["status"]["conditions"].to_string();
            if conditions.contains("\"True\"") {
                Ok(())
            } else {
                Err(conditions)
            }
        });
    }
}

fn has_replicas(cluster: &Cluster, count: i64) {
    until(
        &format!("{count} replicas"),
        Duration::from_secs(90),
        || {
            let found = cluster.get(&["deployment", "web"]);
            if found["spec"]["replicas"].as_i64() == Some(count) {
                return Ok(());
            }
            let autoscaler = cluster.get(&["hpa", "web"]);
            Err(format!(
                "{}; {}",
                found["spec"]["replicas"], autoscaler["status"]
            ))
        },
    );
}

#[test]
fn a_deployment_follows_metrics_of_pods_of_objects_and_of_the_outside() {
    let cluster = Cluster::up();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    let mut adapter = Adapter::start(&cluster);
    register(&cluster);
    let labels = json!({"app": "web"});
    create(
        &cluster,
        &json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                    "name": "web", "image": "local.test/busybox:1", "imagePullPolicy": "Never",
                    "command": ["/bin/busybox", "sleep", "10000"],
                }]},
            }},
        }),
    );
    ready_pods(&cluster, "app=web", 1);
    adapter.load(&cluster, "30", "1", "1");
    create(
        &cluster,
        &json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 1, "maxReplicas": 6,
                "metrics": [
                    {"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "10"}}},
                    {"type": "Object", "object": {
                        "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "web"},
                        "metric": {"name": "waiting"}, "target": {"type": "AverageValue", "averageValue": "10"},
                    }},
                    {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}}},
                ],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            },
        }),
    );
    // By the pods' metric.
    has_replicas(&cluster, 3);
    ready_pods(&cluster, "app=web", 3);
    // By the object's metric.
    adapter.load(&cluster, "1", "40", "1");
    has_replicas(&cluster, 4);
    // By the external metric.
    ready_pods(&cluster, "app=web", 4);
    adapter.load(&cluster, "1", "1", "50");
    has_replicas(&cluster, 5);
    // No load any more.
    ready_pods(&cluster, "app=web", 5);
    adapter.load(&cluster, "1", "1", "1");
    has_replicas(&cluster, 1);
    let shown = cluster.get(&["hpa", "web"]);
    let metrics = shown["status"]["currentMetrics"].as_array().map(Vec::len);
    assert_eq!(metrics, Some(3), "{}", shown["status"]);
}
