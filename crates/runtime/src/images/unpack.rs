//! Unpacking a layer's archive into a directory that overlayfs can use as a lower one. The archive
//! is not trusted: names that are absolute or climb, links that lead out, and content beyond limits
//! are refused, and nothing is ever written outside the directory.

use std::{
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{AtFlags, OFlag, openat, readlinkat},
    sys::{
        stat::{Mode, SFlag, UtimensatFlags, fchmod, mkdirat, mknodat, utimensat},
        time::TimeSpec,
    },
    unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat},
};
use tar::{Archive, Entry, EntryType};

use crate::{
    error::{Error, Result},
    rooted,
};

/// What an image may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of one layer, unpacked.
    pub bytes: u64,
    /// Files of one layer.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 64 << 30,
            entries: 4 << 20,
        }
    }
}

/// How many links a path may go through.
const MAX_LINKS: u32 = 40;

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// Unpacks one layer.
pub(super) struct Unpacker {
    root: PathBuf,
    handle: OwnedFd,
    /// Layers below, the uppermost first: hard links may name their files.
    lower: Vec<PathBuf>,
    limits: Limits,
    bytes: u64,
    entries: u64,
    /// Directories get their times when nothing changes in them any more.
    directories: Vec<(PathBuf, TimeSpec)>,
}

impl Unpacker {
    pub fn new(root: &Path, lower: Vec<PathBuf>, limits: Limits) -> Result<Self> {
        fs::create_dir_all(root).map_err(Error::file(root))?;
        let handle = File::open(root).map_err(Error::file(root))?.into();
        let root = root.to_path_buf();
        Ok(Self {
            root,
            handle,
            lower,
            limits,
            bytes: 0,
            entries: 0,
            directories: Vec::new(),
        })
    }

    pub fn unpack(mut self, content: impl Read) -> Result<()> {
        let mut archive = Archive::new(content);
        let wrong = |error: io::Error| Error::BadImage(format!("archive: {error}"));
        for entry in archive.entries().map_err(wrong)? {
            let mut entry = entry.map_err(wrong)?;
            let name = entry.path().map_err(wrong)?.into_owned();
            self.count(&entry, &name)?;
            self.place(&mut entry, &name).map_err(|error| match error {
                Error::BadImage(_) => error,
                other => Error::BadImage(format!("{}: {other}", name.display())),
            })?;
        }
        for (path, time) in self.directories.iter().rev() {
            if let Ok(directory) = rooted::open(&self.root, path, OFlag::O_RDONLY) {
                let _ = nix::sys::stat::futimens(directory.as_fd(), time, time);
            }
        }
        Ok(())
    }

    fn count(&mut self, entry: &Entry<'_, impl Read>, name: &Path) -> Result<()> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(entry.size());
        if self.entries > self.limits.entries || self.bytes > self.limits.bytes {
            let message = format!("{}: the layer is larger than allowed", name.display());
            return Err(Error::BadImage(message));
        }
        Ok(())
    }

    fn place(&mut self, entry: &mut Entry<'_, impl Read>, name: &Path) -> Result<()> {
        let Some((parent, file)) = split(name)? else {
            // The layer's own root: only its metadata counts.
            return self.finish_root(entry);
        };
        let parent = self.descend(&parent, true)?;
        let text = file.as_bytes();
        if text == OPAQUE.as_bytes() {
            return set_xattr(parent.as_fd(), OsStr::new("trusted.overlay.opaque"), b"y");
        }
        if let Some(hidden) = text.strip_prefix(WHITEOUT.as_bytes()) {
            return whiteout(&parent, OsStr::from_bytes(hidden));
        }
        self.make(entry, &parent, &file, name)
    }

