//! Prefers nodes that have the pod's images, weighted by size; images on few nodes count less, so
//! that pods do not crowd on one node.

use std::{any::Any, sync::Arc};

use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::{Cluster, Slot},
    framework::{BEST, Plugin, Point},
    pod::PodInfo,
};

/// The plugin's name.
pub(super) const NAME: &str = "ImageLocality";

const SMALLEST: i64 = 23 << 20;
const LARGEST_PER_CONTAINER: i64 = 1000 << 20;

/// The plugin.
pub(super) struct ImageLocality;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(ImageLocality))
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_local(&self) -> bool {
        true
    }

    fn normalizes(&self) -> bool {
        false
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Score]
    }

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        let mut images = pod.template.images.iter();
        let known = images.any(|image| cluster.image(image).is_some());
        known.then(|| Box::new(()) as Box<dyn Any>)
    }

    fn score(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        _: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let total = cluster.visits().len() as f64;
        for image in &pod.template.images {
            let Some(on) = cluster.image(image) else {
                continue;
            };
            let spread = on.len() as f64 / total;
            for (slot, score) in nodes.iter().zip(scores.iter_mut()) {
                if let Some(size) = on.get(&(*slot as u32)) {
                    *score += (*size as f64 * spread) as i64;
                }
            }
        }
        let largest = LARGEST_PER_CONTAINER * pod.template.containers.max(1) as i64;
        for score in scores {
            *score = BEST * ((*score).clamp(SMALLEST, largest) - SMALLEST) / (largest - SMALLEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;

    use super::*;
    use crate::samples::{self, scored};

    const MIB: i64 = 1 << 20;

    fn scores(images: &[&str]) -> Option<Vec<i64>> {
        let mut cluster = Cluster::default();
        for (name, images) in [
            ("n1", &[("a:1", 300), ("b:latest", 2000)][..]),
            ("n2", &[("a:1", 300), ("small:1", 10)]),
            ("n3", &[]),
        ] {
            let mut node = samples::node(name, "1", "1Gi");
            let sized = |(name, size): &(&str, i64)| ((*name).to_owned(), size * MIB);
            node.images = images.iter().map(sized).collect();
            cluster.put_node(node);
        }
        let container = |image: &&str| Container {
            image: Some((*image).to_owned()),
            ..Default::default()
        };
        let containers = images.iter().map(container).collect();
        let pod = samples::pod_with("p", |spec| spec.containers = containers);
        scored(&ImageLocality, &pod, &mut cluster, &[0, 1, 2])
    }

    #[test]
    fn large_images_that_many_nodes_have_count_most() {
        // 300 MiB on two of three nodes: 200 MiB of 23 to 1000.
        assert_eq!(scores(&["a:1"]).unwrap(), [18, 18, 0]);
        // 2000 MiB on one of three: 666 MiB. The tag is added.
        assert_eq!(scores(&["b"]).unwrap(), [65, 0, 0]);
        assert_eq!(scores(&["a:1", "b"]).unwrap(), [42, 8, 0]);
        assert_eq!(scores(&["small:1"]).unwrap(), [0, 0, 0]);
        assert_eq!(scores(&["nowhere:1"]), None);
    }
}
