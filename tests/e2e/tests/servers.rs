//! Three servers over three members of etcd, and a node. A machine with a server and a member is
//! killed under load, and comes back; a server that leads stops.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use testkit::{Agent, Etcd, Lan, Machine, Ran, Server, eventually, until};

/// Three machines with a server and a member each, and one with a node.
struct Site {
    // Fields are dropped in this order: machines before the network that they hang on.
    agent: Agent,
    servers: Vec<Server>,
    etcd: Etcd,
    _lan: Lan,
}

impl Site {
    fn new() -> Self {
        let lan = Lan::new();
        let machine = |number| Machine::on(&lan, &lan.address(0, number));
        let machines: Vec<Machine> = (2..5).map(machine).collect();
        let mut etcd = Etcd::on(&machines.iter().collect::<Vec<_>>());
        for (number, machine) in machines.iter().enumerate() {
            etcd.start(number, machine);
        }
        let flags = etcd.flags();
        let numbered = machines.into_iter().enumerate();
        let servers =
            numbered.map(|(n, machine)| Server::stopped(machine, &format!("s{n}"), &flags));
        Self {
            servers: servers.collect(),
            agent: Agent::new(machine(9), "node"),
            etcd,
            _lan: lan,
        }
    }

    fn kubectl(&self, args: &[&str]) -> Ran {
        self.agent
            .kubectl(&self.agent.machine().dir().join("kubeconfig"), args)
    }

    fn get(&self, args: &[&str]) -> Value {
        eventually(&format!("{args:?}"), || {
            let ran = self.kubectl(&[&["get"], args, &["-o", "json"]].concat());
            serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)
        })
    }

    /// Waits until the `kubernetes` Service leads to this many servers.
    fn wait_for_servers(&self, count: usize) {
        eventually(&format!("{count} servers"), || {
            let slice = self.get(&["endpointslice", "kubernetes"]);
            let endpoints = slice["endpoints"].as_array().map_or(0, Vec::len);
            if endpoints == count {
                Ok(())
            } else {
                Err(slice.to_string())
            }
        });
    }

    /// A deployment that runs says that controllers, a scheduler and the node are at work.
    fn deploy(&self, name: &str) {
        let image = "--image=mainstay.local/hello";
        self.kubectl(&["create", "deployment", name, image])
            .success();
        eventually(&format!("{name} to be available"), || {
            let deployment = self.get(&["deployment", name]);
            match deployment["status"]["availableReplicas"].as_u64() {
                Some(1) => Ok(()),
                _ => Err(deployment["status"].to_string()),
            }
        });
    }

    /// Which server does the work of the controllers; none while the lease is nobody's.
    fn leader(&self) -> Option<usize> {
        let lease = ["lease", "kube-controller-manager", "-n", "kube-system"];
        let holder = self.get(&lease)["spec"]["holderIdentity"].clone();
        let holder = holder.as_str().unwrap_or_default();
        let number = holder.strip_prefix('s').and_then(|rest| rest.get(..1));
        number.and_then(|text| text.parse().ok())
    }
}

/// Writes one object after the other until it is told to stop.
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
                // A write whose answer was lost is found when it is tried again.
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

    /// What was acknowledged, and the longest time without a write.
    fn end(self) -> (Vec<String>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.writer.join().expect("it writes")
    }
}

#[test]
fn a_server_and_a_member_of_three_may_die_and_no_write_is_lost() {
    let mut site = Site::new();
    site.servers[0].start();
    others_join_with_the_token_only(&mut site);
    let join = join_flags(&site.servers[0]);
    site.agent.start(&join);
    let kubeconfig = eventually("a kubeconfig of three servers", || {
        let text = site.servers[0].kubeconfig();
        if text.matches(":6443").count() == 4 {
            Ok(text)
        } else {
            Err(text)
        }
    });
    let path = site.agent.machine().dir().join("kubeconfig");
    std::fs::write(&path, kubeconfig).expect("a file");
    site.wait_for_servers(3);
    site.deploy("before");

    one_machine_dies_under_load(&mut site, &path);
    it_comes_back(&mut site);
    the_leader_stops_and_another_goes_on_at_once(&mut site);
}

fn others_join_with_the_token_only(site: &mut Site) {
    let refused = site.servers[1].refused().stderr;
    assert!(refused.contains("none of its servers"), "{refused}");
    let token = site.servers[0].mainstay(&["token", "server"]).success();
    let token = token.trim();
    let last = if token.ends_with('x') { 'y' } else { 'x' };
    let wrong = format!("{}{last}", &token[..token.len() - 1]);
    site.servers[1].set_flag("--server-token", &wrong);
    let refused = site.servers[1].refused().stderr;
    assert!(refused.contains("does not open the keys"), "{refused}");
    assert!(!refused.contains(&wrong), "{refused}");
    for server in &mut site.servers[1..] {
        server.set_flag("--server-token", token);
        server.start();
    }
    // The keys are in etcd and not in the API.
    let server = &site.servers[0];
    let all = server.kubectl(&["get", "secrets,configmaps", "-A", "-o", "json"]);
    assert!(!all.success().contains("mainstay-seal"));
}

fn join_flags(server: &Server) -> Vec<String> {
    let line = server.mainstay(&["token", "create"]).success();
    let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
    words.split(' ').map(str::to_owned).collect()
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
    // Another server leads when the lease is over, and the node has found another server.
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

/// The holder of a lease of the controllers.
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
