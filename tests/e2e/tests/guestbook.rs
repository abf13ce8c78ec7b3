//! The guestbook of examples/guestbook, as in its README.

use std::path::Path;

use e2e::{name, ready_pods};
use testkit::{Cluster, eventually};

const SIGNED: &str = "Hello & <welcome>";

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

#[test]
fn the_guestbook_is_signed_scaled_updated_and_survives_the_loss_of_its_followers() {
    let cluster = Cluster::up();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/guestbook");
    let example = example.display().to_string();
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
