//! The stock kubectl against the server: basic commands.

use crate::support::Server;

const CONFIG: &str = "
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  labels: {app: web}
data:
  colour: blue
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_creates_applies_gets_labels_and_deletes() {
    let server = Server::start().await;
    let Some(out) = server.kubectl_ok(&["create", "-f", "-"], CONFIG).await else {
        return;
    };
    assert_eq!(out, "configmap/settings created\n");
    let out = server
        .kubectl_ok(&["get", "configmap", "settings"], "")
        .await
        .unwrap();
    assert!(
        out.starts_with("NAME       DATA   AGE\nsettings   1      "),
        "{out}"
    );
    let out = server
        .kubectl_ok(&["get", "cm", "-l", "app=web", "-o", "name"], "")
        .await
        .unwrap();
    assert_eq!(out, "configmap/settings\n");
    let out = server
        .kubectl_ok(&["get", "ns", "-o", "name"], "")
        .await
        .unwrap();
    assert!(out.contains("namespace/kube-system\n"), "{out}");
    let changed = CONFIG.replace("blue", "red");
    let out = server
        .kubectl_ok(&["apply", "-f", "-"], &changed)
        .await
        .unwrap();
    assert_eq!(out, "configmap/settings configured\n");
    let path = "-o=jsonpath={.data.colour}";
    let out = server
        .kubectl_ok(&["get", "cm", "settings", path], "")
        .await
        .unwrap();
    assert_eq!(out, "red");
    let out = server
        .kubectl_ok(&["label", "cm", "settings", "tier=front"], "")
        .await
        .unwrap();
    assert_eq!(out, "configmap/settings labeled\n");
    let out = server
        .kubectl_ok(&["delete", "cm", "settings"], "")
        .await
        .unwrap();
    assert!(out.starts_with("configmap \"settings\" deleted"), "{out}");
    let output = server
        .kubectl(&["get", "cm", "settings"], "")
        .await
        .unwrap();
    let error = crate::support::text(&output.stderr);
    assert_eq!(
        error,
        "Error from server (NotFound): configmaps \"settings\" not found\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_fields() {
    let server = Server::start().await;
    let arguments = ["explain", "deployment.spec.template.spec.containers.image"];
    let Some(out) = server.kubectl_ok(&arguments, "").await else {
        return;
    };
    assert!(out.contains("FIELD: image <string>"), "{out}");
    let all = server
        .kubectl_ok(&["explain", "pod", "--recursive"], "")
        .await
        .unwrap();
    assert!(all.contains("initContainers\t<[]Container>"), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_edits_scales_rolls_and_describes() {
    let server = Server::start().await;
    let arguments = [
        "create",
        "deployment",
        "web",
        "--image=hello",
        "--replicas=2",
    ];
    let Some(out) = server.kubectl_ok(&arguments, "").await else {
        return;
    };
    assert_eq!(out, "deployment.apps/web created\n");
    server
        .kubectl_ok(&["scale", "deployment", "web", "--replicas=3"], "")
        .await
        .unwrap();
    server
        .kubectl_ok(&["set", "image", "deployment/web", "hello=hello:2"], "")
        .await
        .unwrap();
    server
        .kubectl_ok(&["expose", "deployment", "web", "--port=80"], "")
        .await
        .unwrap();
    let out = server.kubectl_ok(&["get", "deploy,svc"], "").await.unwrap();
    assert!(out.contains("deployment.apps/web   0/3"), "{out}");
    assert!(out.contains("service/web"), "{out}");
    let out = server
        .kubectl_ok(&["describe", "deployment", "web"], "")
        .await
        .unwrap();
    assert!(out.contains("3 desired"), "{out}");
    let out = server
        .kubectl_ok(&["api-resources", "-o", "name"], "")
        .await
        .unwrap();
    assert!(out.lines().any(|line| line == "deployments.apps"), "{out}");
    let out = server
        .kubectl_ok(&["delete", "svc", "web"], "")
        .await
        .unwrap();
    assert!(out.contains("\"web\" deleted"), "{out}");
}
