//! libcontainer's interface for v2.

/// Mounts.
pub mod util {
    use std::{io, path::PathBuf};

    use crate::{Hierarchies, hierarchies::BESIDE};

    /// The mount point of the hierarchy.
    pub fn get_unified_mount_point() -> io::Result<PathBuf> {
        let place = match Hierarchies::host() {
            Hierarchies::Unified(root) => Some(root),
            Hierarchies::Split(roots) => roots.get(BESIDE),
        };
        place
            .cloned()
            .ok_or_else(|| io::Error::other("no cgroups of version 2 are mounted"))
    }
}
