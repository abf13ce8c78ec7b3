//! Moves the helper into a copy of [the mount namespace for containers](crate::base_mounts), with what the container
//! needs of its pod: its root file system at its own path, and the sources of its mounts. Those on a known mount keep their
//! paths; the others are attached at slots, as they are in the node's namespace, with everything mounted below them. The
//! cgroups of version 1, one for each controller, are mounted in a directory of the namespace, which is bound as a whole.
//!
//! Containers whose mounts propagate, or that have hooks, are created from the node's namespace. So is any container if
//! something is not as expected: that is slower only.

use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
};

use libcgroups::Hierarchies;
use nix::sched::{CloneFlags, setns, unshare};
use oci_spec::runtime::{Capability, LinuxNamespaceType, Mount, MountBuilder, Spec};

use super::mount_points::{CGROUPS, is_bind};
use crate::base_mounts::Slots;

/// The namespace for containers.
#[derive(Debug)]
pub struct Base {
    pub namespace: OwnedFd,
    pub slots: Slots,
}

/// Where the helper is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// In a namespace of its own.
    Own,
    /// In the node's, which the container asks for.
    Node,
    /// In the node's, because something was not as expected.
    NodeBecause(String),
}

/// Moves the helper, and changes the sources of mounts that are at slots. The directories are those that the helper
/// writes to. An error if it can be in neither namespace.
pub(super) fn enter(spec: &mut Spec, base: &Base, directories: &[&Path]) -> io::Result<Entered> {
    if !is_private(spec) {
        return Ok(Entered::Node);
    }
    let back = File::open("/proc/self/ns/mnt")?;
    let mut changed = spec.clone();
    match attach(&mut changed, base, directories) {
        Ok(()) => {
            *spec = changed;
            Ok(Entered::Own)
        }
        Err(error) => {
            setns(&back, CloneFlags::CLONE_NEWNS)?;
            Ok(Entered::NodeBecause(error.to_string()))
        }
    }
}

/// Whether neither the node nor a hook sees or makes mounts of the container.
fn is_private(spec: &Spec) -> bool {
    let Some(linux) = spec.linux() else {
        return false;
    };
    let mut namespaces = linux.namespaces().iter().flatten();
    let own = |kind| kind == LinuxNamespaceType::Mount;
    matches!(
        linux.rootfs_propagation().as_deref(),
        None | Some("private")
    ) && spec.hooks().is_none()
        && namespaces.any(|namespace| own(namespace.typ()) && namespace.path().is_none())
}

/// A tree of mounts of the node's namespace that belongs to no namespace yet.
struct Tree {
    mounts: OwnedFd,
    place: PathBuf,
}

/// Replaces the read-only mounts of the container's cgroups, see [`super::mount_points`], by one of the directory for
/// them, and returns what must be attached there. Nothing if something else is mounted between them.
fn take_cgroups(spec: &mut Spec, slots: &Slots) -> io::Result<Vec<Tree>> {
    let all = spec.mounts().clone().unwrap_or_default();
    let (within, mut others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|mount| mount.destination().starts_with(CGROUPS));
    let Some((top, cgroups)) = within.split_first() else {
        return Ok(Vec::new());
    };
    let is_top = top.typ().as_deref() == Some("tmpfs") && top.destination() == Path::new(CGROUPS);
    let mut linux = spec.linux().clone().unwrap_or_default();
    let mut read_only = linux.readonly_paths().clone().unwrap_or_default();
    let covered = read_only.iter().position(|path| path == CGROUPS);
    // One that may mount could change the directory, which all containers share.
    let is_shown = is_top && !may_mount(spec) && cgroups.iter().all(is_shown_cgroup);
    let (true, Some(covered)) = (is_shown, covered) else {
        return Ok(Vec::new());
    };
    read_only.remove(covered);
    let mut trees = Vec::new();
    for mount in cgroups {
        let (Some(source), Some(name)) = (mount.source(), mount.destination().file_name()) else {
            return Ok(Vec::new());
        };
        let mounts = clone_tree(source, 0)?;
        restrict(&mounts)?;
        let place = slots.cgroups().join(name);
        trees.push(Tree { mounts, place });
    }
    let options = ["nosuid", "noexec", "nodev", "rbind", "rprivate", "ro"];
    let whole = MountBuilder::default()
        .typ("bind")
        .source(slots.cgroups())
        .destination(CGROUPS)
        .options(options.map(str::to_owned).to_vec())
        .build();
    // After `/sys`, which is the only other mount that it can be below.
    others.push(whole.map_err(io::Error::other)?);
    others.sort_by_key(|mount| mount.destination().components().count());
    spec.set_mounts(Some(others));
    linux.set_readonly_paths(Some(read_only));
    spec.set_linux(Some(linux));
    Ok(trees)
}

