//! Tells kubelets how long they may use Secrets and ConfigMaps without reading them again: the more nodes there are, the
//! longer. Kubelets that watch these objects, as ours, need no such limit.

use std::sync::Arc;

use client::{Api, Event, Informer};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key};
use serde_json::json;

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "ttl";
const ACCOUNT: &str = "ttl-controller";
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// Of each step: the fewest and the most nodes, and the seconds. The steps overlap, so that a node more or less at an
/// end does not change all others.
const STEPS: [(usize, usize, u32); 5] = [
    (0, 100, 0),
    (90, 500, 15),
    (450, 1000, 30),
    (900, 2000, 60),
    (1800, usize::MAX, 300),
];

struct Ttl {
    client: kube::Client,
    nodes: Informer<Node>,
    /// Guards the current step.
    step: Mutex<usize>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Ttl {
        client: shared.client(ACCOUNT),
        nodes: shared.informer(),
        step: Mutex::default(),
    });
    let counted = controller.clone();
    shared
        .controller(&controller)
        // Every change of a node: after a new step each gets the other number with its next status.
        .watches_with(&controller.nodes, move |event| {
            counted.count();
            match event {
                Event::Deleted(_) => Vec::new(),
                _ => vec![Key::from_object(&**event.object())],
            }
        })
        .start();
}

/// The step for a number of nodes; `current` if that still suits.
fn step(current: usize, nodes: usize) -> usize {
    let mut step = current;
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

/// The annotation to write; `None` if the node has it.
fn change(node: &Node, seconds: u32) -> Option<String> {
    let annotations = node.metadata.annotations.as_ref();
    let known = annotations.and_then(|annotations| annotations.get(ANNOTATION));
    let known = known.and_then(|known| known.parse::<u32>().ok());
    (known != Some(seconds)).then(|| seconds.to_string())
}

impl Ttl {
    fn count(&self) {
        let mut current = self.step.lock();
        *current = step(*current, self.nodes.count());
    }
}

impl Controller for Ttl {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(node) = self.nodes.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let seconds = STEPS[*self.step.lock()].2;
        let Some(text) = change(&node, seconds) else {
            return Ok(Action::Done);
        };
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = json!({"metadata": {"annotations": {ANNOTATION: text}}});
        let params = PatchParams::default();
        match api.patch(&key.name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => Ok(Action::Done),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Action::Done),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_grows_with_the_nodes_and_steps_overlap() {
        let mut current = 0;
        for (nodes, seconds) in [
            (1, 0),
            (100, 0),
            (101, 15),
            (95, 15),
            (89, 0),
            (600, 30),
            (460, 30),
            (449, 15),
            (5000, 300),
            (1800, 300),
            (1799, 60),
            (0, 0),
        ] {
            current = step(current, nodes);
            assert_eq!(STEPS[current].2, seconds, "{nodes} nodes");
        }
    }

    #[test]
    fn a_node_is_written_only_if_it_has_another_time() {
        let mut node = Node::default();
        assert_eq!(change(&node, 0).as_deref(), Some("0"));
        let mut has = |value: &str| {
            node.metadata.annotations = Some([(ANNOTATION.to_owned(), value.to_owned())].into());
            change(&node, 15)
        };
        assert_eq!(has("15"), None);
        assert_eq!(has("0").as_deref(), Some("15"));
        assert_eq!(has("x").as_deref(), Some("15"));
    }
}
