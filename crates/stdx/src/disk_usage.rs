//! The disk usage of a directory tree, which may be hostile: links are never followed, other mounts
//! are not entered, and neither a deep nor a changing tree leads out of it or ends the walk early. A walk can be
//! interrupted, and the memory that it takes does not grow with the tree.

use std::{
    collections::HashSet,
    ffi::CString,
    io,
    ops::Add,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Instant,
};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat, fstat, open, openat, seek, statat,
};

/// How much of a directory is read at once.
const BUFFER: usize = 16 * 1024;
/// The maximum number of subdirectories of one directory that are remembered. Others are found again.
const NAMES: usize = 256;
/// In directories below this depth only one is remembered.
const DEEP: usize = 64;
/// The maximum number of remembered files with several names.
const LINKED: usize = 200_000;

/// Allocated bytes and number of inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Allocated bytes, not file sizes.
    pub bytes: u64,
    /// Files, directories, links.
    pub inodes: u64,
}

impl Add for DiskUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            inodes: self.inodes + other.inodes,
        }
    }
}

impl DiskUsage {
    /// Measures everything below a directory, without the directory itself. Hard links count once.
    pub fn measure(dir: &Path) -> io::Result<Self> {
        let mut walk = Walk::begin(dir)?;
        while !walk.step() {}
        Ok(walk.sum())
    }

    /// The larger number of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            inodes: self.inodes.max(other.inodes),
        }
    }
}

/// A walk through a tree.
pub struct Walk {
    /// The directory of the last level: one descriptor for any depth.
    here: OwnedFd,
    levels: Vec<Level>,
    device: u64,
    /// Files with several names that were counted.
    linked: HashSet<(u64, u64)>,
    sum: DiskUsage,
}

/// A directory on the path: its identity, and what is still to be visited in it.
struct Level {
    identity: (u64, u64),
    /// Subdirectories.
    left: Vec<CString>,
    /// The position of the next entry to read.
    position: u64,
    is_read: bool,
}

impl Walk {
    /// At the top of the tree.
    pub fn begin(dir: &Path) -> io::Result<Self> {
        let here = open(dir, flags() & !OFlags::NOFOLLOW, Mode::empty())?;
        let top = fstat(&here)?;
        Ok(Self {
            here,
            levels: vec![Level::new(&top)],
            device: top.st_dev,
            linked: HashSet::new(),
            sum: DiskUsage::default(),
        })
    }

    /// What was counted so far.
    pub fn sum(&self) -> DiskUsage {
        self.sum
    }

    /// Continues until the given time; returns whether the end was reached.
    pub fn advance(&mut self, until: Instant) -> bool {
        while Instant::now() < until {
            if self.step() {
                return true;
            }
        }
        false
    }

    /// Reads a part of a directory, or enters or leaves one; returns whether the end was reached.
    fn step(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else {
            return true;
        };
        if let Some(name) = level.left.pop() {
            self.enter(&name);
            return false;
        }
        if !level.is_read {
            self.read();
            return false;
        }
        self.levels.pop();
        let Some(above) = self.levels.last() else {
            return true;
        };
        // A directory that was moved has another parent: the walk ends, and the next one sees the rest.
        let parent = openat(self.here.as_fd(), "..", flags(), Mode::empty());
        match parent.and_then(|parent| Ok((fstat(&parent)?, parent))) {
            Ok((stat, parent)) if identity(&stat) == above.identity => {
                self.here = parent;
                false
            }
            _ => {
                self.levels.clear();
                true
            }
        }
    }

    /// Enters a directory, unless it is gone or was replaced.
    fn enter(&mut self, name: &CString) {
        if let Ok(below) = openat(self.here.as_fd(), name, flags(), Mode::empty())
            && let Ok(stat) = fstat(&below)
            && stat.st_dev == self.device
        {
            self.levels.push(Level::new(&stat));
            self.here = below;
        }
    }

