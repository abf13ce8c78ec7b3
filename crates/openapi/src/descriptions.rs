//! Descriptions of types and fields, in Kubernetes' words. Compressed in the binary and
//! decompressed only while a document is made.

use std::{
    collections::{BTreeMap, HashMap},
    io::Read,
    sync::LazyLock,
};

use machinery::Value;
use sha2::{Digest, Sha256};

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.gz"));

/// Descriptions by type and field.
pub(super) struct Descriptions(String);

/// The descriptions of one type's fields; the type's own has an empty name.
type Fields<'a> = HashMap<&'a str, &'a str>;
/// The fields of every type.
pub(super) type All<'a> = HashMap<&'a str, Fields<'a>>;

/// Identifies this build's descriptions: its release and their content.
pub(super) fn build() -> &'static [u8] {
    static BUILD: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut hash = Sha256::new();
        hash.update(stdx::Version::own().to_string());
        hash.update(PACKED);
        hash.finalize().to_vec()
    });
    &BUILD
}

impl Descriptions {
    pub(super) fn unpack() -> Self {
        let mut text = String::new();
        // Made by the build script; if it were damaged, documents would only lack descriptions.
        if let Err(error) = flate2::read::GzDecoder::new(PACKED).read_to_string(&mut text) {
            tracing::error!(%error, "embedded OpenAPI descriptions are damaged");
        }
        Self(text)
    }

    /// All descriptions, for lookup.
    pub(super) fn by_type(&self) -> All<'_> {
        let mut all = All::new();
        for line in self.0.lines() {
            let mut parts = line.splitn(3, '\t');
            if let (Some(name), Some(field), Some(text)) =
                (parts.next(), parts.next(), parts.next())
            {
                all.entry(name).or_default().insert(field, text);
            }
        }
        all
    }
}

/// A description with its line breaks restored.
fn lines(text: &str) -> String {
    text.replace('\u{1f}', "\n")
}

/// Adds them to definitions by name.
pub(super) fn describe(definitions: &mut BTreeMap<String, Value>, all: &All<'_>) {
    for (name, definition) in definitions {
        let (Some(fields), Some(definition)) = (all.get(name.as_str()), definition.as_object_mut())
        else {
            continue;
        };
        if let Some(text) = fields.get("") {
            definition.insert("description".to_owned(), lines(text).into());
        }
        let properties = definition.get_mut("properties");
        for (field, property) in properties
            .and_then(Value::as_object_mut)
            .into_iter()
            .flatten()
        {
            match (fields.get(field.as_str()), property.as_object_mut()) {
                (Some(text), Some(object)) => {
                    object.insert("description".to_owned(), lines(text).into());
                }
                // A reference alone needs no `allOf`.
                (None, Some(object)) if object.len() == 1 && object.contains_key("allOf") => {
                    *property = property["allOf"][0].clone();
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_fields_are_described() {
        let packed = Descriptions::unpack();
        let all = packed.by_type();
        for (name, field, part) in [
            ("io.k8s.api.core.v1.Pod", "", "collection of containers"),
            (
                "io.k8s.api.core.v1.PodSpec",
                "containers",
                "List of containers",
            ),
            (
                "io.k8s.api.core.v1.Container",
                "image",
                "Container image name",
            ),
            (
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                "labels",
                "Map of string keys",
            ),
            (
                "io.k8s.apimachinery.pkg.api.resource.Quantity",
                "",
                "fixed-point",
            ),
        ] {
            let text = all.get(name).and_then(|fields| fields.get(field));
            assert!(
                text.is_some_and(|text| text.contains(part)),
                "{name} {field}: {text:?}"
            );
        }
        assert!(
            PACKED.len() < 600_000,
            "{} bytes in the program",
            PACKED.len()
        );
    }
}
