//! libcontainer's interface for v1.

/// Mounts.
pub mod util {
    use std::{io, path::PathBuf};

    use crate::{Hierarchies, hierarchies::BESIDE};

    /// The mount points of the hierarchies.
    pub fn list_subsystem_mount_points() -> io::Result<Vec<PathBuf>> {
        let Hierarchies::Split(roots) = Hierarchies::host() else {
            return Ok(Vec::new());
        };
        let trees = roots.iter().filter(|(name, _)| name.as_str() != BESIDE);
        let mut places: Vec<_> = trees.map(|(_, place)| place.clone()).collect();
        places.sort();
        places.dedup();
        Ok(places)
    }
}
