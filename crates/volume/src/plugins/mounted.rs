//! Shared by plugins that mount themselves: mount points, links to devices, usage.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use crate::{
    Error, Mounter, Result,
    storage::{Host, Measure, Measuring, PodMount, Step, Usage, run_blocking},
};

/// Unmounts a directory and removes it if it is empty.
pub(super) async fn remove_mount_point(dir: PathBuf, host: &dyn Host) -> Step<()> {
    let mounter = host.mounter();
    run_blocking(host, move || Ok(remove(&dir, mounter)?)).await
}

fn remove(dir: &Path, mounter: &dyn Mounter) -> Result<()> {
    mounter.unmount_unused(dir)?;
    if mounter.is_mounted(dir)? {
        return Err(Error::StillMounted(dir.to_owned()));
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", dir)(error))
        }
        _ => Ok(()),
    }
}

/// Links a pod's path to a block device; returns the device.
pub(super) fn link_device(device: &Path, link: &Path) -> Result<PathBuf> {
    let meta = fs::metadata(device).map_err(Error::io("look at", device))?;
    if !meta.file_type().is_block_device() {
        return Err(Error::NotADevice(device.to_owned()));
    }
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    match std::os::unix::fs::symlink(device, link) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let current = fs::read_link(link).map_err(Error::io("read", link))?;
            if current != device {
                unlink_device(link)?;
                return link_device(device, link);
            }
        }
        Err(error) => return Err(Error::io("link", link)(error)),
    }
    Ok(device.to_owned())
}

/// Removes a pod's link to a device.
pub(super) fn unlink_device(link: &Path) -> Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", link)(error))
        }
        _ => Ok(()),
    }
}

/// The usage of a mounted file system, or the size of a device.
pub(super) async fn measure(
    mount: &PodMount,
    dir: PathBuf,
    host: &dyn Host,
    measuring: Measuring,
) -> Step<Option<Measure>> {
    let is_block = mount.is_block;
    run_blocking(host, move || {
        let usage = usage(is_block, &dir);
        drop(measuring);
        Ok(usage.map(Measure::from))
    })
    .await
}

fn usage(is_block: bool, dir: &Path) -> Option<Usage> {
    if is_block {
        use std::io::Seek;
        let mut device = fs::File::open(dir).ok()?;
        let capacity = device.seek(io::SeekFrom::End(0)).ok();
        return Some(Usage {
            capacity,
            ..Usage::default()
        });
    }
    let stat = rustix::fs::statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some(Usage {
        capacity: Some(bytes(stat.f_blocks)),
        available: Some(bytes(stat.f_bavail)),
        used: Some(bytes(stat.f_blocks.saturating_sub(stat.f_bfree))),
        inodes: Some(stat.f_files),
        inodes_free: Some(stat.f_ffree),
        inodes_used: Some(stat.f_files.saturating_sub(stat.f_ffree)),
    })
}
