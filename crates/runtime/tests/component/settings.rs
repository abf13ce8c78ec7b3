//! More of a container's configuration, seen from inside: what `containers` does not cover.

use std::{fs, os::unix::fs::FileTypeExt, path::Path};

use cri::v1;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::support::{Node, container_config, sandbox_config};

fn security(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    config
        .linux
        .as_mut()
        .unwrap()
        .security_context
        .as_mut()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

async fn hello(node: &Node, container: &str, args: &[&str]) -> v1::ExecSyncResponse {
    let mut command = vec!["/mainstay", "hello"];
    command.extend(args);
    node.exec(container, &command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_replaces_the_images_and_arguments_are_kept_apart() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "words")).await;
    let mut config = container_config("words", &["two words", "", "$HOME"]);
    config.command = ["/mainstay", "hello", "say", "first"]
        .map(str::to_owned)
        .into();
    let words = node.run(&pod, config).await;
    assert_eq!(node.wait_exit(&words).await.exit_code, 0);
    assert_eq!(
        node.log("words", "words"),
        ["stdout F first two words  $HOME"]
    );
}

/// Unmounts when dropped.
struct Mounted(Vec<std::path::PathBuf>);

impl Mounted {
    fn tmpfs(&mut self, at: &Path, options: &str) {
        fs::create_dir_all(at).unwrap();
        let kind = Some("tmpfs");
        mount(kind, at, kind, MsFlags::empty(), Some(options)).unwrap();
        self.0.push(at.to_path_buf());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for place in self.0.iter().rev() {
            let _ = umount2(place, MntFlags::MNT_DETACH);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recursive_read_only_mount_covers_nested_mounts() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "rro")).await;
    let share = node.root.join("share");
    let mut mounted = Mounted(Vec::new());
    mounted.tmpfs(&share.join("below"), "size=64k");
    let volume = |path: &str, recursive: bool| v1::Mount {
        container_path: path.into(),
        host_path: share.display().to_string(),
        readonly: true,
        recursive_read_only: recursive,
        ..Default::default()
    };
    let mut config = container_config("rro", &["sleep"]);
    config.mounts = vec![volume("/ro", false), volume("/rro", true)];
    let container = node.run(&pod, config).await;
    let write = async |path: &str| {
        hello(&node, &container, &["write", path, "x"])
            .await
            .exit_code
    };
    assert_eq!(write("/ro/x").await, 1);
    assert_eq!(write("/ro/below/x").await, 0, "only the mount itself is");
    assert_eq!(write("/rro/x").await, 1);
    assert_eq!(write("/rro/below/x").await, 1);

