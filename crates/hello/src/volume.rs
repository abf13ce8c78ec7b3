//! Removes or empties the directory of a volume without touching anything outside of it, whatever a
//! pod left in it. No symbolic link is followed and no mount is crossed.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, open, openat2, renameat, unlinkat},
    io::Errno,
};

use crate::{Command, Complaint, Outcome};

pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "remove-volume",
        arguments: "ROOT NAME...",
        help: "remove directories below a root, without crossing mounts or following links",
        run: remove_volume,
    },
    Command {
        name: "empty-volume",
        arguments: "DIRECTORY",
        help: "remove everything in a directory, without crossing mounts or following links",
        run: empty_volume,
    },
];

/// Deeper directories are moved up before they are emptied: neither the stack nor the number of
/// open files depends on the depth.
const DEPTH: usize = 64;

/// Removes everything that can be removed; the error has a line for each of the others, which
/// begins with its name.
fn remove_volume(args: &[String]) -> Outcome {
    let Some((root, names)) = args.split_first().filter(|(_, names)| !names.is_empty()) else {
        return Err("which root, and which directories in it?".into());
    };
    let is_name =
        |name: &String| !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        return Err(format!("{name:?} is not the name of a directory").into());
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let root = open(root, flags, Mode::empty()).map_err(|error| format!("{root}: {error}"))?;
    let mut failed = String::new();
    for name in names {
        if let Err(why) = remove(root.as_fd(), &CString::new(name.as_str())?) {
            failed.push_str(&format!("\n{name}: {why}"));
        }
    }
    match failed.is_empty() {
        true => Ok(0),
        false => Err(format!("not removed:{failed}").into()),
    }
}

/// Removes everything in a directory, which stays.
fn empty_volume(args: &[String]) -> Outcome {
    let [directory] = args else {
        return Err("which directory?".into());
    };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(directory.as_str(), flags, Mode::empty());
    let volume = opened.map_err(|error| format!("{directory}: {error}"))?;
    empty_all(volume.as_fd())?;
    Ok(0)
}

/// Removes a directory tree; a missing one is no error.
fn remove(root: BorrowedFd<'_>, name: &CStr) -> Result<(), Complaint> {
    let volume = match enter(root, name) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(|error| complaint(name, error))?,
    };
    empty_all(volume.as_fd())?;
    drop(volume);
    unlinkat(root, name, AtFlags::REMOVEDIR).map_err(|error| complaint(name, error))
}

/// Empties a volume of any depth.
fn empty_all(volume: BorrowedFd<'_>) -> Result<(), Complaint> {
    let mut moved = 0;
    // Repeat while directories are moved up.
    loop {
        let before = moved;
        empty(volume, volume, 0, &mut moved)?;
        if moved == before {
            return Ok(());
        }
    }
}

fn enter(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(parent, name, flags, Mode::empty(), resolve)
}

fn complaint(name: &CStr, error: Errno) -> Complaint {
    // A pod chose the name: it must not look like another line.
    let name = name.to_string_lossy();
    let name = name.escape_debug();
    match error {
        Errno::XDEV | Errno::BUSY => format!("{name}: is a mount and stays").into(),
        Errno::LOOP => format!("{name}: is a symbolic link and stays").into(),
        error => format!("{name}: {error}").into(),
    }
}

/// Empties a directory of the volume.
fn empty(
    volume: BorrowedFd<'_>,
    here: BorrowedFd<'_>,
    depth: usize,
    moved: &mut usize,
) -> Result<(), Complaint> {
    for entry in Dir::read_from(here)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(here, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            // Linux returns EISDIR, POSIX EPERM.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(complaint(name, error)),
        }
        match unlinkat(here, name, AtFlags::REMOVEDIR) {
            Ok(()) => continue,
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(complaint(name, error)),
        }
        if depth >= DEPTH {
            move_up(volume, here, name, moved)?;
            continue;
        }
        let inner = enter(here, name).map_err(|error| complaint(name, error))?;
        empty(volume, inner.as_fd(), depth + 1, moved)?;
        unlinkat(here, name, AtFlags::REMOVEDIR).map_err(|error| complaint(name, error))?;
    }
    Ok(())
}

