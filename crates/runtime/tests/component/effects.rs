//! Everything a pod requests beyond its own process is visible inside: CDI devices, groups, mount
//! propagation, namespaces, host names, swap.

use std::{fs, path::PathBuf};

use cri::v1;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::{
    registry::{
        Sample,
        daemon::{import, spec},
        image,
    },
    support::{Node, container_config, own_pids, sandbox_config},
};

pub(crate) fn security(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    let linux = config.linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap()
}

pub(crate) async fn run(node: &Node, container: &str, command: &[&str]) -> Result<String, String> {
    let output = node.exec(container, command).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match output.exit_code {
        0 => Ok(text(&output.stdout)),
        _ => Err(text(&output.stderr)),
    }
}

pub(crate) async fn hello(node: &Node, container: &str, args: &[&str]) -> Result<String, String> {
    let command: Vec<&str> = ["/mainstay", "hello"].iter().chain(args).copied().collect();
    run(node, container, &command).await
}

/// A busybox image with users and groups.
async fn busybox(node: &Node) {
    busybox_with(node, &[]).await;
}

/// The same with symbolic links in it: names and targets.
pub(crate) async fn busybox_with(node: &Node, links: &[(&str, &str)]) {
    let binary = fs::read("/usr/bin/busybox")
        .or_else(|_| fs::read("/bin/busybox"))
        .unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, mode: u32, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        archive.append_data(&mut header, name, bytes).unwrap();
    };
    add("busybox", 0o755, &binary);
    add(
        "etc/passwd",
        0o644,
        b"root:x:0:0::/:\nada:x:1000:1000::/:\n",
    );
    add(
        "etc/group",
        0o644,
        b"ada:x:1000:\nvideo:x:44:ada\naudio:x:29:ada,bob\n",
    );
    for (name, target) in links {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        archive.append_link(&mut header, name, target).unwrap();
    }
    let plain = [archive.into_inner().unwrap()];
    let config = image(&plain, json!({ "Cmd": ["/busybox", "sleep", "1000"] })).config;
    import(node, Sample::docker_archive(&plain, &config, "box:1"))
        .await
        .unwrap();
}

