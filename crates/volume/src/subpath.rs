//! subPath mounts: a part of a volume, resolved so that a link in the volume cannot lead out of it.
//!
//! The kernel resolves the path with `RESOLVE_BENEATH`, and the descriptor is bind mounted to a
//! path of the pod's own; the runtime only ever sees that path.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{Error, Mounter, Result, payload};

const DIR: &str = "volume-subpaths";

/// Bind mounts `sub` of `volume` for the `index`th mount of a container; returns the path for the
/// runtime.
pub fn prepare(
    pod_dir: &Path,
    volume_name: &str,
    container: &str,
    index: usize,
    volume: &Path,
    sub: &str,
    mounter: &dyn Mounter,
) -> Result<PathBuf> {
    let relative = sub.trim_end_matches('/');
    payload_path(relative)?;
    let source = open_beneath(volume, relative)?;
    let target = pod_dir
        .join(DIR)
        .join(volume_name)
        .join(container)
        .join(index.to_string());
    make_target(&target, &source)?;
    if mounter.is_mounted(&target)? {
        mounter.unmount(&target)?;
    }
    mounter.bind_fd(source.as_fd(), &target)?;
    Ok(target)
}

fn payload_path(path: &str) -> Result<()> {
    match payload::check_path(path) {
        // A subPath may name the atomic writer's own files; only leaving the volume is rejected.
        Err(Error::InvalidPath {
            why: "must not start with '..'",
            ..
        }) => Ok(()),
        other => other,
    }
}

/// Opens `relative` in `root`, creating missing directories, never leaving `root`.
fn open_beneath(root: &Path, relative: &str) -> Result<OwnedFd> {
    let full = root.join(relative);
    let fail = |errno: rustix::io::Errno| Error::io("open subPath", &full)(errno.into());
    let open = |path: &str| {
        let root = rustix::fs::open(
            root,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        rustix::fs::openat2(
            &root,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        )
    };
    match open(relative) {
        Err(Errno::NOENT) => {}
        other => return other.map_err(fail),
    }
    // The same mode as the volume: the container's user need not be root.
    let stat = rustix::fs::stat(root).map_err(fail)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let mut done = String::new();
    for part in relative
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
    {
        let parent = if done.is_empty() { "." } else { &done };
        let parent = open(parent).map_err(fail)?;
        match make_dir(&parent, part, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        done = if done.is_empty() {
            part.to_owned()
        } else {
            format!("{done}/{part}")
        };
    }
    open(relative).map_err(fail)
}

/// Creates a directory with exactly this mode, whatever the umask.
fn make_dir(parent: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<()> {
    rustix::fs::mkdirat(parent, name, mode)?;
    let made = rustix::fs::openat2(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )?;
    rustix::fs::fchmod(made, mode)
}

fn make_target(target: &Path, source: &OwnedFd) -> Result<()> {
    let stat = rustix::fs::fstat(source).map_err(|e| Error::io("stat", target)(e.into()))?;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let parent = if is_dir {
        Some(target)
    } else {
        target.parent()
    };
    if let Some(parent) = parent {
        std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    if !is_dir && !target.exists() {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, target, flags, Mode::from_raw_mode(0o640))
            .map_err(|errno| Error::io("create", target)(errno.into()))?;
    }
    Ok(())
}

/// Unmounts and removes all subPath mounts of a pod.
pub fn clean_up(pod_dir: &Path, mounter: &dyn Mounter) -> Result<()> {
    let root = pod_dir.join(DIR);
    for volume in crate::entries(&root)? {
        for container in crate::entries(&volume)? {
            for mount in crate::entries(&container)? {
                mounter.unmount(&mount)?;
            }
        }
    }
    crate::remove_tree(&root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeMounter;

    #[test]
    fn a_link_that_leads_out_of_the_volume_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("out")).unwrap();
        std::os::unix::fs::symlink("in", volume.join("fine")).unwrap();
        std::fs::create_dir(volume.join("in")).unwrap();
        let mounter = FakeMounter::default();
        let try_path = |sub: &str| prepare(dir.path(), "v", "c", 0, &volume, sub, &mounter);
        assert!(try_path("out").is_err());
        assert!(try_path("../x").is_err());
        assert!(try_path("fine").is_ok());
        assert!(try_path("new/deep").is_ok());
        assert!(volume.join("new/deep").is_dir());
        clean_up(dir.path(), &mounter).unwrap();
        assert!(mounter.0.lock().is_empty());
    }

    #[test]
    fn directories_that_are_made_have_the_mode_of_the_volume() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        for mode in [0o777, 0o2770] {
            std::fs::set_permissions(&volume, PermissionsExt::from_mode(mode)).unwrap();
            let sub = format!("{mode:o}/deep");
            prepare(
                dir.path(),
                "v",
                "c",
                0,
                &volume,
                &sub,
                &FakeMounter::default(),
            )
            .unwrap();
            for path in [format!("{mode:o}"), sub] {
                let made = std::fs::metadata(volume.join(&path)).unwrap().mode();
                assert_eq!(made & 0o7777, mode, "{path}");
            }
        }
    }
}
