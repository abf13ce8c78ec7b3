//! The ResourceClaims of a pod, and whether a change of a claim could help it.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use reconcile::devices::allocation;

use crate::{
    cluster::{Cluster, device_claims::owner},
    devices::classes::Classes,
    pod::PodInfo,
};

/// Namespace and name.
pub(super) fn key(claim: &ResourceClaim) -> String {
    let meta = &claim.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = meta.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

/// The pod's claims, or why they cannot be used yet.
pub(super) fn claims(pod: &PodInfo, cluster: &Cluster) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut found: Vec<Arc<ResourceClaim>> = Vec::new();
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
        let claim = cluster.device_claims.get(namespace, claim_name);
        let claim = claim
            .ok_or_else(|| format!("resourceclaim.resource.k8s.io \"{claim_name}\" not found"))?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim \"{claim_name}\" is being deleted"));
        }
        if direct.is_none() && owner(claim) != Some(&*pod.uid) {
            return Err(format!(
                "ResourceClaim {namespace}/{claim_name} was not created for Pod \
                 {namespace}/{pod_name} (Pod is not owner)"
            ));
        }
        // Several entries may name one claim.
        if !found.iter().any(|known| Arc::ptr_eq(known, claim)) {
            found.push(claim.clone());
        }
    }
    Ok(found)
}

/// Fails if a device class of the claim does not exist.
pub(super) fn check_classes(claim: &ResourceClaim, classes: &Classes) -> Result<(), String> {
    let check = |request: &str, class: &str| match classes.get(class) {
        Some(_) => Ok(()),
        None => Err(format!(
            "request {request}: device class {class} does not exist"
        )),
    };
    let devices = claim.spec.devices.iter();
    for request in devices.flat_map(|devices| devices.requests.iter().flatten()) {
        let name = &request.name;
        let list = request.first_available.as_deref().unwrap_or_default();
        if let Some(one) = &request.exactly {
            check(name, &one.device_class_name)?;
        } else if list.is_empty() {
            let claim = key(claim);
            return Err(format!(
                "resource claim {claim}, request {name}: unknown request type"
            ));
        }
        for one in list {
            check(&format!("{name}/{}", one.name), &one.device_class_name)?;
        }
    }
    Ok(())
}

/// Whether a new or changed claim could make the pod schedulable.
pub(super) fn is_helped(
    pod: &PodInfo,
    cluster: &Cluster,
    old: Option<&ResourceClaim>,
    new: &ResourceClaim,
) -> bool {
    let Ok(claims) = claims(pod, cluster) else {
        return false;
    };
    let is_freed = |old: &ResourceClaim| allocation(old).is_some() && allocation(new).is_none();
    if old.is_some_and(is_freed) {
        return true;
    }
    let uid = &new.metadata.uid;
    let is_own = claims.iter().any(|claim| claim.metadata.uid == *uid);
    is_own && old.is_none_or(|old| old.status != new.status)
}
