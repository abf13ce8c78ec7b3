//! Limits a node's volumes of a CSI driver to the driver's limit in the CSINode.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::storage::v1::CSINode;
use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::{Cluster, Slot},
    framework::{
        Plugin, Point, PreFilter, Shift, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    in_tree,
    pod::PodInfo,
    template::VolumeClaim,
};

/// The plugin's name.
pub(crate) const NAME: &str = "NodeVolumeLimits";

const TOO_MANY: &str = "node(s) exceed max volume count";

/// The plugin.
pub(super) struct NodeVolumeLimits;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(NodeVolumeLimits))
}

/// A volume: its driver and handle.
type Volume = (String, String);

/// The pod's volumes, and changes of nodes' volumes by other pods in a trial.
struct Counted {
    new: BTreeSet<Volume>,
    shifts: HashMap<Slot, BTreeMap<Volume, i64>>,
}

impl State for Counted {
    fn shift(&mut self, change: &Shift<'_>) {
        let shifts = self.shifts.entry(change.slot).or_default();
        for volume in volumes(change.other, change.cluster) {
            *shifts.entry(volume).or_default() += change.sign;
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The CSI volumes of a pod, and those of other types that CSI drivers serve. Unbound claims count for the driver of
/// their class.
fn volumes<'a>(pod: &'a PodInfo, cluster: &'a Cluster) -> impl Iterator<Item = Volume> + 'a {
    let claims = &cluster.claims;
    let inline = pod.template.migrated.iter();
    let inline = inline.map(|(driver, handle)| ((*driver).to_owned(), handle.clone()));
    let claimed = pod.template.claims.iter().filter_map(move |mounted| {
        let name = pod.claim_name(mounted);
        let claim = claims.claim(pod.namespace(), &name)?;
        let is_ephemeral = matches!(mounted, VolumeClaim::Ephemeral(_));
        if is_ephemeral && claim.owner.as_deref() != Some(&*pod.uid) {
            return None;
        }
        let volume = claim.volume.as_deref();
        match volume.and_then(|volume| claims.volume(volume)) {
            Some(volume) => csi(volume),
            None => {
                let class = claims.class(claim.class.as_deref()?)?;
                let handle = format!("not bound: {}/{name}", pod.namespace());
                let driver = in_tree::driver_of_provisioner(&class.provisioner);
                Some((driver.to_owned(), handle))
            }
        }
    });
    inline.chain(claimed)
}

fn csi(volume: &crate::cluster::claims::Volume) -> Option<Volume> {
    match &volume.object.spec.as_ref()?.csi {
        Some(source) => Some((source.driver.clone(), source.volume_handle.clone())),
        None => {
            let (driver, handle) = in_tree::persistent(&volume.object)?;
            Some((driver.to_owned(), handle))
        }
    }
}

/// The volume limits of a node by driver.
fn limits(node: &CSINode) -> BTreeMap<&str, i64> {
    let drivers = node.spec.drivers.iter();
    let limit = |driver: &'_ k8s_openapi::api::storage::v1::CSINodeDriver| {
        driver.allocatable.as_ref()?.count.map(i64::from)
    };
    drivers
        .filter_map(|driver| Some((driver.name.as_str(), limit(driver)?)))
        .collect()
}

/// The volumes of a node: those of its pods, and other attached ones.
fn on_node(cluster: &Cluster, slot: Slot, counted: &Counted) -> BTreeSet<Volume> {
    let mut users: BTreeMap<Volume, i64> = BTreeMap::new();
    for pod in &cluster.pods[slot] {
        for volume in volumes(pod, cluster) {
            *users.entry(volume).or_default() += 1;
        }
    }
    for (volume, change) in counted.shifts.get(&slot).into_iter().flatten() {
        *users.entry(volume.clone()).or_default() += change;
    }
    let used = users.into_iter().filter(|(_, pods)| *pods > 0);
    let mut all: BTreeSet<Volume> = used.map(|(volume, _)| volume).collect();
    let attached = cluster.claims.attached_to(&cluster.names[slot]);
    all.extend(attached.filter_map(|one| csi(cluster.claims.volume(&one.volume)?)));
    all
}

fn fits(cluster: &Cluster, slot: Slot, counted: &Counted) -> bool {
    let Some(node) = cluster.claims.csi_node(&cluster.names[slot]) else {
        return true;
    };
    let limits = limits(node);
    let mut new = counted.new.iter();
    if !new.any(|(driver, _)| limits.contains_key(driver.as_str())) {
        return true;
    }
    let there = on_node(cluster, slot, counted);
    limits.into_iter().all(|(driver, limit)| {
        let of_driver = |volume: &&Volume| volume.0 == driver;
        let new = counted.new.iter().filter(of_driver);
        let new = new.filter(|volume| !there.contains(*volume)).count() as i64;
        let held = there.iter().filter(of_driver).count() as i64;
        new == 0 || held + new <= limit
    })
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        let new: BTreeSet<Volume> = volumes(pod, cluster).collect();
        if new.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Continue(Box::new(Counted {
            new,
            shifts: HashMap::new(),
        }))
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let Some(counted) = state.downcast_ref::<Counted>() else {
            return;
        };
        candidates.retain(NAME, true, |slot| {
            (!fits(cluster, slot, counted)).then_some(TOO_MANY)
        });
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::CsiNode,
            EventKind::PodDeleted,
            EventKind::Claim,
            EventKind::AttachmentDeleted,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::CsiNode { old: None, .. } => true,
            Event::CsiNode {
                old: Some(old),
                new,
            } => {
                let before = limits(old);
                let mut now = limits(new).into_iter();
                now.any(|(driver, limit)| limit > before.get(driver).copied().unwrap_or(0))
            }
            Event::PodDeleted(other, _) => {
                !other.template.claims.is_empty() || !other.template.migrated.is_empty()
            }
            Event::Claim {
                namespace,
                name,
                is_new: true,
            } => pod.uses_claim(namespace, name),
            Event::AttachmentDeleted => {
                let mut claims = pod.template.claims.iter();
                !pod.template.migrated.is_empty()
                    || claims.any(|claim| matches!(claim, VolumeClaim::Named(_)))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, rejected};

    /// One node with a limit of two volumes of a driver, and three bound claims `a`, `b`, `c`.
    fn cluster() -> Cluster {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        let driver = json!({"name": "x.io", "nodeID": "n1", "allocatable": {"count": 2}});
        let node = json!({"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}});
        let node = serde_json::from_value(node).unwrap();
        cluster.claims.put_csi_node("n1", Some(&Arc::new(node)));
        for name in ["a", "b", "c"] {
            let csi = json!({"driver": "x.io", "volumeHandle": name});
            samples::bound_claim(&mut cluster, name, name, json!({"spec": {"csi": csi}}));
        }
        cluster
    }

    #[test]
    fn a_node_gets_no_more_volumes_than_the_driver_allows() {
        let mut cluster = cluster();
        let new = samples::pod_with_claim("new", "c");
        cluster.put_pod("n1", samples::pod_with_claim("one", "a"));
        assert!(rejected(&NodeVolumeLimits, &new, &mut cluster).is_empty());
        cluster.put_pod("n1", samples::pod_with_claim("two", "b"));
        let found = rejected(&NodeVolumeLimits, &new, &mut cluster);
        assert_eq!(*found[0].reasons, [TOO_MANY]);
        assert!(found[0].resolvable);
        let shared = samples::pod_with_claim("shared", "b");
        assert!(rejected(&NodeVolumeLimits, &shared, &mut cluster).is_empty());
    }

    #[test]
    fn volumes_of_other_types_count_for_the_driver_that_serves_them() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        let driver =
            json!({"name": "ebs.csi.aws.com", "nodeID": "n1", "allocatable": {"count": 2}});
        let node = json!({"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}});
        let node = serde_json::from_value(node).unwrap();
        cluster.claims.put_csi_node("n1", Some(&Arc::new(node)));
        let ebs = json!({"spec": {"awsElasticBlockStore": {"volumeID": "aws://a/vol-1"}}});
        samples::bound_claim(&mut cluster, "a", "a", ebs);
        let class = json!({"provisioner": "kubernetes.io/aws-ebs"});
        let class = serde_json::from_value(class).unwrap();
        cluster.claims.put_class("ebs", Some(&Arc::new(class)));
        let claim = serde_json::from_value(json!({"spec": {"storageClassName": "ebs"}}));
        let claim = Arc::new(claim.unwrap());
        cluster.claims.put_claim("default", "later", Some(&claim));
        let inline = |name: &str, id: &str| {
            let mut pod = samples::api_pod(name, &[]);
            let volume = json!({"name": "v", "awsElasticBlockStore": {"volumeID": id}});
            let spec = json!({"containers": [{"name": "c"}], "volumes": [volume]});
            pod.spec = serde_json::from_value(spec).unwrap();
            Arc::new(PodInfo::new(&pod))
        };
        cluster.put_pod("n1", samples::pod_with_claim("one", "a"));
        cluster.put_pod("n1", inline("same", "vol-1"));
        let later = samples::pod_with_claim("p", "later");
        assert!(rejected(&NodeVolumeLimits, &later, &mut cluster).is_empty());
        cluster.put_pod("n1", inline("two", "vol-2"));
        assert_eq!(rejected(&NodeVolumeLimits, &later, &mut cluster).len(), 1);
        assert_eq!(
            rejected(&NodeVolumeLimits, &inline("q", "vol-3"), &mut cluster).len(),
            1
        );
        assert!(rejected(&NodeVolumeLimits, &inline("r", "vol-2"), &mut cluster).is_empty());
    }

    #[test]
    fn volumes_still_attached_and_not_yet_bound_count() {
        let mut cluster = cluster();
        let spec = |volume: &str| {
            json!({"spec": {"attacher": "x.io", "nodeName": "n1",
                "source": {"persistentVolumeName": volume}}})
        };
        for volume in ["a", "b"] {
            let attachment = serde_json::from_value(spec(volume)).unwrap();
            cluster.claims.put_attachment(volume, Some(&attachment));
        }
        let class = json!({"provisioner": "x.io", "volumeBindingMode": "WaitForFirstConsumer"});
        let class = serde_json::from_value(class).unwrap();
        cluster.claims.put_class("fast", Some(&Arc::new(class)));
        let claim = serde_json::from_value(json!({"spec": {"storageClassName": "fast"}}));
        let claim = Arc::new(claim.unwrap());
        cluster.claims.put_claim("default", "later", Some(&claim));
        let pod = samples::pod_with_claim("p", "later");
        assert_eq!(rejected(&NodeVolumeLimits, &pod, &mut cluster).len(), 1);
        cluster.claims.put_attachment("a", None);
        assert!(rejected(&NodeVolumeLimits, &pod, &mut cluster).is_empty());
    }
}
