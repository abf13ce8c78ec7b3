//! The file of a container's log: opened without following links, and rotated as soon as it is
//! full, so that no burst of output exceeds the limit.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use nix::{
    dir::Dir,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use serde::{Deserialize, Serialize};

/// The path of a log and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The trusted directory: no link below it is followed.
    pub base: PathBuf,
    /// The file, relative to `base`.
    pub file: PathBuf,
    /// The size at which the file is rotated; zero: never.
    pub max_bytes: u64,
    /// The maximum number of files, including the current one; zero: unlimited.
    pub max_files: usize,
}

impl Target {
    /// A log that is never rotated. Its own directory is trusted.
    pub fn unlimited(path: &Path) -> Self {
        Self {
            base: path.parent().unwrap_or(Path::new("/")).to_path_buf(),
            file: path.file_name().unwrap_or_default().into(),
            max_bytes: 0,
            max_files: 0,
        }
    }

    fn name(&self) -> &Path {
        self.file.file_name().map_or(Path::new(""), Path::new)
    }
}

/// An open log.
pub(super) struct LogFile {
    target: Target,
    /// The log's directory, kept open: later changes of its parents have no effect.
    dir: OwnedFd,
    file: File,
    bytes: u64,
    /// Whether the file ends within a line.
    torn: bool,
}

impl LogFile {
    /// Opens the log to append to; creates it and its directories if missing.
    pub(super) fn open(target: Target) -> io::Result<Self> {
        std::fs::create_dir_all(&target.base)?;
        let base = File::open(&target.base)?.into();
        let dir = open_dirs(base, target.file.parent().unwrap_or(Path::new("")))?;
        let (file, bytes) = append(&dir, target.name())?;
        Ok(Self {
            target,
            dir,
            file,
            bytes,
            torn: false,
        })
    }

