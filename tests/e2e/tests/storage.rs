//! A database on a new cluster: a StatefulSet with a claim template gets a volume of the default
//! class, its data survives the pod and the daemon, and is deleted with the claim.

use std::path::PathBuf;

use e2e::ready_pods;
use testkit::{Cluster, eventually};

const SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: mainstay.local/hello
        args: [sleep, "360841"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Gi}}
"#;

fn hello(cluster: &Cluster, args: &[&str]) -> Result<String, String> {
    let ran = e2e::hello(cluster, "db-0", args);
    if ran.ok {
        Ok(ran.stdout)
    } else {
        Err(ran.stderr)
    }
}

#[test]
fn the_data_of_a_stateful_set_outlives_its_pod_and_the_daemon_and_goes_with_its_claim() {
    let mut cluster = Cluster::up();
    let class = cluster.get(&["storageclass", "local-path"]);
    assert_eq!(class["provisioner"], "mainstay.dev/local-path");
    cluster.kubectl_stdin(&["apply", "-f", "-"], SET).success();
    ready_pods(&cluster, "app=db", 1);
    let claim = cluster.get(&["pvc", "data-db-0"]);
    assert_eq!(claim["status"]["phase"], "Bound", "{claim}");
    let name = claim["spec"]["volumeName"]
        .as_str()
        .expect("a volume")
        .to_owned();
    let volume = cluster.get(&["pv", &name]);
    let path = volume["spec"]["local"]["path"].as_str().expect("a path");
    let path = PathBuf::from(path);
    hello(&cluster, &["write", "/data/row", "first"]).expect("written");
    assert!(exists(&cluster, &path.join("row")), "{}", path.display());

    the_pod_is_deleted(&cluster);
    cluster.kill();
    cluster.start();
    the_pod_is_deleted(&cluster);

    cluster.kubectl(&["delete", "statefulset", "db"]).success();
    cluster.kubectl(&["delete", "pvc", "data-db-0"]).success();
    eventually("the volume is gone", || {
        let ran = cluster.kubectl(&["get", "pv", &name]);
        if ran.ok { Err(ran.stdout) } else { Ok(()) }
    });
    assert!(!exists(&cluster, &path), "{}", path.display());
}

/// Whether a file exists as seen from the cluster's machine.
fn exists(cluster: &Cluster, path: &std::path::Path) -> bool {
    let path = path.display().to_string();
    cluster.machine().run("test", &["-e", &path]).ok
}

/// The next pod finds what the last one wrote.
fn the_pod_is_deleted(cluster: &Cluster) {
    let before = cluster.get(&["pod", "db-0"]);
    cluster.kubectl(&["delete", "pod", "db-0"]).success();
    eventually("another pod", || {
        let ran = cluster.kubectl(&["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"]);
        let uid = before["metadata"]["uid"].as_str().unwrap_or_default();
        if ran.ok && !ran.stdout.is_empty() && ran.stdout != uid {
            Ok(())
        } else {
            Err(format!("{ran:?}"))
        }
    });
    ready_pods(cluster, "app=db", 1);
    let row = eventually("the data", || hello(cluster, &["cat", "/data/row"]));
    assert_eq!(row.trim(), "first");
}
