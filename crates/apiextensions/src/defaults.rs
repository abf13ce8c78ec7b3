//! Validates the defaults in a definition's schemas: they must satisfy their schema, and defaults
//! in the metadata of embedded objects must be valid metadata.

use machinery::{
    Object, Value,
    decode::Findings,
    field::{Error, Errors, Path},
    json::json,
};

use super::{embedded, structural::Schema, validate, view::View};

/// The errors in the defaults of a definition whose schemas are structural.
pub fn check(definition: &Object) -> Errors {
    let mut errors = Errors::new();
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
    let path = Path::new("spec.versions");
    // A schema that all versions share is reported at the top level.
    let shared = versions.windows(2).all(|w| schema(&w[0]) == schema(&w[1]));
    for (i, version) in versions.iter().enumerate() {
        let at = path.index(i);
        let at = if shared {
            Path::new("spec.validation")
        } else {
            at.child("schema")
        };
        let mut root = schema(version);
        if root.is_object() {
            root[EMBEDDED] = true.into();
            let at = at.child("openAPIV3Schema");
            check_schema(&root, &DefaultPosition::top(&root), &at, &mut errors);
        }
        if shared {
            break;
        }
    }
    errors
}

const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// The position of a default in an object.
#[derive(Clone)]
struct DefaultPosition<'a> {
    /// The schema of the enclosing object, the root or an embedded one.
    object: &'a Value,
    /// The steps from that object.
    steps: Vec<Step<'a>>,
    in_metadata: bool,
}

#[derive(Clone)]
enum Step<'a> {
    Field(&'a str),
    Item,
}

impl<'a> DefaultPosition<'a> {
    fn top(object: &'a Value) -> Self {
        Self {
            object,
            steps: Vec::new(),
            in_metadata: false,
        }
    }

    fn below(&self, step: Step<'a>, in_metadata: bool) -> Self {
        let mut below = self.clone();
        below.steps.push(step);
        below.in_metadata |= in_metadata;
        below
    }

    /// The smallest object that contains the default.
    fn around(&self, default: &Value) -> Object {
        let wrap = |inner: Value, step: &Step<'_>| match step {
            Step::Field(name) => Object::from_iter([((*name).to_owned(), inner)]).into(),
            Step::Item => Value::Array(vec![inner]),
        };
        let whole = self.steps.iter().rev().fold(default.clone(), wrap);
        let mut object = match whole {
            Value::Object(object) => object,
            _ => Object::new(),
        };
        for (key, value) in [("kind", "Validation"), ("apiVersion", "validation/v1")] {
            object.entry(key).or_insert_with(|| json!(value));
        }
        object
    }
}

fn check_schema(schema: &Value, place: &DefaultPosition<'_>, path: &Path, errors: &mut Errors) {
    let embedded = schema[EMBEDDED] == true;
    let top = DefaultPosition::top(schema);
    let place = if embedded { &top } else { place };
    if let Some(default) = schema.get("default").filter(|d| !d.is_null()) {
        check_default(schema, default, place, &path.child("default"), errors);
    }
    if schema["items"].is_object() {
        let below = place.below(Step::Item, false);
        check_schema(&schema["items"], &below, &path.child("items"), errors);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let own = embedded && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        let below = place.below(Step::Field(name), own);
        let at = path.child("properties");
        let at = at.key(name);
        check_schema(field, &below, &at, errors);
    }
}

fn check_default(
    schema: &Value,
    default: &Value,
    place: &DefaultPosition<'_>,
    path: &Path,
    errors: &mut Errors,
) {
    let read = Schema::read(schema);
    let found = if place.in_metadata {
        check_metadata(&Schema::read(place.object), &place.around(default))
            .map_err(|why| {
                let detail = format!("must result in valid metadata: {why}");
                vec![Error::invalid(path, default.clone(), detail)]
            })
            .err()
    } else {
        if !read.knows_all(default) {
            let detail = "must not have unknown fields";
            errors.push(Error::invalid(path, default.clone(), detail));
        }
        let mut unsaid = Findings::default();
        let mut found = Errors::new();
        match embedded::read_value(&read, &mut default.clone(), path, &mut unsaid) {
            Err(error) => found.push(error),
            Ok(()) => embedded::check(&read, default.into(), path, &mut found),
        }
        (!found.is_empty()).then_some(found)
    };
    errors.extend(found.unwrap_or_else(|| validate::value(&read, default, path)));
}

/// Validates an object's metadata.
fn check_metadata(schema: &Schema, object: &Object) -> Result<(), String> {
    let (mut object, root) = (object.clone(), Path::new(""));
    embedded::read(schema, &mut object, &root, &mut Findings::default())
        .map_err(|error| error.to_string())?;
    let mut errors = Errors::new();
    embedded::check(schema, View::Map(&object), &root, &mut errors);
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match &lines[..] {
        [] => Ok(()),
        [line] => Err(line.clone()),
        lines => Err(format!("[{}]", lines.join(", "))),
    }
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

    #[test]
    fn defaults_in_the_metadata_of_an_embedded_object_make_metadata() {
        let embedded = |properties: Value| {
            json!({"type": "object", "x-kubernetes-embedded-resource": true,
                "properties": properties})
        };
        let at = "spec.validation.openAPIV3Schema.properties[a].properties[metadata]";
        let none: [String; 0] = [];
        let names = |name: &str, default: Value| {
            let field = json!({"type": "string", "default": default});
            embedded(json!({"metadata": {"type": "object", "properties": {name: field}}}))
        };
        assert_eq!(said(names("name", json!("good"))), none);
        assert_eq!(
            said(names("name", json!("a/b"))),
            [format!(
                "{at}.properties[name].default: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value: \"a/b\": may not contain '/'"
            )]
        );
        assert_eq!(
            said(names("labels", json!("x"))),
            [format!(
                "{at}.properties[labels].default: Invalid value: \"x\": must result in valid metadata: metadata: Invalid value: {{\"labels\":\"x\"}}: json: cannot unmarshal string into Go struct field ObjectMeta.labels of type map[string]string"
            )]
        );
        let kind = json!({"kind": {"type": "string", "default": "no kind"}});
        assert_eq!(said(embedded(kind)).len(), 1);
    }

    #[test]
    fn the_default_of_an_embedded_object_needs_api_version_and_kind() {
        let at = "spec.validation.openAPIV3Schema.properties[a].default";
        let pod = json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true, "default": {"kind": "Pod"}});
        assert_eq!(said(pod), [format!("{at}.apiVersion: Required value")]);
    }
}
