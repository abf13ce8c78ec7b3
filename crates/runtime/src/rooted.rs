//! Accesses files inside a container's root file system, which is untrusted: symbolic links in it
//! may point anywhere. The kernel resolves every path as if the container's root were ours
//! (openat2).

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::{Mode, mkdirat},
};

/// The maximum size of a file that is read from an image.
const MAX_READ: u64 = 1 << 20;

/// Opens a path below `root`; links never lead out of it.
pub(crate) fn open(root: &Path, path: impl AsRef<Path>, flags: OFlag) -> io::Result<OwnedFd> {
    open_at(File::open(root)?.as_fd(), path.as_ref(), flags)
}

fn open_at(root: std::os::fd::BorrowedFd<'_>, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(resolve);
    Ok(openat2(root, path, how)?)
}

/// Reads a small regular file.
pub(crate) fn read_to_string(root: &Path, path: impl AsRef<Path>) -> io::Result<String> {
    // Never open pipes and devices of the image: opening a pipe blocks, and opening a watchdog arms it.
    let handle = File::from(open(root, path, OFlag::O_PATH)?);
    if !handle.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
    let mut text = String::new();
    file.take(MAX_READ).read_to_string(&mut text)?;
    Ok(text)
}

/// The kernel's limit of links in a path.
const MAX_LINKS: usize = 40;

/// Resolves symbolic links as a process with this root would. Missing components are kept, so that
/// the target of a dangling link is found, too. Links are followed only where `follows` allows it,
/// since a path that a mount will cover is irrelevant for the container.
///
/// Only for roots that no other process writes to; use the result with functions that check again.
pub(crate) fn resolve(
    root: &Path,
    path: impl AsRef<Path>,
    follows: impl Fn(&Path) -> bool,
) -> io::Result<PathBuf> {
    let mut left: VecDeque<OsString> = parts(path.as_ref());
    let mut walked = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            walked.pop();
            continue;
        }
        walked.push(part);
        let place = root.join(walked.strip_prefix("/").unwrap_or(&walked));
        let Ok(target) = std::fs::read_link(place) else {
            continue;
        };
        if !follows(&walked) {
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        walked.pop();
        if target.is_absolute() {
            walked = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            left.push_front(part);
        }
    }
    Ok(walked)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}

/// Creates a directory and its parents. Existing ones are kept.
pub(crate) fn create_dir_all(root: &Path, path: impl AsRef<Path>) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let root = File::open(root)?;
    let mut here = open_at(root.as_fd(), Path::new("/"), flags)?;
    let mut walked = Path::new("/").to_path_buf();
    for component in path.as_ref().components() {
        let Component::Normal(name) = component else {
            continue;
        };
        walked.push(name);
        here = match open_at(root.as_fd(), &walked, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mkdirat(here.as_fd(), name, Mode::from_bits_retain(0o755))?;
                open_at(root.as_fd(), &walked, flags)?
            }
            opened => opened?,
        };
    }
    Ok(())
}

/// Creates an empty file and its parent directories. An existing file is kept.
pub(crate) fn create_file(root: &Path, path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    create_dir_all(root, parent)?;
    let parent = open(root, parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    match openat(parent.as_fd(), name, flags, Mode::from_bits_retain(0o644)) {
        Ok(_) | Err(nix::Error::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_do_not_lead_out_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        std::fs::write(root.join("etc/real"), "inside").unwrap();
        symlink("../../secret", root.join("etc/passwd")).unwrap();
        symlink("/etc/real", root.join("link")).unwrap();
        symlink("/../..", root.join("up")).unwrap();
        assert!(read_to_string(&root, "/etc/passwd").is_err());
        assert_eq!(read_to_string(&root, "/link").unwrap(), "inside");
        create_dir_all(&root, "/up/a/b").unwrap();
        assert!(root.join("a/b").is_dir());
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("passwd"), Mode::from_bits_retain(0o666)).unwrap();
        let refused = read_to_string(dir.path(), "/passwd").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn links_are_resolved_inside_the_root_also_when_they_dangle() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("etc")).unwrap();
        symlink("../run/stub.conf", root.join("etc/resolv.conf")).unwrap();
        symlink("/var/run", root.join("run")).unwrap();
        symlink("../../../../etc", root.join("out")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let resolved = |path: &str| resolve(root, path, |_| true);
        for (path, expected) in [
            ("/etc/resolv.conf", "/var/run/stub.conf"),
            ("/out/x/../y", "/etc/y"),
            ("/no/such", "/no/such"),
            ("/../../etc", "/etc"),
        ] {
            assert_eq!(resolved(path).unwrap(), Path::new(expected), "{path}");
        }
        assert!(resolved("/loop/x").is_err());
        let hidden = resolve(root, "/etc/resolv.conf", |at| !at.starts_with("/etc"));
        assert_eq!(hidden.unwrap(), Path::new("/etc/resolv.conf"));
    }
}
