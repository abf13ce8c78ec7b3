//! The guestbook of examples/guestbook: as in its README, on a machine of two that is lost, and as
//! `make demo` shows it.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use e2e::{Background, name, ready_pods};
use testkit::{Agent, Cluster, Lan, Ran, eventually};

const SIGNED: &str = "Hello & <welcome>";
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The directory of the manifests.
fn example() -> String {
    let example = Path::new(REPOSITORY).join("examples/guestbook");
    example.display().to_string()
}

/// Fetches the page from inside one of its pods.
fn ask(cluster: &Cluster, words: &[&str]) -> Result<String, String> {
    let exec = ["exec", "deployment/guestbook", "--", "/mainstay", "hello"];
    let ran = cluster.kubectl(&[&exec, words].concat());
    if ran.ok {
        Ok(ran.stdout)
    } else {
        Err(ran.stderr)
    }
}

fn rolled_out(cluster: &Cluster, deployment: &str) {
    let deployment = format!("deployment/{deployment}");
    let status = ["rollout", "status", &deployment, "--timeout=90s"];
    cluster.kubectl(&status).success();
}

fn shows_the_entry(cluster: &Cluster) {
    eventually("the entry on the page", || {
        let entries = ask(cluster, &["get", "http://guestbook/entries"])?;
        match entries == format!("{SIGNED}\n") {
            true => Ok(()),
            false => Err(entries),
        }
    });
}

/// The page from the machine: at the node port, and forwarded as in the README.
fn is_in_a_browser(cluster: &Cluster) {
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary");
    let shows = |url: &str| {
        let ran = cluster.machine().run(&binary, &["hello", "get", url]);
        let page = ran.success();
        assert!(page.contains("Hello &amp; &lt;welcome&gt;"), "{page}");
    };
    shows(&format!("http://{}:30080/", cluster.machine().address()));
    let mut forward = cluster.machine().command(&binary);
    forward
        .args(["kubectl", "port-forward", "service/guestbook", "8080:80"])
        .env("KUBECONFIG", cluster.kubeconfig())
        .stdout(Stdio::piped());
    let mut forward = Background(forward.spawn().expect("kubectl starts"));
    let said = forward.0.stdout.take().expect("a pipe");
    // kubectl ends when its output is no longer read.
    let mut lines = BufReader::new(said).lines();
    let first = lines.next().expect("a line");
    let expected = "Forwarding from 127.0.0.1:8080 -> 8080";
    assert_eq!(first.expect("text"), expected);
    shows("http://127.0.0.1:8080/");
    drop(lines);
}

#[test]
fn the_guestbook_is_signed_scaled_updated_and_survives_the_loss_of_its_followers() {
    let cluster = Cluster::up();
    let example = example();
    cluster.kubectl(&["apply", "-f", &example]).success();
    for deployment in ["guestbook-leader", "guestbook-followers", "guestbook"] {
        rolled_out(&cluster, deployment);
    }
    let post = ["post", "http://guestbook/entries", SIGNED];
    ask(&cluster, &post).expect("the page writes to the leader");
    shows_the_entry(&cluster);
    let page = ask(&cluster, &["get", "http://guestbook/"]).expect("a page");
    assert!(
        page.contains("<li>Hello &amp; &lt;welcome&gt;</li>"),
        "{page}"
    );
    let refused = ask(
        &cluster,
        &["post", "http://guestbook-followers:6379/entries", "x"],
    );
    assert!(refused.is_err(), "followers are read only: {refused:?}");
    is_in_a_browser(&cluster);

    cluster
        .kubectl(&["scale", "deployment/guestbook", "--replicas=5"])
        .success();
    ready_pods(&cluster, "tier=frontend", 5);

    // A rolling update: the store is found by the Services' environment variables.
    cluster
        .kubectl(&["set", "env", "deployment/guestbook", "GET_HOSTS_FROM=env"])
        .success();
    rolled_out(&cluster, "guestbook");
    shows_the_entry(&cluster);
    cluster
        .kubectl(&["rollout", "undo", "deployment/guestbook"])
        .success();
    rolled_out(&cluster, "guestbook");

    let followers: Vec<String> = ready_pods(&cluster, "role=follower", 2)
        .iter()
        .map(name)
        .collect();
    cluster
        .kubectl(&["delete", "pod", "-l", "role=follower", "--now"])
        .success();
    rolled_out(&cluster, "guestbook-followers");
    shows_the_entry(&cluster);
    let others = ready_pods(&cluster, "role=follower", 2);
    assert!(others.iter().all(|pod| !followers.contains(&name(pod))));

    cluster.kubectl(&["delete", "-f", &example]).success();
}

