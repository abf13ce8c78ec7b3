//! Containers created by other OCI runtimes, chosen by the RuntimeClass handler.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

async fn lives_and_dies_with(handler: &str) {
    let node = Node::with_handlers(&["runc=/usr/sbin/runc", "crun=/usr/bin/crun"]).await;
    let request = v1::RunPodSandboxRequest {
        config: Some(sandbox_config(&node, handler)),
        runtime_handler: handler.into(),
    };
    let pod = node
        .cri
        .clone()
        .runtime
        .run_pod_sandbox(request)
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let web = node.create(&pod, container_config("web", &[])).await;
    node.try_start(&web).await.unwrap();
    node.wait_for("the server", || !node.log(handler, "web").is_empty())
        .await;
    let answer = node
        .exec(
            &web,
            &["/mainstay", "hello", "get", "http://127.0.0.1:8080/"],
        )
        .await;
    assert_eq!(
        answer.stdout,
        format!("{handler}\n").as_bytes(),
        "{answer:?}"
    );
    assert_eq!(
        node.exec(&web, &["/mainstay", "hello", "exit", "4"])
            .await
            .exit_code,
        4
    );
    let short = node
        .run(&pod, container_config("short", &["exit", "6"]))
        .await;
    assert_eq!(node.wait_exit(&short).await.exit_code, 6);
    let mut config = container_config("missing", &[]);
    config.command = vec!["/no/such".into()];
    let missing = node.create(&pod, config).await;
    let refused = node.try_start(&missing).await.unwrap_err();
    assert!(refused.message().contains("/no/such"), "{refused}");
    node.stop(&web, 10).await;
    assert_eq!(node.status(&web).await.exit_code, 0);
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runc_runs_containers() {
    lives_and_dies_with("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crun_runs_containers() {
    let _split = AllSplit::make();
    lives_and_dies_with("crun").await;
}

/// crun rejects a machine with controllers in both cgroup v1 and v2. While this value lives, a
/// process of ours holds a mount namespace in which all controllers are in v1 hierarchies.
struct AllSplit {
    holder: std::process::Child,
    _lock: std::fs::File,
}

impl AllSplit {
    /// `None` if all controllers are of one version.
    fn make() -> Option<Self> {
        let beside = Path::new("/sys/fs/cgroup/unified");
        let lock = std::fs::File::open(beside).ok()?;
        // The tests of `libcgroups` use this tree, too.
        lock.lock().unwrap();
        let names = std::fs::read_to_string(beside.join("cgroup.controllers")).unwrap();
        let mut script = String::from("set -e; mount -t tmpfs tmpfs /mnt; ");
        for name in names.split_whitespace() {
            script += &format!("mkdir /mnt/{name}; mount -t cgroup -o {name} {name} /mnt/{name}; ");
        }
        script += "echo ready; read _";
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = holder.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "controllers could not be moved");
        Some(Self {
            holder,
            _lock: lock,
        })
    }
}

impl Drop for AllSplit {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_handler_is_refused() {
    let node = Node::start().await;
    let request = v1::RunPodSandboxRequest {
        config: Some(sandbox_config(&node, "x")),
        runtime_handler: "kata".into(),
    };
    let refused = node
        .cri
        .clone()
        .runtime
        .run_pod_sandbox(request)
        .await
        .unwrap_err();
    assert!(refused.message().contains("kata"), "{refused}");
    assert!(node.leftovers().is_empty());
}
