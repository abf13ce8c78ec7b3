//! The cluster's objects: backup and restore, and an etcd store.

use std::process::{Child, Stdio};

use e2e::container_ids;
use testkit::{Agent, Cluster, Lan, eventually};

fn revision(cluster: &Cluster, name: &str) -> u64 {
    let object = cluster.get(&["configmap", name]);
    let version = object["metadata"]["resourceVersion"].as_str();
    version
        .and_then(|text| text.parse().ok())
        .expect("a number")
}

fn create(cluster: &Cluster, name: &str) {
    let literal = format!("--from-literal=name={name}");
    cluster
        .kubectl(&["create", "configmap", name, &literal])
        .success();
}

#[test]
fn a_backup_of_a_running_cluster_comes_back_and_goes_on_from_later_revisions() {
    let mut cluster = Cluster::up();
    create(&cluster, "before");
    let file = cluster.machine().disk().join("backup");
    let file = file.to_str().expect("a path");
    let said = cluster.mainstay(&["backup", file]).success();
    assert!(said.contains("Wrote revision "), "{said}");
    create(&cluster, "after");
    let last = revision(&cluster, "after");

    let refused = cluster.mainstay(&["restore", file]);
    assert!(
        !refused.ok && refused.stderr.contains("already running"),
        "{}",
        refused.stderr
    );
    cluster.stop();
    let refused = cluster.mainstay(&["restore", file]);
    assert!(
        !refused.ok && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    let said = cluster.mainstay(&["restore", file, "--force"]).success();
    assert!(said.contains("store.before-restore-1"), "{said}");
    cluster.start();
    assert_eq!(
        cluster.get(&["configmap", "before"])["data"]["name"],
        "before"
    );
    let gone = cluster.kubectl(&["get", "configmap", "after"]);
    assert!(gone.stderr.contains("NotFound"), "{}", gone.stderr);
    create(&cluster, "later");
    assert!(revision(&cluster, "later") > last);
}

#[test]
fn a_backup_on_an_empty_machine_is_the_same_cluster() {
    let mut lost = Cluster::up();
    create(&lost, "kept");
    let directory = lost.machine().dir().to_owned();
    let (file, password) = (directory.join("backup"), directory.join("password"));
    std::fs::write(&password, "correct horse\n").expect("a file");
    let [file, password] = [&file, &password].map(|path| path.to_str().expect("a path"));
    let encrypted = ["--password-file", password];
    let said = lost.mainstay(&["backup", file, encrypted[0], encrypted[1]]);
    assert!(said.success().contains("encrypted"));
    let token = lost.kubectl(&["create", "token", "default"]).success();
    let kubeconfig = lost.kubeconfig().display().to_string();
    let admin = lost.machine().run("cat", &[&kubeconfig]).success();
    lost.stop();

    // Another, empty machine. Machines without a LAN have the same address.
    let mut found = Cluster::stopped(&[]);
    let refused = found.mainstay(&["restore", file]);
    assert!(
        refused.stderr.contains("is encrypted"),
        "{}",
        refused.stderr
    );
    let said = found.mainstay(&["restore", file, encrypted[0], encrypted[1]]);
    assert!(said.success().starts_with("Restored "));
    // A restored store can be reset before the first start.
    found.mainstay(&["reset", "--yes"]).success();
    let said = found.mainstay(&["restore", file, encrypted[0], encrypted[1]]);
    assert!(said.success().starts_with("Restored "));
    found.start();
    assert_eq!(found.get(&["configmap", "kept"])["data"]["name"], "kept");
    // The old administrator's certificate and service account tokens are still valid.
    let old = found.machine().dir().join("old.kubeconfig");
    std::fs::write(&old, admin).expect("a file");
    let old = format!("--kubeconfig={}", old.display());
    found.kubectl(&[&old, "get", "nodes"]).success();
    let bearer = format!("--token={}", token.trim());
    let who = found
        .kubectl(&[
            "--kubeconfig=/dev/null",
            "--server=https://192.168.77.2:6443",
            "--insecure-skip-tls-verify",
            &bearer,
            "auth",
            "whoami",
        ])
        .success();
    assert!(
        who.contains("system:serviceaccount:default:default"),
        "{who}"
    );
}

/// A pod of the agent, made now: its kubelet follows the server.
fn run_on_agent(cluster: &Cluster, name: &str) -> serde_json::Value {
    let overrides = r#"--overrides={"spec": {"nodeName": "two"}}"#;
    let image = "--image=mainstay.local/hello";
    let label = format!("--labels=app={name}");
    cluster
        .kubectl(&["run", name, image, &label, overrides])
        .success();
    let pods = e2e::ready_pods(cluster, &format!("app={name}"), 1);
    pods[0].clone()
}

#[test]
fn a_restored_server_keeps_its_ranges_and_its_nodes_follow_it() {
    let lan = Lan::new();
    let mut cluster = Cluster::on_lan(&lan, &["--service-cidr", "10.60.0.0/16"]);
    let mut two = Agent::on_lan(&lan, 0, 3, "two");
    two.start(&cluster.join_flags());
    cluster.ready_nodes(2);
    let before = run_on_agent(&cluster, "before");
    let file = cluster.machine().dir().join("backup");
    let file = file.display().to_string();
    cluster.mainstay(&["backup", &file]).success();
    cluster.kill();
    let address = lan.address(0, 2);
    let up = ["up", "--node-name", "one", "--node-ip", &address];
    let refuses_other_ranges = |cluster: &Cluster, more: &[&str]| {
        let refused = cluster.mainstay(&[&up[..], more].concat());
        let expected = "start with --service-cidr 10.60.0.0/16";
        assert!(
            !refused.ok && refused.stderr.contains(expected),
            "{refused:?}"
        );
    };
    refuses_other_ranges(&cluster, &["--service-cidr", "10.61.0.0/16"]);

    // As on an empty machine with the name and address of the lost one.
    cluster.reset().success();
    cluster.mainstay(&["restore", &file]).success();
    refuses_other_ranges(&cluster, &[]);
    cluster.start();
    cluster.ready_nodes(2);
    let after = run_on_agent(&cluster, "after");
    let still = &e2e::ready_pods(&cluster, "app=before", 1)[0];
    assert_eq!(still["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(container_ids(still), container_ids(&before));
    cluster.kubectl(&["logs", &e2e::name(&after)]).success();

    // A node's directory is no server's, and the reverse.
    two.stop();
    let data = two.data_dir().display().to_string();
    let binary = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    let up = ["up", "--data-dir", &data];
    let refused = two.machine().run(&binary, &up).stderr;
    let expected = "has joined a cluster as node \"two\"";
    assert!(refused.contains(expected), "{refused}");
    cluster.stop();
    let refused = cluster.mainstay(&["agent", "--server", "https://one:6443"]);
    let expected = "is a server of a cluster";
    assert!(refused.stderr.contains(expected), "{refused:?}");
}

/// Debian's etcd on the machine's loopback, killed when dropped.
struct Etcd(Child);

impl Etcd {
    fn start(cluster: &Cluster) -> Self {
        let mut command = cluster.machine().command("etcd");
        command
            .arg("--data-dir")
            .arg(cluster.machine().disk().join("etcd"))
            .args(["--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(
            command
                .spawn()
                .expect("etcd is installed (make test does it)"),
        )
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_over_etcd_runs_pods_and_survives_kill_9() {
    let endpoints = "http://127.0.0.1:1,http://localhost:2379";
    let mut cluster = Cluster::stopped(&["--store", "etcd", "--etcd-endpoints", endpoints]);
    let _etcd = Etcd::start(&cluster);
    eventually("etcd to answer", || {
        let connect = ["-c", "exec 3<>/dev/tcp/127.0.0.1/2379"];
        let ran = cluster.machine().run("bash", &connect);
        if ran.ok { Ok(()) } else { Err(ran.stderr) }
    });
    cluster.start();
    cluster
        .kubectl(&[
            "create",
            "deployment",
            "web",
            "--image=mainstay.local/hello",
        ])
        .success();
    e2e::ready_pods(&cluster, "app=web", 1);
    let before = cluster.get(&["deployment", "web"])["metadata"]["uid"].clone();

    let store = cluster.data_dir().join("store");
    let listed = cluster
        .machine()
        .run("ls", &[store.to_str().expect("a path")]);
    assert!(!listed.ok, "nothing is kept beside etcd: {}", listed.stdout);
    let file = cluster.machine().disk().join("backup");
    let refused = cluster.mainstay(&["backup", file.to_str().expect("a path")]);
    assert!(
        !refused.ok && refused.stderr.contains("etcdctl"),
        "{}",
        refused.stderr
    );

    cluster.kill();
    cluster.start();
    assert_eq!(
        cluster.get(&["deployment", "web"])["metadata"]["uid"],
        before
    );
    e2e::ready_pods(&cluster, "app=web", 1);
}
