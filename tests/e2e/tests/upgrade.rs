//! A cluster of two servers and a node is upgraded to the next minor version and back, one
//! component after the other, while pods run; a larger version skew is rejected with a clear
//! message. A server that is killed during its first start with another version loses nothing.

use std::{process::Stdio, thread, time::Duration};

use e2e::container_ids;
use serde_json::Value;
use testkit::{Agent, Etcd, Lan, Machine, Server, eventually, stamped};

const OLD: &str = "v1.35.7";
const NEW: &str = "v1.36.4";

fn running_pods(server: &Server) -> Vec<(String, Vec<String>)> {
    let listed = server.kubectl(&["get", "pods", "-o", "json"]).success();
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let pods = listed["items"].as_array().cloned().unwrap_or_default();
    let identity = |pod: &Value| (pod["metadata"]["uid"].to_string(), container_ids(pod));
    pods.iter().map(identity).collect()
}

fn wait_for_node(server: &Server, version: &str) {
    let path = "jsonpath={.status.nodeInfo.kubeletVersion} {.status.conditions[?(@.type==\"Ready\")].status}";
    eventually(&format!("a Ready node of {version}"), || {
        let ran = server.kubectl(&["get", "node", "node", "-o", path]);
        match ran.stdout.starts_with(version) && ran.stdout.ends_with("True") {
            true => Ok(()),
            false => Err(format!("{} {}", ran.stdout, ran.stderr)),
        }
    });
}

fn deploy(server: &Server, name: &str) {
    let image = "--image=mainstay.local/hello";
    let ran = server.kubectl(&["create", "deployment", name, image]);
    ran.success();
    eventually(&format!("{name} to be available"), || {
        let path = "jsonpath={.status.availableReplicas}";
        let ran = server.kubectl(&["get", "deployment", name, "-o", path]);
        match ran.stdout.as_str() {
            "1" => Ok(()),
            other => Err(format!("{other} {}", ran.stderr)),
        }
    });
}

#[test]
fn a_cluster_goes_one_minor_version_up_and_down_while_pods_run() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let files = tempfile::tempdir().expect("a directory");
    let [older, old, new, newer] =
        ["v1.34.2", OLD, NEW, "v1.37.0"].map(|version| stamped(files.path(), version));
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let mut names = ["s0", "s1"].into_iter();
    let mut servers =
        machines.map(|machine| Server::stopped(machine, names.next().expect("a name"), &flags));
    let mut agent = Agent::new(machine(9), "node");

    servers
        .iter_mut()
        .for_each(|server| server.set_binary(&old));
    servers[0].start();
    let token = servers[0].mainstay(&["token", "server"]).success();
    servers[1].set_flag("--server-token", token.trim());
    servers[1].start();
    let line = servers[0].mainstay(&["token", "create"]).success();
    let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
    let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
    agent.set_binary(&old);
    agent.start(&join);
    wait_for_node(&servers[0], OLD);
    deploy(&servers[0], "web");
    let pods = running_pods(&servers[0]);

    // Two minor versions newer: rejected for a server and an agent.
    servers[1].stop();
    servers[1].set_binary(&newer);
    let refused = servers[1].refused().stderr;
    assert!(refused.contains("one minor version"), "{refused}");
    let mut stranger = Agent::new(machine(10), "stranger");
    stranger.set_binary(&newer);
    let refused = stranger.refused(&join).stderr;
    assert!(
        refused.contains("v1.37.0") && refused.contains(OLD),
        "{refused}"
    );

    // Upgrade: server by server, then the node.
    servers[1].set_binary(&new);
    servers[1].start();
    let shown = servers[1].mainstay(&["version"]).success();
    for line in ["Client", "Server"] {
        assert!(shown.contains(&format!("{line}: {NEW}")), "{shown}");
    }
    servers[0].stop();
    servers[0].set_binary(&new);
    servers[0].start();
    agent.stop();
    agent.set_binary(&new);
    agent.start(&[]);
    wait_for_node(&servers[0], NEW);
    deploy(&servers[0], "upgraded");

    // Two minor versions older must be rejected.
    servers[1].stop();
    servers[1].set_binary(&older);
    let refused = servers[1].refused().stderr;
    assert!(refused.contains("one minor version"), "{refused}");

    // Downgrade: the node, then server by server.
    agent.stop();
    agent.set_binary(&old);
    agent.start(&[]);
    wait_for_node(&servers[0], OLD);
    servers[1].set_binary(&old);
    servers[1].start();
    servers[0].stop();
    servers[0].set_binary(&old);
    servers[0].start();
    deploy(&servers[0], "downgraded");
    let now = running_pods(&servers[0]);
    assert!(
        pods.iter().all(|pod| now.contains(pod)),
        "pods were touched"
    );
}

