//! A log file below the log directory, opened without following links.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};

/// The path of a log below the trusted log directory.
#[derive(Debug, Clone)]
pub(crate) struct LogFile {
    root: PathBuf,
    path: PathBuf,
}

impl LogFile {
    /// The log at `path`, which must be below `root`.
    pub(crate) fn new(root: &Path, path: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            path: path.to_path_buf(),
        }
    }

    /// The full path, for messages and inotify.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn relative(&self) -> io::Result<&Path> {
        self.path.strip_prefix(&self.root).map_err(|_| {
            let message = format!("{} is not a log of a pod", self.path.display());
            io::Error::new(io::ErrorKind::PermissionDenied, message)
        })
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let root = File::open(&self.root)?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(
            &root,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )?)
    }

    /// Opens the log for reading.
    pub(crate) fn open(&self) -> io::Result<File> {
        // O_NONBLOCK: the file may have been replaced by a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(self.open_beneath(self.relative()?, flags)?);
        if !file.metadata()?.is_file() {
            let message = format!("{} is not a file", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(file)
    }

    /// Opens the log's directory, for renaming within it.
    pub(crate) fn directory(&self) -> io::Result<OwnedFd> {
        let dir = self
            .relative()?
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty());
        self.open_beneath(
            dir.unwrap_or(Path::new(".")),
            OFlags::RDONLY | OFlags::DIRECTORY,
        )
    }

    /// The file name.
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The names of rotated logs, the oldest first.
    pub(crate) fn set_aside(&self, dir: &OwnedFd) -> Vec<String> {
        let prefix = format!("{}.", self.name());
        let entries = Dir::read_from(dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let mut aside: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
        aside.sort();
        aside
    }

    /// Removes a rotated log.
    pub(crate) fn remove(dir: &OwnedFd, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn no_link_is_followed_and_nothing_but_files_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (root, pod) = (dir.path().join("pods"), dir.path().join("pods/pod"));
        fs::create_dir_all(&pod).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(pod.join("0.log"), "log").unwrap();
        symlink(dir.path().join("secret"), pod.join("link.log")).unwrap();
        symlink(dir.path(), root.join("other")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            pod.join("pipe.log"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let open = |path: &str| LogFile::new(&root, &root.join(path)).open();
        assert!(open("pod/0.log").is_ok());
        for planted in [
            "pod/link.log",
            "other/secret",
            "pod/pipe.log",
            "pod",
            "../secret",
        ] {
            assert!(open(planted).is_err(), "{planted}");
        }
        assert!(
            LogFile::new(&root, &dir.path().join("secret"))
                .open()
                .is_err()
        );
    }
}
