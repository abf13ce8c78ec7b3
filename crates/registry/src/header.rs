//! What readers need from an object without parsing it: names, labels, selectable fields and offsets. Each stored
//! object has a header, and so does each version of it in the history, so all strings of a header are packed into one.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use machinery::{Object, Value};
use parking_lot::Mutex;

use crate::scan::{ObjectOffsets, Stamp};

/// Names of selectable fields. Objects of a kind share one list.
type FieldNames = Arc<[Cow<'static, str>]>;

/// Unused lists are removed once this many are known: lists of custom resources come and go.
const UNUSED: usize = 256;

/// Guards the shared lists of field names.
static KNOWN: LazyLock<Mutex<HashSet<FieldNames>>> = LazyLock::new(Mutex::default);

/// What readers need from an object without parsing it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// Namespace, name, number of labels, key and value of each label, field values. See [`pack`] for the encoding.
    packed: Box<str>,
    /// The names of the kind's selectable fields; `None` when it has none.
    fields: Option<FieldNames>,
    /// The offset of the first byte after `apiVersion` and `kind`.
    pub body: u32,
    /// The start and end offsets of the metadata's value, in bytes without a resourceVersion.
    pub metadata: (u32, u32),
    pub(crate) stamp: Stamp,
}

impl Header {
    /// The header of an object; `fields` are the kind's selectable fields.
    pub(crate) fn new(
        object: &Object,
        places: ObjectOffsets,
        fields: Vec<(Cow<'static, str>, String)>,
    ) -> Self {
        let metadata = object.get("metadata").and_then(Value::as_object);
        let text = |key: &str| {
            let value = metadata.and_then(|metadata| metadata.get(key));
            value.and_then(Value::as_str).unwrap_or("")
        };
        let labels = metadata
            .and_then(|metadata| metadata.get("labels"))
            .and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        let labels: Vec<(&str, &str)> = labels
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
            .collect();
        let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
        Self {
            packed: pack(text("namespace"), text("name"), &labels, &values),
            fields: shared(names),
            ..Self::default()
        }
        .at(places)
    }

    /// The same header for bytes with other offsets.
    pub(crate) fn at(self, places: ObjectOffsets) -> Self {
        Self {
            body: places.body,
            metadata: places.metadata,
            stamp: places.stamp,
            ..self
        }
    }

    /// The same header with other labels, sorted by key, and another value of a selectable field.
    pub(crate) fn with(&self, labels: &[(&str, &str)], path: &str, value: &str) -> Self {
        let names = self.fields.as_deref().unwrap_or_default();
        let values: Vec<&str> = names
            .iter()
            .map(|name| match name == path {
                true => value,
                false => self.field(name).unwrap_or_default(),
            })
            .collect();
        Self {
            packed: pack(self.namespace(), self.name(), labels, &values),
            ..self.clone()
        }
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.reader().text()
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        let mut reader = self.reader();
        reader.text();
        reader.text()
    }

    /// The labels, sorted by key.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let (mut reader, count) = self.reader().at_labels();
        (0..count).map(move |_| (reader.text(), reader.text()))
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let (mut reader, count) = self.reader().at_labels();
        for _ in 0..count {
            let (mine, value) = (reader.text(), reader.text());
            if mine == key {
                return Some(value);
            }
        }
        None
    }

    /// The value of one of the kind's selectable fields.
    pub fn field(&self, path: &str) -> Option<&str> {
        let names = self.fields.as_ref()?;
        let place = names.iter().position(|name| name == path)?;
        let (mut reader, labels) = self.reader().at_labels();
        for _ in 0..2 * labels {
            reader.text();
        }
        let first = reader.clone();
        Some(reader.nth_value(place, &first))
    }

    fn reader(&self) -> Reader<'_> {
        Reader { rest: &self.packed }
    }
}

/// Returns the shared list of these field names.
fn shared(names: Vec<Cow<'static, str>>) -> Option<FieldNames> {
    if names.is_empty() {
        return None;
    }
    let mut known = KNOWN.lock();
    if let Some(shared) = known.get(&*names) {
        return Some(shared.clone());
    }
    if known.len() >= UNUSED {
        known.retain(|list| Arc::strong_count(list) > 1);
    }
    let names: FieldNames = names.into();
    known.insert(names.clone());
    Some(names)
}

