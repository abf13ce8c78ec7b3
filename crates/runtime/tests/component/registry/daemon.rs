//! Images through the daemon's socket: pulled, killed halfway, exported, mounted, run.

use std::{fs, sync::Arc};

use cri::{
    files::{ExportRequest, Piece, PullRequest, PullStage, image_files_client::ImageFilesClient},
    tonic::{Code, Status, transport::Channel},
    v1,
};
use serde_json::json;
use tokio::sync::Notify;

use super::{
    Registry, Sample, digest,
    fake::{Fake, Manners},
    image, layer, sample,
};
use crate::support::{HELLO, Node, container_config, sandbox_config};

async fn node(
    registries: &runtime::images::registry::Registries,
    more: &[&str],
) -> (Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("registries.json");
    fs::write(&file, serde_json::to_vec(registries).unwrap()).unwrap();
    let setting = format!("--registries={}", file.display());
    let mut settings = vec![setting.as_str()];
    settings.extend(more);
    (Node::with_handlers(&settings).await, dir)
}

pub(crate) fn spec(image: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec {
        image: image.into(),
        ..Default::default()
    })
}

async fn pull(node: &Node, name: &str, auth: Option<v1::AuthConfig>) -> Result<String, Status> {
    let request = v1::PullImageRequest {
        image: spec(name),
        auth,
        ..Default::default()
    };
    let pulled = node.cri.clone().images.pull_image(request).await?;
    Ok(pulled.into_inner().image_ref)
}

async fn status(node: &Node, name: &str) -> Option<v1::Image> {
    let request = v1::ImageStatusRequest {
        image: spec(name),
        verbose: false,
    };
    let answer = node.cri.clone().images.image_status(request).await;
    answer.unwrap().into_inner().image
}

async fn remove(node: &Node, name: &str) {
    let request = v1::RemoveImageRequest { image: spec(name) };
    node.cri.clone().images.remove_image(request).await.unwrap();
}

fn files(node: &Node) -> ImageFilesClient<Channel> {
    ImageFilesClient::new(cri::channel(node.state.join("cri.sock")))
}

pub(crate) async fn import(node: &Node, archive: Vec<u8>) -> Result<Vec<String>, Status> {
    let pieces: Vec<Piece> = archive
        .chunks(100_000)
        .map(|content| Piece {
            content: content.to_vec(),
        })
        .collect();
    let answer = files(node).import(tokio_stream::iter(pieces)).await?;
    Ok(answer.into_inner().images)
}

async fn export(node: &Node, image: &str) -> Result<Vec<u8>, Status> {
    let request = ExportRequest {
        image: image.into(),
    };
    let mut pieces = files(node).export(request).await?.into_inner();
    let mut archive = Vec::new();
    while let Some(piece) = pieces.message().await? {
        archive.extend(piece.content);
    }
    Ok(archive)
}

