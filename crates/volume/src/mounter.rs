//! The mount operations that volumes need, behind a trait so that tests mount nothing.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::{Error, MountOptions, Result};

/// Mounts and unmounts.
pub trait Mounter: Send + Sync {
    /// Mounts a tmpfs on `dir`, at most `size` bytes if given.
    fn tmpfs(&self, dir: &Path, size: Option<u64>) -> Result<()>;
    /// Bind mounts the file of a descriptor onto `target`.
    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path) -> Result<()>;
    /// Bind mounts the file of a descriptor onto `target`, with the flags of `options`.
    fn bind(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> Result<()>;
    /// Mounts a file system of this type.
    fn mount(&self, source: &Path, target: &Path, kind: &str, options: &MountOptions)
    -> Result<()>;
    /// Unmounts `dir`; no mount is no error. Fails while it is in use.
    fn unmount_unused(&self, dir: &Path) -> Result<()>;
    /// Unmounts `dir` lazily: it disappears at once, and is released when no longer in use. No
    /// mount is no error.
    fn unmount(&self, dir: &Path) -> Result<()>;
    /// Whether `dir` is a mount point.
    fn is_mounted(&self, dir: &Path) -> Result<bool>;
}

/// The real mounter.
#[derive(Debug, Default, Clone, Copy)]
pub struct LinuxMounter;

impl Mounter for LinuxMounter {
    fn tmpfs(&self, dir: &Path, size: Option<u64>) -> Result<()> {
        let options = size
            .map(|size| format!("size={size}\0"))
            .unwrap_or_else(|| "\0".to_owned());
        // The string above ends with its only NUL.
        let data = std::ffi::CString::from_vec_with_nul(options.into_bytes()).unwrap_or_default();
        rustix::mount::mount("tmpfs", dir, "tmpfs", MountFlags::empty(), data.as_c_str())
            .map_err(|errno| Error::io("mount tmpfs on", dir)(errno.into()))
    }

    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path) -> Result<()> {
        let source = format!("/proc/self/fd/{}", source.as_raw_fd());
        rustix::mount::mount_bind(&source, target)
            .map_err(|errno| Error::io("bind mount onto", target)(errno.into()))
    }

    fn bind(&self, source: BorrowedFd<'_>, target: &Path, options: &MountOptions) -> Result<()> {
        self.bind_fd(source, target)?;
        if options.flags.is_empty() {
            return Ok(());
        }
        // Restrictions of the source's mount are kept.
        let remounted = restrictions(target).and_then(|kept| {
            let flags = options.flags | kept | MountFlags::BIND;
            rustix::mount::mount_remount(target, flags, c"")
        });
        remounted.map_err(|errno| {
            // Do not leave a mount with too few restrictions.
            let _ = self.unmount(target);
            Error::io("set mount options of", target)(errno.into())
        })
    }

    fn mount(
        &self,
        source: &Path,
        target: &Path,
        kind: &str,
        options: &MountOptions,
    ) -> Result<()> {
        let invalid = |_| {
            let invalid = std::io::ErrorKind::InvalidInput;
            Error::io("mount on", target)(invalid.into())
        };
        let data = std::ffi::CString::new(options.data.clone()).map_err(invalid)?;
        rustix::mount::mount(source, target, kind, options.flags, data.as_c_str())
            .map_err(|errno| Error::io("mount on", target)(errno.into()))
    }

    fn unmount_unused(&self, dir: &Path) -> Result<()> {
        match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
            Ok(()) => self.unmount_unused(dir),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("unmount", dir)(errno.into())),
        }
    }

    fn unmount(&self, dir: &Path) -> Result<()> {
        match rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => self.unmount(dir),
            // Not a mount point, or missing.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("unmount", dir)(errno.into())),
        }
    }

    fn is_mounted(&self, dir: &Path) -> Result<bool> {
        crate::tree::is_mount_point(dir)
    }
}

/// The restrictive flags of a mount.
fn restrictions(target: &Path) -> rustix::io::Result<MountFlags> {
    use rustix::fs::StatVfsMountFlags as Now;
    let now = rustix::fs::statvfs(target)?.f_flag;
    let all = [
        (Now::RDONLY, MountFlags::RDONLY),
        (Now::NOSUID, MountFlags::NOSUID),
        (Now::NODEV, MountFlags::NODEV),
        (Now::NOEXEC, MountFlags::NOEXEC),
    ];
    let set = all.into_iter().filter(|(is, _)| now.contains(*is));
    Ok(set.map(|(_, flag)| flag).collect())
}
