//! Unpacks blobs to layers.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use super::{
    Images,
    blobs::{Hashing, digest_of},
    unpack::{Limits, Unpacker},
};
use crate::error::{Error, Result};

/// The maximum padding after the end of an archive.
const MAX_PADDING: u64 = 64 << 20;

impl Images {
    /// Unpacks a layer on top of others, unless it is already unpacked. Returns its name.
    pub(super) fn apply_layer(
        &self,
        digest: &str,
        diff_id: &str,
        below: &[String],
    ) -> Result<String> {
        let blob = &self.blob_path(digest)?;
        let name = chain(below.last().map(String::as_str), diff_id);
        let place = self.layer_dir(&name);
        if place.exists() {
            // The image's configuration can name any layer: only one with this content is the image's own.
            if !self.is_unpacked_from(&name, digest)? {
                check_content(blob, diff_id, self.limits)?;
            }
            return Ok(name);
        }
        let staging = self.staging();
        let lower: Vec<PathBuf> = below
            .iter()
            .rev()
            .map(|layer| self.layer_dir(layer))
            .collect();
        let unpacked = unpack(blob, diff_id, &staging, lower, self.limits);
        let done = unpacked.and_then(|()| match fs::rename(&staging, &place) {
            // Another process or thread unpacked it first.
            Err(_) if place.exists() => Ok(()),
            result => result.map_err(Error::file(&place)),
        });
        let _ = fs::remove_dir_all(&staging);
        done.map(|()| name)
    }
}

fn unpack(
    blob: &Path,
    diff_id: &str,
    staging: &Path,
    lower: Vec<PathBuf>,
    limits: Limits,
) -> Result<()> {
    let file = File::open(blob).map_err(Error::file(blob))?;
    let mut content = Hashing::new(decompress(file).map_err(Error::file(blob))?);
    Unpacker::new(staging, lower, limits)?.unpack(&mut content)?;
    // Padding after the archive's end is part of the digest; its size is limited.
    let padding = io::copy(&mut content.by_ref().take(MAX_PADDING), &mut io::sink());
    if padding.map_err(Error::file(blob))? == MAX_PADDING {
        return Err(Error::BadImage(format!(
            "the layer {diff_id} has data after its end"
        )));
    }
    check_digest(content, diff_id)
}

/// Checks that a blob unpacks to a layer, without unpacking it.
fn check_content(blob: &Path, diff_id: &str, limits: Limits) -> Result<()> {
    let file = File::open(blob).map_err(Error::file(blob))?;
    let mut content = Hashing::new(decompress(file).map_err(Error::file(blob))?);
    // The headers of an archive's entry take 1 KiB with padding, unless its name is very long.
    let headers = limits.entries.saturating_mul(1 << 10);
    let most = limits
        .bytes
        .saturating_add(headers)
        .saturating_add(MAX_PADDING);
    io::copy(&mut content.by_ref().take(most), &mut io::sink()).map_err(Error::file(blob))?;
    check_digest(content, diff_id)
}

fn check_digest<T>(content: Hashing<T>, diff_id: &str) -> Result<()> {
    let found = content.digest();
    if found == diff_id {
        return Ok(());
    }
    Err(Error::BadImage(format!(
        "the layer {diff_id} unpacks to {found}"
    )))
}

/// The name of a layer on top of others. The same layer on different ones has different names,
/// since hard links may refer to files below.
fn chain(below: Option<&str>, diff_id: &str) -> String {
    let id = match below {
        None => diff_id.to_owned(),
        Some(below) => digest_of(format!("sha256:{below} {diff_id}").as_bytes()),
    };
    id.trim_start_matches("sha256:").to_owned()
}

/// Detects the compression by content, not by media type.
pub(super) fn decompress<'a>(content: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut reader = BufReader::with_capacity(128 * 1024, content);
    let start = io::BufRead::fill_buf(&mut reader)?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(reader)?),
        _ => Box::new(reader),
    })
}