    /// Counts some entries of the directory.
    fn read(&mut self) {
        let names = if self.levels.len() > DEEP { 1 } else { NAMES };
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        level.is_read = true;
        if seek(&self.here, SeekFrom::Start(level.position)).is_err() {
            return;
        }
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut entries = RawDir::new(&self.here, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            level.position = entry.next_entry_cookie();
            let name = entry.file_name();
            if name != c"."
                && name != c".."
                && let Ok(stat) = statat(&self.here, name, AtFlags::SYMLINK_NOFOLLOW)
                && stat.st_dev == self.device
            {
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    level.left.push(name.to_owned());
                }
                let counted = count(&stat, &mut self.linked);
                self.sum = self.sum + counted;
            }
            if entries.is_buffer_empty() || level.left.len() >= names {
                level.is_read = false;
                return;
            }
        }
    }
}

impl Level {
    fn new(stat: &Stat) -> Self {
        Self {
            identity: identity(stat),
            left: Vec::new(),
            position: 0,
            is_read: false,
        }
    }
}

/// What an entry counts. Beyond the limit of remembered files, each name of a file counts a part of it.
fn count(stat: &Stat, linked: &mut HashSet<(u64, u64)>) -> DiskUsage {
    let mut bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    #[allow(
        clippy::useless_conversion,
        reason = "the type is narrower on some architectures"
    )]
    let names = u64::from(stat.st_nlink);
    if !is_dir && names > 1 {
        if linked.contains(&identity(stat)) {
            return DiskUsage::default();
        }
        if linked.len() < LINKED {
            linked.insert(identity(stat));
        } else {
            bytes /= names;
        }
    }
    DiskUsage { bytes, inodes: 1 }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("big"), vec![1; 1_000_000]).unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a"), vec![1; 100_000]).unwrap();
        let one = DiskUsage::measure(dir.path()).unwrap();
        assert_eq!(one.inodes, 2);
        assert!((100_000..200_000).contains(&one.bytes), "{one:?}");
        fs::hard_link(dir.path().join("a"), dir.path().join("sub/b")).unwrap();
        assert_eq!(DiskUsage::measure(dir.path()).unwrap(), one);
        symlink(outside.path(), dir.path().join("sub/link")).unwrap();
        let linked = DiskUsage::measure(dir.path()).unwrap();
        assert_eq!(linked.inodes, 3);
        assert!(linked.bytes < 200_000);
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_measured_whole() {
        let dir = tempfile::tempdir().unwrap();
        let name = CString::new("d".repeat(100)).unwrap();
        let mut here = open(dir.path(), flags(), Mode::empty()).unwrap();
        for _ in 0..300 {
            rustix::fs::mkdirat(&here, &name, Mode::RWXU).unwrap();
            here = openat(&here, &name, flags(), Mode::empty()).unwrap();
        }
        let wanted = OFlags::CREATE | OFlags::WRONLY;
        openat(&here, "last", wanted, Mode::RWXU).unwrap();
        assert_eq!(DiskUsage::measure(dir.path()).unwrap().inodes, 301);
    }

    #[test]
    fn directories_with_many_entries_are_counted_once_and_whole_though_little_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 * NAMES {
            let below = dir.path().join(format!("directory-{number:0>100}"));
            fs::create_dir(&below).unwrap();
            fs::write(below.join("file"), "").unwrap();
            fs::write(dir.path().join(format!("file-{number:0>100}")), "").unwrap();
        }
        let mut walk = Walk::begin(dir.path()).unwrap();
        assert!(!walk.advance(Instant::now()), "no time");
        assert_eq!(walk.sum(), DiskUsage::default());
        let (mut steps, mut most) = (0, 0);
        while !walk.step() {
            steps += 1;
            let names = walk.levels.iter().map(|level| level.left.len());
            most = most.max(names.sum::<usize>());
        }
        assert_eq!(walk.sum().inodes, 9 * NAMES as u64);
        assert!(most <= NAMES && steps > NAMES, "{most} {steps}");
    }
}
