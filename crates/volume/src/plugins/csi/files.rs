//! Directories, records and links around CSI calls: written before a call, removed after the call
//! that undoes it. Nothing that is mounted is touched.

use std::{collections::BTreeMap, path::Path};

use super::{
    NAME,
    calls::{self, Described},
    paths,
};
use crate::{
    Error, Mounter,
    plugins::mounted,
    storage::{Host, PodMount, Spec, Staged},
};

pub(super) fn make_dir(dir: &Path) -> crate::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o750).create(dir);
    made.map_err(Error::io("create", dir))
}

pub(super) fn save_staged(
    volume: &Described,
    spec: &Spec,
    dir: &Path,
    root: &Path,
) -> crate::Result<()> {
    let record = BTreeMap::from([
        ("volumeHandle".to_owned(), volume.handle.clone()),
        ("driverName".to_owned(), volume.driver.clone()),
        ("specVolID".to_owned(), spec.name.clone()),
    ]);
    match spec.is_block {
        true => paths::save(&paths::device_dir(root, &spec.name).join("data"), &record),
        false => paths::save(dir.parent().unwrap_or(dir), &record),
    }
}

pub(super) fn save_published(
    volume: &Described,
    mount: &PodMount,
    host: &dyn Host,
) -> crate::Result<()> {
    let node = host.node_name();
    let attachment = paths::attachment_name(&volume.handle, &volume.driver, node);
    let fields = [
        ("specVolID", mount.name.as_str()),
        ("volumeHandle", &volume.handle),
        ("driverName", &volume.driver),
        ("nodeName", node),
        (
            "volumeLifecycleMode",
            calls::lifecycle_mode(volume.is_ephemeral),
        ),
        ("attachmentID", &attachment),
    ];
    let record = fields.map(|(key, value)| (key.to_owned(), value.to_owned()));
    paths::save(&paths::record_dir(host.root_dir(), mount), &record.into())
}

/// Makes the link to a published device, which shows after a restart that the pod has it.
pub(super) fn link_published(target: &Path, link: &Path) -> crate::Result<()> {
    if let Some(parent) = link.parent() {
        make_dir(parent)?;
    }
    match std::os::unix::fs::symlink(target, link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io("link", link)(error))
        }
        _ => Ok(()),
    }
}

/// Removes what is left after the driver has unpublished a volume, except mounts.
pub(super) fn remove_published(mount: &PodMount, host: &dyn Host) -> crate::Result<()> {
    let root = host.root_dir();
    let target = paths::target(root, mount);
    not_mounted(&target, host.mounter())?;
    paths::remove_target(&target)?;
    match mount.is_block {
        true => mounted::unlink_device(&mount.dir(root, NAME)),
        false => paths::remove_record(&mount.dir(root, NAME)),
    }
}

fn not_mounted(path: &Path, mounter: &dyn Mounter) -> crate::Result<()> {
    match mounter.is_mounted(path)? {
        true => Err(Error::StillMounted(path.to_owned())),
        false => Ok(()),
    }
}

pub(super) fn clean_staging(dir: &Path, staged: &Staged, host: &dyn Host) -> crate::Result<()> {
    not_mounted(dir, host.mounter())?;
    if !staged.is_block {
        paths::remove_target(dir)?;
        return paths::remove_record(dir.parent().unwrap_or(dir));
    }
    // Drivers may leave files of their own beside a device.
    crate::remove_tree(dir)?;
    paths::remove_target(&paths::publish_dir(host.root_dir(), &staged.name))?;
    crate::remove_tree(&paths::device_dir(host.root_dir(), &staged.name))
}
