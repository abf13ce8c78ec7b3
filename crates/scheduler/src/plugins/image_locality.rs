//! Prefers nodes that have the pod's images, the more the larger; images that few nodes have count
//! less, so that not all pods rush to one node.

use super::{BEST, Change, Plugin};
use crate::{
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

const SMALLEST: i64 = 23 << 20;
const LARGEST_PER_CONTAINER: i64 = 1000 << 20;

/// The rule.
pub struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        let spec = pod.spec();
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        let images: Vec<String> = containers
            .filter_map(|container| container.image.as_deref())
            .map(full_name)
            .collect();
        let total = i64::try_from(cluster.size().max(1)).unwrap_or(i64::MAX);
        let largest = LARGEST_PER_CONTAINER * i64::try_from(images.len().max(1)).unwrap_or(1);
        let score = |slot: &Slot| {
            let sum: i64 = images
                .iter()
                .filter_map(|image| {
                    let size = cluster.images[*slot].get(image)?;
                    let spread = cluster.image_spread.get(image).copied().unwrap_or(0);
                    Some(size * i64::try_from(spread).unwrap_or(0) / total)
                })
                .sum();
            BEST * (sum.clamp(SMALLEST, largest) - SMALLEST) / (largest - SMALLEST)
        };
        Some(nodes.iter().map(score).collect())
    }

    fn helped_by(&self, _: Change) -> bool {
        false
    }
}

/// Nodes list images with a tag or digest.
fn full_name(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') || name.contains('@') {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}
