//! Three servers and three etcd members, of which one at a time is killed, paused, disconnected or
//! loses packets, at random and under load. `MAINSTAY_ROUNDS` sets how often, `MAINSTAY_SEED` the
//! order, `MAINSTAY_FAULTS` the kinds, `MAINSTAY_PAUSE` how many seconds writes may pause. Several
//! rounds take longer than the runner's timeout: use `NEXTEST_PROFILE=soak`.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use e2e::{
    Api, Site, audit, container_ids,
    recorder::{Progress, Written, block_on, record_history, write_load},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use testkit::{eventually, until};

/// A fault of one machine.
#[derive(Debug, Clone, Copy)]
enum Fault {
    KillServer,
    PauseServer,
    KillMember,
    PauseMember,
    KillBoth,
    PauseBoth,
    /// Its network is disconnected.
    Cut,
    /// Its network drops a part of the packets.
    Lossy,
}

/// The percentage of packets that a lossy network drops.
const LOSS: u8 = 30;

const FAULTS: [Fault; 8] = [
    Fault::KillServer,
    Fault::PauseServer,
    Fault::KillMember,
    Fault::PauseMember,
    Fault::KillBoth,
    Fault::PauseBoth,
    Fault::Cut,
    Fault::Lossy,
];

impl Fault {
    fn of_server(self) -> bool {
        use Fault::*;
        matches!(self, KillServer | PauseServer | KillBoth | PauseBoth)
    }

    fn of_member(self) -> bool {
        use Fault::*;
        matches!(self, KillMember | PauseMember | KillBoth | PauseBoth)
    }

    fn kills(self) -> bool {
        matches!(self, Self::KillServer | Self::KillMember | Self::KillBoth)
    }

    fn begin(self, site: &mut Site, victim: usize) {
        let address = site.servers[victim].machine().address();
        match self {
            Self::Cut => site.lan.cut(address),
            Self::Lossy => site.lan.lose(address, LOSS),
            _ => {}
        }
        if self.of_server() {
            match self.kills() {
                true => site.servers[victim].kill(),
                false => site.servers[victim].signal("-STOP"),
            }
        }
        if self.of_member() {
            match self.kills() {
                true => site.etcd.kill(victim),
                false => site.etcd.signal(victim, "-STOP"),
            }
        }
    }

    fn end(self, site: &mut Site, victim: usize) {
        let address = site.servers[victim].machine().address();
        match self {
            Self::Cut => site.lan.mend(address),
            Self::Lossy => site.lan.lose_nothing(address),
            _ => {}
        }
        if self.of_member() {
            match self.kills() {
                true => site.etcd.start(victim, site.servers[victim].machine()),
                false => site.etcd.signal(victim, "-CONT"),
            }
        }
        if self.of_server() {
            match self.kills() {
                true => site.servers[victim].start(),
                false => site.servers[victim].signal("-CONT"),
            }
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The faults to choose from: all, or those in `MAINSTAY_FAULTS`, such as `Lossy,Cut`.
fn wanted_faults() -> Vec<Fault> {
    let named = std::env::var("MAINSTAY_FAULTS").unwrap_or_default();
    let is_named = |fault: &Fault| named.split(',').any(|name| name == format!("{fault:?}"));
    let wanted: Vec<Fault> = FAULTS.into_iter().filter(is_named).collect();
    match wanted.is_empty() {
        true => FAULTS.to_vec(),
        false => wanted,
    }
}

fn rounds() -> u64 {
    let soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    setting("MAINSTAY_ROUNDS").unwrap_or(if soak { 200 } else { 4 })
}

/// The longest allowed pause of writes: set in `MAINSTAY_PAUSE` in seconds, or five in a soak. A
/// machine that runs other tests, too, is too slow for any limit.
fn longest_pause(fault: Fault) -> Option<Duration> {
    let soak = std::env::var_os("MAINSTAY_SOAK").map(|_| 5);
    let seconds = setting("MAINSTAY_PAUSE").or(soak);
    // With lost packets etcd needs longer to elect another leader (docs/many-nodes.md).
    let is_limited = !matches!(fault, Fault::Lossy);
    seconds.filter(|_| is_limited).map(Duration::from_secs)
}

/// Prints its figures: `--no-capture` shows them.
#[test]
#[allow(clippy::print_stdout)]
fn no_write_is_lost_and_one_leader_acts_whichever_server_or_member_fails() {
    let seed = setting("MAINSTAY_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("MAINSTAY_SEED={seed}");
    let mut site = Site::new();
    let logs = record_audit(&mut site);
    let token = site.start_first();
    site.start_others(&token);
    site.complete();
    site.deploy("steady");
    idle_deployment(&site);
    let before = containers(&site);

    let progress = Arc::new(Progress::default());
    let kubeconfig = std::fs::read_to_string(site.kubeconfig()).expect("a kubeconfig");
    let recording = {
        let (kubeconfig, urls, progress) = (kubeconfig.clone(), urls(&site), progress.clone());
        let work = move || record_history(&kubeconfig, &urls, seed, &progress);
        site.agent.machine().thread(work)
    };
    let writing = {
        let (kubeconfig, progress) = (kubeconfig.clone(), progress.clone());
        let work = move || write_load(&kubeconfig, "idle", &progress);
        site.agent.machine().thread(work)
    };
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..rounds() {
        fail_once(&mut site, round, &mut random, &progress, &kubeconfig);
        assert!(!recording.is_finished(), "the recording ended early");
    }
    progress.stop();
    let written = writing.join().expect("the writer comes to its end");
    let (calls, changes) = recording.join().expect("a history with one order");
    assert_nothing_lost(&site, &written);
    assert_eq!(containers(&site), before, "pods were touched");
    let checked = audit::check_terms(&logs);
    println!(
        "{} writes, the longest pause {:?}; {calls} calls and {changes} changes have one order; \
         controllers and scheduler wrote only while they led: {checked:?}",
        written.names.len(),
        written.longest
    );
    let [controllers, scheduler] = checked;
    assert!(controllers.written > 0 && controllers.timed > 0 && scheduler.bindings > 0);
}

/// Enables an audit log on every server.
fn record_audit(site: &mut Site) -> Vec<PathBuf> {
    let mut logs = Vec::new();
    for server in &mut site.servers {
        let policy = server.machine().dir().join("audit.yaml");
        let log = server.machine().dir().join("audit.log");
        std::fs::write(&policy, audit::POLICY).expect("a file");
        server.set_flag("--audit-policy-file", &policy.display().to_string());
        server.set_flag("--audit-log-path", &log.display().to_string());
        logs.push(log);
    }
    logs
}

/// A Deployment whose pods are bound to a node without a kubelet: work for controllers and the scheduler only.
fn idle_deployment(site: &Site) {
    let file = site.agent.machine().dir().join("nowhere.json");
    let node =
        r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"nowhere","labels":{"no":"such"}}}"#;
    std::fs::write(&file, node).expect("a file");
    let file = file.display().to_string();
    site.kubectl(&["create", "-f", &file]).success();
    let room = r#"{"status":{"capacity":{"cpu":"9","memory":"9Gi","pods":"99"},"allocatable":{"cpu":"9","memory":"9Gi","pods":"99"}}}"#;
    let patch = [
        "patch",
        "node",
        "nowhere",
        "--subresource=status",
        "-p",
        room,
    ];
    site.kubectl(&patch).success();
    let image = "--image=mainstay.local/hello";
    let create = ["create", "deployment", "idle", image, "--replicas=0"];
    site.kubectl(&create).success();
    // Its pods are deleted at once, and its node is never ready.
    let nowhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"no":"such"},"tolerations":[{"operator":"Exists"}],
        "terminationGracePeriodSeconds":0}}}}"#;
    site.kubectl(&["patch", "deployment", "idle", "-p", nowhere])
        .success();
}

