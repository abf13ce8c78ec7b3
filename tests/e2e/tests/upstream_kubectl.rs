//! Upstream's kubectl works unchanged. It is kubectl 1.33, which is downloaded; `MAINSTAY_KUBECTL`
//! names another one.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
};

use e2e::Background;
use serde_json::Value;
use testkit::{Cluster, Ran, eventually};

const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: web
        image: mainstay.local/hello
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: shop, labels: {app: shop}}
spec:
  selector: {app: shop}
  ports: [{port: 80, targetPort: 8080}]
"#;

/// A cluster and upstream's kubectl.
struct World(Cluster);

impl World {
    /// `None` if there is none for the architecture: our own kubectl has its own tests.
    fn new() -> Option<Self> {
        let mut cluster = Cluster::up();
        cluster.set_upstream_kubectl(e2e::kubectl(env!("CARGO_TARGET_TMPDIR").as_ref()));
        let world = Self(cluster);
        world.0.upstream_kubectl(&["version", "--client"])?;
        Some(world)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.0.upstream_kubectl(args).expect("it is there")
    }

    fn ok(&self, args: &[&str]) -> String {
        self.run(args).success()
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.machine().dir().join(name);
        fs::write(&path, content).expect("a file");
        path.display().to_string()
    }

    fn start(&self, args: &[&str]) -> Background {
        let mut command = self.0.upstream_kubectl_command(args).expect("it is there");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Background(command.spawn().expect("kubectl starts"))
    }

    fn pod(&self, selector: &str) -> String {
        let pods = self.ok(&["get", "pods", "-l", selector, "-o", "json"]);
        let pods: Value = serde_json::from_str(&pods).expect("JSON");
        e2e::name(&pods["items"][0])
    }
}

#[test]
fn the_ordinary_kubectl_applies_rolls_out_execs_and_deletes() {
    let Some(world) = World::new() else { return };
    let file = world.file("shop.yaml", MANIFEST);
    let applied = world.ok(&["apply", "-f", &file]);
    assert!(
        applied.contains("deployment.apps/shop created"),
        "{applied}"
    );
    world.ok(&["rollout", "status", "deployment/shop", "--timeout=90s"]);
    let applied = world.ok(&["apply", "-f", &file]);
    assert!(
        applied.contains("deployment.apps/shop unchanged"),
        "{applied}"
    );
    assert!(world.run(&["diff", "-f", &file]).ok, "nothing differs");
    let more = world.file("more.yaml", &MANIFEST.replace("replicas: 2", "replicas: 3"));
    let differs = world.run(&["diff", "-f", &more]);
    assert_eq!(differs.code, Some(1));
    assert!(
        differs.stdout.contains("+  replicas: 3"),
        "{}",
        differs.stdout
    );

    let pod = world.pod("app=shop");
    let answer = eventually("the service by its name", || {
        let ran = world.run(&[
            "exec",
            &pod,
            "--",
            "/mainstay",
            "hello",
            "get",
            "http://shop/",
        ]);
        if ran.ok {
            Ok(ran.stdout)
        } else {
            Err(ran.stderr)
        }
    });
    assert!(answer.contains("shop-"), "{answer}");
    let exit = world.run(&["exec", &pod, "--", "/mainstay", "hello", "exit", "7"]);
    assert_eq!(exit.code, Some(7));
    assert!(world.ok(&["logs", &pod]).contains("8080"));

    world.ok(&["set", "env", "deployment/shop", "COLOUR=green"]);
    world.ok(&["rollout", "status", "deployment/shop", "--timeout=90s"]);
    let history = world.ok(&["rollout", "history", "deployment/shop"]);
    assert!(
        history.lines().any(|line| line.starts_with('2')),
        "{history}"
    );
    world.ok(&["rollout", "undo", "deployment/shop"]);
    world.ok(&["rollout", "status", "deployment/shop", "--timeout=90s"]);
    world.ok(&["rollout", "restart", "deployment/shop"]);
    world.ok(&["rollout", "status", "deployment/shop", "--timeout=90s"]);
    world.ok(&["scale", "deployment/shop", "--replicas=1"]);
    world.ok(&[
        "wait",
        "--for=jsonpath={.status.replicas}=1",
        "deployment/shop",
        "--timeout=60s",
    ]);
    world.ok(&[
        "wait",
        "--for=condition=Available",
        "deployment/shop",
        "--timeout=60s",
    ]);
    world.ok(&["delete", "-f", &file, "--timeout=60s"]);
    let left = world.run(&["get", "deployment,service", "-l", "app=shop"]);
    assert!(left.stderr.contains("No resources found"), "{left:?}");
}

