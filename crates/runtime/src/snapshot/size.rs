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

/// The cached size of a directory tree. Large trees are measured less often, so that neither many containers nor
/// millions of files cost the node much time.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Guards the size, the time of the measurement and its duration.
    last: Mutex<Option<(Size, Instant, Duration)>>,
}

/// The minimum time for which a size is cached.
const FRESH: Duration = Duration::from_secs(10);
/// A size is cached for at least this many times the duration of its measurement.
const FACTOR: u32 = 100;

impl Measured {
    /// The cached size, or a new measurement.
    pub(crate) fn get(&self, measure: impl FnOnce() -> Size) -> Size {
        let mut last = self.last.lock();
        if let Some((size, at, took)) = *last
            && at.elapsed() < FRESH.max(took * FACTOR)
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
    fn a_measure_counts_for_a_while_and_longer_if_it_took_long() {
        let ago = |age, took| Measured {
            last: Mutex::new(Some((Size::default(), Instant::now() - age, took))),
        };
        let quick = Duration::from_millis(1);
        for (age, took, is_old) in [
            (FRESH / 2, quick, false),
            (FRESH, quick, true),
            (FRESH, FRESH / 20, false),
            (FRESH * 6, FRESH / 20, true),
        ] {
            let mut walked = false;
            ago(age, took).get(|| {
                walked = true;
                Size::default()
            });
            assert_eq!(walked, is_old, "{age:?} {took:?}");
        }
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
