//! Counts the volumes that are attached, should be, or are used by pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use reconcile::storage::volume_name;

use super::{AttachDetach, node_of};
use crate::{metrics::Metrics, persistentvolume::metrics::plugin_name, shared::claims_of};

fn csi_plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

impl AttachDetach {
    /// Updates the gauges.
    pub(super) fn collect(&self, metrics: &Metrics) {
        let mut in_use: BTreeMap<(String, String), usize> = BTreeMap::new();
        for pod in self.pods.list() {
            let Some(node) = node_of(&pod) else { continue };
            for plugin in self.plugins_of(&pod) {
                *in_use.entry((node.name.clone(), plugin)).or_default() += 1;
            }
        }
        metrics.attachable_in_use.clear();
        for ((node, plugin), count) in &in_use {
            let by = [("node", node.as_str()), ("volume_plugin", plugin)];
            metrics.attachable_in_use.set(by, *count);
        }
        let mut states: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for node in self.nodes.cache().list() {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            for desired in self.desired(name).into_values() {
                let key = ("desired_state_of_world", csi_plugin(&desired.driver));
                *states.entry(key).or_default() += 1;
            }
        }
        for attachment in self.attachments.cache().list() {
            if attachment.status.as_ref().is_some_and(|it| it.attached) {
                let key = (
                    "actual_state_of_world",
                    csi_plugin(&attachment.spec.attacher),
                );
                *states.entry(key).or_default() += 1;
            }
        }
        metrics.attached_volumes.clear();
        for ((state, plugin), count) in &states {
            let by = [("plugin_name", plugin.as_str()), ("state", state)];
            metrics.attached_volumes.set(by, *count);
        }
    }

    /// The plugin of each CSI volume of a pod; others are not attached by this controller.
    fn plugins_of(&self, pod: &Pod) -> Vec<String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let bound = |claim: String| {
            let claim = self.claims.get(namespace, &claim)?;
            let volume = self.volumes.get("", volume_name(&claim)?)?;
            super::csi(&volume).map(|_| plugin_name(&volume))
        };
        let inline = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let inline = inline.filter_map(|volume| Some(csi_plugin(&volume.csi.as_ref()?.driver)));
        let claimed = claims_of(pod).into_iter().filter_map(bound);
        inline.chain(claimed).collect()
    }
}
