//! The stored form: canonical JSON, fields in the schema's order, without a resourceVersion. The
//! output is canonical whatever a kind changed since the object was normalised.

use crate::normalise::is_omitted;
use crate::schema::{Shape, Type};
use crate::{
    Object, Value,
    json::{order::Order, write},
    schema,
};

/// Canonical bytes and the position of the resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    /// Where [`stamp`] inserts the resourceVersion; 0 if there is no metadata.
    pub stamp_at: usize,
    /// Offsets of the metadata's name, its value, and its end. All 0 if there is none.
    pub metadata: (usize, usize, usize),
    /// An upper bound of the nesting.
    pub depth: usize,
}

/// How much deeper the creator's field set may be nested than the object: it is the value of a field of an element of
/// `metadata.managedFields`, and has a level for each leaf.
const OWNED_DEPTH: usize = 5;

/// The bytes of an object of a known type, or of a custom resource.
pub fn object(schema: Option<&'static Type>, object: &Object) -> Encoded {
    encode_object(schema, object, None)
}

/// The bytes of a new object whose creator owns these fields ([`crate::apply::track_new`]).
pub fn new_object(schema: Option<&'static Type>, object: &Object, owned: Option<&[u8]>) -> Encoded {
    encode_object(schema, object, owned)
}

fn encode_object(schema: Option<&'static Type>, object: &Object, owned: Option<&[u8]>) -> Encoded {
    let mut writer = Writer::with_capacity(4096);
    writer.owned = owned;
    match schema {
        Some(schema) => writer.fields(schema, object, Level::Root),
        None => writer.unstructured(object),
    }
    let owned = if owned.is_some() { OWNED_DEPTH } else { 0 };
    Encoded {
        bytes: writer.out,
        stamp_at: writer.stamp_at,
        metadata: writer.metadata,
        depth: 1 + object.values().map(Value::depth).max().unwrap_or(0) + owned,
    }
}

/// JSON of a part of an object, of this type.
pub fn part(schema: &'static Type, part: &Object) -> Vec<u8> {
    let mut writer = Writer::with_capacity(256);
    writer.fields(schema, part, Level::Below);
    writer.out
}

/// The bytes with `"resourceVersion":"N"` inserted.
pub fn stamp(bytes: &[u8], stamp_at: usize, revision: u64) -> Vec<u8> {
    if stamp_at == 0 || stamp_at > bytes.len() {
        return bytes.to_vec();
    }
    let (before, after) = bytes.split_at(stamp_at);
    let mut out = Vec::with_capacity(bytes.len() + 42);
    out.extend_from_slice(before);
    let first = before.last() == Some(&b'{');
    if !first {
        out.push(b',');
    }
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(revision.to_string().as_bytes());
    out.push(b'"');
    if first && after.first() != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(after);
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    /// The object's own metadata, where the stamp goes.
    Metadata,
    Below,
}

struct Writer<'a> {
    out: Vec<u8>,
    stamp_at: usize,
    metadata: (usize, usize, usize),
    /// The field set of the first managedFields entry, if it is not in the object.
    owned: Option<&'a [u8]>,
}

