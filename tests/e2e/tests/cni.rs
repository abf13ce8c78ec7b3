//! CNI in both directions: Debian's plugins connect the pods of the built-in runtime, and the
//! built-in network, as a plugin, connects the pods of Debian's containerd.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use e2e::{busybox_archive, pause_archive, ready_pods};
use serde_json::{Value, json};
use testkit::{Cluster, Containerd, eventually};

const IMAGE: &str = "mainstay.local/hello";

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("mainstay-cni-{}", std::process::id()));
        fs::create_dir_all(path.join("conf")).expect("a directory");
        Self(path)
    }

    /// The number of assigned addresses.
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

const BUSYBOX: &str = "local.test/busybox:1";

/// A pod of containerd.
fn pod(name: &str, script: &str, ports: &Value) -> Value {
    let container = json!({
        "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "ports": ports,
        "command": ["/bin/busybox", "sh", "-c", script],
    });
    let labels = json!({"app": name});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}})
}

fn create(cluster: &Cluster, object: &Value) {
    let created = cluster.kubectl_stdin(&["create", "-f", "-"], &object.to_string());
    created.success();
}

/// Waits until a connection from a pod succeeds, or fails.
fn reaches(cluster: &Cluster, address: &str, port: u16, wanted: bool) {
    let get = format!(
        "/bin/busybox printf 'GET / HTTP/1.0\\r\\n\\r\\n' | /bin/busybox nc -w 2 {address} {port}"
    );
    let exec = ["exec", "caller", "--", "/bin/busybox", "sh", "-c", &get];
    eventually(
        &format!("caller to reach {address}:{port}: {wanted}"),
        || {
            let ran = cluster.kubectl(&exec);
            if ran.stdout.ends_with("served\n") == wanted {
                Ok(())
            } else {
                Err(format!("{} {}", ran.stdout, ran.stderr))
            }
        },
    );
}

#[test]
fn pods_of_containerd_are_in_the_built_in_network() {
    let mut cluster = Cluster::stopped(&[]);
    let directory = cluster.machine().dir().to_owned();
    let plugins = directory.join("plugins");
    fs::create_dir_all(&plugins).expect("a directory");
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary under test");
    symlink(&binary, plugins.join("mainstay")).expect("a link");
    // containerd runs this plugin for every pod's loopback.
    symlink("/usr/lib/cni/loopback", plugins.join("loopback")).expect("a link");
    let network = json!({"cniVersion": "1.0.0", "name": "mainstay", "plugins": [{
        "type": "mainstay", "dataDir": cluster.data_dir(),
        "capabilities": {"portMappings": true, "bandwidth": true},
    }]});
    let (pause, name) = pause_archive(&directory.join("pause"));
    let containerd = Containerd::with_network(
        cluster.machine(),
        &pause,
        name,
        &network.to_string(),
        &plugins,
    );
    containerd.import(&busybox_archive(&directory));
    cluster.add_flag("--container-runtime-endpoint", &containerd.endpoint());
    cluster.start();

    let serve = "echo served >/tmp/index.html; exec /bin/busybox httpd -f -p 8080 -h /tmp";
    let ports = json!([{"containerPort": 8080, "hostPort": 18080}]);
    let serve = format!("/bin/busybox mkdir -p /tmp; {serve}");
    create(&cluster, &pod("web", &serve, &ports));
    let sleep = "exec /bin/busybox sleep 10000";
    create(&cluster, &pod("caller", sleep, &json!([])));
    let expose = "expose pod web --port 80 --target-port 8080".split(' ');
    cluster.kubectl(&expose.collect::<Vec<_>>()).success();
    for name in ["web", "caller"] {
        let pods = ready_pods(&cluster, &format!("app={name}"), 1);
        let address = pods[0]["status"]["podIP"].as_str().unwrap_or_default();
        assert!(address.starts_with("10.42.0."), "{address:?}");
    }
    // By the Service, and by the node port.
    let service = cluster.get(&["service", "web"]);
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    reaches(&cluster, address, 80, true);
    reaches(&cluster, cluster.machine().address(), 18080, true);

    let deny = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "deny"}, "spec": {"podSelector": {"matchLabels": {"app": "web"}}}});
    create(&cluster, &deny);
    reaches(&cluster, address, 80, false);
    cluster
        .kubectl(&["delete", "networkpolicy", "deny"])
        .success();
    reaches(&cluster, address, 80, true);

    // A crash of the daemon changes no pod's address, and deleted pods release theirs.
    cluster.kill();
    cluster.start();
    reaches(&cluster, address, 80, true);
    let prefix = format!(" m{:.8}", cluster.id());
    let links = || {
        let listed = cluster.machine().run("ip", &["-o", "link"]).success();
        listed.matches(&prefix).count()
    };
    assert_eq!(links(), 2);
    let all = ["delete", "pods", "--all", "--wait"];
    cluster.kubectl(&all).success();
    eventually("no link of a pod to be left", || match links() {
        0 => Ok(()),
        left => Err(format!("{left} links")),
    });
}
