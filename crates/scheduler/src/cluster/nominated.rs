//! Nominated pods, which wait for the victims on their node to end: their resources are reserved
//! against pods of lower priority.

use std::{collections::HashMap, sync::Arc};

use crate::pod::PodInfo;

/// Nominated pods by node.
#[derive(Debug, Default)]
pub struct Nominated {
    by_node: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    nodes: HashMap<Arc<str>, Arc<str>>,
}

impl Nominated {
    /// Stores a pod's nomination.
    pub fn put(&mut self, pod: Arc<PodInfo>, node: Arc<str>) {
        self.remove(&pod.uid);
        self.nodes.insert(pod.uid.clone(), node.clone());
        self.by_node.entry(node).or_default().push(pod);
    }

    /// Removes the nomination of a pod that is placed, gone, or no longer nominated.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<str>> {
        let node = self.nodes.remove(uid)?;
        if let Some(pods) = self.by_node.get_mut(&node) {
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

    /// The node that a pod is nominated to.
    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.nodes.get(uid)
    }

    /// Pods nominated to a node.
    pub fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}
