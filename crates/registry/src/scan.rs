//! Finds the offsets in canonical JSON bytes that readers need, by skipping over values without
//! parsing them. Runs once per write.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use machinery::encode::Encoded;
use store::Revision;

use crate::codec::write_revision;

/// Where and how the resourceVersion is inserted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    at: u32,
    comma: Comma,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Comma {
    #[default]
    Before,
    After,
    None,
}

impl Stamp {
    /// The length of the insertion; 0 for revision 0.
    pub(crate) fn len(&self, revision: Revision) -> usize {
        if revision == 0 {
            return 0;
        }
        let digits = revision.checked_ilog10().unwrap_or(0) as usize + 1;
        let commas = if self.comma == Comma::None { 0 } else { 1 };
        r#""resourceVersion":"""#.len() + digits + commas
    }

    /// The bytes with the revision inserted.
    pub(crate) fn insert(&self, bytes: &Bytes, revision: Revision) -> Bytes {
        if revision == 0 {
            return bytes.clone();
        }
        let (head, tail) = bytes.split_at(self.at as usize);
        let mut out = BytesMut::with_capacity(bytes.len() + self.len(revision));
        out.extend_from_slice(head);
        let (before, after) = match self.comma {
            Comma::Before => (",", ""),
            Comma::After => ("", ","),
            Comma::None => ("", ""),
        };
        write_revision(&mut out, before, revision, after);
        out.extend_from_slice(tail);
        out.freeze()
    }

    /// The offsets of the revision in bytes that have it.
    pub(crate) fn revision_range(&self, revision: Revision) -> Range<usize> {
        let at = self.at as usize;
        at..at + self.len(revision)
    }

    /// The bytes with the revision removed.
    pub(crate) fn remove(&self, bytes: &[u8], revision: Revision) -> Bytes {
        let range = self.revision_range(revision);
        [&bytes[..range.start], &bytes[range.end..]].concat().into()
    }
}

/// The offsets of one object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectOffsets {
    pub(crate) body: u32,
    pub(crate) metadata: (u32, u32),
    pub(crate) stamp: Stamp,
}

impl ObjectOffsets {
    /// The offsets of bytes that were just encoded; `None` without metadata.
    pub(crate) fn from_encoded(encoded: &Encoded) -> Option<Self> {
        let (body, begin, end) = encoded.metadata;
        let (before, after) = encoded.bytes.split_at_checked(encoded.stamp_at)?;
        let comma = match (before.last()?, after.first()?) {
            (b'{', b'}') => Comma::None,
            (b'{', _) => Comma::After,
            _ => Comma::Before,
        };
        Some(Self {
            body: body as u32,
            metadata: (begin as u32, end as u32),
            stamp: Stamp {
                at: encoded.stamp_at as u32,
                comma,
            },
        })
    }
}

/// Finds the offsets. The object must start with `apiVersion` and `kind` and have a `metadata`.
pub(crate) fn places(bytes: &[u8]) -> Result<ObjectOffsets, String> {
    let mut places = ObjectOffsets::default();
    let mut scanner = Scanner { bytes, at: 0 };
    scanner.expect(b'{')?;
    loop {
        let start = scanner.at;
        let key = scanner.string()?;
        scanner.expect(b':')?;
        match key {
            b"apiVersion" | b"kind" => {}
            b"metadata" => {
                places.body = start as u32;
                let begin = scanner.at as u32;
                places.stamp = scanner.stamp()?;
                places.metadata = (begin, scanner.at as u32);
                return Ok(places);
            }
            _ => return Err("metadata does not come first".to_owned()),
        }
        scanner.skip()?;
        scanner.expect(b',').map_err(|_| "no metadata".to_owned())?;
    }
}

/// A field of an object within canonical bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldPlace<'a> {
    pub name: &'a [u8],
    /// The offset of the name's opening quote.
    pub at: usize,
    /// The offsets of the value.
    pub value: Range<usize>,
}

/// The fields of the object that begins at an offset, in order.
pub fn fields(bytes: &[u8], at: usize) -> Result<Vec<FieldPlace<'_>>, String> {
    fields_until(bytes, at, |_| false)
}

