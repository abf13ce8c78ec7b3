//! File metadata: owner, mode, extended attributes, times.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::Path,
};

use nix::{
    fcntl::{AtFlags, OFlag, openat},
    sys::{
        stat::{Mode, UtimensatFlags, utimensat},
        time::TimeSpec,
    },
    unistd::{Gid, Uid, fchownat},
};
use tar::{Entry, EntryType};

use super::system;
use crate::{
    error::{Error, Result},
    xattrs,
};

pub(super) fn time_of(entry: &Entry<'_, impl Read>) -> TimeSpec {
    TimeSpec::new(
        entry.header().mtime().unwrap_or(0).try_into().unwrap_or(0),
        0,
    )
}

/// Owner first: chown clears set-user-id bits and file capabilities.
pub(super) fn finish(
    entry: &mut Entry<'_, impl Read>,
    parent: &OwnedFd,
    file: &OsStr,
    kind: EntryType,
    mode: Mode,
) -> Result<()> {
    // Builders leave fields blank for zero.
    let id = |value: io::Result<u64>| -> Result<u32> {
        let value = value.unwrap_or(0);
        u32::try_from(value).map_err(|_| Error::BadImage(format!("owner {value}")))
    };
    let (uid, gid) = (id(entry.header().uid())?, id(entry.header().gid())?);
    let dir = parent.as_fd();
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    fchownat(dir, file, owner.0, owner.1, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(system("chown"))?;
    if !kind.is_symlink() {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(dir, file, flags, Mode::empty()).map_err(system("open"))?;
        let place = format!("/proc/self/fd/{}", opened.as_raw_fd());
        fs::set_permissions(&place, fs::Permissions::from_mode(mode.bits()))
            .map_err(Error::system("chmod"))?;
        set_xattrs(entry, Path::new(&place))?;
    }
    let time = time_of(entry);
    utimensat(dir, file, &time, &time, UtimensatFlags::NoFollowSymlink).map_err(system("utimes"))
}

/// Sets extended attributes from PAX headers, except those that overlayfs interprets.
fn set_xattrs(entry: &mut Entry<'_, impl Read>, place: &Path) -> Result<()> {
    let Some(extensions) = entry.pax_extensions().map_err(Error::system("headers"))? else {
        return Ok(());
    };
    for extension in extensions.flatten() {
        let Some(name) = extension
            .key()
            .ok()
            .and_then(|key| key.strip_prefix("SCHILY.xattr."))
        else {
            continue;
        };
        if xattrs::is_overlay(name) {
            return Err(Error::BadImage(format!("attribute {name} is not allowed")));
        }
        if let Err(error) = xattrs::set(place, name, extension.value_bytes()) {
            // A file system may not support an attribute, but capabilities must be kept.
            if name == "security.capability" || error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                return Err(Error::system::<io::Error>(format!("attribute {name}"))(
                    error,
                ));
            }
        }
    }
    Ok(())
}
