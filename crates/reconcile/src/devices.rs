//! Facts about ResourceClaims and devices that the scheduler and the controllers share. Pure.

use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim,
    ResourceClaimConsumerReference,
};

/// The finalizer of allocated claims.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The annotation of claims made for a pod: the name of the claim in the pod.
pub const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The annotation of claims that the scheduler makes for extended resources: `true`.
pub const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// The maximum number of consumers of a claim.
pub const CONSUMERS_MAX: usize = 256;

/// Whether a toleration tolerates the taint of a device. An empty key matches all keys.
pub fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let filled = |text: &Option<String>| text.clone().unwrap_or_default();
    let effect = filled(&toleration.effect);
    let key = filled(&toleration.key);
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match filled(&toleration.operator).as_str() {
        "" | "Equal" => filled(&toleration.value) == filled(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

/// The allocation of a claim.
pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// The devices of a claim.
pub fn results(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let devices = allocation(claim).and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_deref());
    results.unwrap_or_default()
}

/// The consumers that a claim is reserved for.
pub fn reserved_for(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    let status = claim.status.as_ref();
    let consumers = status.and_then(|status| status.reserved_for.as_deref());
    consumers.unwrap_or_default()
}

/// Whether a claim is reserved for the pod with this uid.
pub fn is_reserved_for(claim: &ResourceClaim, pod: &str) -> bool {
    let mut consumers = reserved_for(claim).iter();
    consumers.any(|consumer| consumer.uid == pod)
}

/// Whether the claim can have another consumer.
pub fn can_be_reserved(claim: &ResourceClaim) -> bool {
    reserved_for(claim).len() < CONSUMERS_MAX
}

/// The reference of a pod as consumer.
pub fn consumer(name: &str, uid: &str) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".into(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_of_devices_match_effect_key_and_value() {
        let taint = DeviceTaint {
            key: "example.com/broken".into(),
            value: Some("yes".into()),
            effect: "NoExecute".into(),
            time_added: None,
        };
        let with = |key: &str, operator: &str, value: &str, effect: &str| {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            DeviceToleration {
                key: some(key),
                operator: some(operator),
                value: some(value),
                effect: some(effect),
                toleration_seconds: None,
            }
        };
        for (toleration, expected) in [
            (with("", "Exists", "", ""), true),
            (with("example.com/broken", "Exists", "", "NoExecute"), true),
            (
                with("example.com/broken", "Exists", "", "NoSchedule"),
                false,
            ),
            (with("example.com/other", "Exists", "", ""), false),
            (with("example.com/broken", "", "yes", ""), true),
            (with("example.com/broken", "Equal", "no", ""), false),
            (with("", "Equal", "yes", ""), true),
            (with("", "Near", "yes", ""), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
    }
}
