//! Restricts a pod to the zones and regions of its volumes' labels.

use std::{any::Any, sync::Arc};

use reconcile::storage::waits_for_consumer;
use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::{Cluster, claims::ZONE_LABELS},
    framework::{
        Plugin, Point, PreFilter, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
    template::VolumeClaim,
};

/// The plugin's name.
pub(crate) const NAME: &str = "VolumeZone";

/// The plugin.
pub(super) struct VolumeZone;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(VolumeZone))
}

/// Labels, each with the allowed values.
struct Zones(Vec<(String, Vec<String>)>);

impl State for Zones {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The replacement of a deprecated label.
fn newer(key: &str) -> Option<&'static str> {
    match key {
        "failure-domain.beta.kubernetes.io/zone" => Some("topology.kubernetes.io/zone"),
        "failure-domain.beta.kubernetes.io/region" => Some("topology.kubernetes.io/region"),
        _ => None,
    }
}

/// The zones of the pod's volumes, or why it cannot be scheduled.
fn zones(pod: &PodInfo, cluster: &Cluster) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut zones = Vec::new();
    for claim in &pod.template.claims {
        let VolumeClaim::Named(name) = claim else {
            continue;
        };
        let claim = cluster.claims.claim(pod.namespace(), name);
        let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
        let Some(volume) = &claim.volume else {
            let class = claim.class.as_deref();
            let none = "PersistentVolumeClaim had no pv name and storageClass name";
            let class = class.ok_or(none)?;
            match cluster.claims.waits_for_consumer(class) {
                Some(true) => continue,
                Some(false) => return Err("PersistentVolume had no name".into()),
                None => return Err(format!("storageclass.storage.k8s.io {class:?} not found")),
            }
        };
        let found = cluster.claims.volume(volume);
        let found = found.ok_or_else(|| format!("persistentvolume {volume:?} not found"))?;
        // One volume may be in several zones.
        zones.extend(found.zones.iter().map(|(key, values)| {
            let values = values.split("__").map(ToOwned::to_owned).collect();
            (key.clone(), values)
        }));
    }
    Ok(zones)
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        match zones(pod, cluster) {
            Ok(zones) if zones.is_empty() => PreFilter::Skip,
            Ok(zones) => PreFilter::Continue(Box::new(Zones(zones))),
            Err(why) => PreFilter::Reject(why.into(), false),
        }
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let Some(Zones(zones)) = state.downcast_ref() else {
            return;
        };
        candidates.retain(NAME, false, |slot| {
            let labels = &cluster.node(slot)?.labels;
            // As upstream, a node without zone labels is accepted.
            let placed = ZONE_LABELS.iter().any(|key| labels.contains_key(*key));
            let fits = |(key, values): &(String, Vec<String>)| {
                let own = labels.get(key).or_else(|| labels.get(newer(key)?));
                own.is_some_and(|own| values.contains(own))
            };
            let conflict = placed && !zones.iter().all(fits);
            conflict.then_some("node(s) had no available volume zone")
        });
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::Volume,
            EventKind::Class,
            EventKind::Claim,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::NodeAdded(_) | Event::Volume => true,
            Event::NodeUpdated { old, new } => old.labels != new.labels,
            Event::Class { old, new } => old.is_none() && waits_for_consumer(new),
            Event::Claim {
                namespace, name, ..
            } => pod.uses_claim(namespace, name),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, filtered};

    #[test]
    fn a_pod_is_scheduled_only_to_zones_of_its_volume() {
        let mut cluster = Cluster::default();
        for (name, zone) in [("a1", "a"), ("b1", "b"), ("c1", "c")] {
            cluster.put_node(samples::labelled(
                name,
                &[("topology.kubernetes.io/zone", zone)],
            ));
        }
        cluster.put_node(samples::labelled("nowhere", &[]));
        let volume =
            json!({"metadata": {"labels": {"failure-domain.beta.kubernetes.io/zone": "a__b"}}});
        samples::bound_claim(&mut cluster, "data", "pv", volume);
        let pod = samples::pod_with_claim("p", "data");
        assert_eq!(filtered(&VolumeZone, &pod, &mut cluster), [0, 1, 3]);
    }
}
