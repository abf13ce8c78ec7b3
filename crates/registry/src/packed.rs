//! Compresses objects in memory: bytes that objects of a kind have in common are kept once, in a dictionary. A packed
//! object alternates between its own bytes and references into the dictionary. Reading it copies them together without
//! parsing. The store's files contain unpacked objects.

use std::sync::Arc;

use bytes::Bytes;

/// The length of the byte windows that are indexed, and the minimum length of a reference into the dictionary.
const WINDOW: usize = 8;
/// The number of bits of a window's hash.
const BITS: u32 = 16;
/// The maximum length of a dictionary.
const LONGEST: usize = 64 << 10;
/// The maximum number of objects that a dictionary is built from.
const SAMPLES: usize = 16;

/// The bytes of an object, plain or packed.
#[derive(Debug)]
pub(crate) enum Text {
    Plain(Bytes),
    Packed(Packed),
}

impl Text {
    /// The length of the unpacked object.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Packed(packed) => packed.length as usize,
        }
    }

    /// The unpacked object.
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Plain(bytes) => bytes.clone(),
            Self::Packed(packed) => packed.unpack(),
        }
    }
}

/// An object as a sequence of pieces. A piece is the number of the object's own bytes, these bytes, the length of a
/// dictionary reference and, unless that length is 0, its offset in the dictionary.
#[derive(Debug)]
pub(crate) struct Packed {
    dictionary: Arc<[u8]>,
    pieces: Box<[u8]>,
    /// The length of the unpacked object.
    length: u32,
}

impl Packed {
    fn unpack(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.length as usize);
        let mut rest = &*self.pieces;
        while !rest.is_empty() {
            let own = take_number(&mut rest);
            let (own, after) = rest.split_at(own);
            out.extend_from_slice(own);
            rest = after;
            let shared = take_number(&mut rest);
            if shared > 0 {
                let at = take_number(&mut rest);
                out.extend_from_slice(&self.dictionary[at..at + shared]);
            }
        }
        out.into()
    }
}

