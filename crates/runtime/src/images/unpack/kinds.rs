//! Special entries: whiteouts, devices, hard links.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::{Mode, SFlag, mknodat},
    unistd::{LinkatFlags, UnlinkatFlags, linkat, unlinkat},
};
use tar::{Entry, EntryType};

use super::{Unpacker, paths, system};
use crate::{
    error::{Error, Result},
    remove_tree::remove_tree,
    rooted, xattrs,
};

/// The prefix of a whiteout: the name is deleted in the layers below.
pub(super) const WHITEOUT: &str = ".wh.";
/// An opaque whiteout: everything in this directory of the layers below is deleted.
pub(super) const OPAQUE: &str = ".wh..wh..opq";

pub(super) fn link_target(entry: &Entry<'_, impl Read>) -> Result<PathBuf> {
    let target = entry.link_name().map_err(Error::system("link name"))?;
    target
        .map(|target| target.into_owned())
        .ok_or_else(|| Error::BadImage("a link without a target".into()))
}

/// Removes an earlier entry of the same name.
pub(super) fn clear(parent: &OwnedFd, file: &OsStr) -> Result<()> {
    match unlinkat(parent.as_fd(), file, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(nix::Error::ENOENT) => Ok(()),
        Err(nix::Error::EISDIR) => {
            let place = format!("/proc/self/fd/{}", parent.as_raw_fd());
            remove_tree(&Path::new(&place).join(file)).map_err(Error::system("replace"))
        }
        Err(error) => Err(system("replace")(error)),
    }
}

/// Creates an overlayfs whiteout.
pub(super) fn whiteout(parent: &OwnedFd, hidden: &OsStr) -> Result<()> {
    if hidden.is_empty() || hidden == ".." || hidden == "." {
        return Err(Error::BadImage(format!("whiteout of {hidden:?}")));
    }
    clear(parent, hidden)?;
    mknodat(parent.as_fd(), hidden, SFlag::S_IFCHR, Mode::empty(), 0).map_err(system("whiteout"))
}

/// Marks a directory as opaque for overlayfs.
pub(super) fn opaque(parent: &OwnedFd) -> Result<()> {
    let place = format!("/proc/self/fd/{}", parent.as_raw_fd());
    xattrs::set(Path::new(&place), xattrs::OPAQUE, b"y").map_err(Error::system("attribute"))
}

pub(super) fn make_node(
    entry: &Entry<'_, impl Read>,
    parent: &OwnedFd,
    file: &OsStr,
    kind: EntryType,
) -> Result<()> {
    let header = entry.header();
    let number = |value: io::Result<Option<u32>>| {
        value
            .map_err(Error::system("device"))
            .map(Option::unwrap_or_default)
    };
    let (flag, device) = match kind {
        EntryType::Fifo => (SFlag::S_IFIFO, 0),
        _ => {
            let (major, minor) = (
                number(header.device_major())?,
                number(header.device_minor())?,
            );
            let flag = if kind == EntryType::Char {
                SFlag::S_IFCHR
            } else {
                SFlag::S_IFBLK
            };
            (flag, nix::sys::stat::makedev(major.into(), minor.into()))
        }
    };
    if flag == SFlag::S_IFCHR && device == 0 {
        return Err(Error::BadImage("a device 0:0 would hide a file".into()));
    }
    mknodat(
        parent.as_fd(),
        file,
        flag,
        Mode::from_bits_truncate(0o600),
        device,
    )
    .map_err(system("mknod"))
}

impl Unpacker {
    pub(super) fn make_hard_link(
        &mut self,
        parent: &OwnedFd,
        file: &OsStr,
        target: &Path,
    ) -> Result<()> {
        let Some((holder, name)) = paths::split(target)? else {
            return Err(Error::BadImage("a hard link to the root".into()));
        };
        if let Ok(holder) = paths::descend(&self.handle, &holder, false) {
            let (from, to) = (holder.as_fd(), parent.as_fd());
            match linkat(from, name.as_os_str(), to, file, LinkatFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(nix::Error::ENOENT) => {}
                Err(error) => return Err(system("link")(error)),
            }
        }
        self.copy_from_below(parent, file, target)
    }

    /// The target of a hard link is in a layer below: it is copied, as overlayfs would. Links have no content of their own,
    /// so the copy counts here.
    fn copy_from_below(&mut self, parent: &OwnedFd, file: &OsStr, target: &Path) -> Result<()> {
        let missing = || {
            let target = target.display();
            Error::BadImage(format!("hard link to {target}, which is missing"))
        };
        let mut source = self.find_below(target).ok_or_else(missing)?;
        let metadata = source.metadata().map_err(Error::system("stat"))?;
        self.count_bytes(metadata.len(), target)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(parent.as_fd(), file, flags, Mode::from_bits_truncate(0o600));
        let mut made = File::from(made.map_err(system("create"))?);
        io::copy(&mut source, &mut made).map_err(Error::system("write"))?;
        let [from, to] = [source.as_raw_fd(), made.as_raw_fd()]
            .map(|fd| PathBuf::from(format!("/proc/self/fd/{fd}")));
        std::os::unix::fs::fchown(&made, Some(metadata.uid()), Some(metadata.gid()))
            .and_then(|()| made.set_permissions(metadata.permissions()))
            .and_then(|()| xattrs::copy(&from, &to))
            .map_err(Error::system("finish"))
    }

    /// The target as a regular file, from the uppermost layer that has the name.
    fn find_below(&self, target: &Path) -> Option<File> {
        for layer in &self.lower {
            let Ok(found) = rooted::open(layer, target, OFlag::O_PATH | OFlag::O_NOFOLLOW) else {
                continue;
            };
            let kind = File::from(found).metadata().ok()?;
            if kind.file_type().is_char_device() || !kind.is_file() {
                // A whiteout, or nothing that can be linked to.
                return None;
            }
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
            return rooted::open(layer, target, flags).ok().map(File::from);
        }
        None
    }
}
