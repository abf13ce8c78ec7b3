//! The parameters of CSI calls, and the meaning of their results.

use std::collections::BTreeMap;

use csi::{
    Capability, Node, go_error,
    tonic::{Code, Status},
    v1::{
        VolumeCapability,
        volume_capability::{
            AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode as Access,
        },
    },
};
use k8s_openapi::api::{
    core::v1::{CSIPersistentVolumeSource, Pod},
    storage::v1::CSIDriver,
};

use super::paths;
use crate::storage::{Host, Spec, Step, StepError};

/// A volume in CSI terms.
pub(super) struct Described {
    pub driver: String,
    pub handle: String,
    pub fs_type: String,
    pub attributes: BTreeMap<String, String>,
    /// Whether it is a CSI ephemeral volume.
    pub is_ephemeral: bool,
}

impl Described {
    /// The volume of a pod.
    pub(super) fn new(spec: &Spec, pod: &str) -> Option<Self> {
        if let Some(source) = persistent(spec) {
            return Some(Self {
                driver: source.driver.clone(),
                handle: source.volume_handle.clone(),
                fs_type: source.fs_type.clone().unwrap_or_default(),
                attributes: source.volume_attributes.clone().unwrap_or_default(),
                is_ephemeral: false,
            });
        }
        let source = spec.inline.csi.as_ref()?;
        Some(Self {
            driver: source.driver.clone(),
            handle: paths::inline_handle(pod, &spec.name),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            is_ephemeral: true,
        })
    }
}

/// The source of a persistent volume.
pub(super) fn persistent(spec: &Spec) -> Option<&CSIPersistentVolumeSource> {
    spec.volume.as_ref()?.spec.as_ref()?.csi.as_ref()
}

/// Classifies an error. A call that may still have an effect is uncertain.
pub(super) fn failed(status: Status) -> StepError {
    let text = go_error(&status);
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => StepError::Uncertain(text),
        _ => StepError::Failed(text),
    }
}

/// Whether the driver has a capability; without an answer the step was not tried.
pub(super) async fn can(node: &Node, capability: Capability) -> Step<bool> {
    let answer = node.can(capability).await;
    answer.map_err(|status| StepError::NotTried(go_error(&status)))
}

/// The volume capability for the pod's use.
pub(super) async fn capability(
    node: &Node,
    spec: &Spec,
    fs_type: &str,
    group: Option<i64>,
) -> Step<VolumeCapability> {
    let multi = can(node, Capability::SingleNodeMultiWriter).await?;
    let modes = spec.access_modes();
    let access = access_mode(modes.first().map_or("", String::as_str), multi);
    let access_type = if spec.is_block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: spec.mount_options(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        })
    };
    Ok(VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode {
            mode: access as i32,
        }),
    })
}

fn access_mode(mode: &str, knows_single_writers: bool) -> Access {
    match (mode, knows_single_writers) {
        ("ReadOnlyMany", _) => Access::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Access::MultiNodeMultiWriter,
        ("ReadWriteOncePod", true) => Access::SingleNodeSingleWriter,
        (_, true) => Access::SingleNodeMultiWriter,
        (_, false) => Access::SingleNodeWriter,
    }
}

/// The publish context of the attachment.
pub(super) async fn publish_context(
    volume: &Described,
    is_attachable: bool,
    host: &dyn Host,
) -> Step<BTreeMap<String, String>> {
    if !is_attachable {
        return Ok(BTreeMap::new());
    }
    let name = paths::attachment_name(&volume.handle, &volume.driver, host.node_name());
    let found = host.attachment(&name).await?;
    let status = found
        .ok_or_else(|| StepError::NotTried(format!("could not find attachment [{name}]")))?
        .status;
    Ok(status
        .and_then(|status| status.attachment_metadata)
        .unwrap_or_default())
}

/// Checks that the driver supports this lifecycle mode; the message is upstream's.
pub(super) fn check_lifecycle(volume: &Described, driver: Option<&CSIDriver>) -> Step<()> {
    let mode = lifecycle_mode(volume.is_ephemeral);
    let name = &volume.driver;
    let refuse = |why: String| Err(StepError::NotTried(why));
    let Some(driver) = driver else {
        return match volume.is_ephemeral {
            false => Ok(()),
            true => refuse(format!(
                "volume mode {mode:?} not supported by driver {name} (no CSIDriver object)"
            )),
        };
    };
    let modes = driver.spec.volume_lifecycle_modes.clone();
    let modes = modes.unwrap_or_default();
    // The API's default.
    if modes.iter().any(|known| known == mode) || (modes.is_empty() && !volume.is_ephemeral) {
        return Ok(());
    }
    refuse(format!(
        "volume mode {mode:?} not supported by driver {name} (only supports {modes:?})"
    ))
}

