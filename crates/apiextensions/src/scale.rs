//! The paths of a custom object's Scale fields: replicas are integers, the selector is text.

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
    json::Key,
    text,
};

/// Plain names with leading dots, without other JSONPath syntax.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldPath {
    /// As written.
    pub text: String,
    pub names: Vec<String>,
}

/// The paths of a Scale's fields in the object.
#[derive(Debug, Clone)]
pub struct ScalePaths {
    pub spec: FieldPath,
    pub status: FieldPath,
    pub selector: Option<FieldPath>,
}

impl ScalePaths {
    pub(super) fn read(scale: &Value) -> Option<Self> {
        let path = |key: &str| scale[key].as_str().map(FieldPath::read);
        Some(Self {
            spec: path("specReplicasPath")?,
            status: path("statusReplicasPath")?,
            selector: path("labelSelectorPath").filter(|path| !path.text.is_empty()),
        })
    }
}

impl FieldPath {
    fn read(text: &str) -> Self {
        let names = text.strip_prefix('.').unwrap_or(text).split('.');
        Self {
            text: text.to_owned(),
            names: names.map(str::to_owned).collect(),
        }
    }

    /// The number at the path, if any, or why it is invalid.
    pub fn number(&self, object: &Object) -> Result<Option<i64>, String> {
        self.find(object, "int64", Value::as_i64)
    }

    /// The text at the path, if any, or why it is invalid.
    pub fn text(&self, object: &Object) -> Result<Option<String>, String> {
        self.find(object, "string", |value| value.as_str().map(str::to_owned))
    }

    fn find<T>(
        &self,
        object: &Object,
        wanted: &str,
        get: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let wrong = |to: usize, value: &Value, wanted: &str| {
            format!(
                ".{} accessor error: {} is of the type {}, expected {wanted}",
                self.names[..to].join("."),
                text::plain(value),
                go_type(value)
            )
        };
        let Some(mut value) = self.names.first().and_then(|name| object.get(name)) else {
            return Ok(None);
        };
        for (i, name) in self.names.iter().enumerate().skip(1) {
            value = match value {
                Value::Null => return Ok(None),
                Value::Object(object) => match object.get(name) {
                    Some(value) => value,
                    None => return Ok(None),
                },
                other => return Err(wrong(i + 1, other, "map[string]interface{}")),
            };
        }
        match get(value) {
            Some(found) => Ok(Some(found)),
            None => Err(wrong(self.names.len(), value, wanted)),
        }
    }

    /// Sets the value at the path, creating missing parents, or returns why it cannot.
    pub fn set(&self, object: &mut Object, new: Value) -> Result<(), String> {
        let Some((last, above)) = self.names.split_last() else {
            return Ok(());
        };
        let mut at = object;
        for (i, name) in above.iter().enumerate() {
            let below = at
                .entry(Key::new(name))
                .or_insert_with(|| Value::Object(Object::new()));
            let Value::Object(below) = below else {
                return Err(format!(
                    "value cannot be set because .{} is not a map[string]interface{{}}",
                    self.names[..=i].join(".")
                ));
            };
            at = below;
        }
        at.insert(last.clone(), new);
        Ok(())
    }
}

pub(super) fn check_spec(paths: Option<&ScalePaths>, object: &Object, errors: &mut Errors) {
    if let Some(paths) = paths {
        check_replicas(&paths.spec, object, errors);
    }
}

pub(super) fn check_status(paths: Option<&ScalePaths>, object: &Object, errors: &mut Errors) {
    let Some(paths) = paths else { return };
    check_replicas(&paths.status, object, errors);
    if let Some(path) = &paths.selector
        && let Err(why) = path.text(object)
    {
        errors.push(Error::invalid(&Path::new(&path.text), "", why));
    }
}

fn check_replicas(path: &FieldPath, object: &Object, errors: &mut Errors) {
    let at = Path::new(&path.text);
    match path.number(object) {
        Err(why) => errors.push(Error::invalid(&at, 0, why)),
        Ok(Some(number)) if number < 0 => {
            errors.push(Error::invalid(
                &at,
                number,
                "should be a non-negative integer",
            ));
        }
        Ok(Some(number)) if number > i64::from(i32::MAX) => {
            let why = format!("should be less than or equal to {}", i32::MAX);
            errors.push(Error::invalid(&at, number, why));
        }
        Ok(_) => {}
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn replicas_are_whole_numbers_that_are_there() {
        let paths = ScalePaths::read(&json!({"specReplicasPath": ".spec.n",
            "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.s"}))
        .unwrap();
        for (spec, line) in [
            (json!({}), ""),
            (json!({"n": 3}), ""),
            (
                json!({"n": -1}),
                ".spec.n: Invalid value: -1: should be a non-negative integer",
            ),
            (
                json!({"n": 4_294_967_296_i64}),
                ".spec.n: Invalid value: 4294967296: should be less than or equal to 2147483647",
            ),
            (
                json!({"n": 2.0}),
                ".spec.n: Invalid value: 0: .spec.n accessor error: 2 is of the type float64, expected int64",
            ),
            (
                json!({"n": [1, "a"]}),
                ".spec.n: Invalid value: 0: .spec.n accessor error: [1 a] is of the type []interface {}, expected int64",
            ),
            (
                json!("x"),
                ".spec.n: Invalid value: 0: .spec.n accessor error: x is of the type string, expected map[string]interface{}",
            ),
            (json!(null), ""),
        ] {
            let object = Object::from_iter([("spec".to_owned(), spec)]);
            let mut errors = Errors::new();
            check_spec(Some(&paths), &object, &mut errors);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(""), line);
        }
        let object = Object::from_iter([("status".to_owned(), json!({"n": null, "s": 5}))]);
        let mut errors = Errors::new();
        check_status(Some(&paths), &object, &mut errors);
        let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                ".status.n: Invalid value: 0: .status.n accessor error: <nil> is of the type <nil>, expected int64",
                ".status.s: Invalid value: \"\": .status.s accessor error: 5 is of the type int64, expected string"
            ]
        );
    }

    #[test]
    fn setting_a_path_creates_missing_objects_and_refuses_other_types() {
        let path = FieldPath::read(".spec.a.n");
        let mut object = Object::new();
        path.set(&mut object, 3.into()).unwrap();
        assert_eq!(object["spec"], json!({"a": {"n": 3}}));
        let mut object = Object::from_iter([("spec".to_owned(), json!({"a": 1}))]);
        let why = path.set(&mut object, 3.into()).unwrap_err();
        assert_eq!(
            why,
            "value cannot be set because .spec.a is not a map[string]interface{}"
        );
    }
}
