//! KubeletConfiguration: changes take effect while the kubelet runs, critical pods preempt others,
//! pods end in order when the daemon stops, and reservations are enforced.

use std::{fs, path::PathBuf};

use e2e::busybox_archive;
use serde_json::{Value, json};
use testkit::{Cluster, eventually};

const IMAGE: &str = "local.test/busybox:1";
const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    evictionHard: {memory.available: 50Mi, nodefs.available: 1%}\n";

/// A cluster with this configuration, and the configuration's file.
fn cluster_with(flags: &[&str], settings: &str) -> (Cluster, PathBuf) {
    let mut cluster = Cluster::stopped(flags);
    let dir = cluster.machine().dir().join("settings");
    fs::create_dir(&dir).expect("a directory");
    let file = dir.join("kubelet.yaml");
    fs::write(&file, format!("{HEAD}{settings}")).expect("a file");
    cluster.add_flag("--kubelet-config", &file.display().to_string());
    cluster.start();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    (cluster, file)
}

fn create(cluster: &Cluster, name: &str, script: &str, more: Value, resources: Value) {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 8, "restartPolicy": "Never", "nodeName": "one",
        "containers": [{
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "resources": resources,
            "command": ["/bin/busybox", "sh", "-c", script],
        }],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let metadata = json!({"name": name, "namespace": "kube-system"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let created = cluster.kubectl_stdin(&["create", "-f", "-"], &pod.to_string());
    created.success();
}

fn pod(cluster: &Cluster, name: &str) -> Value {
    cluster.get(&["pod", "-n", "kube-system", name])
}

fn shows(cluster: &Cluster, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("{name}: {what}"), || {
        let pod = pod(cluster, name);
        if holds(&pod["status"]) {
            Ok(pod)
        } else {
            Err(pod["status"].to_string())
        }
    })
}

fn is_disrupted(status: &Value) -> bool {
    let conditions = status["conditions"].as_array();
    let mut all = conditions.into_iter().flatten();
    all.any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "TerminationByKubelet")
}

const SLEEP: &str = "exec /bin/busybox sleep 10000";

#[test]
fn changed_settings_take_effect_and_critical_pods_get_room() {
    let (cluster, file) = cluster_with(&[], "maxPods: 7\n");
    let configz = |field: &str| {
        let raw = ["get", "--raw", "/api/v1/nodes/one/proxy/configz"];
        let shown: Value = serde_json::from_str(&cluster.kubectl(&raw).success()).expect("JSON");
        shown["kubeletconfig"][field].clone()
    };
    assert_eq!(configz("maxPods"), 7);
    let capacity = |wanted: &str| {
        eventually(&format!("a capacity of {wanted} pods"), || {
            let node = cluster.get(&["node", "one"]);
            match &node["status"]["capacity"]["pods"] {
                pods if *pods == wanted => Ok(()),
                pods => Err(pods.to_string()),
            }
        });
    };
    capacity("7");
    fs::write(&file, format!("{HEAD}maxPods: 9\nhealthzPort: 1\n")).expect("a file");
    capacity("9");
    // This one needs a restart.
    assert_eq!(
        (configz("maxPods"), configz("healthzPort")),
        (json!(9), json!(10248))
    );
    fs::write(&file, format!("{HEAD}maxPod: 1\n")).expect("a file");
    eventually("the event of the broken file", || {
        let events = cluster.kubectl(&["get", "events", "-o", "json"]).stdout;
        if events.contains("InvalidKubeletConfiguration") {
            Ok(())
        } else {
            Err(events)
        }
    });
    assert_eq!(configz("maxPods"), 9);

    let node = cluster.get(&["node", "one"]);
    let cpus = node["status"]["allocatable"]["cpu"].clone();
    create(
        &cluster,
        "large",
        SLEEP,
        json!({}),
        json!({"requests": {"cpu": cpus}}),
    );
    shows(&cluster, "large", "Running", |status| {
        status["phase"] == "Running"
    });
    let critical = json!({"priorityClassName": "system-node-critical"});
    create(
        &cluster,
        "critical",
        SLEEP,
        critical,
        json!({"requests": {"cpu": "1"}}),
    );
    let ended = shows(&cluster, "large", "its end", |status| {
        status["phase"] == "Failed"
    });
    assert_eq!(ended["status"]["reason"], "Preempting");
    assert!(is_disrupted(&ended["status"]), "{ended}");
    shows(&cluster, "critical", "Running", |status| {
        status["phase"] == "Running"
    });
}