/// Packs the strings of a header. A string is its length followed by its bytes. A field's value starts with a number:
/// an even number is twice the length of the bytes that follow; an odd number is `2 * index + 1` of an earlier field
/// with the same value.
fn pack(
    namespace: &str,
    name: &str,
    labels: &[(&str, &str)],
    fields: &[impl AsRef<str>],
) -> Box<str> {
    let mut packed = String::with_capacity(256);
    let text = |packed: &mut String, text: &str| {
        number(packed, text.len());
        packed.push_str(text);
    };
    text(&mut packed, namespace);
    text(&mut packed, name);
    number(&mut packed, labels.len());
    for (key, value) in labels {
        text(&mut packed, key);
        text(&mut packed, value);
    }
    for (place, value) in fields.iter().enumerate() {
        let value = value.as_ref();
        let mut earlier = fields[..place].iter();
        match earlier.position(|other| other.as_ref() == value) {
            Some(same) if !value.is_empty() => number(&mut packed, 2 * same + 1),
            _ => {
                number(&mut packed, 2 * value.len());
                packed.push_str(value);
            }
        }
    }
    packed.into()
}

/// Appends a number as base-64 digits, least significant first. Bit 6 (64) marks all digits but the last. Each digit is
/// an ASCII character, so the result stays valid UTF-8.
fn number(packed: &mut String, mut number: usize) {
    while number >= 64 {
        packed.push(char::from(64 | (number & 63) as u8));
        number >>= 6;
    }
    packed.push(char::from(number as u8));
}

/// Reads the encoding of [`pack`].
#[derive(Clone)]
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn number(&mut self) -> usize {
        let (mut number, mut shift) = (0, 0);
        for (at, digit) in self.rest.bytes().enumerate() {
            number |= usize::from(digit & 63) << shift;
            shift += 6;
            if digit < 64 {
                self.rest = &self.rest[at + 1..];
                return number;
            }
        }
        // Only the packed string of a default header is empty.
        0
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        text
    }

    fn text(&mut self) -> &'a str {
        let length = self.number();
        self.take(length)
    }

    /// Reads the value of a field; `first` is a reader at the first field's value.
    fn value(&mut self, first: &Self) -> &'a str {
        let number = self.number();
        if number.is_multiple_of(2) {
            return self.take(number / 2);
        }
        first.clone().nth_value(number / 2, first)
    }

    /// Skips this many values and reads the next one.
    fn nth_value(&mut self, skipped: usize, first: &Self) -> &'a str {
        for _ in 0..skipped {
            self.value(first);
        }
        self.value(first)
    }

    /// Returns a reader at the first label, and the number of labels.
    fn at_labels(mut self) -> (Self, usize) {
        self.text();
        self.text();
        let count = self.number();
        (self, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(json: &str, fields: &[(&'static str, &str)]) -> Header {
        let object = machinery::json::from_str(json).unwrap();
        let fields = fields.iter();
        let fields = fields.map(|(name, value)| ((*name).into(), (*value).to_owned()));
        Header::new(&object, ObjectOffsets::default(), fields.collect())
    }

    #[test]
    fn what_was_packed_is_read_again() {
        let long = "ü".repeat(3000);
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"{long}","labels":{{"app":"x","tier":"{long}","zone":""}}}}}}"#
        );
        let fields = [
            ("one", "1"),
            ("two", ""),
            ("three", &long),
            ("four", &long),
            ("five", "1"),
            ("six", ""),
            ("seven", "7"),
        ];
        let header = header(&json, &fields);
        assert_eq!((header.namespace(), header.name()), (&*long, "a"));
        let labels = [("app", "x"), ("tier", &*long), ("zone", "")];
        assert!(header.labels().eq(labels));
        for (key, value) in labels {
            assert_eq!(header.label(key), Some(value));
        }
        assert_eq!(header.label("none"), None);
        for (name, value) in fields {
            assert_eq!(header.field(name), Some(value), "{name}");
        }
        assert_eq!(header.field("none"), None);
        for (name, _) in fields {
            let changed = fields.map(|(own, value)| match own == name {
                true => (own, "new"),
                false => (own, value),
            });
            assert_eq!(
                header.with(&labels, name, "new"),
                self::header(&json, &changed)
            );
        }
        assert!(header.packed.len() < 4 * long.len(), "the same value once");
    }

    #[test]
    fn a_header_of_nothing_is_empty() {
        for header in [Header::default(), header("{}", &[])] {
            assert_eq!((header.namespace(), header.name()), ("", ""));
            assert_eq!(header.labels().len(), 0);
            assert_eq!((header.label("a"), header.field("a")), (None, None));
        }
    }

    #[test]
    fn objects_of_a_kind_share_the_names_of_their_fields() {
        let one = header("{}", &[("spec.a", "1"), ("spec.b", "2")]);
        let other = header("{}", &[("spec.a", "3"), ("spec.b", "4")]);
        let (one, other) = (one.fields.unwrap(), other.fields.unwrap());
        assert!(Arc::ptr_eq(&one, &other));
    }
}
