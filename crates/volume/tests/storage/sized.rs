//! Volumes of the built-in provisioner with enforced capacity: a file system in an image file.

use std::{fs, io, path::Path};

use csi::testing::Options;
use serde_json::json;
use volume::{
    LinuxMounter, Mounter,
    storage::{Expanded, Spec, StepError},
};

use crate::support::{DRIVER, Node, persistent, pod, until, with_own_mounts};

const MIB: usize = 1 << 20;

fn sized(node: &Node, mebibytes: usize) -> Spec {
    let path = node.dir.path().join("local-path/pvc-1");
    let mut spec = persistent(
        "pvc-1",
        json!({"accessModes": ["ReadWriteOnce"], "local": {"path": path},
               "capacity": {"storage": format!("{mebibytes}Mi")}}),
    );
    let volume = std::sync::Arc::make_mut(spec.volume.as_mut().unwrap());
    let annotation = ("mainstay.dev/enforce-capacity".into(), "true".into());
    volume.metadata.annotations = Some([annotation].into());
    spec
}

/// Writes until the disk is full; returns the number of bytes.
fn fill(file: &Path) -> usize {
    use io::Write;
    let mut open = fs::File::create(file).unwrap();
    let block = vec![1; MIB / 4];
    let mut written = 0;
    loop {
        match open
            .write(&block)
            .and_then(|count| open.sync_data().map(|()| count))
        {
            Ok(count) => written += count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                return written;
            }
        }
    }
}

/// Checks that the file system is as large as the volume, except for its metadata.
async fn assert_has_capacity(node: &Node, pod: &str, mebibytes: usize) {
    let stats = node.manager.stats(pod).await;
    let capacity = stats[0].measure.usage.capacity.unwrap() as usize;
    let size = mebibytes * MIB;
    assert!((size * 3 / 4..=size).contains(&capacity), "{capacity}");
}

#[test]
fn a_volume_has_its_capacity_keeps_its_data_and_grows() {
    with_own_mounts(|| async {
        let mut node = Node::new(Options::new(DRIVER));
        fs::create_dir(node.dir.path().join("local-path")).unwrap();
        let ready = node.set_up(&pod("p1"), &sized(&node, 16)).await.unwrap();
        assert_eq!(fs::read_dir(&ready.path).unwrap().count(), 0);
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(&ready.path).unwrap().mode() & 0o777, 0o777);
        let fitted = fill(&ready.path.join("big"));
        assert!((8 * MIB..16 * MIB).contains(&fitted), "{fitted}");
        fs::remove_file(ready.path.join("big")).unwrap();
        fs::write(ready.path.join("kept"), "x").unwrap();
        // The kubelet restarts; another pod of the node gets the same volume.
        node.restart().await;
        let second = node.set_up(&pod("p2"), &sized(&node, 16)).await.unwrap();
        assert!(second.path.join("kept").exists());

        let larger = sized(&node, 32);
        let grown = node.manager.expand("p2", &second.key, &larger, 32 << 20);
        match grown.await {
            Ok(grown) => {
                assert_eq!(grown, Expanded::Done);
                assert_has_capacity(&node, "p2", 32).await;
            }
            // Expanding a mounted file system needs CAP_SYS_RESOURCE.
            Err(error) => assert!(error.to_string().contains("Permission denied"), "{error}"),
        }

        node.manager.tear_down("p1").await.unwrap();
        node.manager.tear_down("p2").await.unwrap();
        let staged = node.dir.path();
        let staged = staged.join("kubelet/plugins/kubernetes.io/local-volume/mounts/pvc-1");
        until("the volume to be unstaged", || !staged.exists()).await;
        // Whether or not that worked, the next pod has the larger volume.
        let third = node.set_up(&pod("p3"), &larger).await.unwrap();
        assert_has_capacity(&node, "p3", 32).await;
        let grown = node.manager.expand("p3", &third.key, &larger, 32 << 20);
        assert_eq!(grown.await, Ok(Expanded::Done));
        node.manager.tear_down("p3").await.unwrap();
        until("the volume to be unstaged", || !staged.exists()).await;
        // An unmounted one is expanded before it is mounted.
        let largest = sized(&node, 48);
        let again = node.set_up(&pod("p4"), &largest).await.unwrap();
        assert!(again.path.join("kept").exists());
        assert_has_capacity(&node, "p4", 48).await;
        let fitted = fill(&again.path.join("big"));
        assert!((34 * MIB..48 * MIB).contains(&fitted), "{fitted}");
        let grown = node.manager.expand("p4", &again.key, &largest, 48 << 20);
        assert_eq!(grown.await, Ok(Expanded::Done));
        node.manager.tear_down("p4").await.unwrap();
        until("the volume to be unstaged", || !staged.exists()).await;
    });
}

