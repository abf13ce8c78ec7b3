//! The same pods on the built-in runtime and on Debian's containerd: users see no difference.

use std::time::Duration;

use e2e::{busybox_archive, container_ids, pause_archive};
use serde_json::{Value, json};
use testkit::{Cluster, Containerd, eventually, until};

const IMAGE: &str = "local.test/busybox:1";

#[test]
fn pods_live_the_same_on_the_runtime_inside() {
    let mut cluster = Cluster::up();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    pods_live(&mut cluster, "mainstay");
}

#[test]
fn pods_live_the_same_on_containerd_and_a_hung_one_makes_the_node_not_ready() {
    let mut cluster = Cluster::stopped(&[]);
    let directory = cluster.machine().dir().to_owned();
    let (pause, name) = pause_archive(&directory.join("pause"));
    let containerd = Containerd::on(cluster.machine(), &pause, name);
    containerd.import(&busybox_archive(&directory));
    cluster.add_flag("--container-runtime-endpoint", &containerd.endpoint());
    cluster.start();
    pods_live(&mut cluster, "containerd");

    containerd.signal("-STOP");
    ready(&cluster, "False");
    containerd.signal("-CONT");
    ready(&cluster, "True");
    run(&cluster, "after", "echo well", json!({}));
    phase(&cluster, "after", "Succeeded");
    let all = ["delete", "pods", "--all", "--wait"];
    cluster.kubectl(&all).success();
}

fn ready(cluster: &Cluster, wanted: &str) {
    let patience = Duration::from_secs(120);
    until(&format!("Ready to be {wanted}"), patience, || {
        let node = cluster.get(&["node", "one"]);
        let conditions = node["status"]["conditions"].as_array();
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Ready");
        match ready {
            Some(ready) if ready["status"] == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

fn run(cluster: &Cluster, name: &str, script: &str, more: Value) {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
        "containers": [{
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "sh", "-c", script],
        }],
    });
    for (key, value) in more["spec"].as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    for (key, value) in more["container"].as_object().into_iter().flatten() {
        spec["containers"][0][key] = value.clone();
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let created = cluster.kubectl_stdin(&["create", "-f", "-"], &pod.to_string());
    created.success();
}

fn shows(cluster: &Cluster, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("{name}: {what}"), || {
        let pod = cluster.get(&["pod", name]);
        if holds(&pod["status"]) {
            Ok(pod)
        } else {
            Err(pod["status"].to_string())
        }
    })
}

fn phase(cluster: &Cluster, name: &str, wanted: &str) -> Value {
    shows(cluster, name, wanted, |status| status["phase"] == wanted)
}

fn pods_live(cluster: &mut Cluster, runtime: &str) {
    let node = cluster.get(&["node", "one"]);
    let version = node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str();
    assert!(
        version
            .unwrap_or_default()
            .starts_with(&format!("{runtime}://")),
        "{version:?}"
    );
    create_pods(cluster);

    // A pod's log, exit code and termination message.
    let ended = phase(cluster, "failing", "Failed");
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["exitCode"], 7);
    assert_eq!(state["message"], "so it ends");
    let said = cluster.kubectl(&["logs", "failing"]).success();
    assert_eq!(said, "out\n");

    // Init containers, a sidecar and an environment.
    let done = phase(cluster, "steps", "Succeeded");
    let said = cluster.kubectl(&["logs", "steps", "-c", "main"]).success();
    assert_eq!(said, "first from steps\n");
    let ids = container_ids(&done);
    assert!(ids[0].starts_with(&format!("{runtime}://")), "{ids:?}");

    // A running pod: an address, exec, a resize, a probe that restarts it.
    let running = phase(cluster, "long", "Running");
    assert!(running["status"]["podIP"].is_string());
    let exec = ["exec", "long", "--", "/bin/busybox", "cat", "/config/key"];
    assert_eq!(cluster.kubectl(&exec).success(), "value");
    let sizes = r#"{"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "48Mi"}}}]}}"#;
    let resize = [
        "patch",
        "pod",
        "long",
        "--subresource",
        "resize",
        "-p",
        sizes,
    ];
    cluster.kubectl(&resize).success();
    shows(cluster, "long", "the new size", |status| {
        status["containerStatuses"][0]["resources"]["limits"]["memory"] == "48Mi"
            && !status["conditions"].to_string().contains("PodResize")
    });
    shows(cluster, "sickly", "a restart", |status| {
        status["containerStatuses"][0]["restartCount"].as_i64() >= Some(1)
    });
    eats_too_much(cluster);

    // A crash of the daemon does not affect its pods.
    let before = container_ids(&cluster.get(&["pod", "long"]));
    cluster.kill();
    cluster.start();
    let after = phase(cluster, "long", "Running");
    assert_eq!(container_ids(&after), before);

    let all = ["delete", "pods", "--all", "--wait"];
    cluster.kubectl(&all).success();
}

fn eats_too_much(cluster: &Cluster) {
    let ended = phase(cluster, "eater", "Failed");
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["reason"], "OOMKilled", "{state}");
}

fn create_pods(cluster: &Cluster) {
    let map = [
        "create",
        "configmap",
        "settings",
        "--from-literal=key=value",
    ];
    cluster.kubectl(&map).success();
    let failing = "echo out; echo -n 'so it ends' >/dev/termination-log; exit 7";
    run(cluster, "failing", failing, json!({}));
    let step = |name: &str, script: &str, more: Value| {
        let mut container = json!({
            "name": name, "image": IMAGE, "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "sh", "-c", script],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            container[key] = value.clone();
        }
        container
    };
    let first = step("first", "echo -n first >/shared/file", json!({}));
    let beside = step(
        "beside",
        "exec /bin/busybox sleep 10000",
        json!({"restartPolicy": "Always"}),
    );
    let script = "echo $(/bin/busybox cat /shared/file) from $NAME";
    run(
        cluster,
        "steps",
        script,
        json!({
            "spec": {"initContainers": [first, beside], "volumes": [{"name": "shared", "emptyDir": {}}]},
            "container": {
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            },
        }),
    );
    let sleep = "exec /bin/busybox sleep 10000";
    run(
        cluster,
        "long",
        sleep,
        json!({
            "spec": {"volumes": [{"name": "config", "configMap": {"name": "settings"}}]},
            "container": {
                "volumeMounts": [{"name": "config", "mountPath": "/config"}],
                "resources": {"requests": {"memory": "16Mi"}, "limits": {"memory": "32Mi"}},
            },
        }),
    );
    let probe = json!({"exec": {"command": ["/bin/busybox", "false"]}, "periodSeconds": 1, "failureThreshold": 1});
    let sickly =
        json!({"spec": {"restartPolicy": "Always"}, "container": {"livenessProbe": probe}});
    run(cluster, "sickly", sleep, sickly);
    let small = json!({"container": {"resources": {"limits": {"memory": "32Mi"}}}});
    run(cluster, "eater", "exec /bin/busybox tail /dev/zero", small);
}
