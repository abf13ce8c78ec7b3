//! One pull: manifest, configuration, layers. Blobs are downloaded in parallel into partial files
//! that can be resumed, and stored only if their digest is right.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use http::{StatusCode, header};
use http_body_util::BodyExt;
use tokio::{fs::OpenOptions, io::AsyncWriteExt};

use super::{
    Credentials, Registries,
    http::{Client, whole},
    manifest::{Descriptor, Document, Manifest, pick},
};
use crate::{
    error::{Error, Result},
    images::{
        Blob, Image, Images, Lease, Progress, Reference, Stage,
        archive::check_layers,
        blobs::{MAX_DOCUMENT, digest_of},
    },
};

/// How many blobs are downloaded concurrently.
const PARALLEL: usize = 4;
/// How often an interrupted download is resumed.
const ATTEMPTS: u32 = 5;
/// The timeout without data.
const SILENCE: Duration = Duration::from_secs(30);

const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

impl Images {
    /// Pulls an image from its registry or the first mirror that has it.
    pub async fn pull(
        self: &Arc<Self>,
        reference: &Reference,
        registries: &Registries,
        credentials: &Credentials,
        progress: &Arc<Progress>,
    ) -> Result<Image> {
        let images = self.clone();
        let lease = tokio::task::spawn_blocking(move || images.lease()).await;
        let lease = lease.map_err(|_| Error::Registry("a task panicked".into()))??;
        let lease = Arc::new(lease);
        let mut trouble = Error::NoImage(reference.to_string());
        for source in registries.sources(reference, credentials)? {
            // One client per source, so that one registry's credentials are not sent to another.
            let client = Client::new(&source.credentials, &source.ca)?;
            let pull = Pull {
                images: self,
                lease: &lease,
                client: &client,
                url: format!("{}/v2/{}", source.base, reference.repository),
                reference,
                progress,
            };
            match pull.run().await {
                Ok(image) => return Ok(image),
                Err(error) => {
                    tracing::debug!(%reference, base = source.base, %error, "cannot pull from this source");
                    trouble = error;
                }
            }
        }
        Err(trouble)
    }
}