#[test]
fn a_volume_that_is_still_mounted_elsewhere_is_the_same_file_system_for_its_next_pod() {
    with_own_mounts(|| async {
        use std::os::unix::fs::MetadataExt;
        let node = Node::new(Options::new(DRIVER));
        fs::create_dir(node.dir.path().join("local-path")).unwrap();
        let first = node.set_up(&pod("p1"), &sized(&node, 16)).await.unwrap();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        let before = device(&first.path);
        // As in a container that has the node's directories.
        let held = node.dir.path().join("held");
        fs::create_dir(&held).unwrap();
        rustix::mount::mount_bind(&first.path, &held).unwrap();
        fs::write(first.path.join("kept"), "not yet on the disk").unwrap();
        node.manager.tear_down("p1").await.unwrap();
        let staged = node.dir.path();
        let staged = staged.join("kubelet/plugins/kubernetes.io/local-volume/mounts/pvc-1");
        until("the volume to be unstaged", || !staged.exists()).await;

        // A larger one is expanded later: e2fsck must not run on a mounted file system.
        let second = node.set_up(&pod("p2"), &sized(&node, 32)).await.unwrap();
        assert_eq!(device(&second.path), before);
        assert!(second.path.join("kept").exists());
        LinuxMounter.unmount(&held).unwrap();
        node.manager.tear_down("p2").await.unwrap();
        until("the volume to be unstaged", || !staged.exists()).await;
    });
}

#[test]
fn an_expansion_that_does_not_fit_takes_no_space() {
    with_own_mounts(|| async {
        // A volume is the disk of another node.
        let outer = Node::new(Options::new(DRIVER));
        fs::create_dir(outer.dir.path().join("local-path")).unwrap();
        let disk = outer.set_up(&pod("p1"), &sized(&outer, 64)).await.unwrap();
        let node = Node::new(Options::new(DRIVER));
        let root = node.dir.path().join("local-path");
        fs::create_dir(&root).unwrap();
        rustix::mount::mount_bind(&disk.path, &root).unwrap();
        let ready = node.set_up(&pod("p1"), &sized(&node, 16)).await.unwrap();

        let free = || rustix::fs::statvfs(&root).unwrap().f_bfree;
        let before = free();
        let larger = sized(&node, 256);
        let grown = node.manager.expand("p1", &ready.key, &larger, 256 << 20);
        let error = grown.await.unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        assert!(
            before.saturating_sub(free()) < 512,
            "{before} blocks, then {}",
            free()
        );
        let image = root.join("pvc-1/volume.img");
        assert_eq!(fs::metadata(image).unwrap().len(), 16 * MIB as u64);

        node.manager.tear_down("p1").await.unwrap();
        let staged = node.dir.path();
        let staged = staged.join("kubelet/plugins/kubernetes.io/local-volume/mounts/pvc-1");
        until("the volume to be unstaged", || !staged.exists()).await;
        // The claim requests less, and pods start again.
        let again = node.set_up(&pod("p2"), &sized(&node, 20)).await.unwrap();
        assert!(again.path.exists());
        node.manager.tear_down("p2").await.unwrap();
        until("the volume to be unstaged", || !staged.exists()).await;
        LinuxMounter.unmount(&root).unwrap();
        outer.manager.tear_down("p1").await.unwrap();
    });
}

#[test]
fn an_interrupted_expansion_is_finished_when_the_volume_is_mounted_again() {
    with_own_mounts(|| async {
        let node = Node::new(Options::new(DRIVER));
        let root = node.dir.path().join("local-path");
        fs::create_dir(&root).unwrap();
        node.set_up(&pod("p1"), &sized(&node, 16)).await.unwrap();
        node.manager.tear_down("p1").await.unwrap();
        let staged = node.dir.path();
        let staged = staged.join("kubelet/plugins/kubernetes.io/local-volume/mounts/pvc-1");
        until("the volume to be unstaged", || !staged.exists()).await;
        // The kubelet was killed after it had expanded the image file.
        let (image, growing) = ("pvc-1/volume.img", "pvc-1/volume.img.growing");
        fs::write(root.join(growing), "").unwrap();
        let file = fs::File::options().write(true).open(root.join(image));
        file.unwrap().set_len(32 * MIB as u64).unwrap();

        node.set_up(&pod("p2"), &sized(&node, 32)).await.unwrap();
        assert_has_capacity(&node, "p2", 32).await;
        assert!(!root.join(growing).exists());
        node.manager.tear_down("p2").await.unwrap();
        until("the volume to be unstaged", || !staged.exists()).await;
    });
}

#[test]
fn a_volume_that_does_not_fit_takes_nothing_and_one_elsewhere_is_refused() {
    with_own_mounts(|| async {
        let node = Node::on_small_disk(Options::new(DRIVER));
        let root = node.dir.path().join("local-path");
        fs::create_dir(&root).unwrap();
        let error = node
            .set_up(&pod("p1"), &sized(&node, 16))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert_eq!(fs::read_dir(root.join("pvc-1")).unwrap().count(), 0);
        let mut elsewhere = sized(&node, 16);
        let volume = std::sync::Arc::make_mut(elsewhere.volume.as_mut().unwrap());
        let local = volume.spec.as_mut().unwrap().local.as_mut().unwrap();
        local.path = node.dir.path().to_string_lossy().into_owned();
        let error = node.set_up(&pod("p2"), &elsewhere).await.unwrap_err();
        assert!(matches!(error.error, StepError::Failed(_)), "{error}");
    });
}
