//! Resolves a pod's volume to its persistent volume: claim names, and whether claim and volume are
//! bound to each other and usable. Pure; the messages are upstream's.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};

use super::{Spec, StoragePlugin};
use crate::plugins::{self, STORAGE};

const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Whether a volume is mounted in steps.
pub fn is_storage(volume: &Volume) -> bool {
    claim_name("", volume).is_some() || volume.csi.is_some() || volume.nfs.is_some()
}

/// The claim of a pod's volume: the one that it names, or that of a generic ephemeral volume.
pub fn claim_name(pod: &str, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    volume
        .ephemeral
        .as_ref()
        .map(|_| format!("{pod}-{}", volume.name))
}

/// The name of the persistent volume that a claim is bound to, if the pod may use it.
pub fn bound_volume<'a>(
    pod: &Pod,
    volume: &Volume,
    claim: &'a PersistentVolumeClaim,
) -> Result<&'a str, String> {
    let metadata = &claim.metadata;
    let finalizers = metadata.finalizers.iter().flatten();
    let is_protected = finalizers.into_iter().any(|name| name == PROTECTION);
    // While a pod uses the claim, the pvc-protection finalizer keeps it.
    if metadata.deletion_timestamp.is_some() && !is_protected {
        return Err("PVC is being deleted".into());
    }
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err("PVC is not bound".into());
    }
    if volume.ephemeral.is_some() && volume.persistent_volume_claim.is_none() {
        owned_by(pod, claim)?;
    }
    let name = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref())
        .unwrap_or_default();
    match name {
        "" => Err("PVC has empty pvc.Spec.VolumeName".into()),
        name => Ok(name),
    }
}

/// Checks that the pod owns the claim of its ephemeral volume; another one of the same name is not
/// used.
fn owned_by(pod: &Pod, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let is_owner = owners.into_iter().any(|owner| {
        owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref()
    });
    if is_owner {
        return Ok(());
    }
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Err(format!(
        "PVC {}/{} was not created for pod {}/{} (pod is not owner)",
        text(&claim.metadata.namespace),
        text(&claim.metadata.name),
        text(&pod.metadata.namespace),
        text(&pod.metadata.name),
    ))
}

/// How the containers of a pod use a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uses {
    /// Some container has it in `volumeMounts`.
    pub mounted: bool,
    /// Some container has it in `volumeDevices`.
    pub as_device: bool,
}

/// The volume of a claim.
pub fn claimed(
    volume: &Volume,
    claim: Arc<PersistentVolumeClaim>,
    found: Arc<PersistentVolume>,
    uses: Uses,
) -> Result<Spec, String> {
    let name = found.metadata.name.clone().unwrap_or_default();
    let spec = found.spec.as_ref();
    let Some(reference) = spec.and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    if reference.uid != claim.metadata.uid {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {} does not point to claim.UID {}",
            reference.uid.as_deref().unwrap_or_default(),
            claim.metadata.uid.as_deref().unwrap_or_default(),
        ));
    }
    let mode = spec
        .and_then(|spec| spec.volume_mode.as_deref())
        .unwrap_or("Filesystem");
    let is_block = mode == "Block";
    for (used, field, fits) in [
        (uses.mounted, "volumeMounts", !is_block),
        (uses.as_device, "volumeDevices", is_block),
    ] {
        if used && !fits {
            return Err(format!(
                "volume {} has volumeMode {mode}, but is specified in {field}",
                volume.name
            ));
        }
    }
    let by_pod = volume
        .persistent_volume_claim
        .as_ref()
        .and_then(|source| source.read_only);
    // The read-only flag of a CSI volume is for its attacher.
    let by_source = spec.and_then(|spec| spec.nfs.as_ref()?.read_only);
    Ok(Spec {
        name,
        inline: volume.clone(),
        volume: Some(found),
        claim: Some(claim),
        is_block,
        read_only: by_pod == Some(true) || by_source == Some(true),
    })
}

/// An inline volume of the pod.
pub fn inline(volume: &Volume) -> Spec {
    let csi = volume.csi.as_ref().and_then(|source| source.read_only);
    let nfs = volume.nfs.as_ref().and_then(|source| source.read_only);
    Spec {
        name: volume.name.clone(),
        inline: volume.clone(),
        volume: None,
        claim: None,
        is_block: false,
        read_only: csi == Some(true) || nfs == Some(true),
    }
}

/// The plugin of a volume, or an error if there is none.
pub fn plugin(spec: &Spec) -> Result<&'static dyn StoragePlugin, String> {
    let mut all = STORAGE.iter().copied();
    all.find(|plugin| plugin.handles(spec)).ok_or_else(|| {
        format!(
            "volume {:?} is of type {}, which this node does not support",
            spec.name,
            plugins::storage_source_name(spec)
        )
    })
}

