//! Content-addressed blobs. A file under `blobs` is complete and was verified when it was stored.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::PathBuf,
};

use sha2::{Digest, Sha256};

use super::{Images, reference::check_digest};
use crate::error::{Error, Result};

/// The maximum size of a manifest or configuration.
pub(super) const MAX_DOCUMENT: u64 = 4 << 20;

impl Images {
    /// The path of a blob. The digest must be canonical.
    pub(super) fn blob_path(&self, digest: &str) -> Result<PathBuf> {
        let digest = check_digest(digest)
            .ok_or_else(|| Error::BadImage(format!("{digest:?} is not a sha256 digest")))?;
        Ok(self
            .root
            .join("blobs/sha256")
            .join(&digest["sha256:".len()..]))
    }

    /// Whether the blob is stored.
    pub(super) fn has_blob(&self, digest: &str) -> bool {
        self.blob_path(digest).is_ok_and(|path| path.exists())
    }

    /// Stores bytes and returns their digest.
    pub(super) fn put_blob(&self, bytes: &[u8]) -> Result<String> {
        let digest = digest_of(bytes);
        let path = self.blob_path(&digest)?;
        if !path.exists() {
            let staging = self.staging();
            fs::write(&staging, bytes).map_err(Error::file(&staging))?;
            fs::rename(&staging, &path).map_err(Error::file(&path))?;
        }
        Ok(digest)
    }

    /// Verifies a file's digest and moves it into the store.
    pub(super) fn adopt_blob(&self, file: &std::path::Path, digest: &str) -> Result<()> {
        let path = self.blob_path(digest)?;
        let mut hasher = Sha256::new();
        let mut opened = File::open(file).map_err(Error::file(file))?;
        io::copy(&mut opened, &mut hasher).map_err(Error::file(file))?;
        let found = hex(hasher);
        if found != digest {
            let _ = fs::remove_file(file);
            return Err(Error::BadImage(format!(
                "content of {digest} has the digest {found}"
            )));
        }
        fs::rename(file, &path).map_err(Error::file(path))
    }
}

/// The digest of bytes.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

fn hex(hasher: Sha256) -> String {
    let digits = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    format!("sha256:{digits}")
}

/// Passes data through and computes its digest.
pub(super) struct Hashing<T> {
    inner: T,
    hasher: Sha256,
}

impl<T> Hashing<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner,
            hasher: Sha256::new(),
        }
    }

    pub(super) fn digest(self) -> String {
        hex(self.hasher)
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let length = self.inner.write(buffer)?;
        self.hasher.update(&buffer[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
