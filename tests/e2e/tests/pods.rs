//! Edge cases of a pod's life with real containers: volumes for users other than root, restarts,
//! resizes, variables from files, and static pods.

use serde_json::Value;
use testkit::{Cluster, eventually};

const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  restartPolicy: Never
  securityContext: {runAsUser: 1000, runAsGroup: 1000}
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - name: write
    image: mainstay.local/hello
    args: [write, /data/env, "COLOUR='deep blue'"]
    volumeMounts: [{name: v, mountPath: /data, subPath: deep/er}]
  containers:
  - name: read
    image: mainstay.local/hello
    args: [env, SHADE]
    env:
    - name: SHADE
      valueFrom: {fileKeyRef: {volumeName: v, path: deep/er/env, key: COLOUR}}
---
apiVersion: v1
kind: Pod
metadata: {name: sickly}
spec:
  restartPolicy: OnFailure
  containers:
  - name: web
    image: mainstay.local/hello
    livenessProbe:
      exec: {command: [/mainstay, hello, exit, "1"]}
      periodSeconds: 1
      failureThreshold: 1
---
apiVersion: v1
kind: Pod
metadata: {name: slow-probe}
spec:
  containers:
  - name: web
    image: mainstay.local/hello
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 600}
---
apiVersion: v1
kind: Pod
metadata: {name: pair}
spec:
  containers:
  - name: a
    image: mainstay.local/hello
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}
  - name: b
    image: mainstay.local/hello
    args: [http, "8081"]
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}
"#;

const STATIC: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "from-file"},
    "spec": {"containers": [{"name": "web", "image": "mainstay.local/hello"}]}}"#;

fn shows(cluster: &Cluster, pod: &str, path: &str, expected: impl Fn(&Value) -> bool) {
    eventually(&format!("{pod}: {path}"), || {
        let object = cluster.get(&["pod", pod]);
        let found = object.pointer(path).cloned().unwrap_or_default();
        if expected(&found) {
            Ok(())
        } else {
            Err(object["status"].to_string())
        }
    });
}

#[test]
fn pod_life_cycle_edge_cases() {
    let mut cluster = Cluster::stopped(&[]);
    let manifests = cluster.machine().dir().join("manifests");
    std::fs::create_dir(&manifests).expect("a directory");
    cluster.add_flag("--static-pod-path", &manifests.to_string_lossy());
    cluster.start();
    let applied = cluster.kubectl_stdin(&["apply", "-f", "-"], PODS);
    applied.success();

    shows(&cluster, "writer", "/status/phase", |phase| {
        phase == "Succeeded"
    });
    let read = cluster.kubectl(&["logs", "writer"]).success();
    assert_eq!(read.trim(), "deep blue");

    shows(
        &cluster,
        "slow-probe",
        "/status/containerStatuses/0/ready",
        |ready| ready == true,
    );
    let restarts = "/status/containerStatuses/0/restartCount";
    shows(&cluster, "sickly", restarts, |count| {
        count.as_i64() >= Some(1)
    });

    shows(
        &cluster,
        "pair",
        "/status/containerStatuses/1/ready",
        |ready| ready == true,
    );
    let sizes = r#"{"spec": {"containers": [
        {"name": "a", "resources": {"limits": {"memory": "48Mi"}}},
        {"name": "b", "resources": {"limits": {"cpu": "200m", "memory": "64Mi"}}}]}}"#;
    cluster
        .kubectl(&[
            "patch",
            "pod",
            "pair",
            "--subresource",
            "resize",
            "-p",
            sizes,
        ])
        .success();
    for (index, memory) in [(0, "48Mi"), (1, "64Mi")] {
        let path = format!("/status/containerStatuses/{index}/resources/limits/memory");
        shows(&cluster, "pair", &path, |limit| limit == memory);
    }
    shows(&cluster, "pair", "/status/conditions", |conditions| {
        !conditions.to_string().contains("PodResize")
    });

    std::fs::write(manifests.join("pod.json"), STATIC).expect("a manifest");
    shows(&cluster, "from-file-one", "/status/phase", |phase| {
        phase == "Running"
    });
    std::fs::remove_file(manifests.join("pod.json")).expect("it goes");

    let all = ["delete", "pods", "--all", "--wait"];
    cluster.kubectl(&all).success();
}
