//! The numbers that a Scale shows stand in the object as integers, and its selector as text.

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
    text,
};

use super::kind::ScalePaths;

pub(super) fn check_spec(paths: Option<&ScalePaths>, object: &Object, errors: &mut Errors) {
    if let Some(paths) = paths {
        check_replicas(&paths.spec_text, object, errors);
    }
}

pub(super) fn check_status(paths: Option<&ScalePaths>, object: &Object, errors: &mut Errors) {
    let Some(paths) = paths else { return };
    check_replicas(&paths.status_text, object, errors);
    if let Some(path) = &paths.selector_text
        && let Err(why) = read(object, path, "string", |value| value.as_str().map(|_| 0))
    {
        errors.push(Error::invalid(&Path::new(path), "", why));
    }
}

fn check_replicas(path: &str, object: &Object, errors: &mut Errors) {
    let at = Path::new(path);
    match read(object, path, "int64", Value::as_i64) {
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

/// What stands at a path, if anything does, or why it cannot be read.
fn read(
    object: &Object,
    path: &str,
    wanted: &str,
    get: impl Fn(&Value) -> Option<i64>,
) -> Result<Option<i64>, String> {
    let path = path.strip_prefix('.').unwrap_or(path);
    let names: Vec<&str> = path.split('.').collect();
    let wrong = |to: usize, value: &Value, wanted: &str| {
        format!(
            ".{} accessor error: {} is of the type {}, expected {wanted}",
            names[..to].join("."),
            text::plain(value),
            go_type(value)
        )
    };
    let Some(mut value) = object.get(names[0]) else {
        return Ok(None);
    };
    for (i, name) in names.iter().enumerate().skip(1) {
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
        Some(number) => Ok(Some(number)),
        None => Err(wrong(names.len(), value, wanted)),
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
}
