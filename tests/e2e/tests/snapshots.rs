//! A cluster loses all servers and its etcd. A snapshot of etcd and the server token bring it back with its identity;
//! its node, which ran meanwhile and has seen later revisions, follows the objects of the snapshot.

use std::process::Command;

use e2e::container_ids;
use serde_json::{Value, json};
use testkit::{Agent, Etcd, Lan, Machine, Ran, Server, eventually};

/// etcd's client from Debian's package etcd-client.
fn etcdctl() -> Option<String> {
    let program = std::env::var("MAINSTAY_ETCDCTL").unwrap_or_else(|_| "etcdctl".to_owned());
    let ran = Command::new(&program).arg("version").output();
    ran.is_ok_and(|ran| ran.status.success()).then_some(program)
}

/// A server with etcd on its machine, and a node.
struct Site {
    // Fields are dropped in this order: machines before their network.
    node: Agent,
    server: Server,
    etcd: Etcd,
    etcdctl: String,
    _lan: Lan,
}

impl Site {
    fn new(etcdctl: String) -> Self {
        let lan = Lan::new();
        let machine = Machine::on(&lan, &lan.address(0, 2));
        let mut etcd = Etcd::on(&[&machine]);
        etcd.start(0, &machine);
        let mut server = Server::stopped(machine, "s0", &etcd.flags());
        server.start();
        let line = server.mainstay(&["token", "create"]).success();
        let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
        let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let mut node = Agent::on_lan(&lan, 0, 9, "node");
        node.start(&join);
        Self {
            node,
            server,
            etcd,
            etcdctl,
            _lan: lan,
        }
    }

    fn snapshot(&self, words: &[&str]) -> Ran {
        let [authority, certificate, key] = self.etcd.client_files();
        let endpoints = self.etcd.urls().join(",");
        let flags = [
            ["--endpoints", &endpoints],
            ["--cacert", &authority],
            ["--cert", &certificate],
            ["--key", &key],
        ];
        let flags: Vec<&str> = flags.into_iter().flatten().collect();
        let words = [&flags[..], &["snapshot"], words].concat();
        self.server.machine().run(&self.etcdctl, &words)
    }

    /// Everything on the server's machine is lost, and etcd is restored there.
    fn lose_and_restore(&mut self, file: &str) {
        self.server.kill();
        self.etcd.kill(0);
        let data = self.server.data_dir().display().to_string();
        let members = self.etcd.data_dir(self.server.machine());
        let members = members.display().to_string();
        let lost = ["-rf", data.as_str(), members.as_str()];
        self.server.machine().run("rm", &lost).success();
        let peer = format!("https://{}:2380", self.server.machine().address());
        let all = format!("m0={peer}");
        let restore = ["restore", file, "--data-dir", &members, "--name", "m0"];
        let identity = ["--initial-cluster", &all];
        let own = ["--initial-advertise-peer-urls", &peer];
        self.snapshot(&[&restore[..], &identity, &own].concat())
            .success();
        self.etcd.start(0, self.server.machine());
    }

