//! fsGroup: changes a volume's files to a group that all of the pod's processes are in.

use std::{
    ffi::CString,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, RawDir, SeekFrom},
    io::Errno,
};
use tracing::debug;

use crate::{Error, Result};

/// The pod's fsGroup.
pub(crate) fn fs_group(pod: &Pod) -> Option<u32> {
    pod.spec
        .as_ref()?
        .security_context
        .as_ref()?
        .fs_group
        .and_then(|id| u32::try_from(id).ok())
}

/// The user that all containers run as, if it is the same.
pub(crate) fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|context| context.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|container| {
            container
                .security_context
                .as_ref()
                .and_then(|context| context.run_as_user)
                .or(of_pod)
        });
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())
        .flatten()
}

/// Applies the pod's fsGroup to a volume, as its fsGroupChangePolicy says.
pub(crate) fn apply_fs_group(dir: &Path, pod: &Pod, read_only: bool) -> Result<()> {
    match fs_group(pod) {
        Some(_) => apply_fs_group_to(open(dir)?.as_fd(), dir, pod, read_only),
        None => Ok(()),
    }
}

/// The same for the descriptor of a volume that is not mounted in the pod's directory yet.
pub(crate) fn apply_fs_group_to(
    volume: BorrowedFd<'_>,
    dir: &Path,
    pod: &Pod,
    read_only: bool,
) -> Result<()> {
    let Some(group) = fs_group(pod) else {
        return Ok(());
    };
    let context = pod.spec.as_ref();
    let context = context.and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
    if policy == Some("OnRootMismatch") && is_of_group(volume, group, read_only) {
        return Ok(());
    }
    Change::new(group, read_only).volume(volume, dir)
}

/// Whether the root of a volume has the state that [`give_to_group`] leaves.
fn is_of_group(volume: BorrowedFd<'_>, group: u32, read_only: bool) -> bool {
    let wanted = if read_only { 0o2550 } else { 0o2770 };
    rustix::fs::fstat(volume)
        .is_ok_and(|stat| stat.st_gid == group && stat.st_mode & wanted == wanted)
}

/// Changes group and group bits of everything in `dir`, and then of `dir` itself: it shows that all
/// of it was changed. A file that cannot be changed is skipped, as by upstream; for example on a
/// file system without groups.
///
/// Everything is changed through a descriptor, so that replacing a file by a link has no effect
/// elsewhere. At most three descriptors are open, however deep the tree, and only a few names of
/// each directory are kept, however many there are: the pods that write to a volume decide both.
pub fn give_to_group(dir: &Path, group: u32, read_only: bool) -> Result<()> {
    Change::new(group, read_only).volume(open(dir)?.as_fd(), dir)
}

fn open(dir: &Path) -> Result<OwnedFd> {
    rustix::fs::open(dir, HANDLE, Mode::empty())
        .map_err(|errno| Error::io("give to a group", dir)(errno.into()))
}

/// Directories nested deeper are an error: each level takes memory.
const MAX_DEPTH: usize = 32_768;
/// The size of what is read of a directory at a time: enough for at least ten entries.
const BUFFER: usize = 4096;

const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ENTER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory on the path.
struct Level {
    identity: (u64, u64),
    /// The directories among the entries that were read and are still to be visited.
    left: Vec<CString>,
    /// The position after these entries; `None` at the end.
    next: Option<u64>,
}

impl Level {
    fn new(dir: &OwnedFd) -> rustix::io::Result<Self> {
        Ok(Self {
            identity: identity(dir)?,
            left: Vec::new(),
            next: Some(0),
        })
    }
}

struct Change {
    group: Gid,
    bits: u32,
    max_depth: usize,
}

impl Change {
    fn new(group: u32, read_only: bool) -> Self {
        Self {
            group: Gid::from_raw(group),
            bits: if read_only { 0o440 } else { 0o660 },
            max_depth: MAX_DEPTH,
        }
    }

    fn volume(&self, volume: BorrowedFd<'_>, dir: &Path) -> Result<()> {
        let fail = |errno: Errno| Error::io("give to a group", dir)(errno.into());
        if kind(volume).map_err(fail)?.0 == FileType::Directory {
            let top = rustix::fs::openat(volume, ".", ENTER, Mode::empty()).map_err(fail)?;
            self.walk(top).map_err(fail)?;
        }
        self.apply(volume).map_err(fail)?;
        Ok(())
    }

    fn walk(&self, top: OwnedFd) -> rustix::io::Result<()> {
        let mut levels = vec![Level::new(&top)?];
        let mut here = top;
        while let Some(level) = levels.last_mut() {
            if let Some(below) = self.next_directory(&here, level)? {
                if levels.len() >= self.max_depth {
                    return Err(Errno::NAMETOOLONG);
                }
                levels.push(Level::new(&below)?);
                here = below;
                continue;
            }
            levels.pop();
            let Some(above) = levels.last() else { break };
            here = rustix::fs::openat(&here, "..", ENTER, Mode::empty())?;
            if identity(&here)? != above.identity {
                // It was moved, and may now be outside the volume.
                return Err(Errno::STALE);
            }
        }
        Ok(())
    }

    /// Opens the next subdirectory, after changing the entries up to it.
    fn next_directory(
        &self,
        dir: &OwnedFd,
        level: &mut Level,
    ) -> rustix::io::Result<Option<OwnedFd>> {
        loop {
            while let Some(name) = level.left.pop() {
                match rustix::fs::openat(dir, &name, ENTER, Mode::empty()) {
                    Ok(below) => return Ok(Some(below)),
                    // Gone or replaced meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(errno),
                }
            }
            let Some(position) = level.next else {
                return Ok(None);
            };
            rustix::fs::seek(dir, SeekFrom::Start(position))?;
            self.change_some(dir, level)?;
        }
    }

