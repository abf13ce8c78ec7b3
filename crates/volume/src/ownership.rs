//! fsGroup: changes a volume's files to a group that all of the pod's processes are in.

use std::{
    ffi::CString,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;
use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags},
    io::Errno,
};

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
    let Some(group) = fs_group(pod) else {
        return Ok(());
    };
    let context = pod.spec.as_ref();
    let context = context.and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
    if policy == Some("OnRootMismatch") && is_of_group(dir, group, read_only) {
        return Ok(());
    }
    give_to_group(dir, group, read_only)
}

/// Whether the root of a volume has the state that [`give_to_group`] leaves.
fn is_of_group(dir: &Path, group: u32, read_only: bool) -> bool {
    let wanted = if read_only { 0o2550 } else { 0o2770 };
    rustix::fs::stat(dir).is_ok_and(|stat| stat.st_gid == group && stat.st_mode & wanted == wanted)
}

/// Changes group and group bits of everything in `dir`, and of `dir` itself. Everything is changed
/// through a descriptor, so that replacing a file by a link has no effect elsewhere. At most two
/// descriptors are open, however deep the tree.
pub fn give_to_group(dir: &Path, group: u32, read_only: bool) -> Result<()> {
    let change = Change {
        group: Gid::from_raw(group),
        bits: if read_only { 0o440 } else { 0o660 },
    };
    let fail = |errno: Errno| Error::io("give to a group", dir)(errno.into());
    let opened = rustix::fs::open(dir, HANDLE, Mode::empty()).map_err(fail)?;
    if !change.apply(&opened).map_err(fail)? {
        return Ok(());
    }
    let flags = ENTER & !OFlags::NOFOLLOW;
    let top = rustix::fs::openat(&opened, ".", flags, Mode::empty()).map_err(fail)?;
    change.walk(top).map_err(fail)
}

const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const ENTER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory on the path: its identity, and what is still to be visited in it.
struct Level {
    identity: (u64, u64),
    left: Vec<CString>,
}

struct Change {
    group: Gid,
    bits: u32,
}

impl Change {
    fn walk(&self, top: OwnedFd) -> rustix::io::Result<()> {
        let mut here = top;
        let mut levels = vec![self.enter(&here)?];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.left.pop() {
                match rustix::fs::openat(&here, &name, ENTER, Mode::empty()) {
                    Ok(below) => {
                        levels.push(self.enter(&below)?);
                        here = below;
                    }
                    // Gone or replaced meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(errno),
                }
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

    /// Changes the entries of a directory; returns its subdirectories to visit.
    fn enter(&self, dir: &OwnedFd) -> rustix::io::Result<Level> {
        let mut level = Level {
            identity: identity(dir)?,
            left: Vec::new(),
        };
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match rustix::fs::openat(dir, name, HANDLE, Mode::empty()) {
                Ok(child) if self.apply(&child)? => level.left.push(name.to_owned()),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(level)
    }

    /// Changes one file; returns whether it is a directory.
    fn apply(&self, handle: &OwnedFd) -> rustix::io::Result<bool> {
        let stat = rustix::fs::fstat(handle)?;
        rustix::fs::chownat(handle, "", None, Some(self.group), AtFlags::EMPTY_PATH)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
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
        let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | bits);
        rustix::fs::chmod(link, mode)?;
        Ok(is_dir)
    }
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
}
