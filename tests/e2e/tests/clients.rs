//! Client libraries: Python's, an operator on kopf, JavaScript's. They are downloaded once from
//! their registries and kept under `target/`; if a registry is unreachable, the test fails and says
//! so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{Background, install};
use testkit::{Cluster, Ran, eventually};

/// The directory of the scripts.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// The directory of downloads.
fn tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn python() -> PathBuf {
    let packages = ["kubernetes==37.0.2", "kopf==1.45.2"];
    let directory = install(tmp(), "python-clients", &packages, |directory| {
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
    install(tmp(), "javascript-clients", &packages, |directory| {
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
    // Modules are searched beside the script.
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

/// Starts an operator that serves webhooks.
fn with_webhooks(cluster: &Cluster, kopf: &Path, log: &Path) -> Background {
    let directory = cluster.machine().dir();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let (certificate, key) = (directory.join("hook.crt"), directory.join("hook.key"));
    fs::write(&certificate, made.cert.pem()).expect("a file");
    fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
    let mut operator = cluster.machine().command(&kopf.display().to_string());
    operator
        .args(["run", "--standalone", "--namespace", "default"])
        .arg(scripts().join("admission_story.py"))
        .env("KUBECONFIG", cluster.kubeconfig())
        // The cluster's machine has its own ports.
        .env("WEBHOOK_PORT", "9443")
        .env("WEBHOOK_CERTIFICATE", certificate)
        .env("WEBHOOK_KEY", key)
        .stdin(Stdio::null())
        .stdout(fs::File::create(log).expect("a log"))
        .stderr(Stdio::null());
    Background(operator.spawn().expect("kopf starts"))
}

fn greeting(name: &str, spec: &str) -> String {
    format!(
        r#"{{"apiVersion": "story.mainstay.local/v1", "kind": "Greeting",
            "metadata": {{"name": "{name}"}}, "spec": {{{spec}}}}}"#
    )
}

#[test]
fn an_operator_on_kopf_changes_and_refuses_objects_by_webhooks() {
    let kopf = python().join("kopf");
    let cluster = Cluster::up();
    let definition = scripts().join("greetings.yaml").display().to_string();
    cluster.kubectl(&["apply", "-f", &definition]).success();
    cluster.get(&["crd", "greetings.story.mainstay.local"]);
    let log = cluster.machine().dir().join("kopf.log");
    let operator = with_webhooks(&cluster, &kopf, &log);
    let create = |name: &str, spec: &str| {
        cluster.kubectl_stdin(&["create", "-f", "-"], &greeting(name, spec))
    };
    eventually("the operator's webhooks refuse", || {
        let arguments = ["create", "--dry-run=server", "-f", "-"];
        let spec = r#""text": "a curse""#;
        let tried = cluster.kubectl_stdin(&arguments, &greeting("tried", spec));
        if !tried.ok && tried.stderr.contains("must not curse") {
            return Ok(());
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        Err(format!("{tried:?} {said}"))
    });

    let refused = create("bad", r#""text": "a curse""#);
    let words = "denied the request: kubernetes-admin must not curse";
    assert!(!refused.ok && refused.stderr.contains(words), "{refused:?}");
    let made = create("loud", r#""text": "HELLO""#);
    assert!(made.ok, "{made:?}");
    assert!(made.stderr.contains("Warning: that is loud"), "{made:?}");
    let mood = ["get", "greeting", "loud", "-o", "jsonpath={.spec.mood}"];
    assert_eq!(cluster.kubectl(&mood).success(), "kind");
    let patch = r#"{"spec": {"mood": "grim"}}"#;
    let arguments = ["patch", "greeting", "loud", "--type=merge", "-p", patch];
    let changed = cluster.kubectl(&arguments);
    let words = "a mood stays as it is";
    assert!(!changed.ok && changed.stderr.contains(words), "{changed:?}");
    assert_eq!(cluster.kubectl(&mood).success(), "kind");
    assert!(!cluster.kubectl(&["get", "greeting", "bad"]).ok);

    // Without its operator a webhook with failurePolicy Fail rejects everything that it matches,
    // and nothing else.
    drop(operator);
    let alone = create("alone", r#""text": "hi""#);
    assert!(
        !alone.ok && alone.stderr.contains("failed calling webhook"),
        "{alone:?}"
    );
    let map = ["create", "configmap", "other", "--from-literal=a=b"];
    cluster.kubectl(&map).success();
    assert!(!cluster.kubectl(&["get", "greeting", "alone"]).ok);
}
