//! A container's root file system: its image's layers, and a writable layer on top. Overlayfs
//! shares the layers between containers; if the kernel rejects it, every container gets a copy.

mod copy;
mod size;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
pub(crate) use size::{Size, Sizing, size};
use stdx::TreeUsage;

use crate::{
    disk,
    error::{Error, Result},
    id, mounts,
};

/// How root file systems of containers are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Snapshots {
    /// With overlayfs if it works, otherwise by copying.
    #[default]
    Auto,
    /// With overlayfs only.
    Overlay,
    /// By copying only.
    Copy,
}

/// The file with the initial size of a copy.
const BASE: &str = "base.json";

impl Snapshots {
    /// Resolves `Auto` by trying overlayfs.
    pub fn settle(self, root: &Path) -> Self {
        if self != Self::Auto {
            return self;
        }
        match probe(&root.join("staging").join(id::generate())) {
            Ok(()) => Self::Overlay,
            Err(error) => {
                tracing::warn!(%error, "overlayfs not usable, every container gets a copy of its image");
                Self::Copy
            }
        }
    }

    /// Creates a writable root in a container's directory. `layers` has the uppermost first.
    pub fn root(self, layers: &[PathBuf], dir: &Path) -> Result<PathBuf> {
        let rootfs = dir.join("rootfs");
        fs::create_dir_all(&rootfs).map_err(Error::file(&rootfs))?;
        if self == Self::Copy {
            copy::layers(layers, &rootfs)?;
            disk::save(&dir.join(BASE), &size(&rootfs))?;
            return Ok(rootfs);
        }
        let (upper, work) = (dir.join("upper"), dir.join("work"));
        for path in [&upper, &work] {
            fs::create_dir_all(path).map_err(Error::file(path))?;
        }
        let lower: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        mounts::overlay(&lower, Some((&upper, &work)), &rootfs)?;
        Ok(rootfs)
    }

    /// Mounts layers read-only.
    pub fn view(self, layers: &[PathBuf], target: &Path) -> Result<()> {
        if self == Self::Copy {
            fs::create_dir_all(target).map_err(Error::file(target))?;
            return copy::layers(layers, target);
        }
        let lower: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        mounts::overlay(&lower, None, target)
    }
}

/// The measured parts of a container's directory.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The writable layer, or a copy of the image with it.
    layer: TreeUsage,
    /// Copies of mounted images.
    images: TreeUsage,
}

impl Measured {
    /// The usage of the container's writable layer.
    pub(crate) fn written(&self, dir: &Path, sizing: &Sizing) -> Size {
        let upper = dir.join("upper");
        if upper.is_dir() {
            return sizing.size(&self.layer, &upper);
        }
        let base: Size = disk::load(&dir.join(BASE)).unwrap_or_default();
        sizing.size(&self.layer, &dir.join("rootfs")).beyond(base)
    }

    /// Everything that the container uses on the node's disk, mounted or not.
    pub(crate) fn taken(&self, dir: &Path, sizing: &Sizing) -> Size {
        let upper = dir.join("upper");
        if upper.is_dir() {
            return sizing.size(&self.layer, &upper);
        }
        let images = sizing.size(&self.images, &dir.join("images"));
        sizing.size(&self.layer, &dir.join("rootfs")) + images
    }
}

fn probe(dir: &Path) -> Result<()> {
    let [one, two, upper, work, target] =
        ["one", "two", "upper", "work", "target"].map(|name| dir.join(name));
    for path in [&one, &two, &upper, &work] {
        fs::create_dir_all(path).map_err(Error::file(path))?;
    }
    let tried = mounts::overlay(&[&one, &two], Some((&upper, &work)), &target)
        .and_then(|()| mounts::unmount(&target));
    disk::remove_dir(dir)?;
    tried
}
