//! A pod waits until its claims are there and bound, and goes where their volumes can be reached.
//!
//! Claims of classes that wait for their first consumer are bound by matching volumes or a
//! provisioner when a pod is placed; this build has neither, so such pods wait too.

use std::{any::Any, borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::NodeSelectorTerm;
use reconcile::placement::matches_any;
use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::{
    cluster::Cluster,
    framework::{
        Plugin, Point, PreFilter, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
    template::VolumeClaim,
};

/// The plugin's name.
pub const NAME: &str = "VolumeBinding";

const NO_NODE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_MATCH: &str = "node(s) didn't find available persistent volumes to bind";
const GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    /// How long a binding may take; there is none to wait for yet.
    bind_timeout_seconds: Option<u64>,
}

/// The rule.
pub struct VolumeBinding;

/// Makes it.
pub fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    arguments::<Arguments>(value)?;
    Ok(Arc::new(VolumeBinding))
}

/// What the pod's volumes ask of a node.
#[derive(Default)]
struct Wanted {
    node_terms: Vec<Vec<NodeSelectorTerm>>,
    volume_gone: bool,
    to_bind: bool,
}

impl State for Wanted {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the claims ask of nodes, or why the pod cannot be scheduled at all.
fn look(pod: &PodInfo, cluster: &Cluster) -> Result<Wanted, Cow<'static, str>> {
    let (mut wanted, mut unbound) = (Wanted::default(), false);
    for claimed in &pod.template.claims {
        let name = pod.claim_name(claimed);
        let ephemeral = matches!(claimed, VolumeClaim::Ephemeral(_));
        let claim = cluster
            .claims
            .claim(pod.namespace(), &name)
            .ok_or_else(|| {
                if ephemeral {
                    let why = "waiting for ephemeral volume controller to create the";
                    format!("{why} persistentvolumeclaim \"{name}\"")
                } else {
                    format!("persistentvolumeclaim \"{name}\" not found")
                }
            })?;
        let volume = claim.volume.as_deref().unwrap_or_default();
        if claim.lost {
            let why = "bound to non-existent persistentvolume";
            return Err(format!("persistentvolumeclaim \"{name}\" {why} \"{volume}\"").into());
        }
        if claim.terminating {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted").into());
        }
        if ephemeral && claim.owner.as_deref() != Some(&*pod.uid) {
            let (namespace, pod) = (pod.namespace(), &pod.name);
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod} \
                 (pod is not owner)"
            )
            .into());
        }
        if claim.bound {
            match cluster.claims.volume(volume) {
                Some(volume) => wanted.node_terms.extend(volume.node_terms.clone()),
                None => wanted.volume_gone = true,
            }
            continue;
        }
        let class = claim.class.as_deref();
        let waits = class.and_then(|class| cluster.claims.waits_for_consumer(class));
        if waits == Some(true) && claim.volume.is_none() {
            wanted.to_bind = true;
        } else {
            unbound = true;
        }
    }
    if unbound {
        return Err("pod has unbound immediate PersistentVolumeClaims".into());
    }
    Ok(wanted)
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        if pod.template.claims.is_empty() {
            return PreFilter::Skip;
        }
        match look(pod, cluster) {
            Ok(wanted) => PreFilter::Continue(Box::new(wanted)),
            Err(why) => PreFilter::Reject(why, false),
        }
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let Some(wanted) = state.downcast_ref::<Wanted>() else {
            return;
        };
        candidates.retain_with(NAME, |slot| {
            let node = cluster.node(slot)?;
            let mut terms = wanted.node_terms.iter();
            let reachable = terms.all(|terms| matches_any(terms, &node.labels, &node.name));
            let found = [
                (!reachable, NO_NODE),
                (wanted.to_bind, NO_MATCH),
                (wanted.volume_gone, GONE),
            ];
            let reasons = found.iter().filter(|(holds, _)| *holds);
            let reasons: Vec<_> = reasons.map(|(_, reason)| Cow::Borrowed(*reason)).collect();
            (!reasons.is_empty()).then_some((reasons, false))
        });
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::Volume,
            EventKind::Claim,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::NodeAdded(_) | Event::Volume => true,
            Event::NodeUpdated { old, new } => old.labels != new.labels,
            Event::Claim { namespace, name } => {
                let mut claims = pod.template.claims.iter();
                **namespace == **pod.namespace()
                    && claims.any(|claim| pod.claim_name(claim) == *name)
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

    fn why(claim: Value, class: Option<&str>) -> String {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        if !claim.is_null() {
            let claim = serde_json::from_value(claim).unwrap();
            cluster.claims.put_claim("default", "data", Some(&claim));
        }
        if let Some(mode) = class {
            let class = json!({"provisioner": "p", "volumeBindingMode": mode});
            let class = serde_json::from_value(class).unwrap();
            cluster.claims.put_class("fast", Some(&class));
        }
        let pod = samples::pod_with_claim("a", "data");
        match VolumeBinding.pre_filter(&pod, &cluster) {
            PreFilter::Reject(why, false) => why.into_owned(),
            _ => rejected(&VolumeBinding, &pod, &mut cluster)
                .first()
                .map_or_else(String::new, |rejection| rejection.reasons.join(", ")),
        }
    }

    #[test]
    fn a_pod_waits_for_its_claims_with_upstreams_words() {
        let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
        for (claim, class, message) in [
            (
                Value::Null,
                None,
                "persistentvolumeclaim \"data\" not found",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                None,
                "persistentvolumeclaim \"data\" is being deleted",
            ),
            (
                json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Lost"}}),
                None,
                "persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"pv\"",
            ),
            (
                json!({"spec": {}}),
                None,
                "pod has unbound immediate PersistentVolumeClaims",
            ),
            (
                json!({"spec": {"storageClassName": "fast"}}),
                Some("Immediate"),
                "pod has unbound immediate PersistentVolumeClaims",
            ),
            (
                json!({"spec": {"storageClassName": "fast"}}),
                Some("WaitForFirstConsumer"),
                NO_MATCH,
            ),
            (
                json!({"metadata": {"annotations": bound}, "spec": {"volumeName": "pv"}}),
                None,
                GONE,
            ),
        ] {
            assert_eq!(why(claim.clone(), class), message, "{claim}");
        }
    }

    #[test]
    fn a_bound_volume_draws_its_pod_to_the_nodes_that_reach_it() {
        let mut cluster = Cluster::default();
        cluster.put_node(samples::labelled("n1", &[("kubernetes.io/hostname", "n1")]));
        cluster.put_node(samples::labelled("n2", &[("kubernetes.io/hostname", "n2")]));
        let expression =
            json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]});
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        let volume = json!({"spec": {"nodeAffinity": {"required": terms}}});
        samples::bound_claim(&mut cluster, "data", "pv", volume);
        let pod = samples::pod_with_claim("a", "data");
        let found = rejected(&VolumeBinding, &pod, &mut cluster);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].slot, &*found[0].reasons[0]), (0, NO_NODE));
    }
}
