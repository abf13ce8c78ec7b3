//! The process that shims are forked from: nothing of it reaches a container, and it is replaced when it ends.

use std::{fs, os::unix::fs::MetadataExt};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{Node, container_config, sandbox_config};

/// The only child of the daemon that is a zygote.
fn zygote(node: &Node) -> i32 {
    let zygotes = zygotes(node.daemon_pid().cast_signed());
    assert_eq!(zygotes.len(), 1, "{zygotes:?}");
    zygotes[0]
}

fn zygotes(daemon: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{daemon}/task")).unwrap() {
        let children = fs::read_to_string(task.unwrap().path().join("children"));
        let children = children.unwrap_or_default();
        let pids = children.split(' ').filter_map(|pid| pid.parse().ok());
        found.extend(pids.filter(|pid| is_zygote(*pid)));
    }
    found
}

fn is_zygote(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end() == "mainstay-zygote"
}

fn descriptors(pid: i32) -> Vec<(u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut all: Vec<(u32, String)> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let target = fs::read_link(entry.path()).unwrap();
            let number = entry.file_name().into_string().unwrap().parse().unwrap();
            (number, target.display().to_string())
        })
        .collect();
    all.sort();
    all
}

/// A line of `/proc/PID/status`.
fn status(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().trim_matches([':', '\t', ' ']).to_owned()
}

fn bits(pid: i32, name: &str) -> u64 {
    u64::from_str_radix(&status(pid, name), 16).unwrap()
}

fn namespace(pid: i32, kind: &str) -> u64 {
    fs::metadata(format!("/proc/{pid}/ns/{kind}"))
        .unwrap()
        .ino()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_zygote_or_of_other_pods_is_in_a_container() {
    let node = Node::start().await;
    let mut pods = Vec::new();
    for name in ["first", "second"] {
        let pod = node.run_sandbox(sandbox_config(&node, name)).await;
        let container = node.run(&pod, container_config(name, &["sleep"])).await;
        pods.push((pod, container));
    }
    let zygote = zygote(&node);
    // Its socket, twice, and no stream, lock or namespace of a pod.
    let held = descriptors(zygote);
    let (sockets, others): (Vec<_>, Vec<_>) = held
        .iter()
        .partition(|(_, target)| target.starts_with("socket:"));
    assert_eq!(sockets.len(), 2, "{held:?}");
    assert!(
        others
            .iter()
            .all(|(fd, target)| *fd < 3 && target == "/dev/null"),
        "{held:?}"
    );
    assert_eq!(
        fs::read_to_string(format!("/proc/{zygote}/cgroup")).unwrap(),
        fs::read_to_string(format!("/proc/{}/cgroup", node.daemon_pid())).unwrap()
    );
    for ((_, container), (other, _)) in pods.iter().zip(pods.iter().rev()) {
        let pid = node.pid(container).await;
        let held = descriptors(pid);
        let numbers: Vec<u32> = held.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2], "{held:?}");
        for kind in ["mnt", "pid", "net", "ipc", "uts"] {
            assert_ne!(namespace(pid, kind), namespace(zygote, kind), "{kind}");
        }
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        assert!(!mounts.contains(other.as_str()), "{mounts}");
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        for line in cgroups.lines() {
            let (hierarchy, path) = line.rsplit_once(':').unwrap();
            // A controller that is not mounted has only the root cgroup, and in hierarchies of service managers
            // containers are with their shim.
            let is_managers = hierarchy.contains("name=") || hierarchy == "0:";
            let may = path.contains(container.as_str())
                || path == "/"
                || is_managers && path == format!("/{}/shims", node.cgroup());
            assert!(may, "{line}");
        }
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            let (own, all) = (bits(pid, set), bits(zygote, set));
            assert!(own & !all == 0 && own != all, "{set}: {own:x} of {all:x}");
        }
        assert_eq!((bits(pid, "CapInh"), bits(pid, "CapAmb")), (0, 0));
        // The zygote ignores the ends of its children, and no program does so by itself.
        let of_child = 1 << (Signal::SIGCHLD as u32 - 1);
        let ignores = |pid| bits(pid, "SigIgn") & of_child != 0;
        assert_eq!((ignores(zygote), ignores(pid)), (true, false));
    }
    for shim in node.shim_pids() {
        assert_ne!(status(shim, "PPid"), zygote.to_string());
        let held = descriptors(shim);
        // The locked orders, which only the shim holds.
        let orders = held
            .iter()
            .filter(|(_, target)| target.ends_with("/shim.json"));
        assert_eq!(orders.count(), 1, "{held:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zygote_that_is_killed_is_replaced_and_one_ends_with_its_daemon() {
    let mut node = Node::start().await;
    let daemon = node.daemon_pid().cast_signed();
    assert!(
        zygotes(daemon).is_empty(),
        "there is none before the first pod"
    );
    let pod = node.run_sandbox(sandbox_config(&node, "before")).await;
    let container = node.run(&pod, container_config("before", &["sleep"])).await;
    let first = zygote(&node);
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    // Until then it may take the message of a pod with it, whose creation fails and is tried again by its client.
    node.wait_for("the end of the zygote", || {
        status(first, "State").starts_with('Z')
    })
    .await;
    node.run_sandbox(sandbox_config(&node, "after")).await;
    let second = zygote(&node);
    assert_ne!(first, second);
    let program = |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).unwrap().ino();
    let sealed = program(second);
    // Its pods stay.
    let command = ["/mainstay", "hello", "exit", "3"];
    assert_eq!(node.exec(&container, &command).await.exit_code, 3);
    node.terminate_daemon().await;
    node.wait_for("the end of the zygote", || !is_zygote(second))
        .await;
    node.launch().await;
    node.run_sandbox(sandbox_config(&node, "later")).await;
    assert_ne!(
        program(zygote(&node)),
        sealed,
        "each daemon has its own copy"
    );
    assert_eq!(node.exec(&container, &command).await.exit_code, 3);
}