    fn get(&self, words: &[&str]) -> Value {
        eventually(&format!("{words:?}"), || {
            let words = [&["get"], words, &["-o", "json"]].concat();
            let ran = self.server.kubectl(&words);
            serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)
        })
    }

    /// Runs a Deployment with a Service; returns its pod.
    fn deploy(&self, name: &str) -> Value {
        let image = "--image=mainstay.local/hello";
        let create = ["create", "deployment", name, image];
        self.server.kubectl(&create).success();
        let expose = ["expose", "deployment", name];
        let ports = ["--port=80", "--target-port=8080"];
        self.server
            .kubectl(&[&expose[..], &ports].concat())
            .success();
        self.ready_pod(name)
    }

    fn ready_pod(&self, name: &str) -> Value {
        let selector = format!("app={name}");
        eventually(&format!("a ready pod of {name}"), || {
            let list = self.get(&["pods", "-l", &selector]);
            let pods = list["items"].as_array().into_iter().flatten();
            let ready = pods.clone().find(|pod| e2e::is_ready(pod));
            ready.cloned().ok_or_else(|| list.to_string())
        })
    }

    /// Connects from a pod to a Service by its name.
    fn reach(&self, from: &Value, service: &str) {
        let (pod, url) = (e2e::name(from), format!("http://{service}/"));
        eventually(&format!("{url} from {pod}"), || {
            let words = ["exec", &pod, "--", "/mainstay", "hello", "get", &url];
            let ran = self.server.kubectl(&words);
            if ran.ok { Ok(()) } else { Err(ran.stderr) }
        });
    }

    /// How many pods' network namespaces the node has.
    fn sandboxes(&self) -> usize {
        let list = "ls -d /run/mainstay/*/s/*/net 2>/dev/null || true";
        let listed = self.node.machine().run("sh", &["-c", list]).success();
        listed.lines().count()
    }
}

#[test]
fn a_snapshot_of_etcd_and_the_server_token_bring_back_the_cluster() {
    let Some(etcdctl) = etcdctl() else {
        reference::skip("needs etcdctl (MAINSTAY_ETCDCTL)");
        return;
    };
    let mut site = Site::new(etcdctl);
    let before = site.deploy("kept");
    let secret = ["create", "secret", "generic", "kept", "--from-literal=a=b"];
    site.server.kubectl(&secret).success();
    let kept = site.get(&["secret", "kept"]);
    let account = ["create", "token", "default"];
    let account = site.server.kubectl(&account).success();
    let admin = site.server.machine().dir().join("earlier.kubeconfig");
    std::fs::write(&admin, site.server.kubeconfig()).expect("a file");
    let token = site.server.mainstay(&["token", "server"]).success();
    let file = site.server.machine().dir().join("snapshot");
    let file = file.display().to_string();
    site.snapshot(&["save", &file]).success();

    // The node sees revisions that the snapshot does not have.
    site.deploy("lost");
    assert_eq!(site.sandboxes(), 2);
    site.lose_and_restore(&file);
    let refused = site.server.refused().stderr;
    assert!(refused.contains("does not belong to"), "{refused}");
    site.server.set_flag("--server-token", token.trim());
    site.server.start();
    identities_are_valid(&site, &admin, account.trim());
    let restored = site.get(&["secret", "kept"]);
    assert_eq!(restored, kept);
    node_follows(&site, &before);
}

/// The administrator's certificate and the token of a service account are those of the same cluster.
fn identities_are_valid(site: &Site, admin: &std::path::Path, account: &str) {
    let admin = format!("--kubeconfig={}", admin.display());
    site.server.kubectl(&[&admin, "get", "nodes"]).success();
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": account},
    });
    let file = site.server.machine().dir().join("review.json");
    std::fs::write(&file, review.to_string()).expect("a file");
    let file = file.display().to_string();
    let create = ["create", "-f", &file, "-o", "json"];
    let answer = site.server.kubectl(&create).success();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["status"]["authenticated"], true, "{answer}");
}

/// The node is Ready, its pod of the snapshot was not touched, the later one is removed, and new pods and Services
/// arrive.
fn node_follows(site: &Site, before: &Value) {
    eventually("the node to be Ready", || {
        let node = site.get(&["node", "node"]);
        match testkit::is_ready(&node) {
            true => Ok(()),
            false => Err(node["status"]["conditions"].to_string()),
        }
    });
    eventually("the later pod to be removed", || match site.sandboxes() {
        1 => Ok(()),
        count => Err(format!("{count} pods")),
    });
    let new = site.deploy("new");
    site.reach(&new, "kept");
    let kept = site.ready_pod("kept");
    site.reach(&kept, "new");
    assert_eq!(kept["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(container_ids(&kept), container_ids(before));
}
