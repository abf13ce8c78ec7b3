//! A cluster migrates from the embedded store to etcd and back: objects keep their
//! resourceVersions, later ones are larger, and nothing is served from a store that the objects
//! were moved from.

use std::{process::Stdio, thread, time::Duration};

use e2e::container_ids;
use serde_json::Value;
use testkit::{Agent, Etcd, Lan, Machine, Ran, Server, eventually};

fn version(server: &Server, name: &str) -> u64 {
    let path = "jsonpath={.metadata.resourceVersion}";
    let got = server.kubectl(&["get", "configmap", name, "-o", path]);
    got.success().parse().expect("a number")
}

fn newest(server: &Server) -> u64 {
    let raw = "/api/v1/namespaces/default/configmaps";
    let list = server.kubectl(&["get", "--raw", raw]).success();
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let version = list["metadata"]["resourceVersion"].as_str();
    version.unwrap_or_default().parse().expect("a number")
}

fn create(server: &Server, name: &str) {
    server
        .kubectl(&["create", "configmap", name, "--from-literal=a=b"])
        .success();
}

/// The response to a watch from an old revision.
fn watch_from(server: &Server, version: u64) -> String {
    let raw = format!(
        "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=5&resourceVersion={version}"
    );
    let ran = server.kubectl(&["get", "--raw", &raw]);
    format!("{}{}", ran.stdout, ran.stderr)
}

fn migrate(server: &Server, direction: &str, flags: &[String]) -> Ran {
    let flags = flags.iter().map(String::as_str);
    let words: Vec<&str> = ["migrate", direction].into_iter().chain(flags).collect();
    server.mainstay(&words)
}

/// Runs a pod, which shows that the node follows the server; returns it.
fn run_pod(server: &Server, name: &str) -> Value {
    let image = "--image=mainstay.local/hello";
    server.kubectl(&["run", name, image]).success();
    ready_pod(server, name)
}

fn ready_pod(server: &Server, name: &str) -> Value {
    eventually(&format!("the pod {name}"), || {
        let ran = server.kubectl(&["get", "pod", name, "-o", "json"]);
        let pod: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)?;
        match e2e::is_ready(&pod) {
            true => Ok(pod),
            false => Err(pod["status"].to_string()),
        }
    })
}

fn refused(ran: Ran, why: &str) {
    assert!(!ran.ok && ran.stderr.contains(why), "{ran:?}");
}

/// A start with these flags is refused.
fn refuse_with(server: &mut Server, flags: &[String], why: &str) {
    server.set_flags(flags);
    refused(server.refused(), why);
}

#[test]
fn a_cluster_moves_to_etcd_and_back_with_its_revisions() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let with_etcd = etcd.flags();
    // Without `--store etcd`.
    let reach = &with_etcd[2..];
    let [one, two] = machines;
    let mut server = Server::stopped(one, "s0", &[]);
    let mut other = Server::stopped(two, "s1", &with_etcd);

    server.start();
    let line = server.mainstay(&["token", "create"]).success();
    let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
    let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let mut node = Agent::on_lan(&lan, 0, 9, "node");
    node.start(&join);
    let pod = run_pod(&server, "first");
    create(&server, "before");
    let before = version(&server, "before");
    let seen = newest(&server);
    refused(migrate(&server, "--to-etcd", reach), "already running");
    server.stop();
    // An empty cluster in etcd would end the pods of the node.
    refuse_with(&mut server, &with_etcd, "move them with `mainstay migrate");

    let moved = migrate(&server, "--to-etcd", reach).success();
    assert!(moved.contains("objects to etcd"), "{moved}");
    refused(migrate(&server, "--to-etcd", reach), "contains no objects");
    refuse_with(&mut server, &[], "moved to etcd");
    refused(other.refused(), "first start the server");
    server.set_flags(&with_etcd);
    server.start();
    assert_eq!(version(&server, "before"), before);
    assert!(newest(&server) > seen);
    let reported = watch_from(&server, seen);
    assert!(
        reported.contains("410") || reported.contains("too old"),
        "{reported}"
    );
    create(&server, "in-etcd");
    let in_etcd = version(&server, "in-etcd");
    assert!(in_etcd > seen);
    // Nodes that have seen the revisions of the embedded store follow.
    run_pod(&server, "second");
    let token = server.mainstay(&["token", "server"]).success();
    other.set_flag("--server-token", token.trim());
    other.start();
    assert_eq!(version(&other, "before"), before);

    refused(migrate(&server, "--to-embedded", reach), "already running");
    server.stop();
    refused(migrate(&server, "--to-embedded", reach), "stop all servers");
    let seen = newest(&other);
    other.stop();
    let moved = migrate(&server, "--to-embedded", reach).success();
    assert!(moved.contains("the cluster continues after"), "{moved}");
    refused(other.refused(), "moved to an embedded store");
    refuse_with(&mut other, &[], "a server of a cluster in etcd");
    server.set_flags(&[]);
    server.start();
    assert_eq!(version(&server, "before"), before);
    assert_eq!(version(&server, "in-etcd"), in_etcd);
    create(&server, "after");
    assert!(version(&server, "after") > seen);
    run_pod(&server, "third");
    let still = ready_pod(&server, "first");
    assert_eq!(still["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(container_ids(&still), container_ids(&pod));
    let reported = watch_from(&server, in_etcd);
    assert!(
        reported.contains("410") || reported.contains("too old"),
        "{reported}"
    );
}

/// Kills migrations with SIGKILL, each a little later, until one has completed.
fn migrate_despite_kills(server: &Server, direction: &str, flags: &[String]) {
    let program = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    for number in 0.. {
        let mut command = server.machine().command(&program);
        command.args(["migrate", direction]).args(flags);
        command.arg("--data-dir").arg(server.data_dir());
        let streams = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut migration = streams.spawn().expect("the binary starts");
        thread::sleep(Duration::from_millis(4 * number));
        migration.kill().expect("it can be killed");
        let output = migration.wait_with_output().expect("it ends");
        if output.status.code().is_none() {
            continue;
        }
        let ran: Ran = output.into();
        // Killed between its last step and its end: the one before it was complete.
        let was_complete = ["contains no objects", "already contains the objects"]
            .iter()
            .any(|text| ran.stderr.contains(text));
        assert!(ran.ok || was_complete, "{}", ran.stderr);
        return;
    }
}

#[test]
fn a_migration_that_is_killed_at_any_moment_is_completed_by_the_next_one() {
    let lan = Lan::new();
    let machine = Machine::on(&lan, &lan.address(0, 2));
    let mut etcd = Etcd::on(&[&machine]);
    etcd.start(0, &machine);
    let with_etcd = etcd.flags();
    let mut server = Server::stopped(machine, "s0", &[]);
    server.start();
    create(&server, "before");
    let before = version(&server, "before");
    server.stop();

    migrate_despite_kills(&server, "--to-etcd", &with_etcd[2..]);
    refused(server.refused(), "moved to etcd");
    server.set_flags(&with_etcd);
    server.start();
    assert_eq!(version(&server, "before"), before);
    create(&server, "in-etcd");
    let in_etcd = version(&server, "in-etcd");
    server.stop();

    migrate_despite_kills(&server, "--to-embedded", &with_etcd[2..]);
    refused(server.refused(), "moved to an embedded store");
    server.set_flags(&[]);
    server.start();
    assert_eq!(version(&server, "before"), before);
    assert_eq!(version(&server, "in-etcd"), in_etcd);
}
