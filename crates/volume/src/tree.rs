//! Removes directory trees that containers could write to: no mount is crossed, no link is
//! followed, and neither the depth of the tree nor a concurrent change leads outside of it.

use std::{
    ffi::{CStr, CString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{Error, Result};

/// The maximum depth: one descriptor is open per level. Deeper directories are moved to the top
/// first.
const MAX_DEPTH: usize = 64;
/// How many names of a directory are read at a time: its writer decides how many there are.
const MAX_ENTRIES: usize = 1024;

const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Removes a directory tree. Fails at a mount point without removing what is mounted; a missing
/// directory is no error.
pub fn remove_tree(dir: &Path) -> Result<()> {
    let fail = |errno: Errno| match errno {
        Errno::XDEV | Errno::BUSY => Error::StillMounted(dir.to_owned()),
        errno => Error::io("remove", dir)(errno.into()),
    };
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(fail(Errno::INVAL));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(fail)?,
    };
    let name = CString::new(name.as_bytes()).map_err(|_| fail(Errno::INVAL))?;
    let Some(top) = open_dir(&parent, &name).map_err(fail)? else {
        return unlink(&parent, &name, AtFlags::empty()).map_err(fail);
    };
    let mut removal = Removal {
        top: &top,
        moved: 0,
    };
    // The next pass removes directories that were moved to the top.
    loop {
        let before = removal.moved;
        removal.empty(&top, 1).map_err(fail)?;
        if removal.moved == before {
            break;
        }
    }
    unlink(&parent, &name, AtFlags::REMOVEDIR).map_err(fail)
}

/// Opens the directory; `None` if there is nothing or not a directory. The kernel refuses to enter
/// a mount.
fn open_dir(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<Option<OwnedFd>> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(parent, name, OPEN_DIR, Mode::empty(), resolve) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The first entries of a directory, which may have more than fit into memory.
fn some_entries(dir: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            entries.push(name);
        }
        if entries.len() == MAX_ENTRIES {
            break;
        }
    }
    Ok(entries)
}

struct Removal<'a> {
    top: &'a OwnedFd,
    moved: u64,
}

impl Removal<'_> {
    fn empty(&mut self, dir: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
        loop {
            let entries = some_entries(dir)?;
            if entries.is_empty() {
                return Ok(());
            }
            self.remove(dir, entries, depth)?;
        }
    }

    fn remove(
        &mut self,
        dir: &OwnedFd,
        entries: Vec<CString>,
        depth: usize,
    ) -> rustix::io::Result<()> {
        for name in entries {
            match open_dir(dir, &name)? {
                None => unlink(dir, &name, AtFlags::empty())?,
                Some(_) if depth >= MAX_DEPTH => self.hoist(dir, &name)?,
                Some(child) => {
                    self.empty(&child, depth + 1)?;
                    drop(child);
                    unlink(dir, &name, AtFlags::REMOVEDIR)?;
                }
            }
        }
        Ok(())
    }

    /// Moves a directory that is too deep to the top of the tree.
    fn hoist(&mut self, dir: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
        loop {
            self.moved += 1;
            let place = format!(".removed-{}", self.moved);
            match rustix::fs::renameat(dir, name, self.top, &place) {
                // The name is in use: try the next.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                other => return other,
            }
        }
    }
}

fn unlink(dir: &OwnedFd, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Whether a path is the root of a mount; false if it does not exist.
pub(crate) fn is_mount_point(path: &Path) -> Result<bool> {
    use rustix::fs::{StatxAttributes, StatxFlags};
    // What is known suffices: the server of a mounted file system may hang.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = match rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE) {
        Err(Errno::NOENT) => return Ok(false),
        stat => stat.map_err(|errno| Error::io("stat", path)(errno.into()))?,
    };
    if !stat
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT)
    {
        // Linux before 5.8.
        return Err(Error::io("find the mount of", path)(Errno::NOSYS.into()));
    }
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_tree_keeps_the_targets_of_its_links() {
        let root = tempfile::tempdir().unwrap();
        let (tree, outside) = (root.path().join("tree"), root.path().join("outside"));
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "").unwrap();
        std::fs::write(tree.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/b/link")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").exists());
        remove_tree(&tree).unwrap();
        // A link in place of the tree is not followed either.
        std::os::unix::fs::symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.is_symlink() && outside.join("kept").exists());
    }

    #[test]
    fn a_tree_deeper_than_a_process_may_have_open_files_goes() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let mut dir = rustix::fs::open(&tree, OPEN_DIR, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
            dir = rustix::fs::openat(&dir, "d", OPEN_DIR, Mode::empty()).unwrap();
        }
        drop(dir);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_directory_with_more_entries_than_are_read_at_a_time_goes() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        for number in 0..2 * MAX_ENTRIES + 1 {
            std::fs::write(tree.join(number.to_string()), "").unwrap();
        }
        let opened = rustix::fs::open(&tree, OPEN_DIR, Mode::empty()).unwrap();
        assert_eq!(some_entries(&opened).unwrap().len(), MAX_ENTRIES);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_mount_below_a_tree_is_kept_and_reported() {
        use rustix::{
            mount::{MountFlags, MountPropagationFlags, UnmountFlags},
            thread::UnshareFlags,
        };
        // The mount exists only for this thread.
        // SAFETY: only this thread's view of mounts and its working directory change.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        rustix::mount::mount_change("/", private).unwrap();
        let root = tempfile::tempdir().unwrap();
        let (tree, inside) = (root.path().join("tree"), root.path().join("tree/a/mounted"));
        std::fs::create_dir_all(&inside).unwrap();
        assert!(!is_mount_point(&inside).unwrap());
        let flags = MountFlags::empty();
        rustix::mount::mount("tmpfs", &inside, "tmpfs", flags, None).unwrap();
        std::fs::write(inside.join("kept"), "").unwrap();
        assert!(is_mount_point(&inside).unwrap());
        for dir in [&tree, &inside] {
            let error = remove_tree(dir).unwrap_err();
            assert!(matches!(error, Error::StillMounted(_)), "{error}");
        }
        assert!(inside.join("kept").exists());
        rustix::mount::unmount(&inside, UnmountFlags::empty()).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