/// Whether the container's processes can get the right to mount.
fn may_mount(spec: &Spec) -> bool {
    let process = spec.process().as_ref();
    let capabilities = process.and_then(|process| process.capabilities().as_ref());
    let bounding = capabilities.and_then(|capabilities| capabilities.bounding().as_ref());
    bounding.is_some_and(|bounding| bounding.contains(&Capability::SysAdmin))
}

/// Whether a mount is one of a cgroup's directory, read-only and directly below the mount point of cgroups.
fn is_shown_cgroup(mount: &Mount) -> bool {
    let mut options = mount.options().iter().flatten();
    let source = mount.source().as_deref().unwrap_or(Path::new(""));
    is_bind(mount)
        && options.any(|option| option == "ro")
        && mount.destination().parent() == Some(Path::new(CGROUPS))
        && Hierarchies::host()
            .roots()
            .any(|tree| source.starts_with(tree))
}

/// Makes a mount read-only, without devices and programs.
fn restrict(mounts: &OwnedFd) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY
            | libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NODEV
            | libc::MOUNT_ATTR_NOEXEC,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the path is empty and the structure outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mounts.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn attach(spec: &mut Spec, base: &Base, directories: &[&Path]) -> io::Result<()> {
    let root = spec.root().as_ref().map(|root| root.path().clone());
    let root = root.ok_or_else(|| io::Error::other("no root"))?;
    let mut kept = Kept::new(directories)?;
    let cgroups = take_cgroups(spec, &base.slots)?;
    let mut trees = vec![Tree {
        mounts: clone_tree(&root, libc::AT_RECURSIVE)?,
        place: root,
    }];
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for mount in mounts.iter_mut().filter(|mount| is_bind(mount)) {
        let source = mount.source().clone();
        let source = source.ok_or_else(|| io::Error::other("a mount without a source"))?;
        if source == base.slots.cgroups() {
            continue;
        }
        let found = fs::metadata(&source)?;
        if kept.keeps(&source, &found)? {
            continue;
        }
        let slot = base.slots.path(trees.len() - 1, found.is_dir());
        let slot = slot.ok_or_else(|| io::Error::other("there are too many mounts"))?;
        trees.push(Tree {
            mounts: clone_tree(&source, libc::AT_RECURSIVE)?,
            place: slot.clone(),
        });
        mount.set_source(Some(slot));
    }
    let pins = clone_pins(spec)?;
    setns(&base.namespace, CloneFlags::CLONE_NEWNS)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    kept.check()?;
    for tree in trees.iter().chain(&cgroups).chain(&pins) {
        move_tree(tree)?;
    }
    spec.set_mounts(Some(mounts));
    Ok(())
}

/// The files that keep the pod's namespaces.
fn clone_pins(spec: &Spec) -> io::Result<Vec<Tree>> {
    let namespaces = spec.linux().as_ref().and_then(|l| l.namespaces().as_ref());
    let paths = namespaces
        .into_iter()
        .flatten()
        .filter_map(|namespace| namespace.path().as_ref());
    let pins = paths.filter(|path| !path.starts_with("/proc"));
    let clone = |path: &PathBuf| {
        Ok(Tree {
            mounts: clone_tree(path, 0)?,
            place: path.clone(),
        })
    };
    pins.map(clone).collect()
}

/// Files and directories that must be the same at the same paths in the other namespace.
struct Kept {
    /// The mounts that both namespaces have.
    known: Vec<u64>,
    /// Paths with device and inode.
    paths: Vec<(PathBuf, (u64, u64))>,
}

