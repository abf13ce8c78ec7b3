//! Hints for misspelt fields and kinds: the place in the file, and the name that was probably meant.

use machinery::schema::{Shape, Type};
use serde_json::Value;

use crate::{error::ServerError, merge};

/// How many letters a misspelt name may differ in.
const MAX_DISTANCE: usize = 2;

/// Adds a line for each unknown field in the server's error that is near a known one.
pub(crate) fn with_fields(mut error: anyhow::Error, object: &Value, source: &str) -> anyhow::Error {
    if let Some(ServerError(status)) = error.downcast_mut()
        && status.message.contains("strict decoding error")
    {
        let text = std::fs::read_to_string(source).unwrap_or_default();
        for path in unknown_fields(&status.message) {
            if let Some(near) = meant(object, &path) {
                let name = path.rsplit('.').next().unwrap_or(&path);
                let position = key_position(source, &text, name);
                status.message +=
                    &format!("\n{position}did you mean {near:?} instead of {name:?}?");
            }
        }
    }
    error
}

/// `unknown field "spec.replica", unknown field "spec.x"`
fn unknown_fields(message: &str) -> Vec<String> {
    let parts = message.split("unknown field \"").skip(1);
    let paths = parts.filter_map(|part| part.split_once('"'));
    paths.map(|(path, _)| path.to_owned()).collect()
}

/// The known field that a path's last part is near.
fn meant(object: &Value, path: &str) -> Option<&'static str> {
    let mut parts: Vec<&str> = path.split('.').collect();
    let last = parts.pop()?;
    let mut at: &'static Type = merge::schema_of(object)?;
    for part in parts {
        let name = part.split('[').next().unwrap_or(part);
        let mut shape = at.field(name)?.shape;
        while let Shape::List(inner) = shape {
            shape = *inner;
        }
        at = match shape {
            Shape::Struct(id) => id.get(),
            _ => return None,
        };
    }
    nearest(last, at.fields.iter().map(|field| field.name))
}

/// The name that is nearest to a misspelt one, if it is near enough.
pub(crate) fn nearest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let folded = given.to_lowercase();
    let distance = |name: &str| crate::argv::distance(&folded, &name.to_lowercase());
    let near = names
        .map(|name| (distance(name), name))
        .min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, _)| *distance <= MAX_DISTANCE && *distance < given.len())
        .map(|(_, name)| name)
}

/// `web.yaml:5:3: `, if the key is in one line only.
fn key_position(source: &str, text: &str, key: &str) -> String {
    let found = |line: &str| {
        let start = line.find(|c: char| c.is_ascii_alphanumeric() || c == '"')?;
        let rest = line[start..].trim_start_matches('"').strip_prefix(key)?;
        let is_key = rest.trim_start_matches('"').trim_start().starts_with(':');
        is_key.then_some(start + 1)
    };
    let mut places = text
        .lines()
        .enumerate()
        .filter_map(|(number, line)| found(line).map(|column| (number + 1, column)));
    match (places.next(), places.next()) {
        (Some((line, column)), None) => format!("{source}:{line}:{column}: "),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn misspelt_fields_are_found_in_the_file_and_named_as_they_were_meant() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
        for (path, expected) in [
            ("spec.replica", Some("replicas")),
            (
                "spec.template.spec.containers[0].imagePullpolicy",
                Some("imagePullPolicy"),
            ),
            ("spec.template.spec.containers[0].nothing", None),
            ("metadata.labels.x", None),
        ] {
            assert_eq!(meant(&object, path), expected, "{path}");
        }
        let text = "kind: Deployment\nspec:\n  replica: 3\n";
        assert_eq!(key_position("web.yaml", text, "replica"), "web.yaml:3:3: ");
        assert_eq!(key_position("web.yaml", "a: 1\n- a: 2\n", "a"), "");
        let status = json!({"reason": "BadRequest", "code": 400,
            "message": "strict decoding error: unknown field \"spec.replica\""});
        let error = ServerError(serde_json::from_value(status).unwrap());
        let error = with_fields(error.into(), &object, "/nowhere");
        let expected = "did you mean \"replicas\" instead of \"replica\"?";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    #[test]
    fn kinds_are_near_if_two_letters_differ() {
        let kinds = || ["Deployment", "Pod"].into_iter();
        assert_eq!(nearest("Deploymnt", kinds()), Some("Deployment"));
        assert_eq!(nearest("deployment", kinds()), Some("Deployment"));
        assert_eq!(nearest("Secret", kinds()), None);
    }
}