impl Writer<'_> {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            out: Vec::with_capacity(capacity),
            stamp_at: 0,
            metadata: (0, 0, 0),
            owned: None,
        }
    }

    fn fields(&mut self, schema: &'static Type, map: &Object, level: Level) {
        let mut order = Order::new();
        for (place, key) in map.keys().enumerate() {
            if let Some(position) = schema.position_of(key) {
                order.note(position, place);
            }
        }
        let version = match level {
            Level::Metadata => schema.position("resourceVersion"),
            _ => None,
        };
        let mut always = schema.always.iter().map(|&i| i as usize).peekable();
        self.out.push(b'{');
        let mut stamped = false;
        for (position, place) in order.sorted() {
            let value = map.at(place);
            while let Some(unset) = always.next_if(|&a| a < position) {
                self.zero(schema, unset);
            }
            let field = &schema.fields[position];
            if version.is_some_and(|v| v <= position) && !stamped {
                self.mark();
                stamped = true;
            }
            if version == Some(position) || field.off.is_some() || is_omitted(field, value) {
                continue;
            }
            always.next_if_eq(&position);
            self.name(field.written);
            let begin = self.out.len();
            let below = if level == Level::Root && field.name == "metadata" {
                Level::Metadata
            } else {
                Level::Below
            };
            match value {
                Value::String(text) => self.text(text),
                // The field, not its type, determines the zero value here.
                Value::Null => self.plain(field.zero().unwrap_or(&Value::Null)),
                // Protobuf, Kubernetes' storage format, does not distinguish an empty list from an
                // absent one.
                value if is_empty(field.shape, value) => self.plain(&Value::Null),
                value => self.value(field.shape, value, below),
            }
            if below == Level::Metadata {
                self.note_metadata(begin);
            }
        }
        for unset in always {
            self.zero(schema, unset);
        }
        if version.is_some() && !stamped {
            self.mark();
        }
        self.out.push(b'}');
    }

    /// Records the metadata's value, which was written from here on.
    fn note_metadata(&mut self, begin: usize) {
        self.metadata = (begin - "\"metadata\":".len(), begin, self.out.len());
    }

    fn mark(&mut self) {
        self.stamp_at = self.out.len();
    }

    /// A name with its leading comma; the first field drops the comma.
    #[inline]
    fn name(&mut self, written: &str) {
        let comma = usize::from(self.out.last() == Some(&b'{'));
        self.out.extend_from_slice(&written.as_bytes()[comma..]);
    }

    fn zero(&mut self, schema: &'static Type, position: usize) {
        let field = &schema.fields[position];
        if let Some(zero) = field.zero() {
            self.name(field.written);
            self.plain(zero);
        }
    }

    fn value(&mut self, shape: Shape, value: &Value, level: Level) {
        match (shape, value) {
            (Shape::Struct(id), Value::Object(map)) => self.fields(id.get(), map, level),
            // A null instead of a struct is that struct's zero value.
            (Shape::Struct(_), Value::Null) => self.plain(&schema::zero_of(shape)),
            (Shape::List(element), Value::Array(list)) => self.list(*element, list),
            (Shape::Map(element), Value::Object(map)) => self.map(*element, map),
            (
                Shape::PropsOrBool | Shape::PropsOrArray | Shape::PropsOrStrings,
                Value::Object(map),
            ) => {
                self.props(map);
            }
            (Shape::PropsOrArray, Value::Array(list)) => {
                self.separated(b'[', list.iter(), |writer, value| match value {
                    Value::Object(map) => writer.props(map),
                    other => writer.plain(other),
                });
                self.out.push(b']');
            }
            (Shape::FieldsV1, value) => match self.owned.take() {
                Some(owned) => self.out.extend_from_slice(owned),
                None => self.plain(value),
            },
            (_, value) => self.plain(value),
        }
    }

    fn props(&mut self, map: &Object) {
        match schema::lookup("apiextensions/v1.JSONSchemaProps") {
            Some(props) => self.fields(props, map, Level::Below),
            None => self.plain_map(map),
        }
    }

    fn separated<T>(
        &mut self,
        open: u8,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.out.push(open);
        for (i, item) in items.enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            write(self, item);
        }
    }

    fn list(&mut self, element: Shape, list: &[Value]) {
        self.separated(b'[', list.iter(), |writer, value| {
            writer.value(element, value, Level::Below);
        });
        self.out.push(b']');
    }

    fn map(&mut self, element: Shape, map: &Object) {
        let write = |writer: &mut Self, (key, value): (&crate::json::Key, &Value)| {
            writer.text(key);
            writer.out.push(b':');
            writer.value(element, value, Level::Below);
        };
        if map.keys().is_sorted() {
            self.separated(b'{', map.iter(), write);
        } else {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|e| e.0);
            self.separated(b'{', entries.into_iter(), write);
        }
        self.out.push(b'}');
    }

    fn text(&mut self, text: &str) {
        write::text(&mut self.out, text);
    }

    fn plain(&mut self, value: &Value) {
        write::value(&mut self.out, value);
    }

    fn plain_map(&mut self, map: &Object) {
        write::map(&mut self.out, map);
    }

    fn unstructured(&mut self, object: &Object) {
        self.out.push(b'{');
        for (name, written) in [("apiVersion", ",\"apiVersion\":"), ("kind", ",\"kind\":")] {
            if let Some(value) = object.get(name) {
                self.name(written);
                self.plain(value);
            }
        }
        if let (Some(Value::Object(metadata)), Some(schema)) =
            (object.get("metadata"), schema::lookup("meta/v1.ObjectMeta"))
        {
            self.name(",\"metadata\":");
            let begin = self.out.len();
            self.fields(schema, metadata, Level::Metadata);
            self.note_metadata(begin);
        }
        let mut rest: Vec<_> = object
            .iter()
            .filter(|(k, _)| !matches!(k.as_str(), "apiVersion" | "kind" | "metadata"))
            .collect();
        rest.sort_unstable_by_key(|e| e.0);
        for (key, value) in rest {
            if self.out.last() != Some(&b'{') {
                self.out.push(b',');
            }
            self.text(key);
            self.out.push(b':');
            self.plain(value);
        }
        self.out.push(b'}');
    }
}

