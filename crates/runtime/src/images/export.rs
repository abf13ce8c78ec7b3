//! Exports images as OCI layouts in tar files.

use std::{fs::File, io};

use serde_json::json;

use super::{
    Image, Images,
    blobs::digest_of,
    config::ConfigFile,
    hello::write_archive,
    registry::manifest::{Descriptor, MANIFEST, Manifest},
};
use crate::error::{Error, Result};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

impl Images {
    /// Writes an image with all its blobs. Blocks.
    pub fn export(&self, name: &str, out: impl io::Write) -> Result<()> {
        let _lease = self.lease()?;
        let image = self.need(name)?;
        let mut archive = tar::Builder::new(out);
        self.write(&image, &mut archive)
            .map_err(Error::system("write the archive"))
    }

    fn write(&self, image: &Image, archive: &mut tar::Builder<impl io::Write>) -> io::Result<()> {
        let config = std::fs::read(self.blob_path(&image.id).map_err(io::Error::other)?)?;
        let (manifest, digest) = if image.blobs.is_empty() {
            self.write_layers(image, &config, archive)?
        } else {
            for blob in &image.blobs {
                let path = self.blob_path(&blob.digest).map_err(io::Error::other)?;
                archive.append_file(archive_path(&blob.digest), &mut File::open(path)?)?;
            }
            let path = self.blob_path(&image.manifest).map_err(io::Error::other)?;
            (std::fs::read(path)?, image.manifest.clone())
        };
        append(archive, &archive_path(&image.id), &config)?;
        append(archive, &archive_path(&digest), &manifest)?;
        let entry = |name: Option<&String>| {
            let annotations = name.map(|name| json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name }));
            json!({
                "mediaType": MANIFEST, "digest": digest, "size": manifest.len(), "annotations": annotations,
            })
        };
        let entries: Vec<_> = if image.tags.is_empty() {
            vec![entry(None)]
        } else {
            image.tags.iter().map(|tag| entry(Some(tag))).collect()
        };
        let index = json!({ "schemaVersion": 2, "manifests": entries });
        append(archive, "index.json", index.to_string().as_bytes())?;
        append(archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        archive.finish()
    }

    /// Locally built images have no layer blobs: they are created now.
    fn write_layers(
        &self,
        image: &Image,
        config: &[u8],
        archive: &mut tar::Builder<impl io::Write>,
    ) -> io::Result<(Vec<u8>, String)> {
        let file: ConfigFile = serde_json::from_slice(config)?;
        let mut descriptors = Vec::new();
        for (layer, diff_id) in image.layers.iter().zip(&file.rootfs.diff_ids) {
            let staging = self.staging();
            let mut made = File::create_new(&staging)?;
            let written = write_archive(&self.layer_dir(layer), &mut made);
            let size = made.metadata()?.len();
            let appended = written.and_then(|()| {
                let mut made = File::open(&staging)?;
                archive.append_file(archive_path(diff_id), &mut made)
            });
            std::fs::remove_file(&staging)?;
            appended?;
            descriptors.push(Descriptor::new(LAYER, diff_id, size));
        }
        let manifest = Manifest::new(&image.id, config.len() as u64, descriptors);
        let manifest = serde_json::to_vec(&manifest)?;
        let digest = digest_of(&manifest);
        Ok((manifest, digest))
    }
}

fn archive_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn append(archive: &mut tar::Builder<impl io::Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, bytes)
}