/// The name in records and calls.
pub(super) fn lifecycle_mode(is_ephemeral: bool) -> &'static str {
    match is_ephemeral {
        true => "Ephemeral",
        false => "Persistent",
    }
}

/// The pod information for drivers with podInfoOnMount.
pub(super) fn pod_info(pod: &Pod, is_ephemeral: bool) -> BTreeMap<String, String> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let account = pod.spec.as_ref();
    let account = account.map(|spec| text(&spec.service_account_name));
    let all = [
        ("pod.name", text(&pod.metadata.name)),
        ("pod.namespace", text(&pod.metadata.namespace)),
        ("pod.uid", text(&pod.metadata.uid)),
        ("serviceAccount.name", account.unwrap_or_default()),
        ("ephemeral", is_ephemeral.to_string()),
    ];
    let named = all.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value));
    named.into()
}

/// Whether the kubelet applies the pod's fsGroup.
pub(super) fn applies_fs_group(spec: &Spec, fs_type: &str, driver: Option<&CSIDriver>) -> bool {
    let policy = driver.and_then(|driver| driver.spec.fs_group_policy.as_deref());
    if spec.read_only {
        return false;
    }
    match policy {
        Some("None") => false,
        Some("File") => true,
        _ if fs_type.is_empty() => false,
        _ if spec.volume.is_none() => true,
        _ => {
            let modes = spec.access_modes();
            let mut modes = modes.iter();
            modes.any(|mode| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn driver(spec: serde_json::Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    fn spec(modes: &[&str]) -> Spec {
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": modes,
            "csi": {"driver": "d", "volumeHandle": "h"}}});
        let inline = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        Spec {
            name: "pv".into(),
            inline: serde_json::from_value(inline).unwrap(),
            volume: Some(std::sync::Arc::new(serde_json::from_value(volume).unwrap())),
            claim: None,
            is_block: false,
            read_only: false,
        }
    }

    #[test]
    fn files_go_to_the_fs_group_as_the_drivers_policy_says() {
        let (once, many) = (spec(&["ReadWriteOnce"]), spec(&["ReadWriteMany"]));
        let policy = |policy: &str| driver(json!({"fsGroupPolicy": policy}));
        let default = policy("ReadWriteOnceWithFSType");
        for (spec, fs_type, driver, expected) in [
            (&once, "ext4", None, true),
            (&once, "ext4", Some(&default), true),
            (&once, "", Some(&default), false),
            (&many, "ext4", Some(&default), false),
            (&many, "", Some(&policy("File")), true),
            (&once, "ext4", Some(&policy("None")), false),
        ] {
            assert_eq!(applies_fs_group(spec, fs_type, driver), expected);
        }
        let read_only = Spec {
            read_only: true,
            ..once
        };
        assert!(!applies_fs_group(&read_only, "ext4", Some(&policy("File"))));
    }

    #[test]
    fn inline_volumes_need_a_driver_that_supports_ephemeral() {
        let described = |is_ephemeral| Described {
            driver: "d".into(),
            handle: "h".into(),
            fs_type: String::new(),
            attributes: BTreeMap::new(),
            is_ephemeral,
        };
        let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        let one = driver(json!({"volumeLifecycleModes": ["Persistent"]}));
        assert!(check_lifecycle(&described(false), None).is_ok());
        assert!(check_lifecycle(&described(true), None).is_err());
        assert!(check_lifecycle(&described(true), Some(&both)).is_ok());
        assert_eq!(
            check_lifecycle(&described(true), Some(&one))
                .unwrap_err()
                .to_string(),
            "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
        );
    }

    #[test]
    fn access_modes_are_as_fine_as_the_driver_knows_them() {
        assert_eq!(
            access_mode("ReadWriteOnce", false),
            Access::SingleNodeWriter
        );
        assert_eq!(
            access_mode("ReadWriteOncePod", true),
            Access::SingleNodeSingleWriter
        );
        assert_eq!(access_mode("", true), Access::SingleNodeMultiWriter);
        assert_eq!(
            access_mode("ReadOnlyMany", true),
            Access::MultiNodeReaderOnly
        );
    }

    #[test]
    fn errors_that_may_still_have_an_effect_are_uncertain() {
        let late = failed(Status::deadline_exceeded("slow"));
        assert_eq!(
            late,
            StepError::Uncertain("rpc error: code = DeadlineExceeded desc = slow".into())
        );
        assert!(matches!(
            failed(Status::internal("no")),
            StepError::Failed(_)
        ));
    }
}
