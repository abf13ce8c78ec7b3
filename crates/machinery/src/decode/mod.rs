//! Decodes bytes into objects: JSON and YAML into trees, trees into normalised objects, with
//! findings about unknown and duplicate fields for strict validation.

mod surrogates;
mod syntax;
mod type_meta;
mod typed;
mod walk;
mod yaml;

use crate::json::{self, Key};
use crate::normalise;
use crate::schema::Type;
use crate::text::quote;
use crate::{Object, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
pub use type_meta::TypeMeta;

/// Further findings are dropped.
const MAX_FINDINGS: usize = 100;
/// Deeper trees are rejected.
pub(crate) const MAX_DEPTH: usize = 120;

/// Text forms of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
}

/// Findings that lenient decoding ignores, worded as strict decoding reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    sentences: Vec<String>,
    /// How many of the first ones are from the YAML parser.
    yaml: usize,
}

impl Findings {
    /// Records `unknown field "spec.foo"`.
    pub fn unknown(&mut self, path: &str) {
        self.push(format!("unknown field {}", quote(path)));
    }

    /// Records `duplicate field "spec.foo"`.
    pub fn duplicate(&mut self, path: &str) {
        self.push(format!("duplicate field {}", quote(path)));
    }

    /// Records another finding, once.
    pub fn push(&mut self, finding: String) {
        if self.sentences.len() < MAX_FINDINGS && !self.sentences.contains(&finding) {
            self.sentences.push(finding);
        }
    }

    /// One sentence per finding; also used as warnings.
    pub fn sentences(&self) -> &[String] {
        &self.sentences
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.sentences.is_empty()
    }

    /// The YAML parser's findings as one error.
    pub fn yaml_error(&self) -> Option<String> {
        let yaml = &self.sentences[..self.yaml];
        (!yaml.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", yaml.join("\n  ")))
    }

    /// All findings as one error of strict decoding.
    pub fn strict_error(&self) -> String {
        let mut parts = Vec::from_iter(self.yaml_error());
        parts.extend_from_slice(&self.sentences[self.yaml..]);
        format!("strict decoding error: {}", parts.join(", "))
    }
}

/// A decoded and normalised object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub object: Object,
    pub findings: Findings,
}

/// Decodes and normalises an object of a known type (or a custom resource when there is none).
pub fn object(
    format: Format,
    bytes: &[u8],
    schema: Option<&'static Type>,
) -> Result<Decoded, String> {
    if let (Format::Json, Some(schema)) = (format, schema)
        && let Some(object) = typed::object(bytes, schema)
    {
        let findings = Findings::default();
        return Ok(Decoded { object, findings });
    }
    the_long_way(format, bytes, schema)
}

/// Through a tree, which is then normalised.
fn the_long_way(
    format: Format,
    bytes: &[u8],
    schema: Option<&'static Type>,
) -> Result<Decoded, String> {
    let (value, duplicates) = tree_of(format, bytes)?;
    let mut findings = match (format, duplicates) {
        (Format::Json, true) => walk::walk(bytes, schema),
        (Format::Yaml, true) => yaml::duplicates(bytes),
        _ => Findings::default(),
    };
    // The walk over a document with duplicates also reports unknown fields, in document order.
    let mut unknown = Findings::default();
    let object = match schema {
        Some(schema) => normalise::object(schema, value, &mut unknown)?,
        None => normalise::unstructured(value, &mut unknown)?,
    };
    unknown
        .sentences
        .into_iter()
        .for_each(|finding| findings.push(finding));
    Ok(Decoded { object, findings })
}

/// Decodes a tree; the last of duplicate keys counts.
pub fn tree(format: Format, bytes: &[u8]) -> Result<(Value, Findings), String> {
    let (value, duplicates) = tree_of(format, bytes)?;
    let findings = match (format, duplicates) {
        (Format::Json, true) => walk::walk(bytes, None),
        (Format::Yaml, true) => yaml::duplicates(bytes),
        _ => Findings::default(),
    };
    Ok((value, findings))
}