impl Kept {
    fn new(directories: &[&Path]) -> io::Result<Self> {
        let mut kept = Self {
            known: Vec::new(),
            paths: Vec::new(),
        };
        let trees = Hierarchies::host().roots();
        for directory in directories.iter().copied().chain(trees) {
            kept.known.push(mount_id(directory)?);
            kept.remember(directory, &fs::metadata(directory)?);
        }
        Ok(kept)
    }

    fn remember(&mut self, path: &Path, found: &fs::Metadata) {
        let identity = (found.dev(), found.ino());
        self.paths.push((path.to_path_buf(), identity));
    }

    /// Whether a source keeps its path. Something may be mounted below other directories than cgroups.
    fn keeps(&mut self, source: &Path, found: &fs::Metadata) -> io::Result<bool> {
        let mut trees = Hierarchies::host().roots();
        let may = match found.is_dir() {
            true => trees.any(|tree| source.starts_with(tree)),
            false => found.is_file() || found.file_type().is_socket(),
        };
        if !may || !self.known.contains(&mount_id(source)?) {
            return Ok(false);
        }
        self.remember(source, found);
        Ok(true)
    }

    fn check(&self) -> io::Result<()> {
        for (path, identity) in &self.paths {
            let found = fs::metadata(path)?;
            if (found.dev(), found.ino()) != *identity {
                let message = format!("{} is another file", path.display());
                return Err(io::Error::other(message));
            }
        }
        Ok(())
    }
}

fn mount_id(path: &Path) -> io::Result<u64> {
    let path = text(path)?;
    // SAFETY: all zero is a valid value of this structure of numbers.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and the kernel writes one structure.
    let result = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_STATX_DONT_SYNC,
            libc::STATX_MNT_ID,
            &raw mut found,
        )
    };
    match result {
        0 if found.stx_mask & libc::STATX_MNT_ID != 0 => Ok(found.stx_mnt_id),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The mount at a path, with `AT_RECURSIVE` with everything below it.
fn clone_tree(path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let path = text(path)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | flags.cast_unsigned();
    // SAFETY: the path ends with a zero.
    let result =
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    match i32::try_from(result) {
        // SAFETY: the kernel has just created this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn move_tree(tree: &Tree) -> io::Result<()> {
    let place = text(&tree.place)?;
    // SAFETY: the descriptor is open, and both paths end with a zero.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.mounts.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            place.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_containers_without_propagation_and_hooks_get_mounts_of_their_own() {
        let own = json!([{ "type": "mount" }]);
        let hooks = json!({ "createContainer": [{ "path": "/hook" }] });
        for (namespaces, propagation, hooks, expected) in [
            (own.clone(), json!("private"), Value::Null, true),
            (own.clone(), Value::Null, Value::Null, true),
            (own.clone(), json!("slave"), Value::Null, false),
            (own.clone(), json!("shared"), Value::Null, false),
            (own, json!("private"), hooks, false),
            (
                json!([{ "type": "pid" }]),
                json!("private"),
                Value::Null,
                false,
            ),
            (
                json!([{ "type": "mount", "path": "/ns" }]),
                json!("private"),
                Value::Null,
                false,
            ),
        ] {
            let spec: Spec = serde_json::from_value(json!({
                "ociVersion": "1.0.2",
                "linux": { "namespaces": namespaces, "rootfsPropagation": propagation },
                "hooks": hooks,
            }))
            .unwrap();
            assert_eq!(
                is_private(&spec),
                expected,
                "{namespaces} {propagation} {hooks}"
            );
        }
    }

    #[test]
    fn files_on_known_mounts_keep_their_paths_and_other_sources_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let mut kept = Kept::new(&[dir.path()]).unwrap();
        let mut keeps = |path: &Path| kept.keeps(path, &fs::metadata(path).unwrap()).unwrap();
        assert!(keeps(&file));
        assert!(!keeps(dir.path()), "something may be mounted below");
        assert!(!keeps(Path::new("/proc/version")), "another mount");
        assert!(!keeps(Path::new("/dev/null")), "a device");
        kept.check().unwrap();
        let other = dir.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &file).unwrap();
        assert!(kept.check().is_err(), "another file");
        fs::remove_file(&file).unwrap();
        assert!(kept.check().is_err(), "missing");
    }
}