impl Images {
    /// The lock of a partial file; the task that downloads the file holds it.
    fn turn(&self, partial: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut fetching = self.fetching.lock();
        fetching.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = fetching.get(partial).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        fetching.insert(partial.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

struct Pull<'a> {
    images: &'a Arc<Images>,
    /// Blocking tasks hold it, too, because they continue when the pull is cancelled.
    lease: &'a Arc<Lease>,
    client: &'a Client,
    url: String,
    reference: &'a Reference,
    progress: &'a Arc<Progress>,
}

impl Pull<'_> {
    async fn run(&self) -> Result<Image> {
        let (manifest, digest) = self.manifest().await?;
        check_layers(manifest.layers.len())?;
        let mut parts = vec![manifest.config.clone()];
        parts.extend(manifest.layers.iter().cloned());
        self.progress.begin(&parts);
        let fetches: Vec<_> = parts.into_iter().map(|part| self.blob(part)).collect();
        stream::iter(fetches)
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<()>>()
            .await?;
        let blobs = manifest.layers.iter().map(|layer| Blob {
            digest: layer.digest.clone(),
            media_type: layer.media_type.clone(),
            size: layer.size,
        });
        let (images, blobs, reference) =
            (self.images.clone(), blobs.collect(), self.reference.clone());
        let (progress, lease) = (self.progress.clone(), self.lease.clone());
        // The semaphore is never closed. A pull that is cancelled meanwhile gives its permit back too early.
        let _turn = self.images.unpacking.acquire().await.ok();
        let assembled = tokio::task::spawn_blocking(move || {
            let _lease = lease;
            let config = std::fs::read(images.blob_path(&manifest.config.digest)?)
                .map_err(Error::system("read the configuration"))?;
            let image = images.assemble(&config, digest, blobs, &[reference], &progress)?;
            progress.reached(&manifest.config.digest, Stage::Done);
            Ok(image)
        });
        assembled
            .await
            .map_err(|_| Error::Registry("unpacking panicked".into()))?
    }

    /// The manifest for this machine, and the digest that the reference resolves to.
    async fn manifest(&self) -> Result<(Manifest, String)> {
        let (bytes, top) = self
            .document(self.reference.target(), self.reference.digest.as_deref())
            .await?;
        let manifest = match Document::parse(&bytes)? {
            Document::Manifest(manifest) => manifest,
            Document::Index(list) => {
                let chosen = pick(&list).ok_or_else(|| {
                    Error::BadImage(format!("{}: no image for this machine", self.reference))
                })?;
                let (bytes, _) = self.document(&chosen.digest, Some(&chosen.digest)).await?;
                match Document::parse(&bytes)? {
                    Document::Manifest(manifest) => manifest,
                    Document::Index(_) => {
                        return Err(Error::BadImage("an index in an index".into()));
                    }
                }
            }
        };
        Ok((manifest, top))
    }

    async fn document(&self, target: &str, digest: Option<&str>) -> Result<(Vec<u8>, String)> {
        let url = format!("{}/manifests/{target}", self.url);
        let answer = self
            .client
            .get(&url, &[("accept", ACCEPT.to_owned())])
            .await?;
        let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        let bytes = whole(answer, limit, &url).await?;
        let found = digest_of(&bytes);
        if let Some(wanted) = digest.filter(|wanted| *wanted != found) {
            return Err(Error::BadImage(format!(
                "manifest {wanted} has the digest {found}"
            )));
        }
        self.images.put_blob(&bytes)?;
        Ok((bytes.to_vec(), found))
    }

    /// Downloads a blob, resuming as often as necessary. A stored blob is used only if it came from this repository:
    /// a manifest can name any digest, also of content that this image's users cannot read.
    async fn blob(&self, blob: Descriptor) -> Result<()> {
        if blob.size > self.images.limits.bytes {
            let (digest, size) = (&blob.digest, blob.size);
            return Err(Error::BadImage(format!(
                "{digest} is larger than allowed: {size} bytes"
            )));
        }
        let place = self.images.blob_path(&blob.digest)?;
        let repository = self.reference.name();
        // Concurrent pulls of two images may share the blob.
        let partial = self.partial(&blob.digest);
        let turn = self.images.turn(&partial);
        let _mine = turn.lock().await;
        if place.exists() && self.images.came_from(&repository, &blob.digest)? {
            // A concurrent pull from a mirror may have finished first.
            let _ = std::fs::remove_file(&partial);
            self.progress.reached(&blob.digest, Stage::Downloaded);
            return Ok(());
        }
        let mut attempt = 0;
        loop {
            match self.fetch(&blob, &partial).await {
                Ok(()) => break,
                Err(Error::System { action, source }) if attempt < ATTEMPTS => {
                    tracing::debug!(digest = blob.digest, action, error = %source, "blob download interrupted");
                    attempt += 1;
                    tokio::time::sleep(Duration::from_millis(200) * attempt).await;
                }
                Err(error) => {
                    self.discard_on_full_disk(&partial);
                    return Err(error);
                }
            }
        }
        let (images, digest) = (self.images.clone(), blob.digest.clone());
        let lease = self.lease.clone();
        let adopted = tokio::task::spawn_blocking(move || {
            let _lease = lease;
            let adopted = images.adopt_blob(&partial, &digest);
            adopted.inspect(|()| images.record_served(repository, digest))
        });
        adopted
            .await
            .map_err(|_| Error::Registry("verifying panicked".into()))??;
        self.progress.reached(&blob.digest, Stage::Downloaded);
        Ok(())
    }

    /// The partial file of this repository in this registry. With a shared file, an untrusted registry could block pulls
    /// of the blob from other registries, make them continue after invalid data, or use what another one has served.
    fn partial(&self, digest: &str) -> PathBuf {
        let source = digest_of(self.url.as_bytes());
        let name = format!("{digest}-from-{source}.part").replace(':', "-");
        self.images.root().join("staging").join(name)
    }

    /// Removes what was downloaded, which nothing else frees, if the disk is filling up.
    fn discard_on_full_disk(&self, partial: &Path) {
        let disk = nix::sys::statvfs::statvfs(self.images.root());
        if disk.is_ok_and(|disk| is_filling(disk.blocks_available(), disk.blocks())) {
            let _ = std::fs::remove_file(partial);
        }
    }

    async fn fetch(&self, blob: &Descriptor, partial: &PathBuf) -> Result<()> {
        let cut = |error: std::io::Error| Error::System {
            action: "fetch a blob".into(),
            source: error,
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .append(true)
            .open(partial)
            .await
            .map_err(Error::file(partial))?;
        let mut have = file.metadata().await.map_err(Error::file(partial))?.len();
        if have > blob.size {
            file.set_len(0).await.map_err(Error::file(partial))?;
            have = 0;
        }
        if have == blob.size {
            return Ok(());
        }
        let url = format!("{}/blobs/{}", self.url, blob.digest);
        let range = (have > 0).then(|| ("range", format!("bytes={have}-")));
        let answer = self.client.get(&url, range.as_slice()).await?;
        if have > 0 && answer.status() != StatusCode::PARTIAL_CONTENT {
            file.set_len(0).await.map_err(Error::file(partial))?;
            have = 0;
        }
        let announced = answer.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| have.checked_add(length) != Some(blob.size)) {
            return Err(Error::BadImage(format!(
                "{} is not {} bytes long",
                blob.digest, blob.size
            )));
        }
        let mut body = answer.into_body();
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame()).await;
            let frame = frame.map_err(|_| cut(std::io::ErrorKind::TimedOut.into()))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| cut(std::io::Error::other(error)))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            have += data.len() as u64;
            if have > blob.size {
                return Err(Error::BadImage(format!(
                    "{} is longer than {} bytes",
                    blob.digest, blob.size
                )));
            }
            file.write_all(&data).await.map_err(Error::file(partial))?;
            self.progress.have(&blob.digest, have);
        }
        file.flush().await.map_err(Error::file(partial))?;
        if have == blob.size {
            Ok(())
        } else {
            Err(cut(std::io::ErrorKind::UnexpectedEof.into()))
        }
    }
}

/// Whether less than a fifth of a disk is available. Pods are evicted at 10 to 15 percent.
fn is_filling(available: u64, blocks: u64) -> bool {
    available < blocks / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_downloads_are_kept_while_the_disk_has_room() {
        for (available, blocks, expected) in [(100, 100, false), (20, 100, false), (19, 100, true)]
        {
            assert_eq!(is_filling(available, blocks), expected, "{available}");
        }
    }
}