/// The tree, and whether a key is duplicated.
fn tree_of(format: Format, bytes: &[u8]) -> Result<(Value, bool), String> {
    if format == Format::Yaml {
        return yaml::tree(bytes);
    }
    let duplicate = Cell::new(false);
    let seed = Tree {
        duplicate: &duplicate,
        depth: 0,
    };
    let mut deserializer = json::Deserializer::from_slice(bytes);
    let value = seed
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    match value {
        Ok(value) => Ok((value, duplicate.get())),
        // Go accepts invalid UTF-8 and substitutes replacement characters.
        Err(_) if std::str::from_utf8(bytes).is_err() => {
            tree_of(format, String::from_utf8_lossy(bytes).as_bytes())
        }
        Err(error) => match syntax::complaint(bytes) {
            Some(complaint) => Err(complaint),
            // Go accepts lone surrogates.
            None => match surrogates::replace_lone_surrogates(bytes) {
                Some(mended) => tree_of(format, &mended),
                None => Err(error.to_string()),
            },
        },
    }
}

/// Builds a tree and records whether a key is duplicated.
#[derive(Clone, Copy)]
struct Tree<'a> {
    duplicate: &'a Cell<bool>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom("exceeded max depth"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        json::Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("numbers must be finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let below = Tree {
            depth: self.depth + 1,
            ..self
        };
        let mut out = Vec::new();
        while let Some(value) = seq.next_element_seed(below)? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let below = Tree {
            depth: self.depth + 1,
            ..self
        };
        let mut out = Object::new();
        while let Some(key) = map.next_key::<Key>()? {
            let value = map.next_value_seed(below)?;
            if out.insert(key, value).is_some() {
                self.duplicate.set(true);
            }
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;

    #[test]
    fn duplicate_keys_are_found_with_their_paths() {
        let text = br#"{"a":{"b":1,"b":2},"l":[{"x":1,"x":1}],"a":3}"#;
        let (value, findings) = tree(Format::Json, text).unwrap();
        assert_eq!(value, json!({"a": 3, "l": [{"x": 1}]}));
        let expected = [
            r#"duplicate field "a.b""#,
            r#"duplicate field "l[0].x""#,
            r#"duplicate field "a""#,
        ];
        assert_eq!(findings.sentences(), expected);
    }

    #[test]
    fn yaml_reads_as_kubernetes_reads_it() {
        let text = b"a: yes\nb: 'yes'\nc: 010\nd: [1, 1.5, null, ~]\n1: x\nm:\n  <<: {k: v}\n";
        let (value, findings) = tree(Format::Yaml, text).unwrap();
        let expected = json!({
            "a": true, "b": "yes", "c": 8, "d": [1, 1.5, null, null], "1": "x", "m": {"k": "v"}
        });
        assert_eq!(value, expected);
        assert!(findings.is_empty());
    }

    #[test]
    fn findings_are_in_document_order() {
        let text = br#"{"metadata": {"name": "a", "name": "b", "odd": 1},
            "spec": {"one": 1, "two": 1, "two": 2, "paused": true, "paused": false,
                "template": {"spec": {"containers": [{"name": "c", "odd": 1, "image": "x", "image": "y"}]}}}}"#;
        let schema = crate::schema::lookup("apps/v1.Deployment");
        let decoded = object(Format::Json, text, schema).unwrap();
        assert_eq!(
            decoded.findings.strict_error(),
            r#"strict decoding error: duplicate field "metadata.name", unknown field "metadata.odd", unknown field "spec.one", unknown field "spec.two", duplicate field "spec.paused", unknown field "spec.template.spec.containers[0].odd", duplicate field "spec.template.spec.containers[0].image""#
        );
    }

    #[test]
    fn duplicate_keys_in_yaml_are_reported_with_their_lines() {
        let text = b"metadata:\n  name: a\n  name: b\nspec:\n  odd: 1\n  even: 2\n  paused: true\n  paused: false\n";
        let schema = crate::schema::lookup("apps/v1.Deployment");
        let decoded = object(Format::Yaml, text, schema).unwrap();
        assert_eq!(decoded.object["metadata"]["name"], "b");
        assert_eq!(
            decoded.findings.strict_error(),
            "strict decoding error: yaml: unmarshal errors:\n  line 3: key \"name\" already set in map\n  line 8: key \"paused\" already set in map, unknown field \"spec.even\", unknown field \"spec.odd\""
        );
        assert_eq!(
            decoded.findings.sentences()[0],
            "line 3: key \"name\" already set in map"
        );
    }

    /// Documents with every position in turn replaced by another value.
    fn variants(value: &Value) -> Vec<Value> {
        fn places(value: &Value, at: &str, out: &mut Vec<String>) {
            out.push(at.to_owned());
            let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
            match value {
                Value::Object(map) => {
                    map.iter()
                        .for_each(|(k, v)| places(v, &format!("{at}/{}", escape(k)), out));
                }
                Value::Array(list) => {
                    let items = list.iter().enumerate();
                    items.for_each(|(i, v)| places(v, &format!("{at}/{i}"), out));
                }
                _ => {}
            }
        }
        let mut all = Vec::new();
        places(value, "", &mut all);
        let with = [
            json!(null),
            json!(0),
            json!(-3_000_000_000_i64),
            json!(1.5),
            json!(2.0),
            json!(""),
            json!("1.50"),
            json!("2024-01-01T00:00:00+01:00"),
            json!(true),
            json!([]),
            json!([null]),
            json!([""]),
            json!({}),
            json!({"z": "1", "a": "2"}),
            json!({"name": null}),
        ];
        let replaced = |at: &String, with: &Value| {
            let mut value = value.clone();
            *value.pointer_mut(at).unwrap() = with.clone();
            value
        };
        all.iter()
            .flat_map(|at| with.iter().map(move |with| replaced(at, with)))
            .collect()
    }

    #[test]
    fn the_fast_decoder_agrees_with_the_general_one() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "p", "labels": {"b": "1", "a": "2"}, "creationTimestamp": null},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "0.1"}},
                "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"port": "http", "path": "/"}}}],
                "activeDeadlineSeconds": 1},
            "status": {"startTime": "2024-01-01T00:00:00Z"}});
        let secret = json!({"data": {"b": "AA==", "a": "AB=="}, "immutable": false});
        let event = json!({"eventTime": "2024-01-01T00:00:00.5Z", "count": 2});
        let autoscaler = json!({"spec": {"metrics": [{"resource": {"target": {"value": 5}}}]}});
        let definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
            "properties": {"a": {"default": {"x": null}, "maximum": 1.5}}}}}]}});
        let cases = [
            ("core/v1.Pod", pod),
            ("core/v1.Secret", secret),
            ("core/v1.Event", event),
            ("autoscaling/v2.HorizontalPodAutoscaler", autoscaler),
            ("apiextensions/v1.CustomResourceDefinition", definition),
        ];
        let (mut short, mut long) = (0, 0);
        for (name, value) in cases {
            let schema = crate::schema::lookup(name).unwrap();
            for value in variants(&value) {
                let text = value.to_string();
                let expected = the_long_way(Format::Json, text.as_bytes(), Some(schema));
                match typed::object(text.as_bytes(), schema) {
                    Some(object) => {
                        short += 1;
                        let findings = Findings::default();
                        assert_eq!(Ok(Decoded { object, findings }), expected, "{text}");
                    }
                    None => long += 1,
                }
            }
        }
        assert!(short > 100 && long > 100, "{short} {long}");
    }

    #[test]
    fn alias_bombs_and_deep_nesting_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..9 {
            let refs = vec![format!("*a{}", i - 1); 10].join(", ");
            bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
        }
        assert!(tree(Format::Yaml, bomb.as_bytes()).is_err());
        let deep = "[".repeat(10_000);
        assert!(tree(Format::Json, deep.as_bytes()).is_err());
        assert!(tree(Format::Yaml, deep.as_bytes()).is_err());
    }

    #[test]
    fn text_after_the_value_is_an_error() {
        assert!(tree(Format::Json, b"{} x").is_err());
    }
}
