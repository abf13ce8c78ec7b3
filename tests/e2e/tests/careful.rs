//! Foreign state is kept, and losses are reported: reset, address ranges in use, a store with
//! missing files, and a stop during a start.

use std::{fs, process::Stdio};

use testkit::{Cluster, Machine, eventually};

fn binary() -> String {
    std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN names the binary under test")
}

#[test]
fn a_directory_that_is_not_ours_is_not_reset() {
    let machine = Machine::new();
    let foreign = machine.dir().join("photos");
    fs::create_dir_all(foreign.join("2026")).expect("a directory");
    let path = foreign.to_str().expect("a path");
    let ran = machine.run(&binary(), &["reset", "--yes", "--data-dir", path]);
    assert!(
        !ran.ok && ran.stderr.contains("is not a data directory"),
        "{ran:?}"
    );
    assert!(foreign.join("2026").is_dir());
}

#[test]
fn reset_of_a_mounted_data_directory_removes_only_own_files() {
    let mut cluster = Cluster::stopped(&[]);
    let data = cluster.data_dir();
    let path = data.to_str().expect("a path").to_owned();
    let machine = cluster.machine();
    machine.run("mkdir", &[&path]).success();
    machine
        .run("mount", &["-t", "tmpfs", "tmpfs", &path])
        .success();
    machine.run("mkdir", &[&format!("{path}/photos")]).success();
    cluster.start();
    let while_running = cluster.mainstay(&["reset", "--yes"]);
    assert!(
        while_running.stderr.contains("already running"),
        "{while_running:?}"
    );
    a_second_cluster_with_the_same_addresses_is_refused(&cluster);
    let removed = cluster.reset().success();
    assert!(
        removed.contains(&format!("kept {path}/photos: not made by mainstay")),
        "{removed}"
    );
    assert!(
        removed.contains(&format!("kept {path}: a mount point")),
        "{removed}"
    );
    let left = cluster.machine().run("ls", &["-A", &path]).success();
    assert_eq!(left.trim(), "photos");
    cluster.machine().run("mountpoint", &[&path]).success();
}

fn a_second_cluster_with_the_same_addresses_is_refused(cluster: &Cluster) {
    let second = cluster.machine().disk().join("second");
    let second = second.to_str().expect("a path");
    let ports = ["--https-port", "7443", "--kubelet-port", "11250"];
    let up = [&["up", "--data-dir", second][..], &ports].concat();
    let ran = cluster.machine().run(&binary(), &up);
    assert!(!ran.ok, "it started");
    for range in ["--service-cidr 10.43.0.0/16", "--cluster-cidr 10.42.0.0/16"] {
        assert!(ran.stderr.contains(range), "{}", ran.stderr);
    }
    cluster
        .machine()
        .run(&binary(), &["reset", "--yes", "--data-dir", second])
        .success();
}

#[test]
fn a_cluster_whose_store_is_missing_refuses_to_start() {
    let mut cluster = Cluster::up();
    let data = cluster.data_dir();
    let path = data.to_str().expect("a path").to_owned();
    let manifest = |cluster: &Cluster| {
        let file = format!("{path}/store/manifest");
        cluster.machine().run("sha256sum", &[&file]).success()
    };
    let before = manifest(&cluster);
    cluster.kubectl(&["create", "configmap", "kept"]).success();
    // A loss is noticed from the manifest, which follows the writes within a second.
    eventually("the manifest", || match manifest(&cluster) == before {
        true => Err("it is not written".to_owned()),
        false => Ok(()),
    });
    cluster.kill();
    let refused = |cluster: &Cluster| {
        let ran = cluster.mainstay(&["up", "--node-name", "one"]);
        assert!(!ran.ok, "it started");
        assert!(ran.stderr.contains("--accept-data-loss"), "{}", ran.stderr);
        ran.stderr
    };
    let shell = |cluster: &Cluster, line: &str| {
        cluster.machine().run("sh", &["-ec", line]).success();
    };
    shell(&cluster, &format!("mv {path}/store {path}/aside"));
    let why = refused(&cluster);
    assert!(why.contains("store is empty"), "{why}");
    // Half of the log is left.
    shell(
        &cluster,
        &format!(
            "rm -rf {path}/store && cp -a {path}/aside {path}/store && cd {path}/store \
             && truncate -s 65536 $(ls log-* | tail -1)"
        ),
    );
    let why = refused(&cluster);
    assert!(
        why.contains("was cut") && why.contains("had been written"),
        "{why}"
    );
    shell(
        &cluster,
        &format!("rm -rf {path}/store && mv {path}/aside {path}/store"),
    );
    cluster.start();
    cluster.kubectl(&["get", "configmap", "kept"]).success();
}

#[test]
fn a_stop_in_the_middle_of_a_start_is_clean() {
    for moment in [
        "ok: API server",
        "ok: scheduler",
        "ok: container runtime",
        "is Ready",
    ] {
        let machine = Machine::new();
        let log = machine.dir().join("log");
        let data = machine.disk().join("data");
        let output = fs::File::create(&log).expect("a file");
        let mut daemon = machine
            .command(&binary())
            .args(["up", "--node-name", "one", "--data-dir"])
            .arg(&data)
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let said = |words: &str| {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains(words) {
                Ok(())
            } else {
                Err(text)
            }
        };
        eventually(moment, || said(moment));
        machine
            .run("kill", &["-TERM", &daemon.id().to_string()])
            .success();
        // Services that do not stop in time make it fail.
        let status = daemon.wait().expect("it ends");
        assert!(status.success(), "{moment}: {status}");
        let data = data.to_str().expect("a path");
        machine
            .run(&binary(), &["reset", "--yes", "--data-dir", data])
            .success();
    }
}
