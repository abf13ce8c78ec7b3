//! From `kubectl create deployment` to an answering pod, through every component, and back to
//! nothing.

use std::{collections::BTreeSet, time::Duration};

use e2e::{container_ids, name, ready_pods};
use testkit::{Cluster, Leftovers, eventually, until};

const IMAGE: &str = "mainstay.local/hello";

/// How long the calling pod sleeps: a number that no other process on the machine has in its
/// arguments.
const CALLER_SLEEPS: &str = "360773";

/// Connects to the Service by its name from inside a pod.
fn call(cluster: &Cluster, from: &str, url: &str) -> Result<String, String> {
    let ran = cluster.kubectl(&["exec", from, "--", "/mainstay", "hello", "get", url]);
    if ran.ok {
        Ok(ran.stdout)
    } else {
        Err(ran.stderr)
    }
}

#[test]
fn a_deployment_and_its_service_answer_survive_a_crash_and_leave_nothing_behind() {
    let mut cluster = Cluster::up();
    deploy_and_call(&cluster);
    writes_have_the_field_managers_that_upstreams_have(&cluster);
    exec_and_logs(&cluster);
    why_knows(&cluster);
    a_killed_container_is_restarted(&cluster);
    a_crash_of_the_daemon_leaves_containers_alone(&mut cluster);
    scaling_goes_up_and_down(&cluster);
    deletion_takes_everything_along(&cluster);
}

fn deploy_and_call(cluster: &Cluster) {
    cluster
        .kubectl(&[
            "create",
            "deployment",
            "web",
            "--image",
            IMAGE,
            "--replicas=3",
        ])
        .success();
    cluster
        .kubectl(&[
            "expose",
            "deployment",
            "web",
            "--port=80",
            "--target-port=8080",
        ])
        .success();
    let status = cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]);
    assert!(status.ok, "{} {}", status.stdout, status.stderr);
    let pods = ready_pods(cluster, "app=web", 3);
    let names: Vec<String> = pods.iter().map(name).collect();

    cluster
        .kubectl(&[
            "run",
            "caller",
            "--image",
            IMAGE,
            "--",
            "sleep",
            CALLER_SLEEPS,
        ])
        .success();
    ready_pods(cluster, "run=caller", 1);
    for url in [
        "http://web/",
        "http://web.default/",
        "http://web.default.svc.cluster.local/",
    ] {
        let answer = eventually(url, || call(cluster, "caller", url));
        assert!(
            names.iter().any(|name| answer.contains(name.as_str())),
            "{answer} of {names:?}"
        );
    }
    // The node itself reaches the Service's address and name, too.
    let service = cluster.get(&["service", "web"]);
    let address = service["spec"]["clusterIP"]
        .as_str()
        .expect("an address")
        .to_owned();
    let answer = eventually("the service from the node", || {
        from_node(cluster, &format!("http://{address}/"))
    });
    assert!(
        names.iter().any(|name| answer.contains(name.as_str())),
        "{answer} of {names:?}"
    );
}

fn from_node(cluster: &Cluster, url: &str) -> Result<String, String> {
    let binary = std::env::var("MAINSTAY_BIN").expect("set by make");
    let ran = cluster.machine().run(&binary, &["hello", "get", url]);
    if ran.ok {
        Ok(ran.stdout)
    } else {
        Err(ran.stderr)
    }
}

