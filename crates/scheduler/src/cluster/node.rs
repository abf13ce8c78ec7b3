//! A node as the scheduler stores it.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Taint};

use crate::{matching::Labels, resources::Resources};

/// One version of a node.
#[derive(Debug, Default, PartialEq)]
pub struct NodeInfo {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// The allocatable resources.
    pub allocatable: Resources,
    /// The maximum number of pods.
    pub pods: i64,
    /// Its images by name, with their sizes.
    pub images: HashMap<String, i64>,
    /// The features that its kubelet declares.
    pub features: Vec<String>,
}

impl NodeInfo {
    /// From the API object.
    pub fn new(node: &Node) -> Self {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let pods = allocatable.and_then(|all| all.get("pods")?.0.parse().ok());
        let pods = pods.map_or(0, |pods: machinery::quantity::Quantity| pods.value());
        let images = status.into_iter().flat_map(|s| s.images.iter().flatten());
        let images = images.flat_map(|image| {
            let size = image.size_bytes.unwrap_or(0);
            let names = image.names.iter().flatten();
            names.map(move |name| (name.clone(), size))
        });
        Self {
            name: Arc::from(node.metadata.name.as_deref().unwrap_or_default()),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default(),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            allocatable: Resources::parse(allocatable),
            pods,
            images: images.collect(),
            features: status
                .and_then(|status| status.declared_features.clone())
                .unwrap_or_default(),
        }
    }

    /// Region and zone; the visiting order alternates between these.
    pub fn zone(&self) -> (&str, &str) {
        let label = |key: &str| self.labels.get(key).map_or("", String::as_str);
        (
            label("topology.kubernetes.io/region"),
            label("topology.kubernetes.io/zone"),
        )
    }
}
