//! Control groups of both versions through their files. A [`Cgroup`] is one path below the root of
//! every hierarchy; which hierarchies exist is read once from the mount table.
//!
//! Containers' limits at creation are the OCI runtime's work; this is for everything around it:
//! our own processes, killing, removing, reading usage and changing limits later.

mod limits;
mod usage;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
pub use usage::Usage;

/// Which controllers are mounted where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchies {
    /// Version 2: one tree.
    Unified(PathBuf),
    /// Version 1: a tree per controller, by the controller's name (`name=systemd` for named ones).
    Split(BTreeMap<String, PathBuf>),
}

impl Hierarchies {
    /// What this machine has; read once.
    pub fn host() -> &'static Self {
        static HOST: OnceLock<Hierarchies> = OnceLock::new();
        HOST.get_or_init(|| {
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            Self::parse(&table)
        })
    }

    fn parse(mountinfo: &str) -> Self {
        let mut split = BTreeMap::new();
        let mut unified = None;
        for line in mountinfo.lines() {
            let Some((place, kind)) = line.split_once(" - ") else {
                continue;
            };
            let Some(mountpoint) = place.split(' ').nth(4) else {
                continue;
            };
            let mut kind = kind.split(' ');
            match kind.next() {
                Some("cgroup2") => {
                    unified.get_or_insert_with(|| PathBuf::from(mountpoint));
                }
                Some("cgroup") => {
                    for option in kind.nth(1).unwrap_or_default().split(',') {
                        if CONTROLLERS.contains(&option) || option.starts_with("name=") {
                            split
                                .entry(option.to_owned())
                                .or_insert_with(|| mountpoint.into());
                        }
                    }
                }
                _ => {}
            }
        }
        match unified {
            Some(root) if split.is_empty() => Self::Unified(root),
            // Beside version 1 trees it has no controllers, but service managers and other OCI
            // runtimes keep processes there, too.
            Some(root) => {
                split.insert("unified".to_owned(), root);
                Self::Split(split)
            }
            None => Self::Split(split),
        }
    }

    /// Whether this is version 2.
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified(_))
    }
}

const CONTROLLERS: &[&str] = &[
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
    "rdma",
    "misc",
];

/// One path in every hierarchy.
#[derive(Debug, Clone)]
pub struct Cgroup {
    hierarchies: &'static Hierarchies,
    path: PathBuf,
}

impl Cgroup {
    /// The cgroup at `path`, which is relative to the hierarchies' roots.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let path = path.strip_prefix("/").unwrap_or(path).to_path_buf();
        Self {
            hierarchies: Hierarchies::host(),
            path,
        }
    }

    /// Its directory for one controller, if that is mounted.
    pub fn dir(&self, controller: &str) -> Option<PathBuf> {
        match self.hierarchies {
            Hierarchies::Unified(root) => Some(root.join(&self.path)),
            Hierarchies::Split(roots) => roots.get(controller).map(|root| root.join(&self.path)),
        }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        match self.hierarchies {
            Hierarchies::Unified(root) => vec![root.join(&self.path)],
            Hierarchies::Split(roots) => {
                let mut dirs: Vec<_> = roots.values().map(|root| root.join(&self.path)).collect();
                dirs.sort();
                dirs.dedup();
                dirs
            }
        }
    }

    /// Makes it where it is missing and moves a process into it.
    pub fn join(&self, pid: i32) -> io::Result<()> {
        // A new cpuset of version 1 has no processors and admits nobody; the inherited one is right.
        let cpuset = if self.hierarchies.is_unified() {
            None
        } else {
            self.dir("cpuset")
        };
        for dir in self.dirs() {
            if Some(&dir) != cpuset.as_ref() {
                fs::create_dir_all(&dir)?;
                fs::write(dir.join("cgroup.procs"), pid.to_string())?;
            }
        }
        Ok(())
    }

    /// Every process in it and below.
    pub fn processes(&self) -> Vec<i32> {
        // Version 1: the tree of processes is the same in all; freezer has no processes of its own
        // to leave behind, pids may be absent.
        let dir = ["pids", "memory", "freezer", "cpu"]
            .iter()
            .find_map(|name| self.dir(name));
        let mut found = Vec::new();
        if let Some(dir) = dir {
            collect(&dir, &mut found);
        }
        found
    }

    /// Kills everything in it, again until nothing is left or the deadline has passed.
    pub fn kill_all(&self, deadline: Duration) -> bool {
        let until = std::time::Instant::now() + deadline;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return true;
            }
            for pid in left {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            if std::time::Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes it with everything below. What still holds a process stays and is an error.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for dir in self.dirs() {
            if let Err(error) = remove_tree(&dir) {
                result = Err(error);
            }
        }
        result
    }

    /// Tries [`Cgroup::remove`] until it works or the deadline has passed: the kernel lets go of
    /// a dead process' cgroup a moment after the process has been collected.
    pub fn remove_within(&self, deadline: Duration) -> io::Result<()> {
        let until = std::time::Instant::now() + deadline;
        loop {
            match self.remove() {
                Err(_) if std::time::Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                result => return result,
            }
        }
    }

    /// How often the kernel killed in it for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let Some(dir) = self.dir("memory") else {
            return 0;
        };
        let file = if self.hierarchies.is_unified() {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        usage::keyed(&dir.join(file), "oom_kill").unwrap_or(0)
    }
}

fn collect(dir: &Path, found: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
        found.extend(
            text.lines()
                .filter_map(|line| line.parse::<i32>().ok())
                .filter(|pid| *pid > 0),
        );
    }
    for child in children(dir) {
        collect(&child, found);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let directories = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for child in children(dir) {
        remove_tree(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_tells_which_version_is_in_use() {
        let v1 = "30 1 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  31 1 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                  32 1 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let Hierarchies::Split(roots) = Hierarchies::parse(v1) else {
            panic!("not version 1")
        };
        assert_eq!(roots["cpu"], roots["cpuacct"]);
        assert_eq!(
            roots["name=systemd"],
            PathBuf::from("/sys/fs/cgroup/systemd")
        );
        let v2 = "30 1 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            Hierarchies::parse(v2),
            Hierarchies::Unified("/sys/fs/cgroup".into())
        );
    }
}