    let mut config = container_config("wrong", &["sleep"]);
    config.mounts = vec![v1::Mount {
        readonly: false,
        ..volume("/rro", true)
    }];
    let refused = node.try_create(&pod, config).await.unwrap_err();
    assert!(refused.message().contains("read-only"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mount_has_the_propagation_it_asked_for() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "waves")).await;
    let share = node.root.join("share");
    let mut mounted = Mounted(Vec::new());
    mounted.tmpfs(&share, "size=64k");
    mount(
        None::<&str>,
        &share,
        None::<&str>,
        MsFlags::MS_SHARED,
        None::<&str>,
    )
    .unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(&share.display().to_string()));
    let group = line
        .unwrap()
        .split(' ')
        .find_map(|word| word.strip_prefix("shared:"))
        .unwrap();
    let wave = |path: &str, propagation: v1::MountPropagation| v1::Mount {
        container_path: path.into(),
        host_path: share.display().to_string(),
        propagation: propagation.into(),
        ..Default::default()
    };
    let mut config = container_config("waves", &["sleep"]);
    config.mounts = vec![
        wave("/none", v1::MountPropagation::PropagationPrivate),
        wave("/in", v1::MountPropagation::PropagationHostToContainer),
        wave("/both", v1::MountPropagation::PropagationBidirectional),
    ];
    security(&mut config).privileged = true;
    let container = node.run(&pod, config).await;
    let inside = fs::read_to_string(format!("/proc/{}/mountinfo", node.pid(&container).await));
    let inside = inside.unwrap();
    let of = |path: &str| {
        let line = inside
            .lines()
            .find(|line| line.split(' ').nth(4) == Some(path));
        let line = line.unwrap().split(" - ").next().unwrap();
        line.split(' ').skip(6).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("/none"), "");
    assert_eq!(of("/in"), format!("master:{group}"));
    assert_eq!(of("/both"), format!("shared:{group}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_on_a_private_mount_cannot_propagate() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "private")).await;
    let share = node.root.join("share");
    let mut mounted = Mounted(Vec::new());
    mounted.tmpfs(&share, "size=64k");
    let none = None::<&str>;
    mount(none, &share, none, MsFlags::MS_PRIVATE, none).unwrap();
    fs::create_dir(share.join("data")).unwrap();
    for (propagation, kinds) in [
        (
            v1::MountPropagation::PropagationHostToContainer,
            "shared or slave",
        ),
        (v1::MountPropagation::PropagationBidirectional, "shared"),
    ] {
        let mut config = container_config(kinds, &["sleep"]);
        config.mounts = vec![v1::Mount {
            container_path: "/data".into(),
            host_path: share.join("data").display().to_string(),
            propagation: propagation.into(),
            ..Default::default()
        }];
        security(&mut config).privileged = true;
        let refused = node.try_create(&pod, config).await.unwrap_err();
        let expected = format!(
            "path {:?} is mounted on {share:?} but it is not a {kinds} mount",
            share.join("data")
        );
        assert!(refused.message().contains(&expected), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_can_be_used_as_permitted_and_others_not_at_all() {
    let source = "/dev/loop-control";
    assert!(fs::metadata(source).unwrap().file_type().is_char_device());
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "devices")).await;
    let device = |permissions: &str| v1::Device {
        host_path: source.into(),
        container_path: "/dev/mine".into(),
        permissions: permissions.into(),
    };
    let mut config = container_config("devices", &["sleep"]);
    config.devices = vec![device("r")];
    let container = node.run(&pod, config.clone()).await;
    // The device has nothing to read; being able to open it is enough.
    let read = hello(&node, &container, &["cat", "/dev/mine"]).await;
    assert!(text(&read.stderr).contains("Invalid argument"), "{read:?}");
    let written = hello(&node, &container, &["append", "/dev/mine", "x"]).await;
    let denied = text(&written.stderr);
    assert!(denied.contains("not permitted"), "{denied}");
    config.metadata.as_mut().unwrap().name = "letters".into();
    config.devices = vec![device("xyz")];
    let refused = node.try_create(&pod, config.clone()).await.unwrap_err();
    assert!(refused.message().contains("xyz"), "{refused}");
    config.devices.clear();
    let without = node.run(&pod, config).await;
    let listed = text(&hello(&node, &without, &["ls", "/dev"]).await.stdout);
    assert!(
        !listed.contains("mine") && listed.contains("null"),
        "{listed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambient_capability_reaches_a_program_of_an_ordinary_user() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "ambient")).await;
    let mut config = container_config("ambient", &["sleep"]);
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    security(&mut config).capabilities = Some(v1::Capability {
        drop_capabilities: vec!["ALL".into()],
        add_capabilities: vec!["NET_BIND_SERVICE".into()],
        add_ambient_capabilities: vec!["NET_BIND_SERVICE".into()],
    });
    security(&mut config).seccomp = Some(v1::SecurityProfile::default());
    let container = node.run(&pod, config.clone()).await;
    let status = |pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let seen = status(node.pid(&container).await);
    assert!(seen.contains("CapAmb:\t0000000000000400"), "{seen}");
    assert!(seen.contains("CapEff:\t0000000000000400"), "{seen}");
    assert!(seen.contains("Seccomp:\t2"), "{seen}");
    config.metadata.as_mut().unwrap().name = "unknown".into();
    security(&mut config).capabilities = Some(v1::Capability {
        add_capabilities: vec!["FLY".into()],
        ..Default::default()
    });
    let refused = node.try_create(&pod, config).await.unwrap_err();
    assert!(refused.message().contains("CAP_FLY"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_enforced_fail_the_container() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "strict")).await;
    // A valid filter that cannot be installed.
    let profile = node.root.join("notify.json");
    let notify = r#"{"defaultAction":"SCMP_ACT_ALLOW",
        "syscalls":[{"names":["getcwd"],"action":"SCMP_ACT_NOTIFY"}]}"#;
    fs::write(&profile, notify).unwrap();
    let localhost = |name: String| {
        Some(v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::Localhost.into(),
            localhost_ref: name,
        })
    };
    let mut config = container_config("filtered", &["sleep"]);
    security(&mut config).seccomp = localhost(profile.display().to_string());
    let filtered = node.create(&pod, config).await;
    let refused = node.try_start(&filtered).await.unwrap_err();
    assert!(refused.message().contains("seccomp"), "{refused}");
    let status = node.status(&filtered).await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError")
    );

    // A profile that is not loaded is rejected with or without AppArmor.
    let mut config = container_config("armoured", &["sleep"]);
    security(&mut config).apparmor = localhost("mainstay-no-such-profile".into());
    let refused = match node.try_create(&pod, config).await {
        Err(refused) => refused,
        Ok(container) => node.try_start(&container).await.unwrap_err(),
    };
    let message = refused.message().to_lowercase();
    assert!(message.contains("apparmor"), "{refused}");

    let mut config = sandbox_config(&node, "sysctl");
    config.linux.as_mut().unwrap().sysctls =
        [("net.ipv4.no_such_thing".to_owned(), "1".to_owned())].into();
    let request = v1::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let refused = node.cri.clone().runtime.run_pod_sandbox(request).await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("no_such_thing"), "{refused}");
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processors_swap_and_the_pods_own_limits_hold() {
    let node = Node::start().await;
    // The parent cgroup of a pod's containers belongs to the kubelet and has its own limits.
    let parent = format!("{}/kubelet", node.cgroup());
    let pids = Path::new("/sys/fs/cgroup/pids").join(&parent);
    let mut config = sandbox_config(&node, "held");
    if node.is_cgroup_v1() {
        fs::create_dir_all(&pids).unwrap();
        fs::write(pids.join("pids.max"), "12").unwrap();
        config.linux.as_mut().unwrap().cgroup_parent = format!("/{parent}");
    }
    let pod = node.run_sandbox(config).await;
    let mut config = container_config("held", &["sleep"]);
    config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
        cpuset_cpus: "0".into(),
        memory_limit_in_bytes: 64 << 20,
        memory_swap_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    let container = node.run(&pod, config.clone()).await;
    let status = text(
        &hello(&node, &container, &["cat", "/proc/self/status"])
            .await
            .stdout,
    );
    assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    if node.is_cgroup_v1() {
        let swap = Path::new("/sys/fs/cgroup/memory")
            .join(&parent)
            .join(&container);
        let swap = fs::read_to_string(swap.join("memory.memsw.limit_in_bytes")).unwrap();
        assert_eq!(swap.trim(), (64 << 20).to_string());
        let crowd = hello(&node, &container, &["burn-cpu", "0.01", "40"]).await;
        assert_ne!(
            crowd.exit_code, 0,
            "the pod's limit of processes did not hold"
        );
    }
    updated_resources_hold_and_are_reported(&node, &pod, config, &parent).await;
    huge_pages_are_limited_or_refused(&node, &pod).await;
    node.remove_sandbox(&pod).await;
    // A kubelet removes its cgroups only in the controllers' hierarchies.
    for tree in ["systemd", "unified"] {
        let strange = Path::new("/sys/fs/cgroup").join(tree).join(&parent);
        assert!(!strange.exists(), "{strange:?}");
    }
}

