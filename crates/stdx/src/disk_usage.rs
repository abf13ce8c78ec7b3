//! The disk usage of a directory tree, which may be hostile: links are never followed, other mounts
//! are not entered, and neither a deep nor a changing tree leads out of it or ends the walk early.

use std::{
    collections::HashSet,
    ffi::CString,
    io,
    ops::Add,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};

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

/// A directory on the path: its identity, and what is still to be visited in it.
struct Level {
    identity: (u64, u64),
    left: Vec<CString>,
}

impl DiskUsage {
    /// Measures everything below a directory, without the directory itself. Hard links count once.
    pub fn measure(dir: &Path) -> io::Result<Self> {
        let mut here = open(dir, flags() & !OFlags::NOFOLLOW, Mode::empty())?;
        let top = fstat(&here)?;
        let mut walk = Walk {
            device: top.st_dev,
            linked: HashSet::new(),
            sum: Self::default(),
        };
        let mut levels = vec![walk.enter(&here)?];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.left.pop() {
                // Gone or replaced meanwhile.
                if let Ok(below) = openat(here.as_fd(), &name, flags(), Mode::empty())
                    && let Ok(next) = walk.enter(&below)
                {
                    levels.push(next);
                    here = below;
                }
                continue;
            }
            levels.pop();
            let Some(above) = levels.last() else { break };
            // One descriptor for any depth. A directory that was moved has another parent: the walk
            // ends, and the next one sees the rest.
            here = openat(here.as_fd(), "..", flags(), Mode::empty())?;
            if identity(&fstat(&here)?) != above.identity {
                break;
            }
        }
        Ok(walk.sum)
    }
}

struct Walk {
    device: u64,
    linked: HashSet<(u64, u64)>,
    sum: DiskUsage,
}

impl Walk {
    /// Counts a directory's entries; returns its subdirectories to visit.
    fn enter(&mut self, dir: &OwnedFd) -> io::Result<Level> {
        let mut level = Level {
            identity: identity(&fstat(dir)?),
            left: Vec::new(),
        };
        for entry in Dir::read_from(dir)? {
            let Ok(entry) = entry else { continue };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if stat.st_dev != self.device {
                continue;
            }
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if is_dir {
                level.left.push(name.to_owned());
            } else if stat.st_nlink > 1 && !self.linked.insert(identity(&stat)) {
                continue;
            }
            self.sum.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            self.sum.inodes += 1;
        }
        Ok(level)
    }
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
}
