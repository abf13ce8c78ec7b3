//! Expands volumes on the node after the controller expanded them, and updates the claims' status.

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use machinery::quantity;
use serde_json::{Value, json};
use tracing::warn;
use volume::storage::{Expanded, Key, Spec, StepError};

use crate::{Error, Result, core::Core, pod::spec};

/// A pending expansion on this node.
#[derive(Debug, Clone, PartialEq)]
struct Growth {
    size: Quantity,
    bytes: i64,
    /// Whether the controller tracks the expansion in the claim's status and expects the node to do
    /// so.
    is_tracked: bool,
}

/// The pending expansion, decided as upstream does.
fn growth(volume: &Spec) -> Option<Growth> {
    let claim = volume.claim.as_ref()?.status.as_ref()?;
    let of_volume = volume.volume.as_ref()?.spec.as_ref()?.capacity.as_ref()?;
    let size = |map: Option<&std::collections::BTreeMap<String, Quantity>>| {
        let size = map?.get("storage")?.clone();
        Some((quantity::value(&size.0)?, size))
    };
    let (target, target_size) = size(Some(of_volume))?;
    let current = size(claim.capacity.as_ref()).map_or(0, |(bytes, _)| bytes);
    if target <= current {
        return None;
    }
    let status = claim.allocated_resource_statuses.as_ref();
    let status = status
        .and_then(|all| all.get("storage"))
        .map(String::as_str);
    let allocated = size(claim.allocated_resources.as_ref());
    match (status, allocated) {
        // The controller does not track the expansion.
        (None, None) => Some(Growth {
            size: target_size,
            bytes: target,
            is_tracked: false,
        }),
        (Some("NodeResizePending" | "NodeResizeInProgress"), allocated) => {
            let (bytes, size) = allocated.unwrap_or((target, target_size));
            Some(Growth {
                size,
                bytes,
                is_tracked: true,
            })
        }
        _ => None,
    }
}

/// Expands a volume of a pod, if its claim waits for that.
pub(super) async fn expand(core: &Core, pod: &Pod, volume: &Spec, key: &Key) -> Result<()> {
    let (Some(growth), Some(claim)) = (growth(volume), &volume.claim) else {
        return Ok(());
    };
    if volume.read_only {
        let message = "MountVolume.NodeExpandVolume failed requested read-only file system";
        core.events.warning(pod, "FileSystemResizeFailed", message);
        return Ok(());
    }
    if growth.is_tracked {
        write(core, claim, in_progress()).await?;
    }
    let outcome = core
        .volumes
        .expand(spec::uid(pod), key, volume, growth.bytes)
        .await;
    let failed = |why: String| Error::Mount {
        reason: "VolumeResizeFailed",
        message: format!(
            "MountVolume.NodeExpandVolume failed for volume {:?} : {why}",
            volume.name
        ),
        is_waiting: false,
    };
    match outcome {
        Ok(Expanded::Done) => {
            let name = &volume.name;
            let message = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?}");
            core.events
                .normal(pod, "FileSystemResizeSuccessful", message.as_str());
            core.events
                .claim(claim, "FileSystemResizeSuccessful", message);
            write(core, claim, finished(&growth)).await
        }
        Ok(Expanded::NotSupported) if !growth.is_tracked => Ok(()),
        Ok(Expanded::NotSupported) => {
            let why = "NodeExpand is not supported by the driver".to_owned();
            write(core, claim, error_condition(&why)).await?;
            Err(failed(why))
        }
        // The pod starts; the volume is expanded when it is not in use.
        Ok(Expanded::InUse(why)) => {
            warn!(volume = %key, why, "volume cannot be expanded while in use");
            Ok(())
        }
        Ok(Expanded::Infeasible(why)) => {
            write(core, claim, infeasible(&why)).await?;
            Err(failed(why))
        }
        Err(error) => {
            if let (true, StepError::Failed(why)) = (growth.is_tracked, &error) {
                write(core, claim, final_error(claim, &growth, why)).await?;
            }
            Err(failed(error.to_string()))
        }
    }
}

