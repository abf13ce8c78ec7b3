//! Images that people bring: an archive is imported and a pod runs from it, without any registry.

use std::{fs, path::Path, process::Command};

use testkit::{Cluster, eventually};

/// Runs a program of the host and gives what it printed.
fn host(directory: &Path, program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(directory)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An image as `docker save` writes it: one layer with a static busybox.
fn busybox_archive(directory: &Path) -> String {
    fs::create_dir_all(directory.join("root/bin")).expect("a directory");
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let busybox = busybox.expect("busybox is installed (make test does it)");
    fs::copy(busybox, directory.join("root/bin/busybox")).expect("busybox can be copied");
    host(directory, "tar", &["-C", "root", "-cf", "layer.tar", "bin"]);
    let digest = host(directory, "sha256sum", &["layer.tar"]);
    let digest = digest.split_whitespace().next().expect("a digest");
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","config":{{"Cmd":["/bin/busybox","echo","from busybox"]}},
            "rootfs":{{"type":"layers","diff_ids":["sha256:{digest}"]}}}}"#,
        if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        },
    );
    fs::write(directory.join("config.json"), config).expect("a file");
    let manifest =
        r#"[{"Config":"config.json","RepoTags":["local.test/busybox:1"],"Layers":["layer.tar"]}]"#;
    fs::write(directory.join("manifest.json"), manifest).expect("a file");
    host(
        directory,
        "tar",
        &[
            "-cf",
            "image.tar",
            "manifest.json",
            "config.json",
            "layer.tar",
        ],
    );
    directory.join("image.tar").display().to_string()
}

#[test]
fn an_imported_archive_runs_and_a_missing_image_says_so() {
    let cluster = Cluster::up();
    let archive = busybox_archive(cluster.machine().dir());
    let imported = cluster.mainstay(&["image", "import", &archive]).success();
    assert!(imported.contains("local.test/busybox:1"), "{imported}");
    let listed = cluster.mainstay(&["image", "list"]).success();
    assert!(
        listed.contains("mainstay.local/hello") && listed.contains("local.test/busybox"),
        "{listed}"
    );

    let run = [
        "run",
        "box",
        "--image=local.test/busybox:1",
        "--restart=Never",
    ];
    cluster
        .kubectl(&[&run[..], &["--image-pull-policy=Never"]].concat())
        .success();
    eventually("the pod to end", || {
        let pod = cluster.get(&["pod", "box"]);
        if pod["status"]["phase"] == "Succeeded" {
            Ok(())
        } else {
            Err(pod["status"].to_string())
        }
    });
    assert_eq!(
        cluster.kubectl(&["logs", "box"]).success().trim(),
        "from busybox"
    );

    let missing = [
        "run",
        "lost",
        "--image=local.test/nothing:1",
        "--image-pull-policy=Never",
    ];
    cluster.kubectl(&missing).success();
    eventually("the reason", || {
        let pod = cluster.get(&["pod", "lost"]);
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        if waiting["reason"] == "ErrImageNeverPull" {
            Ok(())
        } else {
            Err(pod["status"].to_string())
        }
    });
}

#[test]
fn a_broken_archive_is_refused_with_a_reason() {
    let cluster = Cluster::up();
    let broken = cluster.machine().dir().join("broken.tar");
    fs::write(&broken, "this is no archive").expect("a file");
    let ran = cluster.mainstay(&["image", "import", &broken.display().to_string()]);
    assert!(!ran.ok);
    assert!(ran.stderr.contains("broken.tar"), "{}", ran.stderr);
}

#[test]
fn images_are_exported_pulled_and_removed_from_the_command_line() {
    let cluster = Cluster::up();
    let archive = cluster.machine().dir().join("hello.tar");
    let file = archive.display().to_string();
    let hello = "mainstay.local/hello";
    let exported = cluster.mainstay(&["image", "export", hello, &file]);
    assert!(exported.success().contains("exported"));
    assert!(fs::metadata(&archive).expect("an archive").len() > 1 << 20);
    assert!(!archive.with_extension("tar.partial").exists());
    cluster.mainstay(&["image", "remove", hello]).success();
    let listed = cluster.mainstay(&["image", "list"]).success();
    assert!(!listed.contains(hello), "{listed}");
    let imported = cluster.mainstay(&["image", "import", &file]).success();
    assert!(imported.contains(hello), "{imported}");
    let pulled = cluster.mainstay(&["image", "pull", hello]).success();
    assert!(pulled.contains("pulled mainstay.local/hello"), "{pulled}");

    let nowhere = cluster.machine().dir().join("nowhere.tar");
    let elsewhere = nowhere.display().to_string();
    let refusals: [&[&str]; 3] = [
        &["image", "export", "no/such:1", &elsewhere],
        &["image", "remove", "no/such:1"],
        &["image", "pull", "127.0.0.1:1/no/such:1"],
    ];
    for refused in refusals {
        let ran = cluster.mainstay(refused);
        assert!(!ran.ok && ran.stderr.contains("no/such"), "{}", ran.stderr);
    }
    assert!(!nowhere.exists());
}