/// Appends a number as LEB128: seven bits per byte, least significant first; bit 7 is set in all bytes but the last.
fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 128 {
        out.push(128 | (number & 127) as u8);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> usize {
    let (mut number, mut shift) = (0, 0);
    while let Some((digit, after)) = rest.split_first() {
        *rest = after;
        number |= usize::from(digit & 127) << shift;
        shift += 7;
        if *digit < 128 {
            break;
        }
    }
    number
}

/// A dictionary with an index of its windows.
pub(crate) struct Index {
    dictionary: Arc<[u8]>,
    /// By hash: the offset of the last window with this hash plus one; 0 if there is none.
    places: Box<[u32]>,
}

impl Index {
    pub(crate) fn new(dictionary: Arc<[u8]>) -> Self {
        let mut places = vec![0; 1 << BITS].into_boxed_slice();
        for (at, window) in dictionary.windows(WINDOW).enumerate() {
            places[hash(window)] = at as u32 + 1;
        }
        Self { dictionary, places }
    }

    /// Builds a dictionary from objects of one kind. Objects that the dictionary already compresses well are not added.
    pub(crate) fn of_samples(objects: &[impl AsRef<[u8]>]) -> Self {
        let step = objects.len().div_ceil(SAMPLES).max(1);
        let mut index = Self::new(Arc::default());
        for object in objects.iter().step_by(step) {
            let object = object.as_ref();
            let length = index.dictionary.len() + object.len();
            if length <= LONGEST && index.packed_size(object) > object.len() / 8 {
                index = Self::new([&*index.dictionary, object].concat().into());
            }
        }
        index
    }

    /// The dictionary, to pack later objects with.
    pub(crate) fn dictionary(&self) -> &Arc<[u8]> {
        &self.dictionary
    }

    /// The size that an object has when it is packed.
    pub(crate) fn packed_size(&self, object: &[u8]) -> usize {
        self.pieces(object).len()
    }

    /// Packs an object; `None` unless that at least halves its size.
    pub(crate) fn pack(&self, object: &[u8]) -> Option<Packed> {
        let pieces = self.pieces(object);
        let packed = (pieces.len() <= object.len() / 2).then(|| Packed {
            dictionary: self.dictionary.clone(),
            pieces: pieces.into(),
            length: object.len() as u32,
        });
        // Readers rely on unpacked objects being what was packed.
        packed.filter(|packed| packed.unpack() == object)
    }

    fn pieces(&self, object: &[u8]) -> Vec<u8> {
        let mut pieces = Vec::new();
        // `object[..own]` is encoded. `after` is the offset in the dictionary that follows the last reference.
        let (mut own, mut after, mut at) = (0, 0, 0);
        while at + WINDOW <= object.len() {
            // Values that differ between two objects often have the same length, so try the offset after such a value.
            let (place, length) = self.longest(&object[at..], after + at - own);
            if length < WINDOW {
                at += 1;
                continue;
            }
            put_number(&mut pieces, at - own);
            pieces.extend_from_slice(&object[own..at]);
            put_number(&mut pieces, length);
            put_number(&mut pieces, place);
            at += length;
            (own, after) = (at, place + length);
        }
        if own < object.len() {
            put_number(&mut pieces, object.len() - own);
            pieces.extend_from_slice(&object[own..]);
            put_number(&mut pieces, 0);
        }
        pieces
    }

    /// The offset and length of the longest match of `bytes`, at the offset that the index has or at `expected`.
    fn longest(&self, bytes: &[u8], expected: usize) -> (usize, usize) {
        let common = |place: usize| {
            let there = self.dictionary.get(place..).unwrap_or_default();
            there.iter().zip(bytes).take_while(|(a, b)| a == b).count()
        };
        let found = self.places[hash(&bytes[..WINDOW])];
        let by_hash = match found.checked_sub(1) {
            Some(place) => (place as usize, common(place as usize)),
            None => (0, 0),
        };
        let in_turn = (expected, common(expected));
        if in_turn.1 >= by_hash.1 {
            in_turn
        } else {
            by_hash
        }
    }
}

fn hash(window: &[u8]) -> usize {
    let word = window
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - BITS)) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(number: usize) -> Vec<u8> {
        let fields = "\"f:status\":{},\"f:type\":{},\"f:lastTransitionTime\":{}".repeat(20);
        format!(
            r#"{{"kind":"Pod","metadata":{{"name":"web-{number:05}","uid":"{:036}","managedFields":[{{{fields}}}]}},"spec":{{"nodeName":"n{}"}}}}"#,
            number * 7919,
            number % 97,
        )
        .into_bytes()
    }

    #[test]
    fn objects_of_a_kind_take_a_fraction_and_are_read_as_they_were() {
        let pods: Vec<_> = (0..100).map(pod).collect();
        let index = Index::of_samples(&pods);
        assert!(
            index.dictionary.len() < 2 * pods[0].len(),
            "one says it all"
        );
        for pod in &pods {
            let packed = index.pack(pod).unwrap();
            assert!(packed.pieces.len() < 100, "{}", packed.pieces.len());
            assert_eq!(packed.unpack(), pod);
            let text = Text::Packed(packed);
            assert_eq!((text.len(), &text.bytes()[..]), (pod.len(), &pod[..]));
        }
    }

    #[test]
    fn an_object_unlike_the_others_stays_as_it_is() {
        let index = Index::of_samples(&(0..100).map(pod).collect::<Vec<_>>());
        let other: Vec<u8> = (0..2000_u32).map(|n| (n * n % 251) as u8).collect();
        assert!(index.pack(&other).is_none());
        assert!(Index::of_samples(&[&[0_u8; 0]]).pack(b"").is_some());
    }

    proptest! {
        #[test]
        fn whatever_is_packed_is_unpacked(
            samples in prop::collection::vec(prop::collection::vec(0..4_u8, 0..200), 0..20),
            objects in prop::collection::vec(prop::collection::vec(0..4_u8, 0..400), 0..20),
        ) {
            let index = Index::of_samples(&samples);
            for object in samples.iter().chain(&objects) {
                let packed = Packed {
                    dictionary: index.dictionary.clone(),
                    pieces: index.pieces(object).into(),
                    length: object.len() as u32,
                };
                prop_assert_eq!(&packed.unpack(), object);
            }
        }
    }
}
