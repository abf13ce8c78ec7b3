//! Whether the defaults that a definition brings keep to the schema they stand in.

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
};

use super::{structural::Schema, validate};

/// Everything that is wrong with the defaults in a definition whose schemas are structural.
pub(crate) fn check(definition: &Object) -> Errors {
    let mut errors = Errors::new();
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
    let path = Path::new("spec");
    // A schema that all versions share stands beside them.
    let shared = versions.windows(2).all(|w| schema(&w[0]) == schema(&w[1]));
    for (i, version) in versions.iter().enumerate() {
        let at = if shared {
            path.child("validation")
        } else {
            path.child("versions").index(i).child("schema")
        };
        let root = schema(version);
        let mut visit = |name: &str, field: &Value| {
            // What is at the top of an object has no defaults at all; that is told elsewhere.
            if !matches!(name, "metadata" | "kind" | "apiVersion") {
                let at = at.child("openAPIV3Schema").child("properties").key(name);
                check_schema(field, &at, &mut errors);
            }
        };
        for (name, field) in root["properties"].as_object().into_iter().flatten() {
            visit(name, field);
        }
        if shared {
            break;
        }
    }
    errors
}

fn check_schema(schema: &Value, path: &Path, errors: &mut Errors) {
    if let Some(default) = schema.get("default").filter(|d| !d.is_null()) {
        check_default(schema, default, &path.child("default"), errors);
    }
    if schema["items"].is_object() {
        check_schema(&schema["items"], &path.child("items"), errors);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        check_schema(field, &path.child("properties").key(name), errors);
    }
}

fn check_default(schema: &Value, default: &Value, path: &Path, errors: &mut Errors) {
    let read = Schema::read(schema);
    if !read.knows_all(default) {
        let detail = "must not have unknown fields";
        errors.push(Error::invalid(path, default.clone(), detail));
    }
    errors.extend(validate::value(&read, default, path));
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    fn said(field: Value) -> Vec<String> {
        let definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"a": field}}}}]}});
        let Value::Object(definition) = definition else {
            return Vec::new();
        };
        check(&definition).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_default_keeps_to_its_schema() {
        let none: [&str; 0] = [];
        assert_eq!(said(json!({"type": "string", "default": "x"})), none);
        let at = "spec.validation.openAPIV3Schema.properties[a].default";
        assert_eq!(
            said(json!({"type": "string", "enum": ["y"], "default": "x"})),
            [format!(
                "{at}: Unsupported value: \"x\": supported values: \"y\""
            )]
        );
        assert_eq!(
            said(json!({"type": "string", "pattern": "^y", "default": "x"})),
            [format!(
                "{at}: Invalid value: \"x\":  in body should match '^y'"
            )]
        );
        assert_eq!(
            said(json!({"type": "object", "default": {"b": 1}})),
            [format!(
                "{at}: Invalid value: {{\"b\":1}}: must not have unknown fields"
            )]
        );
    }
}