/// The number of entries in a directory of the store.
fn stored(node: &Node, place: &str) -> usize {
    fs::read_dir(node.root.join("runtime").join(place))
        .unwrap()
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_uses_the_credentials_of_the_kubelet_and_shows_progress() {
    let registry = Registry::start(true);
    let sample = sample();
    registry.push("app", &sample).await;
    let (node, _dir) = node(&registry.registries(), &[]).await;
    let name = format!("{}/app:v1", registry.address);
    let refused = pull(&node, &name, None).await.unwrap_err();
    assert!(refused.message().contains("401"), "{refused}");
    let auth = v1::AuthConfig {
        username: "ada".into(),
        password: "lovelace".into(),
        ..Default::default()
    };
    let id = pull(&node, &name, Some(auth)).await.unwrap();
    assert_eq!(id, digest(&sample.config));
    let known = status(&node, &name).await.unwrap();
    assert_eq!(known.uid.unwrap().value, 7);
    assert_eq!(
        known.repo_digests,
        [format!(
            "{}/app@{}",
            registry.address,
            digest(&sample.manifest)
        )]
    );
    remove(&node, &name).await;
    assert!(status(&node, &name).await.is_none());

    let request = PullRequest {
        image: name.clone(),
        username: "ada".into(),
        password: "lovelace".into(),
    };
    let mut messages = files(&node).pull(request).await.unwrap().into_inner();
    let mut last = None;
    while let Some(message) = messages.message().await.unwrap() {
        last = Some(message);
    }
    let last = last.unwrap();
    assert_eq!(last.id, id);
    assert_eq!(last.parts.len(), 4);
    let done = i32::from(PullStage::Done);
    assert!(
        last.parts
            .iter()
            .all(|part| part.stage == done && part.have == part.size)
    );
    let log = node.daemon_log();
    assert!(log.contains("pulled") && !log.contains("lovelace"), "{log}");
    let anonymous = PullRequest {
        image: "127.0.0.1:1/none:v1".into(),
        ..Default::default()
    };
    let mut messages = files(&node).pull(anonymous).await.unwrap().into_inner();
    let refused = messages.message().await.unwrap_err();
    assert!(refused.message().contains("127.0.0.1:1"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_in_the_middle_of_a_pull_leaves_nothing_that_looks_whole() {
    let noise: String = (0..200_000_u64)
        .map(|number| format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    let sample = image(&[layer("small", "x"), layer("noise", &noise)], json!({}));
    let stall = Arc::new(Notify::new());
    let manners = Manners {
        stall: Some(stall.clone()),
        cut_after: 300_000,
        ..Manners::default()
    };
    let fake = Fake::start(manners).await;
    fake.put("v1", &sample);
    let (mut node, _dir) = node(&fake.registries(), &[]).await;
    let before = (stored(&node, "layers"), stored(&node, "blobs/sha256"));
    let name = fake.name("app:v1");
    let mut client = node.cri.clone();
    let request = v1::PullImageRequest {
        image: spec(&name),
        ..Default::default()
    };
    let pulling = tokio::spawn(async move { client.images.pull_image(request).await });
    fake.stalled().await;
    // Some of the second layer is on disk already.
    let part = digest(&sample.layers[1].1).replace(':', "-");
    let staging = node.root.join("runtime/staging");
    node.wait_for("half a blob", || {
        let mut files = fs::read_dir(&staging).into_iter().flatten().flatten();
        files.any(|file| {
            file.file_name().to_string_lossy().starts_with(&part)
                && file.metadata().is_ok_and(|meta| meta.len() >= 300_000)
        })
    })
    .await;
    node.kill_daemon();
    assert!(pulling.await.unwrap().is_err());
    node.launch().await;
    assert!(status(&node, &name).await.is_none());
    let after = (stored(&node, "layers"), stored(&node, "blobs/sha256"));
    assert_eq!(after, before, "nothing is left but what can be continued");
    pull(&node, &name, None).await.unwrap();
    assert!(
        fake.seen()
            .iter()
            .any(|line| line.ends_with("bytes=300000-")),
        "{:?}",
        fake.seen()
    );
    assert_eq!(stored(&node, "staging"), 0);
    assert_eq!(stored(&node, "layers"), before.0 + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_asked_to_stop_waits_for_no_registry() {
    let noise = "noise".repeat(1000);
    let sample = image(&[layer("small", "x"), layer("noise", &noise)], json!({}));
    let manners = Manners {
        stall: Some(Arc::default()),
        cut_after: 1000,
        ..Manners::default()
    };
    let fake = Fake::start(manners).await;
    fake.put("v1", &sample);
    let (mut node, _dir) = node(&fake.registries(), &[]).await;
    let mut client = node.cri.clone();
    let request = v1::PullImageRequest {
        image: spec(&fake.name("app:v1")),
        ..Default::default()
    };
    let pulling = tokio::spawn(async move { client.images.pull_image(request).await });
    fake.stalled().await;
    node.terminate_daemon().await;
    assert!(pulling.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_imported_exported_and_mounted_as_volumes() {
    let (node, _dir) = node(&Default::default(), &["--max-bytes=300000000"]).await;
    let plain = [layer("data/base", "one"), layer("data/top", "two")];
    let config = image(&plain, json!({})).config;
    let archive = Sample::docker_archive(&plain, &config, "vol:1");
    let imported = import(&node, archive).await.unwrap();
    assert_eq!(imported, ["docker.io/library/vol:1"]);

    let pod = node.run_sandbox(sandbox_config(&node, "vol")).await;
    let mount = |path: &str, sub: &str| v1::Mount {
        container_path: path.into(),
        image: spec("vol:1"),
        image_sub_path: sub.into(),
        ..Default::default()
    };
    let mut config = container_config("vol", &["sleep"]);
    config.mounts = vec![mount("/all", ""), mount("/sub", "data")];
    let container = node.run(&pod, config).await;
    let cat = |path: &'static str| {
        let (node, container) = (&node, container.clone());
        async move {
            let output = node
                .exec(&container, &["/mainstay", "hello", "cat", path])
                .await;
            String::from_utf8(output.stdout).unwrap()
        }
    };
    assert_eq!(cat("/all/data/base").await, "one");
    assert_eq!(cat("/sub/top").await, "two");
    let denied = node
        .exec(&container, &["/mainstay", "hello", "write", "/sub/x", "x"])
        .await;
    assert!(String::from_utf8_lossy(&denied.stderr).contains("Read-only"));
    let mut config = container_config("out", &["sleep"]);
    config.mounts = vec![mount("/out", "../../../etc")];
    let made = node.try_create(&pod, config).await;
    if let Ok(made) = made {
        panic!("a sub path led out: {}", made);
    }

    // The built-in image can be exported, too.
    let archive = export(&node, HELLO).await.unwrap();
    let other = Node::start().await;
    remove(&other, HELLO).await;
    assert!(status(&other, HELLO).await.is_none());
    assert_eq!(import(&other, archive).await.unwrap(), [HELLO]);
    let pod = other.run_sandbox(sandbox_config(&other, "taken")).await;
    let ended = other
        .run(&pod, container_config("ended", &["exit", "3"]))
        .await;
    assert_eq!(other.wait_exit(&ended).await.exit_code, 3);
    let missing = export(&node, "no/such").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let refused = import(&node, b"no archive".to_vec()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreferenced_layers_are_garbage_collected() {
    let (node, _dir) = node(&Default::default(), &[]).await;
    let binary = fs::read("/usr/bin/busybox")
        .or_else(|_| fs::read("/bin/busybox"))
        .unwrap();
    let plain = [program(&binary)];
    let config = image(&plain, json!({ "Cmd": ["/busybox", "sleep", "1000"] })).config;
    import(&node, Sample::docker_archive(&plain, &config, "box:1"))
        .await
        .unwrap();
    let layers = stored(&node, "layers");
    let pod = node.run_sandbox(sandbox_config(&node, "box")).await;
    let mut config = container_config("box", &[]);
    config.image = spec("box:1");
    let container = node.run(&pod, config).await;
    remove(&node, "box:1").await;
    assert!(status(&node, "box:1").await.is_none());
    assert_eq!(stored(&node, "layers"), layers, "a container stands on it");
    // A device node of the image exists, but cannot be used.
    let output = node
        .exec(&container, &["/busybox", "head", "-c1", "/memory"])
        .await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.exit_code != 0 && said.contains("not permitted"),
        "{output:?}"
    );
    let mode = node
        .exec(
            &container,
            &["/busybox", "stat", "-c", "%a %F", "/memory", "/busybox"],
        )
        .await;
    let mode = String::from_utf8_lossy(&mode.stdout).into_owned();
    assert_eq!(mode, "644 character special file\n4755 regular file\n");
    node.remove_sandbox(&pod).await;
    node.wait_for("the layer to go", || stored(&node, "layers") == layers - 1)
        .await;
    // Other users of the machine cannot access such files.
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(node.root.join("runtime"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0);
}

/// A set-user-id program and /dev/mem as a device.
fn program(binary: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(binary.len() as u64);
    header.set_mode(0o4755);
    archive.append_data(&mut header, "busybox", binary).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Char);
    header.set_device_major(1).unwrap();
    header.set_device_minor(1).unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    archive
        .append_data(&mut header, "memory", &b""[..])
        .unwrap();
    archive.into_inner().unwrap()
}