/// Healthy, pending and crashing objects are explained from the real cluster.
fn why_knows(cluster: &Cluster) {
    let why = |words: &[&str]| cluster.mainstay(&[&["why"], words].concat()).success();
    let well = why(&["deployment/web"]);
    assert!(well.contains("3 of 3 pods are ready"), "{well}");
    let service = why(&["service", "web"]);
    assert!(
        service.contains("has 3 of 3 pods as ready endpoints"),
        "{service}"
    );
    let asks = r#"{"spec": {"containers": [{"name": "big", "image": "mainstay.local/hello",
        "resources": {"requests": {"cpu": "1000"}}}]}}"#;
    let run = ["run", "big", "--image", IMAGE, "--overrides", asks];
    cluster.kubectl(&run).success();
    let waits = eventually("an answer about the pod that waits", || {
        let said = why(&["pod/big"]);
        match said.contains("it fits no node") {
            true => Ok(said),
            false => Err(said),
        }
    });
    assert!(waits.contains("Insufficient cpu (requests 1k, "), "{waits}");
    // The machine's disk may be nearly full, which is a problem of its own.
    let status = cluster.mainstay(&["status", "--output", "json"]).stdout;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["nodes"][0]["ready"], true, "{status}");
    let parts = status["parts"].as_array().expect("parts");
    assert!(
        parts.len() > 10 && parts.iter().all(|part| part["ready"] == true),
        "{status}"
    );
    let may = why(&["can", "alice", "delete", "pods"]);
    assert!(may.starts_with("alice may not delete pods"), "{may}");
    cluster
        .kubectl(&["delete", "pod", "big", "--now"])
        .success();
}

fn exec_and_logs(cluster: &Cluster) {
    let pod = name(&ready_pods(cluster, "app=web", 3)[0]);
    let ran = cluster.kubectl(&["exec", &pod, "--", "/mainstay", "hello", "exit", "7"]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  restartPolicy: Never
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: settings, configMap: {name: settings}}
  containers:
  - name: first
    image: mainstay.local/hello
    args: [say, "$(GREETING) from first"]
    env: [{name: GREETING, value: good morning}]
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: settings, mountPath: /settings}]
  - name: second
    image: mainstay.local/hello
    args: [cat, /settings/colour]
    volumeMounts: [{name: settings, mountPath: /settings}]
  - name: third
    image: mainstay.local/hello
    args: [exit, "3"]
"#;
    cluster
        .kubectl(&[
            "create",
            "configmap",
            "settings",
            "--from-literal=colour=green",
        ])
        .success();
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], manifest)
        .success();
    let pod = eventually("the pod to end", || {
        let pod = cluster.get(&["pod", "talker"]);
        if pod["status"]["phase"] == "Failed" {
            Ok(pod)
        } else {
            Err(pod["status"].to_string())
        }
    });
    let codes: Vec<_> = pod["status"]["containerStatuses"]
        .as_array()
        .expect("statuses")
        .iter()
        .map(|status| status["state"]["terminated"]["exitCode"].as_i64())
        .collect();
    assert_eq!(codes, [Some(0), Some(0), Some(3)]);
    let logs = |container: &str| {
        cluster
            .kubectl(&["logs", "talker", "-c", container])
            .success()
    };
    assert_eq!(logs("first").trim(), "good morning from first");
    assert_eq!(logs("second").trim(), "green");
}

fn a_killed_container_is_restarted(cluster: &Cluster) {
    let before = ready_pods(cluster, "run=caller", 1).remove(0);
    let pid = process_with_argument(CALLER_SLEEPS);
    cluster.machine().run("kill", &["-KILL", &pid]).success();
    eventually("the container to be restarted", || {
        let pod = cluster.get(&["pod", "caller"]);
        let status = &pod["status"]["containerStatuses"][0];
        let restarted = status["restartCount"].as_i64() == Some(1) && status["ready"] == true;
        if restarted && container_ids(&pod) != container_ids(&before) {
            return Ok(());
        }
        Err(status.to_string())
    });
}

/// The process of a container, as seen from the host.
fn process_with_argument(argument: &str) -> String {
    let has_argument = |entry: &std::fs::DirEntry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut arguments = command.split(|byte| *byte == 0);
        let is_hello = arguments.next() == Some(b"/mainstay");
        is_hello && arguments.any(|given| given == argument.as_bytes())
    };
    let mut processes = std::fs::read_dir("/proc")
        .expect("/proc is there")
        .flatten();
    let found = processes
        .find(has_argument)
        .expect("the container's process");
    found.file_name().to_string_lossy().into_owned()
}

