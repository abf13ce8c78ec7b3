//! Three servers with three etcd members, and a node. A machine with a server and a member is
//! killed under load, and restarted; a leading server stops.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use e2e::Site;
use testkit::{Etcd, Lan, Machine, Ran, Server, eventually, until};

/// Writes objects one after the other until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    writer: thread::JoinHandle<(Vec<String>, Duration)>,
}

impl Load {
    /// `kubectl` makes a command that creates a ConfigMap.
    fn start(kubectl: impl Fn(&str) -> Command + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let write = move || {
            let (mut written, mut longest) = (Vec::new(), Duration::ZERO);
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let name = format!("load-{}", written.len());
                let ran: Ran = kubectl(&name).output().expect("kubectl starts").into();
                // A write whose response was lost is found at the next attempt.
                if ran.ok || ran.stderr.contains("AlreadyExists") {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    written.push(name);
                }
            }
            (written, longest.max(last.elapsed()))
        };
        Self {
            stop,
            writer: thread::spawn(write),
        }
    }

    /// The acknowledged writes, and the longest time without one.
    fn end(self) -> (Vec<String>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.writer.join().expect("it writes")
    }
}

#[test]
fn a_server_and_a_member_of_three_may_die_and_no_write_is_lost() {
    let mut site = Site::new();
    let token = site.start_first();
    others_join_with_the_token_only(&mut site, &token);
    site.complete();
    site.deploy("before");

    let path = site.kubeconfig();
    one_machine_dies_under_load(&mut site, &path);
    it_comes_back(&mut site);
    the_token_is_replaced(&mut site, &token);
    the_leader_stops_and_another_goes_on_at_once(&mut site);
}

fn others_join_with_the_token_only(site: &mut Site, token: &str) {
    let refused = site.servers[1].refused().stderr;
    assert!(refused.contains("does not belong to"), "{refused}");
    let last = if token.ends_with('x') { 'y' } else { 'x' };
    let wrong = format!("{}{last}", &token[..token.len() - 1]);
    site.servers[1].set_flag("--server-token", &wrong);
    let refused = site.servers[1].refused().stderr;
    assert!(refused.contains("cannot decrypt the keys"), "{refused}");
    assert!(!refused.contains(&wrong), "{refused}");
    site.start_others(token);
    // The keys are in etcd and not in the API.
    let server = &site.servers[0];
    let all = server.kubectl(&["get", "secrets,configmaps", "-A", "-o", "json"]);
    assert!(!all.success().contains("mainstay-seal"));
}

