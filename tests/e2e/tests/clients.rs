//! Clients that people write programs with: Python's, an operator on kopf, JavaScript's. They come
//! from their registries once and stay under `target/`; where a registry cannot be reached, the
//! test fails and says so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::Background;
use testkit::{Cluster, Ran, eventually};

/// Where the story scripts are.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Runs an installer of the host, once for this list of packages.
fn install(name: &str, packages: &[&str], steps: impl Fn(&Path) -> Vec<Command>) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Stories of one language may start at once.
    let lock = fs::File::create(directory.with_extension("lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let done = directory.join("installed");
    let wanted = packages.join("\n");
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return directory;
    }
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory");
    for mut step in steps(&directory) {
        let output = step
            .output()
            .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        assert!(
            output.status.success(),
            "cannot install {packages:?}: this story needs the registry they come from\n{step:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::write(done, wanted).expect("a file");
    directory
}

fn python() -> PathBuf {
    let packages = ["kubernetes==37.0.2", "kopf==1.45.2"];
    let directory = install("python-clients", &packages, |directory| {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(directory.join("venv"));
        let mut pip = Command::new(directory.join("venv/bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check"])
            .args(packages);
        vec![make, pip]
    });
    directory.join("venv/bin")
}

fn javascript() -> PathBuf {
    let packages = ["@kubernetes/client-node@1.4.0"];
    install("javascript-clients", &packages, |directory| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--prefix"])
            .arg(directory)
            .args(packages);
        vec![npm]
    })
}

fn with_busybox() -> Cluster {
    let cluster = Cluster::up();
    let archive = e2e::busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    cluster
}

fn run(cluster: &Cluster, program: &Path, script: &Path) -> Ran {
    let mut command = cluster.machine().command(&program.display().to_string());
    command.arg(script).env("KUBECONFIG", cluster.kubeconfig());
    command.output().expect("it starts").into()
}

#[test]
fn the_python_client_works_unchanged() {
    let python = python().join("python");
    let cluster = with_busybox();
    let said = run(&cluster, &python, &scripts().join("story.py")).success();
    assert!(said.contains("the Python story holds"), "{said}");
}

#[test]
fn the_javascript_client_works_unchanged() {
    let directory = javascript();
    // Modules are looked for beside the script.
    let script = directory.join("story.mjs");
    fs::copy(scripts().join("story.mjs"), &script).expect("the script");
    let cluster = with_busybox();
    let said = run(&cluster, Path::new("node"), &script).success();
    assert!(said.contains("the JavaScript story holds"), "{said}");
}

#[test]
fn an_operator_on_kopf_follows_its_objects() {
    let kopf = python().join("kopf");
    let cluster = Cluster::up();
    let definition = scripts().join("greetings.yaml").display().to_string();
    cluster.kubectl(&["apply", "-f", &definition]).success();
    cluster.get(&["crd", "greetings.story.mainstay.local"]);
    let log = cluster.machine().dir().join("kopf.log");
    let mut operator = cluster.machine().command(&kopf.display().to_string());
    operator
        .args(["run", "--standalone", "--namespace", "default"])
        .arg(scripts().join("operator_story.py"))
        .env("KUBECONFIG", cluster.kubeconfig())
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log).expect("a log"))
        .stderr(Stdio::null());
    let _operator = Background(operator.spawn().expect("kopf starts"));

    let greeting = |text: &str| {
        format!(
            r#"{{"apiVersion": "story.mainstay.local/v1", "kind": "Greeting",
                "metadata": {{"name": "one"}}, "spec": {{"text": "{text}"}}}}"#
        )
    };
    let said = |expected: &str| {
        eventually(&format!("the operator says {expected}"), || {
            let map = cluster.kubectl(&[
                "get",
                "configmap",
                "greeting-one",
                "-o",
                "jsonpath={.data.text}",
            ]);
            if map.ok && map.stdout == expected {
                return Ok(());
            }
            Err(format!(
                "{map:?} {}",
                fs::read_to_string(&log).unwrap_or_default()
            ))
        });
    };
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], &greeting("hello"))
        .success();
    said("hello");
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], &greeting("goodbye"))
        .success();
    said("goodbye");
    cluster.kubectl(&["delete", "greeting", "one"]).success();
    eventually("it is cleaned up", || {
        let map = cluster.kubectl(&["get", "configmap", "greeting-one"]);
        if map.ok { Err(map.stdout) } else { Ok(()) }
    });
}
