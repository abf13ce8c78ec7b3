//! A ReadWriteOncePod claim is used by one pod at a time, and an in-line disk that can be mounted
//! only once on a node is not mounted twice.

use std::{any::Any, sync::Arc};

use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::Cluster,
    framework::{
        Plugin, Point, PreFilter, Shift, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
    template::VolumeClaim,
};

/// The plugin's name.
pub(crate) const NAME: &str = "VolumeRestrictions";

const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                      access mode already in-use by another pod";

const NO_DISK: &str = "node(s) had no available disk";

/// The plugin.
pub(super) struct VolumeRestrictions;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(VolumeRestrictions))
}

/// ReadWriteOncePod claims, and the number of other pods that use them.
struct Conflicts {
    claims: Vec<String>,
    users: i64,
}

impl State for Conflicts {
    fn shift(&mut self, change: &Shift<'_>) {
        if change.other.namespace() != change.pod.namespace() {
            return;
        }
        let theirs = change.other.template.claims.iter();
        let theirs = theirs.map(|claim| change.other.claim_name(claim));
        let shared = theirs.filter(|claim| self.claims.contains(claim)).count();
        self.users += change.sign * shared as i64;
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn share_disk(pod: &PodInfo, other: &PodInfo) -> bool {
    let mut disks = pod.template.disks.iter();
    disks.any(|disk| other.template.disks.iter().any(|held| disk.conflicts(held)))
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        let mut claims = Vec::new();
        for claim in &pod.template.claims {
            // A generic ephemeral volume has only one user.
            let VolumeClaim::Named(name) = claim else {
                continue;
            };
            match cluster.claims.claim(pod.namespace(), name) {
                Some(claim) if claim.one_pod => claims.push(name.clone()),
                Some(_) => {}
                None => {
                    let why = format!("persistentvolumeclaim {name:?} not found");
                    return PreFilter::Reject(why.into(), false);
                }
            }
        }
        let users = claims
            .iter()
            .map(|name| cluster.claim_users(pod.namespace(), name.clone()));
        let users = users.sum::<usize>() as i64;
        if pod.template.disks.is_empty() && users == 0 {
            return PreFilter::Skip;
        }
        PreFilter::Continue(Box::new(Conflicts { claims, users }))
    }

    fn filter(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        candidates: &mut Candidates,
    ) {
        let conflicts = state.downcast_ref::<Conflicts>();
        let in_use = conflicts.is_some_and(|conflicts| conflicts.users > 0);
        candidates.retain(NAME, true, |slot| {
            if cluster.pods[slot]
                .iter()
                .any(|other| share_disk(pod, other))
            {
                return Some(NO_DISK);
            }
            in_use.then_some(IN_USE)
        });
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::PodDeleted,
            EventKind::NodeAdded,
            EventKind::Claim,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::PodDeleted(other, _) => {
                let same = |claim: &VolumeClaim| matches!(claim, VolumeClaim::Named(_));
                let mut claims = pod.template.claims.iter().filter(|claim| same(claim));
                other.namespace() == pod.namespace()
                    && (share_disk(pod, other)
                        || claims.any(|claim| other.template.claims.contains(claim)))
            }
            Event::NodeAdded(_) => true,
            Event::Claim {
                namespace,
                name,
                is_new: true,
            } => pod.uses_claim(namespace, name),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, rejected};

    #[test]
    fn the_second_pod_of_a_single_pod_claim_waits() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
        let claim = json!({"spec": {"accessModes": ["ReadWriteOncePod"]}});
        let claim = std::sync::Arc::new(serde_json::from_value(claim).unwrap());
        cluster.claims.put_claim("default", "data", Some(&claim));
        let pod = samples::pod_with_claim("b", "data");
        assert!(rejected(&VolumeRestrictions, &pod, &mut cluster).is_empty());
        cluster.put_pod("n1", samples::pod_with_claim("a", "data"));
        let found = rejected(&VolumeRestrictions, &pod, &mut cluster);
        assert_eq!(found.len(), 2);
        assert!(found[0].resolvable);
        cluster.remove_pod("uid-a");
        assert!(rejected(&VolumeRestrictions, &pod, &mut cluster).is_empty());
    }

    #[test]
    fn a_disk_is_mounted_once_on_a_node_unless_all_only_read_it() {
        let with = |name: &str, volume: serde_json::Value| {
            let volumes = serde_json::from_value(json!([volume])).unwrap();
            samples::pod_with(name, |spec| spec.volumes = Some(volumes))
        };
        let iscsi = |read_only: bool| {
            json!({"name": "v", "iscsi": {"targetPortal": "p", "iqn": "i", "lun": 0,
                "readOnly": read_only}})
        };
        let rbd =
            |monitor: &str| json!({"name": "v", "rbd": {"monitors": [monitor, "m"], "image": "i"}});
        for (held, wanted, conflict) in [
            (iscsi(true), iscsi(true), false),
            (iscsi(true), iscsi(false), true),
            (rbd("a"), rbd("b"), true),
            (rbd("a"), iscsi(false), false),
        ] {
            let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
            cluster.put_pod("n1", with("held", held.clone()));
            let found = rejected(&VolumeRestrictions, &with("new", wanted), &mut cluster);
            assert_eq!(!found.is_empty(), conflict, "{held}");
            assert!(
                found
                    .iter()
                    .all(|rejection| *rejection.reasons == [NO_DISK])
            );
        }
    }
}