/// Prints its figures: `--no-capture` shows them.
#[allow(clippy::print_stdout)]
fn one_machine_dies_under_load(site: &mut Site, kubeconfig: &Path) {
    let command = site.agent.machine().command_maker();
    let kubeconfig = kubeconfig.to_owned();
    let load = Load::start(move |name| {
        let mut kubectl = command(&std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set"));
        kubectl.args(["kubectl", "create", "configmap", name]);
        kubectl.env("KUBECONFIG", &kubeconfig);
        kubectl
    });
    thread::sleep(Duration::from_secs(2));
    let leader = site.leader().expect("a leader");
    site.servers[leader].kill();
    site.etcd.kill(leader);
    thread::sleep(Duration::from_secs(6));
    let (written, longest) = load.end();
    assert!(written.len() > 20, "{} writes", written.len());
    assert!(
        longest < Duration::from_secs(30),
        "no write for {longest:?}"
    );
    let listed = site.get(&["configmaps"]);
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    let there: Vec<&str> = items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    let lost: Vec<&String> = written
        .iter()
        .filter(|name| !there.contains(&name.as_str()))
        .collect();
    assert!(lost.is_empty(), "{lost:?} of {}", written.len());
    println!("{} writes, the longest pause {longest:?}", written.len());
    // Another server leads when the lease has expired, and the node uses another server.
    let begun = Instant::now();
    site.deploy("without");
    println!("a deployment without the leader took {:?}", begun.elapsed());
    assert_ne!(site.leader(), Some(leader));
    site.wait_for_servers(2);
}

fn it_comes_back(site: &mut Site) {
    let down = site.servers.iter().position(|server| !server.is_running());
    let down = down.expect("one is down");
    site.etcd.start(down, site.servers[down].machine());
    site.servers[down].start();
    site.wait_for_servers(3);
}

fn the_token_is_replaced(site: &mut Site, before: &str) {
    let rotate = ["token", "server", "--rotate"];
    let token = site.servers[1].mainstay(&rotate).success();
    assert_ne!(token.trim(), before);
    let shown = site.servers[0].mainstay(&["token", "server"]).success();
    assert_eq!(shown, token);
    let server = &mut site.servers[2];
    server.stop();
    server.set_flag("--server-token", before);
    let refused = server.refused().stderr;
    assert!(refused.contains("cannot decrypt the keys"), "{refused}");
    server.set_flag("--server-token", token.trim());
    server.start();
    site.wait_for_servers(3);
}

fn the_leader_stops_and_another_goes_on_at_once(site: &mut Site) {
    let leader = site.leader().expect("a leader");
    site.servers[leader].stop();
    let soon = Duration::from_secs(8);
    until("another leader", soon, || match site.leader() {
        Some(other) if other != leader => Ok(()),
        same => Err(format!("{same:?} leads")),
    });
    site.deploy("after");
    site.wait_for_servers(2);
}

/// The holder of a lease.
fn holder(server: &Server, lease: &str) -> String {
    let path = "jsonpath={.spec.holderIdentity}";
    let get = ["get", "lease", "-n", "kube-system", lease, "-o", path];
    server.kubectl(&get).stdout
}

#[test]
fn a_leader_that_was_paused_stands_down_and_the_next_one_keeps_its_term() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let [mut paused, mut next] = machines.map(|machine| Server::stopped(machine, "server", &flags));
    paused.start();
    let first = eventually("a leader", || {
        let holder = holder(&paused, "kube-controller-manager");
        if holder.is_empty() {
            Err(holder)
        } else {
            Ok(holder)
        }
    });
    let token = paused.mainstay(&["token", "server"]).success();
    next.set_flag("--server-token", token.trim());
    next.start();

    paused.signal("-STOP");
    let second = eventually("another leader", || {
        match holder(&next, "kube-controller-manager-term") {
            same if same == first || same.is_empty() => Err(same),
            other => Ok(other),
        }
    });
    paused.signal("-CONT");
    let log = paused.log();
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the paused leader to stand down", || {
        let lost = text()
            .lines()
            .filter(|line| line.contains("leadership lost"))
            .count();
        // Of the controllers and of the scheduler.
        if lost == 2 { Ok(()) } else { Err(text()) }
    });
    let image = "--image=mainstay.local/hello";
    next.kubectl(&["create", "deployment", "web", image])
        .success();
    eventually("a controller at work", || {
        let sets = next.kubectl(&["get", "replicasets", "-o", "name"]);
        if sets.stdout.is_empty() {
            Err(sets.stderr)
        } else {
            Ok(())
        }
    });
    for lease in ["kube-controller-manager", "kube-controller-manager-term"] {
        assert_eq!(holder(&next, lease), second, "{lease}");
    }
}

/// Starts a server and kills it with SIGKILL after a while.
fn start_and_kill(server: &Server, flags: &[String], after: Duration) {
    let program = std::env::var("MAINSTAY_BIN").expect("MAINSTAY_BIN is set");
    let mut command = server.machine().command(&program);
    command.args(["server", "--node-ip", server.machine().address()]);
    command.args(flags).arg("--data-dir").arg(server.data_dir());
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut started = quiet.spawn().expect("the binary starts");
    thread::sleep(after);
    started.kill().expect("it can be killed");
    started.wait().expect("it ends");
}

#[test]
fn servers_that_are_killed_while_they_found_or_join_a_cluster_do_so_at_the_next_start() {
    let lan = Lan::new();
    let machine = |number| Machine::on(&lan, &lan.address(0, number));
    let machines = [machine(2), machine(3)];
    let mut etcd = Etcd::on(&[&machines[0]]);
    etcd.start(0, &machines[0]);
    let flags = etcd.flags();
    let [mut first, mut second] = machines.map(|machine| Server::stopped(machine, "s", &flags));
    let moments = (1..12).map(|number| Duration::from_millis(30 * number));
    for moment in moments.clone() {
        start_and_kill(&first, &flags, moment);
    }
    first.start();
    let token = first.mainstay(&["token", "server"]).success();
    second.set_flag("--server-token", token.trim());
    let join = [&flags[..], &["--server-token".into(), token.trim().into()]].concat();
    for moment in moments {
        start_and_kill(&second, &join, moment);
    }
    second.start();
    // Both serve the same cluster: the administrator of one is that of the other.
    let create = ["create", "configmap", "shared"];
    second.kubectl(&create).success();
    first.kubectl(&["get", "configmap", "shared"]).success();
}
