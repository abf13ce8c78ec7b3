//! Copies layers on top of each other, as overlayfs would show them: upper layers replace and
//! delete what lower ones have. Owners, modes, attributes, times, devices and hard links are kept.

use std::{
    collections::HashMap,
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, lchown, symlink},
    path::{Path, PathBuf},
};

use nix::sys::{
    stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat},
    time::TimeSpec,
};

use crate::{
    error::{Error, Result},
    remove_tree::remove_tree,
    xattrs,
};

/// Fills a directory. `layers` has the uppermost first.
pub(super) fn layers(layers: &[PathBuf], target: &Path) -> Result<()> {
    for layer in layers.iter().rev() {
        let mut links = HashMap::new();
        copy_dir(layer, target, &mut links)
            .map_err(Error::system(format!("copy the layer {}", layer.display())))?;
    }
    Ok(())
}

/// The copy of each file with several links, by inode.
type Links = HashMap<u64, PathBuf>;

fn copy_dir(from: &Path, to: &Path, links: &mut Links) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_entry(&entry.path(), &to.join(entry.file_name()), links)?;
    }
    dress(from, to, &fs::symlink_metadata(from)?)
}

fn copy_entry(from: &Path, to: &Path, links: &mut Links) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    let kind = metadata.file_type();
    if kind.is_char_device() && metadata.rdev() == 0 {
        return clear(to);
    }
    if kind.is_dir() {
        if xattrs::get(from, xattrs::OPAQUE)?.is_some_and(|value| value == b"y") {
            clear(to)?;
        }
        // Never follow a link of a layer below: only a directory is entered.
        if !fs::symlink_metadata(to).is_ok_and(|below| below.is_dir()) {
            clear(to)?;
            fs::create_dir(to)?;
        }
        return copy_dir(from, to, links);
    }
    clear(to)?;
    if metadata.nlink() > 1 {
        if let Some(first) = links.get(&metadata.ino()) {
            return fs::hard_link(first, to);
        }
        links.insert(metadata.ino(), to.to_path_buf());
    }
    if kind.is_file() {
        fs::copy(from, to)?;
    } else if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else {
        let flag = SFlag::from_bits_truncate(metadata.mode() & libc::S_IFMT);
        mknod(to, flag, Mode::from_bits_truncate(0o600), metadata.rdev())?;
    }
    dress(from, to, &metadata)
}

/// Removes whatever is there.
fn clear(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Owner first: chown clears set-user-id bits and file capabilities.
fn dress(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    lchown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    if !metadata.is_symlink() {
        fs::set_permissions(to, metadata.permissions())?;
        if metadata.is_file() || metadata.is_dir() {
            xattrs::copy(from, to)?;
        }
    }
    let time = |seconds: i64, nanos: i64| TimeSpec::new(seconds, nanos);
    let (accessed, modified) = (
        time(metadata.atime(), metadata.atime_nsec()),
        time(metadata.mtime(), metadata.mtime_nsec()),
    );
    utimensat(
        nix::fcntl::AT_FDCWD,
        to,
        &accessed,
        &modified,
        UtimensatFlags::NoFollowSymlink,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn copies_have_the_contents_of_an_overlay() {
        let dir = tempfile::tempdir().unwrap();
        let [low, top, seen, copied, upper, work] =
            ["low", "top", "seen", "copied", "upper", "work"].map(|name| dir.path().join(name));
        for path in [&low, &top, &upper, &work, &copied] {
            fs::create_dir(path).unwrap();
        }
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in [
            "kept",
            "gone",
            "replaced",
            "hidden/a",
            "merged/low",
            "was-dir/x",
        ] {
            write(low.join(name), "low");
        }
        fs::hard_link(low.join("kept"), low.join("kept-too")).unwrap();
        symlink("/etc", low.join("was-link")).unwrap();
        for name in [
            "replaced",
            "hidden/b",
            "merged/top",
            "was-dir",
            "was-link/inside",
        ] {
            write(top.join(name), "top");
        }
        mknod(&top.join("gone"), SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
        xattrs::set(&top.join("hidden"), xattrs::OPAQUE, b"y").unwrap();
        xattrs::set(&top.join("replaced"), "trusted.note", b"n").unwrap();
        fs::set_permissions(top.join("replaced"), fs::Permissions::from_mode(0o4751)).unwrap();
        lchown(top.join("was-dir"), Some(7), Some(8)).unwrap();

        let stack = [top, low];
        layers(&stack, &copied).unwrap();
        let lower: Vec<&Path> = stack.iter().map(PathBuf::as_path).collect();
        crate::mounts::overlay(&lower, Some((&upper, &work)), &seen).unwrap();
        let shown = (tree(&seen), tree(&copied));
        crate::mounts::unmount(&seen).unwrap();
        assert_eq!(shown.0, shown.1);
        assert!(copied.join("was-link/inside").is_file() && !copied.join("gone").exists());
        let inode = |name: &str| fs::metadata(copied.join(name)).unwrap().ino();
        assert_eq!(inode("kept"), inode("kept-too"));
        let note = xattrs::get(&copied.join("replaced"), "trusted.note").unwrap();
        assert_eq!(note.as_deref(), Some(&b"n"[..]));
        assert_eq!(
            xattrs::get(&copied.join("hidden"), xattrs::OPAQUE).unwrap(),
            None
        );
    }

    /// Every name with its metadata.
    fn tree(root: &Path) -> Vec<String> {
        let mut lines = Vec::new();
        let mut left = vec![root.to_path_buf()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(&dir).unwrap().flatten() {
                let (path, metadata) = (entry.path(), entry.metadata().unwrap());
                if metadata.is_dir() {
                    left.push(path.clone());
                }
                let content = fs::read_link(&path)
                    .map(|target| target.display().to_string())
                    .or_else(|_| fs::read_to_string(&path));
                lines.push(format!(
                    "{} {:o} {}:{} {} {:?}",
                    path.strip_prefix(root).unwrap().display(),
                    metadata.mode(),
                    metadata.uid(),
                    metadata.gid(),
                    metadata.mtime(),
                    content.ok(),
                ));
            }
        }
        lines.sort();
        lines
    }
}
