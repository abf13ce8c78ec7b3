//! Everything in a container's configuration takes effect, seen from inside the container.

use std::fs;

use cri::v1;

use crate::support::{Node, container_config, own_pids, sandbox_config};

fn words(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_end().to_owned()
}

fn security(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    config
        .linux
        .as_mut()
        .unwrap()
        .security_context
        .as_mut()
        .unwrap()
}

async fn hello(node: &Node, container: &str, args: &[&str]) -> String {
    let mut command = vec!["/mainstay", "hello"];
    command.extend(args);
    let output = node.exec(container, &command).await;
    words(&output.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_directory_user_and_privileges_are_as_asked() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "who")).await;
    let mut config = container_config("who", &["sleep"]);
    config.envs = vec![v1::KeyValue {
        key: "COLOR".into(),
        value: b"blue".to_vec(),
    }];
    config.working_dir = "/made/for/me".into();
    let context = security(&mut config);
    context.run_as_user = Some(v1::Int64Value { value: 1234 });
    context.run_as_group = Some(v1::Int64Value { value: 99 });
    context.supplemental_groups = vec![4, 7];
    context.no_new_privs = true;
    context.seccomp = Some(v1::SecurityProfile::default());
    context.capabilities = Some(v1::Capability {
        drop_capabilities: vec!["ALL".into()],
        add_capabilities: vec!["NET_BIND_SERVICE".into()],
        ..Default::default()
    });
    config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
        oom_score_adj: 777,
        ..Default::default()
    });
    let container = node.run(&pod, config).await;
    assert_eq!(hello(&node, &container, &["env", "COLOR"]).await, "blue");
    assert_eq!(hello(&node, &container, &["env", "HOSTNAME"]).await, "who");
    assert_eq!(hello(&node, &container, &["hostname"]).await, "who");
    assert_eq!(hello(&node, &container, &["pwd"]).await, "/made/for/me");
    let id = hello(&node, &container, &["id"]).await;
    assert!(id.contains("Uid:\t1234\t1234\t1234\t1234"), "{id}");
    assert!(id.contains("Gid:\t99\t99\t99\t99"), "{id}");
    assert!(id.contains("Groups:\t4 7 99"), "{id}");
    assert!(id.contains("CapBnd:\t0000000000000400"), "{id}");
    assert!(id.contains("NoNewPrivs:\t1"), "{id}");
    assert!(id.contains("Seccomp:\t2"), "{id}");
    let score = fs::read_to_string(format!(
        "/proc/{}/oom_score_adj",
        node.pid(&container).await
    ));
    assert_eq!(score.unwrap().trim(), "777");
    let user = node.status(&container).await.user.unwrap().linux.unwrap();
    assert_eq!(
        (user.uid, user.gid, user.supplemental_groups),
        (1234, 99, vec![4, 7, 99])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_seccomp_profile_holds_without_giving_up_privileges() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "filter")).await;
    let mut config = container_config("filter", &["sleep"]);
    security(&mut config).seccomp = Some(v1::SecurityProfile::default());
    let container = node.run(&pod, config).await;
    let pid = node.pid(&container).await;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |name: &str| {
        status
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert_eq!(line("Seccomp:"), "Seccomp:\t2");
    assert_eq!(line("NoNewPrivs:"), "NoNewPrivs:\t0");
    // The fourteen default capabilities, without the one needed to install the filter.
    assert_eq!(line("CapBnd:"), "CapBnd:\t00000000a80425fb");
    assert_eq!(line("CapEff:"), "CapEff:\t00000000a80425fb");
    let id = hello(&node, &container, &["id"]).await;
    assert!(
        id.contains("Seccomp:\t2") && id.contains("CapEff:\t00000000a80425fb"),
        "{id}"
    );

    let mut config = container_config("broken", &["sleep"]);
    let profile = node.root.join("profile.json");
    fs::write(
        &profile,
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"]}]}"#,
    )
    .unwrap();
    security(&mut config).seccomp = Some(v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::Localhost.into(),
        localhost_ref: profile.display().to_string(),
    });
    let refused = node.try_create(&pod, config.clone()).await.unwrap_err();
    assert!(refused.message().contains("profile.json"), "{refused}");

    let text = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chdir","uname","getcwd"],
        "action":"SCMP_ACT_ERRNO","errnoRet":5}]}"#;
    fs::write(&profile, text).unwrap();
    let container = node.run(&pod, config).await;
    let output = node.exec(&container, &["/mainstay", "hello", "pwd"]).await;
    assert_ne!(output.exit_code, 0);
    assert!(words(&output.stderr).contains("os error 5"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_are_bound_read_only_and_propagated_as_asked() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "mounts")).await;
    let share = node.root.join("share");
    fs::create_dir_all(share.join("sub")).unwrap();
    // Only mounts on a shared mount propagate, and the root need not be one.
    let (none, flags) = (None::<&str>, nix::mount::MsFlags::MS_BIND);
    nix::mount::mount(Some(&share), &share, none, flags, none).unwrap();
    nix::mount::mount(none, &share, none, nix::mount::MsFlags::MS_SHARED, none).unwrap();
    fs::write(share.join("note"), "from the node\n").unwrap();
    let mount = |container: &str, readonly: bool| v1::Mount {
        container_path: container.into(),
        host_path: share.display().to_string(),
        readonly,
        ..Default::default()
    };
    let mut config = container_config("mounts", &["sleep"]);
    config.mounts = vec![mount("/rw", false), mount("/ro", true)];
    config.mounts.push(v1::Mount {
        propagation: v1::MountPropagation::PropagationHostToContainer.into(),
        ..mount("/slave", false)
    });
    security(&mut config).readonly_rootfs = true;
    security(&mut config).masked_paths = vec!["/proc/version".into(), "/sys/firmware".into()];
    security(&mut config).readonly_paths = vec!["/proc/sys".into()];
    let container = node.run(&pod, config).await;
    assert_eq!(
        hello(&node, &container, &["cat", "/ro/note"]).await,
        "from the node"
    );
    hello(&node, &container, &["write", "/rw/answer", "from the pod"]).await;
    assert_eq!(
        fs::read_to_string(share.join("answer")).unwrap(),
        "from the pod\n"
    );
    let denied = async |path: &str| {
        let output = node
            .exec(&container, &["/mainstay", "hello", "write", path, "x"])
            .await;
        assert_eq!(output.exit_code, 1, "{path} could be written");
        assert!(words(&output.stderr).contains("Read-only"), "{output:?}");
    };
    denied("/ro/x").await;
    denied("/etc/x").await;
    denied("/proc/sys/kernel/hostname").await;
    assert_eq!(
        hello(&node, &container, &["cat", "/proc/version"]).await,
        ""
    );
    // A later mount of the node is visible through the propagated one only.
    let target = share.join("sub");
    nix::mount::mount(
        Some("tmpfs"),
        &target,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        none,
    )
    .unwrap();
    fs::write(target.join("late"), "late\n").unwrap();
    let seen = (
        hello(&node, &container, &["ls", "/slave/sub"]).await,
        hello(&node, &container, &["ls", "/rw/sub"]).await,
    );
    nix::mount::umount2(&target, nix::mount::MntFlags::MNT_DETACH).unwrap();
    nix::mount::umount2(&share, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert_eq!(seen, (String::from("late"), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_can_be_changed_and_oom_kills_are_reported() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "limits")).await;
    let mut config = container_config("limits", &["sleep"]);
    config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
        cpu_shares: 512,
        cpu_period: 100_000,
        cpu_quota: 50_000,
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    let container = node.run(&pod, config.clone()).await;
    let read = |controller: &str, file: &str| node.cgroup_file(&pod, &container, controller, file);
    if node.is_cgroup_v1() {
        assert_eq!(read("cpu", "cpu.shares"), "512");
        assert_eq!(read("cpu", "cpu.cfs_quota_us"), "50000");
        assert_eq!(
            read("memory", "memory.limit_in_bytes"),
            (64 << 20).to_string()
        );
    }
    let update = v1::UpdateContainerResourcesRequest {
        container_id: container.clone(),
        linux: Some(v1::LinuxContainerResources {
            memory_limit_in_bytes: 128 << 20,
            cpu_quota: 70_000,
            ..Default::default()
        }),
        ..Default::default()
    };
    node.cri
        .clone()
        .runtime
        .update_container_resources(update)
        .await
        .unwrap();
    if node.is_cgroup_v1() {
        assert_eq!(
            read("memory", "memory.limit_in_bytes"),
            (128 << 20).to_string()
        );
        assert_eq!(read("cpu", "cpu.cfs_quota_us"), "70000");
    }
    let stats = v1::ContainerStatsRequest {
        container_id: container,
    };
    let stats = node
        .cri
        .clone()
        .runtime
        .container_stats(stats)
        .await
        .unwrap()
        .into_inner()
        .stats
        .unwrap();
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);

    config.metadata.as_mut().unwrap().name = "hungry".into();
    config.args = ["burn-memory", "256"].map(str::to_owned).into();
    let hungry = node.run(&pod, config).await;
    let status = node.wait_exit(&hungry).await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (137, "OOMKilled")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_may_share_its_pids_and_set_its_sysctls() {
    let node = Node::start().await;
    let mut config = sandbox_config(&node, "shared");
    let linux = config.linux.as_mut().unwrap();
    linux.sysctls = [
        ("net.ipv4.ip_local_port_range", "2000 3000"),
        ("kernel.shm_rmid_forced", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let options = linux
        .security_context
        .as_mut()
        .unwrap()
        .namespace_options
        .as_mut()
        .unwrap();
    options.pid = v1::NamespaceMode::Pod.into();
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["10.43.0.10".into()],
        ..Default::default()
    });
    let pod = node.run_sandbox(config).await;
    let mut config = container_config("a", &["sleep"]);
    security(&mut config).namespace_options = Some(v1::NamespaceOption {
        pid: v1::NamespaceMode::Pod.into(),
        ..Default::default()
    });
    let first = node.run(&pod, config.clone()).await;
    config.metadata.as_mut().unwrap().name = "b".into();
    let second = node.run(&pod, config).await;
    let range = hello(
        &node,
        &first,
        &["cat", "/proc/sys/net/ipv4/ip_local_port_range"],
    )
    .await;
    assert_eq!(
        range.split_whitespace().collect::<Vec<_>>(),
        ["2000", "3000"]
    );
    assert_eq!(
        hello(&node, &first, &["cat", "/proc/sys/kernel/shm_rmid_forced"]).await,
        "1"
    );
    assert_eq!(
        hello(&node, &first, &["cat", "/etc/resolv.conf"]).await,
        "nameserver 10.43.0.10"
    );
    // An init, two containers and the command itself; the init reveals nothing of the node.
    assert_eq!(
        hello(&node, &first, &["cat", "/proc/1/comm"]).await,
        "mainstay-init"
    );
    let pids = hello(&node, &second, &["ls", "/proc"]).await;
    let pids = pids
        .lines()
        .filter(|name| name.parse::<u32>().is_ok())
        .count();
    assert!(pids >= 4, "{pids} processes are seen");
    node.stop(&first, 5).await;
    assert_eq!(
        hello(&node, &second, &["cat", "/proc/1/comm"]).await,
        "mainstay-init"
    );
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_starts_report_the_reason_and_stopping_kills_after_the_timeout() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "why")).await;
    let mut config = container_config("missing", &[]);
    config.command = vec!["/no/such/program".into()];
    let missing = node.create(&pod, config).await;
    let refused = node.try_start(&missing).await.unwrap_err();
    assert!(
        refused.message().contains("no such file or directory"),
        "{refused}"
    );
    let status = node.status(&missing).await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError")
    );

    let mut config = container_config("data", &[]);
    config.command = vec!["/etc/passwd".into()];
    let data = node.create(&pod, config).await;
    let refused = node.try_start(&data).await.unwrap_err();
    assert!(refused.message().contains("Permission denied"), "{refused}");

    let stubborn = node
        .run(&pod, container_config("stubborn", &["signals"]))
        .await;
    node.wait_for("its first line", || !node.log("why", "stubborn").is_empty())
        .await;
    let begun = std::time::Instant::now();
    node.stop(&stubborn, 1).await;
    assert!(begun.elapsed().as_millis() >= 1000, "it had its second");
    assert_eq!(node.status(&stubborn).await.exit_code, 137);
    let term = format!("stdout F signal {}", libc::SIGTERM);
    assert!(
        node.log("why", "stubborn").contains(&term),
        "it was asked first"
    );

    let idle = node.run(&pod, container_config("idle", &["sleep"])).await;
    let late = node
        .try_exec(&idle, &["/mainstay", "hello", "sleep", "60"], 1)
        .await
        .unwrap_err();
    assert_eq!(late.code(), cri::tonic::Code::DeadlineExceeded);
    let unknown = node.try_exec("nothing", &["x"], 0).await.unwrap_err();
    assert_eq!(unknown.code(), cri::tonic::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_log_is_reopened_and_a_privileged_container_sees_devices() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "logs")).await;
    let mut config = container_config("loud", &["log", "1000000", "2"]);
    security(&mut config).privileged = true;
    security(&mut config).namespace_options = Some(own_pids());
    let loud = node.run(&pod, config).await;
    let log = node.logs.join("logs/loud.log");
    node.wait_for("a first line", || !node.log("logs", "loud").is_empty())
        .await;
    fs::rename(&log, node.logs.join("logs/loud.log.1")).unwrap();
    let request = v1::ReopenContainerLogRequest {
        container_id: loud.clone(),
    };
    node.cri
        .clone()
        .runtime
        .reopen_container_log(request)
        .await
        .unwrap();
    node.wait_for("a line in the new file", || {
        !node.log("logs", "loud").is_empty()
    })
    .await;
    let devices = hello(&node, &loud, &["ls", "/dev"]).await;
    assert!(devices.lines().any(|name| name == "kmsg"), "{devices}");
    let id = hello(&node, &loud, &["id"]).await;
    assert!(!id.contains("CapEff:\t00000000a80425fb"), "{id}");
}