/// Moves a directory to the top of the volume, where the pod may have taken names.
fn move_up(
    volume: BorrowedFd<'_>,
    here: BorrowedFd<'_>,
    name: &CStr,
    moved: &mut usize,
) -> Result<(), Complaint> {
    loop {
        *moved += 1;
        let up = CString::new(format!(".removing-{moved}"))?;
        match renameat(here, name, volume, &up) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            other => return other.map_err(|error| complaint(name, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use super::*;

    /// A temporary directory, removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hello-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn remove(&self, name: &str) -> Outcome {
            remove_volume(&[self.0.display().to_string(), name.to_owned()])
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_volume_goes_with_all_that_is_in_it_and_nothing_that_links_point_to() {
        let root = Root::new("links");
        let outside = root.0.join("outside");
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let volume = root.0.join("pvc-1");
        fs::create_dir_all(volume.join("a/b/c")).unwrap();
        fs::write(volume.join("a/b/file"), "x").unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        symlink("../outside", volume.join("a/relative")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        root.remove("pvc-1").unwrap();
        assert!(!volume.exists());
        assert!(outside.join("kept").exists());
        root.remove("pvc-1").unwrap();
    }

    #[test]
    fn an_emptied_volume_stays_and_so_does_all_that_links_in_it_point_to() {
        let root = Root::new("empty");
        let outside = root.0.join("outside");
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let volume = root.0.join("pv");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join(".hidden"), "x").unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        let empty = |path: &PathBuf| empty_volume(&[path.display().to_string()]);
        empty(&volume).unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert!(outside.join("kept").exists());
        let link = root.0.join("link");
        symlink(&outside, &link).unwrap();
        assert!(empty(&link).is_err() && empty(&root.0.join("none")).is_err());
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn a_volume_that_is_a_link_stays_and_so_does_its_target() {
        let root = Root::new("itself");
        let outside = root.0.join("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        symlink("outside", root.0.join("pvc-1")).unwrap();
        let why = root.remove("pvc-1").unwrap_err().to_string();
        assert!(why.contains("\npvc-1: "), "{why}");
        assert!(outside.join("kept").exists() && root.0.join("pvc-1").exists());
    }

    #[test]
    fn a_mount_in_a_volume_stays_with_what_is_in_it_and_so_does_a_volume_that_is_one() {
        use rustix::{
            mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount},
            thread::{UnshareFlags, unshare_unsafe},
        };
        // The mounts exist only for this thread.
        // SAFETY: only this thread's view of mounts and its working directory change.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        mount_change("/", private).unwrap();
        let root = Root::new("mounts");
        let outside = root.0.join("outside");
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        // Of the same file system: a device number does not show it.
        for mounted in ["pvc-1/a/mounted", "pvc-2"] {
            let mounted = root.0.join(mounted);
            fs::create_dir_all(&mounted).unwrap();
            mount_bind(&outside, &mounted).unwrap();
            let name = mounted
                .strip_prefix(&root.0)
                .unwrap()
                .iter()
                .next()
                .unwrap();
            let why = root.remove(name.to_str().unwrap()).unwrap_err().to_string();
            assert!(why.contains("is a mount and stays"), "{why}");
            assert!(outside.join("kept").exists());
            unmount(&mounted, UnmountFlags::empty()).unwrap();
            root.remove(name.to_str().unwrap()).unwrap();
        }
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn files_that_cannot_be_removed_are_listed_and_all_others_are_removed() {
        let root = Root::new("several");
        symlink("nowhere", root.0.join("pvc-1")).unwrap();
        fs::create_dir_all(root.0.join("pvc-2/full")).unwrap();
        fs::create_dir(root.0.join("pvc-3")).unwrap();
        let names = ["pvc-1", "pvc-2", "pvc-3"].map(str::to_owned);
        let mut args = vec![root.0.display().to_string()];
        args.extend(names);
        let why = remove_volume(&args).unwrap_err().to_string();
        let lines: Vec<_> = why.lines().skip(1).collect();
        assert_eq!(lines.len(), 1, "{why}");
        assert!(lines[0].starts_with("pvc-1: "), "{why}");
        assert!(!root.0.join("pvc-2").exists() && !root.0.join("pvc-3").exists());
        let crafted = complaint(c"x\npvc-9: y", Errno::XDEV).to_string();
        assert_eq!(crafted.lines().count(), 1, "{crafted}");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let root = Root::new("names");
        for name in ["", ".", "..", "a/b", "/etc"] {
            assert!(root.remove(name).is_err(), "{name:?}");
        }
        assert!(root.0.exists());
    }

    #[test]
    fn a_deeply_nested_volume_is_removed() {
        let root = Root::new("deep");
        let mut here = root.0.join("pvc-1");
        fs::create_dir(&here).unwrap();
        // Far deeper than the limit, and as long as a path may be.
        for _ in 0..800 {
            here.push("d");
            fs::create_dir(&here).unwrap();
            fs::write(here.join("f"), "x").unwrap();
        }
        root.remove("pvc-1").unwrap();
        assert!(!root.0.join("pvc-1").exists());
    }

    #[test]
    fn names_that_a_pod_took_do_not_keep_its_deep_directories() {
        let root = Root::new("taken");
        fs::write(root.0.join(".removing-1"), "x").unwrap();
        fs::create_dir_all(root.0.join(".removing-2/full")).unwrap();
        fs::create_dir(root.0.join("deep")).unwrap();
        let volume = open(&root.0, OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut moved = 0;
        move_up(volume.as_fd(), volume.as_fd(), c"deep", &mut moved).unwrap();
        assert_eq!(moved, 3);
        assert!(root.0.join(".removing-3").exists() && !root.0.join("deep").exists());
    }
}
