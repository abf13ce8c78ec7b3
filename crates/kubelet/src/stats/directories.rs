//! Disk usage of directories, cached: a tree that takes long to walk is walked rarely, so that a
//! pod with millions of files costs no more than others.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use stdx::DiskUsage;

/// The minimum time that a measurement is cached.
const FRESH: Duration = Duration::from_secs(5);
/// A measurement is cached this many times longer than it took.
const FACTOR: u32 = 50;

#[derive(Clone, Copy)]
struct Measured {
    usage: DiskUsage,
    at: Instant,
    took: Duration,
}

/// The last measurements, by owner and directory.
#[derive(Clone, Default)]
pub struct Directories {
    /// Guards the map only.
    known: Arc<Mutex<HashMap<(String, PathBuf), Measured>>>,
}

impl Directories {
    /// The disk usage of a directory, possibly cached. Blocks while it is measured.
    pub fn usage(&self, owner: &str, dir: &Path) -> DiskUsage {
        let key = (owner.to_owned(), dir.to_path_buf());
        let known = self.known.lock().get(&key).copied();
        if let Some(known) = known
            && known.at.elapsed() < FRESH.max(known.took * FACTOR)
        {
            return known.usage;
        }
        let begin = Instant::now();
        let usage = DiskUsage::measure(dir).unwrap_or_default();
        let measured = Measured {
            usage,
            at: Instant::now(),
            took: begin.elapsed(),
        };
        self.known.lock().insert(key, measured);
        usage
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
        std::fs::write(dir.path().join("a"), "x").unwrap();
        assert_eq!(directories.usage("pod", dir.path()).inodes, 1);
        std::fs::write(dir.path().join("b"), "x").unwrap();
        assert_eq!(directories.usage("pod", dir.path()).inodes, 1);
        directories.retain(|owner| owner != "pod");
        assert_eq!(directories.usage("pod", dir.path()).inodes, 2);
    }
}
