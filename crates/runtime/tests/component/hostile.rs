//! Security regressions: containers, images and volumes that try to get at the node or at their own
//! limits.

use std::{fs, os::unix::fs::symlink, path::Path};

use cri::v1;

use crate::{
    effects::{busybox_with, in_busybox, run, security},
    support::{Node, container_config, sandbox_config},
};

const LIMIT: i64 = 64 * 1024 * 1024;

fn limited(name: &str) -> v1::ContainerConfig {
    let mut config = in_busybox(name);
    let linux = config.linux.as_mut().unwrap();
    linux.resources = Some(v1::LinuxContainerResources {
        memory_limit_in_bytes: LIMIT,
        ..Default::default()
    });
    config
}

async fn shell(node: &Node, container: &str, script: &str) -> Result<String, String> {
    run(node, container, &["/busybox", "sh", "-c", script]).await
}

fn bind(from: &Path, to: &str) -> v1::Mount {
    v1::Mount {
        host_path: from.display().to_string(),
        container_path: to.into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_reads_its_own_limits_and_cannot_lift_them() {
    let node = Node::start().await;
    busybox_with(&node, &[]).await;
    let pod = node.run_sandbox(sandbox_config(&node, "limits")).await;
    let (dir, file) = if node.is_cgroup_v1() {
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        ("/sys/fs/cgroup", "memory.max")
    };
    let mut beside = limited("beside");
    security(&mut beside).namespace_options = Some(v1::NamespaceOption {
        pid: v1::NamespaceMode::Node.into(),
        ..Default::default()
    });
    for config in [limited("own"), beside] {
        let container = node.run(&pod, config).await;
        // It sees only its own cgroup.
        let limit = shell(&node, &container, &format!("/busybox cat {dir}/{file}")).await;
        assert_eq!(limit.unwrap(), LIMIT.to_string());
        if node.is_cgroup_v1() {
            // From the node's mounts it would be covered by itself.
            let count = "/busybox grep -c ' /sys/fs/cgroup ' /proc/self/mountinfo";
            let count = shell(&node, &container, count).await;
            assert_eq!(count.as_deref(), Ok("1"), "not made from the base mounts");
        }
        for attempt in [
            format!("echo 9223372036854771712 > {dir}/{file}"),
            format!("/busybox mkdir {dir}/below"),
            format!("echo 1 > {dir}/cgroup.procs"),
            "/busybox touch /sys/fs/cgroup/new".to_owned(),
            format!("/busybox mount -o remount,rw {dir}"),
        ] {
            let refused = shell(&node, &container, &attempt).await;
            assert!(refused.is_err(), "{attempt}: {refused:?}");
        }
        let limit = shell(&node, &container, &format!("/busybox cat {dir}/{file}")).await;
        assert_eq!(limit.unwrap(), LIMIT.to_string());
    }
    let mut privileged = limited("privileged");
    security(&mut privileged).privileged = true;
    let container = node.run(&pod, privileged).await;
    let below = shell(&node, &container, &format!("/busybox mkdir {dir}/below")).await;
    assert_eq!(below, Ok(String::new()));
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_mounted_inside_proc_by_name_by_link_or_through_a_volume() {
    let node = Node::start().await;
    busybox_with(&node, &[("link", "/proc/sys")]).await;
    let pod = node.run_sandbox(sandbox_config(&node, "proc")).await;
    let volume = node.root.join("volume");
    fs::create_dir(&volume).unwrap();
    symlink("/proc/sys", volume.join("link")).unwrap();
    symlink("/proc", volume.join("whole")).unwrap();
    let bad = node.root.join("bad");
    fs::create_dir(&bad).unwrap();
    let through = |to: &str| vec![bind(&volume, "/data"), bind(&bad, to)];
    let cases = [
        ("whole", vec![bind(&bad, "/proc")]),
        ("below", vec![bind(&bad, "/proc/sys/kernel")]),
        ("image-link", vec![bind(&bad, "/link/kernel")]),
        ("volume-link", through("/data/link/kernel")),
        ("volume-whole", through("/data/whole")),
    ];
    for (name, mounts) in cases {
        let mut config = in_busybox(name);
        config.mounts = mounts;
        let refused = match node.try_create(&pod, config).await {
            Err(refused) => refused,
            Ok(container) => node.try_start(&container).await.expect_err(name),
        };
        // Without a usable /proc the container fails before the check.
        let reported = refused.message();
        let expected = reported.contains("cannot be mounted") && reported.contains("/proc");
        assert!(expected || name == "volume-whole", "{name}: {reported}");
    }
    // What lxcfs mounts, and other destinations, are allowed.
    let mut config = in_busybox("allowed");
    let meminfo = node.root.join("meminfo");
    fs::write(&meminfo, "MemTotal: 1 kB\n").unwrap();
    config.mounts = vec![bind(&meminfo, "/proc/meminfo"), bind(&bad, "/processes")];
    security(&mut config).masked_paths = vec!["/proc/kcore".into(), "/proc/acpi".into()];
    security(&mut config).readonly_paths = vec!["/proc/sys".into()];
    let container = node.run(&pod, config).await;
    let seen = shell(&node, &container, "/busybox cat /proc/meminfo").await;
    assert_eq!(seen.unwrap(), "MemTotal: 1 kB");
    node.remove_sandbox(&pod).await;
}

/// runc is the reference: `/proc` may not be covered, but a volume may cover `/sys`.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_may_hide_sys_but_not_proc_as_with_runc() {
    let node = Node::with_handlers(&["runc=/usr/sbin/runc"]).await;
    busybox_with(&node, &[]).await;
    for handler in ["", "runc"] {
        let name = format!("sys-{handler}");
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox_config(&node, &name)),
            runtime_handler: handler.into(),
        };
        let made = node.cri.clone().runtime.run_pod_sandbox(request).await;
        let pod = made.unwrap().into_inner().pod_sandbox_id;
        let volume = node.root.join(&name);
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("own"), "mine").unwrap();
        for place in ["/sys", "/sys/kernel"] {
            let mut config = limited(&place.replace('/', "a"));
            config.mounts = vec![bind(&volume, place)];
            let container = node.run(&pod, config).await;
            let script = format!("/busybox cat {place}/own && echo x > {place}/new");
            let seen = shell(&node, &container, &script).await;
            assert_eq!(seen.as_deref(), Ok("mine"), "{handler} {place}");
            assert_eq!(fs::read_to_string(volume.join("new")).unwrap(), "x\n");
            // The container cannot change its limits, and the node's files are unchanged.
            let file = match node.is_cgroup_v1() {
                true => "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                false => "/sys/fs/cgroup/memory.max",
            };
            let lifted = format!("echo 9223372036854771712 > {file}");
            let refused = shell(&node, &container, &lifted).await;
            assert!(refused.is_err(), "{handler} {place}: {refused:?}");
            assert!(!Path::new(place).join("new").exists());
        }
        for place in ["/proc", "/proc/sys/kernel"] {
            let mut config = in_busybox(&place.replace('/', "b"));
            config.mounts = vec![bind(&volume, place)];
            let refused = match node.try_create(&pod, config).await {
                Err(refused) => refused,
                Ok(container) => node.try_start(&container).await.expect_err(place),
            };
            let message = refused.message();
            assert!(message.contains("/proc"), "{handler} {place}: {message}");
        }
        node.remove_sandbox(&pod).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dangling_link_in_the_place_of_a_mount_is_followed_inside_the_root() {
    let node = Node::start().await;
    let links = [
        ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
        ("etc/hostname", "/../../../no/such/hostname"),
        ("up", "../../../../tmp/mainstay-escaped"),
    ];
    busybox_with(&node, &links).await;
    let mut sandbox = sandbox_config(&node, "dangling");
    sandbox.dns_config = Some(v1::DnsConfig {
        servers: vec!["10.0.0.10".into()],
        ..Default::default()
    });
    let pod = node.run_sandbox(sandbox).await;
    let volume = node.root.join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("file"), "inside").unwrap();
    let mut config = in_busybox("dangling");
    config.mounts = vec![bind(&volume, "/up/deep")];
    let container = node.run(&pod, config).await;
    let read = async |path: &str| shell(&node, &container, &format!("/busybox cat {path}")).await;
    assert!(
        read("/etc/resolv.conf")
            .await
            .unwrap()
            .contains("10.0.0.10")
    );
    assert_eq!(read("/etc/hostname").await.unwrap(), "dangling");
    assert_eq!(
        read("/tmp/mainstay-escaped/deep/file").await.unwrap(),
        "inside"
    );
    assert!(!Path::new("/tmp/mainstay-escaped").exists());
    node.remove_sandbox(&pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_the_place_of_a_log_is_not_written_through() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "links")).await;
    let secret = node.root.join("secret");
    fs::write(&secret, "").unwrap();
    fs::create_dir_all(node.logs.join("links")).unwrap();
    symlink(&secret, node.logs.join("links/planted.log")).unwrap();
    let container = node
        .create(&pod, container_config("planted", &["say", "words"]))
        .await;
    let refused = node.try_start(&container).await.unwrap_err();
    assert!(refused.message().contains("ymbolic link"), "{refused}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "");

    let mut config = container_config("outside", &["say", "words"]);
    config.log_path = "../../outside.log".into();
    let refused = node.try_create(&pod, config).await.unwrap_err();
    assert!(refused.message().contains("leads out"), "{refused}");
    node.remove_sandbox(&pod).await;
    let ordinary = !node.daemon_log().contains("shim lost");
    assert!(ordinary, "an ordinary end is no loss");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_output_keeps_within_its_share_of_the_disk() {
    let node = Node::with_handlers(&["--log-max-bytes=100000"]).await;
    let pod = node.run_sandbox(sandbox_config(&node, "burst")).await;
    let loud = node
        .run(&pod, container_config("loud", &["log", "50000"]))
        .await;
    assert_eq!(node.wait_exit(&loud).await.exit_code, 0);
    let files = fs::read_dir(node.logs.join("burst")).unwrap().flatten();
    let sizes: Vec<u64> = files.map(|file| file.metadata().unwrap().len()).collect();
    assert_eq!(sizes.len(), 5, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 100_000), "{sizes:?}");
    node.remove_sandbox(&pod).await;
}
