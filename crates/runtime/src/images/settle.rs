//! Images and power failures. A pull does not wait for fsync: an image can be used as soon as it is
//! complete. It is synced afterwards and then marked as settled. An image without the mark after a
//! reboot may be incomplete and is dropped.

use std::{fs::File, os::fd::AsRawFd, path::PathBuf};

use super::Images;
use crate::error::{Error, Result};

/// The machine's boot id.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_end().to_owned()
}

impl Images {
    /// Drops images that were not synced before the last reboot.
    pub(super) fn forget_unsettled(&self) -> Result<()> {
        let now = boot();
        let index = self.index()?;
        if index.boot == now {
            return Ok(());
        }
        self.change(|index| {
            index.images.retain(|id, image| {
                let keep = image.settled;
                if !keep {
                    tracing::warn!(image = id, "removing image that was not synced to disk");
                }
                keep
            });
            index.boot = now;
        })
    }

    /// Syncs an image and marks it, in a thread of its own.
    pub(super) fn settle(&self, id: &str) {
        let (root, id) = (self.root.clone(), id.to_owned());
        let settling = move || {
            if let Err(error) = settle(root, &id) {
                tracing::debug!(image = id, %error, "cannot sync image to disk");
            }
        };
        let _ = std::thread::Builder::new()
            .name("settle-image".into())
            .spawn(settling);
    }
}

fn settle(root: PathBuf, id: &str) -> Result<()> {
    let dir = File::open(&root).map_err(Error::file(&root))?;
    // SAFETY: the descriptor is open for as long as `dir` lives.
    if unsafe { libc::syncfs(dir.as_raw_fd()) } != 0 {
        return Err(Error::file(root)(std::io::Error::last_os_error()));
    }
    // Another store on the same directory is fine, since the locks work across processes.
    Images::unopened(root).change(|index| {
        if let Some(image) = index.images.get_mut(id) {
            image.settled = true;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{Image, ImageConfig, Index};

    fn image(id: &str, settled: bool) -> (String, Image) {
        let image = Image {
            id: id.to_owned(),
            tags: [format!("docker.io/library/{id}:latest")].into(),
            digests: Default::default(),
            manifest: String::new(),
            blobs: Vec::new(),
            layers: vec![id.to_owned()],
            size: 0,
            pinned: false,
            settled,
            config: ImageConfig::default(),
        };
        (id.to_owned(), image)
    }

    #[test]
    fn after_a_power_failure_only_synced_images_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::open(dir.path().to_path_buf()).unwrap();
        for layer in ["whole", "holes"] {
            std::fs::create_dir(dir.path().join("layers").join(layer)).unwrap();
        }
        let mut index = Index {
            boot: boot(),
            images: [image("whole", true), image("holes", false)].into(),
        };
        let left = |index: &Index| {
            images.replace_index(index).unwrap();
            let images = Images::open(dir.path().to_path_buf()).unwrap();
            let names = images.list().unwrap().into_iter().map(|image| image.id);
            names.collect::<Vec<_>>()
        };
        assert_eq!(
            left(&index),
            ["holes", "whole"],
            "only a daemon has restarted"
        );
        index.boot = "another start".to_owned();
        assert_eq!(left(&index), ["whole"]);
        let layers = std::fs::read_dir(dir.path().join("layers")).unwrap();
        let layers: Vec<_> = layers.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(layers, ["whole"]);
    }

    #[test]
    fn a_damaged_index_does_not_keep_the_node_down() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("images.json"), "{\"images\":").unwrap();
        let images = Images::open(dir.path().to_path_buf()).unwrap();
        assert!(images.list().unwrap().is_empty());
        settle(dir.path().to_path_buf(), "nothing").unwrap();
    }
}
