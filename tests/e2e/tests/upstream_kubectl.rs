//! The kubectl that people have: it cannot tell the difference.

use serde_json::Value;
use testkit::{Cluster, eventually};

const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: web
        image: mainstay.local/hello
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  selector: {app: shop}
  ports: [{port: 80, targetPort: 8080}]
"#;

#[test]
fn the_ordinary_kubectl_applies_rolls_out_execs_and_deletes() {
    let cluster = Cluster::up();
    if cluster.upstream_kubectl(&["version", "--client"]).is_none() {
        // Not every machine has one; our own has its own story.
        return;
    }
    let kubectl = |args: &[&str]| cluster.upstream_kubectl(args).expect("it is there");
    let file = cluster.machine().dir().join("shop.yaml");
    std::fs::write(&file, MANIFEST).expect("a file");
    let file = file.display().to_string();

    assert!(
        kubectl(&["apply", "-f", &file])
            .success()
            .contains("deployment.apps/shop created")
    );
    kubectl(&["rollout", "status", "deployment/shop", "--timeout=90s"]).success();
    assert!(
        kubectl(&["apply", "-f", &file])
            .success()
            .contains("deployment.apps/shop unchanged")
    );
    assert!(kubectl(&["diff", "-f", &file]).ok, "nothing differs");

    let pods: Value =
        serde_json::from_str(&kubectl(&["get", "pods", "-l", "app=shop", "-o", "json"]).success())
            .expect("JSON");
    let pod = pods["items"][0]["metadata"]["name"]
        .as_str()
        .expect("a pod")
        .to_owned();
    let answer = eventually("the service by its name", || {
        let ran = kubectl(&[
            "exec",
            &pod,
            "--",
            "/mainstay",
            "hello",
            "get",
            "http://shop/",
        ]);
        if ran.ok {
            Ok(ran.stdout)
        } else {
            Err(ran.stderr)
        }
    });
    assert!(answer.contains("shop-"), "{answer}");
    assert_eq!(
        kubectl(&["exec", &pod, "--", "/mainstay", "hello", "exit", "7"]).code,
        Some(7)
    );
    assert!(kubectl(&["logs", &pod]).success().contains("8080"));

    kubectl(&["set", "env", "deployment/shop", "COLOUR=green"]).success();
    kubectl(&["rollout", "status", "deployment/shop", "--timeout=90s"]).success();
    let history = kubectl(&["rollout", "history", "deployment/shop"]).success();
    assert!(
        history.lines().any(|line| line.starts_with('2')),
        "{history}"
    );
    kubectl(&["rollout", "undo", "deployment/shop"]).success();
    kubectl(&["rollout", "status", "deployment/shop", "--timeout=90s"]).success();

    assert!(
        kubectl(&["explain", "deployment.spec.replicas"])
            .success()
            .contains("integer")
    );
    assert_eq!(
        kubectl(&["auth", "can-i", "delete", "pods"])
            .success()
            .trim(),
        "yes"
    );
    kubectl(&["delete", "-f", &file, "--timeout=60s"]).success();
    let left = kubectl(&["get", "deployment,service", "-l", "app=shop"]);
    assert!(left.stderr.contains("No resources found"), "{left:?}");
}
