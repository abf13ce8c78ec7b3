//! Cached documents: compressed to a twentieth of their size. Clients that accept gzip get them so;
//! for others they are decompressed while sent. A document may consist of segments that were
//! compressed separately: a change of one leaves the others unchanged, and together they are one
//! gzip stream.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{
    Compress, Compression, Crc, FlushCompress,
    read::{DeflateDecoder, GzDecoder},
    write::GzEncoder,
};
use futures::stream;
use http::{HeaderMap, header};

use request::{Body, BodyError};

/// How much is decompressed at a time.
const PIECE: usize = 64 * 1024;
/// The header of a gzip stream without name and time.
const GZIP_HEADER: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// An empty block that ends a deflate stream.
const LAST_BLOCK: &[u8] = &[3, 0];

/// A compressed document.
#[derive(Clone)]
pub(super) enum Packed {
    Whole(Bytes),
    Segments(Arc<[Segment]>),
}

/// A part of a document: blocks of a deflate stream that refer to nothing before them, without an
/// end.
#[derive(Clone, Default)]
pub(super) struct Segment {
    deflated: Bytes,
    /// The checksum of the uncompressed bytes.
    sum: Arc<Crc>,
}

impl Segment {
    pub(super) fn new(part: &[u8]) -> Self {
        if part.is_empty() {
            return Self::default();
        }
        let mut sum = Crc::new();
        sum.update(part);
        Self {
            deflated: deflate(part).into(),
            sum: Arc::new(sum),
        }
    }

    /// Whether both share their bytes.
    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.deflated.as_ptr(), other.deflated.as_ptr())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deflated.is_empty()
    }

    fn reader(&self) -> impl Read + Send + 'static {
        DeflateDecoder::new(self.deflated.clone().reader().chain(LAST_BLOCK))
    }
}

/// Compresses to complete blocks that end at a byte boundary.
fn deflate(part: &[u8]) -> Vec<u8> {
    let mut stream = Compress::new(Compression::default(), false);
    let mut out = Vec::with_capacity(part.len() / 8 + PIECE);
    loop {
        let taken = usize::try_from(stream.total_in()).unwrap_or(part.len());
        // Errors occur only for wrongly initialized streams.
        let _ = stream.compress_vec(&part[taken..], &mut out, FlushCompress::Sync);
        let has_room = out.len() < out.capacity();
        if has_room && stream.total_in() == part.len() as u64 {
            break;
        }
        // The flushed output may exceed the buffer: continue with more room.
        out.reserve(PIECE);
    }
    out.shrink_to_fit();
    out
}

impl Packed {
    pub(super) fn new(document: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        // Writing to a vector cannot fail.
        let _ = encoder.write_all(document);
        Self::Whole(encoder.finish().unwrap_or_default().into())
    }

    /// Whether both share their bytes.
    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => std::ptr::eq(one.as_ptr(), other.as_ptr()),
            (Self::Segments(one), Self::Segments(other)) => {
                let mut pairs = one.iter().zip(other.iter());
                one.len() == other.len() && pairs.all(|(one, other)| one.is_same(other))
            }
            _ => false,
        }
    }

    /// Compressed, as cached.
    pub(super) fn compressed(self) -> Body {
        let segments = match self {
            Self::Whole(bytes) => return Body::whole(bytes),
            Self::Segments(segments) => segments,
        };
        let mut sum = Crc::new();
        segments.iter().for_each(|one| sum.combine(&one.sum));
        let mut end = BytesMut::from(LAST_BLOCK);
        end.put_u32_le(sum.sum());
        end.put_u32_le(sum.amount());
        let count = segments.len();
        let inner = (0..count).map(move |at| segments[at].deflated.clone());
        let header = Bytes::from_static(GZIP_HEADER);
        let parts = std::iter::once(header).chain(inner);
        let parts = parts.chain(std::iter::once(end.freeze()));
        Body::stream(stream::iter(parts.map(Ok)))
    }

    /// Decompressed.
    pub(super) fn plain(self) -> Body {
        match self {
            Self::Whole(bytes) => unpacked(GzDecoder::new(bytes.reader())),
            Self::Segments(segments) => unpacked(Unpacking {
                segments,
                next: 0,
                current: None,
            }),
        }
    }
}

/// Reads segments one after the other.
struct Unpacking {
    segments: Arc<[Segment]>,
    next: usize,
    current: Option<Box<dyn Read + Send>>,
}

impl Read for Unpacking {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if let Some(current) = &mut self.current {
                match current.read(into)? {
                    0 => self.current = None,
                    size => return Ok(size),
                }
            }
            let Some(segment) = self.segments.get(self.next) else {
                return Ok(0);
            };
            self.next += 1;
            self.current = Some(Box::new(segment.reader()));
        }
    }
}

fn unpacked(reader: impl Read + Send + 'static) -> Body {
    Body::stream(stream::try_unfold(reader, |mut reader| async {
        let mut piece = Vec::with_capacity(PIECE);
        let limit = PIECE as u64;
        let read = Read::by_ref(&mut reader)
            .take(limit)
            .read_to_end(&mut piece);
        let size = read.map_err(BodyError::from)?;
        Ok((size > 0).then(|| (Bytes::from(piece), reader)))
    }))
}

/// Whether a client accepts gzip.
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

    async fn bytes(body: Body) -> Bytes {
        body.collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn a_packed_document_round_trips() {
        let document: Vec<u8> = (0..300_000_u32).map(|n| (n / 7 % 251) as u8).collect();
        let packed = Packed::new(&document);
        let compressed = bytes(packed.clone().compressed()).await;
        assert!(compressed.len() < document.len() / 10);
        assert!(bytes(packed.plain()).await == document);
    }

    #[tokio::test]
    async fn segments_together_are_one_gzip_stream() {
        let mut parts: Vec<Vec<u8>> = [0, 1, 70_000, 300_000]
            .map(|size: u32| (0..size).map(|n| (n / 7 % 251) as u8).collect())
            .into();
        // Data that hardly compresses.
        let noise = (0..900_000_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u8);
        parts.insert(2, noise.collect());
        let segments = parts.iter().map(|part| Segment::new(part));
        let packed = Packed::Segments(segments.collect());
        let compressed = bytes(packed.clone().compressed()).await;
        let mut unpacked = Vec::new();
        // This decoder reads one member, and verifies checksum and length.
        let mut decoder = GzDecoder::new(compressed.as_ref());
        decoder.read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == parts.concat());
        assert!(bytes(packed.plain()).await == parts.concat());
    }

    #[test]
    fn gzip_is_used_only_if_the_client_accepts_it() {
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
