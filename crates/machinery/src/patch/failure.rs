//! Why a JSON patch does not apply, in upstream's words.

use super::json as patch;
use crate::{Object, Value, text::quote};

const MISSING: &str = "missing value";

/// The message of the operation that fails.
pub fn describe(object: &Object, operations: &Value, error: &patch::Error) -> String {
    let described = match error {
        patch::Error::DoesNotApply(why) if why.starts_with("the accumulated size") => {
            Some(format!("Unable to complete the copy, {why}"))
        }
        patch::Error::DoesNotApply(_) | patch::Error::TestFailed(_) => {
            patch::before_failure(object, operations)
                .and_then(|(document, operation)| words(&document, operation))
        }
        _ => None,
    };
    described.unwrap_or_else(|| error.to_string())
}

fn words(document: &Value, operation: &Value) -> Option<String> {
    let kind = operation.get("op").and_then(Value::as_str);
    let kind = kind.unwrap_or_default();
    if !["add", "remove", "replace", "move", "copy", "test"].contains(&kind) {
        return Some(format!("Unexpected kind: {kind}"));
    }
    let Some(path) = operation["path"].as_str() else {
        return Some(format!("{kind} operation failed to decode path: {MISSING}"));
    };
    if let "move" | "copy" = kind {
        let Some(from) = operation["from"].as_str() else {
            return Some(format!(
                "{kind} operation failed to decode from: operation, missing from field: {MISSING}"
            ));
        };
        let Some((container, key)) = find(document, from) else {
            return Some(format!(
                "{kind} operation does not apply: doc is missing from path: {from}: {MISSING}"
            ));
        };
        return Some(match absent(container, &key) {
            Some(why) if kind == "move" => format!("error in move for path: '{key}': {why}"),
            Some(why) => format!("error in copy for from: '{from}': {why}"),
            None => format!(
                "{kind} operation does not apply: doc is missing destination path: {path}: {MISSING}"
            ),
        });
    }
    let Some((container, key)) = find(document, path) else {
        let missing = match kind {
            "add" | "remove" => format!("doc is missing path: \"{path}\""),
            "replace" => format!("doc is missing path: {path}"),
            _ => format!("is missing path: {path}"),
        };
        return Some(format!(
            "{kind} operation does not apply: {missing}: {MISSING}"
        ));
    };
    Some(match (kind, absent(container, &key)) {
        ("add", why) => {
            let why = why?;
            match key.parse::<i64>() {
                Ok(_) => format!("error in add for path: '{path}': {why}"),
                Err(_) => format!(
                    "error in add for path: '{path}': value was not a proper array index: '{key}': {why}"
                ),
            }
        }
        ("remove", why) => format!("error in remove for path: '{path}': {}", why?),
        ("replace", _) => {
            format!("replace operation does not apply: doc is missing key: {path}: {MISSING}")
        }
        (_, Some(why)) if container.is_array() => {
            format!("error in test for path: '{path}': {why}")
        }
        _ => format!("testing value {path} failed: test failed"),
    })
}

/// The map or list of a path's last step, and that step.
fn find<'d>(document: &'d Value, path: &str) -> Option<(&'d Value, String)> {
    let unescaped = |step: &str| step.replace("~1", "/").replace("~0", "~");
    let mut steps: Vec<&str> = path.split('/').skip(1).collect();
    let last = steps.pop()?;
    let mut at = document;
    for step in steps {
        at = match at {
            Value::Object(map) => map.get(&unescaped(step))?,
            Value::Array(list) => &list[step.parse::<usize>().ok().filter(|i| *i < list.len())?],
            _ => return None,
        };
        if !at.is_object() && !at.is_array() {
            return None;
        }
    }
    Some((at, unescaped(last)))
}

