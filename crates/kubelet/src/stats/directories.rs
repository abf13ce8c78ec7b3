//! Disk usage of directories, cached: a tree that takes long to walk is walked rarely and in the background, so that a
//! pod with millions of files costs no more than others and holds up nothing.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use stdx::{DiskUsage, Freshness, TreeUsage, Walks};

const FRESHNESS: Freshness = Freshness {
    at_least: Duration::from_secs(5),
    times_walk: 50,
};

/// The last measurements, by owner and directory.
#[derive(Clone, Default)]
pub struct Directories {
    /// Guards the map only.
    known: Arc<Mutex<HashMap<(String, PathBuf), TreeUsage>>>,
    walks: Walks,
}

impl Directories {
    /// The disk usage of a directory, possibly cached. Blocks while it is measured, but not after `until`.
    pub fn usage(&self, owner: &str, dir: &Path, until: Instant) -> DiskUsage {
        let key = (owner.to_owned(), dir.to_path_buf());
        let tree = self.known.lock().entry(key).or_default().clone();
        tree.get(dir, FRESHNESS, &self.walks, until)
    }

    /// Drops measurements of other owners.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.known.lock().retain(|(owner, _), _| keep(owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_cached_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::default();
        let inodes = |dir: &Path| {
            let until = Instant::now() + Duration::from_secs(60);
            directories.usage("pod", dir, until).inodes
        };
        std::fs::write(dir.path().join("a"), "x").unwrap();
        assert_eq!(inodes(dir.path()), 1);
        std::fs::write(dir.path().join("b"), "x").unwrap();
        assert_eq!(inodes(dir.path()), 1);
        directories.retain(|owner| owner != "pod");
        assert_eq!(inodes(dir.path()), 2);
    }
}
