//! Stored objects: canonical JSON bytes with a small header. The header is computed when an object is written or
//! loaded; readers filter by it and send the bytes unchanged.
//!
//! A draft's bytes have no resourceVersion. Publishing inserts it once, at the header's offset, so that all readers
//! share one buffer.

use std::{
    borrow::Cow,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use machinery::{Object, Value, encode::Encoded, protobuf, schema::Type};
use parking_lot::{Mutex, RwLock};
use store::{Codec, Key, Revision};

use crate::{
    Encryption, Registry, encryption,
    header::Header,
    packed::{Index, Text},
    scan::{self, FieldPlace, ObjectOffsets},
};

/// The minimum length of an object to be packed.
const SHORT: usize = 256;
/// The deepest nesting that is parsed.
const MAX_DEPTH: usize = 127;

/// An object without a revision. Its bytes parse: both constructors see to it, and nothing changes them.
#[derive(Debug, Clone)]
pub struct Draft {
    bytes: Bytes,
    header: Arc<Header>,
}

impl Draft {
    /// A draft of canonical bytes; `fields` returns the kind's selectable fields.
    pub fn from_bytes(
        bytes: Bytes,
        fields: impl FnOnce(&Object) -> Vec<(Cow<'static, str>, String)>,
    ) -> Result<Self, String> {
        let object: Object = machinery::json::from_slice(&bytes).map_err(|error| {
            // Errors about values contain them, and this may be a Secret.
            match error.is_data() {
                true => "not an object".to_owned(),
                false => error.to_string(),
            }
        })?;
        let places = scan::places(&bytes)?;
        let header = Header::new(&object, places, fields(&object));
        Ok(Self {
            bytes,
            header: Arc::new(header),
        })
    }

    /// A draft of an object that was just encoded; `fields` are the kind's selectable fields.
    pub fn encoded(
        object: &Object,
        encoded: Encoded,
        fields: Vec<(Cow<'static, str>, String)>,
    ) -> Result<Self, String> {
        let places = Self::check(&encoded)?;
        let header = Header::new(object, places, fields);
        Ok(Self {
            bytes: encoded.bytes.into(),
            header: Arc::new(header),
        })
    }

    /// Another form of a stored object: names, labels and fields stay, offsets are those of the new bytes.
    pub(crate) fn converted(stored: &Stored, encoded: Encoded) -> Result<Self, String> {
        let places = Self::check(&encoded)?;
        let header = Header::clone(&stored.header).at(places);
        Ok(Self {
            bytes: encoded.bytes.into(),
            header: Arc::new(header),
        })
    }

    /// A stored object with parts of its bytes replaced, without parsing it. `bytes` are those of the object; `edits` are
    /// ranges of them after the resourceVersion and what replaces them, in ascending order; `labels` are its new labels,
    /// sorted by key; `field` is the selectable field that changes, with its new value. The caller ensures that the
    /// result is canonical.
    pub fn edited(
        stored: &Stored,
        bytes: &[u8],
        edits: &[(Range<usize>, Vec<u8>)],
        labels: &[(&str, &str)],
        field: (&str, &str),
    ) -> Self {
        let revision = stored.header.stamp.revision_range(stored.revision);
        let longer = |edits: &[(Range<usize>, Vec<u8>)]| -> usize {
            edits.iter().map(|(_, text)| text.len()).sum()
        };
        let shorter = |edits: &[(Range<usize>, Vec<u8>)]| -> usize {
            edits.iter().map(|(range, _)| range.len()).sum()
        };
        let length = bytes.len() - revision.len() + longer(edits) - shorter(edits);
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(&bytes[..revision.start]);
        let mut from = revision.end;
        for (range, text) in edits {
            out.extend_from_slice(&bytes[from..range.start]);
            out.extend_from_slice(text);
            from = range.end;
        }
        out.extend_from_slice(&bytes[from..]);
        let end = stored.metadata_place().end;
        let inside = &edits[..edits.partition_point(|(range, _)| range.start < end)];
        let mut header = stored.header.with(labels, field.0, field.1);
        header.metadata.1 = header.metadata.1 + longer(inside) as u32 - shorter(inside) as u32;
        Self {
            bytes: out.into(),
            header: Arc::new(header),
        }
    }

    /// Encoded bytes parse unless they are nested too deeply.
    fn check(encoded: &Encoded) -> Result<ObjectOffsets, String> {
        if encoded.depth > MAX_DEPTH {
            return Err("the object is nested too deeply".to_owned());
        }
        ObjectOffsets::from_encoded(encoded).ok_or_else(|| "no metadata".to_owned())
    }

    /// The bytes, without a resourceVersion.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// An object as readers see it: its bytes include the resourceVersion.
#[derive(Debug)]
pub struct Stored {
    pub header: Arc<Header>,
    pub revision: Revision,
    /// Guards the bytes while packing replaces them.
    text: RwLock<Text>,
    /// Cached forms; allocated on first use, since most objects never need one.
    forms: OnceLock<Box<Forms>>,
    /// Whether the object is already converted to the served version.
    is_converted: bool,
    /// Whether packing the object with its kind's dictionary failed; it is not tried again.
    stays_loose: AtomicBool,
}

/// Forms that are computed from the object's bytes, cached.
#[derive(Debug, Default)]
struct Forms {
    /// The name of a form in another version, and the object in it; `None` if conversion changes nothing.
    converted: OnceLock<(Box<str>, Option<Arc<Stored>>)>,
    /// Guards the protobuf message, without the envelope. It is dropped when the object is at rest: it is as large as
    /// the object and cannot be packed.
    message: Mutex<Option<Bytes>>,
    /// The parsed object.
    parsed: OnceLock<Object>,
}

impl Stored {
    /// Inserts the revision into a draft's bytes; 0 inserts nothing.
    pub fn stamp(draft: Draft, revision: Revision) -> Self {
        let bytes = draft.header.stamp.insert(&draft.bytes, revision);
        Self {
            header: draft.header,
            revision,
            text: RwLock::new(Text::Plain(bytes)),
            forms: OnceLock::new(),
            is_converted: false,
            stays_loose: AtomicBool::new(false),
        }
    }

    fn forms(&self) -> &Forms {
        self.forms.get_or_init(Box::default)
    }

    /// Marks an object as converted from its stored form.
    pub fn marked_converted(mut self) -> Self {
        self.is_converted = true;
        self
    }

    /// Whether the object is already converted to the served version.
    pub fn is_converted(&self) -> bool {
        self.is_converted
    }

    /// Whether the bytes have this apiVersion.
    pub fn is_of(&self, api_version: &str) -> bool {
        let bytes = self.bytes();
        let head = bytes.get(..self.header.body as usize).unwrap_or_default();
        let wanted = format!("\"apiVersion\":\"{api_version}\"");
        head.windows(wanted.len())
            .any(|part| part == wanted.as_bytes())
    }

    /// The cached form, if it has this name.
    pub fn known_form(&self, form: &str) -> Option<Arc<Self>> {
        let (known, made) = self.forms.get()?.converted.get()?;
        made.clone().filter(|_| **known == *form)
    }

    /// Caches a form, unless another is cached.
    pub fn keep_form(&self, form: &str, made: &Arc<Self>) {
        // Only the first form is cached.
        let _ = self
            .forms()
            .converted
            .set((form.into(), Some(made.clone())));
    }

    /// The object's JSON. Packed objects are unpacked into a new buffer.
    pub fn bytes(&self) -> Bytes {
        self.text.read().bytes()
    }

    /// The length of the object's JSON.
    pub fn size(&self) -> usize {
        self.text.read().len()
    }

    /// Whether packing should be tried: the object is not packed, long enough, and did not fail to pack before.
    pub(crate) fn is_loose(&self) -> bool {
        let is_plain = matches!(&*self.text.read(), Text::Plain(bytes) if bytes.len() >= SHORT);
        is_plain && !self.stays_loose.load(Ordering::Relaxed)
    }

    /// Packs the object with a dictionary. Returns false, and changes nothing, if that does not halve its size.
    pub(crate) fn pack(&self, index: &Index) -> bool {
        let packed = index.pack(&self.bytes());
        let is_packed = packed.is_some();
        if let Some(packed) = packed {
            *self.text.write() = Text::Packed(packed);
        }
        is_packed
    }

    /// Marks the object as not worth packing.
    pub(crate) fn leave_loose(&self) {
        self.stays_loose.store(true, Ordering::Relaxed);
    }

    /// The object as an item of a list of a built-in kind: everything after `apiVersion` and `kind`, to be written
    /// after an opening brace.
    pub fn item(&self) -> Bytes {
        self.bytes().slice(self.header.body as usize..)
    }

    /// The metadata's value.
    pub fn metadata(&self) -> Bytes {
        self.bytes().slice(self.metadata_place())
    }

    /// The range of the metadata in the bytes.
    pub fn metadata_place(&self) -> Range<usize> {
        let (start, end) = self.header.metadata;
        start as usize..end as usize + self.header.stamp.len(self.revision)
    }

    /// The fields after the metadata, with the fields of those that are objects, in `bytes`, which are those of the
    /// object.
    pub fn fields_after_metadata<'a>(
        &self,
        bytes: &'a [u8],
    ) -> Result<Vec<(FieldPlace<'a>, Vec<FieldPlace<'a>>)>, String> {
        scan::nested_fields_after(bytes, self.metadata_place().end)
    }

    /// The object's uid as it is in JSON, without quotes; empty if it has none.
    fn uid_in<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        // In canonical bytes the resourceVersion follows the uid, and a uid has no quotes.
        let before = &bytes[..self.header.stamp.revision_range(self.revision).start];
        let Some(before) = before.strip_suffix(b"\"") else {
            return b"";
        };
        let start = before.iter().rposition(|byte| *byte == b'"');
        let start = start.filter(|start| before[..*start].ends_with(b"\"uid\":"));
        start.map_or(b"", |start| &before[start + 1..])
    }

    /// Whether the object has this uid. `bytes` are those of the object.
    pub fn has_uid(&self, bytes: &[u8], uid: &str) -> bool {
        // In canonical bytes the resourceVersion follows the uid.
        let before = &bytes[..self.header.stamp.revision_range(self.revision).start];
        let before = before.strip_suffix(b"\"");
        let before = before.and_then(|before| before.strip_suffix(uid.as_bytes()));
        before.is_some_and(|before| before.ends_with(b"\"uid\":\""))
    }

    /// The bytes without a resourceVersion, as written.
    pub fn unstamped(&self) -> Bytes {
        self.header.stamp.remove(&self.bytes(), self.revision)
    }

    /// The same object with another revision, for watch events when it is deleted or stops matching a selector.
    pub fn at(&self, revision: Revision) -> Self {
        let draft = Draft {
            bytes: self.unstamped(),
            header: self.header.clone(),
        };
        Self {
            is_converted: self.is_converted,
            ..Self::stamp(draft, revision)
        }
    }

    /// The parsed object with its resourceVersion. For writes and admission, not for reads.
    pub fn parse(&self) -> Object {
        match machinery::json::from_slice(&self.bytes()) {
            Ok(object) => object,
            // Only bytes that parse become a draft, stamping inserts a field, and packing is verified.
            Err(error) => unreachable!("stored bytes are not an object: {error}"),
        }
    }

    /// The parsed metadata with the resourceVersion.
    pub fn parse_metadata(&self) -> Value {
        match machinery::json::from_slice(&self.metadata()) {
            Ok(metadata) => metadata,
            // The same, and the offsets were computed from these bytes.
            Err(error) => unreachable!("stored metadata is not an object: {error}"),
        }
    }

    /// The parsed object, cached: for the few objects that every write reads.
    pub fn parsed(&self) -> &Object {
        self.forms().parsed.get_or_init(|| self.parse())
    }

    /// The form in another version or under a newer schema, `None` if conversion changes nothing. Only the first form
    /// is cached.
    pub fn converted(
        &self,
        form: &str,
        make: impl FnOnce() -> Option<Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let converted = &self.forms().converted;
        match converted.get() {
            Some((known, made)) if **known == *form => made.clone(),
            Some(_) => make(),
            None => converted.get_or_init(|| (form.into(), make())).1.clone(),
        }
    }

    /// The object's protobuf message, without the envelope; cached for the watches of a change.
    pub fn message(&self, schema: &'static Type) -> Bytes {
        let mut message = self.forms().message.lock();
        let make = || protobuf::message(schema, &self.parse()).into();
        message.get_or_insert_with(make).clone()
    }

    /// Drops the cached protobuf message.
    pub(crate) fn forget_message(&self) {
        if let Some(forms) = self.forms.get() {
            forms.message.lock().take();
        }
    }

    #[cfg(test)]
    pub(crate) fn keeps_message(&self) -> bool {
        let forms = self.forms.get();
        forms.is_some_and(|forms| forms.message.lock().is_some())
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.header.label(key)
    }

    /// A selectable field's value.
    pub fn field(&self, path: &str) -> Option<&str> {
        match path {
            "metadata.name" => Some(self.header.name()),
            "metadata.namespace" => Some(self.header.namespace()),
            _ => self.header.field(path),
        }
    }
}

impl feed::Stored for Stored {
    fn namespace(&self) -> &str {
        self.header.namespace()
    }

    fn name(&self) -> &str {
        self.header.name()
    }

    fn uid(&self) -> Bytes {
        let bytes = self.bytes();
        bytes.slice_ref(self.uid_in(&bytes))
    }

    fn field(&self, path: &str) -> Option<&str> {
        self.field(path)
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn bytes(&self) -> Bytes {
        self.bytes()
    }

    fn size(&self) -> usize {
        self.size()
    }

    fn metadata(&self) -> Range<usize> {
        self.metadata_place()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.label(key)
    }
}

/// The codec of API objects.
pub struct ObjectCodec {
    registry: Arc<Registry>,
    /// The encryption of values on disk; `None` stores them unencrypted.
    encryption: Option<Encryption>,
}

impl ObjectCodec {
    /// `registry` maps keys of the store to kinds.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            encryption: None,
        }
    }

    /// Encrypts values on disk.
    pub fn with_encryption(mut self, encryption: Option<Encryption>) -> Self {
        self.encryption = encryption;
        self
    }
}

impl Codec for ObjectCodec {
    type Draft = Draft;
    type Object = Stored;

    fn bytes<'a>(&self, draft: &'a Draft) -> &'a Bytes {
        &draft.bytes
    }

    fn seal<'a>(&self, key: &Key, bytes: &'a Bytes) -> Cow<'a, Bytes> {
        match &self.encryption {
            Some(encryption) => encryption.seal(key, bytes),
            None => Cow::Borrowed(bytes),
        }
    }

    fn load(&self, key: &Key, bytes: Bytes) -> Result<Draft, String> {
        // The bytes may come from another writer of the same store, so they are validated before publishing.
        let named = |why: String| format!("{}: {why}", String::from_utf8_lossy(key));
        let opened = match &self.encryption {
            Some(encryption) => encryption.open(key, bytes),
            None => encryption::plain(bytes),
        };
        let bytes = opened.map_err(named)?;
        let fields = |object: &Object| match self.registry.by_key(key) {
            Some(resource) => resource.kind.selectable_fields(object),
            None => Vec::new(),
        };
        Draft::from_bytes(bytes, fields).map_err(named)
    }

    fn publish(&self, _: &Key, draft: Draft, revision: Revision) -> Stored {
        Stored::stamp(draft, revision)
    }

    fn stored(&self, object: &Stored) -> Bytes {
        object.unstamped()
    }
}

