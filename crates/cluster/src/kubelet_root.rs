//! The kubelet's directory outside of the data directory: CSI drivers packaged elsewhere expect
//! `/var/lib/kubelet`. A file in it names its owner, so that two kubelets never share one and
//! `reset` removes no directory of another.
//!
//! Wherever it is, it is on a shared mount, as upstream's kubelet makes it: the mounts of CSI drivers,
//! which run in containers, must appear on the node, also where `/` is a private mount.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use runtime::mount_table::MountEntry;
use tracing::{info, warn};

use crate::{Error, marker::Marker, reset::mount_table};

/// The file with the data directory that owns the kubelet's directory.
const OWNER: &str = "mainstay-data-dir";

const OPTION: &str = "kubelet-root-dir";

/// The given directory, or the one in the data directory.
pub(crate) fn resolve(given: Option<PathBuf>, data_dir: &Path) -> Result<PathBuf, Error> {
    let Some(given) = given else {
        return Ok(data_dir.join("kubelet"));
    };
    if !given.is_absolute() || given.parent().is_none() {
        let why = format!("{} is not an absolute path", given.display());
        return Err(Error::Option(OPTION, why));
    }
    Ok(given)
}

/// Claims the directory for this data directory, for as long as both exist. Fails if another
/// kubelet owns it, or if this node's pods have their volumes elsewhere.
pub(crate) fn claim(data_dir: &Path, root: &Path) -> Result<(), Error> {
    let usual = data_dir.join("kubelet");
    let known = Marker::read(data_dir)?.and_then(|marker| marker.kubelet_root);
    let was_made = known.is_some() || usual.exists();
    let known = known.unwrap_or_else(|| usual.clone());
    if was_made && known != root {
        let known = known.display();
        let why =
            format!("the volumes of this node's pods are in {known}; reset the node to change it");
        return Err(Error::Option(OPTION, why));
    }
    if root == usual {
        return Ok(());
    }
    if !is_owned(data_dir, root) && !is_empty(root)? {
        let why = format!("{} is used by another kubelet", root.display());
        return Err(Error::Option(OPTION, why));
    }
    let failed = |source| Error::Directory {
        path: root.to_owned(),
        source,
    };
    fs::create_dir_all(root).map_err(failed)?;
    fs::write(root.join(OWNER), data_dir.as_os_str().as_encoded_bytes()).map_err(failed)?;
    Marker::update(data_dir, |marker| {
        marker.kubelet_root = Some(root.to_owned())
    })
}

/// The directory that this data directory has claimed.
pub(crate) fn claimed(data_dir: &Path, marker: Option<&Marker>) -> Option<PathBuf> {
    let root = marker?.kubelet_root.clone()?;
    is_owned(data_dir, &root).then_some(root)
}

/// Makes mounts below the directory propagate, unless they do. The directory becomes a mount of
/// itself if it is none: how others propagate is not changed.
pub(crate) fn share(root: &Path) -> Result<(), Error> {
    let failed = |source| Error::Directory {
        path: root.to_owned(),
        source,
    };
    fs::create_dir_all(root).map_err(failed)?;
    let root = &fs::canonicalize(root).map_err(failed)?;
    let current = MountEntry::of_path(root).map_err(failed)?;
    if current.is_shared {
        return Ok(());
    }
    let is_below = |mount: &PathBuf| mount.starts_with(root) && mount != root;
    let change = |source: Option<&Path>, flags| {
        let none = None::<&str>;
        mount(source, root, none, flags, none).map_err(|errno| failed(errno.into()))
    };
    if current.mount_point != *root {
        if mount_table().iter().any(is_below) {
            // They would be hidden.
            warn!(root = %root.display(), "on a private mount with mounts of pods: mounts of CSI drivers do not propagate");
            return Ok(());
        }
        change(Some(root), MsFlags::MS_BIND)?;
    }
    change(None, MsFlags::MS_SHARED | MsFlags::MS_REC)?;
    info!(root = %root.display(), "made a shared mount");
    Ok(())
}