/// The running containers, and their restart counts.
fn containers(site: &Site) -> Vec<(Value, Vec<String>)> {
    let pods = site.get(&["pods", "-l", "app=steady"]);
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let identity = |pod: &Value| (pod["metadata"]["uid"].clone(), container_ids(pod));
    pods.iter().map(identity).collect()
}

fn urls(site: &Site) -> Vec<String> {
    let address = |server: &testkit::Server| format!("https://{}:6443", server.machine().address());
    site.servers.iter().map(address).collect()
}

/// One fault under load, then recovery of all three.
#[allow(clippy::print_stdout)]
fn fail_once(
    site: &mut Site,
    round: u64,
    random: &mut StdRng,
    progress: &Progress,
    kubeconfig: &str,
) {
    let faults = wanted_faults();
    let fault = faults[random.random_range(0..faults.len())];
    // Every second one hits the leader, and every fourth lasts longer than its lease.
    let mut victim = random.random_range(0..3);
    if random.random_range(0..2) == 0 {
        victim = site.leader().unwrap_or(victim);
    }
    let lasts = match random.random_range(0..4) {
        0 => Duration::from_secs(18),
        _ => Duration::from_millis(random.random_range(1000..6000)),
    };
    println!("round {round}: {fault:?} on machine {victim} for {lasts:?}");
    let begun = Instant::now();
    fault.begin(site, victim);
    let goal = progress.acknowledged() + 5;
    until("writes to go on", Duration::from_secs(60), || {
        let count = progress.acknowledged();
        match count >= goal {
            true => Ok(()),
            false => Err(format!("{count} of {goal}")),
        }
    });
    println!("  five writes after {:?}", begun.elapsed());
    thread::sleep(lasts.saturating_sub(begun.elapsed()));
    fault.end(site, victim);
    wait_for_all(site, kubeconfig);
    let pause = progress.take_longest_pause();
    println!("  the longest pause {pause:?}");
    let is_allowed = longest_pause(fault).is_none_or(|longest| pause <= longest);
    assert!(is_allowed, "{fault:?}: no write for {pause:?}");
}

/// Waits until every server and every member answers: two faults at once would be too many.
fn wait_for_all(site: &Site, kubeconfig: &str) {
    let (files, members, servers) = (site.etcd.client_files(), site.etcd.urls(), urls(site));
    let kubeconfig = kubeconfig.to_owned();
    let look = move || {
        let patience = Duration::from_secs(5);
        block_on(async {
            for url in &members {
                let member = Api::of_files(&files, url, patience);
                if !member.answers("/health").await {
                    return Err(format!("{url} does not answer"));
                }
            }
            for url in &servers {
                let server = Api::of_server(&kubeconfig, url, patience);
                if !server.answers("/readyz").await {
                    return Err(format!("{url} is not ready"));
                }
            }
            Ok(())
        })
    };
    eventually("all servers and members", || {
        let looked = site.agent.machine().thread(look.clone());
        looked.join().expect("an answer")
    });
}

fn assert_nothing_lost(site: &Site, written: &Written) {
    let listed = site.get(&["configmaps"]);
    let items = listed["items"].as_array().cloned().unwrap_or_default();
    let there: std::collections::HashSet<&str> = items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    let names = written.names.iter();
    let lost: Vec<&String> = names
        .filter(|name| !there.contains(name.as_str()))
        .collect();
    assert!(lost.is_empty(), "{lost:?} of {}", written.names.len());
}