/// Refuses mount options of a volume that is not mounted, such as hostPath.
pub fn check_mount_options(spec: &Spec, plugin: &dyn StoragePlugin) -> Result<(), String> {
    if plugin.supports_mount_options() || spec.mount_options().is_empty() {
        return Ok(());
    }
    Err("mount options are not supported for this volume type".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn volume() -> Volume {
        from(json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}}))
    }

    #[test]
    fn a_claim_is_used_only_when_it_is_bound_and_stays() {
        let pod: Pod = from(json!({"metadata": {"name": "p", "uid": "u"}}));
        let why = |claim: serde_json::Value| {
            let claim: PersistentVolumeClaim = from(claim);
            bound_volume(&pod, &volume(), &claim)
                .map(str::to_owned)
                .unwrap_or_else(|why| format!("!{why}"))
        };
        assert_eq!(
            why(json!({"metadata": {}, "spec": {}, "status": {"phase": "Pending"}})),
            "!PVC is not bound"
        );
        assert_eq!(
            why(json!({"metadata": {}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}})),
            "v"
        );
        let deleted = |finalizers: serde_json::Value| {
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers},
                   "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}})
        };
        assert_eq!(why(deleted(json!([]))), "!PVC is being deleted");
        assert_eq!(why(deleted(json!([PROTECTION]))), "v");
    }

    #[test]
    fn an_ephemeral_volume_uses_only_the_claim_that_was_made_for_it() {
        let volume: Volume = from(json!({"name": "data", "ephemeral": {}}));
        assert_eq!(claim_name("web", &volume).as_deref(), Some("web-data"));
        let pod: Pod = from(json!({"metadata": {"name": "web", "namespace": "n", "uid": "u"}}));
        let claim = |uid: &str| -> PersistentVolumeClaim {
            from(
                json!({"metadata": {"name": "web-data", "namespace": "n", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid, "controller": true}]},
                "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}),
            )
        };
        assert_eq!(bound_volume(&pod, &volume, &claim("u")), Ok("v"));
        assert_eq!(
            bound_volume(&pod, &volume, &claim("other")),
            Err("PVC n/web-data was not created for pod n/web (pod is not owner)".into())
        );
    }

    #[test]
    fn claim_and_volume_must_name_each_other_and_fit_their_use() {
        let claim = || Arc::new(from(json!({"metadata": {"uid": "c1"}})));
        let found = |spec: serde_json::Value| {
            Arc::new(from(json!({"metadata": {"name": "pv"}, "spec": spec})))
        };
        let mounted = Uses {
            mounted: true,
            as_device: false,
        };
        let why = |spec, uses| {
            claimed(&volume(), claim(), found(spec), uses)
                .err()
                .unwrap_or_default()
        };
        assert!(why(json!({}), mounted).contains("nil pv.Spec.ClaimRef"));
        assert!(
            why(json!({"claimRef": {"uid": "c2"}}), mounted)
                .contains("does not point to claim.UID c1")
        );
        let block = json!({"claimRef": {"uid": "c1"}, "volumeMode": "Block"});
        assert_eq!(
            why(block, mounted),
            "volume data has volumeMode Block, but is specified in volumeMounts"
        );
        let device = Uses {
            mounted: false,
            as_device: true,
        };
        let files = json!({"claimRef": {"uid": "c1"}});
        assert_eq!(
            why(files.clone(), device),
            "volume data has volumeMode Filesystem, but is specified in volumeDevices"
        );
        assert_eq!(why(files, mounted), "");
    }

    #[test]
    fn mount_options_are_refused_where_nothing_is_mounted_and_the_old_annotation_comes_first() {
        let refused = "mount options are not supported for this volume type";
        let host_path = || json!({"hostPath": {"path": "/x"}});
        let local = || json!({"local": {"path": "/x"}});
        let csi = json!({"csi": {"driver": "d.io", "volumeHandle": "h"}});
        for (source, annotation, options, expected) in [
            (host_path(), None, vec![], Ok(vec![])),
            (host_path(), None, vec!["ro"], Err(refused)),
            (host_path(), Some("ro"), vec![], Err(refused)),
            (local(), None, vec!["ro"], Ok(vec!["ro"])),
            (
                local(),
                Some("sync,nodev,"),
                vec!["ro"],
                Ok(vec!["sync", "nodev"]),
            ),
            (csi, Some("sync"), vec!["ro"], Ok(vec!["ro"])),
        ] {
            let claim = Arc::new(from(json!({"metadata": {"uid": "c1"}})));
            let mut spec = source;
            spec["claimRef"] = json!({"uid": "c1"});
            spec["mountOptions"] = json!(options);
            let annotations = annotation.map(|text| json!({(super::super::MOUNT_OPTIONS): text}));
            let meta = json!({"name": "pv", "annotations": annotations});
            let found = Arc::new(from(json!({"metadata": meta, "spec": spec})));
            let spec = claimed(&volume(), claim, found, Uses::default()).unwrap();
            let checked = check_mount_options(&spec, plugin(&spec).unwrap());
            let options = spec.mount_options();
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let expected: Result<Vec<&str>, String> = expected.map_err(str::to_owned);
            assert_eq!(checked.map(|()| options), expected);
        }
    }

    #[test]
    fn sources_that_no_plugin_handles_are_refused_by_name() {
        for (field, source) in [
            ("iscsi", json!({"targetPortal": "p", "iqn": "q", "lun": 1})),
            ("fc", json!({})),
            ("rbd", json!({"monitors": [], "image": "i"})),
            ("awsElasticBlockStore", json!({"volumeID": "v"})),
        ] {
            let mut spec = json!({"claimRef": {"uid": "c1"}, "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"}, "mountOptions": ["ro"], "nodeAffinity": {},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "s",
                "volumeAttributesClassName": "a", "volumeMode": "Filesystem"});
            spec[field] = source;
            let claim = Arc::new(from(json!({"metadata": {"uid": "c1"}})));
            let found = Arc::new(from(json!({"metadata": {"name": "pv"}, "spec": spec})));
            let spec = claimed(&volume(), claim, found, Uses::default()).unwrap();
            let why = plugin(&spec).err().unwrap();
            assert_eq!(
                why,
                format!("volume \"pv\" is of type {field}, which this node does not support")
            );
        }
    }
}
