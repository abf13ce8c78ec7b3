//! Unpacks a layer's archive into a directory for use as an overlayfs lower directory. The archive
//! is untrusted: absolute names, names with `..`, links that lead out, and content beyond limits
//! are rejected, and nothing is ever written outside the directory.

mod attributes;
mod kinds;
mod paths;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, openat},
    sys::{
        stat::{Mode, fchmod, mkdirat},
        time::TimeSpec,
    },
    unistd::symlinkat,
};
use tar::{Archive, Entry, EntryType};

use super::bounded::Bounded;
use crate::{
    error::{Error, Result},
    rooted,
};

/// Limits of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Unpacked bytes per layer.
    pub bytes: u64,
    /// Entries per layer.
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

/// How many bytes of directory names are kept for [`Unpacker::directories`]: many long names take little space in a
/// compressed archive. The times of further directories are those of the unpacking.
const MAX_KEPT_NAMES: usize = 32 << 20;

/// Unpacks one layer.
pub(super) struct Unpacker {
    root: PathBuf,
    handle: OwnedFd,
    /// Layers below, the uppermost first: hard links may refer to their files.
    lower: Vec<PathBuf>,
    limits: Limits,
    bytes: u64,
    entries: u64,
    /// Directories get their times last, when nothing changes in them any more.
    directories: Vec<(PathBuf, TimeSpec)>,
    /// The bytes of their names that may still be kept.
    names_left: usize,
}

impl Unpacker {
    pub(super) fn new(root: &Path, lower: Vec<PathBuf>, limits: Limits) -> Result<Self> {
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
            names_left: MAX_KEPT_NAMES,
        })
    }

    pub(super) fn unpack(mut self, content: impl Read) -> Result<()> {
        let (content, bound) = Bounded::new(content);
        let mut archive = Archive::new(content);
        let wrong = |error: io::Error| Error::BadImage(format!("archive: {error}"));
        let mut entries = archive.entries().map_err(wrong)?;
        loop {
            bound.headers_only();
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(wrong)?;
            bound.lift();
            let name = entry.path().map_err(wrong)?.into_owned();
            self.count(&entry, &name)?;
            self.place(&mut entry, &name).map_err(|error| match error {
                Error::BadImage(_) => error,
                other => Error::BadImage(format!("{}: {other}", name.display())),
            })?;
            // Skip the unread rest of the entry before the next header.
            io::copy(&mut entry, &mut io::sink()).map_err(wrong)?;
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
        self.count_bytes(entry.size(), name)
    }

    fn count_bytes(&mut self, bytes: u64, name: &Path) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.entries > self.limits.entries || self.bytes > self.limits.bytes {
            let message = format!("{}: the layer is larger than allowed", name.display());
            return Err(Error::BadImage(message));
        }
        Ok(())
    }

    fn place(&mut self, entry: &mut Entry<'_, impl Read>, name: &Path) -> Result<()> {
        let Some((parent, file)) = paths::split(name)? else {
            // The layer's root: only its metadata counts.
            return self.finish_root(entry);
        };
        let parent = paths::descend(&self.handle, &parent, true)?;
        let text = file.as_bytes();
        if text == kinds::OPAQUE.as_bytes() {
            return kinds::opaque(&parent);
        }
        if let Some(hidden) = text.strip_prefix(kinds::WHITEOUT.as_bytes()) {
            return kinds::whiteout(&parent, OsStr::from_bytes(hidden));
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
            kinds::clear(parent, file)?;
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
                let target = kinds::link_target(entry)?;
                symlinkat(target.as_path(), dir, file).map_err(system("symlink"))?;
            }
            EntryType::Link => {
                // A hard link shares its target's metadata.
                let target = kinds::link_target(entry)?;
                return self.make_hard_link(parent, file, &target);
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                kinds::make_node(entry, parent, file, kind)?;
            }
            EntryType::XGlobalHeader => return Ok(()),
            other => {
                return Err(Error::BadImage(format!(
                    "{}: entry of kind {other:?}",
                    name.display()
                )));
            }
        }
        attributes::finish(entry, parent, file, kind, mode)?;
        if kind.is_dir() {
            self.keep_time(name, attributes::time_of(entry));
        }
        Ok(())
    }

    fn keep_time(&mut self, name: &Path, time: TimeSpec) {
        let size = size_of::<(PathBuf, TimeSpec)>() + name.as_os_str().len();
        if let Some(left) = self.names_left.checked_sub(size) {
            self.names_left = left;
            self.directories.push((name.to_path_buf(), time));
        }
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
                kinds::clear(parent, file)?;
                mkdirat(dir, file, Mode::from_bits_truncate(0o755)).map_err(system("mkdir"))
            }
            Err(error) => Err(system("mkdir")(error)),
        }
    }

    fn finish_root(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<()> {
        if entry.header().entry_type().is_dir() {
            let mode = entry.header().mode().map_err(system("mode"))?;
            fchmod(self.handle.as_fd(), Mode::from_bits_truncate(mode)).map_err(system("chmod"))?;
        }
        Ok(())
    }
}

fn system<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::system::<io::Error>(action)(error.into())
}
