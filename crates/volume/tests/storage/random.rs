//! Random histories compared with a simple model: pods start and end, sequentially and
//! concurrently; the driver fails, loses responses, hangs, dies and disappears; the disk is full; the
//! kubelet is killed during a call. After every step the driver's state is compared with what the
//! model allows.

use std::collections::BTreeSet;

use csi::{
    testing::{Fault, Options},
    tonic::Code,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use volume::storage::{Key, Spec};

use crate::support::{DRIVER, Node, persistent, pod, set_up, until, volume, with_own_mounts};

const PODS: [&str; 4] = ["p0", "p1", "p2", "p3"];
/// The last one is a raw block volume.
const VOLUMES: [&str; 3] = ["a", "b", "raw"];
const METHODS: [&str; 5] = [
    "NodeStageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
    "NodeExpandVolume",
];
const STEPS: usize = 60;

fn key(volume: usize) -> Key {
    Key {
        plugin: "kubernetes.io/csi",
        volume: format!("{DRIVER}^h-{}", VOLUMES[volume]),
    }
}

fn spec(index: usize) -> Spec {
    match VOLUMES[index] {
        "raw" => persistent(
            "raw",
            json!({"volumeMode": "Block", "accessModes": ["ReadWriteOnce"],
                   "csi": {"driver": DRIVER, "volumeHandle": "h-raw"}}),
        ),
        name => volume(name),
    }
}

/// Where the driver publishes a volume to a pod.
fn target(node: &Node, pod: &str, volume: &str) -> String {
    if volume != "raw" {
        return node.target(pod, volume);
    }
    let plugin = node.dir.path().join("kubelet/plugins/kubernetes.io/csi");
    let device = plugin.join("volumeDevices/publish/raw").join(pod);
    device.to_string_lossy().into_owned()
}

/// Pods and volumes by their known state.
#[derive(Default)]
struct Model {
    /// The pod runs with the volume: it must be published.
    has: BTreeSet<(usize, usize)>,
    /// A setup or teardown failed: it may be published.
    may_have: BTreeSet<(usize, usize)>,
}

impl Model {
    fn set_up(&mut self, pod: usize, volume: usize, is_done: bool) {
        if is_done {
            self.has.insert((pod, volume));
        } else if !self.has.contains(&(pod, volume)) {
            // A running pod keeps its volume even if setting it up again fails.
            self.may_have.insert((pod, volume));
        }
    }

    fn torn_down(&mut self, pod: usize, is_done: bool) {
        let of_pod = |(owner, _): &(usize, usize)| *owner == pod;
        let had: Vec<_> = self.has.iter().copied().filter(of_pod).collect();
        self.has.retain(|one| !of_pod(one));
        if is_done {
            self.may_have.retain(|one| !of_pod(one));
        } else {
            self.may_have.extend(had);
        }
    }

    fn check(&self, node: &Node, history: &[String]) {
        let published = node.driver.published();
        for (p, pod) in PODS.iter().enumerate() {
            for (v, volume) in VOLUMES.iter().enumerate() {
                let target = target(node, pod, volume);
                let targets = published.get(&format!("h-{volume}"));
                let is_there = targets.is_some_and(|targets| targets.contains(&target));
                if self.has.contains(&(p, v)) {
                    assert!(is_there, "{pod} lost {volume}: {history:#?}");
                } else if !self.may_have.contains(&(p, v)) {
                    assert!(!is_there, "{pod} still has {volume}: {history:#?}");
                }
            }
        }
        // A controller may detach what is not reported.
        let in_use = node.manager.in_use().borrow().clone();
        for handle in node.driver.staged().keys().chain(published.keys()) {
            let name = format!("kubernetes.io/csi/{DRIVER}^{handle}");
            assert!(in_use.contains(&name), "{name} not in use: {history:#?}");
        }
        let violations = node.driver.violations();
        assert!(violations.is_empty(), "{violations:?}: {history:#?}");
    }
}

struct Run {
    random: StdRng,
    node: Node,
    model: Model,
    history: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let node = Node::on_small_disk(Options::new(DRIVER));
        node.set_csi_driver(json!({"attachRequired": true}));
        node.attach_all();
        Self {
            random: StdRng::seed_from_u64(seed),
            node,
            model: Model::default(),
            history: vec![format!("seed {seed}")],
        }
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.random_range(0..all.len())]
    }

    async fn set_up(&mut self, pods: &[usize], volume: usize) {
        let spec = spec(volume);
        let all: Vec<_> = pods.iter().map(|p| pod(PODS[*p])).collect();
        let outcomes = all.iter().map(|pod| self.node.set_up(pod, &spec));
        let outcomes = futures::future::join_all(outcomes).await;
        for (p, outcome) in pods.iter().zip(outcomes) {
            let (pod, volume_name) = (PODS[*p], VOLUMES[volume]);
            let ended = outcome.as_ref().err().map(ToString::to_string);
            self.history
                .push(format!("set up {pod} {volume_name}: {ended:?}"));
            self.model.set_up(*p, volume, outcome.is_ok());
        }
    }

    async fn tear_down(&mut self, p: usize) {
        let outcome = self.node.manager.tear_down(PODS[p]).await;
        let ended = outcome.as_ref().err().map(ToString::to_string);
        self.history
            .push(format!("tear down {}: {ended:?}", PODS[p]));
        self.model.torn_down(p, outcome.is_ok());
    }

    async fn expand(&mut self, p: usize, v: usize) {
        let (spec, key) = (spec(v), key(v));
        let manager = self.node.manager.clone();
        let grown = manager.expand(PODS[p], &key, &spec, 5 << 30).await;
        self.history
            .push(format!("expand {} {}: {grown:?}", PODS[p], VOLUMES[v]));
    }

    /// The kubelet is killed while the driver handles a call, or before its response.
    async fn kill(&mut self, p: usize, v: usize) {
        let (method, fault) = (self.pick(&METHODS), self.pick(&[Fault::Hang, Fault::Stall]));
        let down = self.random.random_bool(0.5);
        self.history.push(format!(
            "killed in {method} {fault:?}, {} {} down {down}",
            PODS[p], VOLUMES[v]
        ));
        self.node.driver.break_method(method, fault);
        let before = self.node.driver.calls_of(method).len();
        let manager = self.node.manager.clone();
        let task = tokio::spawn(async move {
            let spec = spec(v);
            if down {
                return manager.tear_down(PODS[p]).await.is_ok();
            }
            let ready = set_up(&manager, &pod(PODS[p]), &spec, false).await;
            let _ = manager.expand(PODS[p], &key(v), &spec, 6 << 30).await;
            ready.is_ok()
        });
        until("a call or its end", || {
            task.is_finished() || self.node.driver.calls_of(method).len() > before
        })
        .await;
        let is_finished = task.is_finished();
        task.abort();
        let is_done = is_finished && task.await.unwrap_or(false);
        match down {
            true => self.model.torn_down(p, is_done),
            false => self.model.set_up(p, v, is_done),
        }
        self.node.driver.heal(method);
        self.node.restart().await;
    }

    fn break_something(&mut self) {
        let method = self.pick(&METHODS);
        let fault = self.pick(&[
            Fault::Refuse(Code::Internal),
            Fault::Refuse(Code::Unavailable),
            Fault::Lose(Code::Aborted),
            Fault::Die,
        ]);
        self.history.push(format!("break {method}: {fault:?}"));
        self.node.driver.break_method(method, fault);
    }

    fn heal(&mut self) {
        self.history.push("heal".to_owned());
        for method in METHODS {
            self.node.driver.heal(method);
        }
        *self.node.host.is_registered.lock() = true;
        self.node.free_disk();
    }

    async fn step(&mut self) {
        let (p, v) = (
            self.random.random_range(0..PODS.len()),
            self.random.random_range(0..VOLUMES.len()),
        );
        match self.random.random_range(0..20) {
            0..6 => self.set_up(&[p], v).await,
            6 => self.set_up(&[0, 1, 2, 3], v).await,
            7..12 => self.tear_down(p).await,
            12 => self.expand(p, v).await,
            13 => self.break_something(),
            14 => {
                self.history.push("the driver disappears".to_owned());
                *self.node.host.is_registered.lock() = false;
            }
            15 => {
                self.history.push("the disk is full".to_owned());
                self.node.fill_disk();
            }
            16 => self.kill(p, v).await,
            17 => {
                self.history.push("restart".to_owned());
                self.node.restart().await;
            }
            _ => self.heal(),
        }
        self.model.check(&self.node, &self.history);
    }

    /// Everything works again and all pods end: nothing is left of any volume.
    async fn end(mut self) {
        self.heal();
        for p in 0..PODS.len() {
            self.tear_down(p).await;
        }
        let (node, history) = (&self.node, &self.history);
        until(
            &format!("everything to be off the node: {history:#?}"),
            || {
                node.driver.staged().is_empty()
                    && node.driver.published().is_empty()
                    && node.manager.in_use().borrow().is_empty()
            },
        )
        .await;
        self.model.has.clear();
        self.model.may_have.clear();
        self.model.check(node, history);
        let root = node.dir.path().join("kubelet");
        for pod in PODS {
            let dir = root.join("pods").join(pod);
            for kind in ["volumes", "volumeDevices"] {
                let left = std::fs::read_dir(dir.join(kind).join("kubernetes.io~csi"));
                assert_eq!(left.map_or(0, Iterator::count), 0, "{kind}: {history:#?}");
            }
        }
        let plugin = root.join("plugins/kubernetes.io/csi");
        let left = std::fs::read_dir(plugin.join(DRIVER)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{history:#?}");
        for dir in ["raw", "staging/raw", "publish/raw"] {
            let left = plugin.join("volumeDevices").join(dir);
            assert!(!left.exists(), "{}: {history:#?}", left.display());
        }
    }
}

async fn histories() {
    let is_soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    for seed in 0..if is_soak { 2000 } else { 40 } {
        let mut run = Run::new(seed);
        for _ in 0..STEPS {
            run.step().await;
        }
        run.end().await;
    }
}

#[test]
fn no_pod_loses_a_volume_and_none_keeps_one_after_its_end() {
    with_own_mounts(histories);
}
