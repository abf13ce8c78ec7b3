//! Node protection: pods that fork, write, print or allocate without end harm neither the node nor
//! other pods, and the node reports its usage.

use std::fs;

use e2e::busybox_archive;
use serde_json::{Value, json};
use testkit::{Cluster, eventually};

const IMAGE: &str = "local.test/busybox:1";

fn pod(name: &str, script: &str, more: Value) -> String {
    let mut container = json!({
        "name": name, "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["/bin/busybox", "sh", "-c", script],
    });
    for (key, value) in more["container"].as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [container],
    });
    for (key, value) in more["spec"].as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

fn status(cluster: &Cluster, name: &str) -> Value {
    cluster.get(&["pod", name])["status"].clone()
}

fn evicted(cluster: &Cluster, name: &str, because: &str) {
    eventually(&format!("{name} to be evicted"), || {
        let status = status(cluster, name);
        let message = status["message"].as_str().unwrap_or_default();
        if status["reason"] == "Evicted" && status["phase"] == "Failed" && message.contains(because)
        {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
}

#[test]
fn pods_that_exhaust_pids_disk_logs_and_memory_harm_no_other_pod() {
    let mut cluster = Cluster::stopped(&[]);
    let file = cluster.machine().dir().join("node.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        podPidsLimit: 60\ncontainerLogMaxSize: 100Ki\n\
        evictionHard: {memory.available: 50Mi, nodefs.available: 1%}\n";
    fs::write(&file, text).expect("a file");
    cluster.add_flag("--kubelet-config", &file.display().to_string());
    cluster.start();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();

    let create = |manifest: String| {
        cluster
            .kubectl_stdin(&["create", "-f", "-"], &manifest)
            .success()
    };
    create(pod("neighbour", "exec /bin/busybox sleep 10000", json!({})));
    let limited = json!({"container": {"resources": {"limits": {"ephemeral-storage": "10Mi"}}}});
    let fill = "/bin/busybox dd if=/dev/zero of=/big bs=1M count=20; exec /bin/busybox sleep 10000";
    create(pod("writer", fill, limited));
    let volume = json!({
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        "spec": {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "10Mi"}}]},
    });
    let fill =
        "/bin/busybox dd if=/dev/zero of=/data/big bs=1M count=20; exec /bin/busybox sleep 10000";
    create(pod("filler", fill, volume));
    create(pod(
        "bomb",
        "while true; do /bin/busybox sleep 1000 & done",
        json!({}),
    ));
    create(pod(
        "loud",
        "exec /bin/busybox yes what a long line this is",
        json!({}),
    ));
    let small = json!({"container": {"resources": {"limits": {"memory": "32Mi"}}}});
    create(pod("eater", "exec /bin/busybox tail /dev/zero", small));

    evicted(&cluster, "writer", "10Mi");
    evicted(
        &cluster,
        "filler",
        "Usage of EmptyDir volume \"data\" exceeds the limit \"10Mi\". ",
    );
    eventually("the eater to be killed", || {
        let status = status(&cluster, "eater");
        let ended = &status["containerStatuses"][0]["state"]["terminated"];
        if ended["reason"] == "OOMKilled" {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    the_bomb_is_refused_more_processes(&cluster);
    the_logs_are_rotated(&cluster);
    let neighbour = status(&cluster, "neighbour");
    assert_eq!(neighbour["phase"], "Running");
    assert_eq!(neighbour["containerStatuses"][0]["restartCount"], 0);
    create(pod("after", "exit 0", json!({})));
    eventually("a pod to run after all this", || {
        let status = status(&cluster, "after");
        match status["phase"] == "Succeeded" {
            true => Ok(()),
            false => Err(status.to_string()),
        }
    });
    let conditions = cluster.get(&["node", "one"])["status"]["conditions"].clone();
    for condition in conditions.as_array().into_iter().flatten() {
        let wanted = if condition["type"] == "Ready" {
            "True"
        } else {
            "False"
        };
        assert_eq!(condition["status"], wanted, "{condition}");
    }
    the_node_tells_what_it_uses(&cluster);
}

/// The pod's cgroup has the configured limit, and the pod has reached it.
fn the_bomb_is_refused_more_processes(cluster: &Cluster) {
    let bomb = cluster.get(&["pod", "bomb"]);
    let uid = bomb["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let tree = if fs::metadata("/sys/fs/cgroup/pids").is_ok() {
        "/sys/fs/cgroup/pids"
    } else {
        "/sys/fs/cgroup"
    };
    // The cgroup's name begins with the cluster's id.
    let begins = format!("mainstay-{}", cluster.id());
    let groups = fs::read_dir(tree).expect("the cgroups").flatten();
    let mut names = groups.map(|group| group.file_name().to_string_lossy().into_owned());
    let own = names.find(|name| name.starts_with(&begins));
    let group = format!("{}/kubepods/besteffort/pod{uid}", own.expect("a cgroup"));
    let read =
        |file: &str| fs::read_to_string(format!("{tree}/{group}/{file}")).unwrap_or_default();
    assert_eq!(read("pids.max").trim(), "60");
    eventually("the bomb to be refused more processes", || {
        let logs = cluster.kubectl(&["logs", "bomb"]);
        match logs.stdout.contains("can't fork") || logs.stderr.contains("can't fork") {
            true => Ok(()),
            false => Err(format!("{} {}", logs.stdout, logs.stderr)),
        }
    });
}

fn the_logs_are_rotated(cluster: &Cluster) {
    let loud = cluster.get(&["pod", "loud"]);
    let uid = loud["metadata"]["uid"].as_str().unwrap_or_default();
    let logs = cluster
        .data_dir()
        .join(format!("logs/pods/default_loud_{uid}/loud"));
    // The machine's disk is visible only from inside.
    let figure = |script: &str| -> u64 {
        let script = format!("cd {} && {script}", logs.display());
        let ran = cluster.machine().run("sh", &["-c", &script]);
        ran.stdout.trim().parse().unwrap_or(0)
    };
    eventually("the loud pod's logs to be rotated", || {
        match figure("ls | wc -l") {
            5 => Ok(()),
            count => Err(format!("{count} files")),
        }
    });
    // A file may be renamed while it is read.
    let total = eventually("bytes of logs", || match figure("cat * | wc -c") {
        0 => Err("none".to_owned()),
        total => Ok(total),
    });
    assert!(total <= 5 * 110 * 1024, "{total} bytes of logs");
}

fn the_node_tells_what_it_uses(cluster: &Cluster) {
    let raw = |path: &str| {
        let path = format!("/api/v1/nodes/one/proxy{path}");
        cluster.kubectl(&["get", "--raw", &path]).success()
    };
    let summary: Value = serde_json::from_str(&raw("/stats/summary")).expect("JSON");
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let neighbour = pods.iter().find(|pod| pod["podRef"]["name"] == "neighbour");
    let neighbour = neighbour.expect("the pod in the summary");
    assert!(
        neighbour["memory"]["workingSetBytes"].as_u64() > Some(0),
        "{neighbour}"
    );
    assert!(
        summary["node"]["cpu"]["usageNanoCores"].as_u64() > Some(0),
        "{summary}"
    );
    let page = raw("/metrics/resource");
    assert!(
        page.contains("pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"neighbour\"}"),
        "{page}"
    );
    assert!(raw("/configz").contains("\"podPidsLimit\":60"));
    assert!(raw("/logs/").contains("<pre>"));
    let healthy = cluster
        .machine()
        .run("curl", &["-s", "http://127.0.0.1:10248/healthz"]);
    assert_eq!(healthy.success(), "ok");
}

#[test]
fn logs_of_a_node_in_the_default_place_are_where_log_shippers_look() {
    let mut cluster = Cluster::stopped(&[]);
    cluster.use_default_data_dir();
    cluster.start();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    let talks = pod(
        "talks",
        "echo said; exec /bin/busybox sleep 1000",
        json!({}),
    );
    cluster
        .kubectl_stdin(&["create", "-f", "-"], &talks)
        .success();

    let shell = |script: &str| cluster.machine().run("sh", &["-c", script]).stdout;
    for log in [
        "cat /var/log/containers/talks_default_talks-*.log",
        "cat /var/log/pods/default_talks_*/talks/0.log",
    ] {
        eventually(log, || match shell(log) {
            text if text.trim_end().ends_with(" stdout F said") => Ok(()),
            text => Err(text),
        });
    }
    cluster
        .kubectl(&["delete", "pod", "talks", "--wait=false"])
        .success();
    let left = "ls -A /var/log/containers /var/log/pods | grep talks";
    eventually("the logs to go with their pod", || match shell(left) {
        text if text.is_empty() => Ok(()),
        text => Err(text),
    });
}
