//! Documents as they are kept: compressed, to a twentieth of their size. Clients that take them so get them so; for
//! others they are unpacked while they are sent.

use std::io::{Read, Write};

use bytes::{Buf, Bytes};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use futures::stream;
use http::{HeaderMap, header};

use request::{Body, BodyError};

/// How much is unpacked at a time.
const PIECE: usize = 64 * 1024;

/// A document, compressed.
#[derive(Clone)]
pub(super) struct Packed(Bytes);

impl Packed {
    pub(super) fn new(document: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        // Writing to a vector cannot fail.
        let _ = encoder.write_all(document);
        Self(encoder.finish().unwrap_or_default().into())
    }

    /// Whether both share their bytes.
    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.0.as_ptr(), other.0.as_ptr())
    }

    /// As it is kept.
    pub(super) fn compressed(self) -> Body {
        Body::whole(self.0)
    }

    /// As it was.
    pub(super) fn plain(self) -> Body {
        let decoder = GzDecoder::new(self.0.reader());
        Body::stream(stream::try_unfold(decoder, |mut decoder| async {
            let mut piece = Vec::with_capacity(PIECE);
            let limit = PIECE as u64;
            let read = Read::by_ref(&mut decoder)
                .take(limit)
                .read_to_end(&mut piece);
            let size = read.map_err(BodyError::from)?;
            Ok((size > 0).then(|| (Bytes::from(piece), decoder)))
        }))
    }
}

/// Whether a client takes compressed answers.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT_ENCODING);
    let accepts = accepts.and_then(|value| value.to_str().ok());
    let is_gzip = |coding: &str| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        name == "gzip" && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    };
    accepts.is_some_and(|list| list.split(',').any(|coding| is_gzip(coding.trim())))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_document_comes_back_as_it_was() {
        let document: Vec<u8> = (0..300_000_u32).map(|n| (n / 7 % 251) as u8).collect();
        let packed = Packed::new(&document);
        assert!(packed.0.len() < document.len() / 10);
        let plain = packed.plain().collect().await.unwrap().to_bytes();
        assert!(plain == document);
    }

    #[test]
    fn clients_say_whether_they_take_it() {
        for (accepts, takes) in [
            ("gzip", true),
            ("br, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("br", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, accepts.parse().unwrap());
            assert_eq!(takes_gzip(&headers), takes, "{accepts}");
        }
    }
}