/// The same up to and including the first field for which `is_last` returns true.
pub fn fields_until(
    bytes: &[u8],
    at: usize,
    is_last: impl Fn(&[u8]) -> bool,
) -> Result<Vec<FieldPlace<'_>>, String> {
    let mut scanner = Scanner { bytes, at };
    scanner.expect(b'{')?;
    match scanner.peek()? {
        b'}' => Ok(Vec::new()),
        _ => scanner.fields(is_last),
    }
}

/// The fields after the one whose value ends at an offset, with the fields of those that are objects. Every byte is read
/// once.
pub(crate) fn nested_fields_after(
    bytes: &[u8],
    at: usize,
) -> Result<Vec<(FieldPlace<'_>, Vec<FieldPlace<'_>>)>, String> {
    let mut scanner = Scanner { bytes, at };
    let mut nested = Vec::new();
    while scanner.peek()? != b'}' {
        scanner.expect(b',')?;
        let at = scanner.at;
        let name = scanner.string()?;
        scanner.expect(b':')?;
        let begin = scanner.at;
        let inside = scanner.nested()?;
        let value = begin..scanner.at;
        nested.push((FieldPlace { name, at, value }, inside));
    }
    Ok(nested)
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Bytes of a word that are zero have their highest bit set in the result; so may bytes after the first such byte.
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH_BITS
}

