//! What a container sees as its root: its image's layers, and on top of them a place of its own to
//! write to. Overlayfs joins layers that all containers share; where the kernel refuses it, every
//! container gets a copy.

mod copy;
mod size;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
pub(crate) use size::{Measured, Size, size};

use crate::{
    disk,
    error::{Error, Result},
    id, mounts,
};

/// How roots of containers are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Snapshots {
    /// With overlayfs if it works here, else by copying.
    #[default]
    Auto,
    /// With overlayfs only.
    Overlay,
    /// By copying only.
    Copy,
}

/// Where a copy's size before anybody wrote to it is remembered.
const BASE: &str = "base.json";

impl Snapshots {
    /// Settles which of them is used, by trying.
    pub fn settle(self, root: &Path) -> Self {
        if self != Self::Auto {
            return self;
        }
        match probe(&root.join("staging").join(id::generate())) {
            Ok(()) => Self::Overlay,
            Err(error) => {
                tracing::warn!(%error, "overlayfs is refused here: every container gets a copy of its image");
                Self::Copy
            }
        }
    }

    /// Makes a root that can be written to, in a container's directory. `layers` has the uppermost
    /// first.
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

    /// Shows layers read-only.
    pub fn view(self, layers: &[PathBuf], target: &Path) -> Result<()> {
        if self == Self::Copy {
            fs::create_dir_all(target).map_err(Error::file(target))?;
            return copy::layers(layers, target);
        }
        let lower: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        mounts::overlay(&lower, None, target)
    }
}

/// What a container has written beside its image.
pub(crate) fn written(dir: &Path) -> Size {
    let upper = dir.join("upper");
    if upper.is_dir() {
        return size(&upper);
    }
    let base: Size = disk::load(&dir.join(BASE)).unwrap_or_default();
    size(&dir.join("rootfs")).beyond(base)
}

/// Everything that a container takes on the node's disk, mounted or not.
pub(crate) fn taken(dir: &Path) -> Size {
    if dir.join("upper").is_dir() {
        return size(&dir.join("upper"));
    }
    size(&dir.join("rootfs")) + size(&dir.join("images"))
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