#[test]
fn the_ordinary_kubectl_edits_describes_and_asks() {
    let Some(world) = World::new() else { return };
    labels_patches_and_edits(&world);
    explains(&world);
    asks_the_server(&world);
    let unknown = world.file("typo.yaml", &MANIFEST.replace("replicas:", "replica:"));
    let refused = world.run(&["apply", "-f", &unknown]);
    assert!(
        refused.stderr.contains("unknown field \"spec.replica\""),
        "{refused:?}"
    );
}

fn labels_patches_and_edits(world: &World) {
    world.ok(&["create", "configmap", "colours", "--from-literal=sky=blue"]);
    world.ok(&["label", "configmap", "colours", "season=summer"]);
    world.ok(&["annotate", "configmap", "colours", "note=painted"]);
    for (kind, patch) in [
        ("merge", r#"{"data": {"sea": "green"}}"#),
        ("strategic", r#"{"data": {"sun": "yellow"}}"#),
        (
            "json",
            r#"[{"op": "add", "path": "/data/moon", "value": "white"}]"#,
        ),
    ] {
        world.ok(&["patch", "configmap", "colours", "--type", kind, "-p", patch]);
    }
    let mut edit = world
        .0
        .upstream_kubectl_command(&["edit", "configmap", "colours"])
        .expect("it is there");
    let edited = edit
        .env("KUBE_EDITOR", "sed -i s/blue/grey/")
        .output()
        .expect("it starts");
    assert!(edited.status.success(), "{edited:?}");
    let map: Value =
        serde_json::from_str(&world.ok(&["get", "configmap", "colours", "-o", "json"]))
            .expect("JSON");
    assert_eq!(
        map["data"],
        serde_json::json!({"sky": "grey", "sea": "green", "sun": "yellow", "moon": "white"})
    );
    assert_eq!(map["metadata"]["labels"]["season"], "summer");
    assert!(
        world
            .ok(&["get", "nodes", "-o", "wide"])
            .contains("INTERNAL-IP")
    );
    assert!(
        world
            .ok(&["describe", "configmap", "colours"])
            .contains("grey")
    );
    world.ok(&["delete", "configmap", "colours"]);
}

/// The fields of built-in kinds and of a custom one.
fn explains(world: &World) {
    let explained = world.ok(&["explain", "pod.spec.containers"]);
    assert!(
        explained.contains("List of containers belonging to the pod"),
        "{explained}"
    );
    let explained = world.ok(&["explain", "deployment.spec.replicas"]);
    assert!(
        explained.contains("<integer>") && explained.contains("Number of desired pods"),
        "{explained}"
    );
    let explained = world.ok(&["explain", "pod", "--recursive"]);
    assert!(
        explained.contains("terminationGracePeriodSeconds\t<integer>"),
        "{explained}"
    );
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/greetings.yaml");
    world.ok(&["apply", "-f", definition]);
    let name = "crd/greetings.story.mainstay.local";
    world.ok(&["wait", "--for=condition=Established", name, "--timeout=60s"]);
    let explained = world.ok(&["explain", "greeting.spec.text"]);
    assert!(
        explained.contains("What is said to whoever comes by."),
        "{explained}"
    );
    let resources = world.ok(&["api-resources"]);
    assert!(
        resources.contains("deployments") && resources.contains("greetings"),
        "{resources}"
    );
}

/// Permissions, versions, health and usage.
fn asks_the_server(world: &World) {
    assert_eq!(world.ok(&["auth", "can-i", "delete", "pods"]).trim(), "yes");
    let can_i = ["auth", "can-i", "delete", "pods", "--as=nobody"];
    assert_eq!(world.run(&can_i).stdout.trim(), "no");
    assert!(
        world
            .ok(&["api-versions"])
            .lines()
            .any(|line| line == "apps/v1")
    );
    assert!(world.ok(&["cluster-info"]).contains("control plane"));
    assert!(world.ok(&["version"]).contains("Server Version: v1.36"));
    let raw = world.ok(&["get", "--raw", "/readyz?verbose"]);
    assert!(raw.contains("readyz check passed"), "{raw}");
    // Usage is known after a node's second sample.
    let top = eventually("the usage of the node", || {
        let ran = world.run(&["top", "nodes"]);
        if ran.ok {
            Ok(ran.stdout)
        } else {
            Err(ran.stderr)
        }
    });
    assert!(top.starts_with("NAME"), "{top}");
}

/// A pod with a shell.
const BOX: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: box
    image: local.test/busybox:1
    imagePullPolicy: Never
    stdin: true
    env: [{name: PATH, value: /bin}]
    command: [/bin/busybox, sh, -c]
    args:
    - |
      busybox --install -s /bin
      mkdir -p /www && echo page > /www/index.html
      httpd -p 8080 -h /www
      echo started
      while read line; do echo "heard $line"; done
"#;

#[test]
fn the_ordinary_kubectl_streams_copies_and_forwards() {
    let Some(world) = World::new() else { return };
    let archive = e2e::busybox_archive(world.0.machine().dir());
    world.0.mainstay(&["image", "import", &archive]).success();
    let file = world.file("box.yaml", BOX);
    world.ok(&["create", "-f", &file]);
    world.ok(&["wait", "--for=condition=Ready", "pod/box", "--timeout=60s"]);

    let mut follow = world.start(&["logs", "-f", "box"]);
    let mut lines = BufReader::new(follow.0.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "started");
    let mut attached = world.start(&["attach", "-i", "box"]);
    attached
        .0
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"you\n")
        .expect("it listens");
    assert_eq!(lines.next().expect("a line").expect("text"), "heard you");

    execs(&world);
    execs_on_a_terminal(&world);
    copies(&world);
    forwards(&world);
    world.ok(&["delete", "pod", "box", "--timeout=60s"]);
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(
        rest.iter().all(|line| line.starts_with("heard")),
        "the log has ended: {rest:?}"
    );
}

fn execs(world: &World) {
    let mut typed = world.start(&[
        "exec",
        "-i",
        "box",
        "--",
        "sh",
        "-c",
        "cat; echo end; exit 3",
    ]);
    typed
        .0
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"some words\n")
        .expect("it listens");
    let mut out = String::new();
    typed
        .0
        .stdout
        .take()
        .expect("a pipe")
        .read_to_string(&mut out)
        .expect("text");
    assert_eq!(out, "some words\nend\n");
    assert_eq!(typed.0.wait().expect("it ends").code(), Some(3));
}

