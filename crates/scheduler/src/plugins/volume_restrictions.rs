//! A claim with the access mode ReadWriteOncePod is used by one pod at a time.

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
};

/// The plugin's name.
pub const NAME: &str = "VolumeRestrictions";

const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                      access mode already in-use by another pod";

/// The rule.
pub struct VolumeRestrictions;

/// Makes it.
pub fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(VolumeRestrictions))
}

/// Claims for one pod at a time, and how many other pods use them.
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

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        let names = pod
            .template
            .claims
            .iter()
            .map(|claim| pod.claim_name(claim));
        let single = |name: &String| {
            let claim = cluster.claims.claim(pod.namespace(), name);
            claim.is_some_and(|claim| claim.one_pod)
        };
        let claims: Vec<String> = names.filter(single).collect();
        if claims.is_empty() {
            return PreFilter::Skip;
        }
        let users = claims
            .iter()
            .map(|name| cluster.claim_users(pod.namespace(), name.clone()));
        let users = users.sum::<usize>() as i64;
        PreFilter::Continue(Box::new(Conflicts { claims, users }))
    }

    fn filter(&self, _: &PodInfo, _: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let conflicts = state.downcast_ref::<Conflicts>();
        if conflicts.is_some_and(|conflicts| conflicts.users > 0) {
            candidates.retain(NAME, true, |_| Some(IN_USE));
        }
    }

    fn events(&self) -> &'static [EventKind] {
        &[EventKind::PodDeleted, EventKind::Claim]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::PodDeleted(other) => {
                other.namespace() == pod.namespace() && !other.template.claims.is_empty()
            }
            Event::Claim { namespace, .. } => **namespace == **pod.namespace(),
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
        let claim = serde_json::from_value(claim).unwrap();
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
}