fn a_crash_of_the_daemon_leaves_containers_alone(cluster: &mut Cluster) {
    let ids = |pods: &[serde_json::Value]| -> Vec<Vec<String>> {
        let mut ids: Vec<_> = pods.iter().map(container_ids).collect();
        ids.sort();
        ids
    };
    let before = ids(&ready_pods(cluster, "app=web", 3));
    let service = cluster.get(&["service", "web"]);
    let url = format!(
        "http://{}/",
        service["spec"]["clusterIP"].as_str().expect("an address")
    );
    cluster.kill();
    from_node(cluster, &url).expect("the service's address answers while the daemon is dead");
    cluster.start();
    assert_eq!(ids(&ready_pods(cluster, "app=web", 3)), before);
    from_node(cluster, &url).expect("the service's address answers after the restart");
    eventually("the service by its name", || {
        call(cluster, "caller", "http://web/")
    });
}

fn writes_have_the_field_managers_that_upstreams_have(cluster: &Cluster) {
    for (kind, expected) in [
        ("deployment", "kube-controller-manager kubectl-create"),
        ("replicaset", "kube-controller-manager"),
        ("pod", "kube-controller-manager kubelet"),
        ("service", "kubectl-expose"),
    ] {
        let get = [
            "get",
            kind,
            "-l",
            "app=web",
            "-o",
            "json",
            "--show-managed-fields",
        ];
        eventually(expected, || {
            let shown = cluster.kubectl(&get).success();
            let list: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            let entries = list["items"][0]["metadata"]["managedFields"].as_array();
            let managers = entries.into_iter().flatten();
            let managers: BTreeSet<_> =
                managers.filter_map(|one| one["manager"].as_str()).collect();
            let managers = Vec::from_iter(managers).join(" ");
            match managers == expected {
                true => Ok(()),
                false => Err(format!("{kind}: {managers}")),
            }
        });
    }
}

fn scaling_goes_up_and_down(cluster: &Cluster) {
    for count in [5, 1] {
        cluster
            .kubectl(&["scale", "deployment/web", &format!("--replicas={count}")])
            .success();
        ready_pods(cluster, "app=web", count);
    }
}

fn deletion_takes_everything_along(cluster: &Cluster) {
    cluster
        .kubectl(&[
            "delete",
            "deployment/web",
            "service/web",
            "pod/caller",
            "pod/talker",
        ])
        .success();
    eventually("all pods to go", || {
        let pods = cluster.get(&["pods"])["items"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if pods.is_empty() {
            Ok(())
        } else {
            Err(format!("{} left", pods.len()))
        }
    });
    cluster
        .kubectl(&["create", "namespace", "passing"])
        .success();
    cluster
        .kubectl(&["create", "configmap", "-n", "passing", "thing"])
        .success();
    cluster
        .kubectl(&["delete", "namespace", "passing"])
        .success();
    eventually("the namespace to go", || {
        let ran = cluster.kubectl(&["get", "namespace", "passing"]);
        if ran.ok { Err(ran.stdout) } else { Ok(()) }
    });
}

#[test]
fn reset_leaves_no_link_mount_cgroup_rule_or_process() {
    let mut cluster = Cluster::stopped(&[]);
    let untouched = Leftovers::on(cluster.machine(), &[]);
    cluster.start();
    cluster
        .kubectl(&[
            "create",
            "deployment",
            "web",
            "--image",
            IMAGE,
            "--replicas=2",
        ])
        .success();
    ready_pods(&cluster, "app=web", 2);
    let (id, data) = (cluster.id(), cluster.data_dir());
    let marks = [id.as_str(), data.to_str().expect("a path in UTF-8")];
    let traces = Leftovers::on(cluster.machine(), &marks).since(&untouched);
    for kind in ["link", "route", "rule", "mount", "cgroup", "process"] {
        assert!(
            traces.iter().any(|trace| trace.starts_with(kind)),
            "no {kind}: the test is blind"
        );
    }
    cluster.stop();
    // With running pods: reset ends them, too.
    cluster.reset().success();
    until("nothing to be left", Duration::from_secs(10), || {
        let left = Leftovers::on(cluster.machine(), &marks).since(&untouched);
        if left.is_empty() {
            Ok(())
        } else {
            Err(left.join("\n"))
        }
    });
    let left = cluster.machine().run("ls", &[marks[1]]);
    assert!(
        !left.ok,
        "the data directory is still there: {}",
        left.stdout
    );
}
