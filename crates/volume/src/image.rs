//! A volume of a fixed size in an image file: its blocks are allocated when it is created, so that
//! its pods cannot use more of the node's disk, and others cannot use its space.

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
    mount::MountFlags,
};
use tracing::warn;

use crate::{Error, MountOptions, Mounter, Result, format, loop_device};

/// The file in the volume's directory.
const FILE: &str = "volume.img";
/// Exists while the image may be larger than the file system in it.
const GROWING: &str = "volume.img.growing";
const KIND: &str = "ext4";

/// Mounts the image of a directory; creates it if it is missing. A crash leaves no half-made one.
pub(crate) async fn mount(
    dir: &Path,
    bytes: u64,
    target: &Path,
    options: &MountOptions,
    mounter: &dyn Mounter,
) -> std::result::Result<(), String> {
    let said = |error: Error| error.to_string();
    let file = ensure(dir, bytes).await?;
    let size = fs::metadata(&file).map_or(0, |meta| meta.len());
    let must_grow = size < bytes || exists(&dir.join(GROWING)).map_err(said)?;
    let device = match loop_device::of_file(&file).map_err(said)? {
        // Still mounted elsewhere: it is the same file system, which can only be expanded after it was mounted.
        Some(device) => device,
        None => {
            if must_grow && !options.flags.contains(MountFlags::RDONLY) {
                begin_growth(dir, bytes).map_err(said)?;
                format::grow_unmounted(&file).await?;
                end_growth(dir).map_err(said)?;
            }
            loop_device::attach(&file).map_err(said)?
        }
    };
    mounter
        .mount(&device.path, target, KIND, options)
        .map_err(said)?;
    open_to_all(target).map_err(said)
}

fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(Error::io("look at", path))
}

async fn ensure(dir: &Path, bytes: u64) -> std::result::Result<PathBuf, String> {
    let (file, fresh) = (dir.join(FILE), dir.join(format!("{FILE}.new")));
    // An error must not be taken for a new volume: its image would replace the data.
    if exists(&file).map_err(|error| error.to_string())? {
        return Ok(file);
    }
    let made = make(&fresh, bytes).await.and_then(|()| {
        let renamed = fs::rename(&fresh, &file);
        renamed.map_err(|error| Error::io("rename", &fresh)(error).to_string())
    });
    if let Err(why) = made {
        // There is no space for it: free what was allocated.
        let _ = fs::remove_file(&fresh);
        return Err(why);
    }
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| Error::io("sync", dir)(error).to_string())?;
    Ok(file)
}

async fn make(file: &Path, bytes: u64) -> std::result::Result<(), String> {
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(file);
    let made = made.map_err(|error| Error::io("create", file)(error).to_string())?;
    reserve(&made, bytes, file).map_err(|error| error.to_string())?;
    format::ensure(file, KIND, false).await?;
    let synced = made.sync_all();
    synced.map_err(|error| Error::io("sync", file)(error).to_string())
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.map_err(Error::io("open", path))
}

/// Allocates the blocks of a file up to a size. If there is too little space, nothing of it is taken, not even for a
/// moment: other pods and the node itself need it.
fn reserve(file: &File, bytes: u64, path: &Path) -> Result<()> {
    let failed = |errno: Errno| Error::io("reserve the capacity of", path)(errno.into());
    let size = file.metadata().map_err(Error::io("look at", path))?.len();
    let disk = rustix::fs::fstatvfs(file).map_err(failed)?;
    let available = disk.f_bavail.saturating_mul(disk.f_frsize);
    if bytes.saturating_sub(size) > available {
        return Err(failed(Errno::NOSPC));
    }
    fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(|errno| {
        // File systems keep what they allocated before the error.
        if let Err(error) = file.set_len(size) {
            warn!(file = %path.display(), %error, "cannot free what was allocated");
        }
        failed(errno)
    })
}

/// A new volume is writable for every user, like a plain directory. What is in it otherwise is the
/// pods', also in `lost+found`.
fn open_to_all(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let lost = dir.join("lost+found");
    let is_empty = || {
        let is_dir = fs::symlink_metadata(&lost).is_ok_and(|found| found.is_dir());
        is_dir && crate::entries(&lost).is_ok_and(|inside| inside.is_empty())
    };
    if crate::entries(dir)? != [lost.clone()] || !is_empty() {
        return Ok(());
    }
    let mode = fs::Permissions::from_mode(0o777);
    fs::set_permissions(dir, mode).map_err(Error::io("open", dir))?;
    fs::remove_dir(&lost).map_err(Error::io("remove", &lost))
}

/// Expands the image of a directory while it is mounted.
pub(crate) async fn grow(
    dir: &Path,
    bytes: u64,
    mounted: &Path,
) -> std::result::Result<(), String> {
    let said = |error: Error| error.to_string();
    begin_growth(dir, bytes).map_err(said)?;
    let device = loop_device::mounted_on(mounted).map_err(said)?;
    loop_device::grow(&device).map_err(said)?;
    format::grow(&device, mounted).await?;
    end_growth(dir).map_err(said)
}

/// Expands the image file only. If expanding the file system in it fails or is interrupted, the
/// next mount does it.
fn begin_growth(dir: &Path, bytes: u64) -> Result<()> {
    let (path, growing) = (dir.join(FILE), dir.join(GROWING));
    let file = open(&path)?;
    File::create(&growing).map_err(Error::io("create", &growing))?;
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(Error::io("sync", dir))?;
    let size = file.metadata().map_or(0, |meta| meta.len());
    if size < bytes {
        reserve(&file, bytes, &path)?;
    }
    Ok(())
}

fn end_growth(dir: &Path) -> Result<()> {
    let growing = dir.join(GROWING);
    fs::remove_file(&growing).map_err(Error::io("remove", &growing))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_new_volume_is_opened_to_all() {
        let root = tempfile::tempdir().unwrap();
        let volume = |name: &str| {
            let dir = root.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
            dir
        };
        let is_opened = |dir: &Path| {
            open_to_all(dir).unwrap();
            fs::metadata(dir).unwrap().permissions().mode() & 0o777 == 0o777
        };
        let new = volume("new");
        fs::create_dir(new.join("lost+found")).unwrap();
        assert!(is_opened(&new) && !new.join("lost+found").exists());
        let (full, link, file) = (volume("full"), volume("link"), volume("file"));
        fs::create_dir_all(full.join("lost+found/data")).unwrap();
        symlink(&new, link.join("lost+found")).unwrap();
        fs::write(file.join("lost+found"), "").unwrap();
        for dir in [full, link, file, volume("empty")] {
            assert!(!is_opened(&dir), "{}", dir.display());
        }
    }
}
