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

/// The field name of the source of a persistent volume, or of a pod's volume.
pub(crate) fn storage_source_name(spec: &Spec) -> &'static str {
    let found = spec.volume.as_ref().and_then(|volume| volume.spec.as_ref());
    let Some(found) = found else {
        return source_name(&spec.inline);
    };
    let sources: [(bool, &'static str); 18] = [
        (found.csi.is_some(), "csi"),
        (found.local.is_some(), "local"),
        (found.host_path.is_some(), "hostPath"),
        (found.nfs.is_some(), "nfs"),
        (found.iscsi.is_some(), "iscsi"),
        (found.fc.is_some(), "fc"),
        (found.rbd.is_some(), "rbd"),
        (found.cephfs.is_some(), "cephfs"),
        (found.cinder.is_some(), "cinder"),
        (found.flex_volume.is_some(), "flexVolume"),
        (found.glusterfs.is_some(), "glusterfs"),
        (found.azure_disk.is_some(), "azureDisk"),
        (found.azure_file.is_some(), "azureFile"),
        (
            found.aws_elastic_block_store.is_some(),
            "awsElasticBlockStore",
        ),
        (found.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (found.vsphere_volume.is_some(), "vsphereVolume"),
        (found.portworx_volume.is_some(), "portworxVolume"),
        (found.storageos.is_some(), "storageos"),
    ];
    let mut set = sources.iter().filter(|(set, _)| *set);
    set.next().map_or("unknown", |(_, name)| name)
}

/// The field name of a volume's source, for messages about unsupported volumes.
pub(crate) fn source_name(volume: &Volume) -> &'static str {
    let sources: [(bool, &'static str); 12] = [
        (
            volume.persistent_volume_claim.is_some(),
            "persistentVolumeClaim",
        ),
        (volume.ephemeral.is_some(), "ephemeral"),
        (volume.csi.is_some(), "csi"),
        (volume.nfs.is_some(), "nfs"),
        (volume.image.is_some(), "image"),
        (volume.iscsi.is_some(), "iscsi"),
        (volume.fc.is_some(), "fc"),
        (volume.git_repo.is_some(), "gitRepo"),
        (volume.rbd.is_some(), "rbd"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.glusterfs.is_some(), "glusterfs"),
    ];
    sources
        .iter()
        .find(|(set, _)| *set)
        .map_or("unknown", |(_, name)| name)
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
