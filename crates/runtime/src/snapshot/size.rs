//! Disk usage of a directory tree.

use std::{
    ops::Add,
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stdx::DiskUsage;

/// Bytes on disk, and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Allocated bytes.
    pub bytes: u64,
    /// Files, directories, links.
    pub inodes: u64,
}

impl Size {
    /// The part beyond `base`.
    pub(crate) fn beyond(self, base: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(base.bytes),
            inodes: self.inodes.saturating_sub(base.inodes),
        }
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            inodes: self.inodes + other.inodes,
        }
    }
}

/// The cached size of a tree. A tree that takes long to walk is walked rarely, so that a container
/// with millions of files costs the node no more than others.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The size, when it was measured and how long that took.
    last: Mutex<Option<(Size, Instant, Duration)>>,
}

/// A measurement is cached this many times longer than it took.
const FACTOR: u32 = 50;

impl Measured {
    /// The cached size, or a new measurement.
    pub(crate) fn get(&self, measure: impl FnOnce() -> Size) -> Size {
        let mut last = self.last.lock();
        if let Some((size, at, took)) = *last
            && at.elapsed() < took * FACTOR
        {
            return size;
        }
        let begin = Instant::now();
        let size = measure();
        *last = Some((size, Instant::now(), begin.elapsed()));
        size
    }
}

/// Everything below a directory; hard links count once. Zero if it cannot be read.
pub(crate) fn size(dir: &Path) -> Size {
    let used = DiskUsage::measure(dir).unwrap_or_default();
    Size {
        bytes: used.bytes,
        inodes: used.inodes,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn slow_size_measurements_are_cached_longer() {
        let measured = Measured::default();
        let slow = |bytes| {
            std::thread::sleep(Duration::from_millis(200));
            Size { bytes, inodes: 1 }
        };
        assert_eq!(measured.get(|| slow(1)).bytes, 1);
        assert_eq!(measured.get(|| slow(2)).bytes, 1);
    }

    #[test]
    fn a_file_with_two_names_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a"), vec![1; 100_000]).unwrap();
        let one = size(dir.path());
        fs::hard_link(dir.path().join("a"), dir.path().join("sub/b")).unwrap();
        assert_eq!(size(dir.path()).beyond(one).inodes, 0);
        fs::write(dir.path().join("sub/c"), vec![1; 100_000]).unwrap();
        assert_eq!(size(dir.path()).beyond(one).inodes, 1);
    }
}
