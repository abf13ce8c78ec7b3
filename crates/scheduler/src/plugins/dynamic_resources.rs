//! Keeps a pod with resource claims pending until they exist and are allocated, and restricts it to
//! nodes with the devices. It does not allocate devices.

use std::{any::Any, sync::Arc};

use k8s_openapi::api::core::v1::NodeSelectorTerm;
use reconcile::placement::matches_any;
use serde_json::Value;

use super::no_arguments;
use crate::{
    cluster::{
        Cluster,
        claims::{DeviceClaim, MOST_CONSUMERS},
    },
    framework::{
        Plugin, Point, PreFilter, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    pod::PodInfo,
};

/// The plugin's name.
pub(crate) const NAME: &str = "DynamicResources";

/// The plugin.
pub(super) struct DynamicResources;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(DynamicResources))
}

struct Wanted {
    node_terms: Vec<Vec<NodeSelectorTerm>>,
    unallocated: bool,
}

impl State for Wanted {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The pod's claims, or why they cannot be used yet.
fn claims<'a>(pod: &PodInfo, cluster: &'a Cluster) -> Result<Vec<&'a DeviceClaim>, String> {
    let mut found = Vec::new();
    let (namespace, pod_name) = (pod.namespace(), &pod.name);
    for (name, direct) in &pod.template.resource_claims {
        let made = pod.made_claims.iter().find(|(known, _)| known == name);
        let claim_name = match (direct, made) {
            (Some(direct), _) => direct,
            // The controller determined that no claim is needed.
            (None, Some((_, None))) => continue,
            (None, Some((_, Some(made)))) => made,
            (None, None) => {
                let why = "ResourceClaim not created yet";
                return Err(format!("pod \"{namespace}/{pod_name}\": {why}"));
            }
        };
        let claim = cluster.claims.device(namespace, claim_name);
        let claim = claim
            .ok_or_else(|| format!("resourceclaim.resource.k8s.io \"{claim_name}\" not found"))?;
        if claim.terminating {
            return Err(format!("resourceclaim \"{claim_name}\" is being deleted"));
        }
        if direct.is_none() && claim.owner.as_deref() != Some(&*pod.uid) {
            return Err(format!(
                "ResourceClaim {namespace}/{claim_name} was not created for Pod \
                 {namespace}/{pod_name} (Pod is not owner)"
            ));
        }
        found.push(claim);
    }
    Ok(found)
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreEnqueue, Point::PreFilter, Point::Filter]
    }

    fn pre_enqueue(&self, pod: &PodInfo, cluster: &Cluster) -> Result<(), String> {
        claims(pod, cluster).map(|_| ())
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        let claims = match claims(pod, cluster) {
            Ok(claims) => claims,
            Err(why) => return PreFilter::Reject(why.into(), false),
        };
        if claims.is_empty() {
            return PreFilter::Skip;
        }
        let usable = |claim: &DeviceClaim| {
            claim.reserved_for.len() < MOST_CONSUMERS
                || claim.reserved_for.iter().any(|uid| **uid == *pod.uid)
        };
        if claims.iter().any(|claim| claim.allocated && !usable(claim)) {
            return PreFilter::Reject("resourceclaim in use".into(), false);
        }
        PreFilter::Continue(Box::new(Wanted {
            node_terms: claims
                .iter()
                .filter_map(|claim| claim.node_terms.clone())
                .collect(),
            unallocated: claims.iter().any(|claim| !claim.allocated),
        }))
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let Some(wanted) = state.downcast_ref::<Wanted>() else {
            return;
        };
        candidates.retain(NAME, false, |slot| {
            let node = cluster.node(slot)?;
            let mut terms = wanted.node_terms.iter();
            if !terms.all(|terms| matches_any(terms, &node.labels, &node.name)) {
                return Some("resourceclaim not available on the node");
            }
            wanted.unallocated.then_some("cannot allocate all claims")
        });
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::DeviceClaim,
            EventKind::OwnUpdate,
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
        ]
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, _: &Cluster) -> bool {
        match event {
            Event::DeviceClaim { namespace, .. } => **namespace == **pod.namespace(),
            Event::OwnUpdate { old, new } => old.made_claims != new.made_claims,
            Event::NodeAdded(_) => true,
            Event::NodeUpdated { old, new } => old.labels != new.labels,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, rejected};

    fn pod() -> Arc<PodInfo> {
        let claim = json!({"name": "gpu", "resourceClaimName": "one"});
        let claims = serde_json::from_value(json!([claim])).unwrap();
        samples::pod_with("a", |spec| spec.resource_claims = Some(claims))
    }

    #[test]
    fn a_pod_waits_until_its_claim_is_there_and_allocated() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
        let missing = DynamicResources.pre_enqueue(&pod(), &cluster).unwrap_err();
        assert_eq!(missing, "resourceclaim.resource.k8s.io \"one\" not found");
        let put = |cluster: &mut Cluster, status: Value| {
            let claim = json!({"spec": {}, "status": status});
            let claim = serde_json::from_value(claim).unwrap();
            cluster.claims.put_device("default", "one", Some(&claim));
        };
        put(&mut cluster, json!({}));
        let found = rejected(&DynamicResources, &pod(), &mut cluster);
        assert_eq!(found[0].reasons, ["cannot allocate all claims"]);
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["n2"]});
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        put(
            &mut cluster,
            json!({"allocation": {"nodeSelector": selector}}),
        );
        let found = rejected(&DynamicResources, &pod(), &mut cluster);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].reasons,
            ["resourceclaim not available on the node"]
        );
    }

    #[test]
    fn a_claim_of_a_template_that_was_not_made_yet_keeps_the_pod_out_of_the_queue() {
        let cluster = Cluster::default();
        let claim = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
        let claims = serde_json::from_value(json!([claim])).unwrap();
        let pod = samples::pod_with("a", |spec| spec.resource_claims = Some(claims));
        let why = DynamicResources.pre_enqueue(&pod, &cluster).unwrap_err();
        assert_eq!(why, "pod \"default/a\": ResourceClaim not created yet");
    }
}
