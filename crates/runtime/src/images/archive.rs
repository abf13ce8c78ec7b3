//! Imports images from OCI layouts and docker archives: tar files, plain or compressed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    Blob, Image, Images, Limits, Progress, Reference, Stage,
    blobs::{MAX_DOCUMENT, digest_of},
    bounded::Bounded,
    config::ConfigFile,
    layer::{Window, decompress},
    registry::manifest::{Descriptor, Document, Manifest, pick},
};
use crate::{
    disk,
    error::{Error, Result},
};

/// The maximum number of layers of an image: overlayfs takes no more.
pub(super) const MAX_LAYERS: usize = 500;

/// How much memory the names of an archive's files may take.
const MAX_NAMES: usize = 64 << 20;

/// The annotations with an image's name in a layout, the fuller one first.
const NAMES: &[&str] = &[
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

impl Images {
    /// Imports every image of an archive and returns them. Blocks.
    pub fn import(&self, content: impl Read) -> Result<Vec<Image>> {
        let _lease = self.lease()?;
        let staging = self.staging();
        let imported =
            Archive::read(&staging, content, self.limits).and_then(|archive| archive.import(self));
        disk::remove_dir(&staging)?;
        imported
    }
}

/// An archive's files, extracted under numbers, since their names are untrusted.
struct Archive {
    files: BTreeMap<String, PathBuf>,
}

/// One image of a docker archive.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The index of an OCI layout.
#[derive(Deserialize)]
struct LayoutIndex {
    manifests: Vec<Descriptor>,
}

impl Archive {
    fn read(staging: &Path, content: impl Read, limits: Limits) -> Result<Self> {
        fs::create_dir_all(staging).map_err(Error::file(staging))?;
        let wrong = |error: io::Error| Error::BadImage(format!("archive: {error}"));
        let mut files = BTreeMap::new();
        let mut links = Vec::new();
        let (mut seen, mut bytes, mut names) = (0_u64, 0_u64, 0);
        let (content, bound) = Bounded::new(decompress(content, Window::Large).map_err(wrong)?);
        let mut archive = tar::Archive::new(content);
        let mut entries = archive.entries().map_err(wrong)?;
        loop {
            bound.headers_only();
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(wrong)?;
            bound.lift();
            seen += 1;
            bytes = bytes.saturating_add(entry.size());
            let name = plain(&entry.path().map_err(wrong)?);
            let link = entry.link_name_bytes().map_or(0, |link| link.len());
            names += name.len() + link;
            if seen > limits.entries || bytes > limits.bytes || names > MAX_NAMES {
                return Err(Error::BadImage("the archive is larger than allowed".into()));
            }
            match entry.header().entry_type() {
                tar::EntryType::Regular | tar::EntryType::Continuous => {
                    let path = staging.join(seen.to_string());
                    let mut file = File::create(&path).map_err(Error::file(&path))?;
                    io::copy(&mut entry, &mut file).map_err(wrong)?;
                    files.insert(name, path);
                }
                // Old docker archives link to layers that two images share.
                tar::EntryType::Symlink | tar::EntryType::Link => {
                    if let Some(target) = entry.link_name().map_err(wrong)? {
                        links.push((name, entry.header().entry_type(), target.into_owned()));
                    }
                }
                _ => {}
            }
            io::copy(&mut entry, &mut io::sink()).map_err(wrong)?;
        }
        for (name, kind, target) in links {
            let base = Path::new(&name).parent().unwrap_or(Path::new(""));
            let full = if kind.is_symlink() {
                base.join(target)
            } else {
                target
            };
            if let Some(path) = files.get(&plain(&full)).cloned() {
                files.insert(name, path);
            }
        }
        Ok(Self { files })
    }

    fn import(&self, images: &Images) -> Result<Vec<Image>> {
        if self.files.contains_key("index.json") {
            let index: LayoutIndex = self.json("index.json")?;
            return index
                .manifests
                .iter()
                .map(|entry| self.layout_image(images, entry))
                .collect();
        }
        if self.files.contains_key("manifest.json") {
            let list: Vec<DockerImage> = self.json("manifest.json")?;
            return list
                .iter()
                .map(|image| self.docker_image(images, image))
                .collect();
        }
        Err(Error::BadImage(
            "neither an OCI layout nor a docker archive".into(),
        ))
    }

    fn layout_image(&self, images: &Images, entry: &Descriptor) -> Result<Image> {
        let mut descriptor = entry.clone();
        let manifest: Manifest = loop {
            let bytes = self.blob(&descriptor.digest)?;
            match Document::parse(&bytes)? {
                Document::Manifest(manifest) => break manifest,
                Document::Index(list) => {
                    let chosen = pick(&list)
                        .ok_or_else(|| Error::BadImage("no image for this machine".into()))?;
                    descriptor = chosen.clone();
                }
            }
        };
        let bytes = self.blob(&descriptor.digest)?;
        images.put_blob(&bytes)?;
        let config = self.blob(&manifest.config.digest)?;
        let mut layers = Vec::new();
        for layer in &manifest.layers {
            let path = self.blob_path(&layer.digest)?;
            layers.push((layer.digest.clone(), layer.media_type.clone(), path));
        }
        let annotations = entry.annotations.clone().unwrap_or_default();
        let name = NAMES.iter().find_map(|key| annotations.get(*key));
        let tags = name
            .and_then(|name| Reference::parse(name).ok())
            .into_iter()
            .collect::<Vec<_>>();
        self.finish(images, &config, descriptor.digest, layers, &tags)
    }

    fn docker_image(&self, images: &Images, image: &DockerImage) -> Result<Image> {
        let config = self.bytes(&plain(Path::new(&image.config)))?;
        let mut layers = Vec::new();
        let mut descriptors = Vec::new();
        for name in &image.layers {
            let path = self.path(&plain(Path::new(name)))?;
            let digest = file_digest(&path)?;
            let size = fs::metadata(&path).map_err(Error::file(&path))?.len();
            let media_type = "application/vnd.oci.image.layer.v1.tar".to_owned();
            descriptors.push(Descriptor::new(&media_type, &digest, size));
            layers.push((digest, media_type, path));
        }
        // Docker archives have no manifest: build the one that a registry would have.
        let manifest = Manifest::new(&digest_of(&config), config.len() as u64, descriptors);
        let manifest = images.put_blob(&serde_json::to_vec(&manifest).map_err(bad)?)?;
        let tags = image
            .repo_tags
            .iter()
            .flatten()
            .map(|tag| Reference::parse(tag));
        let tags = tags.collect::<Result<Vec<_>>>()?;
        self.finish(images, &config, manifest, layers, &tags)
    }

    fn finish(
        &self,
        images: &Images,
        config: &[u8],
        manifest: String,
        layers: Vec<(String, String, PathBuf)>,
        tags: &[Reference],
    ) -> Result<Image> {
        for (digest, _, path) in &layers {
            if !images.has_blob(digest) {
                // Two names in one archive may refer to the same file.
                let copy = images.staging();
                fs::copy(path, &copy).map_err(Error::file(path))?;
                images.adopt_blob(&copy, digest)?;
            }
        }
        let blobs = layers.into_iter().map(|(digest, media_type, _)| {
            let size = images
                .blob_path(&digest)
                .map(|path| fs::metadata(path).map_or(0, |m| m.len()));
            size.map(|size| Blob {
                digest,
                media_type,
                size,
            })
        });
        let blobs = blobs.collect::<Result<Vec<_>>>()?;
        images.assemble(config, manifest, blobs, tags, &Progress::default())
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        let missing = || Error::BadImage(format!("{name} is not in the archive"));
        self.files.get(name).cloned().ok_or_else(missing)
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name)?;
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(Error::file(&path))?;
        file.take(MAX_DOCUMENT)
            .read_to_end(&mut bytes)
            .map_err(Error::file(&path))?;
        Ok(bytes)
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T> {
        serde_json::from_slice(&self.bytes(name)?).map_err(bad)
    }

    fn blob_path(&self, digest: &str) -> Result<PathBuf> {
        self.path(&format!("blobs/{}", digest.replace(':', "/")))
    }

    /// A small blob of the layout, verified.
    fn blob(&self, digest: &str) -> Result<Vec<u8>> {
        let bytes = self.bytes(&format!("blobs/{}", digest.replace(':', "/")))?;
        let found = digest_of(&bytes);
        if found == digest {
            return Ok(bytes);
        }
        Err(Error::BadImage(format!(
            "content of {digest} has the digest {found}"
        )))
    }
}

impl Images {
    /// Unpacks missing layers of an image whose blobs are all present, and adds its names.
    pub(super) fn assemble(
        &self,
        config: &[u8],
        manifest: String,
        blobs: Vec<Blob>,
        names: &[Reference],
        progress: &Progress,
    ) -> Result<Image> {
        check_layers(blobs.len())?;
        let id = self.put_blob(config)?;
        let file: ConfigFile = serde_json::from_slice(config).map_err(bad)?;
        file.check_platform()?;
        file.check_size()?;
        if file.rootfs.diff_ids.len() != blobs.len() {
            let message = format!(
                "{} layers but {} digests of them",
                blobs.len(),
                file.rootfs.diff_ids.len()
            );
            return Err(Error::BadImage(message));
        }
        let mut layers: Vec<String> = Vec::new();
        for (blob, diff_id) in blobs.iter().zip(&file.rootfs.diff_ids) {
            progress.reached(&blob.digest, Stage::Unpacking);
            layers.push(self.apply_layer(&blob.digest, diff_id, &layers)?);
            progress.reached(&blob.digest, Stage::Done);
        }
        let size = blobs.iter().map(|blob| blob.size).sum::<u64>() + config.len() as u64;
        let tags = names
            .iter()
            .filter(|name| name.digest.is_none())
            .map(ToString::to_string);
        let digests = names.iter().map(|name| name.with_digest(&manifest));
        self.put(Image {
            id,
            tags: tags.collect(),
            digests: digests.collect(),
            manifest,
            blobs,
            layers,
            size,
            pinned: false,
            settled: false,
            config: file.image_config(),
        })
    }
}

/// Refuses an image with more layers than a container can have.
pub(super) fn check_layers(count: usize) -> Result<()> {
    match count <= MAX_LAYERS {
        true => Ok(()),
        false => Err(Error::BadImage(format!(
            "{count} layers, more than {MAX_LAYERS}"
        ))),
    }
}

fn bad(error: serde_json::Error) -> Error {
    Error::BadImage(error.to_string())
}

fn file_digest(path: &Path) -> Result<String> {
    let mut hashing = super::blobs::Hashing::new(File::open(path).map_err(Error::file(path))?);
    io::copy(&mut hashing, &mut io::sink()).map_err(Error::file(path))?;
    Ok(hashing.digest())
}

/// A normalized name without `./` and the like.
fn plain(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            std::path::Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            std::path::Component::ParentDir => {
                parts.pop();
            }
            _ => {}
        }
    }
    parts.join("/")
}
