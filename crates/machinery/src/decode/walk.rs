//! A second pass over a JSON document with duplicate keys, for the paths of all findings.

use super::Findings;
use crate::schema::{Shape, Type};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::cell::RefCell;
use std::fmt;

/// Unknown and duplicate fields of a document in document order. Only needed for documents with
/// duplicates.
pub(super) fn walk(bytes: &[u8], schema: Option<&'static Type>) -> Findings {
    let walk = Walk {
        path: &RefCell::default(),
        findings: &RefCell::default(),
        place: schema.map_or(Expected::Anything, Expected::Fields),
    };
    let mut deserializer = crate::json::Deserializer::from_slice(bytes);
    // The document was parsed before, so it parses again.
    let _ = walk.deserialize(&mut deserializer);
    walk.findings.take()
}

/// The schema at a position in the document.
#[derive(Clone, Copy)]
enum Expected {
    Fields(&'static Type),
    Value(Shape),
    Anything,
}

impl Expected {
    /// The declared fields, if known.
    fn fields(self) -> Option<&'static Type> {
        match self {
            Expected::Fields(schema) => Some(schema),
            Expected::Value(Shape::Struct(id)) => Some(id.get()),
            _ => None,
        }
    }

    fn element(self) -> Self {
        match self {
            Expected::Value(Shape::List(element) | Shape::Map(element)) => {
                Expected::Value(*element)
            }
            _ => Expected::Anything,
        }
    }
}

/// Walks a document for the paths of its unknown and duplicate keys.
#[derive(Clone, Copy)]
struct Walk<'a> {
    path: &'a RefCell<String>,
    findings: &'a RefCell<Findings>,
    place: Expected,
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
        let below = Walk {
            place: self.place.element(),
            ..self
        };
        while self
            .step(&format!("[{index}]"), || seq.next_element_seed(below))?
            .is_some()
        {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let place = match self.place.fields() {
                Some(schema) => schema.field(&key).map(|f| Expected::Value(f.shape)),
                None => Some(self.place.element()),
            };
            self.step(&key, || match place {
                Some(place) => {
                    if seen.contains(&key) {
                        self.findings.borrow_mut().duplicate(&self.path.borrow());
                    }
                    map.next_value_seed(Walk { place, ..self })
                }
                None => {
                    self.findings.borrow_mut().unknown(&self.path.borrow());
                    map.next_value::<serde::de::IgnoredAny>().map(drop)
                }
            })?;
            seen.insert(key);
        }
        Ok(())
    }
}
