//! Bodies of responses that are read as a whole: bounded, and decompressed.

use std::io::Read;

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use client::kube::client::Body;
use flate2::read::GzDecoder;
use http::{Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

/// A list is requested in chunks of 500 objects, which are smaller than 2 MiB each.
const MAX_SIZE: usize = 1 << 30;
/// A `Status`, or the text of a proxy.
const MAX_ERROR_SIZE: usize = 16 << 20;

/// The whole body.
pub(crate) async fn read(response: Response<Body>) -> Result<Bytes> {
    let max = match response.status().is_success() {
        true => MAX_SIZE,
        false => MAX_ERROR_SIZE,
    };
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    let is_compressed = encoding.is_some_and(|encoding| encoding == "gzip");
    let body = Limited::new(response.into_body(), max).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => too_large(max),
        false => lost(error),
    })?;
    match is_compressed {
        true => decompressed(&body.to_bytes(), max),
        false => Ok(body.to_bytes()),
    }
}

/// The contents of gzip, unless they are larger than `max`.
fn decompressed(bytes: &[u8], max: usize) -> Result<Bytes> {
    let mut contents = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    GzDecoder::new(bytes)
        .take(limit)
        .read_to_end(&mut contents)?;
    if contents.len() > max {
        bail!(too_large(max));
    }
    Ok(contents.into())
}

fn too_large(max: usize) -> anyhow::Error {
    anyhow!("the server's answer is larger than {} MiB", max >> 20)
}

/// The error of a response that ended early.
pub(crate) fn lost(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("connection to the API server was lost: {error}")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn response(status: u16, encoding: &str, body: Vec<u8>) -> Response<Body> {
        Response::builder()
            .status(status)
            .header(header::CONTENT_ENCODING, encoding)
            .body(Body::from(body))
            .unwrap()
    }

    fn compressed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn compressed_and_plain_bodies_are_read() {
        let plain = read(response(200, "identity", b"{}".to_vec())).await;
        assert_eq!(plain.unwrap(), "{}");
        let zipped = read(response(200, "gzip", compressed(b"{}"))).await;
        assert_eq!(zipped.unwrap(), "{}");
        assert!(read(response(200, "gzip", b"{}".to_vec())).await.is_err());
    }

    #[tokio::test]
    async fn bodies_beyond_the_limit_are_refused_compressed_or_not() {
        let large = vec![b'x'; MAX_ERROR_SIZE + 1];
        for (encoding, body) in [("gzip", compressed(&large)), ("identity", large)] {
            let error = read(response(500, encoding, body)).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                "the server's answer is larger than 16 MiB"
            );
        }
    }
}