    fn make(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        parent: &OwnedFd,
        file: &OsStr,
        name: &Path,
    ) -> Result<()> {
        let kind = entry.header().entry_type();
        let mode = Mode::from_bits_truncate(entry.header().mode().map_err(system("mode"))?);
        let dir = parent.as_fd();
        if !kind.is_dir() {
            clear(parent, file)?;
        }
        match kind {
            EntryType::Directory => self.make_directory(parent, file)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
                let made = openat(
                    dir,
                    file,
                    flags | OFlag::O_CLOEXEC,
                    Mode::from_bits_truncate(0o600),
                );
                let mut made = File::from(made.map_err(system("create"))?);
                io::copy(entry, &mut made).map_err(Error::system("write"))?;
            }
            EntryType::Symlink => {
                let target = link_target(entry)?;
                symlinkat(target.as_path(), dir, file).map_err(system("symlink"))?;
            }
            EntryType::Link => {
                // Shares everything with its target, so there is nothing to finish.
                let target = link_target(entry)?;
                return self.make_hard_link(parent, file, &target);
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                make_node(entry, parent, file, kind)?;
            }
            EntryType::XGlobalHeader => return Ok(()),
            other => {
                return Err(Error::BadImage(format!(
                    "{}: entry of kind {other:?}",
                    name.display()
                )));
            }
        }
        finish(entry, parent, file, kind, mode)?;
        if kind.is_dir() {
            self.directories.push((name.to_path_buf(), time_of(entry)));
        }
        Ok(())
    }

    fn make_directory(&self, parent: &OwnedFd, file: &OsStr) -> Result<()> {
        let dir = parent.as_fd();
        match mkdirat(dir, file, Mode::from_bits_truncate(0o755)) {
            Ok(()) => Ok(()),
            Err(nix::Error::EEXIST) => {
                let flags =
                    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                if openat(dir, file, flags, Mode::empty()).is_ok() {
                    return Ok(());
                }
                clear(parent, file)?;
                mkdirat(dir, file, Mode::from_bits_truncate(0o755)).map_err(system("mkdir"))
            }
            Err(error) => Err(system("mkdir")(error)),
        }
    }

    fn make_hard_link(&self, parent: &OwnedFd, file: &OsStr, target: &Path) -> Result<()> {
        let Some((holder, name)) = split(target)? else {
            return Err(Error::BadImage("a hard link to the root".into()));
        };
        if let Ok(holder) = self.descend(&holder, false) {
            let flags = LinkatFlags::empty();
            match linkat(
                holder.as_fd(),
                name.as_os_str(),
                parent.as_fd(),
                file,
                flags,
            ) {
                Ok(()) => return Ok(()),
                Err(nix::Error::ENOENT) => {}
                Err(error) => return Err(system("link")(error)),
            }
        }
        self.copy_from_below(parent, file, target)
    }

    /// The target of a hard link is in a layer below: overlayfs would copy it up, and so do we.
    fn copy_from_below(&self, parent: &OwnedFd, file: &OsStr, target: &Path) -> Result<()> {
        let found = self.lower.iter().find_map(|layer| {
            rooted::open(
                layer,
                target,
                OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK,
            )
            .ok()
        });
        let missing = || {
            Error::BadImage(format!(
                "hard link to {}, which is missing",
                target.display()
            ))
        };
        let mut source = File::from(found.ok_or_else(missing)?);
        let metadata = source.metadata().map_err(Error::system("stat"))?;
        if !metadata.is_file() {
            return Err(missing());
        }
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(parent.as_fd(), file, flags, Mode::from_bits_truncate(0o600));
        let mut made = File::from(made.map_err(system("create"))?);
        io::copy(&mut source, &mut made).map_err(Error::system("write"))?;
        use std::os::unix::fs::MetadataExt;
        std::os::unix::fs::fchown(&made, Some(metadata.uid()), Some(metadata.gid()))
            .and_then(|()| made.set_permissions(metadata.permissions()))
            .map_err(Error::system("finish"))
    }

    /// Opens a directory below the root one name at a time. Links are followed as the container
    /// would, but one that climbs above the root is refused.
    fn descend(&self, path: &Path, create: bool) -> Result<OwnedFd> {
        let mut trail: Vec<OwnedFd> = vec![self.handle.try_clone().map_err(Error::system("dup"))?];
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
            // There is always the root at least.
            let Some(here) = trail.last() else {
                return Err(escape(path));
            };
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
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

    fn finish_root(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<()> {
        if entry.header().entry_type().is_dir() {
            let mode = entry.header().mode().map_err(system("mode"))?;
            fchmod(self.handle.as_fd(), Mode::from_bits_truncate(mode)).map_err(system("chmod"))?;
        }
        Ok(())
    }
}

/// Puts a link's target in front of what is left of the path.
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

/// The directory and the last name of an entry; nothing for the root itself.
fn split(name: &Path) -> Result<Option<(PathBuf, OsString)>> {
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

fn system<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::system::<io::Error>(action)(error.into())
}

fn link_target(entry: &Entry<'_, impl Read>) -> Result<PathBuf> {
    let target = entry.link_name().map_err(Error::system("link name"))?;
    target
        .map(|target| target.into_owned())
        .ok_or_else(|| Error::BadImage("a link to nothing".into()))
}

/// A later entry of the same name replaces an earlier one.
fn clear(parent: &OwnedFd, file: &OsStr) -> Result<()> {
    match unlinkat(parent.as_fd(), file, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(nix::Error::ENOENT) => Ok(()),
        Err(nix::Error::EISDIR) => {
            let place = format!("/proc/self/fd/{}", parent.as_raw_fd());
            fs::remove_dir_all(Path::new(&place).join(file)).map_err(Error::system("replace"))
        }
        Err(error) => Err(system("replace")(error)),
    }
}

/// How overlayfs says that a name of the layers below is gone.
fn whiteout(parent: &OwnedFd, hidden: &OsStr) -> Result<()> {
    if hidden.is_empty() || hidden == ".." || hidden == "." {
        return Err(Error::BadImage(format!("whiteout of {hidden:?}")));
    }
    clear(parent, hidden)?;
    mknodat(parent.as_fd(), hidden, SFlag::S_IFCHR, Mode::empty(), 0).map_err(system("whiteout"))
}

fn make_node(
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

fn time_of(entry: &Entry<'_, impl Read>) -> TimeSpec {
    TimeSpec::new(
        entry.header().mtime().unwrap_or(0).try_into().unwrap_or(0),
        0,
    )
}

/// Owner first: changing it clears set-user-id bits and file capabilities.
fn finish(
    entry: &mut Entry<'_, impl Read>,
    parent: &OwnedFd,
    file: &OsStr,
    kind: EntryType,
    mode: Mode,
) -> Result<()> {
    // Builders leave fields blank that they mean to be zero.
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
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode.bits()))
            .map_err(Error::system("chmod"))?;
        set_xattrs(entry, Path::new(&place))?;
    }
    let time = time_of(entry);
    utimensat(dir, file, &time, &time, UtimensatFlags::NoFollowSymlink).map_err(system("utimes"))
}

