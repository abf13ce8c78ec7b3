//! From bytes to objects: JSON and YAML into trees, trees into normalised objects, with findings
//! about unknown and duplicate fields that strict clients want to hear.

use crate::normalise;
use crate::schema::Type;
use crate::text::quote;
use crate::{Object, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::cell::{Cell, RefCell};
use std::fmt;

/// More findings than this are not told.
const MAX_FINDINGS: usize = 100;
/// Deeper trees are refused.
const MAX_DEPTH: usize = 120;

/// Text forms of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
}

/// Things that a lenient decoder passes over, in the words of strict decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings(Vec<String>);

impl Findings {
    /// Notes `unknown field "spec.foo"`.
    pub fn unknown(&mut self, path: &str) {
        self.push(format!("unknown field {}", quote(path)));
    }

    /// Notes `duplicate field "spec.foo"`.
    pub fn duplicate(&mut self, path: &str) {
        self.push(format!("duplicate field {}", quote(path)));
    }

    /// Notes something else.
    pub fn push(&mut self, finding: String) {
        if self.0.len() < MAX_FINDINGS {
            self.0.push(finding);
        }
    }

    /// One sentence each; also the texts of warnings.
    pub fn sentences(&self) -> &[String] {
        &self.0
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All in one, as a strict decoder refuses a body.
    pub fn strict_error(&self) -> String {
        format!("strict decoding error: {}", self.0.join(", "))
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
    let (value, mut findings) = tree(format, bytes)?;
    let object = match schema {
        Some(schema) => normalise::object(schema, value, &mut findings)?,
        None => normalise::unstructured(value, &mut findings)?,
    };
    Ok(Decoded { object, findings })
}

/// Decodes a tree; of duplicate keys the last one stays.
pub fn tree(format: Format, bytes: &[u8]) -> Result<(Value, Findings), String> {
    match format {
        Format::Json => json(bytes),
        Format::Yaml => yaml(bytes),
    }
}

fn json(bytes: &[u8]) -> Result<(Value, Findings), String> {
    let duplicate = Cell::new(false);
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Tree {
        duplicate: &duplicate,
        depth: 0,
    }
    .deserialize(&mut deserializer)
    .and_then(|value| deserializer.end().map(|()| value))
    .map_err(|e| e.to_string())?;
    let mut findings = Findings::default();
    if duplicate.get() {
        // Rare: only now are paths worth their cost.
        let walk = Walk {
            path: &RefCell::default(),
            findings: &RefCell::default(),
        };
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        walk.deserialize(&mut deserializer)
            .map_err(|e| e.to_string())?;
        findings = walk.findings.take();
    }
    Ok((value, findings))
}

fn yaml(bytes: &[u8]) -> Result<(Value, Findings), String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("yaml: {e}"))?;
    let mut findings = Findings::default();
    let strict = yaml_options(serde_saphyr::options::DuplicateKeyPolicy::Error);
    let error = match serde_saphyr::from_str_with_options::<Yaml>(text, strict) {
        Ok(Yaml(value)) => return Ok((value, findings)),
        Err(error) => error.to_string(),
    };
    let lenient = yaml_options(serde_saphyr::options::DuplicateKeyPolicy::LastWins);
    match serde_saphyr::from_str_with_options::<Yaml>(text, lenient) {
        Ok(Yaml(value)) => {
            let first = error.lines().next().unwrap_or_default();
            findings.push(format!("yaml: unmarshal errors: {first}"));
            Ok((value, findings))
        }
        Err(error) => Err(format!("error converting YAML to JSON: yaml: {error}")),
    }
}

fn yaml_options(
    duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy,
) -> serde_saphyr::Options {
    // An alias bomb spends these limits instead of memory: three megabytes of text hold fewer
    // than this many nodes, and honest documents hardly use aliases.
    let budget = serde_saphyr::budget! {
        max_depth: MAX_DEPTH,
        max_nodes: 1_500_000,
        max_aliases: 1_000,
        max_anchors: 1_000,
        max_documents: 1,
    };
    let mut options = serde_saphyr::options! {
        budget: budget,
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        strict_booleans: false,
    };
    options.alias_limits.max_total_replayed_events = 200_000;
    options
}

/// What serde-saphyr fills.
struct Yaml(Value);

impl<'de> serde::Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let duplicate = Cell::new(false);
        Tree {
            duplicate: &duplicate,
            depth: 0,
        }
        .deserialize(deserializer)
        .map(Yaml)
    }
}

/// Builds a tree and tells whether any key came twice.
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
        serde_json::Number::from_f64(v)
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
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(below)?;
            if out.insert(key, value).is_some() {
                self.duplicate.set(true);
            }
        }
        Ok(Value::Object(out))
    }
}

/// Walks a document for the paths of its duplicate keys.
#[derive(Clone, Copy)]
struct Walk<'a> {
    path: &'a RefCell<String>,
    findings: &'a RefCell<Findings>,
}

impl Walk<'_> {
    /// Runs `inside` with a step added to the path.
    fn step<T>(self, step: &str, inside: impl FnOnce() -> T) -> T {
        let length = self.path.borrow().len();
        {
            let mut path = self.path.borrow_mut();
            if length > 0 && !step.starts_with('[') {
                path.push('.');
            }
            path.push_str(step);
        }
        let out = inside();
        self.path.borrow_mut().truncate(length);
        out
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        while self
            .step(&format!("[{index}]"), || seq.next_element_seed(self))?
            .is_some()
        {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            self.step(&key, || {
                if seen.contains(&key) {
                    self.findings.borrow_mut().duplicate(&self.path.borrow());
                }
                map.next_value_seed(self)
            })?;
            seen.insert(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
    fn duplicate_keys_in_yaml_are_told() {
        let (value, findings) = tree(Format::Yaml, b"a: 1\na: 2\n").unwrap();
        assert_eq!(value, json!({"a": 2}));
        assert_eq!(findings.sentences().len(), 1);
    }

    #[test]
    fn bombs_are_refused() {
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
