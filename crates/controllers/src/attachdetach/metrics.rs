//! Counts the volumes that are attached, should be, or are used by pods.

use std::collections::{BTreeMap, BTreeSet};

use client::Informer;
use k8s_openapi::api::core::v1::Pod;
use reconcile::storage::volume_name;

use super::{AttachDetach, operations::Ended};
use crate::{
    members::Member,
    metrics::Metrics,
    persistentvolume::metrics::plugin_name,
    shared::{CLAIM, claim_of_key},
};

fn csi_plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// Counts attaches and detaches with their durations.
pub(super) fn count_operations(metrics: &Metrics, ended: &[Ended]) {
    for one in ended {
        let by = [
            ("volume_plugin", &*csi_plugin(&one.driver)),
            ("operation_name", one.operation),
            ("status", if one.is_ok { "success" } else { "fail-unknown" }),
            ("migrated", "false"),
        ];
        metrics.storage_operations.took(by, one.took);
    }
}

impl AttachDetach {
    /// Updates the gauges.
    pub(super) fn collect(&self, metrics: &Metrics) {
        let in_use = volumes_in_use(&self.pods, |namespace, claim| {
            let claim = self.claims.get(namespace, claim)?;
            let volume = self.volumes.get("", volume_name(&claim)?)?;
            super::csi(&volume).map(|_| plugin_name(&volume))
        });
        metrics.attachable_in_use.clear();
        for ((node, plugin), count) in &in_use {
            let by = [("node", node.as_str()), ("volume_plugin", plugin)];
            metrics.attachable_in_use.set(by, *count);
        }
        let mut states: BTreeMap<(&str, String), usize> = BTreeMap::new();
        let nodes: BTreeSet<&str> = in_use.keys().map(|(node, _)| node.as_str()).collect();
        for node in nodes {
            for desired in self.desired(node).into_values() {
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
}

/// How many volumes the pods of each node use, by node and plugin. `plugin` returns the plugin of a claim that is
/// attached. Only pods with claims are looked at, and none is decoded: there may be very many pods.
fn volumes_in_use(
    pods: &Informer<Pod>,
    plugin: impl Fn(&str, &str) -> Option<String>,
) -> BTreeMap<(String, String), usize> {
    let mut in_use = BTreeMap::new();
    for key in pods.index_keys(CLAIM) {
        let Some((namespace, claim)) = claim_of_key(&key) else {
            continue;
        };
        let Some(plugin) = plugin(namespace, claim) else {
            continue;
        };
        for member in Member::by_index(pods, CLAIM, &key) {
            let node = member.facts().node();
            if !node.is_empty() {
                let place = (node.to_owned(), plugin.clone());
                *in_use.entry(place).or_default() += 1;
            }
        }
    }
    in_use
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::Watched;

    fn pods(pods: &[(&str, &str, Value)]) -> Informer<Pod> {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let informer = Pod::indexed(Informer::builder(client::in_process(refused))).offline();
        for (name, node, volumes) in pods {
            let pod = json!({
                "metadata": {"namespace": "ns", "name": name, "uid": name},
                "spec": {"containers": [], "nodeName": node, "volumes": volumes},
            });
            informer.upsert(serde_json::from_value(pod).unwrap());
        }
        informer
    }

    #[test]
    fn operations_have_upstreams_name_and_labels() {
        let metrics = Metrics::default();
        let ended = |is_ok| Ended {
            driver: "x.io".to_owned(),
            operation: "volume_attach",
            is_ok,
            took: std::time::Duration::from_secs(2),
        };
        count_operations(&metrics, &[ended(true), ended(true), ended(false)]);
        let text = metrics.text();
        for (status, count) in [("success", 2), ("fail-unknown", 1)] {
            let labels = format!(
                "volume_plugin=\"kubernetes.io/csi:x.io\",operation_name=\"volume_attach\",status=\"{status}\",migrated=\"false\""
            );
            let line = format!("storage_operation_duration_seconds_count{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[tokio::test]
    async fn volumes_of_claims_are_counted_by_node_and_plugin() {
        let claims = |names: &[&str]| {
            let volume =
                |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
            Value::from_iter(names.iter().map(volume))
        };
        // An inline volume of a CSI driver is never attached.
        let inline = json!([{"name": "v", "csi": {"driver": "x.io"}}]);
        let pods = pods(&[
            ("a", "n1", claims(&["one", "two", "local"])),
            ("b", "n1", claims(&["one"])),
            ("c", "n2", claims(&["one"])),
            ("waits", "", claims(&["one"])),
            ("inline", "n1", inline),
        ]);
        let plugin = |namespace: &str, claim: &str| {
            assert_eq!(namespace, "ns");
            (claim != "local").then(|| "kubernetes.io/csi:x.io".to_owned())
        };
        let seen = volumes_in_use(&pods, plugin);
        let seen: Vec<_> = seen
            .iter()
            .map(|((node, _), count)| (node.as_str(), *count))
            .collect();
        assert_eq!(seen, [("n1", 3), ("n2", 1)]);
    }
}
