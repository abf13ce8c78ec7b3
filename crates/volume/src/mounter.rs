//! The few mount operations that volumes need, behind a trait so that tests mount nothing.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::{Error, Result};

/// Mounts and unmounts.
pub trait Mounter: Send + Sync {
    /// Mounts a tmpfs on `dir`, at most `size` bytes if given.
    fn tmpfs(&self, dir: &Path, size: Option<u64>) -> Result<()>;
    /// Binds what an open descriptor refers to onto `target`.
    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path) -> Result<()>;
    /// Unmounts `dir`; fine if nothing is mounted there.
    fn unmount(&self, dir: &Path) -> Result<()>;
    /// Whether `dir` is a mount point.
    fn is_mounted(&self, dir: &Path) -> Result<bool>;
}

/// The kernel's own.
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

    fn unmount(&self, dir: &Path) -> Result<()> {
        match rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => self.unmount(dir),
            // Not a mount point, or not there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("unmount", dir)(errno.into())),
        }
    }

    fn is_mounted(&self, dir: &Path) -> Result<bool> {
        crate::tree::is_mount_point(dir)
    }
}
