//! Resource claims: a pod starts only when each of its claims is allocated and reserved for it, by
//! a driver that this node has. No driver exists yet, so a pod with allocated claims waits, too.

use client::Api;
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};

use crate::{Error, Result, core::Core, pod::spec};

/// Fails with the reason why the pod cannot start yet.
pub(crate) async fn check(core: &Core, pod: &Pod) -> Result<()> {
    let api: Api<ResourceClaim> = Api::namespaced(core.config.client.clone(), spec::namespace(pod));
    for name in names(pod)? {
        let claim = api.get_opt(&name).await;
        let claim = claim.map_err(|error| Error::Claims(error.to_string()))?;
        ready(pod, &name, claim.as_ref())?;
    }
    Ok(())
}

/// The names of the pod's claims. A template that needed no claim has an entry without a name.
fn names(pod: &Pod) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let made = pod.status.as_ref();
    let made = made.and_then(|status| status.resource_claim_statuses.as_ref());
    for claim in spec::spec(pod).resource_claims.iter().flatten() {
        if let Some(name) = &claim.resource_claim_name {
            names.push(name.clone());
            continue;
        }
        let entry = made
            .into_iter()
            .flatten()
            .find(|made| made.name == claim.name);
        let entry = entry.ok_or_else(|| {
            Error::Claims(format!(
                "ResourceClaim not created yet for {:?}",
                claim.name
            ))
        })?;
        names.extend(entry.resource_claim_name.clone());
    }
    Ok(names)
}

fn ready(pod: &Pod, name: &str, claim: Option<&ResourceClaim>) -> Result<()> {
    let claim = claim.ok_or_else(|| Error::Claims(format!("resourceclaim {name:?} not found")))?;
    let status = claim.status.as_ref();
    let Some(allocation) = status.and_then(|status| status.allocation.as_ref()) else {
        return Err(Error::Claims(format!(
            "resource claim {name} not allocated yet"
        )));
    };
    let reserved = status.and_then(|status| status.reserved_for.as_ref());
    let uid = spec::uid(pod);
    if !reserved.into_iter().flatten().any(|user| user.uid == uid) {
        let pod = spec::name(pod);
        return Err(Error::Claims(format!(
            "pod {pod} is not allowed to use resource claim {name}"
        )));
    }
    let results = allocation
        .devices
        .as_ref()
        .and_then(|devices| devices.results.as_ref());
    match results.into_iter().flatten().next() {
        Some(result) => {
            let driver = &result.driver;
            Err(Error::Claims(format!(
                "DRA driver {driver} is not registered"
            )))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_begins_only_with_claims_that_are_allocated_to_it() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "a", "resourceClaimName": "own"},
                {"name": "b", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-1"}]}}))
        .unwrap();
        assert_eq!(names(&pod).unwrap(), ["own", "p-b-1"]);
        let why = |status: serde_json::Value| {
            let claim = serde_json::json!({"metadata": {}, "spec": {}, "status": status});
            let claim = serde_json::from_value(claim).unwrap();
            ready(&pod, "own", Some(&claim))
                .err()
                .map(|error| error.to_string())
        };
        let users = serde_json::json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        assert!(
            why(serde_json::json!({}))
                .unwrap()
                .contains("not allocated")
        );
        assert!(
            why(serde_json::json!({"allocation": {}}))
                .unwrap()
                .contains("not allowed")
        );
        assert_eq!(
            why(serde_json::json!({"allocation": {}, "reservedFor": users})),
            None
        );
        let device = serde_json::json!({"devices": {"results": [
            {"driver": "gpu.example.com", "pool": "p", "device": "d", "request": "r"}]}});
        let why = why(serde_json::json!({"allocation": device, "reservedFor": users}));
        assert!(why.unwrap().contains("gpu.example.com is not registered"));
        assert!(ready(&pod, "own", None).is_err());
        assert!(names(&Pod::default()).unwrap().is_empty());
    }
}
