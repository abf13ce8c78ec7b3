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
    storage::{Host, PodMount, Spec, Staged, Step, run_blocking},
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

/// Whether there is a file, also one that is no longer accessible.
pub(super) async fn is_there(path: &Path, host: &dyn Host) -> Step<bool> {
    let path = path.to_owned();
    let look = move || Ok(std::fs::symlink_metadata(&path).map_err(|error| error.kind()));
    let found = run_blocking(host, look).await?;
    Ok(found.err() != Some(std::io::ErrorKind::NotFound))
}

/// Removes what is left after the driver has unpublished a volume, except mounts.
pub(super) async fn remove_published(mount: &PodMount, host: &dyn Host) -> Step<()> {
    let (root, mounter) = (host.root_dir(), host.mounter());
    let (target, dir) = (paths::target(root, mount), mount.dir(root, NAME));
    let is_block = mount.is_block;
    let remove = move || {
        not_mounted(&target, mounter)?;
        paths::remove_target(&target)?;
        match is_block {
            true => mounted::unlink_device(&dir)?,
            false => paths::remove_record(&dir)?,
        }
        Ok(())
    };
    run_blocking(host, remove).await
}

fn not_mounted(path: &Path, mounter: &dyn Mounter) -> crate::Result<()> {
    match mounter.is_mounted(path)? {
        true => Err(Error::StillMounted(path.to_owned())),
        false => Ok(()),
    }
}

/// Removes what is left after the driver has unstaged a volume, except mounts.
pub(super) async fn clean_staging(staged: &Staged, host: &dyn Host) -> Step<()> {
    let (staged, root) = (staged.clone(), host.root_dir().to_owned());
    let mounter = host.mounter();
    let clean = move || Ok(clean_staging_of(&staged, &root, mounter)?);
    run_blocking(host, clean).await
}

fn clean_staging_of(staged: &Staged, root: &Path, mounter: &dyn Mounter) -> crate::Result<()> {
    let dir = paths::staging(root, &staged.volume, &staged.name, staged.is_block);
    not_mounted(&dir, mounter)?;
    if !staged.is_block {
        paths::remove_target(&dir)?;
        return paths::remove_record(dir.parent().unwrap_or(&dir));
    }
    // Drivers may leave files of their own beside a device.
    crate::remove_tree(&dir)?;
    paths::remove_target(&paths::publish_dir(root, &staged.name))?;
    crate::remove_tree(&paths::device_dir(root, &staged.name))
}
