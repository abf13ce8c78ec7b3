//! Which controllers are mounted where.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};

/// Those that this process uses.
static HOST: OnceLock<Hierarchies> = OnceLock::new();

/// The cgroup hierarchies of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hierarchies {
    /// v2: one hierarchy.
    Unified(PathBuf),
    /// v1: a hierarchy per controller, by the controller's name (`name=systemd` for named ones,
    /// `unified` for a v2 hierarchy beside them).
    Split(BTreeMap<String, PathBuf>),
}

/// The name of a v2 hierarchy beside v1.
pub(crate) const BESIDE: &str = "unified";

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

impl Hierarchies {
    /// The hierarchies of this machine; read once.
    pub fn host() -> &'static Self {
        HOST.get_or_init(|| {
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            Self::parse(&table)
        })
    }

    /// Uses the hierarchies that another process has read: the table of a node with many pods is long. Without effect if
    /// this process has read it.
    pub fn use_as_host(self) {
        let _ = HOST.set(self);
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
            // Beside v1 it has no controllers, but service managers and other OCI runtimes keep
            // processes there, too.
            Some(root) => {
                split.insert(BESIDE.to_owned(), root);
                Self::Split(split)
            }
            None => Self::Split(split),
        }
    }

    /// The v1 hierarchies with controllers, by their mount names: each controller's, and the
    /// directory's if several share one. Empty for v2.
    pub fn controllers(&self) -> BTreeMap<String, &Path> {
        let Self::Split(roots) = self else {
            return BTreeMap::new();
        };
        let mut found = BTreeMap::new();
        for (name, root) in roots {
            if name == BESIDE || name.starts_with("name=") {
                continue;
            }
            found.insert(name.clone(), root.as_path());
            if let Some(shared) = root.file_name().and_then(|name| name.to_str()) {
                found.insert(shared.to_owned(), root.as_path());
            }
        }
        found
    }

    /// Where the hierarchies are mounted; one that several controllers share is there for each of them.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        let (unified, split) = match self {
            Self::Unified(root) => (Some(root), None),
            Self::Split(roots) => (None, Some(roots.values())),
        };
        unified
            .into_iter()
            .chain(split.into_iter().flatten())
            .map(PathBuf::as_path)
    }

    /// Whether this is version 2.
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_version_is_read_from_the_mount_table() {
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
        let shown = Hierarchies::parse(v1);
        let names: Vec<_> = shown.controllers().into_keys().collect();
        assert_eq!(names, ["cpu", "cpu,cpuacct", "cpuacct"]);
        assert_eq!(shown.roots().count(), 4);
        let v2 = "30 1 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            Hierarchies::parse(v2),
            Hierarchies::Unified("/sys/fs/cgroup".into())
        );
        assert!(
            Hierarchies::parse(v2)
                .roots()
                .eq([Path::new("/sys/fs/cgroup")])
        );
    }
}