/// Why a map or list has no such step; `None` if it has.
fn absent(container: &Value, key: &str) -> Option<String> {
    match container {
        Value::Object(map) if map.contains_key(key) => None,
        Value::Object(_) => Some(format!(
            "Unable to remove nonexistent key: {key}: {MISSING}"
        )),
        Value::Array(list) => match key.parse::<i64>() {
            Err(_) => Some(format!(
                "strconv.Atoi: parsing {}: invalid syntax",
                quote(key)
            )),
            Ok(at) => {
                let is_in = usize::try_from(at).is_ok_and(|at| at < list.len());
                (!is_in).then(|| {
                    format!("Unable to access invalid index: {at}: invalid index referenced")
                })
            }
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;

    #[test]
    fn the_failing_operation_is_named_in_upstreams_words() {
        let object = json!({"data": {"a": "b"}, "list": [1]});
        let object = object.as_object().unwrap();
        for (operation, expected) in [
            (
                json!({"op": "remove", "path": "/nope"}),
                "error in remove for path: '/nope': Unable to remove nonexistent key: nope: missing value",
            ),
            (
                json!({"op": "remove", "path": "/x/y"}),
                "remove operation does not apply: doc is missing path: \"/x/y\": missing value",
            ),
            (
                json!({"op": "add", "path": "/x/y", "value": 1}),
                "add operation does not apply: doc is missing path: \"/x/y\": missing value",
            ),
            (
                json!({"op": "add", "path": "/list/x", "value": 1}),
                "error in add for path: '/list/x': value was not a proper array index: 'x': strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            (
                json!({"op": "add", "path": "/list/7", "value": 1}),
                "error in add for path: '/list/7': Unable to access invalid index: 7: invalid index referenced",
            ),
            (
                json!({"op": "replace", "path": "/x/y", "value": 1}),
                "replace operation does not apply: doc is missing path: /x/y: missing value",
            ),
            (
                json!({"op": "test", "path": "/data/a", "value": "c"}),
                "testing value /data/a failed: test failed",
            ),
            (
                json!({"op": "move", "from": "/x/y", "path": "/z"}),
                "move operation does not apply: doc is missing from path: /x/y: missing value",
            ),
            (json!({"op": "frob", "path": "/z"}), "Unexpected kind: frob"),
            (
                json!({"op": "add", "value": 1}),
                "add operation failed to decode path: missing value",
            ),
        ] {
            let before = json!({"op": "add", "path": "/new", "value": {}});
            let operations = json!([before, operation]);
            let error = patch::apply(object, &operations).unwrap_err();
            assert_eq!(describe(object, &operations, &error), expected);
        }
    }

    #[test]
    fn a_long_patch_is_described_without_a_copy_for_each_operation() {
        let list: Vec<u32> = (0..20_000).collect();
        let object = json!({"list": list, "data": {"a": "b"}});
        let object = object.as_object().unwrap();
        let add = json!({"op": "add", "path": "/data/a", "value": "c"});
        let mut operations = vec![add; patch::MAX_OPERATIONS - 1];
        operations.push(json!({"op": "move", "from": "/data/a", "path": "/x/y"}));
        let described = |operations: &Value| {
            let error = patch::apply(object, operations).unwrap_err();
            describe(object, operations, &error)
        };
        assert_eq!(
            described(&Value::Array(operations.clone())),
            "move operation does not apply: doc is missing destination path: /x/y: missing value"
        );
        operations.push(json!({"op": "remove", "path": "/nope"}));
        assert_eq!(
            described(&Value::Array(operations)),
            "The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
    }

    #[test]
    fn copies_that_grow_too_large_are_named() {
        let object = json!({"data": {"a": "x".repeat(1 << 20)}});
        let object = object.as_object().unwrap();
        let copy = |at: usize| json!({"op": "copy", "from": "/data", "path": format!("/copy{at}")});
        let operations: Value = (0..4).map(copy).collect::<Vec<_>>().into();
        let error = patch::apply(object, &operations).unwrap_err();
        let words = describe(object, &operations, &error);
        assert!(
            words.starts_with("Unable to complete the copy, the accumulated size increase"),
            "{words}"
        );
    }
}
