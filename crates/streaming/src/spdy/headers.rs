//! Header blocks: name and value pairs, compressed with one zlib stream per direction that starts
//! from the protocol's published dictionary.

use std::sync::LazyLock;

use bytes::{Buf, BufMut, Bytes};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::Error;

/// Far more than Kubernetes' clients send.
const MAX_BLOCK: usize = 64 * 1024;

/// Header names and values, names in lower case.
pub(crate) type Headers = Vec<(String, String)>;

/// Words of the dictionary, each after its length.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding \
    accept-language accept-ranges age allow authorization cache-control connection content-base \
    content-encoding content-language content-length content-location content-md5 content-range \
    content-type date etag expect expires from host if-match if-modified-since if-none-match \
    if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate \
    proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url \
    public set-cookie keep-alive origin";

/// The rest of the dictionary, without lengths.
const TAIL: &str = "1001012012022052063003023033043053063074024054064074084094104114124134144154164\
    17502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad \
    Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented\
    503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, \
    Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
    application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::new();
    for word in WORDS.split(' ') {
        let word = word.replace('_', " ");
        dictionary.put_u32(word.len() as u32);
        dictionary.put_slice(word.as_bytes());
    }
    dictionary.put_slice(TAIL.as_bytes());
    dictionary
});

/// The sending direction's state.
pub(crate) struct Encoder {
    zlib: Compress,
}

impl Encoder {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut zlib = Compress::new(Compression::best(), true);
        zlib.set_dictionary(&DICTIONARY)
            .map_err(|error| Error::Protocol(error.to_string()))?;
        Ok(Self { zlib })
    }

    pub(crate) fn encode(&mut self, headers: &[(String, String)]) -> Result<Vec<u8>, Error> {
        let mut plain = Vec::new();
        plain.put_u32(headers.len() as u32);
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(text.len() as u32);
            plain.put_slice(text.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() + 64);
        let start = self.zlib.total_in();
        loop {
            let consumed = (self.zlib.total_in() - start) as usize;
            block.reserve(64);
            self.zlib
                .compress_vec(&plain[consumed..], &mut block, FlushCompress::Sync)
                .map_err(|error| Error::Protocol(error.to_string()))?;
            // Spare room means that all output, including the flush marker, is written.
            if block.len() < block.capacity() {
                return Ok(block);
            }
        }
    }
}

/// The receiving direction's state.
pub(crate) struct Decoder {
    zlib: Decompress,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            zlib: Decompress::new(true),
        }
    }

    pub(crate) fn decode(&mut self, block: &[u8]) -> Result<Headers, Error> {
        parse(Bytes::from(self.inflate(block)?))
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, Error> {
        let mut plain = Vec::with_capacity(1024);
        loop {
            let (before_in, before_out) = (self.zlib.total_in(), self.zlib.total_out());
            let result = self
                .zlib
                .decompress_vec(block, &mut plain, FlushDecompress::Sync);
            block = &block[(self.zlib.total_in() - before_in) as usize..];
            match result {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.zlib
                        .set_dictionary(&DICTIONARY)
                        .map_err(|error| Error::Protocol(error.to_string()))?;
                    continue;
                }
                Err(error) => return Err(Error::Protocol(error.to_string())),
                Ok(Status::StreamEnd) => return Err(malformed()),
                Ok(_) => {}
            }
            let idle = self.zlib.total_in() == before_in && self.zlib.total_out() == before_out;
            if idle || (block.is_empty() && plain.len() < plain.capacity()) {
                return if block.is_empty() {
                    Ok(plain)
                } else {
                    Err(malformed())
                };
            }
            if plain.len() >= MAX_BLOCK {
                return Err(malformed());
            }
            plain.reserve(4096);
        }
    }
}

fn malformed() -> Error {
    Error::Protocol("malformed header block".to_owned())
}

fn parse(mut plain: Bytes) -> Result<Headers, Error> {
    let number = |plain: &mut Bytes| plain.try_get_u32().map_err(|_| malformed());
    let count = number(&mut plain)?;
    let mut headers = Headers::new();
    for _ in 0..count {
        let mut text = || {
            let length = number(&mut plain)? as usize;
            if length > plain.len() {
                return Err(malformed());
            }
            let text = plain.split_to(length);
            String::from_utf8(text.to_vec()).map_err(|_| malformed())
        };
        let (name, value) = (text()?, text()?);
        headers.push((name.to_ascii_lowercase(), value));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_dictionary_is_the_published_one() {
        let mut sum = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            sum.0 = (sum.0 + u32::from(*byte)) % 65521;
            sum.1 = (sum.1 + sum.0) % 65521;
        }
        assert_eq!(DICTIONARY.len(), 1423);
        assert_eq!(sum.1 << 16 | sum.0, 0xe3c6_a7c2);
    }

    #[test]
    fn blocks_of_one_connection_are_read_in_the_order_they_were_written() {
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new());
        let large = "x".repeat(20_000);
        for block in [
            headers(&[("streamtype", "error"), ("port", "80")]),
            headers(&[]),
            headers(&[("streamtype", "data"), ("port", "80"), ("large", &large)]),
            headers(&[("streamtype", "data")]),
        ] {
            let bytes = encoder.encode(&block).unwrap();
            assert_eq!(decoder.decode(&bytes).unwrap(), block);
        }
    }

    #[test]
    fn a_block_that_inflates_without_end_is_refused() {
        let mut encoder = Encoder::new().unwrap();
        let bomb = headers(&[("a", &"x".repeat(10 * MAX_BLOCK))]);
        let bytes = encoder.encode(&bomb).unwrap();
        assert!(bytes.len() < 4096);
        Decoder::new().decode(&bytes).unwrap_err();
        Decoder::new().decode(b"nonsense").unwrap_err();
        Decoder::new().decode(&bytes[..20]).unwrap_err();
    }
}