#[test]
fn the_guestbook_comes_back_when_the_machine_of_its_pages_is_lost() {
    let lan = Lan::new();
    let cluster = Cluster::on_lan(&lan, &[]);
    let mut two = Agent::on_lan(&lan, 0, 3, "two");
    two.start(&cluster.join_flags());
    cluster.ready_nodes(2);
    let example = example();

    // The leader is on the first machine, all others are on the second.
    cluster.kubectl(&["cordon", "two"]).success();
    let leader = format!("{example}/leader.yaml");
    cluster.kubectl(&["apply", "-f", &leader]).success();
    rolled_out(&cluster, "guestbook-leader");
    cluster.kubectl(&["cordon", "one"]).success();
    cluster.kubectl(&["uncordon", "two"]).success();
    cluster.kubectl(&["apply", "-f", &example]).success();
    for deployment in ["guestbook-followers", "guestbook"] {
        rolled_out(&cluster, deployment);
    }
    cluster.kubectl(&["uncordon", "one"]).success();
    let post = ["post", "http://guestbook/entries", SIGNED];
    ask(&cluster, &post).expect("the page writes to the leader");
    shows_the_entry(&cluster);

    lan.cut(two.machine().address());
    two.kill();
    let left = cluster.ready_nodes(1);
    assert_eq!(name(&left[0]), "one");
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    cluster.kubectl(&["taint", "node", "two", taint]).success();
    for (selector, count) in [("role=follower", 2), ("tier=frontend", 3)] {
        let pods = ready_pods(&cluster, selector, count);
        assert!(pods.iter().all(|pod| pod["spec"]["nodeName"] == "one"));
    }
    // New followers copy the entries from the leader.
    shows_the_entry(&cluster);
}

/// Runs scripts/demo, as `make demo` does.
fn demo(cluster: &Cluster) -> Ran {
    let mut demo = cluster.machine().command("bash");
    demo.arg(Path::new(REPOSITORY).join("scripts/demo"))
        .env(
            "MAINSTAY",
            std::env::var("MAINSTAY_BIN").expect("the binary"),
        )
        .env("DATA_DIR", cluster.data_dir())
        // A disk that is nearly full does not matter.
        .env("TMPDIR", cluster.machine().disk());
    demo.output().expect("bash starts").into()
}

#[test]
fn the_demo_tells_its_steps_on_a_running_cluster_and_on_its_own_and_leaves_nothing() {
    let mut cluster = Cluster::up();
    let output = demo(&cluster).success();
    for step in ["1. ", "2. ", "3. ", "4. ", "5. ", "Done."] {
        assert!(output.contains(&format!("\n{step}")), "{step}: {output}");
    }
    assert!(!output.contains("No cluster runs here"), "{output}");
    let entries = output.matches("\nHello from the demo\n").count();
    assert_eq!(
        entries, 2,
        "after it is signed, and after followers died: {output}"
    );
    let left = ["get", "deployments,services", "-l", "app=guestbook"];
    let left = cluster.kubectl(&left).success();
    assert!(left.is_empty(), "{left}");

    cluster.reset().success();
    let output = demo(&cluster).success();
    assert!(output.contains("No cluster runs here"), "{output}");
    assert!(output.ends_with("\nDone.\n"), "{output}");
    let disk = cluster.machine().disk();
    let left = cluster
        .machine()
        .run("ls", &[disk.to_str().expect("a path")]);
    assert_eq!(left.success(), "");
}
