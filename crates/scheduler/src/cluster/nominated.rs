//! Nominated pods, which wait for the victims on their node to end: their resources are reserved
//! against pods of lower priority.

use std::{collections::HashMap, sync::Arc};

use crate::pod::PodInfo;

/// Nominated pods by node.
#[derive(Debug, Default)]
pub struct Nominated {
    by_node: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    nodes: HashMap<Arc<str>, Arc<str>>,
    /// How many of them have anti-affinity terms.
    repelling: usize,
}

impl Nominated {
    /// Stores a pod's nomination.
    pub fn put(&mut self, pod: Arc<PodInfo>, node: Arc<str>) {
        self.remove(&pod.uid);
        self.repelling += usize::from(repels(&pod));
        self.nodes.insert(pod.uid.clone(), node.clone());
        self.by_node.entry(node).or_default().push(pod);
    }

    /// Removes the nomination of a pod that is placed, gone, or no longer nominated.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<str>> {
        let node = self.nodes.remove(uid)?;
        if let Some(pods) = self.by_node.get_mut(&node) {
            let leaving = pods.iter().filter(|pod| &*pod.uid == uid);
            self.repelling -= leaving.filter(|pod| repels(pod)).count();
            pods.retain(|pod| &*pod.uid != uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
    }

    /// Whether no pod is nominated.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether a nominated pod has anti-affinity terms.
    pub fn is_any_repelling(&self) -> bool {
        self.repelling > 0
    }

    /// The node that a pod is nominated to.
    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.nodes.get(uid)
    }

    /// Pods nominated to a node.
    pub fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

fn repels(pod: &PodInfo) -> bool {
    !pod.template.anti_affinity.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn nominated_pods_with_anti_affinity_are_counted_by_pod() {
        let hostile = |name: &str| {
            let affinity = serde_json::json!({"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone",
                    "labelSelector": {}}],
            }});
            samples::pod_with(name, |spec| {
                spec.affinity = serde_json::from_value(affinity).unwrap();
            })
        };
        let mut nominated = Nominated::default();
        nominated.put(samples::pod("plain", "1", "1"), "n1".into());
        assert!(!nominated.is_any_repelling());
        nominated.put(hostile("a"), "n1".into());
        nominated.put(hostile("a"), "n2".into());
        nominated.put(hostile("b"), "n2".into());
        nominated.remove("uid-a");
        assert!(nominated.is_any_repelling());
        nominated.remove("uid-b");
        nominated.remove("uid-b");
        assert!(!nominated.is_any_repelling());
    }
}