fn is_empty(shape: Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::List(_), Value::Array(list)) => list.is_empty(),
        (Shape::Map(_), Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn encoded(schema: Option<&str>, value: Value) -> (String, String) {
        let Value::Object(map) = value else {
            panic!("no object")
        };
        let encoded = object(schema.map(|s| schema::lookup(s).unwrap()), &map);
        let stamped = stamp(&encoded.bytes, encoded.stamp_at, 7);
        (
            String::from_utf8(encoded.bytes).unwrap(),
            String::from_utf8(stamped).unwrap(),
        )
    }

    #[test]
    fn bytes_are_canonical_whatever_the_order_in_memory() {
        let (bytes, stamped) = encoded(
            Some("core/v1.ConfigMap"),
            json!({
                "data": {"b": "2", "a": "1"},
                "metadata": {"labels": {}, "generation": 1, "uid": "u", "resourceVersion": "3", "name": "n"},
                "kind": "ConfigMap", "apiVersion": "v1",
            }),
        );
        assert_eq!(
            bytes,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n","uid":"u","generation":1},"data":{"a":"1","b":"2"}}"#
        );
        assert!(
            stamped.contains(r#""uid":"u","resourceVersion":"7","generation":1"#),
            "{stamped}"
        );
    }

    #[test]
    fn the_stamp_fits_wherever_metadata_ends_or_begins() {
        for (metadata, expected) in [
            (json!({}), r#"{"resourceVersion":"7"}"#),
            (
                json!({"name": "n"}),
                r#"{"name":"n","resourceVersion":"7"}"#,
            ),
            (
                json!({"generation": 2}),
                r#"{"resourceVersion":"7","generation":2}"#,
            ),
        ] {
            let (_, stamped) = encoded(Some("core/v1.ConfigMap"), json!({"metadata": metadata}));
            assert_eq!(stamped, format!(r#"{{"metadata":{expected}}}"#));
            let (_, stamped) = encoded(None, json!({"metadata": metadata}));
            assert_eq!(stamped, format!(r#"{{"metadata":{expected}}}"#));
        }
    }

    #[test]
    fn the_places_of_the_metadata_are_known() {
        let Value::Object(map) =
            json!({"kind": "K", "metadata": {"name": "n"}, "data": {"metadata": "x"}})
        else {
            panic!("no object")
        };
        for schema in [schema::lookup("core/v1.ConfigMap"), None] {
            let encoded = object(schema, &map);
            let (name, begin, end) = encoded.metadata;
            assert_eq!(&encoded.bytes[name..begin], b"\"metadata\":");
            assert_eq!(&encoded.bytes[begin..end], br#"{"name":"n"}"#);
        }
        assert_eq!(object(None, &Object::new()).metadata, (0, 0, 0));
    }

    #[test]
    fn the_metadata_of_a_template_is_left_alone() {
        let (bytes, _) = encoded(
            Some("apps/v1.ReplicaSet"),
            json!({"metadata": {"name": "r"}, "spec": {"template": {"metadata": {"resourceVersion": "1"}}}}),
        );
        assert!(
            bytes.contains(r#""template":{"metadata":{"resourceVersion":"1"}"#),
            "{bytes}"
        );
    }

    #[test]
    fn custom_resources_are_encoded_in_their_order_with_nulls() {
        let (bytes, _) = encoded(
            None,
            json!({"spec": {"z": 1, "a": null}, "kind": "K", "apiVersion": "g/v1", "metadata": {"name": "n"}}),
        );
        assert_eq!(
            bytes,
            r#"{"apiVersion":"g/v1","kind":"K","metadata":{"name":"n"},"spec":{"z":1,"a":null}}"#
        );
    }
}
