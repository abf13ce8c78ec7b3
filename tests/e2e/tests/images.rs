//! Imported images: an archive is imported and a pod runs from it, without any registry.

use std::fs;

use e2e::busybox_archive;
use testkit::{Cluster, eventually};

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
    export_pull_and_remove(&cluster, "local.test/busybox:1");

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

/// Exports to a file and imports again; a missing image is reported.
fn export_pull_and_remove(cluster: &Cluster, image: &str) {
    let archive = cluster.machine().dir().join("exported.tar");
    let file = archive.display().to_string();
    let exported = cluster.mainstay(&["image", "export", image, &file]);
    assert!(exported.success().contains("exported"));
    assert!(fs::metadata(&archive).expect("an archive").len() > 100_000);
    assert!(!archive.with_extension("tar.partial").exists());
    cluster.mainstay(&["image", "remove", image]).success();
    let listed = cluster.mainstay(&["image", "list"]).success();
    assert!(!listed.contains(image), "{listed}");
    let imported = cluster.mainstay(&["image", "import", &file]).success();
    assert!(imported.contains(image), "{imported}");
    let hello = "mainstay.local/hello";
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
