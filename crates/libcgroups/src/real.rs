//! For tests: the machine's own v2 hierarchy, which may have controllers or none. One test at a
//! time uses it, and enabled controllers are disabled again.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use crate::{Hierarchies, group::put, v2::util::get_unified_mount_point};

pub(crate) struct Tree {
    root: PathBuf,
    before: String,
    /// The root directory, locked.
    _lock: File,
}

impl Tree {
    /// `None` on a machine with v1 only. Needs root.
    pub(crate) fn take() -> Option<Self> {
        assert!(
            nix::unistd::geteuid().is_root(),
            "tests of cgroups must run as root"
        );
        let root = get_unified_mount_point().ok()?;
        let lock = File::open(&root).unwrap();
        lock.lock().unwrap();
        Some(Self {
            before: fs::read_to_string(root.join("cgroup.subtree_control")).unwrap(),
            root,
            _lock: lock,
        })
    }

    pub(crate) fn hierarchies(&self) -> &'static Hierarchies {
        Box::leak(Box::new(Hierarchies::Unified(self.root.clone())))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let now = fs::read_to_string(self.root.join("cgroup.subtree_control"));
        let before: Vec<&str> = self.before.split_whitespace().collect();
        for controller in now.unwrap_or_default().split_whitespace() {
            if !before.contains(&controller) {
                let _ = put(
                    &self.root,
                    "cgroup.subtree_control",
                    &format!("-{controller}"),
                );
            }
        }
    }
}