    /// Changes the next entries, up to the end of what was read with the first subdirectory.
    fn change_some(&self, dir: &OwnedFd, level: &mut Level) -> rustix::io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(dir, &mut buffer);
        while level.left.is_empty() || !entries.is_buffer_empty() {
            let Some(entry) = entries.next() else {
                level.next = None;
                return Ok(());
            };
            let entry = entry?;
            level.next = Some(entry.next_entry_cookie());
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match rustix::fs::openat(dir, name, HANDLE, Mode::empty()) {
                Ok(child) if self.apply(child.as_fd())? => level.left.push(name.to_owned()),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Changes one file; returns whether it is a directory.
    fn apply(&self, file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
        let (kind, mode) = kind(file)?;
        let owned = rustix::fs::chownat(file, "", None, Some(self.group), AtFlags::EMPTY_PATH);
        if let Err(error) = owned {
            debug!(%error, "cannot change the group of a file");
        }
        if kind == FileType::Symlink {
            return Ok(false);
        }
        let is_dir = kind == FileType::Directory;
        let bits = if is_dir {
            self.bits | 0o2110
        } else {
            self.bits
        };
        // fchmod does not work on an O_PATH descriptor; its link in /proc leads to exactly this
        // file.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let changed = rustix::fs::chmod(link, Mode::from_raw_mode(mode | bits));
        if let Err(error) = changed {
            debug!(%error, "cannot change the mode of a file");
        }
        Ok(is_dir)
    }
}

/// A file's type and permissions.
fn kind(file: BorrowedFd<'_>) -> rustix::io::Result<(FileType, u32)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((FileType::from_raw_mode(stat.st_mode), stat.st_mode & 0o7777))
}

fn identity(dir: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_user_exists_only_when_all_containers_agree() {
        let pod = |json| serde_json::from_value::<Pod>(json).unwrap();
        let agree = pod(
            serde_json::json!({"spec": {"securityContext": {"runAsUser": 7},
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 7}}]}}),
        );
        assert_eq!(common_user(&agree), Some(7));
        let differ = pod(serde_json::json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 7}}]}}));
        assert_eq!(common_user(&differ), None);
    }

    #[test]
    fn a_volume_whose_top_has_the_group_is_left_alone_where_the_policy_says_so() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("f");
        std::fs::write(&file, "").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let group = rustix::process::getgid().as_raw();
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [],
            "securityContext": {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"}}}))
        .unwrap();
        set(root.path(), 0o2770);
        set(&file, 0o600);
        apply_fs_group(root.path(), &pod, false).unwrap();
        assert_eq!(mode(&file), 0o600);
        set(root.path(), 0o770);
        apply_fs_group(root.path(), &pod, false).unwrap();
        assert_eq!((mode(&file), mode(root.path())), (0o660, 0o2770));
    }

    #[test]
    fn files_get_the_group_and_links_are_not_followed() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let root = tempfile::tempdir().unwrap();
        let (dir, outside) = (root.path().join("v"), root.path().join("outside"));
        std::fs::create_dir(&dir).unwrap();
        for file in [&outside, &dir.join("f")] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, dir.join("link")).unwrap();
        // Every user may change files to their own group.
        let group = rustix::process::getgid().as_raw();
        give_to_group(&dir, group, false).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&dir.join("f")), 0o660);
        assert_eq!(mode(&dir) & 0o2770, 0o2770);
        assert_eq!(mode(&outside), 0o600);
    }

    #[test]
    fn every_file_of_a_wide_and_deep_tree_is_changed_and_one_that_is_too_deep_is_an_error() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let root = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        // Several times what is read at once, and as many levels.
        for index in 0..200 {
            let dir = root.path().join(format!("{}{index}", "d".repeat(100)));
            std::fs::create_dir_all(dir.join("e")).unwrap();
            files.extend([
                dir.join("f"),
                dir.join("e/f"),
                root.path().join(index.to_string()),
            ]);
        }
        let mut deep = root.path().join("deep");
        for _ in 0..200 {
            std::fs::create_dir(&deep).unwrap();
            files.push(deep.join("f"));
            deep.push("d");
        }
        for file in &files {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        }
        let group = rustix::process::getgid();
        give_to_group(root.path(), group.as_raw(), false).unwrap();
        for file in &files {
            let mode = std::fs::metadata(file).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o660, "{}", file.display());
        }
        let change = |max_depth| Change {
            max_depth,
            ..Change::new(group.as_raw(), false)
        };
        let top = || rustix::fs::open(root.path(), ENTER, Mode::empty()).unwrap();
        // 200 below the root.
        assert_eq!(change(201).walk(top()), Ok(()));
        assert_eq!(change(200).walk(top()), Err(Errno::NAMETOOLONG));
    }

    #[test]
    fn the_root_of_a_volume_has_the_group_only_when_all_of_it_was_changed() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let group = rustix::process::getgid().as_raw();
        let mode = || std::fs::metadata(root.path()).unwrap().mode() & 0o7777;
        let interrupted = Change {
            max_depth: 2,
            ..Change::new(group, false)
        };
        let opened = || open(root.path()).unwrap();
        interrupted
            .volume(opened().as_fd(), root.path())
            .unwrap_err();
        // Otherwise OnRootMismatch would skip the rest at the next attempt.
        assert_eq!(mode(), 0o700);
        assert!(!is_of_group(opened().as_fd(), group, false));
        give_to_group(root.path(), group, false).unwrap();
        assert_eq!(mode(), 0o2770);
        assert!(is_of_group(opened().as_fd(), group, false));
    }
}
