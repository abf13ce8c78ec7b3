//! `kubectl cp`: large files in little memory, directories, and containers without tar.

use std::{fs, path::Path};

use testkit::{Cluster, Ran};

/// A pod with all of busybox, and one whose PATH has neither tar nor find.
const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: full}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: full
    image: local.test/busybox:1
    imagePullPolicy: Never
    env: [{name: PATH, value: /bin}]
    command: [/bin/busybox, sh, -c]
    args: ["busybox --install -s /bin; touch /ready; sleep 100000"]
    readinessProbe: {exec: {command: [/bin/busybox, test, -e, /ready]}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: bare
    image: local.test/busybox:1
    imagePullPolicy: Never
    env: [{name: PATH, value: /few}]
    command: [/bin/busybox, sh, -c]
    args:
    - |
      b=/bin/busybox; $b mkdir /few
      for name in sh cat test mkdir; do $b ln -s $b /few/$name; done
      $b touch /ready; $b sleep 100000
    readinessProbe: {exec: {command: [/bin/busybox, test, -e, /ready]}, periodSeconds: 1}
"#;

const LARGE: u64 = 300 << 20;
/// KiB of memory that a copy may use: less than the file.
const MEMORY: u32 = 200_000;

/// Runs `kubectl cp` with little memory.
fn copy(cluster: &Cluster, from: &str, to: &str) -> Ran {
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary under test");
    let line = format!("ulimit -d {MEMORY}; exec {binary} kubectl cp {from} {to}");
    let mut command = cluster.machine().command("sh");
    command
        .args(["-c", &line])
        .env("KUBECONFIG", cluster.kubeconfig());
    command.output().expect("sh starts").into()
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("inner/deep")).expect("directories");
    fs::write(root.join("a b"), "one").expect("a file");
    fs::write(root.join("inner/.hidden"), "two").expect("a file");
    fs::write(root.join("inner/deep/empty"), "").expect("a file");
}

#[test]
fn copies_are_streamed_and_need_no_tar_in_the_container() {
    let cluster = Cluster::up();
    let directory = cluster.machine().dir().to_owned();
    let archive = e2e::busybox_archive(&directory);
    cluster.mainstay(&["image", "import", &archive]).success();
    cluster.kubectl_stdin(&["apply", "-f", "-"], PODS).success();
    let ready = "--for=condition=Ready";
    cluster
        .kubectl(&["wait", ready, "pod/full", "pod/bare", "--timeout=60s"])
        .success();

    let large = directory.join("large");
    let file = fs::File::create(&large).expect("a file");
    file.set_len(LARGE).expect("its size");
    for pod in ["full", "bare"] {
        let there = format!("{pod}:/large");
        let back = directory.join("back");
        copy(&cluster, &large.display().to_string(), &there).success();
        copy(&cluster, &there, &back.display().to_string()).success();
        assert_eq!(fs::metadata(&back).expect("a file").len(), LARGE, "{pod}");
        fs::remove_file(&back).expect("it can be removed");
        cluster
            .kubectl(&["exec", pod, "--", "/bin/busybox", "rm", "/large"])
            .success();
    }

    let tree_dir = directory.join("tree");
    tree(&tree_dir);
    for pod in ["full", "bare"] {
        copy(
            &cluster,
            &tree_dir.display().to_string(),
            &format!("{pod}:/tree"),
        )
        .success();
        let back = directory.join(format!("back-{pod}"));
        copy(
            &cluster,
            &format!("{pod}:/tree"),
            &back.display().to_string(),
        )
        .success();
        for (name, text) in [
            ("a b", "one"),
            ("inner/.hidden", "two"),
            ("inner/deep/empty", ""),
        ] {
            let read = fs::read_to_string(back.join(name));
            assert_eq!(read.expect(name), text, "{pod}: {name}");
        }
    }

    // The program's own error, and its exit code.
    let missing = copy(&cluster, "full:/none", "/dev/null");
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(
        missing
            .stderr
            .contains("command terminated with exit code 1"),
        "{missing:?}"
    );
}