/// Extended attributes from the archive's extra headers. Ones that overlayfs gives a meaning to are
/// not the image's to set.
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
        if name.starts_with("trusted.overlay.") || name.starts_with("user.overlay.") {
            return Err(Error::BadImage(format!("attribute {name} is not allowed")));
        }
        if let Err(error) = write_xattr(place, name, extension.value_bytes()) {
            // A file system without attributes of a kind cannot keep them; capabilities must be kept.
            if name == "security.capability" || error.raw_os_error() != Some(libc::EOPNOTSUPP) {
                return Err(Error::system::<io::Error>(format!("attribute {name}"))(
                    error,
                ));
            }
        }
    }
    Ok(())
}

fn set_xattr(fd: std::os::fd::BorrowedFd<'_>, name: &OsStr, value: &[u8]) -> Result<()> {
    let place = format!("/proc/self/fd/{}", fd.as_raw_fd());
    write_xattr(Path::new(&place), &name.to_string_lossy(), value)
        .map_err(Error::system("attribute"))
}

fn write_xattr(place: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let path = CString::new(place.as_os_str().as_bytes())?;
    let name = CString::new(name)?;
    let (data, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: both names end with a zero, and `data` has `length` bytes; all live through the call.
    let result = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), data, length, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    /// An archive whose names are taken as they are, however bad.
    #[derive(Default)]
    struct Tar(Vec<u8>);

    impl Tar {
        fn entry(mut self, name: &str, kind: EntryType, link: &str, content: &[u8]) -> Self {
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(1);
            header.set_size(content.len() as u64);
            header.set_cksum();
            self.0.extend_from_slice(header.as_bytes());
            self.0.extend_from_slice(content);
            self.0.resize(self.0.len().next_multiple_of(512), 0);
            self
        }

        fn file(self, name: &str) -> Self {
            self.entry(name, EntryType::Regular, "", b"content")
        }

        fn link(self, name: &str, target: &str) -> Self {
            self.entry(name, EntryType::Symlink, target, b"")
        }
    }

    /// Unpacks below a directory that has a victim beside it.
    fn unpack(tar: Tar, limits: Limits) -> (tempfile::TempDir, Result<()>) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("victim"), "untouched").unwrap();
        let root = dir.path().join("root");
        let result = Unpacker::new(&root, Vec::new(), limits)
            .unwrap()
            .unpack(tar.0.as_slice());
        assert_eq!(
            fs::read_to_string(dir.path().join("victim")).unwrap(),
            "untouched"
        );
        (dir, result)
    }

    fn refusal(tar: Tar) -> String {
        unpack(tar, Limits::default()).1.unwrap_err().to_string()
    }

    #[test]
    fn names_and_links_that_lead_out_are_refused() {
        let cases = [
            (Tar::default().file("/etc/passwd"), "absolute path"),
            (Tar::default().file("../victim"), "climbs"),
            (Tar::default().file("a/../../victim"), "climbs"),
            (
                Tar::default().link("up", "../..").file("up/victim"),
                "leads out",
            ),
            (
                Tar::default().link("a", "b").link("b", "a").file("a/x"),
                "too many links",
            ),
            (
                Tar::default().entry("x", EntryType::Link, "../victim", b""),
                "climbs",
            ),
            (
                Tar::default().entry("x", EntryType::Link, "/etc/passwd", b""),
                "absolute path",
            ),
            (Tar::default().file(".wh..."), "whiteout"),
        ];
        for (tar, reason) in cases {
            let refused = refusal(tar);
            assert!(
                refused.contains(reason),
                "{refused:?} does not say {reason:?}"
            );
        }
    }

    #[test]
    fn absolute_links_stay_inside() {
        let tar = Tar::default()
            .link("run", "/var/run")
            .file("run/pid")
            .file("var/run/other");
        let (dir, result) = unpack(tar, Limits::default());
        result.unwrap();
        assert!(dir.path().join("root/var/run/pid").exists());
        assert!(dir.path().join("root/var/run/other").exists());
        // A file that replaces a link must not be written through it.
        let tar = Tar::default().link("x", "../victim").file("x");
        let (dir, result) = unpack(tar, Limits::default());
        result.unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join("root/x")).unwrap(),
            "content"
        );
    }

    #[test]
    fn more_than_the_limits_is_refused() {
        let limits = Limits {
            bytes: 10,
            entries: 100,
        };
        let bomb = Tar::default().file("a").file("b");
        assert!(
            unpack(bomb, limits)
                .1
                .unwrap_err()
                .to_string()
                .contains("larger than allowed")
        );
        let limits = Limits {
            bytes: 1000,
            entries: 1,
        };
        assert!(
            unpack(Tar::default().file("a").file("b"), limits)
                .1
                .is_err()
        );
    }

    #[test]
    fn whiteouts_become_what_overlayfs_understands() {
        let tar = Tar::default().file("dir/.wh..wh..opq").file("dir/.wh.gone");
        let (dir, result) = unpack(tar, Limits::default());
        result.unwrap();
        let gone = fs::symlink_metadata(dir.path().join("root/dir/gone")).unwrap();
        assert!(gone.file_type().is_char_device());
        assert!(!dir.path().join("root/dir/.wh.gone").exists());
    }

    #[test]
    fn hard_links_modes_and_files_of_layers_below_are_kept() {
        let below = tempfile::tempdir().unwrap();
        fs::write(below.path().join("lower"), "from below").unwrap();
        symlink("/etc/shadow", below.path().join("trap")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tar = Tar::default()
            .file("one")
            .entry("two", EntryType::Link, "one", b"")
            .entry("three", EntryType::Link, "lower", b"");
        let lower = vec![below.path().to_path_buf()];
        let unpacker = Unpacker::new(dir.path(), lower.clone(), Limits::default()).unwrap();
        unpacker.unpack(tar.0.as_slice()).unwrap();
        let inode = |name: &str| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(dir.path().join(name)).unwrap().ino()
        };
        assert_eq!(inode("one"), inode("two"));
        assert_eq!(
            fs::read_to_string(dir.path().join("three")).unwrap(),
            "from below"
        );
        let mode = fs::metadata(dir.path().join("one"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o644);
        let trap = Tar::default().entry("x", EntryType::Link, "trap", b"");
        let unpacker = Unpacker::new(dir.path(), lower, Limits::default()).unwrap();
        assert!(unpacker.unpack(trap.0.as_slice()).is_err());
    }
}