pub(crate) fn in_busybox(name: &str) -> v1::ContainerConfig {
    let mut config = container_config(name, &[]);
    config.image = spec("box:1");
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_by_name_brings_its_node_environment_mount_and_groups() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("library"), "of the vendor").unwrap();
    // A device that no container has by default.
    let spec = json!({
        "cdiVersion": "0.6.0", "kind": "vendor.com/thing",
        "devices": [{
            "name": "one",
            "containerEdits": {
                "env": ["THING=1"],
                "deviceNodes": [{ "path": "/dev/thing", "hostPath": "/dev/kmsg", "permissions": "r" }],
                "mounts": [{
                    "hostPath": dir.path().join("library"), "containerPath": "/lib/thing", "options": ["ro"],
                }],
                "additionalGids": [44],
                "hooks": [{ "hookName": "createRuntime", "path": "/bin/touch", "args": ["touch", dir.path().join("hooked")] }],
            },
        }],
    });
    fs::write(dir.path().join("vendor.json"), spec.to_string()).unwrap();
    let node = Node::with_handlers(&[&format!("--cdi={}", dir.path().display())]).await;
    let pod = node.run_sandbox(sandbox_config(&node, "cdi")).await;
    let mut config = container_config("with", &["sleep"]);
    config.cdi_devices = vec![v1::CdiDevice {
        name: "vendor.com/thing=one".into(),
    }];
    let with = node.run(&pod, config.clone()).await;
    assert_eq!(hello(&node, &with, &["env", "THING"]).await.unwrap(), "1");
    assert_eq!(
        hello(&node, &with, &["cat", "/lib/thing"]).await.unwrap(),
        "of the vendor"
    );
    assert!(
        hello(&node, &with, &["write", "/lib/thing", "x"])
            .await
            .is_err()
    );
    let id = hello(&node, &with, &["id"]).await.unwrap();
    assert!(
        id.contains("Groups:\t0 44") || id.contains("Groups:\t44"),
        "{id}"
    );
    let node_of_it = hello(&node, &with, &["stat", "/dev/thing"]).await.unwrap();
    assert!(node_of_it.contains("character device"), "{node_of_it}");
    let denied = hello(&node, &with, &["write", "/dev/thing", "x"])
        .await
        .unwrap_err();
    assert!(
        denied.contains("not permitted"),
        "only reading is allowed: {denied}"
    );
    assert!(dir.path().join("hooked").exists(), "the vendor's hook ran");
    let without = node
        .run(&pod, container_config("without", &["sleep"]))
        .await;
    assert!(
        hello(&node, &without, &["stat", "/dev/thing"])
            .await
            .is_err()
    );
    config.cdi_devices[0].name = "vendor.com/thing=two".into();
    let refused = node.try_create(&pod, config).await.unwrap_err();
    assert!(
        refused.message().contains("vendor.com/thing=two"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_the_image_count_unless_the_pod_is_strict() {
    let node = Node::start().await;
    busybox(&node).await;
    let pod = node.run_sandbox(sandbox_config(&node, "groups")).await;
    for (policy, expected) in [
        (v1::SupplementalGroupsPolicy::Merge, "1000 29 44 5000"),
        (v1::SupplementalGroupsPolicy::Strict, "1000 5000"),
    ] {
        let mut config = in_busybox(policy.as_str_name());
        let context = security(&mut config);
        context.run_as_user = Some(v1::Int64Value { value: 1000 });
        context.supplemental_groups = vec![5000];
        context.supplemental_groups_policy = policy.into();
        let container = node.run(&pod, config).await;
        let groups = run(&node, &container, &["/busybox", "id", "-G"])
            .await
            .unwrap();
        let mut groups: Vec<&str> = groups.split(' ').collect();
        groups[1..].sort_unstable();
        assert_eq!(groups.join(" "), expected);
        let user = node.status(&container).await.user.unwrap().linux.unwrap();
        assert_eq!(user.uid, 1000);
        assert_eq!(user.supplemental_groups.len(), expected.split(' ').count());
    }
}

/// A shared mount of the node with a mount inside, removed even if the test fails.
pub(crate) struct Share(pub PathBuf);

impl Share {
    pub(crate) fn new(path: PathBuf) -> Self {
        let none = None::<&str>;
        fs::create_dir_all(&path).unwrap();
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        mount(none, &path, none, MsFlags::MS_SHARED, none).unwrap();
        for name in ["inner", "late"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        let inner = path.join("inner");
        mount(Some("tmpfs"), &inner, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        Self(path)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recursive_read_only_and_bidirectional_mounts_work() {
    let node = Node::start().await;
    busybox(&node).await;
    let share = Share::new(node.root.join("share"));
    let bind = |path: &str| v1::Mount {
        container_path: path.into(),
        host_path: share.0.display().to_string(),
        ..Default::default()
    };
    let pod = node.run_sandbox(sandbox_config(&node, "mounts")).await;
    let mut config = in_busybox("mounts");
    config.mounts = vec![
        v1::Mount {
            readonly: true,
            ..bind("/ro")
        },
        v1::Mount {
            readonly: true,
            recursive_read_only: true,
            ..bind("/rro")
        },
        v1::Mount {
            propagation: v1::MountPropagation::PropagationBidirectional.into(),
            ..bind("/both")
        },
    ];
    security(&mut config).privileged = true;
    let container = node.run(&pod, config).await;
    let touch = async |path: &str| run(&node, &container, &["/busybox", "touch", path]).await;
    assert!(touch("/ro/x").await.unwrap_err().contains("Read-only"));
    touch("/ro/inner/x").await.unwrap();
    assert!(touch("/rro/x").await.unwrap_err().contains("Read-only"));
    assert!(
        touch("/rro/inner/y")
            .await
            .unwrap_err()
            .contains("Read-only")
    );
    let late = ["/busybox", "mount", "-t", "tmpfs", "late", "/both/late"];
    run(&node, &container, &late).await.unwrap();
    touch("/both/late/from-inside").await.unwrap();
    assert!(
        share.0.join("late/from-inside").exists(),
        "the node sees the container's mount"
    );
    let _ = umount2(&share.0.join("late"), MntFlags::MNT_DETACH);
    let _ = umount2(&share.0.join("inner"), MntFlags::MNT_DETACH);
    let mut config = in_busybox("wrong");
    config.mounts = vec![v1::Mount {
        recursive_read_only: true,
        ..bind("/rro")
    }];
    let refused = node.try_create(&pod, config).await.unwrap_err();
    assert!(refused.message().contains("must be read-only"), "{refused}");
    node.remove_sandbox(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_of_the_node_and_of_another_container_can_be_shared() {
    let node = Node::start().await;
    let mut config = sandbox_config(&node, "host");
    let options = v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Node.into(),
        ipc: v1::NamespaceMode::Node.into(),
        ..Default::default()
    };
    let context = config.linux.as_mut().unwrap().security_context.as_mut();
    context.unwrap().namespace_options = Some(options.clone());
    let pod = node.run_sandbox(config.clone()).await;
    let mut host = container_config("host", &["sleep"]);
    security(&mut host).namespace_options = Some(options);
    let host = node.run(&pod, host).await;
    let pid = node.pid(&host).await;
    for kind in ["net", "pid", "ipc", "uts"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        assert_eq!(of(&pid.to_string()), of("self"), "{kind}");
    }
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(
        hello(&node, &host, &["hostname"]).await.unwrap(),
        name.trim_end()
    );
    let me = format!("/proc/{}/comm", std::process::id());
    let seen = hello(&node, &host, &["cat", &me]).await.unwrap();
    assert_eq!(seen, fs::read_to_string(&me).unwrap().trim_end());
    config.linux.as_mut().unwrap().sysctls =
        [("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into();
    config.metadata.as_mut().unwrap().name = "bold".into();
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let refused = node
        .cri
        .clone()
        .runtime
        .run_pod_sandbox(request)
        .await
        .unwrap_err();
    assert!(refused.message().contains("not allowed"), "{refused}");

    // A debug container in the PID namespace of its target.
    let pod = node.run_sandbox(sandbox_config(&node, "own")).await;
    let target = node.run(&pod, container_config("target", &["sleep"])).await;
    let mut debugger = container_config("debugger", &["sleep"]);
    security(&mut debugger).namespace_options = Some(v1::NamespaceOption {
        pid: v1::NamespaceMode::Target.into(),
        target_id: target.clone(),
        ..Default::default()
    });
    let debugger = node.run(&pod, debugger).await;
    let line = hello(&node, &debugger, &["cat", "/proc/1/cmdline"])
        .await
        .unwrap();
    assert_eq!(line.replace('\0', " ").trim_end(), "/mainstay hello sleep");
    let (one, two) = (node.pid(&target).await, node.pid(&debugger).await);
    let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(of(one), of(two));
    let mut late = container_config("late", &["sleep"]);
    node.stop(&target, 0).await;
    security(&mut late).namespace_options = Some(v1::NamespaceOption {
        pid: v1::NamespaceMode::Target.into(),
        target_id: target,
        ..own_pids()
    });
    let refused = node.try_create(&pod, late).await.unwrap_err();
    assert!(refused.message().contains("not running"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dns_settings_apply_and_swap_is_limited() {
    let node = Node::start().await;
    let mut config = sandbox_config(&node, "names");
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["10.43.0.10".into(), "10.43.0.11".into()],
        searches: vec!["a.svc".into(), "svc".into()],
        options: vec!["ndots:5".into(), "edns0".into()],
    });
    config.hostname = "other-name".into();
    let pod = node.run_sandbox(config).await;
    let mut config = container_config("names", &["sleep"]);
    config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        memory_swap_limit_in_bytes: 80 << 20,
        hugepage_limits: vec![v1::HugepageLimit {
            page_size: "2MB".into(),
            limit: 0,
        }],
        ..Default::default()
    });
    let container = node.run(&pod, config).await;
    assert_eq!(
        hello(&node, &container, &["cat", "/etc/resolv.conf"])
            .await
            .unwrap(),
        "search a.svc svc\nnameserver 10.43.0.10\nnameserver 10.43.0.11\noptions ndots:5 edns0"
    );
    assert_eq!(
        hello(&node, &container, &["hostname"]).await.unwrap(),
        "other-name"
    );
    assert_eq!(
        hello(&node, &container, &["cat", "/etc/hostname"])
            .await
            .unwrap(),
        "other-name"
    );
    let hosts = hello(&node, &container, &["cat", "/etc/hosts"])
        .await
        .unwrap();
    assert!(hosts.contains("127.0.0.1\tlocalhost"), "{hosts}");
    // If the machine accounts swap and huge pages.
    let has = |path: &str| PathBuf::from("/sys/fs/cgroup").join(path).exists();
    if has("memory/memory.memsw.limit_in_bytes") {
        let limit = node.cgroup_file(&pod, &container, "memory", "memory.memsw.limit_in_bytes");
        assert_eq!(limit, (80 << 20).to_string());
    }
    if has("hugetlb") {
        let limit = node.cgroup_file(&pod, &container, "hugetlb", "hugetlb.2MB.limit_in_bytes");
        assert_eq!(limit, "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_containers_and_pods_is_measured() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "busy")).await;
    let container = node
        .run(&pod, container_config("busy", &["burn-memory", "40"]))
        .await;
    node.wait_for("the memory", || !node.log("busy", "busy").is_empty())
        .await;
    hello(
        &node,
        &container,
        &["write", "/tmp/file", &"x".repeat(100_000)],
    )
    .await
    .unwrap();
    let mut runtime = node.cri.clone().runtime;
    let request = v1::PodSandboxStatsRequest {
        pod_sandbox_id: pod.clone(),
    };
    let stats = runtime
        .pod_sandbox_stats(request)
        .await
        .unwrap()
        .into_inner()
        .stats
        .unwrap();
    let linux = stats.linux.unwrap();
    let value = |value: Option<v1::UInt64Value>| value.unwrap().value;
    assert!(value(linux.cpu.unwrap().usage_core_nano_seconds) > 0);
    assert!(value(linux.memory.unwrap().working_set_bytes) > 40 << 20);
    assert_eq!(linux.network.unwrap().interfaces, [], "only loopback here");
    let [of] = linux.containers.as_slice() else {
        panic!("one container: {:?}", linux.containers)
    };
    assert_eq!(of.attributes.as_ref().unwrap().id, container);
    assert!(value(of.memory.unwrap().rss_bytes) > 40 << 20);
    assert!(value(of.writable_layer.clone().unwrap().used_bytes) >= 100_000);
    assert!(value(of.writable_layer.clone().unwrap().inodes_used) >= 1);
    let filter = v1::ContainerStatsFilter {
        pod_sandbox_id: pod,
        ..Default::default()
    };
    let list = v1::ListContainerStatsRequest {
        filter: Some(filter),
    };
    let list = runtime
        .list_container_stats(list)
        .await
        .unwrap()
        .into_inner()
        .stats;
    assert_eq!(list.len(), 1);
    let config = runtime
        .runtime_config(v1::RuntimeConfigRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        config.linux.unwrap().cgroup_driver(),
        v1::CgroupDriver::Cgroupfs
    );
}
