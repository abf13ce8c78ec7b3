//! When the pods of a claim must leave because of the taints of its devices. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, ResourceClaim, ResourceSlice,
};
use reconcile::devices::{results, tolerates};

/// The NoExecute taints of a device.
pub(super) fn evicting(taints: Option<&Vec<DeviceTaint>>) -> impl Iterator<Item = &DeviceTaint> {
    let taints = taints.into_iter().flatten();
    taints.filter(|taint| taint.effect == "NoExecute")
}

/// The NoExecute taints of a slice, with the names of their devices.
pub(super) fn tainted(slice: &ResourceSlice) -> Vec<(&str, &DeviceTaint)> {
    let devices = slice.spec.devices.iter().flatten();
    let taints = devices.flat_map(|device| {
        let taints = evicting(device.taints.as_ref());
        taints.map(|taint| (device.name.as_str(), taint))
    });
    taints.collect()
}

/// The taints of an allocated device in the newest generation of its pool.
fn taints<'a>(
    pool: &'a [std::sync::Arc<ResourceSlice>],
    result: &DeviceRequestAllocationResult,
) -> Option<&'a Vec<DeviceTaint>> {
    let newest = pool.iter().map(|slice| slice.spec.pool.generation).max()?;
    let slices = pool.iter();
    let slices = slices.filter(|slice| slice.spec.pool.generation == newest);
    let mut devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten());
    let device = devices.find(|device| device.name == result.device)?;
    device.taints.as_ref()
}

/// When a taint of an allocated device takes effect; `None` if it is tolerated for any time.
fn effective(taint: &DeviceTaint, result: &DeviceRequestAllocationResult) -> Option<Timestamp> {
    let tolerations = result.tolerations.iter().flatten();
    let tolerations = tolerations.filter(|toleration| {
        toleration.effect.as_deref() == Some("NoExecute") && tolerates(toleration, taint)
    });
    let mut shortest = None;
    for toleration in tolerations {
        let seconds = toleration.toleration_seconds?.max(0);
        shortest = Some(shortest.map_or(seconds, |known: i64| known.min(seconds)));
    }
    let added = taint.time_added.as_ref();
    let added = added.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let patience = SignedDuration::from_secs(shortest.unwrap_or(0));
    // Beyond the end of time it is tolerated.
    added.checked_add(patience).ok()
}

/// When the pods of an allocated claim must leave; `None` if they may stay. `pool` returns the
/// slices of a device's pool.
pub(super) fn eviction(
    claim: &ResourceClaim,
    pool: impl Fn(&DeviceRequestAllocationResult) -> Vec<std::sync::Arc<ResourceSlice>>,
) -> Option<Timestamp> {
    let times = results(claim).iter().filter_map(|result| {
        let slices = pool(result);
        let taints = evicting(taints(&slices, result));
        taints.filter_map(|taint| effective(taint, result)).min()
    });
    times.min()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn slice(name: &str, generation: i64, taints: Value) -> Arc<ResourceSlice> {
        let device = json!({"name": "gpu-0", "taints": taints});
        let pool = json!({"name": "n1", "generation": generation, "resourceSliceCount": 1});
        let spec = json!({"driver": "d", "pool": pool, "nodeName": "n1", "devices": [device]});
        let slice = json!({"metadata": {"name": name}, "spec": spec});
        Arc::new(serde_json::from_value(slice).unwrap())
    }

    fn taint(key: &str, effect: &str, second: i64) -> Value {
        let time = Timestamp::from_second(second).unwrap().to_string();
        json!({"key": key, "effect": effect, "timeAdded": time})
    }

    fn claim(tolerations: Value) -> ResourceClaim {
        let result = json!({"request": "r", "driver": "d", "pool": "n1", "device": "gpu-0",
            "tolerations": tolerations});
        let status = json!({"allocation": {"devices": {"results": [result]}}});
        serde_json::from_value(json!({"spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn pods_leave_when_the_first_taint_is_not_tolerated_any_more() {
        let tolerated = |seconds: Value| {
            json!([{"key": "a", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": seconds}])
        };
        let one = json!([taint("a", "NoExecute", 100)]);
        let two = json!([taint("a", "NoExecute", 100), taint("b", "NoExecute", 300)]);
        let harmless = json!([taint("a", "NoSchedule", 100), taint("b", "None", 100)]);
        let any = json!([{"operator": "Exists"}]);
        for (taints, tolerations, expected) in [
            (&one, json!([]), Some(100)),
            (&one, tolerated(json!(null)), None),
            (&one, tolerated(json!(50)), Some(150)),
            (&one, tolerated(json!(-5)), Some(100)),
            (&one, tolerated(json!(i64::MAX)), None),
            (&two, json!([]), Some(100)),
            (&two, tolerated(json!(null)), Some(300)),
            (&two, tolerated(json!(500)), Some(300)),
            (&harmless, json!([]), None),
            // Only tolerations of this effect count here, as in Kubernetes.
            (&one, any, Some(100)),
        ] {
            let slices = vec![slice("s", 1, taints.clone())];
            let found = eviction(&claim(tolerations.clone()), |_| slices.clone());
            let found = found.map(Timestamp::as_second);
            assert_eq!(found, expected, "{taints} {tolerations}");
        }
    }

    #[test]
    fn taints_of_older_generations_do_not_count() {
        let taints = json!([taint("a", "NoExecute", 100)]);
        let slices = vec![slice("old", 1, taints), slice("new", 2, json!([]))];
        assert_eq!(eviction(&claim(json!([])), |_| slices.clone()), None);
        assert_eq!(eviction(&claim(json!([])), |_| Vec::new()), None);
    }
}