/// Also for a container that was not started.
async fn updated_resources_hold_and_are_reported(
    node: &Node,
    pod: &str,
    mut config: v1::ContainerConfig,
    parent: &str,
) {
    config.metadata.as_mut().unwrap().name = "later".into();
    let later = node.create(pod, config).await;
    let update = v1::UpdateContainerResourcesRequest {
        container_id: later.clone(),
        linux: Some(v1::LinuxContainerResources {
            memory_limit_in_bytes: 96 << 20,
            memory_swap_limit_in_bytes: 96 << 20,
            cpu_shares: 333,
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut runtime = node.cri.clone().runtime;
    runtime.update_container_resources(update).await.unwrap();
    node.try_start(&later).await.unwrap();
    let resources = node.status(&later).await.resources.unwrap().linux.unwrap();
    assert_eq!(
        (resources.cpu_shares, resources.memory_limit_in_bytes),
        (333, 96 << 20)
    );
    assert_eq!(resources.cpuset_cpus, "0", "what was not changed stays");
    if node.is_cgroup_v1() {
        let file = |controller: &str, file: &str| {
            let root = Path::new("/sys/fs/cgroup").join(controller);
            let path = root.join(parent).join(&later).join(file);
            fs::read_to_string(path).unwrap().trim().to_owned()
        };
        assert_eq!(file("cpu", "cpu.shares"), "333");
        assert_eq!(
            file("memory", "memory.limit_in_bytes"),
            (96 << 20).to_string()
        );
    }
}

/// Where the kernel accounts huge pages they are limited.
async fn huge_pages_are_limited_or_refused(node: &Node, pod: &str) {
    let mut config = container_config("huge", &["sleep"]);
    config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
        hugepage_limits: vec![v1::HugepageLimit {
            page_size: "2MB".into(),
            limit: 4 << 20,
        }],
        ..Default::default()
    });
    let huge = node.create(pod, config).await;
    match node.try_start(&huge).await {
        Ok(()) => assert!(!node.is_cgroup_v1() || Path::new("/sys/fs/cgroup/hugetlb").is_dir()),
        Err(refused) => assert!(refused.message().contains("hugetlb"), "{refused}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_inherits_the_daemons_limits_and_gets_the_stop_signal_it_asked_for() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "asked")).await;
    let mut config = container_config("asked", &["signals"]);
    // The only signal that ends this program.
    config.stop_signal = v1::Signal::Sigquit.into();
    let asked = node.run(&pod, config).await;
    node.wait_for("its first line", || !node.log("asked", "asked").is_empty())
        .await;
    // CRI has no field for this limit.
    let limits = |pid: String| {
        let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let open = text.lines().find(|line| line.starts_with("Max open files"));
        open.unwrap().to_owned()
    };
    assert_eq!(
        limits(node.pid(&asked).await.to_string()),
        limits(node.daemon_pid().to_string())
    );
    node.stop(&asked, 60).await;
    let status = node.status(&asked).await;
    assert_ne!(status.exit_code, 137, "it was asked, not killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oom_score_that_may_not_be_lowered_is_warned_of_once() {
    let node = Node::without_sys_resource().await;
    let pod = node.run_sandbox(sandbox_config(&node, "score")).await;
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    for name in ["first", "second"] {
        let mut config = container_config(name, &["sleep"]);
        config.linux.as_mut().unwrap().resources = Some(v1::LinuxContainerResources {
            oom_score_adj: -998,
            ..Default::default()
        });
        let container = node.run(&pod, config).await;
        let pid = node.pid(&container).await;
        let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        assert_eq!(score, own, "as low as it may be");
    }
    let warnings = node.daemon_log().matches("CAP_SYS_RESOURCE").count();
    assert_eq!(warnings, 1, "{}", node.daemon_log());
}
