//! Removes directory trees written by containers: neither stack usage nor the number of open files
//! depends on the depth. No link is followed and no mount is crossed.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat},
    unistd::{UnlinkatFlags, unlinkat},
};

/// The maximum depth: one file is open per level. Deeper directories are moved to the top first.
const MAX_DEPTH: usize = 64;

/// Removes a directory tree. A missing one is no error.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match File::open(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let name = CString::new(name.as_bytes())?;
    let Some(top) = open_dir(parent.as_fd(), &name)? else {
        return Ok(unlink(parent.as_fd(), &name, UnlinkatFlags::NoRemoveDir)?);
    };
    let mut moved = 0;
    // The next pass removes directories that were moved to the top.
    loop {
        let before = moved;
        empty(top.as_fd(), top.as_fd(), 1, &mut moved)?;
        if moved == before {
            break;
        }
    }
    Ok(unlink(parent.as_fd(), &name, UnlinkatFlags::RemoveDir)?)
}

/// Opens the directory; `None` if there is nothing or not a directory.
fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> nix::Result<Option<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_XDEV
        | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    match openat2(parent, name, how) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn empty(
    top: BorrowedFd<'_>,
    here: BorrowedFd<'_>,
    depth: usize,
    moved: &mut u64,
) -> nix::Result<()> {
    let copy = here.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(copy)?.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    for name in names {
        match open_dir(here, &name)? {
            None => unlink(here, &name, UnlinkatFlags::NoRemoveDir)?,
            Some(_) if depth >= MAX_DEPTH => hoist(top, here, &name, moved)?,
            Some(child) => {
                empty(top, child.as_fd(), depth + 1, moved)?;
                drop(child);
                unlink(here, &name, UnlinkatFlags::RemoveDir)?;
            }
        }
    }
    Ok(())
}

/// Moves a directory that is too deep to the top of the tree.
fn hoist(
    top: BorrowedFd<'_>,
    here: BorrowedFd<'_>,
    name: &CStr,
    moved: &mut u64,
) -> nix::Result<()> {
    loop {
        *moved += 1;
        let place = format!(".removed-{moved}");
        match renameat(here, name, top, place.as_str()) {
            // The name is in use: try the next.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            other => return other,
        }
    }
}

fn unlink(dir: BorrowedFd<'_>, name: &CStr, flag: UnlinkatFlags) -> nix::Result<()> {
    match unlinkat(dir, name, flag) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn removing_a_tree_does_not_follow_links() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        symlink(&outside, tree.join("a/b/link")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").exists());
        remove_tree(&tree).unwrap();
        remove_tree(&dir.path().join("missing/tree")).unwrap();
    }

    #[test]
    fn no_depth_overflows_the_stack_or_runs_out_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut here: OwnedFd = File::open(&tree).unwrap().into();
        for _ in 0..20_000 {
            let mode = nix::sys::stat::Mode::S_IRWXU;
            nix::sys::stat::mkdirat(&here, "d", mode).unwrap();
            here = open_dir(here.as_fd(), c"d").unwrap().unwrap();
        }
        drop(here);
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let place = tree.clone();
        let removed = small.spawn(move || remove_tree(&place)).unwrap();
        removed.join().unwrap().unwrap();
        assert!(!tree.exists());
    }
}