/// Removes the mount that [`share`] made. Others at this path are not ours.
pub(crate) fn unshare(root: &Path) -> Result<(), Error> {
    let Ok(root) = fs::canonicalize(root) else {
        return Ok(());
    };
    let is_ours = || {
        let mount = MountEntry::of_path(&root);
        mount.is_ok_and(|mount| mount.mount_point == root && mount.is_of_itself)
    };
    while is_ours() {
        umount2(&root, MntFlags::MNT_DETACH).map_err(|errno| Error::Directory {
            path: root.clone(),
            source: errno.into(),
        })?;
    }
    Ok(())
}

fn is_owned(data_dir: &Path, root: &Path) -> bool {
    let owner = fs::read(root.join(OWNER));
    owner.is_ok_and(|owner| owner == data_dir.as_os_str().as_encoded_bytes())
}

fn is_empty(root: &Path) -> Result<bool, Error> {
    match fs::read_dir(root) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(Error::Directory {
            path: root.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_belongs_to_one_kubelet_and_a_kubelet_has_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (data, other) = (dir.path().join("data"), dir.path().join("other"));
        let (root, full) = (dir.path().join("root"), dir.path().join("full"));
        for made in [&data, &other, &full] {
            fs::create_dir(made).unwrap();
            fs::write(made.join("x"), "").unwrap();
        }
        let refused = |data: &Path, root: &Path| claim(data, root).unwrap_err().to_string();
        assert!(refused(&data, &full).contains("another kubelet"));
        assert_eq!(Marker::read(&data).unwrap(), None);
        claim(&data, &root).unwrap();
        claim(&data, &root).unwrap();
        assert!(refused(&other, &root).contains("another kubelet"));
        assert!(refused(&data, &data.join("kubelet")).contains("reset the node"));
        let marker = Marker::read(&data).unwrap();
        assert_eq!(claimed(&data, marker.as_ref()), Some(root.clone()));
        assert_eq!(claimed(&other, marker.as_ref()), None);
        // A kubelet that started in its data directory stays there.
        fs::create_dir(other.join("kubelet")).unwrap();
        claim(&other, &other.join("kubelet")).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        assert!(refused(&other, &elsewhere).contains("reset the node"));
        assert!(!elsewhere.exists());
    }

    #[test]
    fn mounts_below_the_directory_propagate_until_it_is_reset() {
        use nix::sched::{CloneFlags, unshare as unshare_namespace};
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("kubelet"), dir.path().join("other"));
        // The thread has a mount namespace of its own.
        let test = std::thread::spawn(move || {
            unshare_namespace(CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).unwrap();
            let tmpfs = |at: &Path| {
                fs::create_dir_all(at).unwrap();
                mount(none, at, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            };
            let count = |at: &Path| mount_table().iter().filter(|mount| *mount == at).count();
            // Mounts of pods that already run are not hidden.
            tmpfs(&root.join("pods"));
            share(&root).unwrap();
            assert!(!MountEntry::of_path(&root).unwrap().is_shared);
            umount2(&root.join("pods"), MntFlags::empty()).unwrap();
            share(&root).unwrap();
            // A second start.
            share(&root).unwrap();
            assert_eq!(count(&root), 1);
            fs::create_dir(&other).unwrap();
            mount(Some(&root), &other, none, MsFlags::MS_BIND, none).unwrap();
            tmpfs(&root.join("pods"));
            assert_eq!(count(&other.join("pods")), 1, "it does not propagate");
            umount2(&root.join("pods"), MntFlags::empty()).unwrap();
            umount2(&other, MntFlags::empty()).unwrap();
            unshare(&root).unwrap();
            unshare(&root).unwrap();
            assert_eq!(count(&root), 0);
            // Mounts of the machine's owner stay.
            mount(Some(&other), &root, none, MsFlags::MS_BIND, none).unwrap();
            unshare(&root).unwrap();
            assert_eq!(count(&root), 1);
            umount2(&root, MntFlags::empty()).unwrap();
            tmpfs(&root);
            share(&root).unwrap();
            unshare(&root).unwrap();
            assert_eq!(count(&root), 1);
            assert!(MountEntry::of_path(&root).unwrap().is_shared);
        });
        test.join().unwrap();
    }

    #[test]
    fn the_directory_is_an_absolute_path() {
        let data = Path::new("/data");
        assert_eq!(resolve(None, data).unwrap(), data.join("kubelet"));
        for wrong in ["kubelet", "/"] {
            assert!(resolve(Some(wrong.into()), data).is_err(), "{wrong}");
        }
    }
}
