//! Container logs, as kubelets read them.

use std::{fs, path::Path};

use cri::v1;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::support::{Node, container_config, sandbox_config};

/// The output in a log, with the length of each record.
fn decode(path: &Path, stream: &str) -> (Vec<u8>, Vec<usize>) {
    let log = fs::read(path).unwrap();
    let (mut output, mut lengths) = (Vec::new(), Vec::new());
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").expect("whole lines only");
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (time, of) = (parts.next().unwrap(), parts.next().unwrap());
        assert_eq!(time.len(), "2016-10-06T00:17:09.669794202Z".len());
        let (tag, content) = (parts.next().unwrap(), parts.next().unwrap());
        if of != stream.as_bytes() {
            continue;
        }
        output.extend_from_slice(content);
        lengths.push(content.len());
        match tag {
            b"F" => output.push(b'\n'),
            b"P" => {}
            other => panic!("tag {other:?}"),
        }
    }
    (output, lengths)
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lines_binary_and_huge_output_are_logged_unchanged() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "logs")).await;
    let dir = node.logs.join("logs");

    let long = "x".repeat(40_000);
    let said = node
        .run(&pod, container_config("long", &["say", &long]))
        .await;
    node.wait_exit(&said).await;
    let (output, lengths) = decode(&dir.join("long.log"), "stdout");
    assert_eq!(output, format!("{long}\n").into_bytes());
    assert_eq!(lengths, [16_384, 16_384, 40_000 - 2 * 16_384]);

    // Bytes of every value, lines of every length, no newline at the end.
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes: Vec<u8> = (0..1_000_000)
        .map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        })
        .collect();
    bytes.extend_from_slice(b"\0\xff end");
    let file = node.root.join("bytes");
    fs::write(&file, &bytes).unwrap();
    let mut config = container_config("binary", &["cat", "/bytes"]);
    config.mounts = vec![v1::Mount {
        container_path: "/bytes".into(),
        host_path: file.display().to_string(),
        ..Default::default()
    }];
    let binary = node.run(&pod, config).await;
    assert_eq!(node.wait_exit(&binary).await.exit_code, 0);
    // The last line has no newline and is a partial record.
    let (output, _) = decode(&dir.join("binary.log"), "stdout");
    assert!(output == bytes, "{} of {} bytes", output.len(), bytes.len());

    let huge = node
        .run(&pod, container_config("huge", &["log", "50000"]))
        .await;
    assert_eq!(node.wait_exit(&huge).await.exit_code, 0);
    let count = |stream: &str| decode(&dir.join("huge.log"), stream).1.len();
    assert_eq!(count("stdout") + count("stderr"), 2 * 50_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_moved_away_again_and_again_loses_nothing() {
    let node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "turns")).await;
    let dir = node.logs.join("turns");
    let lines = 600;
    let loud = node
        .run(&pod, container_config("loud", &["log", "600", "1"]))
        .await;
    let mut turns = 0;
    while node.status(&loud).await.state == i32::from(v1::ContainerState::ContainerRunning) {
        fs::rename(dir.join("loud.log"), dir.join(format!("loud.log.{turns}"))).unwrap();
        let request = v1::ReopenContainerLogRequest {
            container_id: loud.clone(),
        };
        // It may have ended meanwhile.
        if node
            .cri
            .clone()
            .runtime
            .reopen_container_log(request)
            .await
            .is_err()
        {
            break;
        }
        turns += 1;
    }
    node.wait_exit(&loud).await;
    let mut seen = 0;
    for entry in fs::read_dir(&dir).unwrap().flatten() {
        let both = ["stdout", "stderr"].map(|stream| decode(&entry.path(), stream).1.len());
        seen += both[0] + both[1];
    }
    assert!(turns > 1);
    assert_eq!(seen, 2 * lines, "over {turns} files");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_output_but_not_the_container() {
    let node = Node::start().await;
    let disk = node.logs.join("full");
    fs::create_dir_all(&disk).unwrap();
    let (none, kind) = (MsFlags::empty(), Some("tmpfs"));
    mount(kind, &disk, kind, none, Some("size=64k")).unwrap();
    let ballast = disk.join("ballast");
    let pod = node.run_sandbox(sandbox_config(&node, "full")).await;
    let loud = node
        .run(&pod, container_config("loud", &["log", "1000000", "1"]))
        .await;
    node.wait_for("a first line", || !node.log("full", "loud").is_empty())
        .await;
    // Fill the rest of the disk.
    let _ = fs::write(&ballast, vec![0; 1 << 20]);
    let log = disk.join("loud.log");
    let length = || fs::metadata(&log).unwrap().len();
    let mut last = length();
    node.wait_for("the disk to be full", || {
        // The log's last page may still have space.
        let now = length();
        let full = now == last && fs::write(disk.join("probe"), [0; 5000]).is_err();
        last = now;
        full
    })
    .await;
    let running = async || {
        let output = node.exec(&loud, &["/mainstay", "hello", "exit", "5"]).await;
        assert_eq!(output.exit_code, 5);
    };
    running().await;
    fs::remove_file(&ballast).unwrap();
    let _ = fs::remove_file(disk.join("probe"));
    node.wait_for("lines again", || length() > last + 200).await;
    running().await;
    node.stop(&loud, 5).await;
    // No torn lines, however often part of a line fitted.
    let text = fs::read_to_string(&log).unwrap();
    let torn = text.lines().filter(|line| {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        words.len() != 4 || words[0].len() != 30 || !["stdout", "stderr"].contains(&words[1])
    });
    assert_eq!(torn.count(), 0, "{text}");
    node.remove_sandbox(&pod).await;
    umount2(&disk, MntFlags::MNT_DETACH).unwrap();
}