#[test]
fn pods_end_by_priority_when_the_daemon_stops_as_configured() {
    let settings = "shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\n";
    let (mut cluster, _) = cluster_with(&["--shutdown-on-stop"], settings);
    let slow =
        "trap '/bin/busybox sleep 1; exit 0' TERM; while true; do /bin/busybox sleep 0.1; done";
    create(&cluster, "plain", slow, json!({}), json!({}));
    let critical = json!({"priorityClassName": "system-cluster-critical"});
    create(&cluster, "critical", slow, critical, json!({}));
    for name in ["plain", "critical"] {
        shows(&cluster, name, "Running", |status| {
            status["phase"] == "Running"
        });
    }
    cluster.stop();
    cluster.start();
    let ended = ["plain", "critical"].map(|name| {
        let pod = shows(&cluster, name, "its end", |status| {
            status["phase"] == "Failed"
        });
        assert_eq!(pod["status"]["reason"], "Terminated");
        assert!(is_disrupted(&pod["status"]), "{pod}");
        let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        state["finishedAt"].as_str().unwrap_or_default().to_owned()
    });
    assert!(ended[0] < ended[1], "{ended:?}");
    let raw = ["get", "--raw", "/api/v1/nodes/one/proxy/metrics"];
    let metrics = cluster.kubectl(&raw).success();
    let name = "kubelet_graceful_shutdown_end_time_seconds ";
    let line = metrics.lines().find(|line| line.starts_with(name));
    assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{line:?}");
    create(&cluster, "next", "exit 0", json!({}), json!({}));
    shows(&cluster, "next", "Succeeded", |status| {
        status["phase"] == "Succeeded"
    });
}

#[test]
fn a_pod_that_exhausts_memory_disk_or_inodes_harms_no_other_pod() {
    let total = fs::read_to_string("/proc/meminfo").expect("the machine's memory");
    let total: u64 = total
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .expect("a number");
    // Pods get 200 MB together; the rest is reserved.
    let reserved = total - 200 * 1024;
    let settings =
        format!("kubeReserved: {{memory: {reserved}Ki}}\nevictionPressureTransitionPeriod: 2s\n");
    let mut cluster = Cluster::stopped(&[]);
    let disk = cluster.machine().disk().display().to_string();
    // The image of the binary takes part of the disk; 450 MB are for everything else.
    let binary = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    let binary = fs::metadata(binary).expect("the binary").len() >> 20;
    let size = format!("remount,size={}M,nr_inodes=20000", binary + 450);
    let small = ["-o", &size, &disk];
    cluster.machine().run("mount", &small).success();
    let file = cluster.machine().dir().join("kubelet.yaml");
    let head = HEAD.replace(
        "memory.available: 50Mi, nodefs.available: 1%",
        "memory.available: 1Mi, nodefs.available: 300Mi, nodefs.inodesFree: 30%",
    );
    fs::write(&file, format!("{head}{settings}")).expect("a file");
    cluster.add_flag("--kubelet-config", &file.display().to_string());
    cluster.start();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();

    let bound = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "16Mi"}});
    create(&cluster, "neighbour", SLEEP, json!({}), bound);
    shows(&cluster, "neighbour", "Running", |status| {
        status["phase"] == "Running"
    });
    create(
        &cluster,
        "eater",
        "exec /bin/busybox tail /dev/zero",
        json!({}),
        json!({}),
    );
    shows(&cluster, "eater", "its end", |status| {
        status["phase"] == "Failed"
    });

    // Until then new pods without requests are rejected.
    pressure_ends(&cluster, "MemoryPressure");

    // What it writes counts as memory here, too: less than the pods' limit.
    let fill =
        "/bin/busybox dd if=/dev/zero of=/big bs=1M count=150; exec /bin/busybox sleep 10000";
    create(&cluster, "filler", fill, json!({}), json!({}));
    let ended = shows(&cluster, "filler", "its eviction", |status| {
        status["reason"] == "Evicted"
    });
    let message = ended["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("ephemeral-storage"), "{message}");
    assert!(is_disrupted(&ended["status"]), "{ended}");
    pressure_ends(&cluster, "DiskPressure");
    too_many_files(&cluster);
    let neighbour = pod(&cluster, "neighbour");
    assert_eq!(
        neighbour["status"]["containerStatuses"][0]["restartCount"],
        0
    );
    assert_eq!(neighbour["status"]["phase"], "Running");
    // The store accepts writes again.
    let map = ["create", "configmap", "after", "--from-literal=a=b"];
    cluster.kubectl(&map).success();
}

fn too_many_files(cluster: &Cluster) {
    // Most of them are known when the others make the node short: usage is not measured all the time.
    let make = |count: u32| format!("while [ $i -lt {count} ]; do : > /file-$i; i=$((i+1)); done");
    let hoard = format!(
        "i=0; {}; /bin/busybox sleep 30; {}; {SLEEP}",
        make(10_000),
        make(16_000)
    );
    create(cluster, "hoarder", &hoard, json!({}), json!({}));
    let ended = shows(cluster, "hoarder", "its eviction", |status| {
        status["reason"] == "Evicted"
    });
    let message = ended["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("inodes"), "{message}");
    pressure_ends(cluster, "DiskPressure");
}

/// Waits until a condition of the node is False.
fn pressure_ends(cluster: &Cluster, kind: &str) {
    eventually("the pressure to end", || {
        let node = cluster.get(&["node", "one"]);
        let conditions = node["status"]["conditions"].as_array();
        let mut pressed = conditions.into_iter().flatten();
        match pressed.find(|c| c["type"] == kind) {
            Some(condition) if condition["status"] == "False" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}