    /// Reopens the file after it was renamed.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        (self.file, self.bytes) = append(&self.dir, self.target.name())?;
        self.torn = false;
        Ok(())
    }

    /// Appends complete lines, rotating when the file is full. After an error, as many lines were
    /// written as fit on the disk, and none in part.
    pub(super) fn append(&mut self, mut lines: &[u8]) -> io::Result<()> {
        while !lines.is_empty() && self.target.max_bytes > 0 {
            let room = self.target.max_bytes.saturating_sub(self.bytes);
            let end = whole_lines(lines, room, self.bytes == 0);
            self.write(&lines[..end])?;
            lines = &lines[end..];
            if !lines.is_empty() {
                self.rotate();
                if self.bytes > 0 {
                    break;
                }
            }
        }
        self.write(lines)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.torn {
            self.write_some(b"\n").1?;
            self.torn = false;
        }
        let (written, outcome) = self.write_some(lines);
        if outcome.is_err() {
            self.torn = self.take_back(&lines[..written]).is_err();
        }
        outcome
    }

    /// How much was written, and the error if that is not all.
    fn write_some(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut written = 0;
        let outcome = loop {
            if written == bytes.len() {
                break Ok(());
            }
            match self.file.write(&bytes[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.bytes += written as u64;
        (written, outcome)
    }

    /// Truncates a line that a full disk cut short, so that readers find only complete lines.
    fn take_back(&mut self, written: &[u8]) -> io::Result<()> {
        let newline = written.iter().rposition(|byte| *byte == b'\n');
        let part = (written.len() - newline.map_or(0, |newline| newline + 1)) as u64;
        if part > 0 {
            let length = self.file.metadata()?.len();
            self.file.set_len(length.saturating_sub(part))?;
            self.bytes = self.bytes.saturating_sub(part);
        }
        Ok(())
    }

    /// Renames the file to a name with the time, and removes the oldest ones. If that fails,
    /// writing continues: output is more important than the limit.
    fn rotate(&mut self) {
        let stamp = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S.%9f");
        let aside = format!("{}.{stamp}", self.target.name().display());
        let name = self.target.name();
        let moved = renameat(&self.dir, name, &self.dir, aside.as_str());
        // If the kubelet renamed it, a new file can be created, too.
        if moved.is_ok() || moved == Err(nix::errno::Errno::ENOENT) {
            let _ = self.reopen();
        }
        self.remove_oldest();
    }

    fn remove_oldest(&self) {
        let Some(kept) = self.target.max_files.checked_sub(1) else {
            return;
        };
        let prefix = format!("{}.", self.target.name().display());
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(mut dir) = Dir::openat(&self.dir, ".", flags, Mode::empty()) else {
            return;
        };
        let names = dir.iter().flatten();
        let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let mut aside: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
        aside.sort();
        aside.truncate(aside.len().saturating_sub(kept));
        for name in aside {
            let _ = unlinkat(&self.dir, name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// How many bytes of the lines fit. An empty file takes at least one line, however long.
fn whole_lines(lines: &[u8], room: u64, is_empty: bool) -> usize {
    if lines.len() as u64 <= room {
        return lines.len();
    }
    let is_newline = |byte: &u8| *byte == b'\n';
    let fitting = &lines[..room as usize];
    match fitting.iter().rposition(is_newline) {
        Some(newline) => newline + 1,
        None if !is_empty => 0,
        None => lines
            .iter()
            .position(is_newline)
            .map_or(lines.len(), |newline| newline + 1),
    }
}

fn beneath(flags: OFlag) -> OpenHow {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(resolve)
}

fn open_dirs(mut here: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    for component in path.components() {
        let Component::Normal(name) = component else {
            return Err(io::Error::other(
                "the log's path leads out of its directory",
            ));
        };
        match mkdirat(here.as_fd(), name, Mode::from_bits_retain(0o755)) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        here = openat2(
            here.as_fd(),
            name,
            beneath(OFlag::O_RDONLY | OFlag::O_DIRECTORY),
        )?;
    }
    Ok(here)
}

fn append(dir: &OwnedFd, name: &Path) -> io::Result<(File, u64)> {
    // O_NONBLOCK: the path may have been replaced by something else than a file.
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK;
    let how = beneath(flags).mode(Mode::from_bits_retain(0o640));
    let file = File::from(openat2(dir.as_fd(), name, how)?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("the log is not a regular file"));
    }
    Ok((file, meta.len()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn target(base: &Path, max_bytes: u64) -> Target {
        Target {
            base: base.to_path_buf(),
            file: "pod/container/0.log".into(),
            max_bytes,
            max_files: 3,
        }
    }

    #[test]
    fn links_at_any_place_below_the_base_are_not_followed() {
        let elsewhere = tempfile::tempdir().unwrap();
        for planted in ["pod", "pod/container", "pod/container/0.log"] {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join(planted);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            symlink(elsewhere.path(), &place).unwrap();
            assert!(LogFile::open(target(dir.path(), 0)).is_err(), "{planted}");
        }
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_planted_later_is_not_followed_when_the_log_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "").unwrap();
        let mut log = LogFile::open(target(dir.path(), 0)).unwrap();
        let path = dir.path().join("pod/container/0.log");
        std::fs::remove_file(&path).unwrap();
        symlink(&secret, &path).unwrap();
        assert!(log.reopen().is_err());
        log.append(b"line\n").unwrap();
        assert_eq!(std::fs::read(&secret).unwrap(), b"");
    }

    #[test]
    fn a_pipe_in_the_place_of_the_log_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod/container/0.log");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert!(LogFile::open(target(dir.path(), 0)).is_err());
    }

    #[test]
    fn a_burst_takes_no_more_than_the_limit() {
        for lines_at_once in [1, 7, 250] {
            burst(lines_at_once);
        }
    }

    fn burst(lines_at_once: usize) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(target(dir.path(), 1000)).unwrap();
        let numbers: Vec<usize> = (0..1000).collect();
        for chunk in numbers.chunks(lines_at_once) {
            let lines: String = chunk.iter().map(|n| format!("{n:0>98}\n")).collect();
            log.append(lines.as_bytes()).unwrap();
        }
        let mut files: Vec<_> = std::fs::read_dir(dir.path().join("pod/container"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert_eq!(files.len(), 3);
        let mut lines = Vec::new();
        for file in files[1..].iter().chain(&files[..1]) {
            let text = std::fs::read_to_string(file).unwrap();
            assert!(text.len() <= 1000);
            lines.extend(text.lines().map(|line| line.parse::<usize>().unwrap()));
        }
        // The newest lines, none missing between them.
        let first = lines[0];
        assert_eq!(lines, (first..1000).collect::<Vec<_>>());
        assert!(lines.len() > 20);
    }

    #[test]
    fn the_part_of_a_line_that_a_full_disk_took_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(target(dir.path(), 0)).unwrap();
        for (written, expected) in [
            ("one\ntw", "one\n"),
            ("two\n", "one\ntwo\n"),
            ("th", "one\ntwo\n"),
        ] {
            assert!(log.write_some(written.as_bytes()).1.is_ok());
            log.take_back(written.as_bytes()).unwrap();
            let text = std::fs::read_to_string(dir.path().join("pod/container/0.log")).unwrap();
            assert_eq!(
                (text.as_str(), log.bytes),
                (expected, expected.len() as u64)
            );
        }
    }

    #[test]
    fn a_line_that_is_longer_than_a_file_has_one_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(target(dir.path(), 10)).unwrap();
        log.append(b"short\nmuch longer than ten\nend\n").unwrap();
        let mut files: Vec<_> = std::fs::read_dir(dir.path().join("pod/container"))
            .unwrap()
            .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect();
        files.sort();
        assert_eq!(files, ["end\n", "much longer than ten\n", "short\n"]);
    }
}