/// Writes the field `"resourceVersion":"7"` between `before` and `after`.
pub(crate) fn write_revision(out: &mut BytesMut, before: &str, revision: Revision, after: &str) {
    out.put_slice(before.as_bytes());
    out.put_slice(b"\"resourceVersion\":\"");
    out.put_slice(revision.to_string().as_bytes());
    out.put_u8(b'"');
    out.put_slice(after.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(json: &str) -> Draft {
        Draft::from_bytes(Bytes::copy_from_slice(json.as_bytes()), |_| Vec::new()).unwrap()
    }

    #[test]
    fn publishing_stamps_the_revision_behind_the_uid() {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","labels":{"app":"x"}},"spec":{}}"#;
        let stored = Stored::stamp(draft(json), 42);
        let expected = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"42","labels":{"app":"x"}},"spec":{}}"#;
        assert_eq!(stored.bytes(), expected);
        assert_eq!(
            &stored.metadata()[..],
            br#"{"name":"a","uid":"u","resourceVersion":"42","labels":{"app":"x"}}"#
        );
        assert_eq!(stored.label("app"), Some("x"));
        assert_eq!(feed::Stored::uid(&stored), "u");
        assert_eq!(stored.unstamped(), json);
        assert!(String::from_utf8_lossy(&stored.at(1234).bytes()).contains(r#""1234","labels""#));
    }

    #[test]
    fn bytes_that_are_no_object_are_refused_with_their_key_when_they_are_loaded() {
        let codec = ObjectCodec::new(Registry::builtin());
        let key = Key::from_static(b"/registry/pods/default/a");
        let load = |bytes: &'static [u8]| codec.load(&key, Bytes::from_static(bytes));
        let whole = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#;
        assert_eq!(load(whole).unwrap().header.name(), "a");
        for bytes in [
            b"".as_slice(),
            b"null",
            b"[]",
            b"\x00\xff",
            b"k8s\x00\x0a\x09",
            &whole[..whole.len() - 1],
            br#"{"apiVersion":"v1","kind":"Pod"}"#,
            br#"{"apiVersion":"v1","kind":"Pod","metadata":7}"#,
        ] {
            let shown = String::from_utf8_lossy(bytes);
            let refused = load(bytes).map(|draft| draft.bytes).unwrap_err();
            assert!(
                refused.starts_with("/registry/pods/default/a: "),
                "{shown}: {refused}"
            );
        }
    }

    #[test]
    fn an_object_that_could_not_be_parsed_again_is_not_stored() {
        let nested = |depth: usize| {
            let mut value = Value::Null;
            for _ in 0..depth {
                value = Value::Object(Object::from_iter([("a".to_owned(), value)]));
            }
            let metadata = ("metadata".to_owned(), Value::Object(Object::new()));
            let object = Object::from_iter([metadata, ("spec".to_owned(), value)]);
            let encoded = machinery::encode::object(None, &object);
            Draft::encoded(&object, encoded, Vec::new())
        };
        assert_eq!(Stored::stamp(nested(126).unwrap(), 7).parse().len(), 2);
        assert!(nested(127).is_err());
    }

    #[test]
    fn the_error_of_bytes_that_are_no_object_does_not_show_them() {
        let refused = Draft::from_bytes(Bytes::from_static(b"\"secret\""), |_| Vec::new());
        assert_eq!(refused.unwrap_err(), "not an object");
    }

    #[test]
    fn an_item_leaves_out_api_version_and_kind() {
        let stored = Stored::stamp(
            draft(r#"{"apiVersion":"v1","kind":"Pod","metadata":{},"spec":{}}"#),
            7,
        );
        assert_eq!(
            &stored.item()[..],
            br#""metadata":{"resourceVersion":"7"},"spec":{}}"#
        );
    }
}
