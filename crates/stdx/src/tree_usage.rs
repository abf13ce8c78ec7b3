//! The disk usage of trees, cached: a caller waits only a bounded time. What takes longer is measured in the background,
//! and meanwhile the last known usage counts, or what was found so far if that is more.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{DiskUsage, disk_usage::Walk};

/// How long one walk continues in the background before it is the turn of the next one.
const SLICE: Duration = Duration::from_millis(50);

/// How long a usage is cached.
#[derive(Debug, Clone, Copy)]
pub struct Freshness {
    pub at_least: Duration,
    /// And this many times the duration of the walk, so that large trees are walked rarely.
    pub times_walk: u32,
}

/// The usage of one tree. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct TreeUsage(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    usage: DiskUsage,
    /// When the last walk ended, and how long it took.
    last: Option<(Instant, Duration)>,
    is_walking: bool,
}

impl TreeUsage {
    /// The usage. If it must be measured, the caller waits until the given time at most.
    pub fn get(
        &self,
        dir: &Path,
        freshness: Freshness,
        walks: &Walks,
        until: Instant,
    ) -> DiskUsage {
        {
            let mut known = self.0.lock();
            let is_fresh = known.last.is_some_and(|(at, took)| {
                at.elapsed() < freshness.at_least.max(took * freshness.times_walk)
            });
            if known.is_walking || is_fresh {
                return known.usage;
            }
            known.is_walking = true;
        }
        let mut job = Job {
            tree: self.clone(),
            dir: dir.to_path_buf(),
            walk: None,
            took: Duration::ZERO,
        };
        if !job.advance(until) {
            walks.push(job);
        }
        self.0.lock().usage
    }
}

/// Walks that continue in the background, in turn and on one thread. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Walks(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    has_thread: bool,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} walks", self.jobs.len())
    }
}

impl Walks {
    fn push(&self, job: Job) {
        let mut waiting = self.0.lock();
        waiting.jobs.push_back(job);
        if waiting.has_thread {
            return;
        }
        let walks = self.clone();
        let thread = thread::Builder::new().name("disk usage".into());
        // Without a thread the walks wait until the next one starts.
        waiting.has_thread = thread.spawn(move || walks.run()).is_ok();
    }

    /// Ends when nothing waits.
    fn run(&self) {
        loop {
            let job = {
                let mut waiting = self.0.lock();
                let job = waiting.jobs.pop_front();
                waiting.has_thread = job.is_some();
                job
            };
            let Some(mut job) = job else { return };
            if !job.advance(Instant::now() + SLICE) {
                self.0.lock().jobs.push_back(job);
            }
        }
    }
}

/// A walk that updates the usage of its tree.
struct Job {
    tree: TreeUsage,
    dir: PathBuf,
    walk: Option<Walk>,
    took: Duration,
}

impl Job {
    /// Continues until the given time; returns whether the end was reached.
    fn advance(&mut self, until: Instant) -> bool {
        let begun = Instant::now();
        if begun >= until {
            return false;
        }
        if self.walk.is_none() {
            self.walk = Walk::begin(&self.dir).ok();
        }
        // A tree that cannot be read has no usage.
        let (usage, is_done) = match &mut self.walk {
            Some(walk) => {
                let is_done = walk.advance(until);
                (walk.sum(), is_done)
            }
            None => (DiskUsage::default(), true),
        };
        self.took += begun.elapsed();
        self.record(usage, is_done);
        is_done
    }

    fn record(&self, usage: DiskUsage, is_done: bool) {
        let mut known = self.tree.0.lock();
        if is_done {
            known.usage = usage;
            known.last = Some((Instant::now(), self.took));
        } else {
            known.usage = known.usage.max(usage);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.tree.0.lock().is_walking = false;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const QUICKLY: Freshness = Freshness {
        at_least: Duration::from_secs(5),
        times_walk: 50,
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Makes the last walk older.
    fn age(tree: &TreeUsage, age: Duration, took: Duration) {
        tree.0.lock().last = Some((Instant::now() - age, took));
    }

    #[test]
    fn a_usage_counts_for_a_while_and_longer_if_the_walk_took_long() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, walks) = (TreeUsage::default(), Walks::default());
        let inodes = || tree.get(dir.path(), QUICKLY, &walks, soon()).inodes;
        assert_eq!(inodes(), 0);
        fs::write(dir.path().join("a"), "").unwrap();
        assert_eq!(inodes(), 0);
        age(&tree, Duration::from_secs(9), Duration::from_millis(200));
        assert_eq!(inodes(), 0);
        age(&tree, Duration::from_secs(9), Duration::from_millis(1));
        assert_eq!(inodes(), 1);
    }

    #[test]
    fn without_time_the_last_usage_counts_and_the_walk_ends_in_the_background() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, walks) = (TreeUsage::default(), Walks::default());
        fs::write(dir.path().join("a"), "").unwrap();
        // Nothing waits for the thread of the background here.
        walks.0.lock().has_thread = true;
        for _ in 0..3 {
            let now = tree.get(dir.path(), QUICKLY, &walks, Instant::now());
            assert_eq!(now, DiskUsage::default());
        }
        assert_eq!(walks.0.lock().jobs.len(), 1, "one walk of each tree");
        walks.run();
        let known = tree.get(dir.path(), QUICKLY, &walks, Instant::now());
        assert_eq!(known.inodes, 1);
        assert!(!walks.0.lock().has_thread);
    }

    #[test]
    fn what_a_walk_has_found_counts_before_its_end_if_it_is_more() {
        let tree = TreeUsage::default();
        let job = Job {
            tree: tree.clone(),
            dir: PathBuf::new(),
            walk: None,
            took: Duration::ZERO,
        };
        for (inodes, is_done, expected) in
            [(5, true, 5), (3, false, 5), (9, false, 9), (2, true, 2)]
        {
            let found = DiskUsage { bytes: 0, inodes };
            job.record(found, is_done);
            assert_eq!(tree.0.lock().usage.inodes, expected, "{inodes} {is_done}");
        }
    }
}
