//! Without overlayfs containers get copies, with the same contents and accounting.

use std::{
    fs,
    time::{Duration, Instant},
};

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

async fn written(node: &Node, container: &str) -> (u64, u64) {
    let request = v1::ContainerStatsRequest {
        container_id: container.into(),
    };
    let answer = node.cri.clone().runtime.container_stats(request).await;
    let layer = answer
        .unwrap()
        .into_inner()
        .stats
        .unwrap()
        .writable_layer
        .unwrap();
    (
        layer.used_bytes.unwrap().value,
        layer.inodes_used.unwrap().value,
    )
}

async fn filesystems(node: &Node) -> (u64, u64) {
    let answer = node
        .cri
        .clone()
        .images
        .image_fs_info(v1::ImageFsInfoRequest {})
        .await;
    let answer = answer.unwrap().into_inner();
    let bytes = |list: Vec<v1::FilesystemUsage>| list[0].used_bytes.unwrap().value;
    (
        bytes(answer.image_filesystems),
        bytes(answer.container_filesystems),
    )
}

async fn lives(node: &Node, copies: bool) {
    let pod = node.run_sandbox(sandbox_config(node, "snap")).await;
    let (image, before) = filesystems(node).await;
    let one = node.run(&pod, container_config("one", &["sleep"])).await;
    let two = node.run(&pod, container_config("two", &["sleep"])).await;
    let hello = async |container: &str, args: &[&str]| {
        let mut command = vec!["/mainstay", "hello"];
        command.extend(args);
        let output = node.exec(container, &command).await;
        (output.exit_code, String::from_utf8(output.stdout).unwrap())
    };
    let start = written(node, &one).await;
    hello(&one, &["write", "/etc/passwd", "mine"]).await;
    hello(&one, &["write", "/tmp/new", &"x".repeat(60_000)]).await;
    hello(&one, &["rm", "/etc/group"]).await;
    assert_eq!(hello(&one, &["cat", "/etc/passwd"]).await.1, "mine\n");
    assert!(
        hello(&two, &["cat", "/etc/passwd"])
            .await
            .1
            .starts_with("root:x:0:0")
    );
    assert_eq!(
        hello(&two, &["cat", "/etc/group"]).await.0,
        0,
        "others have theirs"
    );
    assert_ne!(hello(&one, &["cat", "/etc/group"]).await.0, 0);
    // The size is cached, and blocks are allocated late.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut end = written(node, &one).await;
    while end.0 < start.0 + 50_000 {
        assert!(Instant::now() < deadline, "{start:?} {end:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        end = written(node, &one).await;
    }
    assert!(end.0 < start.0 + 1_000_000, "{start:?} {end:?}");
    assert!(end.1 > start.1 || copies, "{start:?} {end:?}");
    assert!(
        start.0 < 1_000_000,
        "the image itself is not the container's: {start:?}"
    );
    let (mut image_now, mut after) = filesystems(node).await;
    while copies && after - before <= image {
        assert!(Instant::now() < deadline, "{before} {after} of {image}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        (image_now, after) = filesystems(node).await;
    }
    // Blocks are allocated late.
    assert!(image.abs_diff(image_now) < 100_000, "{image} {image_now}");
    // Two copies use twice the image's size; two overlays almost nothing.
    let taken = after - before;
    assert!(copies || taken < image / 10, "{taken} of {image}");
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted = mounted
        .lines()
        .filter(|line| line.contains(&node.id) && line.contains("overlay"))
        .count();
    assert_eq!(mounted, if copies { 0 } else { 2 });
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlays_share_unchanged_files() {
    let node = Node::start().await;
    lives(&node, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_as_good_as_overlays() {
    let node = Node::with_handlers(&["--snapshots=copy"]).await;
    lives(&node, true).await;
}
