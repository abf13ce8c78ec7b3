//! `--sort-by`: sorts objects by the value of one field.

use std::cmp::Ordering;

use anyhow::{Result, bail};
use machinery::quantity::Quantity;
use serde_json::Value;

use super::jsonpath::Template;

/// Sorts by the field at the path; `object` returns the object of an entry.
pub(crate) fn by<T>(entries: &mut Vec<T>, path: &str, object: impl Fn(&T) -> Value) -> Result<()> {
    let template = Template::relaxed(path)?;
    let key = |entry: &T| template.values(&object(entry)).into_iter().next();
    let mut keyed: Vec<(Option<Value>, T)> = entries
        .drain(..)
        .map(|entry| (key(&entry), entry))
        .collect();
    // One object is sorted by anything.
    if keyed.len() > 1 && keyed.iter().all(|(key, _)| key.is_none()) {
        bail!(
            "couldn't find any field with path \"{}\" in the list of objects",
            braced(path)
        );
    }
    let texts = keyed.iter().filter_map(|(key, _)| key.as_ref()?.as_str());
    let texts_are = match texts.clone().all(|text| text.parse::<Quantity>().is_ok()) {
        true => Texts::Quantities,
        false => Texts::Names,
    };
    keyed.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref(), texts_are));
    entries.extend(keyed.into_iter().map(|(_, entry)| entry));
    Ok(())
}

fn braced(path: &str) -> String {
    let inner = path.trim_start_matches('{').trim_end_matches('}');
    format!("{{.{}}}", inner.trim_start_matches('.'))
}

/// The type of all texts of the field. Texts are all compared in the same way, so that the order is
/// consistent.
#[derive(Clone, Copy)]
enum Texts {
    Quantities,
    Names,
}

/// Values of different types are grouped by type.
fn type_rank(value: Option<&Value>) -> u8 {
    match value {
        None | Some(Value::Null) => 0,
        Some(Value::Bool(_)) => 1,
        Some(Value::Number(_)) => 2,
        Some(Value::String(_)) => 3,
        Some(Value::Array(_) | Value::Object(_)) => 4,
    }
}

/// Absent values come first; quantities and numbers by value, other text by its bytes.
fn compare(a: Option<&Value>, b: Option<&Value>, texts: Texts) -> Ordering {
    let by_type = type_rank(a).cmp(&type_rank(b));
    match (a, b) {
        _ if by_type.is_ne() => by_type,
        (Some(Value::Number(a)), Some(Value::Number(b))) => a
            .as_f64()
            .partial_cmp(&b.as_f64())
            .unwrap_or(Ordering::Equal),
        (Some(Value::String(a)), Some(Value::String(b))) => {
            match (texts, a.parse::<Quantity>(), b.parse::<Quantity>()) {
                (Texts::Quantities, Ok(a), Ok(b)) => a.to_f64().total_cmp(&b.to_f64()),
                _ => a.cmp(b),
            }
        }
        (Some(Value::Bool(a)), Some(Value::Bool(b))) => a.cmp(b),
        (a, b) => a.map(Value::to_string).cmp(&b.map(Value::to_string)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_come_in_the_order_of_the_field() {
        let sorted = |path: &str, objects: Value| {
            let mut objects = objects.as_array().cloned().unwrap();
            by(&mut objects, path, Clone::clone).map(|()| objects)
        };
        let objects =
            json!([{"n": "p10", "q": "1Gi", "i": 3}, {"n": "p9", "q": "5Mi", "i": 20}, {"n": "a"}]);
        for (path, names) in [
            (".n", ["a", "p10", "p9"]),
            ("{.q}", ["a", "p9", "p10"]),
            ("i", ["a", "p10", "p9"]),
        ] {
            let sorted = sorted(path, objects.clone()).unwrap();
            let found: Vec<&str> = sorted
                .iter()
                .map(|object| object["n"].as_str().unwrap())
                .collect();
            assert_eq!(found, names, "{path}");
        }
        // Quantities among other texts are compared as texts, and types are not mixed.
        let odd =
            json!([{"v": "10"}, {"v": "9x"}, {"v": "1Ki"}, {"v": 7}, {"v": true}, {"v": [1]}]);
        let found = sorted("v", odd).unwrap();
        let found: Vec<&Value> = found.iter().map(|object| &object["v"]).collect();
        let wanted = json!([true, 7, "10", "1Ki", "9x", [1]]);
        assert_eq!(json!(found), wanted);
        let error = sorted(".none", objects).unwrap_err().to_string();
        assert_eq!(
            error,
            "couldn't find any field with path \"{.none}\" in the list of objects"
        );
    }
}
