//! Containers with a volume at `/dev` itself, as CSI node drivers have, and with devices elsewhere,
//! such as raw block volumes.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use cri::v1;

use crate::{
    effects::{Share, security},
    support::{Node, container_config, sandbox_config},
};

async fn hello(node: &Node, container: &str, args: &[&str]) -> v1::ExecSyncResponse {
    let mut command = vec!["/mainstay", "hello"];
    command.extend(args);
    node.exec(container, &command).await
}

/// The node's state of everything that libcontainer creates, replaces or removes in `/dev`.
fn touched_by_libcontainer() -> Vec<String> {
    let names = [
        "console", "fd", "full", "kcore", "mqueue", "null", "ptmx", "pts", "random", "shm",
        "stderr", "stdin", "stdout", "tty", "urandom", "zero",
    ];
    let look = |name: &str| {
        let path = Path::new("/dev").join(name);
        let found = fs::symlink_metadata(&path).ok();
        let found = found.map(|metadata| (metadata.ino(), metadata.mode()));
        format!("{name} {found:?} {:?}", fs::read_link(&path).ok())
    };
    names.map(look).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_at_dev_is_used_as_it_is_and_nothing_in_it_changes() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "dev")).await;
    let bound = |host: &Path, path: &str| v1::Mount {
        container_path: path.into(),
        host_path: host.display().to_string(),
        ..Default::default()
    };
    let share = Share::new(node.root.join("share"));
    let before = touched_by_libcontainer();
    let mut config = container_config("dev", &["sleep"]);
    let mut both = bound(&share.0, "/both");
    both.propagation = v1::MountPropagation::PropagationBidirectional.into();
    config.mounts = vec![bound(Path::new("/dev"), "/dev"), both];
    security(&mut config).privileged = true;
    let container = node.run(&pod, config.clone()).await;
    let inside = format!("/proc/{}/root/dev", node.pid(&container).await);
    let seen = fs::metadata(Path::new(&inside).join("loop-control")).unwrap();
    let own = fs::metadata("/dev/loop-control").unwrap();
    assert_eq!((seen.dev(), seen.ino()), (own.dev(), own.ino()));
    // Terminals are still the container's own.
    let pts = |at: &str| fs::metadata(format!("{at}/pts")).unwrap().dev();
    assert_ne!(pts(&inside), pts("/dev"));
    assert_eq!(touched_by_libcontainer(), before);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let leaked =
        |line: &&str| line.contains(&format!("{}/", node.root.display())) && line.contains("/dev ");
    assert_eq!(table.lines().find(leaked), None);

    config.metadata.as_mut().unwrap().name = "wide".into();
    // Below a shared mount it is shared, too.
    let shared_dev = share.0.join("late");
    let (none, flags) = (None::<&str>, nix::mount::MsFlags::MS_BIND);
    nix::mount::mount(Some("/dev"), &shared_dev, none, flags, none).unwrap();
    config.mounts[0].host_path = shared_dev.display().to_string();
    config.mounts[0].propagation = v1::MountPropagation::PropagationBidirectional.into();
    let wide = node.create(&pod, config).await;
    let refused = node.try_start(&wide).await.unwrap_err();
    assert!(refused.message().contains("Bidirectional"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_mount_points_are_made_in_a_volume_at_dev() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "devices")).await;
    let devices = node.root.join("devices");
    fs::create_dir(&devices).unwrap();
    let message = node.root.join("message");
    fs::write(&message, "").unwrap();
    let bound = |host: &Path, path: &str| v1::Mount {
        container_path: path.into(),
        host_path: host.display().to_string(),
        ..Default::default()
    };
    let mut config = container_config("devices", &["sleep"]);
    config.mounts = vec![
        bound(&devices, "/dev"),
        bound(&message, "/dev/termination-log"),
    ];
    let without = node.create(&pod, config.clone()).await;
    let refused = node.try_start(&without).await.unwrap_err();
    assert!(
        refused.message().contains("has no device null"),
        "{refused}"
    );

    let null = nix::sys::stat::makedev(1, 3);
    let mode = nix::sys::stat::Mode::from_bits_retain(0o666);
    let kind = nix::sys::stat::SFlag::S_IFCHR;
    nix::sys::stat::mknod(&devices.join("null"), kind, mode, null).unwrap();
    config.metadata.as_mut().unwrap().name = "with".into();
    config.mounts[0].readonly = true;
    let container = node.run(&pod, config).await;
    let write = async |path: &str| hello(&node, &container, &["write", path, "ended"]).await;
    assert_eq!(write("/dev/termination-log").await.exit_code, 0);
    assert_eq!(write("/dev/new").await.exit_code, 1);
    assert_eq!(fs::read_to_string(&message).unwrap().trim_end(), "ended");
    let mut names: Vec<_> = fs::read_dir(&devices)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["null", "shm", "termination-log"]);
    assert_eq!(
        fs::metadata(devices.join("termination-log")).unwrap().len(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_can_be_anywhere_in_the_container() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "anywhere")).await;
    let mut config = container_config("anywhere", &["sleep"]);
    config.devices = vec![v1::Device {
        host_path: "/dev/loop-control".into(),
        container_path: "/opt/deep/control".into(),
        permissions: "r".into(),
    }];
    let container = node.run(&pod, config).await;
    // The device has nothing to read; being able to open it is enough.
    let read = hello(&node, &container, &["cat", "/opt/deep/control"]).await;
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(said.contains("Invalid argument"), "{said}");
    let written = hello(&node, &container, &["append", "/opt/deep/control", "x"]).await;
    let said = String::from_utf8_lossy(&written.stderr).into_owned();
    assert!(said.contains("not permitted"), "{said}");
}
