//! Whether the mount that a volume is on can propagate as requested. On a private mount the kernel
//! would accept the request without effect; containers are refused there, as by containerd.

use std::path::Path;

use crate::{
    error::{Error, Result},
    mount_table::MountEntry,
};

/// The requested propagation, from the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Propagation {
    /// From the node into the container.
    Slave,
    /// Both ways.
    Shared,
}

/// Rejects a path on a mount that cannot propagate as requested.
pub(super) fn check(path: &Path, wanted: Propagation) -> Result<()> {
    let mount = MountEntry::of_path(path).map_err(Error::file(path))?;
    match refusal(path, &mount, wanted) {
        Some(why) => Err(Error::Invalid(why)),
        None => Ok(()),
    }
}

fn refusal(path: &Path, mount: &MountEntry, wanted: Propagation) -> Option<String> {
    let (is_possible, kinds) = match wanted {
        Propagation::Slave => (mount.is_shared || mount.is_slave, "shared or slave"),
        Propagation::Shared => (mount.is_shared, "shared"),
    };
    let place = &mount.mount_point;
    let why = format!("path {path:?} is mounted on {place:?} but it is not a {kinds} mount");
    (!is_possible).then_some(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mounts_propagate_both_ways_and_slaves_inwards() {
        let path = Path::new("/mnt/data");
        for (is_shared, is_slave, inwards, both_ways) in [
            (false, false, false, false),
            (true, false, true, true),
            (false, true, true, false),
            (true, true, true, true),
        ] {
            let mount = MountEntry {
                mount_point: "/mnt".into(),
                is_shared,
                is_slave,
                is_of_itself: false,
            };
            let refused = |wanted| refusal(path, &mount, wanted);
            assert_eq!(refused(Propagation::Slave).is_none(), inwards, "{mount:?}");
            assert_eq!(
                refused(Propagation::Shared).is_none(),
                both_ways,
                "{mount:?}"
            );
            for (wanted, kinds) in [
                (Propagation::Slave, "shared or slave"),
                (Propagation::Shared, "shared"),
            ] {
                if let Some(why) = refused(wanted) {
                    let expected = format!(
                        "path \"/mnt/data\" is mounted on \"/mnt\" but it is not a {kinds} mount"
                    );
                    assert_eq!(why, expected);
                }
            }
        }
    }
}
