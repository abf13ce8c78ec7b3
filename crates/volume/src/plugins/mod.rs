//! All volume plugins.

pub mod csi;
mod downward_api;
mod empty_dir;
mod host_path;
mod keys;
mod local;
mod mounted;
mod nfs;
mod projected;

use std::path::Path;

use k8s_openapi::api::core::v1::Volume;

use crate::{
    Error, Plugin, Request, Result, atomic, ownership,
    payload::Payload,
    storage::{Spec, StoragePlugin},
};

/// A volume belongs to the first plugin that claims it.
pub const ALL: &[&dyn Plugin] = &[
    &empty_dir::EmptyDir,
    &keys::KeysOf::ConfigMap,
    &keys::KeysOf::Secret,
    &projected::Projected,
    &downward_api::DownwardApi,
    &host_path::HostPath,
];

/// The plugins of persistent volumes.
pub const STORAGE: &[&dyn StoragePlugin] = &[
    &csi::Csi,
    &local::Local,
    &host_path::HostPathVolume,
    &nfs::Nfs,
];

/// The fields of a persistent volume that are no source.
const OTHER_FIELDS: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// The field name of the source of a persistent volume, or of a pod's volume.
pub(crate) fn storage_source_name(spec: &Spec) -> String {
    let found = spec.volume.as_ref().and_then(|volume| volume.spec.as_ref());
    match found {
        Some(found) => first_field(found, OTHER_FIELDS),
        None => source_name(&spec.inline),
    }
}

/// The field name of a volume's source, for messages about unsupported volumes.
pub(crate) fn source_name(volume: &Volume) -> String {
    first_field(volume, &["name"])
}

fn first_field(object: &impl serde::Serialize, other: &[&str]) -> String {
    let object = serde_json::to_value(object).unwrap_or_default();
    let fields = object.as_object().into_iter().flatten();
    let mut sources = fields.filter(|(name, _)| !other.contains(&name.as_str()));
    let first = sources.next().map(|(name, _)| name.clone());
    first.unwrap_or_else(|| "unknown".to_owned())
}

fn make_dir(dir: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
        .map_err(Error::io("chmod", dir))
}

/// Mounts a tmpfs: Secrets and tokens are never written to a disk.
fn make_tmpfs(request: &Request) -> Result<()> {
    if !request.dir.exists() {
        std::fs::create_dir_all(request.dir).map_err(Error::io("create", request.dir))?;
    }
    if !request.mounter.is_mounted(request.dir)? {
        request.mounter.tmpfs(request.dir, None)?;
        make_dir(request.dir, 0o777)?;
    }
    Ok(())
}

fn write_payload(request: &Request, payload: &Payload) -> Result<()> {
    let group = ownership::fs_group(request.pod);
    if atomic::write(request.dir, payload, group)? {
        tracing::debug!(
            volume = request.volume.name,
            files = payload.len(),
            "volume content updated"
        );
    }
    Ok(())
}
