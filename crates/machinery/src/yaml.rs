//! Configuration files in YAML, read as Kubernetes' programs read theirs: as JSON, in which null is the same as
//! absent.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a file's text. The YAML parser is compiled for plain values only: its code is large, and each type that it
/// filled directly would have a copy of it.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(value(text)?).map_err(|error| placed(text, &error.to_string()))
}

fn value(text: &str) -> Result<Value, String> {
    let mut value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    remove_nulls(&mut value);
    Ok(value)
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Adds the line of the field that an error names, if only one line has it.
fn placed(text: &str, error: &str) -> String {
    let field = error
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split('`').next());
    let names = |line: &str, field: &str| {
        let start = line.trim_start_matches([' ', '-', '"']);
        let rest = start.strip_prefix(field);
        rest.is_some_and(|rest| rest.trim_start_matches('"').starts_with(':'))
    };
    let lines = text.lines().enumerate();
    let mut found = lines.filter(|(_, line)| field.is_some_and(|field| names(line, field)));
    match (found.next(), found.next()) {
        (Some((index, _)), None) => format!("line {}: {error}", index + 1),
        _ => error.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Config {
        name: String,
        entries: Vec<String>,
        inner: Option<Box<Config>>,
        level: i64,
    }

    #[test]
    fn null_is_the_same_as_absent_and_scalars_keep_their_types() {
        let read = from_str::<Config>;
        let inner = Config {
            name: "b".to_owned(),
            ..Config::default()
        };
        let expected = Config {
            name: "a".to_owned(),
            inner: Some(inner.into()),
            level: 3,
            ..Config::default()
        };
        let yaml = "name: a\nentries: null\nlevel: 3\ninner:\n  name: b\n  entries:\n";
        assert_eq!(read(yaml).unwrap(), expected);
        let json = r#"{"name": "a", "level": 3, "inner": {"name": "b", "level": null}}"#;
        assert_eq!(read(json).unwrap(), expected);
        for wrong in [
            "name: 1",
            "entries: a",
            "entries: [null]",
            "level: '3'",
            "a",
            "name: {",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unknown_field_is_reported_with_its_line() {
        let error = |text| from_str::<Config>(text).unwrap_err();
        for (text, start) in [
            ("name: a\nnaem: b\n", "line 2: unknown field `naem`"),
            ("inner:\n  - naem: b\n", "invalid type: map"),
            ("inner:\n  \"naem\": b\n", "line 2: unknown field `naem`"),
            // Two lines could be meant.
            ("inner:\n  naem: b\nnaem: c\n", "unknown field `naem`"),
        ] {
            assert!(error(text).starts_with(start), "{}", error(text));
        }
    }
}
