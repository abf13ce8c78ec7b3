//! The image store: blobs by digest, layers unpacked once for all containers, and an index of
//! names. A layer or blob gets its name only when it is complete and verified, so that an
//! interrupted pull leaves nothing that looks complete.

mod archive;
mod blobs;
mod bounded;
mod config;
mod export;
mod hello;
mod layer;
mod names;
mod preload;
mod progress;
mod reference;
pub mod registry;
mod settle;
mod unpack;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

pub use config::ImageConfig;
pub use hello::{HELLO, LOCAL_REGISTRY};
use parking_lot::Mutex;
pub use progress::{Part, Progress, Stage};
pub use reference::Reference;
use serde::{Deserialize, Serialize};
pub use unpack::Limits;

use crate::{
    disk,
    error::{Error, Result},
};

/// The image store.
pub struct Images {
    root: PathBuf,
    /// The cached index, and the version of its file.
    index: Mutex<(Option<Version>, Arc<Index>)>,
    limits: Limits,
    /// Guards the locks of partial files. Concurrent downloads of the same file wait for its lock.
    fetching: Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>,
    /// Permits for unpacking pulled images, which takes memory for each.
    unpacking: tokio::sync::Semaphore,
    /// Repositories and the digests of stored blobs that pulls downloaded from them, for images that are not complete yet.
    served: Mutex<BTreeSet<(String, String)>>,
}

/// Identifies a version of a file that is replaced by renaming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    modified: (i64, i64),
}

/// Held while an image is stored or a container is created, so that content which no image or
/// container refers to yet is not swept. Works across processes.
pub struct Lease(#[expect(dead_code, reason = "closing the file ends the lease")] File);

/// How many pulled images are unpacked at a time.
const PARALLEL_UNPACKS: usize = 16;

/// How long a partial blob is kept.
const KEEP_PARTIAL: Duration = Duration::from_secs(24 * 3600);

/// Images by id.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Index {
    /// The boot id when the store was last opened.
    #[serde(default)]
    boot: String,
    images: BTreeMap<String, Image>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The digest of its configuration, which is its id.
    pub id: String,
    /// References with tags.
    pub tags: BTreeSet<String>,
    /// References with digests.
    pub digests: BTreeSet<String>,
    /// The digest of its manifest.
    pub manifest: String,
    /// The layer blobs, from the bottom.
    pub blobs: Vec<Blob>,
    /// The names of the unpacked layers, from the bottom.
    pub layers: Vec<String>,
    /// The compressed size.
    pub size: u64,
    /// Whether the image is never garbage collected.
    #[serde(default)]
    pub pinned: bool,
    /// Whether everything was synced to disk.
    #[serde(default)]
    settled: bool,
    /// The image configuration.
    pub config: ImageConfig,
}

/// A stored blob.
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
    /// The reference in a container's status: pullable, or the id.
    pub fn reference(&self) -> String {
        self.digests.first().unwrap_or(&self.id).clone()
    }
}

impl Images {
    /// Opens the store in a directory; removes leftovers of interrupted imports and unused content.
    pub fn open(root: PathBuf) -> Result<Self> {
        for dir in ["blobs/sha256", "layers", "staging"] {
            let path = root.join(dir);
            fs::create_dir_all(&path).map_err(Error::file(&path))?;
        }
        // Images contain set-user-id programs and devices: only root may access them.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700))
            .map_err(Error::file(&root))?;
        let images = Self::unopened(root);
        if let Err(error) = images.index() {
            // Images can be pulled again, but only if the node starts.
            tracing::error!(%error, "image index is damaged, starting with an empty one");
            images.replace_index(&Index::default())?;
        }
        if let Some(_alone) = images.try_alone()? {
            images.forget_unsettled()?;
            images.clear_staging()?;
            images.sweep_now()?;
        }
        Ok(images)
    }

    fn unopened(root: PathBuf) -> Self {
        Self {
            root,
            index: Mutex::default(),
            limits: Limits::default(),
            fetching: Mutex::default(),
            unpacking: tokio::sync::Semaphore::new(PARALLEL_UNPACKS),
            served: Mutex::default(),
        }
    }

    /// The same store with other limits.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Keeps partial blobs of interrupted pulls for a day.
    fn clear_staging(&self) -> Result<()> {
        let staging = self.root.join("staging");
        for entry in fs::read_dir(&staging)
            .map_err(Error::file(&staging))?
            .flatten()
        {
            let path = entry.path();
            let partial = path
                .extension()
                .is_some_and(|extension| extension == "part");
            let age = entry.metadata().and_then(|metadata| metadata.modified());
            let age = age
                .ok()
                .and_then(|time| time.elapsed().ok())
                .unwrap_or_default();
            if path.is_dir() {
                disk::remove_dir(&path)?;
            } else if !partial || age > KEEP_PARTIAL {
                fs::remove_file(&path).map_err(Error::file(&path))?;
            }
        }
        Ok(())
    }

    /// The current index on disk.
    fn index(&self) -> Result<Arc<Index>> {
        let file = self.root.join("images.json");
        let version = fs::metadata(&file).ok().map(|metadata| Version {
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        });
        let mut known = self.index.lock();
        if known.0 != version || version.is_none() {
            let index = if version.is_some() {
                disk::load(&file)?
            } else {
                Index::default()
            };
            *known = (version, Arc::new(index));
        }
        Ok(known.1.clone())
    }

