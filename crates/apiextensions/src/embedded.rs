//! Embedded resources in custom objects: objects with apiVersion, kind and metadata.

use kinds::metadata::{self, path_segment};
use machinery::{
    Object, Value,
    decode::Findings,
    field::{Error, Errors, Path},
    format, normalise,
};

use super::{structural::Schema, validate::MAX_ERRORS, view::View, walk};

/// Decodes the metadata of embedded objects: unknown fields are dropped and recorded, invalid ones
/// are errors.
pub(super) fn read(
    schema: &Schema,
    object: &mut Object,
    path: &Path,
    findings: &mut Findings,
) -> Result<(), Error> {
    let mut unknown = Findings::default();
    read_object(schema, object, path, &mut unknown)?;
    let mut sentences = unknown.sentences().to_vec();
    sentences.sort_unstable();
    sentences.into_iter().for_each(|s| findings.push(s));
    Ok(())
}

fn read_object(
    schema: &Schema,
    object: &mut Object,
    path: &Path,
    findings: &mut Findings,
) -> Result<(), Error> {
    if schema.embedded {
        read_own(object, path, findings)?;
    }
    for (key, value) in object.iter_mut() {
        if let Some((below, at)) = walk::step(schema, key, path) {
            read_value(below, value, &at, findings)?;
        }
    }
    Ok(())
}

pub(super) fn read_value(
    schema: &Schema,
    value: &mut Value,
    path: &Path,
    findings: &mut Findings,
) -> Result<(), Error> {
    match value {
        Value::Object(object) => read_object(schema, object, path, findings),
        Value::Array(items) => match &schema.items {
            Some(below) => items
                .iter_mut()
                .enumerate()
                .try_for_each(|(i, item)| read_value(below, item, &path.index(i), findings)),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn read_own(object: &mut Object, path: &Path, findings: &mut Findings) -> Result<(), Error> {
    for key in ["apiVersion", "kind"] {
        if let Some(value) = object.get(key).filter(|value| !value.is_string()) {
            let at = path.child(key);
            return Err(Error::invalid(&at, value.clone(), "must be a string"));
        }
    }
    let Some(given) = object.get("metadata") else {
        return Ok(());
    };
    let at = path.child("metadata");
    let mut read = normalise::metadata(given.clone(), at.to_path_buf().as_str(), findings)
        .map_err(|why| Error::invalid(&at, given.clone(), why))?;
    if read["creationTimestamp"].is_null()
        && let Some(fields) = read.as_object_mut()
    {
        fields.shift_remove("creationTimestamp");
    }
    object.insert("metadata".to_owned(), read);
    Ok(())
}

/// Validates that embedded objects have apiVersion, kind and valid metadata.
pub(super) fn check(schema: &Schema, value: View<'_>, path: &Path, errors: &mut Errors) {
    let mut visit = |schema: &Schema, value: View<'_>, path: &Path| {
        if let (true, View::Map(object)) = (schema.embedded && errors.len() < MAX_ERRORS, value) {
            check_own(object, path, errors);
        }
    };
    walk::each(schema, value, path, &mut visit);
}

/// Returns what is wrong with a text, if anything.
type Wrong = fn(&str) -> Option<String>;

fn check_own(object: &Object, path: &Path, errors: &mut Errors) {
    let kinds: [(&str, Wrong); 2] = [("apiVersion", wrong_version), ("kind", wrong_kind)];
    for (key, _) in kinds.iter().filter(|(key, _)| !object.contains_key(key)) {
        errors.push(Error::required(&path.child(key), ""));
    }
    for (key, wrong) in kinds {
        let why = match object.get(key) {
            None => None,
            Some(Value::String(text)) if text.is_empty() => Some("must not be empty".to_owned()),
            Some(Value::String(text)) => wrong(text),
            Some(_) => Some("must be a string".to_owned()),
        };
        if let Some(why) = why {
            errors.push(Error::invalid(&path.child(key), object[key].clone(), why));
        }
    }
    if let Some(given) = object.get("metadata") {
        metadata::check_embedded(given, path_segment, &path.child("metadata"), errors);
    }
}

fn wrong_version(text: &str) -> Option<String> {
    let parts = text.matches('/').count();
    (parts > 1).then(|| format!("unexpected GroupVersion string: {text}"))
}

fn wrong_kind(text: &str) -> Option<String> {
    let complaints = format::dns1035_label(&text.to_lowercase());
    (!complaints.is_empty()).then(|| {
        format!(
            "may have mixed case, but should otherwise match: {}",
            complaints.join(",")
        )
    })
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    fn spec() -> Schema {
        let pod = json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true});
        Schema::read(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "one": pod, "many": {"type": "array", "items": pod},
            "map": {"type": "object", "additionalProperties": pod}}}}}),
        )
    }

    fn object(spec: Value) -> Object {
        Object::from_iter([("spec".to_owned(), spec)])
    }

    #[test]
    fn embedded_objects_need_api_version_and_kind() {
        for (given, lines) in [
            (
                json!({}),
                &[
                    "spec.one.apiVersion: Required value",
                    "spec.one.kind: Required value",
                ][..],
            ),
            (json!({"apiVersion": "v1", "kind": "Pod"}), &[]),
            (
                json!({"apiVersion": "", "kind": "Pod"}),
                &["spec.one.apiVersion: Invalid value: \"\": must not be empty"],
            ),
            (
                json!({"apiVersion": "a/b/c", "kind": "Pod"}),
                &[
                    "spec.one.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                ],
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}}),
                &["spec.one.metadata.name: Invalid value: \"a/b\": may not contain '/'"],
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "A"}}),
                &["spec.one.metadata.namespace: Invalid value: \"A\": "],
            ),
        ] {
            let mut errors = Errors::new();
            let object = object(json!({"one": given}));
            check(&spec(), View::Map(&object), &Path::new(""), &mut errors);
            assert_eq!(errors.len(), lines.len(), "{errors:?}");
            for (error, line) in errors.iter().zip(lines) {
                assert!(error.to_string().starts_with(line), "{error} {line}");
            }
        }
    }

    #[test]
    fn its_metadata_is_read_like_any_other() {
        let pod =
            |metadata: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        let given = json!({"one": pod(json!({"name": "a", "junk": 1, "creationTimestamp": null})),
            "many": [pod(json!({"labels": null, "b": 1}))], "map": {"k": pod(Value::Null)}});
        let mut read_one = object(given);
        let mut findings = Findings::default();
        read(&spec(), &mut read_one, &Path::new(""), &mut findings).unwrap();
        let expected = json!({"one": pod(json!({"name": "a"})), "many": [pod(json!({}))],
            "map": {"k": pod(json!({}))}});
        assert_eq!(read_one["spec"], expected);
        assert_eq!(
            findings.sentences(),
            [
                "unknown field \"spec.many[0].metadata.b\"",
                "unknown field \"spec.one.metadata.junk\""
            ]
        );
        for (given, why) in [
            (
                json!({"one": {"kind": 5}}),
                "spec.one.kind: Invalid value: 5: must be a string",
            ),
            (
                json!({"one": pod(json!({"labels": 5}))}),
                "spec.one.metadata: Invalid value: {\"labels\":5}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type map[string]string",
            ),
        ] {
            let (mut given, mut findings) = (object(given), Findings::default());
            let refused = read(&spec(), &mut given, &Path::new(""), &mut findings);
            assert_eq!(refused.unwrap_err().to_string(), why);
        }
    }
}
