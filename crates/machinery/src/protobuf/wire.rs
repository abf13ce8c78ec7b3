//! Varints, tags and lengths.

use super::Error;

pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const BYTES: u8 = 2;
pub(super) const FIXED32: u8 = 5;

/// Reads one message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// The value of one field on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// No field of the API has this type; it is skipped.
    Fixed32,
}

impl Wire<'_> {
    pub(super) fn kind(self) -> u8 {
        match self {
            Wire::Varint(_) => VARINT,
            Wire::Fixed64(_) => FIXED64,
            Wire::Bytes(_) => BYTES,
            Wire::Fixed32 => FIXED32,
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::Overflow)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Truncated)
    }

    /// The next field; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Error::Overflow)?;
        if number == 0 {
            return Err(Error::Tag((tag & 7) as u8));
        }
        let wire = match (tag & 7) as u8 {
            VARINT => Wire::Varint(self.varint()?),
            FIXED64 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| Error::Overflow)?;
                Wire::Bytes(self.take(length)?)
            }
            FIXED32 => {
                self.take(4)?;
                Wire::Fixed32
            }
            other => return Err(Error::WireType(other)),
        };
        Ok(Some((number, wire)))
    }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_tag(out: &mut Vec<u8>, number: u32, kind: u8) {
    put_varint(out, u64::from(number) << 3 | u64::from(kind));
}

pub(super) fn put_integer(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, VARINT);
    put_varint(out, value as u64);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_tag(out, number, BYTES);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A message under a number: written after a gap for its length, which is filled afterwards.
pub(super) fn put_message(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_tag(out, number, BYTES);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    let mut prefix = Vec::with_capacity(10);
    put_varint(&mut prefix, length as u64);
    out.splice(start..start, prefix);
}
