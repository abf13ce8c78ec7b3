//! Resolves names of an archive below the root. Links are followed as in the container, and never
//! lead out.

use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, openat, readlinkat},
    sys::stat::{Mode, mkdirat},
};

use super::system;
use crate::error::{Error, Result};

/// The maximum number of links in a path.
const MAX_LINKS: u32 = 40;

/// The maximum length of a path.
const MAX_NAME: usize = 4096;

/// The maximum depth of a directory, links followed: one file is open for each level, and links could lead to a directory
/// many times deeper than a name can say.
const MAX_DEPTH: usize = 1024;

/// Opens a directory below the root one component at a time. Links are followed as in the
/// container, but one that climbs above the root is rejected.
pub(super) fn descend(root: &OwnedFd, path: &Path, create: bool) -> Result<OwnedFd> {
    let mut trail: Vec<OwnedFd> = vec![root.try_clone().map_err(Error::system("dup"))?];
    let mut left: Vec<OsString> = path.iter().rev().map(OsStr::to_owned).collect();
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            trail.pop();
            if trail.is_empty() {
                return Err(escape(path));
            }
            continue;
        }
        // The root is always there.
        let Some(here) = trail.last() else {
            return Err(escape(path));
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        if trail.len() > MAX_DEPTH {
            let message = format!("{}: directories are nested too deeply", path.display());
            return Err(Error::BadImage(message));
        }
        match openat(here.as_fd(), name.as_os_str(), flags, Mode::empty()) {
            Ok(next) => trail.push(next),
            Err(nix::Error::ENOENT) if create => {
                mkdirat(
                    here.as_fd(),
                    name.as_os_str(),
                    Mode::from_bits_truncate(0o755),
                )
                .map_err(system("mkdir"))?;
                left.push(name);
            }
            Err(nix::Error::ELOOP | nix::Error::ENOTDIR) => {
                let target =
                    readlinkat(here.as_fd(), name.as_os_str()).map_err(system("readlink"))?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::BadImage(format!(
                        "{}: too many links",
                        path.display()
                    )));
                }
                follow(Path::new(&target), &mut trail, &mut left);
            }
            Err(error) => return Err(system("open")(error)),
        }
    }
    trail.pop().ok_or_else(|| escape(path))
}

/// Puts a link's target in front of the rest of the path.
fn follow(target: &Path, trail: &mut Vec<OwnedFd>, left: &mut Vec<OsString>) {
    if target.is_absolute() {
        trail.truncate(1);
    }
    for component in target.components().rev() {
        match component {
            Component::Normal(name) => left.push(name.to_owned()),
            Component::ParentDir => left.push("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

fn escape(path: &Path) -> Error {
    Error::BadImage(format!(
        "{}: leads out of the image through a link",
        path.display()
    ))
}

/// The directory and the file name of an entry; `None` for the root.
pub(super) fn split(name: &Path) -> Result<Option<(PathBuf, OsString)>> {
    if name.as_os_str().len() > MAX_NAME {
        return Err(Error::BadImage(
            "a name is longer than the kernel takes".into(),
        ));
    }
    let mut parts = Vec::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_owned()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => {
                return Err(Error::BadImage(format!(
                    "{}: absolute path",
                    name.display()
                )));
            }
            Component::ParentDir => {
                return Err(Error::BadImage(format!(
                    "{}: path climbs with ..",
                    name.display()
                )));
            }
        }
    }
    let Some(last) = parts.pop() else {
        return Ok(None);
    };
    Ok(Some((parts.iter().collect(), last)))
}
