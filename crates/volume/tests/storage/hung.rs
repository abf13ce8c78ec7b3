//! Volumes whose file system hangs or has died, here by a FUSE server that never answers.

use std::{
    fs::{File, OpenOptions, create_dir},
    os::fd::AsRawFd,
    path::Path,
    sync::Arc,
    time::Duration,
};

use csi::{
    testing::{Fault, Options},
    tonic::Code,
};
use jiff::Timestamp;
use rustix::mount::MountFlags;
use serde_json::json;
use stdx::FakeClock;
use volume::{LinuxMounter, Mounter, storage::Manager};

use crate::support::{DRIVER, Node, persistent, pod, set_up, until, volume, with_own_mounts};

/// Calls into its file system wait until this is dropped, and fail after that.
struct HungServer {
    _device: File,
}

impl HungServer {
    fn mounted_on(dir: &Path) -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("hung", dir, "fuse", flags, options.as_c_str()).unwrap();
        Self { _device: device }
    }
}

async fn one_volume_hangs() {
    let node = Node::new(Options::new(DRIVER));
    let (hung, plain) = (node.dir.path().join("hung"), node.dir.path().join("plain"));
    create_dir(&hung).unwrap();
    create_dir(&plain).unwrap();
    let server = HungServer::mounted_on(&hung);
    let mut stuck = Vec::new();
    for (name, source) in [
        (
            "path",
            json!({"hostPath": {"path": hung, "type": "Directory"}}),
        ),
        ("local", json!({"local": {"path": hung}})),
    ] {
        let (manager, spec) = (node.manager.clone(), persistent(name, source));
        stuck.push(tokio::spawn(async move {
            set_up(&manager, &pod("stuck"), &spec, false).await
        }));
    }
    until("both volumes to be looked at", || node.host.looks() >= 2).await;
    // Others go on, also with the only thread that volumes normally get here.
    let local = persistent("plain", json!({"local": {"path": plain}}));
    let ready = node.set_up(&pod("fine"), &local).await.unwrap();
    node.set_up(&pod("fine"), &volume("data")).await.unwrap();
    assert!(ready.path.exists());
    node.manager.tear_down("fine").await.unwrap();
    assert!(stuck.iter().all(|task| !task.is_finished()));
    drop(server);
    // The root of a dead file system can still be bound, so that either result is right.
    for task in stuck {
        let _ = task.await.unwrap();
    }
    node.manager.tear_down("stuck").await.unwrap();
    LinuxMounter.unmount(&hung).unwrap();
}

#[test]
fn a_file_system_that_hangs_delays_only_its_own_volume() {
    with_own_mounts(one_volume_hangs);
}

async fn stats_hang() {
    let node = Node::new(Options::new(DRIVER));
    let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
    let manager = Manager::new(node.host.clone(), Arc::new(clock.clone()));
    let plain = node.dir.path().join("plain");
    create_dir(&plain).unwrap();
    let local = persistent("plain", json!({"local": {"path": plain}}));
    let ready = set_up(&manager, &pod("p"), &local, false).await.unwrap();
    let server = HungServer::mounted_on(&ready.path);
    assert!(manager.stats("p").await.is_empty());
    let before = node.host.looks();
    clock.advance(Duration::from_secs(120));
    assert!(manager.stats("p").await.is_empty());
    assert_eq!(node.host.looks(), before, "a second thread would hang");
    drop(server);
    manager.tear_down("p").await.unwrap();
    assert!(!ready.path.exists());
}

#[test]
fn a_volume_that_hangs_is_not_measured_by_ever_more_threads() {
    with_own_mounts(stats_hang);
}

async fn staging_dies() {
    let node = Node::new(Options::new(DRIVER));
    node.set_up(&pod("p"), &volume("data")).await.unwrap();
    let staging = node.driver.staged()["h-data"].clone();
    drop(HungServer::mounted_on(Path::new(&staging)));
    std::fs::metadata(&staging).unwrap_err();
    node.manager.tear_down("p").await.unwrap();
    until("the driver to unstage it", || {
        node.driver.staged().is_empty()
    })
    .await;
    // This driver leaves the mount, so that the directory stays until it is gone.
    assert!(Path::new(&staging).parent().unwrap().exists());
    LinuxMounter.unmount(Path::new(&staging)).unwrap();
    until("the directory to be removed", || {
        !Path::new(&staging).parent().unwrap().exists()
    })
    .await;
}

#[test]
fn a_staged_volume_whose_file_system_died_is_unstaged() {
    with_own_mounts(staging_dies);
}

async fn fails_and_leaves_a_mount() {
    let node = Node::new(Options::new(DRIVER));
    node.set_csi_driver(json!({"attachRequired": true}));
    node.attach_all();
    node.driver
        .break_method("NodeStageVolume", Fault::Lose(Code::Internal));
    node.set_up(&pod("p"), &volume("data")).await.unwrap_err();
    let staging = node.driver.staged()["h-data"].clone();
    std::fs::create_dir_all(&staging).unwrap();
    LinuxMounter.tmpfs(Path::new(&staging), None).unwrap();
    node.set_up(&pod("p"), &volume("data")).await.unwrap_err();
    node.manager.tear_down("p").await.unwrap();
    // It must stay attached until it is unstaged.
    assert_eq!(node.manager.in_use().borrow().len(), 1);
    LinuxMounter.unmount(Path::new(&staging)).unwrap();
    until("the driver to unstage it", || {
        node.driver.staged().is_empty() && node.manager.in_use().borrow().is_empty()
    })
    .await;
}

#[test]
fn a_volume_that_a_driver_staged_and_then_failed_stays_in_use_until_it_is_unstaged() {
    with_own_mounts(fails_and_leaves_a_mount);
}

async fn nfs_server_hangs() {
    let mut node = Node::new(Options::new(DRIVER));
    let dir = node.dir.path().join("kubelet/pods/p/volumes");
    let dir = dir.join("kubernetes.io~nfs/data");
    std::fs::create_dir_all(&dir).unwrap();
    let server = HungServer::mounted_on(&dir);
    node.restart().await;
    node.manager.tear_down("p").await.unwrap();
    assert!(!dir.exists());
    drop(server);
}

#[test]
fn an_nfs_volume_is_unmounted_although_its_server_hangs() {
    with_own_mounts(nfs_server_hangs);
}
