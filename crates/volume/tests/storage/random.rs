//! Random histories against a simple model: pods come and go, the driver fails in every way it can, the
//! agent restarts, and after every step what the driver has is compared with what the model allows.

use std::collections::BTreeSet;

use csi::{
    testing::{Fault, Options},
    tonic::Code,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{DRIVER, Node, pod, until, volume};

const PODS: [&str; 4] = ["p0", "p1", "p2", "p3"];
const VOLUMES: [&str; 3] = ["a", "b", "c"];
const METHODS: [&str; 4] = [
    "NodeStageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
];
const STEPS: usize = 60;

/// Pods and volumes by what is known about them.
#[derive(Default)]
struct Model {
    /// The pod runs with the volume: it must be published.
    has: BTreeSet<(usize, usize)>,
    /// A set up or a tear down failed: it may be published.
    may_have: BTreeSet<(usize, usize)>,
}

impl Model {
    fn check(&self, node: &Node, history: &[String]) {
        let published = node.driver.published();
        for (p, pod) in PODS.iter().enumerate() {
            for (v, volume) in VOLUMES.iter().enumerate() {
                let target = node.target(pod, volume);
                let targets = published.get(&format!("h-{volume}"));
                let is_there = targets.is_some_and(|targets| targets.contains(&target));
                if self.has.contains(&(p, v)) {
                    assert!(is_there, "{pod} lost {volume}: {history:#?}");
                } else if !self.may_have.contains(&(p, v)) {
                    assert!(!is_there, "{pod} still has {volume}: {history:#?}");
                }
            }
        }
        let violations = node.driver.violations();
        assert!(violations.is_empty(), "{violations:?}: {history:#?}");
    }
}

async fn history(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut node = Node::new(Options::new(DRIVER));
    let mut model = Model::default();
    let mut history = vec![format!("seed {seed}")];
    for _ in 0..STEPS {
        let (p, v) = (
            random.random_range(0..PODS.len()),
            random.random_range(0..VOLUMES.len()),
        );
        match random.random_range(0..10) {
            0..4 => {
                let outcome = node.set_up(&pod(PODS[p]), &volume(VOLUMES[v])).await;
                history.push(format!(
                    "set up {} {}: {}",
                    PODS[p],
                    VOLUMES[v],
                    outcome.is_ok()
                ));
                match outcome {
                    Ok(_) => model.has.insert((p, v)),
                    // What a pod runs with stays, whatever a later try says.
                    Err(_) => model.has.contains(&(p, v)) || model.may_have.insert((p, v)),
                };
            }
            4..7 => {
                let outcome = node.manager.tear_down(PODS[p]).await;
                history.push(format!("tear down {}: {}", PODS[p], outcome.is_ok()));
                let of_pod: Vec<_> = model
                    .has
                    .iter()
                    .copied()
                    .filter(|(pod, _)| *pod == p)
                    .collect();
                model.has.retain(|(pod, _)| *pod != p);
                match outcome {
                    Ok(()) => model.may_have.retain(|(pod, _)| *pod != p),
                    Err(_) => model.may_have.extend(of_pod),
                }
            }
            7 => {
                let method = METHODS[random.random_range(0..METHODS.len())];
                let fault = match random.random_range(0..3) {
                    0 => Fault::Refuse(Code::Internal),
                    1 => Fault::Refuse(Code::Unavailable),
                    _ => Fault::Lose(Code::Aborted),
                };
                history.push(format!("break {method}: {fault:?}"));
                node.driver.break_method(method, fault);
            }
            8 => {
                history.push("heal".to_owned());
                METHODS.iter().for_each(|method| node.driver.heal(method));
            }
            _ => {
                history.push("restart".to_owned());
                node.restart();
            }
        }
        model.check(&node, &history);
    }
    METHODS.iter().for_each(|method| node.driver.heal(method));
    for pod in PODS {
        node.manager.tear_down(pod).await.unwrap();
    }
    until(
        &format!("everything to be off the node: {history:#?}"),
        || node.driver.staged().is_empty() && node.driver.published().is_empty(),
    )
    .await;
    for pod in PODS {
        let dir = node.dir.path().join("kubelet/pods").join(pod);
        let left = std::fs::read_dir(dir.join("volumes/kubernetes.io~csi"));
        assert_eq!(left.map_or(0, Iterator::count), 0, "{history:#?}");
    }
    model.has.clear();
    model.may_have.clear();
    model.check(&node, &history);
}

#[tokio::test]
async fn no_pod_loses_a_volume_and_none_keeps_one_after_its_end() {
    let is_soak = std::env::var_os("MAINSTAY_SOAK").is_some();
    for seed in 0..if is_soak { 2000 } else { 30 } {
        history(seed).await;
    }
}
