//! The binding conditions of allocated devices: a driver sets them on the claim when a device can
//! be used on its node, and the pod is bound only then.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use reconcile::devices::{allocation, results};

/// How errors of failed devices begin.
pub(super) const FAILED: &str = "device binding failed";

fn conditions(result: &DeviceRequestAllocationResult) -> &[String] {
    result.binding_conditions.as_deref().unwrap_or_default()
}

/// Whether a device of the claim has binding conditions.
pub(super) fn exist(claim: &ResourceClaim) -> bool {
    results(claim)
        .iter()
        .any(|result| !conditions(result).is_empty())
}

/// The driver of each device with binding conditions.
pub(super) fn drivers(claim: &ResourceClaim) -> impl Iterator<Item = &str> {
    let results = results(claim).iter();
    let results = results.filter(|result| !conditions(result).is_empty());
    results.map(|result| result.driver.as_str())
}

fn status<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut all = claim.status.as_ref()?.devices.iter().flatten();
    all.find(|one| {
        (&one.driver, &one.pool, &one.device) == (&result.driver, &result.pool, &result.device)
    })
}

fn find<'a>(status: &'a AllocatedDeviceStatus, kind: &str) -> Option<&'a Condition> {
    let mut all = status.conditions.iter().flatten();
    all.find(|one| one.type_ == kind && one.status == "True")
}

/// Whether the claim is allocated and all binding conditions are true; an error if a device failed.
pub(super) fn are_met(claim: &ResourceClaim) -> Result<bool, String> {
    if allocation(claim).is_none() {
        return Ok(false);
    }
    for result in results(claim)
        .iter()
        .filter(|one| !conditions(one).is_empty())
    {
        let Some(status) = status(claim, result) else {
            return Ok(false);
        };
        let mut failures = result.binding_failure_conditions.iter().flatten();
        if let Some(failed) = failures.find_map(|kind| find(status, kind)) {
            let claim = claim.metadata.name.as_deref().unwrap_or_default();
            let (reason, message) = (&failed.reason, &failed.message);
            return Err(format!(
                "{FAILED}: claim={claim}, reason={reason}, message={message:?}"
            ));
        }
        if conditions(result)
            .iter()
            .any(|kind| find(status, kind).is_none())
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the binding conditions took longer than the timeout.
pub(super) fn are_late(claim: &ResourceClaim, timeout: Duration) -> bool {
    let time = allocation(claim).and_then(|allocation| allocation.allocation_timestamp.as_ref());
    let elapsed = time.map(|time| Timestamp::now().duration_since(time.0));
    let elapsed = elapsed.and_then(|elapsed| Duration::try_from(elapsed).ok());
    exist(claim) && elapsed.is_some_and(|elapsed| elapsed > timeout)
}

/// Whether the allocation is of no use: a device failed, or is not ready in time.
pub(super) fn has_failed(claim: &ResourceClaim, timeout: Duration) -> bool {
    match are_met(claim) {
        Ok(met) => !met && are_late(claim, timeout),
        Err(_) => true,
    }
}
