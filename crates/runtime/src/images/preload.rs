//! Imports image archives from directories when the runtime starts, for machines without a
//! registry. The images are pinned, so that the kubelet never removes them. An archive is imported
//! again only if it changed or one of its images is gone. An invalid archive is logged and skipped.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Image, Images};
use crate::{
    disk,
    error::{Error, Result},
};

/// The file name suffixes of archives.
const ENDINGS: &[&str] = &[".tar", ".tar.gz", ".tgz", ".tar.zst"];

/// Imported archives by path.
type Imported = BTreeMap<PathBuf, Archive>;

/// The version of an archive's file, and its images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Archive {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    images: Vec<String>,
}

impl Images {
    /// Imports new archives of these directories. Blocks.
    pub fn preload(&self, directories: &[PathBuf]) -> Result<()> {
        let note = self.root.join("preloaded.json");
        // Without the record everything is imported again, which is harmless.
        let before: Imported = disk::load(&note).unwrap_or_default();
        let mut after = Imported::new();
        for path in directories.iter().flat_map(|directory| archives(directory)) {
            match self.preload_one(&path, before.get(&path)) {
                Ok(archive) => {
                    after.insert(path, archive);
                }
                Err(error) => {
                    tracing::error!(archive = %path.display(), %error, "cannot import images");
                }
            }
        }
        if after == before {
            return Ok(());
        }
        disk::save(&note, &after)
    }

    fn preload_one(&self, path: &Path, before: Option<&Archive>) -> Result<Archive> {
        let metadata = fs::metadata(path).map_err(Error::file(path))?;
        let mut archive = Archive {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            images: Vec::new(),
        };
        if let Some(before) = before {
            archive.images.clone_from(&before.images);
            if archive == *before && self.has_all(&archive.images)? {
                return Ok(archive);
            }
        }
        tracing::info!(archive = %path.display(), "importing images");
        let imported = self.import(File::open(path).map_err(Error::file(path))?)?;
        archive.images = imported.into_iter().map(|image| image.id).collect();
        self.pin(&archive.images)?;
        Ok(archive)
    }

    fn has_all(&self, ids: &[String]) -> Result<bool> {
        let index = self.index()?;
        Ok(ids.iter().all(|id| index.images.contains_key(id)))
    }

    fn pin(&self, ids: &[String]) -> Result<()> {
        self.change(|index| {
            for id in ids {
                if let Some(Image { pinned, .. }) = index.images.get_mut(id) {
                    *pinned = true;
                }
            }
        })
    }
}

/// The archives in a directory, sorted by name; empty if it does not exist.
fn archives(directory: &Path) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::error!(directory = %directory.display(), %error, "cannot look for images");
            }
            return Vec::new();
        }
    };
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ENDINGS.iter().any(|ending| name.ends_with(ending)) && path.is_file()
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(is_archive);
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An OCI layout without layers, with this name.
    fn archive(path: &Path, name: &str) {
        let architecture = super::super::registry::manifest::architecture();
        let config = format!(
            r#"{{"architecture":"{architecture}","os":"linux","config":{{"Cmd":["{name}"]}},"rootfs":{{"type":"layers","diff_ids":[]}}}}"#
        );
        let list = format!(r#"[{{"Config":"config.json","RepoTags":["{name}"],"Layers":[]}}]"#);
        let mut builder = tar::Builder::new(File::create(path).unwrap());
        for (file, text) in [("manifest.json", list), ("config.json", config)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            builder
                .append_data(&mut header, file, text.as_bytes())
                .unwrap();
        }
        builder.finish().unwrap();
    }

    fn names(images: &Images) -> Vec<String> {
        let list = images.list().unwrap();
        let pinned = list.iter().filter(|image| image.pinned);
        let mut names: Vec<String> = pinned.flat_map(|image| image.tags.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn archives_are_imported_once_and_again_when_changed_or_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("images");
        let images = Images::open(root.path().join("store")).unwrap();
        let directories = [dir.clone(), root.path().join("absent")];
        images.preload(&directories).unwrap();
        assert!(names(&images).is_empty());

        fs::create_dir(&dir).unwrap();
        archive(&dir.join("one.tar"), "local.test/one:1");
        fs::write(dir.join("broken.tar"), "this is no archive").unwrap();
        fs::write(dir.join("README"), "not an archive by its name").unwrap();
        images.preload(&directories).unwrap();
        assert_eq!(names(&images), ["local.test/one:1"]);

        images.remove("local.test/one:1").unwrap();
        images.preload(&directories).unwrap();
        assert_eq!(names(&images), ["local.test/one:1"]);

        archive(&dir.join("one.tar.new"), "local.test/two:1");
        fs::rename(dir.join("one.tar.new"), dir.join("one.tar")).unwrap();
        images.preload(&directories).unwrap();
        assert_eq!(names(&images), ["local.test/one:1", "local.test/two:1"]);
    }
}
