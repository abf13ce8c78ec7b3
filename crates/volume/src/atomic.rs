//! Writes a set of files atomically: readers see either all old or all new ones.
//!
//! Files are in a new timestamped directory; `..data` is a link to the current one and is replaced
//! by rename; the visible names are links through `..data`. Unchanged content writes nothing.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rand::Rng;

use crate::{
    Error, Result, ownership,
    payload::{File, Payload},
};

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Makes `dir` contain exactly `payload`. Returns whether anything was written.
pub fn write(dir: &Path, payload: &Payload, fs_group: Option<u32>) -> Result<bool> {
    let current = fs::read_link(dir.join(DATA)).ok();
    if let Some(current) = &current
        && holds(&dir.join(current), payload)
    {
        return Ok(false);
    }
    let name = fresh_name();
    let fresh = dir.join(&name);
    fs::create_dir(&fresh).map_err(Error::io("create", &fresh))?;
    set_mode(&fresh, 0o755)?;
    for (path, file) in payload {
        write_file(&fresh, path, file)?;
    }
    if let Some(group) = fs_group {
        ownership::give_to_group(&fresh, group, true)?;
    }
    switch(dir, &name)?;
    link_visible(dir, payload)?;
    if let Some(old) = current {
        crate::remove_tree(&dir.join(old))?;
    }
    Ok(true)
}

fn fresh_name() -> String {
    let now = jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S");
    format!(
        "..{now}.{}",
        rand::rng().random_range(100_000_000u64..10_000_000_000)
    )
}

fn switch(dir: &Path, name: &str) -> Result<()> {
    let next = dir.join(NEXT);
    let _ = fs::remove_file(&next);
    symlink(name, &next).map_err(Error::io("link", &next))?;
    fs::rename(&next, dir.join(DATA)).map_err(Error::io("rename", &next))
}

/// Makes the visible links, and removes those whose file is gone.
fn link_visible(dir: &Path, payload: &Payload) -> Result<()> {
    let wanted: BTreeSet<&str> = payload
        .keys()
        .filter_map(|path| path.split('/').find(|part| !part.is_empty()))
        .collect();
    for name in &wanted {
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link).map_err(Error::io("link", &link))?;
        }
    }
    for entry in crate::entries(dir)? {
        let name = entry
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !name.starts_with("..") && !wanted.contains(name.as_str()) {
            fs::remove_file(&entry).map_err(Error::io("remove", &entry))?;
        }
    }
    Ok(())
}

fn write_file(root: &Path, path: &str, file: &File) -> Result<()> {
    let target = root.join(path);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    let mut open = fs::OpenOptions::new();
    let mut handle = open
        .write(true)
        .create_new(true)
        .mode(file.mode & 0o600)
        .open(&target)
        .map_err(Error::io("create", &target))?;
    handle
        .write_all(&file.data)
        .map_err(Error::io("write", &target))?;
    // Set the mode explicitly, whatever the umask.
    set_mode(&target, file.mode)?;
    if let Some(owner) = file.owner {
        std::os::unix::fs::chown(&target, Some(owner), None)
            .map_err(Error::io("chown", &target))?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::io("chmod", path))
}

/// Whether the directory contains exactly these files. The group's additional bits are not
/// compared.
fn holds(root: &Path, payload: &Payload) -> bool {
    let mut found = BTreeSet::new();
    collect(root, root, &mut found);
    found.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            let full = root.join(path);
            let mode = fs::metadata(&full)
                .map(|meta| meta.mode() & 0o777)
                .unwrap_or(0);
            mode & file.mode == file.mode & 0o777
                && fs::read(&full).is_ok_and(|data| data == file.data)
        })
}

fn collect(root: &Path, dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in crate::entries(dir).unwrap_or_default() {
        if entry.is_dir() {
            collect(root, &entry, found);
        } else {
            found.insert(entry.strip_prefix(root).unwrap_or(&entry).to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File {
            data: text.into(),
            mode: 0o644,
            owner: None,
        }
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), file(text)))
            .collect()
    }

    #[test]
    fn content_is_seen_through_links_and_replaced_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(write(root, &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap());
        assert_eq!(fs::read_to_string(root.join("d/b")).unwrap(), "2");
        assert!(fs::symlink_metadata(root.join("a")).unwrap().is_symlink());
        let before = fs::read_link(root.join(DATA)).unwrap();
        assert!(!write(root, &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap());
        assert_eq!(fs::read_link(root.join(DATA)).unwrap(), before);
        assert!(write(root, &payload(&[("a", "3")]), None).unwrap());
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "3");
        assert!(!root.join("d").exists());
        assert!(!root.join(before).exists());
    }

    #[test]
    fn an_empty_payload_is_still_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path(), &Payload::new(), None).unwrap());
        assert!(dir.path().join(DATA).exists());
        assert!(!write(dir.path(), &Payload::new(), None).unwrap());
    }

    #[test]
    fn a_changed_mode_is_written() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &payload(&[("a", "1")]), None).unwrap();
        let mut changed = payload(&[("a", "1")]);
        changed.get_mut("a").unwrap().mode = 0o755;
        assert!(write(dir.path(), &changed, None).unwrap());
        let mode = fs::metadata(dir.path().join("a")).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o755);
    }
}
