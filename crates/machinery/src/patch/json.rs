//! JSON patch (RFC 6902): a list of operations, all or none.

use crate::{Object, Value, decode::MAX_DEPTH, text};

/// More operations than this are refused.
pub const MAX_OPERATIONS: usize = 10_000;

/// Bytes that the copies of one patch may add together: copies of copies grow without end.
const MAX_COPIED: usize = 3 << 20;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The patch itself makes no sense: a bad request.
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object: unprocessable.
    #[error("{0}")]
    DoesNotApply(String),
}

/// The object after all operations.
pub fn apply(target: &Object, patch: &Value) -> Result<Object, Error> {
    let Value::Array(operations) = patch else {
        return Err(Error::Malformed(
            "a JSON patch is a list of operations".to_owned(),
        ));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(Error::Malformed(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut document = Value::Object(target.clone());
    let mut copied = 0;
    for operation in operations {
        step(&mut document, operation, &mut copied)?;
    }
    match document {
        Value::Object(map) => Ok(map),
        _ => Err(Error::DoesNotApply("the patch leaves no object".to_owned())),
    }
}

/// About how many bytes a tree is written with.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| key.len() + 4 + size(item))
            .sum(),
        Value::Array(list) => list.iter().map(|item| size(item) + 1).sum(),
        Value::String(text) => text.len() + 2,
        _ => 4,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A tree must not grow deeper by a patch than one may be that comes whole.
fn must_fit(path: &str, value: &Value) -> Result<(), Error> {
    if path.matches('/').count() + depth(value) > MAX_DEPTH {
        let why = "exceeded max depth".to_owned();
        return Err(Error::Malformed(why));
    }
    Ok(())
}

fn step(document: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), Error> {
    let text_of = |name: &str| operation[name].as_str();
    let Some(path) = text_of("path") else {
        return Err(Error::Malformed("operation has no path".to_owned()));
    };
    let value = || {
        operation
            .get("value")
            .cloned()
            .ok_or_else(|| Error::Malformed(format!("operation at {path} has no value")))
    };
    let from = || {
        text_of("from").ok_or_else(|| Error::Malformed(format!("operation at {path} has no from")))
    };
    match text_of("op") {
        Some("add") => {
            let value = value()?;
            must_fit(path, &value)?;
            add(document, path, value)
        }
        Some("remove") => remove(document, path).map(drop),
        Some("replace") => {
            let value = value()?;
            must_fit(path, &value)?;
            let slot = get_mut(document, path).ok_or_else(|| missing("replace", path))?;
            *slot = value;
            Ok(())
        }
        Some("move") => {
            let from = from()?;
            if path.starts_with(&format!("{from}/")) {
                return Err(Error::DoesNotApply(format!(
                    "cannot move {from} into itself"
                )));
            }
            let value = remove(document, from)?;
            must_fit(path, &value)?;
            add(document, path, value)
        }
        Some("copy") => {
            let from = from()?;
            let value = get_mut(document, from).ok_or_else(|| missing("copy", from))?;
            must_fit(path, value)?;
            *copied += size(value);
            if *copied > MAX_COPIED {
                return Err(Error::Malformed(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
            let value = value.clone();
            add(document, path, value)
        }
        Some("test") => test(document, path, operation),
        other => Err(Error::Malformed(format!(
            "unexpected kind of operation: {}",
            text::quote(other.unwrap_or_default())
        ))),
    }
}

fn missing(operation: &str, path: &str) -> Error {
    Error::DoesNotApply(format!(
        "{operation} operation does not apply: doc is missing key: {path}: missing value"
    ))
}

fn test(document: &mut Value, path: &str, operation: &Value) -> Result<(), Error> {
    let expected = operation.get("value").unwrap_or(&Value::Null);
    // An absent value equals null.
    let actual = get_mut(document, path).map_or(&Value::Null, |v| &*v);
    if actual == expected {
        return Ok(());
    }
    Err(Error::DoesNotApply(format!(
        "testing value {path} failed: test failed"
    )))
}

fn steps(path: &str) -> Option<impl Iterator<Item = String> + '_> {
    if !path.is_empty() && !path.starts_with('/') {
        return None;
    }
    Some(
        path.split('/')
            .skip(1)
            .map(|s| s.replace("~1", "/").replace("~0", "~")),
    )
}

fn position(step: &str, length: usize) -> Option<usize> {
    // Negative numbers count from the end.
    if let Some(back) = step.strip_prefix('-').and_then(|n| n.parse::<usize>().ok()) {
        return length.checked_sub(back);
    }
    let leading_zero = step.len() > 1 && step.starts_with('0');
    step.parse()
        .ok()
        .filter(|_| !leading_zero && !step.starts_with('+'))
}

fn get_mut<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut at = document;
    for step in steps(path)? {
        at = match at {
            Value::Object(map) => map.get_mut(&step)?,
            Value::Array(list) => {
                let i = position(&step, list.len())?;
                list.get_mut(i)?
            }
            _ => return None,
        };
    }
    Some(at)
}

fn parent<'a>(
    document: &'a mut Value,
    path: &str,
    operation: &str,
) -> Result<(&'a mut Value, String), Error> {
    let (above, last) = path
        .rsplit_once('/')
        .ok_or_else(|| missing(operation, path))?;
    let container = get_mut(document, above).ok_or_else(|| missing(operation, path))?;
    Ok((container, last.replace("~1", "/").replace("~0", "~")))
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), Error> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    let (container, last) = parent(document, path, "add")?;
    match container {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => match position(&last, list.len()) {
            Some(i) if i <= list.len() => list.insert(i, value),
            _ => {
                let why = format!(
                    "add operation does not apply: Unable to access invalid index: {last}: invalid index referenced"
                );
                return Err(Error::DoesNotApply(why));
            }
        },
        _ => return Err(missing("add", path)),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str) -> Result<Value, Error> {
    let (container, last) = parent(document, path, "remove")?;
    let removed = match container {
        Value::Object(map) => map.shift_remove(&last),
        Value::Array(list) => position(&last, list.len())
            .filter(|i| *i < list.len())
            .map(|i| list.remove(i)),
        _ => None,
    };
    removed.ok_or_else(|| {
        Error::DoesNotApply(format!(
            "remove operation does not apply: doc is missing path: {path}: missing value"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn patched(target: Value, patch: Value) -> Result<Value, Error> {
        let Value::Object(target) = target else {
            panic!("no object")
        };
        apply(&target, &patch).map(Value::Object)
    }

    #[test]
    fn operations_do_what_they_say() {
        let cases = [
            (
                json!([{"op": "add", "path": "/a", "value": 1}]),
                json!({"l": [1, 2], "m": {"k": 0}, "a": 1}),
            ),
            (
                json!([{"op": "add", "path": "/l/-", "value": 3}]),
                json!({"l": [1, 2, 3], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "add", "path": "/l/0", "value": 0}]),
                json!({"l": [0, 1, 2], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "remove", "path": "/l/1"}]),
                json!({"l": [1], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "replace", "path": "/m/k", "value": 5}]),
                json!({"l": [1, 2], "m": {"k": 5}}),
            ),
            (
                json!([{"op": "move", "from": "/m/k", "path": "/n"}]),
                json!({"l": [1, 2], "m": {}, "n": 0}),
            ),
            (
                json!([{"op": "copy", "from": "/l", "path": "/m/l"}]),
                json!({"l": [1, 2], "m": {"k": 0, "l": [1, 2]}}),
            ),
            (
                json!([{"op": "test", "path": "/m/k", "value": 0}]),
                json!({"l": [1, 2], "m": {"k": 0}}),
            ),
            (
                json!([{"op": "add", "path": "/m/a~1b", "value": 1}]),
                json!({"l": [1, 2], "m": {"k": 0, "a/b": 1}}),
            ),
        ];
        for (patch, expected) in cases {
            let target = json!({"l": [1, 2], "m": {"k": 0}});
            assert_eq!(patched(target, patch.clone()).unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/x", "value": 1}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/l/5", "value": 1}]),
            json!([{"op": "test", "path": "/l", "value": 1}]),
            json!([{"op": "add", "path": "", "value": 1}]),
        ] {
            let result = patched(json!({"l": []}), patch.clone());
            assert!(
                matches!(result, Err(Error::DoesNotApply(_))),
                "{patch} {result:?}"
            );
        }
        for patch in [
            json!({}),
            json!([{"op": "x", "path": "/"}]),
            json!([{"op": "add"}]),
        ] {
            assert!(matches!(
                patched(json!({}), patch),
                Err(Error::Malformed(_))
            ));
        }
    }

    #[test]
    fn copies_of_copies_end_before_they_are_too_deep_or_too_large() {
        let target = json!({"data": {"k": "v"}}).as_object().cloned().unwrap();
        let deeper = json!({"op": "copy", "from": "/data", "path": "/data/x"});
        let error = apply(&target, &Value::from(vec![deeper; 2000])).unwrap_err();
        assert_eq!(error, Error::Malformed("exceeded max depth".to_owned()));
        let names: Vec<String> = (0..60).map(|n| format!("/{n}")).collect();
        let doubling = names
            .iter()
            .map(|name| json!({"op": "copy", "from": "", "path": name}));
        let error = apply(&target, &doubling.collect()).unwrap_err().to_string();
        assert!(error.starts_with("Unable to complete the copy"), "{error}");
        let nested = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let far = "/data/0".to_owned() + &"/0".repeat(30);
        let add = json!([{"op": "add", "path": far, "value": nested}]);
        let error = apply(&target, &add).unwrap_err();
        assert_eq!(error, Error::Malformed("exceeded max depth".to_owned()));
    }
}