    /// Changes the index under a lock across processes and threads.
    fn change<T>(&self, change: impl FnOnce(&mut Index) -> T) -> Result<T> {
        let lock = self.lock_file("images.lock")?;
        lock.lock().map_err(Error::system("lock the images"))?;
        let mut index = Index::clone(&*self.index()?);
        let result = change(&mut index);
        self.replace_index(&index)?;
        Ok(result)
    }

    fn replace_index(&self, index: &Index) -> Result<()> {
        disk::save(&self.root.join("images.json"), index)
    }

    fn lock_file(&self, name: &str) -> Result<File> {
        let path = self.root.join(name);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        options.open(&path).map_err(Error::file(&path))
    }

    /// Prevents sweeps. Waits for a running one.
    pub fn lease(&self) -> Result<Lease> {
        let file = self.lock_file("sweep.lock")?;
        file.lock_shared()
            .map_err(Error::system("lock the image store"))?;
        Ok(Lease(file))
    }

    /// An exclusive lock, if nothing else holds a lease.
    fn try_alone(&self) -> Result<Option<Lease>> {
        let file = self.lock_file("sweep.lock")?;
        Ok(file.try_lock().is_ok().then_some(Lease(file)))
    }

    /// Every image.
    pub fn list(&self) -> Result<Vec<Image>> {
        Ok(self.index()?.images.values().cloned().collect())
    }

    /// An image by its id, a unique prefix of it, a tag or a digest.
    pub fn get(&self, name: &str) -> Result<Option<Image>> {
        Ok(names::find(&self.index()?.images, name).cloned())
    }

    /// [`Images::get`], with an error if there is none.
    pub fn need(&self, name: &str) -> Result<Image> {
        self.get(name)?
            .ok_or_else(|| Error::NoImage(name.to_owned()))
    }

    /// Records that a repository (`registry/repository`) has served a blob with the right content.
    fn record_served(&self, repository: String, digest: String) {
        self.served.lock().insert((repository, digest));
    }

    /// Whether a blob was downloaded from this repository (`registry/repository`) or belongs to an image of it.
    fn came_from(&self, repository: &str, digest: &str) -> Result<bool> {
        let served = (repository.to_owned(), digest.to_owned());
        if self.served.lock().contains(&served) {
            return Ok(true);
        }
        let is_here = |name: &String| {
            let rest = name.strip_prefix(repository);
            rest.is_some_and(|rest| rest.starts_with([':', '@']))
        };
        let index = self.index()?;
        Ok(index.images.values().any(|image| {
            let has_blob = image.id == digest || image.blobs.iter().any(|b| b.digest == digest);
            has_blob && image.tags.iter().chain(&image.digests).any(is_here)
        }))
    }

    /// Whether an image has this layer from this blob.
    fn is_unpacked_from(&self, layer: &str, blob: &str) -> Result<bool> {
        let index = self.index()?;
        Ok(index.images.values().any(|image| {
            let mut pairs = image.layers.iter().zip(&image.blobs);
            pairs.any(|(name, from)| name == layer && from.digest == blob)
        }))
    }

    /// Adds an image, or names to an existing one. A tag belongs to one image only.
    fn put(&self, image: Image) -> Result<Image> {
        let id = image.id.clone();
        let put = self.change(|index| {
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
            entry.clone()
        })?;
        if !put.settled {
            self.settle(&id);
        }
        Ok(put)
    }

    /// Removes one name, or the whole image if it is the last or the id is given. Layers in use by
    /// a container stay until it is gone. Blocks.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.change(|index| {
            let Some(id) = names::find(&index.images, name).map(|image| image.id.clone()) else {
                return;
            };
            if index
                .images
                .get_mut(&id)
                .is_none_or(|entry| names::take(entry, name))
            {
                index.images.remove(&id);
            }
        })?;
        self.sweep()
    }

    /// Removes blobs and layers that no image and no container refers to. Blocks.
    pub fn sweep(&self) -> Result<()> {
        // If a lease is held, a later sweep does it.
        match self.try_alone()? {
            Some(_alone) => self.sweep_now(),
            None => Ok(()),
        }
    }

    /// The caller holds the exclusive lock.
    fn sweep_now(&self) -> Result<()> {
        let (mut layers, mut blobs) = (self.layers_in_use(), BTreeSet::new());
        for image in self.index()?.images.values() {
            layers.extend(image.layers.iter().cloned());
            blobs.extend(image.blobs.iter().map(|blob| blob.digest.clone()));
            blobs.extend([image.id.clone(), image.manifest.clone()]);
        }
        sweep_dir(&self.root.join("layers"), |name| layers.contains(name))?;
        sweep_dir(&self.root.join("blobs/sha256"), |name| {
            blobs.contains(&format!("sha256:{name}"))
        })?;
        // The lock excludes pulls. The index now says where each of the remaining blobs came from.
        self.served.lock().clear();
        Ok(())
    }

    /// Layers that containers use, from their records.
    fn layers_in_use(&self) -> BTreeSet<String> {
        #[derive(Deserialize)]
        struct Uses {
            layers: Vec<String>,
        }
        let Ok(entries) = fs::read_dir(self.root.join("containers")) else {
            return BTreeSet::new();
        };
        let records = entries
            .flatten()
            .map(|entry| entry.path().join("facts.json"));
        records
            .filter_map(|path| disk::load::<Uses>(&path).ok())
            .flat_map(|uses| uses.layers)
            .collect()
    }

    /// The directories of an image's layers, the uppermost first, as overlayfs expects.
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

    /// A path for a temporary file or directory on the same file system.
    fn staging(&self) -> PathBuf {
        self.root.join("staging").join(crate::id::generate())
    }

    /// The directory of the store.
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