/// The status after an error that leaves the volume as it was. If the claim requests another size
/// since an earlier failure, the controller has to decide again.
fn final_error(claim: &PersistentVolumeClaim, growth: &Growth, why: &str) -> Value {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requested = requests.and_then(|all| all.requests.as_ref()?.get("storage"));
    let requested = requested.and_then(|size| quantity::value(&size.0));
    let conditions = claim.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let has_failed = conditions.any(|one| one.type_ == "NodeResizeError" && one.status == "True");
    match has_failed && requested != Some(growth.bytes) {
        true => infeasible(why),
        false => error_condition(why),
    }
}

fn in_progress() -> Value {
    json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}})
}

fn finished(growth: &Growth) -> Value {
    let gone = |kind: &str| json!({"$patch": "delete", "type": kind});
    let mut status = json!({
        "capacity": {"storage": growth.size},
        "conditions": [
            gone("Resizing"),
            gone("FileSystemResizePending"),
            gone("ControllerResizeError"),
            gone("NodeResizeError"),
        ],
    });
    if growth.is_tracked {
        status["allocatedResourceStatuses"] = json!({"storage": null});
    }
    status
}

fn infeasible(why: &str) -> Value {
    let mut status = error_condition(why);
    status["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
    status
}

fn error_condition(why: &str) -> Value {
    let message = format!("failed to expand pvc with {why}");
    json!({"conditions": [{"type": "NodeResizeError", "status": "True", "message": message}]})
}

async fn write(core: &Core, claim: &PersistentVolumeClaim, status: Value) -> Result<()> {
    let metadata = &claim.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(core.config.client.clone(), namespace);
    // The uid guards against another claim of the same name.
    let patch = json!({"metadata": {"uid": metadata.uid}, "status": status});
    let params = PatchParams::default();
    api.patch_status(name, &params, &Patch::Strategic(patch))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn spec(capacity: &str, status: Value) -> Spec {
        let volume =
            json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": capacity}}});
        let claim = json!({"metadata": {"name": "c"}, "spec": {}, "status": status});
        let inline = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        Spec {
            name: "pv".into(),
            inline: serde_json::from_value(inline).unwrap(),
            volume: Some(Arc::new(serde_json::from_value(volume).unwrap())),
            claim: Some(Arc::new(serde_json::from_value(claim).unwrap())),
            is_block: false,
            read_only: false,
        }
    }

    #[test]
    fn a_size_that_is_no_longer_requested_is_infeasible_after_a_second_failure() {
        let growth = Growth {
            size: Quantity("9Gi".into()),
            bytes: 9 << 30,
            is_tracked: true,
        };
        let error = json!([{"type": "NodeResizeError", "status": "True"}]);
        for (requested, conditions, is_infeasible) in [
            ("9Gi", json!([]), false),
            ("9Gi", error.clone(), false),
            ("5Gi", json!([]), false),
            ("5Gi", error, true),
        ] {
            let claim = json!({"metadata": {"name": "c"},
                "spec": {"resources": {"requests": {"storage": requested}}},
                "status": {"conditions": conditions}});
            let claim = serde_json::from_value(claim).unwrap();
            let status = final_error(&claim, &growth, "denied");
            let marked = &status["allocatedResourceStatuses"]["storage"];
            assert_eq!(*marked == "NodeResizeInfeasible", is_infeasible, "{status}");
            let message = &status["conditions"][0]["message"];
            assert_eq!(*message, "failed to expand pvc with denied");
        }
    }

    #[test]
    fn a_node_expands_volumes_after_the_controller_expanded_them() {
        let bytes =
            |capacity: &str, status: Value| growth(&spec(capacity, status)).map(|g| g.bytes);
        let old = json!({"storage": "1Gi"});
        assert_eq!(bytes("1Gi", json!({"capacity": old})), None);
        assert_eq!(bytes("2Gi", json!({"capacity": old})), Some(2 << 30));
        let tracked = |status: &str| {
            json!({"capacity": old, "allocatedResources": {"storage": "2Gi"},
                   "allocatedResourceStatuses": {"storage": status}})
        };
        assert_eq!(bytes("3Gi", tracked("NodeResizePending")), Some(2 << 30));
        assert_eq!(bytes("2Gi", tracked("NodeResizeInProgress")), Some(2 << 30));
        for other in ["ControllerResizeInProgress", "NodeResizeInfeasible"] {
            assert_eq!(bytes("2Gi", tracked(other)), None, "{other}");
        }
    }
}
