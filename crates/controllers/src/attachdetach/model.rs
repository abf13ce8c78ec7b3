//! A model test of attaching and detaching: pods come and go, nodes die and return, the driver, the
//! kubelets and the controller act at random. The controller and the kubelets decide on caches that
//! lag behind, and the controller dies between any two of its writes. Invariants: no exclusive
//! volume is attached to two nodes, and none is detached from a node that has it mounted, except by
//! force.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{AttachedVolume, ObjectReference};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::decide::{
    Attachment, Desired, Host, MAX_WAIT_FOR_UNMOUNT, Plan, View, decide, unique_name,
};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The last one may be attached to several nodes.
const VOLUMES: [&str; 3] = ["a", "b", "shared"];
const STEPS: usize = 400;

/// The parts of the Node object.
#[derive(Debug, Clone, Default, PartialEq)]
struct Status {
    is_down: bool,
    is_out_of_service: bool,
    in_use: BTreeSet<String>,
    attached: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Machine {
    /// In the API server, in the controller's cache, and in the kubelet's cache.
    status: Status,
    seen: Status,
    kubelet: Status,
    /// Volumes staged on the node.
    mounted: BTreeSet<&'static str>,
    waiting_since: BTreeMap<String, Timestamp>,
}

/// An attachment: whether the driver has done it, and whether it is being deleted.
#[derive(Debug, Clone, Copy, Default)]
struct Attached {
    is_done: bool,
    is_leaving: bool,
}

struct Run {
    random: StdRng,
    now: i64,
    machines: BTreeMap<&'static str, Machine>,
    /// Node and volume of each pod.
    pods: Vec<(&'static str, &'static str)>,
    /// By node and volume. The controller's own writes and others are in its cache at once.
    attachments: BTreeMap<(&'static str, &'static str), Attached>,
    forced: usize,
    detached: usize,
    mounts: usize,
    log: Vec<String>,
}

fn unique(volume: &str) -> String {
    unique_name("x.io", volume)
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            now: 0,
            machines: NODES.map(|node| (node, Machine::default())).into(),
            pods: Vec::new(),
            attachments: BTreeMap::new(),
            forced: 0,
            detached: 0,
            mounts: 0,
            log: vec![format!("seed {seed}")],
        }
    }

    fn one_of(&mut self, all: &[&'static str]) -> &'static str {
        all[self.random.random_range(0..all.len())]
    }

    fn machine(&mut self, node: &str) -> &mut Machine {
        self.machines.get_mut(node).unwrap()
    }

    fn needs(&self, node: &str, volume: &str) -> bool {
        let mut pods = self.pods.iter();
        pods.any(|(on, used)| *on == node && *used == volume)
    }

    fn view(&self, node: &'static str) -> View {
        let machine = &self.machines[node];
        let name = |volume: &String| AttachedVolume {
            name: volume.clone(),
            device_path: String::new(),
        };
        let host = Host::Present {
            is_ready: !machine.seen.is_down,
            is_out_of_service: machine.seen.is_out_of_service,
            in_use: machine.seen.in_use.clone(),
            reported: machine.seen.attached.iter().map(name).collect(),
        };
        let describe = |volume: &'static str| Desired {
            volume: format!("pv-{volume}"),
            driver: "x.io".into(),
            handle: volume.into(),
            is_shared: volume == "shared",
            pods: vec![ObjectReference::default()],
            elsewhere: {
                let all = self.attachments.keys();
                let others = all.filter(|(other, held)| *held == volume && *other != node);
                others.map(|(other, _)| (*other).to_owned()).collect()
            },
            rivals: Vec::new(),
        };
        let wanted = VOLUMES.into_iter().filter(|v| self.needs(node, v));
        let attachments = self.attachments.iter().filter(|((on, _), _)| *on == node);
        let attachment = |((_, volume), state): (&(&str, &str), &Attached)| Attachment {
            name: (*volume).to_owned(),
            volume: format!("pv-{volume}"),
            unique_name: Some(unique(volume)),
            is_attached: state.is_done,
            is_leaving: state.is_leaving,
            error: None,
        };
        View {
            host,
            desired: wanted.map(|v| (unique(v), describe(v))).collect(),
            attachments: attachments.map(attachment).collect(),
            waiting_since: machine.waiting_since.clone(),
            now: Timestamp::from_second(self.now).unwrap(),
        }
    }

    /// The controller works on a node, and may die after each write.
    fn controller(&mut self, node: &'static str, may_die: bool) {
        let view = self.view(node);
        let plan = decide(&view);
        let decided_on = self.machines[node].seen.clone();
        let Plan {
            report,
            detach,
            attach,
            waiting,
            ..
        } = plan;
        self.machine(node).waiting_since = waiting;
        let mut writes_left = match may_die && self.random.random_bool(0.3) {
            true => self.random.random_range(0..3),
            false => usize::MAX,
        };
        let mut writes = || {
            let is_alive = writes_left > 0;
            writes_left = writes_left.saturating_sub(1);
            is_alive
        };
        if let Some(report) = report {
            if !writes() {
                return self.controller_restarts();
            }
            let machine = self.machine(node);
            machine.status.attached = report.into_iter().map(|one| one.name).collect();
            // It has its own write.
            machine.seen = machine.status.clone();
        }
        for (name, must_confirm) in detach {
            let volume = *VOLUMES.iter().find(|volume| **volume == name).unwrap();
            let machine = &self.machines[node];
            if must_confirm && machine.status.in_use.contains(&unique(volume)) {
                continue;
            }
            if !must_confirm {
                let since = view.waiting_since.get(&name);
                let waited = since.map_or(0, |since| self.now - since.as_second());
                let is_late = waited >= MAX_WAIT_FOR_UNMOUNT.as_secs() as i64;
                assert!(decided_on.is_out_of_service || decided_on.is_down && is_late);
                self.forced += 1;
            }
            if !writes() {
                return self.controller_restarts();
            }
            self.log
                .push(format!("detach {volume} {node} {must_confirm}"));
            self.attachments
                .get_mut(&(node, volume))
                .unwrap()
                .is_leaving = true;
            self.detached += 1;
            let is_mounted = self.machines[node].mounted.contains(volume);
            assert!(!(must_confirm && is_mounted), "{:#?}", self.log);
        }
        for desired in attach {
            if !writes() {
                return self.controller_restarts();
            }
            let volume = VOLUMES.iter().find(|volume| **volume == desired.handle);
            self.log.push(format!("attach {volume:?} {node}"));
            // One that exists already is no error.
            let key = (node, *volume.unwrap());
            self.attachments.entry(key).or_default();
        }
    }

    fn controller_restarts(&mut self) {
        for machine in self.machines.values_mut() {
            machine.waiting_since.clear();
            machine.seen = machine.status.clone();
        }
    }

    /// One step of a kubelet: it shows what it uses, mounts, or unmounts.
    fn kubelet(&mut self, node: &'static str) {
        let needed: BTreeSet<&'static str> = VOLUMES
            .into_iter()
            .filter(|v| self.needs(node, v))
            .collect();
        let attachments = &self.attachments;
        let machine = self.machines.get_mut(node).unwrap();
        if machine.status.is_down {
            return;
        }
        let volume = VOLUMES[self.random.random_range(0..VOLUMES.len())];
        let is_mounted = machine.mounted.contains(volume);
        match (needed.contains(volume), is_mounted) {
            (true, false) => {
                machine.status.in_use.insert(unique(volume));
                let shown = &machine.kubelet;
                let has = |all: &BTreeSet<String>| all.contains(&unique(volume));
                let state = attachments.get(&(node, volume));
                let is_attached = state.is_some_and(|it| it.is_done && !it.is_leaving);
                if has(&shown.in_use) && has(&shown.attached) && is_attached {
                    self.log.push(format!("mount {volume} {node}"));
                    machine.mounted.insert(volume);
                    self.mounts += 1;
                }
            }
            (false, true) => {
                self.log.push(format!("unmount {volume} {node}"));
                machine.mounted.remove(volume);
            }
            (false, false) => {
                machine.status.in_use.remove(&unique(volume));
            }
            (true, true) => {}
        }
    }

    fn driver(&mut self) {
        let keys: Vec<_> = self.attachments.keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.random.random_range(0..keys.len())];
        let state = self.attachments.get_mut(&key).unwrap();
        state.is_done = true;
        if state.is_leaving {
            self.attachments.remove(&key);
        }
    }

    fn node_dies_or_returns(&mut self, node: &'static str) {
        let fenced = self.random.random_bool(0.3);
        let machine = self.machine(node);
        match machine.status.is_down {
            false => machine.status.is_down = true,
            true if fenced => machine.status.is_out_of_service = true,
            true => {
                // It was rebooted: nothing is mounted.
                machine.mounted.clear();
                machine.status.is_down = false;
                machine.status.is_out_of_service = false;
            }
        }
    }

    fn step(&mut self) {
        let (node, volume) = (self.one_of(&NODES), self.one_of(&VOLUMES));
        match self.random.random_range(0..30) {
            0 | 1 => self.pods.push((node, volume)),
            2 | 3 if !self.pods.is_empty() => {
                let at = self.random.random_range(0..self.pods.len());
                self.pods.swap_remove(at);
            }
            4 if self.random.random_bool(0.2) => self.node_dies_or_returns(node),
            5 => self.now += self.random.random_range(1..200),
            6 if self.random.random_bool(0.2) => self.controller_restarts(),
            7..12 => {
                let machine = self.machine(node);
                machine.seen = machine.status.clone();
            }
            12..16 => {
                let machine = self.machine(node);
                machine.kubelet = machine.status.clone();
            }
            16..21 => self.controller(node, true),
            21..26 => self.kubelet(node),
            _ => self.driver(),
        }
        self.check();
    }

    fn check(&self) {
        for volume in ["a", "b"] {
            let on = self.attachments.keys().filter(|(_, held)| *held == volume);
            assert!(on.count() <= 1, "{volume} is on two nodes: {:#?}", self.log);
        }
        for (node, machine) in self.machines.iter().filter(|(_, it)| !it.status.is_down) {
            for volume in &machine.mounted {
                let state = self.attachments.get(&(*node, *volume));
                let is_attached = state.is_some_and(|it| it.is_done && !it.is_leaving);
                assert!(is_attached, "{volume} left {node}: {:#?}", self.log);
            }
        }
    }

    /// All of them act, without faults.
    fn settle(&mut self) {
        for _ in 0..200 {
            for node in NODES {
                self.kubelet(node);
                let machine = self.machine(node);
                machine.seen = machine.status.clone();
                machine.kubelet = machine.status.clone();
                self.controller(node, false);
                self.driver();
                self.check();
            }
        }
    }

    /// All nodes are back: the pods get their volumes, an exclusive one on one node. Then all pods
    /// end: nothing stays attached.
    fn end(&mut self) {
        for machine in self.machines.values_mut().filter(|it| it.status.is_down) {
            machine.mounted.clear();
            machine.status.is_down = false;
            machine.status.is_out_of_service = false;
        }
        self.settle();
        for volume in VOLUMES {
            let needed = NODES.into_iter().filter(|node| self.needs(node, volume));
            let wanted = match volume {
                "shared" => needed.count(),
                _ => needed.count().min(1),
            };
            let mounted = self
                .machines
                .values()
                .filter(|it| it.mounted.contains(volume));
            assert_eq!(mounted.count(), wanted, "{volume}: {:#?}", self.log);
        }
        self.pods.clear();
        self.settle();
        assert!(self.attachments.is_empty(), "{:#?}", self.log);
        for machine in self.machines.values() {
            assert_eq!(machine.status, Status::default(), "{:#?}", self.log);
        }
    }
}

#[test]
fn random_events_never_attach_a_volume_twice_or_detach_one_that_is_mounted() {
    let is_soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    let (mut forced, mut detached, mut mounts) = (0, 0, 0);
    for seed in 0..if is_soak { 20_000 } else { 300 } {
        let mut run = Run::new(seed);
        for _ in 0..STEPS {
            run.step();
        }
        run.end();
        forced += run.forced;
        detached += run.detached;
        mounts += run.mounts;
    }
    let counts = (forced, detached, mounts);
    assert!(
        forced > 20 && detached > forced && mounts > 1000,
        "{counts:?}"
    );
}
