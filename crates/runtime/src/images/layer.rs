//! Unpacks blobs to layers.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use super::{
    Images,
    blobs::{Hashing, digest_of},
    unpack::{Limits, Unpacker},
};
use crate::{
    disk,
    error::{Error, Result},
};

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
        let _ = disk::remove_dir(&staging);
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
    let unpacked = unpack_within(Window::Usual, blob, diff_id, staging, lower.clone(), limits);
    match unpacked {
        Err(error) if error.to_string().contains(NEEDS_LARGER_WINDOW) => {
            disk::remove_dir(staging)?;
            let _alone = LARGE_WINDOW.lock();
            unpack_within(Window::Large, blob, diff_id, staging, lower, limits)
        }
        done => done,
    }
}

fn unpack_within(
    window: Window,
    blob: &Path,
    diff_id: &str,
    staging: &Path,
    lower: Vec<PathBuf>,
    limits: Limits,
) -> Result<()> {
    let file = File::open(blob).map_err(Error::file(blob))?;
    let mut content = Hashing::new(decompress(file, window).map_err(Error::file(blob))?);
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
    match check_within(Window::Usual, blob, diff_id, limits) {
        Err(error) if error.to_string().contains(NEEDS_LARGER_WINDOW) => {
            let _alone = LARGE_WINDOW.lock();
            check_within(Window::Large, blob, diff_id, limits)
        }
        done => done,
    }
}

fn check_within(window: Window, blob: &Path, diff_id: &str, limits: Limits) -> Result<()> {
    let file = File::open(blob).map_err(Error::file(blob))?;
    let mut content = Hashing::new(decompress(file, window).map_err(Error::file(blob))?);
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

/// How much memory the decompression of one blob may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Window {
    /// What zstd's levels up to 19 need.
    Usual,
    /// As much as zstd's own limit.
    Large,
}

impl Window {
    /// The binary logarithm of its size.
    fn log(self) -> u32 {
        match self {
            Self::Usual => 23,
            Self::Large => 27,
        }
    }
}

/// Held while a blob is decompressed with a large window: a few bytes can ask for it, and many images may be pulled at once.
static LARGE_WINDOW: Mutex<()> = Mutex::new(());

/// The part of zstd's error that a larger window would avoid.
const NEEDS_LARGER_WINDOW: &str = "requires too much memory";

/// Detects the compression by content, not by media type.
pub(super) fn decompress<'a>(
    content: impl Read + 'a,
    window: Window,
) -> io::Result<Box<dyn Read + 'a>> {
    let mut reader = BufReader::with_capacity(128 * 1024, content);
    let start = io::BufRead::fill_buf(&mut reader)?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?;
            decoder.window_log_max(window.log())?;
            Box::new(decoder)
        }
        _ => Box::new(reader),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compressed(archive: &[u8], window_log: u32) -> Vec<u8> {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(window_log).unwrap();
        encoder.write_all(archive).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_layer_with_a_large_window_is_unpacked_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(2);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, "file", &b"hi"[..])
            .unwrap();
        let archive = builder.into_inner().unwrap();
        let diff_id = digest_of(&archive);
        for (name, window_log) in [("usual", 23), ("large", 27)] {
            let blob = dir.path().join(name);
            fs::write(&blob, compressed(&archive, window_log)).unwrap();
            let (staging, limits) = (dir.path().join("staging"), Limits::default());
            let usual = unpack_within(Window::Usual, &blob, &diff_id, &staging, vec![], limits);
            assert_eq!(usual.is_ok(), name == "usual", "{usual:?}");
            unpack(&blob, &diff_id, &staging, vec![], limits).unwrap();
            assert_eq!(fs::read(staging.join("file")).unwrap(), b"hi");
            check_content(&blob, &diff_id, limits).unwrap();
            disk::remove_dir(&staging).unwrap();
        }
    }
}