/// The objects of the story, with their versions.
fn objects(server: &Server) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.resourceVersion}{\"\\n\"}{end}";
    let get = ["get", "configmaps", "-l", "story=upgrade", "-o", path];
    let listed = server.kubectl(&get).success();
    listed.lines().map(str::to_owned).collect()
}

fn create(server: &Server, name: &str) -> bool {
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"story": "upgrade"}},
    });
    let path = server.machine().dir().join("object.json");
    std::fs::write(&path, object.to_string()).expect("a file");
    let path = path.display().to_string();
    server.kubectl(&["create", "-f", &path]).ok
}

/// Starts another version of the server and kills it after a while, in which an object may have been
/// created.
fn start_and_kill(
    server: &Server,
    program: &str,
    flags: &[String],
    after: Duration,
    name: &str,
) -> bool {
    let mut command = server.machine().command(program);
    command.args(["server", "--node-ip", server.machine().address()]);
    command.args(flags).arg("--data-dir").arg(server.data_dir());
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut started = quiet.spawn().expect("the binary starts");
    thread::sleep(after);
    let is_created = create(server, name);
    started.kill().expect("it can be killed");
    let ended = started.wait().expect("it ends");
    assert_eq!(ended.code(), None, "it was refused after {after:?}");
    is_created
}

/// Kills first starts with another version, each a little later, until three of them could serve.
fn change_version_despite_kills(
    server: &Server,
    program: &str,
    flags: &[String],
    known: &mut Vec<String>,
) {
    let mut served = 0;
    for number in 1.. {
        let after = Duration::from_millis(60 * number);
        assert!(after < Duration::from_secs(30), "it does not serve");
        let name = format!("during-{}-{number}", known.len());
        if start_and_kill(server, program, flags, after, &name) {
            known.push(name);
            served += 1;
        }
        if served == 3 {
            return;
        }
    }
}

#[test]
fn a_server_that_is_killed_while_it_starts_with_another_version_loses_nothing() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let files = tempfile::tempdir().expect("a directory");
    let [old, new] = [OLD, NEW].map(|version| stamped(files.path(), version));
    let with_etcd = machine(2);
    let mut etcd = Etcd::on(&[&with_etcd]);
    etcd.start(0, &with_etcd);
    let flags = etcd.flags();
    for (machine, flags) in [(machine(3), &[][..]), (with_etcd, &flags[..])] {
        let mut server = Server::stopped(machine, "s0", flags);
        server.set_binary(&old);
        server.start();
        let mut known: Vec<String> = (0..20).map(|number| format!("before-{number}")).collect();
        assert!(known.iter().all(|name| create(&server, name)));
        let before = objects(&server);
        server.kill();
        // Up, and down again.
        for program in [&new, &old] {
            change_version_despite_kills(&server, program, flags, &mut known);
            server.set_binary(program);
            server.start();
            let now = objects(&server);
            let unchanged = before.iter().all(|object| now.contains(object));
            assert!(unchanged, "{before:#?} {now:#?}");
            let is_there = |name: &String| {
                now.iter()
                    .any(|object| object.starts_with(&format!("{name} ")))
            };
            let lost: Vec<&String> = known.iter().filter(|name| !is_there(name)).collect();
            assert!(lost.is_empty(), "{lost:?}");
            server.kill();
        }
    }
}

#[test]
fn a_migration_moves_the_version_of_the_objects_with_them() {
    let lan = Lan::new();
    let machine = Machine::on(&lan, &lan.address(0, 2));
    let mut etcd = Etcd::on(&[&machine]);
    etcd.start(0, &machine);
    let with_etcd = etcd.flags();
    let files = tempfile::tempdir().expect("a directory");
    let [older, old, new, newer] =
        ["v1.34.2", OLD, NEW, "v1.37.0"].map(|version| stamped(files.path(), version));
    let mut server = Server::stopped(machine, "s0", &[]);
    // The program that migrates is of the version in the middle.
    let migrate = |server: &Server, direction: &str| {
        let flags = with_etcd[2..].iter().map(String::as_str);
        let words: Vec<&str> = ["migrate", direction].into_iter().chain(flags).collect();
        server.mainstay(&words)
    };
    let serve = |server: &mut Server, program: &str| {
        server.set_binary(program);
        server.start();
        server.stop();
    };
    let refuse = |server: &mut Server, program: &str| {
        server.set_binary(program);
        let refused = server.refused().stderr;
        assert!(refused.contains("one minor version"), "{refused}");
    };

    serve(&mut server, &older);
    let refused = migrate(&server, "--to-etcd");
    assert!(refused.stderr.contains("one minor version"), "{refused:?}");
    serve(&mut server, &old);
    migrate(&server, "--to-etcd").success();
    server.set_flags(&with_etcd);
    refuse(&mut server, &newer);
    serve(&mut server, &new);
    serve(&mut server, &newer);
    migrate(&server, "--to-embedded").success();
    server.set_flags(&[]);
    refuse(&mut server, &old);
    serve(&mut server, &newer);
}
