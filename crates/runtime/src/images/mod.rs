//! The node's images: blobs by their digests, layers unpacked once for all who use them, and an
//! index of names. A layer or blob appears under its name only when it is whole and verified, so an
//! interrupted pull leaves nothing that looks complete.

mod archive;
mod blobs;
mod config;
mod hello;
mod layer;
mod names;
mod reference;
pub mod registry;
mod unpack;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

pub use config::ImageConfig;
pub use hello::HELLO;
use parking_lot::RwLock;
pub use reference::Reference;
use serde::{Deserialize, Serialize};

use crate::{
    disk,
    error::{Error, Result},
};

/// The image store.
pub struct Images {
    root: PathBuf,
    /// Guards the index and its file.
    index: RwLock<Index>,
    /// Read while an image comes in, written while what nobody names is swept away: content that
    /// has come is not named by an image yet.
    arriving: tokio::sync::RwLock<()>,
}

/// Images by their ids.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    images: BTreeMap<String, Image>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The digest of its configuration, which is its id.
    pub id: String,
    /// Names with tags.
    pub tags: BTreeSet<String>,
    /// Names with digests.
    pub digests: BTreeSet<String>,
    /// The digest of its manifest.
    pub manifest: String,
    /// The digests of its layers as they were pulled, from the bottom.
    pub blobs: Vec<Blob>,
    /// The names of its unpacked layers, from the bottom.
    pub layers: Vec<String>,
    /// What it takes on disk, compressed.
    pub size: u64,
    /// It is never collected.
    #[serde(default)]
    pub pinned: bool,
    /// What it says about running it.
    pub config: ImageConfig,
}

/// A stored piece of content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Its digest.
    pub digest: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub size: u64,
}

impl Image {
    /// How it is named in a container's status: something that can be pulled, or its id.
    pub fn reference(&self) -> String {
        self.digests.first().unwrap_or(&self.id).clone()
    }
}

impl Images {
    /// Opens the store in a directory; clears away what an interrupted import left.
    pub fn open(root: PathBuf) -> Result<Self> {
        for dir in ["blobs/sha256", "layers", "staging"] {
            let path = root.join(dir);
            fs::create_dir_all(&path).map_err(Error::file(&path))?;
        }
        let staging = root.join("staging");
        for entry in fs::read_dir(&staging)
            .map_err(Error::file(&staging))?
            .flatten()
        {
            let path = entry.path();
            // A pull that was cut off goes on from its partial blobs.
            if path.is_dir() {
                disk::remove_dir(&path)?;
            }
        }
        let file = root.join("images.json");
        let index = if file.exists() {
            disk::load(&file)?
        } else {
            Index::default()
        };
        Ok(Self {
            root,
            index: RwLock::new(index),
            arriving: tokio::sync::RwLock::default(),
        })
    }

    /// Every image.
    pub fn list(&self) -> Vec<Image> {
        self.index.read().images.values().cloned().collect()
    }

    /// An image by its id, a prefix of it, a tag or a digest.
    pub fn get(&self, name: &str) -> Option<Image> {
        let index = self.index.read();
        names::find(&index.images, name).cloned()
    }

    /// Adds an image, or names to one that is there. A tag belongs to one image only.
    fn put(&self, image: Image) -> Result<Image> {
        let mut index = self.index.write();
        for other in index
            .images
            .values_mut()
            .filter(|other| other.id != image.id)
        {
            other.tags.retain(|tag| !image.tags.contains(tag));
        }
        let entry = index
            .images
            .entry(image.id.clone())
            .or_insert_with(|| image.clone());
        entry.tags.extend(image.tags);
        entry.digests.extend(image.digests);
        entry.pinned |= image.pinned;
        let stored = entry.clone();
        disk::save(&self.root.join("images.json"), &*index)?;
        Ok(stored)
    }

    /// Removes one name, or the whole image when it is the last or the id is given. Layers that a
    /// container still uses (`in_use`) stay until it is gone.
    pub fn remove(&self, name: &str, in_use: &BTreeSet<String>) -> Result<()> {
        {
            let mut index = self.index.write();
            let Some(image) = names::find(&index.images, name).cloned() else {
                return Ok(());
            };
            let entry = index.images.get_mut(&image.id);
            let gone = entry.is_none_or(|entry| names::take(entry, name));
            if gone {
                index.images.remove(&image.id);
            }
            disk::save(&self.root.join("images.json"), &*index)?;
        }
        self.sweep(in_use)
    }

    /// Removes blobs and layers that no image and no container names.
    pub fn sweep(&self, in_use: &BTreeSet<String>) -> Result<()> {
        // While something comes in, the next sweep will do.
        let Ok(_arriving) = self.arriving.try_write() else {
            return Ok(());
        };
        let (mut layers, mut blobs) = (in_use.clone(), BTreeSet::new());
        for image in self.index.read().images.values() {
            layers.extend(image.layers.iter().cloned());
            blobs.extend(image.blobs.iter().map(|blob| blob.digest.clone()));
            blobs.extend([image.id.clone(), image.manifest.clone()]);
        }
        let known = |name: &str| layers.contains(name);
        sweep_dir(&self.root.join("layers"), known)?;
        sweep_dir(&self.root.join("blobs/sha256"), |name| {
            blobs.contains(&format!("sha256:{name}"))
        })
    }

    /// The directories of an image's layers, the uppermost first, as overlayfs wants them.
    pub fn layer_dirs(&self, image: &Image) -> Vec<PathBuf> {
        image
            .layers
            .iter()
            .rev()
            .map(|layer| self.layer_dir(layer))
            .collect()
    }

    fn layer_dir(&self, layer: &str) -> PathBuf {
        self.root.join("layers").join(layer)
    }

    /// A new directory or file for work in progress, on the same file system.
    fn staging(&self) -> PathBuf {
        self.root.join("staging").join(crate::id::generate())
    }

    /// Where the store is.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

fn sweep_dir(dir: &Path, keep: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::file(dir))?.flatten() {
        let name = entry.file_name();
        if keep(&name.to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        if path.is_dir() {
            disk::remove_dir(&path)?;
        } else {
            fs::remove_file(&path).map_err(Error::file(&path))?;
        }
    }
    Ok(())
}
