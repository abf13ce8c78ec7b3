//! A cluster whose pods are connected by CNI plugins, Debian's own, instead of the built-in network.

use std::{fs, path::PathBuf};

use e2e::ready_pods;
use serde_json::json;
use testkit::{Cluster, eventually};

const IMAGE: &str = "mainstay.local/hello";

/// A directory that is gone when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("mainstay-cni-{}", std::process::id()));
        fs::create_dir_all(path.join("conf")).expect("a directory");
        Self(path)
    }

    /// Addresses that are given out.
    fn leases(&self) -> usize {
        let entries = fs::read_dir(self.0.join("leases/pods"));
        let names = entries.into_iter().flatten().flatten();
        let is_address = |name: &str| name.starts_with("10.");
        names
            .filter(|entry| is_address(&entry.file_name().to_string_lossy()))
            .count()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn pods_of_plugins_serve_each_other_and_leave_no_lease() {
    let dir = Dir::new();
    let conf = dir.0.join("conf");
    let network = json!({
        "name": "pods", "cniVersion": "1.0.0",
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local", "dataDir": dir.0.join("leases"),
                "ranges": [[{ "subnet": "10.42.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    fs::write(conf.join("10-pods.conflist"), network.to_string()).expect("a file");
    let conf = conf.display().to_string();
    let flags = ["--cni-conf-dir", &conf, "--cni-bin-dir", "/usr/lib/cni"];
    let mut cluster = Cluster::up_with(&flags);
    let create = [
        "create",
        "deployment",
        "web",
        "--image",
        IMAGE,
        "--replicas=2",
    ];
    cluster.kubectl(&create).success();
    let expose = [
        "expose",
        "deployment",
        "web",
        "--port=80",
        "--target-port=8080",
    ];
    cluster.kubectl(&expose).success();
    for pod in ready_pods(&cluster, "app=web", 2) {
        let address = pod["status"]["podIP"].as_str().unwrap_or_default();
        assert!(address.starts_with("10.42.0."), "{address:?}");
    }
    cluster
        .kubectl(&["run", "caller", "--image", IMAGE, "--", "sleep"])
        .success();
    ready_pods(&cluster, "run=caller", 1);
    assert_eq!(dir.leases(), 3);
    let get = [
        "exec",
        "caller",
        "--",
        "/mainstay",
        "hello",
        "get",
        "http://web/",
    ];
    eventually("an answer by the service's name", || {
        let ran = cluster.kubectl(&get);
        if ran.ok && ran.stdout.starts_with("web-") {
            Ok(())
        } else {
            Err(ran.stderr)
        }
    });
    cluster.kubectl(&["delete", "pod", "caller"]).success();
    eventually("its lease to be free", || match dir.leases() {
        2 => Ok(()),
        other => Err(format!("{other} leases")),
    });
    let removed = cluster.reset().success();
    assert!(removed.contains("2 attachments"), "{removed}");
    assert_eq!(dir.leases(), 0);
}
