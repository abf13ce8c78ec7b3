//! Disk usage of directory trees.

use std::{
    ops::Add,
    path::Path,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use stdx::{DiskUsage, Freshness, TreeUsage, Walks};

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

impl From<DiskUsage> for Size {
    fn from(used: DiskUsage) -> Self {
        Self {
            bytes: used.bytes,
            inodes: used.inodes,
        }
    }
}

/// Neither many containers nor millions of files cost the node much time.
const FRESHNESS: Freshness = Freshness {
    at_least: Duration::from_secs(10),
    times_walk: 100,
};

/// How long all trees of one request are measured, before their last known sizes count.
const PATIENCE: Duration = Duration::from_millis(200);

/// Measures the trees of one request.
#[derive(Clone)]
pub(crate) struct Sizing {
    walks: Walks,
    until: Instant,
}

impl Sizing {
    pub(crate) fn new(walks: &Walks) -> Self {
        Self {
            walks: walks.clone(),
            until: Instant::now() + PATIENCE,
        }
    }

    /// The size of a tree, possibly cached.
    pub(crate) fn size(&self, tree: &TreeUsage, dir: &Path) -> Size {
        tree.get(dir, FRESHNESS, &self.walks, self.until).into()
    }
}

/// Everything below a directory; hard links count once. Zero if it cannot be read.
pub(crate) fn size(dir: &Path) -> Size {
    DiskUsage::measure(dir).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
