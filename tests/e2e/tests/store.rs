//! The cluster's objects: backup and restore, and an etcd store.

use std::process::{Child, Stdio};

use testkit::{Cluster, eventually};

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