/// `script` gives kubectl a terminal.
fn execs_on_a_terminal(world: &World) {
    let kubectl = world.0.upstream_kubectl_command(&[]).expect("it is there");
    let program = kubectl
        .get_args()
        .last()
        .expect("kubectl")
        .to_string_lossy()
        .into_owned();
    let mut terminal = world.0.machine().command("script");
    let line = format!("{program} exec -it box -- sh -c 'test -t 0 && echo a terminal; exit 5'");
    let ended = terminal
        .args(["-qec", &line, "/dev/null"])
        .env("KUBECONFIG", world.0.kubeconfig())
        .output()
        .expect("script is installed");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(said.contains("a terminal"), "{said}");
    assert_eq!(ended.status.code(), Some(5), "{said}");
}

fn copies(world: &World) {
    let there = world.file("there.txt", "carried\n");
    world.ok(&["cp", &there, "box:/tmp.txt"]);
    assert_eq!(
        world.ok(&["exec", "box", "--", "cat", "/tmp.txt"]),
        "carried\n"
    );
    let back = world
        .0
        .machine()
        .dir()
        .join("back.txt")
        .display()
        .to_string();
    world.ok(&["cp", "box:/tmp.txt", &back]);
    assert_eq!(fs::read_to_string(&back).expect("a file"), "carried\n");
}

/// To a port of the pod, and through the API server's proxy.
fn forwards(world: &World) {
    let mut forward = world.start(&["port-forward", "pod/box", "18080:8080"]);
    let mut said = BufReader::new(forward.0.stdout.take().expect("a pipe")).lines();
    let first = said.next().expect("a line").expect("text");
    assert!(first.contains("Forwarding from 127.0.0.1:18080"), "{first}");
    for _ in 0..2 {
        let busybox = ["wget", "-qO-", "http://127.0.0.1:18080/index.html"];
        let page = world.0.machine().run("busybox", &busybox).success();
        assert_eq!(page, "page\n");
    }
    let proxied = "/api/v1/namespaces/default/pods/box:8080/proxy/index.html";
    assert_eq!(world.ok(&["get", "--raw", proxied]), "page\n");
}
