//! A tree of files in memory that gives reproducible archives: sorted, owned by root, with one
//! modification time.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::Result;

/// Files and directories by path, without a leading slash.
#[derive(Debug, Default, Clone)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
enum Entry {
    Directory,
    File { bytes: Vec<u8>, mode: u32 },
}

impl Tree {
    /// The content of a directory.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.collect(root, "")?;
        Ok(tree)
    }

    fn collect(&mut self, directory: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.directory(&name);
                self.collect(&entry.path(), &format!("{name}/"))?;
            } else {
                let mode = entry.metadata()?.permissions().mode() & 0o777;
                self.file(&name, fs::read(entry.path())?, mode);
            }
        }
        Ok(())
    }

    pub(super) fn directory(&mut self, path: &str) {
        self.entries.insert(path.to_owned(), Entry::Directory);
    }

    pub(super) fn file(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        self.entries
            .insert(path.to_owned(), Entry::File { bytes, mode });
    }

    /// Adds another tree below a directory.
    pub(super) fn below(&mut self, directory: &str, other: &Self) {
        self.directory(directory);
        for (path, entry) in &other.entries {
            self.entries
                .insert(format!("{directory}/{path}"), entry.clone());
        }
    }

    /// Every file with its content.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().filter_map(|(path, entry)| match entry {
            Entry::File { bytes, .. } => Some((path.as_str(), bytes.as_slice())),
            Entry::Directory => None,
        })
    }

    /// As a tar archive.
    pub(super) fn archive(&self, time: u64) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            let (kind, path, bytes, mode) = match entry {
                Entry::Directory => (
                    tar::EntryType::Directory,
                    format!("{path}/"),
                    &[][..],
                    0o755,
                ),
                Entry::File { bytes, mode } => (
                    tar::EntryType::Regular,
                    path.clone(),
                    bytes.as_slice(),
                    *mode,
                ),
            };
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, path, bytes)?;
        }
        Ok(builder.into_inner()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_the_same_whatever_the_order_and_age_of_files() {
        let mut one = Tree::default();
        one.directory("a");
        one.file("a/x", b"1".to_vec(), 0o644);
        one.file("a/b", b"2".to_vec(), 0o600);
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("a");
        fs::create_dir(&inner).unwrap();
        for (name, text, mode) in [("b", "2", 0o600), ("x", "1", 0o644)] {
            fs::write(inner.join(name), text).unwrap();
            fs::set_permissions(inner.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let other = Tree::read(directory.path()).unwrap();
        assert_eq!(one.archive(7).unwrap(), other.archive(7).unwrap());
    }
}