/// The offset of the quote that ends the string whose first byte is at an offset: eight bytes at a time, since most
/// bytes of an object are inside of strings.
fn end_of_string(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        while let Some(word) = bytes.get(at..at + 8) {
            // Cannot fail: the slice has eight bytes.
            let word = u64::from_le_bytes(word.try_into().ok()?);
            let quotes = zero_bytes(word ^ (ONES * u64::from(b'"')));
            let found = quotes | zero_bytes(word ^ (ONES * u64::from(b'\\')));
            if found != 0 {
                at += found.trailing_zeros() as usize / 8;
                break;
            }
            at += 8;
        }
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Result<u8, String> {
        self.bytes
            .get(self.at)
            .copied()
            .ok_or_else(|| "unexpected end".to_owned())
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.peek()? != byte {
            return Err(format!("expected {:?} at {}", char::from(byte), self.at));
        }
        self.at += 1;
        Ok(())
    }

    /// Reads a string, with escapes as they are.
    fn string(&mut self) -> Result<&'a [u8], String> {
        self.expect(b'"')?;
        let start = self.at;
        let end = end_of_string(self.bytes, start).ok_or_else(|| "unexpected end".to_owned())?;
        self.at = end + 1;
        Ok(&self.bytes[start..end])
    }

    /// Skips one value.
    fn skip(&mut self) -> Result<(), String> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                b',' | b'}' | b']' | b':' => return Err(format!("no value at {}", self.at)),
                _ => self.scalar(),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Reads the fields up to the end of the object or the last one.
    fn fields(&mut self, is_last: impl Fn(&[u8]) -> bool) -> Result<Vec<FieldPlace<'a>>, String> {
        let mut fields = Vec::new();
        loop {
            let at = self.at;
            let name = self.string()?;
            self.expect(b':')?;
            let begin = self.at;
            self.skip()?;
            let value = begin..self.at;
            fields.push(FieldPlace { name, at, value });
            if is_last(name) || self.peek()? == b'}' {
                return Ok(fields);
            }
            self.expect(b',')?;
        }
    }

    /// Skips one value; returns its fields if it is an object.
    fn nested(&mut self) -> Result<Vec<FieldPlace<'a>>, String> {
        if self.peek()? != b'{' {
            self.skip()?;
            return Ok(Vec::new());
        }
        self.at += 1;
        let fields = match self.peek()? {
            b'}' => Vec::new(),
            _ => self.fields(|_| false)?,
        };
        self.expect(b'}')?;
        Ok(fields)
    }

    fn scalar(&mut self) {
        let is_end = |byte: &u8| matches!(byte, b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"');
        let end = self.bytes[self.at..].iter().position(is_end);
        self.at = end.map_or(self.bytes.len(), |end| self.at + end);
    }

    /// Walks over the metadata and finds the position of the resourceVersion: after the uid, or
    /// first if there is none.
    fn stamp(&mut self) -> Result<Stamp, String> {
        self.expect(b'{')?;
        let mut stamp = Stamp {
            at: self.at as u32,
            comma: Comma::After,
        };
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Stamp {
                comma: Comma::None,
                ..stamp
            });
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            self.skip()?;
            if key == b"uid" {
                stamp = Stamp {
                    at: self.at as u32,
                    comma: Comma::Before,
                };
            }
            if self.peek()? == b'}' {
                self.at += 1;
                return Ok(stamp);
            }
            self.expect(b',')?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_shape_are_skipped() {
        let json = br#"{"apiVersion":"v1","kind":"X","metadata":{"a":[1,{"b":"}\"]"}],"c":null,"d":-1.5e3,"uid":"u","e":true},"z":1}"#;
        let places = places(json).unwrap();
        assert!(json[places.body as usize..].starts_with(br#""metadata":{"a""#));
        assert!(json[places.metadata.1 as usize..].starts_with(br#","z":1}"#));
        let stamped = places.stamp.insert(&Bytes::from_static(json), 9);
        assert!(
            String::from_utf8_lossy(&stamped).contains(r#""uid":"u","resourceVersion":"9","e""#)
        );
    }

    /// The same byte by byte.
    fn end_of_string_slowly(bytes: &[u8], mut at: usize) -> Option<usize> {
        loop {
            match bytes.get(at)? {
                b'"' => return Some(at),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn strings_end_where_a_slow_scan_finds_it(
            text in proptest::collection::vec(proptest::sample::select(&b"ab\"\\\x00\x7f\x80\xa2\xdc\xff!#[]"[..]), 0..40),
            from in 0usize..12,
        ) {
            proptest::prop_assert_eq!(end_of_string(&text, from), end_of_string_slowly(&text, from));
        }
    }

    #[test]
    fn fields_after_metadata_come_with_the_fields_of_objects() {
        let json = br#"{"metadata":{},"spec":{"a":{"x":1},"b":["}"]},"n":7,"status":{}}"#;
        let all = nested_fields_after(json, 14).unwrap();
        let text = |place: &FieldPlace<'_>| {
            let (name, value) = (place.name, &json[place.value.clone()]);
            format!(
                "{}={}",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value)
            )
        };
        let shown: Vec<_> = all
            .iter()
            .map(|(place, inside)| (text(place), inside.iter().map(text).collect::<Vec<_>>()))
            .collect();
        let inside = vec![r#"a={"x":1}"#.to_owned(), r#"b=["}"]"#.to_owned()];
        assert_eq!(
            shown[0],
            (r#"spec={"a":{"x":1},"b":["}"]}"#.to_owned(), inside)
        );
        assert_eq!(shown[1], ("n=7".to_owned(), vec![]));
        assert_eq!(shown[2], ("status={}".to_owned(), vec![]));
        assert_eq!(all[0].1, fields(json, all[0].0.value.start).unwrap());
    }

    #[test]
    fn the_encoder_knows_the_places_that_a_scan_finds() {
        let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n","uid":"u","labels":{"a":"b"}},"data":{"metadata":"x"}}"#;
        let schema = machinery::schema::lookup("core/v1.ConfigMap");
        let object = machinery::json::from_str(json).unwrap();
        let encoded = machinery::encode::object(schema, &object);
        assert_eq!(encoded.bytes, json.as_bytes());
        assert_eq!(
            ObjectOffsets::from_encoded(&encoded),
            places(&encoded.bytes).ok()
        );
        let nothing = machinery::encode::object(None, &machinery::Object::new());
        assert_eq!(ObjectOffsets::from_encoded(&nothing), None);
    }

    #[test]
    fn bytes_that_are_no_object_are_refused() {
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"kind":"X"}"#,
            r#"{"spec":{},"metadata":{}}"#,
            r#"{"kind":"#,
        ] {
            assert!(places(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
